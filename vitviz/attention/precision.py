"""The precisions in which vitviz computes and stores numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Literal

import torch

from vitviz.errors.arguments import word
from vitviz.errors.kinds import ConfigError

Precision = Literal["float32", "bfloat16", "float16"]
PRECISIONS: dict[Precision, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
AUTOCAST_DEVICES = ("cpu", "cuda", "mps", "xpu")


def type_of(precision: str, name: str = "precision") -> torch.dtype:
    """The type of a precision in :data:`PRECISIONS`; the message calls the argument ``name``.

    Raises:
        ConfigError: the precision is none of these.
    """
    return PRECISIONS[word(name, precision, PRECISIONS, ConfigError)]


def precise(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in at least single precision."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


@contextmanager
def plain_torch() -> Iterator[None]:
    """Leave out what the caller's code has set by ``torch.autocast`` and ``torch.set_default_device``: compute in the
    types of the tensors, and make new ones on the CPU where no device is given."""
    with ExitStack() as stack:
        if torch.empty(0).device.type != "cpu":
            stack.enter_context(torch.device("cpu"))
        for device in AUTOCAST_DEVICES:
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield
