"""The command ``vitviz ask``: what a vision-language model answers, with a map for each word."""

from __future__ import annotations

from pathlib import Path

import torch

from vitviz.cli.picture_files import check_picture, find_picture, source_of, write_figure
from vitviz.cli.printing import note, print_json, show
from vitviz.errors.arguments import integer
from vitviz.errors.extras import optional
from vitviz.errors.kinds import ConfigError, MethodError
from vitviz.errors.number_text import percent
from vitviz.language import ask
from vitviz.language.notebook import one_scale
from vitviz.models.devices import usable_device
from vitviz.models.watched.outputs import module_errors
from vitviz.visualization.panels import MAX_PANELS, figure
from vitviz.weights.language_model import LanguageModel
from vitviz.weights.load import load


def run(
    image: str,
    question: str,
    model: str,
    device: str,
    precision: str | None,
    text: str | None,
    map: str,
    layer: int | None,
    head: int | None,
    tokens: int,
    output: Path | None,
    json: bool,
) -> None:
    """Print the answer with the probability of each word, and write a panel for each with ``--output``.

    Raises:
        ImageError: the picture cannot be opened, or is a folder, or the file cannot be written.
        ConfigError: the model cannot be opened or watched.
        MethodError: the map does not apply to it, or is not asked for.
    """
    check_picture(output, image)
    place = {name: number for name, number in (("layer", layer), ("head", head)) if number is not None}
    if place and map != "attention":
        raise MethodError(f"--{next(iter(place))}: of --map attention alone; {map} is that of all layers and heads")
    if (place or map != "attention") and output is None and not json:
        raise MethodError(f"--{next(iter(place), 'map')}: of maps alone; expected -o words.png or --json, too")
    limit = integer("tokens", tokens, 1, MethodError)
    answer = ask(
        source_of(find_picture(image).path),
        question,
        _opened(model, usable_device(device), precision),
        text=text,
        max_new_tokens=limit,
    )
    words = answer.words[: None if json else MAX_PANELS]
    # What is hidden for the last word serves all words before it.
    maps = [getattr(answer, map)(word, **place) for word in reversed(words)][::-1] if output is not None or json else []
    if json:
        print_json(
            {
                "image": image,
                "model": model,
                "text": answer.text,
                "box": maps[0].geometry.box if maps else None,
                "words": [
                    {**vars(word), "description": found.description, "values": found.values}
                    for word, found in zip(words, maps, strict=True)
                ],
            }
        )
    else:
        show("\n".join([answer.text, *(f"  {word.text:<20} {percent(word.probability)}" for word in answer.words)]))
    if output is not None:
        if not words:
            raise MethodError(f"the answer has no words, so that {output} would be empty")
        maps, names = maps[:MAX_PANELS], [f"{word.text} ({percent(word.probability)})" for word in words[:MAX_PANELS]]
        part = f": {len(names)} of {len(answer.words)} words" if len(names) < len(answer.words) else ""
        write_figure(output, figure(maps, one_scale(maps), names=names, title=f"{question}\n{answer.text}{part}"))
        note(f"written to {output}{part}")


def _opened(folder: str, device: torch.device, precision: str | None) -> LanguageModel:
    """The model in a folder of transformers, from safetensors, without code of its own."""
    with optional("vitviz ask"):
        from transformers import (
            MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
            AutoConfig,
            AutoModelForImageTextToText,
            AutoProcessor,
        )
    with module_errors(f"{folder}: transformers does not open it", ConfigError):
        if type(AutoConfig.from_pretrained(folder)) not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
            raise ConfigError(
                f"{folder}: the model takes no pictures, or writes nothing; expected one of AutoModelForImageTextToText"
            )
        with module_errors(f"{folder}: processor: what prepares pictures and texts does not open", ConfigError):
            processor = AutoProcessor.from_pretrained(folder)
        module = AutoModelForImageTextToText.from_pretrained(folder, use_safetensors=True, dtype=precision or "auto")
        return load(module.eval().to(device), processor=processor)
