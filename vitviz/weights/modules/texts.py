"""Texts of a network of pictures and texts that is in memory."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn

from vitviz.errors.kinds import ConfigError
from vitviz.weights.modules.unwrap import package_of
from vitviz.weights.text_tower import TextTower, tower_of

# Entries of the vocabulary of OpenAI's CLIP, which open_clip's own tokenizer has.
CLIP_VOCABULARY = 49408
ASSUMED = "texts read by open_clip's own tokenizer; tokenizer=… states another"


def split_texts(
    module: nn.Module, tokenizer: Any, preprocessing: Any
) -> tuple[nn.Module, TextTower | None, tuple[str, ...]]:
    """What takes the pictures, what reads the texts, if anything, and what was assumed.

    transformers' networks take pictures by a method of theirs; those of open_clip and OpenAI's have a part for it.

    Args:
        module: without wrappers.
        tokenizer: of the user; None for that of the processor, or of open_clip.
        preprocessing: of the user; a processor of transformers has a tokenizer.

    Raises:
        ConfigError: a tokenizer is given, and the module reads no texts.
    """
    visual: Any = getattr(module, "visual", None)
    is_open_clip = hasattr(module, "encode_text") and isinstance(visual, nn.Module)
    if not (is_open_clip or hasattr(module, "get_text_features")) or not hasattr(module, "logit_scale"):
        if tokenizer is not None:
            raise ConfigError(
                "tokenizer: the module reads no texts; expected one with get_text_features or encode_text"
            )
        return module, None, ()
    tokenizer = tokenizer or getattr(preprocessing, "tokenizer", None)
    vocabulary = getattr(getattr(module, "token_embedding", None), "num_embeddings", None)
    is_assumed = tokenizer is None and package_of(module) == "open_clip" and vocabulary == CLIP_VOCABULARY
    if is_assumed:
        import open_clip

        tokenizer = partial(open_clip.tokenize, context_length=module.context_length)
    return visual if is_open_clip else module, tower_of(module, tokenizer), (ASSUMED,) * is_assumed
