"""Texts as targets: what reads the texts of a network of pictures and texts scores how well an image fits a sentence.

Radford et al. 2021, "Learning Transferable Visual Models From Natural Language Supervision"; SigLIP: Zhai et al. 2023,
"Sigmoid Loss for Language Image Pre-Training". The networks are those of transformers and open_clip: extra ``text``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from vitviz.errors.kinds import MethodError
from vitviz.errors.messages import describe, quote
from vitviz.models.targets import MAX_TEXT_CHARS, Target

NO_TOKENIZER = (
    "the texts of a module need its tokenizer; expected vitviz.load(module, preprocessing=processor), whose tokenizer "
    "it is, or vitviz.load(module, tokenizer=tokenizer), or its vocabulary in the folder that it is opened from"
)
NO_TEXTS = (
    "it reads no texts; expected a network of pictures and texts, such as hf:openai/clip-vit-base-patch32 or "
    "open_clip:ViT-B-32/laion2b_s34b_b79k"
)


@dataclass(frozen=True, eq=False)
class TextTower:
    """A text encoder whose features are compared with those of images.

    Args:
        features: of a text, ``"feature"``.
        scale, bias: of the logit, ``scale * cosine + bias``.
    """

    features: Callable[[str], torch.Tensor]
    scale: float
    bias: float

    def target(self, text: str) -> Target:
        """The logit of an image for this text: the scaled cosine between the features of both.

        Raises:
            MethodError: the text is empty or too long.
        """
        if not isinstance(text, str):
            raise MethodError(f"text: {describe(text)} found; expected one text, such as 'a cat'")
        text = " ".join(text.split())
        if not 0 < len(text) <= MAX_TEXT_CHARS:
            raise MethodError(f"text of {len(text):,} characters: expected 1 to {MAX_TEXT_CHARS:,}")
        with torch.inference_mode(False), torch.no_grad():
            text_features = F.normalize(self.features(text).float(), dim=-1)

        return Target(f"the text “{text}”", TextScore(text_features, self.scale, self.bias))


@dataclass(frozen=True, eq=False)
class TextScore:
    """The logit of an image for a text, from the image's features. A class, since closures cannot be pickled.

    Args:
        features: of the text, ``"feature"``, of length 1.
        scale, bias: as in :class:`TextTower`.
    """

    features: torch.Tensor = field(repr=False)
    scale: float
    bias: float

    def __call__(self, features: torch.Tensor) -> torch.Tensor:
        cosine = F.normalize(features.float(), dim=-1) @ self.features.to(features.device)
        return self.scale * cosine + self.bias


def tower_of(model: Any, tokenizer: Any) -> TextTower:
    """The texts of a network of pictures and texts, of transformers or of open_clip.

    Args:
        model: in evaluation mode, with ``get_text_features`` or ``encode_text``.
        tokenizer: of its package; None if it is not known, so that it is asked for when a text comes.
    """
    bias = getattr(model, "logit_bias", None)
    scale = float(model.logit_scale.detach().exp())
    return TextTower(partial(_features, model, tokenizer), scale, 0.0 if bias is None else float(bias.detach()))


def _features(model: Any, tokenizer: Any, text: str) -> torch.Tensor:
    """The features of a text, ``"feature"``.

    Raises:
        MethodError: there is no tokenizer, or the model does not read the text to its end.
    """
    if tokenizer is None:
        raise MethodError(NO_TOKENIZER)
    # What follows a text shows whether all of it is read.
    texts, device = [text, f"{text} a"], model.logit_scale.device
    if hasattr(model, "get_text_features"):
        most = model.config.text_config.max_position_embeddings
        tokens = tokenizer(texts, padding="max_length", max_length=most, truncation=True, return_tensors="pt")
        ids, encode = tokens.input_ids, model.get_text_features
        options = {name: each[:1].to(device) for name, each in tokens.items()}
    else:
        ids, encode = tokenizer(texts), model.encode_text
        options = {"text": ids[:1].to(device)}
    if torch.equal(*ids):
        raise MethodError(
            f"{quote(text)}: of {ids.shape[1]} tokens, all that this model reads, or more; expected fewer"
        )
    with torch.no_grad():
        output = encode(**options)
    pooled: torch.Tensor = output if isinstance(output, torch.Tensor) else output.pooler_output
    return pooled[0]
