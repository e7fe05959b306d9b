"""What a module returns, as one tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from vitviz.attention.memory import is_out_of_memory
from vitviz.errors.kinds import ConfigError, ImageError, VitvizError
from vitviz.errors.messages import describe

# transformers' outputs: what is classified first, then what is pooled, then the tokens, then what heads make of them.
FIELDS = (
    *("logits", "image_embeds", "pooler_output", "last_hidden_state"),
    *("predicted_depth", "heatmaps", "feature_maps"),
)


MAX_REASON_CHARS = 200


def first_output(
    name: str, module: nn.Module, forward: Callable[[nn.Module, torch.Tensor], Any], pixels: torch.Tensor
) -> Any:
    """What a module returns of an image, without gradients; an error of its own becomes a sentence.

    Args:
        name: what the message calls the module.
        module: in evaluation mode.
        forward: how it is called.
        pixels: ``"1 channel height width"``.

    Raises:
        ImageError: the module does not take the image.
    """
    try:
        with torch.inference_mode(False), torch.no_grad():
            return forward(module, pixels)
    except VitvizError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        refused = f"{name} does not take an image of {pixels.shape[-1]}×{pixels.shape[-2]} pixels"
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:MAX_REASON_CHARS]}"
        raise ImageError(f"{refused}: {reason}") from None


def primary_output(returned: Any) -> torch.Tensor:
    """The tensor that a module's forward pass is about: logits, or features, or the tokens.

    Raises:
        ConfigError: there is none.
    """
    if isinstance(returned, torch.Tensor):
        return returned
    if isinstance(returned, Mapping):
        for field in FIELDS:
            found = returned.get(field)
            found = found[-1] if isinstance(found, tuple | list) and found else found
            if isinstance(found, torch.Tensor):
                return found
    elif isinstance(returned, tuple | list) and returned and isinstance(returned[0], torch.Tensor):
        return returned[0]
    expected = "expected a tensor, or forward=… that makes one: (module, pixels) to 'batch class'"
    raise ConfigError(f"the module returns {describe(returned)}; {expected}")


def is_vector(output: torch.Tensor) -> bool:
    """Whether it is one row of numbers for each image, ``"batch class"`` or ``"batch feature"``."""
    return output.ndim == 2
