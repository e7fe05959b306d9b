"""The result of a module as one tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from vitviz.attention.memory import is_out_of_memory
from vitviz.errors.kinds import ConfigError, ImageError, VitvizError
from vitviz.errors.messages import describe

# Fields of transformers' outputs, best first: logits, pooled features, tokens, then the outputs of dense heads.
FIELDS = (
    *("logits", "image_embeds", "pooler_output", "last_hidden_state"),
    *("predicted_depth", "heatmaps", "feature_maps"),
)
MAX_REASON_CHARS = 200


def first_output(
    name: str, module: nn.Module, forward: Callable[[nn.Module, torch.Tensor], Any], pixels: torch.Tensor
) -> Any:
    """A module's result for an image, without gradients; turns any error of the module into an :class:`ImageError`.

    Args:
        name: name of the module in the message.
        module: in evaluation mode.
        forward: calls the module.
        pixels: ``"1 channel height width"``.

    Raises:
        ImageError: the module does not accept the image.
    """
    try:
        with torch.inference_mode(False), torch.no_grad():
            return forward(module, pixels)
    except VitvizError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        refusal = f"{name} does not take an image of {pixels.shape[-1]}×{pixels.shape[-2]} pixels"
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:MAX_REASON_CHARS]}"
        raise ImageError(f"{refusal}: {reason}") from None


@contextmanager
def observation_errors(name: str) -> Iterator[None]:
    """Turns any error of a pass that is observed, and that ran without, into a :class:`ConfigError`.

    Args:
        name: of the module, in the message.

    Raises:
        ConfigError: the module uses tensors whose attention cannot be observed, such as nested ones.
    """
    try:
        yield
    except VitvizError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:MAX_REASON_CHARS]}"
        raise ConfigError(f"{name}: its attention cannot be observed: {reason}") from None


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
    expected = "expected a tensor, or forward=… that makes one: (module, pixels) to 'batch class'"
    raise ConfigError(f"the module returns {describe(result)}; {expected}")


def is_vector(output: torch.Tensor) -> bool:
    """Whether the output is one row of numbers for each image, ``"batch class"`` or ``"batch feature"``."""
    return output.ndim == 2
