"""The precisions in which vitviz computes and stores numbers."""

from __future__ import annotations

import torch

from vitviz.errors.arguments import word
from vitviz.errors.kinds import ConfigError

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def type_of(precision: str, name: str = "precision") -> torch.dtype:
    """The type of a precision in :data:`PRECISIONS`; the message calls the argument ``name``.

    Raises:
        ConfigError: the precision is none of these.
    """
    return PRECISIONS[word(name, precision, PRECISIONS, ConfigError)]


def precise(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in at least single precision."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
