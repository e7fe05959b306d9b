"""The result of a module as one tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from textwrap import shorten
from typing import Any

import torch
from torch import nn

from vitviz.attention.memory import is_out_of_memory
from vitviz.errors.kinds import ConfigError, ImageError, VitvizError
from vitviz.errors.messages import describe

# Fields of transformers' outputs, best first: logits, pooled features, tokens, then the outputs of dense heads.
FIELDS = (
    *("logits", "image_embeds", "pooler_output", "last_hidden_state"),
    *("predicted_depth", "heatmaps", "feature_maps", "reconstruction"),
)
MAX_REASON_CHARS = 300
Forward = Callable[[nn.Module, torch.Tensor], Any]
"""Calls a module with pixels ``"batch channel height width"`` and returns its result."""


@contextmanager
def module_errors(failure: str, error: type[VitvizError], remedy: str = "") -> Iterator[None]:
    """Turn any error of a module into one sentence.

    Args:
        failure: its beginning, with the name of the module.
        error: its kind.
        remedy: its end.
    """
    try:
        yield
    except VitvizError:
        raise
    except Exception as cause:
        if is_out_of_memory(cause):
            raise
        reason = f"{type(cause).__name__}: {shorten(str(cause), MAX_REASON_CHARS, placeholder=' …')}"
        raise error(f"{failure}: {reason}{remedy}") from None


@contextmanager
def observation_errors(name: str) -> Iterator[None]:
    """Turn any error of a pass that is observed, and that ran without, into a :class:`ConfigError` with the name."""
    try:
        with module_errors(f"{name}: its attention cannot be observed", ConfigError):
            yield
    except ConfigError as error:
        raise ConfigError(f"{name}: {str(error).removeprefix(f'{name}: ')}") from None


def first_output(name: str, module: nn.Module, forward: Forward, pixels: torch.Tensor, remedy: str = "") -> Any:
    """A module's result for an image ``"1 channel height width"``, without gradients.

    ``remedy`` ends the sentence about an image that it does not accept.

    Raises:
        ImageError: the module does not accept the image.
    """
    failure = f"{name} does not take an image of {pixels.shape[-1]}×{pixels.shape[-2]} pixels"
    with module_errors(failure, ImageError, remedy), torch.inference_mode(False), torch.no_grad():
        return forward(module, pixels)


def primary_output(result: Any) -> torch.Tensor:
    """The main tensor of a module's result: logits, features or tokens.

    Raises:
        ConfigError: the result has none.
    """
    if isinstance(result, torch.Tensor):
        return result
    if isinstance(result, Mapping):
        for field in FIELDS:
            value = result.get(field)
            value = value[-1] if isinstance(value, tuple | list) and value else value
            if isinstance(value, torch.Tensor):
                return value
    elif isinstance(result, tuple | list) and result and isinstance(result[0], torch.Tensor):
        return result[0]
    raise ConfigError(
        f"the module returns {describe(result)}; expected a tensor, or forward=… that makes one: (module, pixels) to "
        "'batch class'"
    )


def is_vector(output: torch.Tensor) -> bool:
    """Whether the output is one row of numbers for each image, ``"batch class"`` or ``"batch feature"``."""
    return output.ndim == 2
