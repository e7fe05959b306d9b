"""The nonlinearities of an MLP, by their names in :class:`vitviz.ViTConfig`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F


def quick_gelu(values: torch.Tensor) -> torch.Tensor:
    """The sigmoid approximation of GELU with which OpenAI trained CLIP (Hendrycks & Gimpel 2016, section 2)."""
    return values * torch.sigmoid(1.702 * values)


Activation = Literal["gelu", "gelu tanh", "quick gelu", "silu", "relu"]
ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": F.gelu,
    "gelu tanh": partial(F.gelu, approximate="tanh"),
    "quick gelu": quick_gelu,
    "silu": F.silu,
    "relu": F.relu,
}

IN_PLACE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": torch.ops.aten.gelu_,
    "gelu tanh": partial(torch.ops.aten.gelu_, approximate="tanh"),
    "silu": partial(F.silu, inplace=True),
    "relu": torch.relu_,
}


def activate(name: str, values: torch.Tensor) -> torch.Tensor:
    """Apply an activation, in place if torch can and records no gradient: the caller must not need the values again."""
    in_place = None if torch.is_grad_enabled() else IN_PLACE.get(name)
    return (in_place or ACTIVATIONS[name])(values)
