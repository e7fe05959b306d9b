"""The devices on which a model can run."""

from __future__ import annotations

import torch

from vitviz.errors.kinds import ConfigError
from vitviz.errors.messages import choices


def usable_device(device: str | torch.device) -> torch.device:
    """The device of this name, if it can hold a tensor.

    Raises:
        ConfigError: this machine has no device of this name.
    """
    try:
        # The meta device has no number to read.
        torch.zeros(1, device=device).item()
    # Each kind of device raises its own type of error when it is missing.
    except Exception:
        kinds = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
        legal = choices(["cpu", *(kind for kind, is_available in kinds.items() if is_available)])
        raise ConfigError(f"device {str(device)!r}: this machine has none of this name; expected {legal}") from None
    return torch.device(device)
