"""Asks a network about pictures, and records its attention while it writes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from vitviz.attention.precision import plain_torch
from vitviz.errors.arguments import instance, integer, named_arguments
from vitviz.errors.kinds import ConfigError, MethodError
from vitviz.errors.messages import describe
from vitviz.images.opening import open_image
from vitviz.images.sources import ImageSource
from vitviz.language.answers import Answer
from vitviz.language.generation import generate
from vitviz.language.places import measure_places
from vitviz.language.prompts import Prompt, Question
from vitviz.language.record import MAX_QUERIES, Recorder
from vitviz.language.text import tokens_of, words_of
from vitviz.models.watched.listening import attention_calls
from vitviz.models.watched.module_state import check_state, dtype_of
from vitviz.models.watched.outputs import observation_errors
from vitviz.models.watched.replay import TOLERANCES
from vitviz.weights.language_model import LanguageModel

MAX_NEW_TOKENS = 64


@named_arguments(MethodError)
@torch.inference_mode(False)
@plain_torch()
def ask(
    image: ImageSource | Sequence[ImageSource],
    question: Question,
    model: LanguageModel,
    *,
    text: str | None = None,
    max_new_tokens: int = MAX_NEW_TOKENS,
) -> Answer:
    """Ask a vision-language model about a picture, and see what it attends to for each word that it writes.

    Its attention is recorded while it writes, with its own kernels: a query for each token and layer, and the keys of
    its cache. Each is compared with what the network computed. It writes greedily.

    Which part of the picture a token stands for is measured, whatever the network merges, cuts or pads. A network whose
    tokens stand for no part of their own, as where a few queries read the picture, is refused.

    Args:
        image: as :func:`vitviz.open_image` takes it, or a list of several.
        question: a text, or messages of several turns as transformers' chat templates take them, with
            ``{"type": "image"}`` for each picture, or the same picture in it. It may be empty for a network that only
            describes.
        model: as ``vitviz.load(module, processor=processor)`` gives it.
        text: that the network has to write, in place of its own answer: *why not this?*
        max_new_tokens: the most tokens of its own answer.

    Raises:
        ImageError: a picture cannot be opened.
        ConfigError: the model is none that writes, its attention or the places of its tokens cannot be read exactly,
            or its processor fails.
        MethodError: the question or the text cannot be used.

    >>> answer = vitviz.ask("cat.jpg", "what is this", writer, text="a cat")
    >>> [word.text for word in answer.words]
    ['a', 'cat']
    >>> answer.attention("cat").save("where.png")
    """
    model = instance("model", model, LanguageModel, "vitviz.load(module, processor=processor)")
    limit = integer("max_new_tokens", max_new_tokens, 1, MethodError)
    check_state(model.module)
    images: Any = image if isinstance(image, list | tuple) else [image]
    if not images:
        raise MethodError("image: an empty list found; expected a picture, or a list of one or more")
    prompt = Prompt.of(model, [open_image(each) for each in images], question)
    given = None if text is None else model.ids(text)
    with observation_errors(model.name):
        inputs = prompt.inputs()
        if "labels" in inputs and "input_ids" not in inputs:
            raise MethodError(f"question {describe(question)}: the processor takes it for an answer; expected ''")
        ids, logits, recorder = _record(prompt, inputs, limit, given)
        crossing = next((number for number, layer in enumerate(recorder.layers) if layer.is_cross), 0)
        grids = measure_places(prompt, inputs, recorder.skipped + crossing)
    rounding = TOLERANCES.get(dtype_of(model.module), 0.0) * float(logits.amax(1).abs().max().clamp(min=1))
    if not math.isfinite(rounding):
        raise ConfigError(f"{model.name}: its logits are not finite; expected finite ones, as in bfloat16 or float32")
    tokens = tokens_of(ids, logits, model.tokenizer)
    return Answer(prompt, tokens, words_of(tokens, model.tokenizer), recorder, grids, rounding)


def _record(
    prompt: Prompt, inputs: Mapping[str, Any], limit: int, given: Sequence[int] | None
) -> tuple[Sequence[int], torch.Tensor, Recorder]:
    """What the network writes, the logits of each step, and its attention."""
    recorder = Recorder()
    with attention_calls(recorder.add, slice(-MAX_QUERIES, None)):
        ids, logits = generate(prompt, inputs, limit, given, recorder.end_step)
    if len(ids) == 1 == len(given or ids):
        # Which calls are the decoder's is known by the second step.
        _, logits, recorder = _record(prompt, inputs, limit, [*ids, *ids])
        return ids, logits[:1], recorder
    if not recorder.step:
        raise ConfigError(
            "its own generate() takes no logits_processor, which tells its steps; expected transformers' own"
        )
    # Layers that pass on what they read in another way are no calls; cross-attention is a second one.
    config: Any = prompt.model.module.config
    text, calls = config.get_text_config(decoder=True), len(recorder.layers)
    layers: int = getattr(text, "decoder_layers", 0) or getattr(text, "num_hidden_layers", calls)
    crossed = sum(layer.is_cross for layer in recorder.layers)
    if calls not in (layers, layers + crossed):
        raise ConfigError(
            f"attention was seen in {calls} places of its {layers} layers: the others pass on what they read in "
            "another way; expected one that decodes with attention alone, as with attn_implementation='sdpa'"
        )
    return ids, logits, recorder
