"""Where a model can run."""

from __future__ import annotations

import torch

from vitviz.errors.kinds import ConfigError
from vitviz.errors.messages import choices


def usable_device(device: str | torch.device) -> torch.device:
    """A device on which a number can be kept.

    Raises:
        ConfigError: this machine has none of this name.
    """
    try:
        found = torch.device(device)
        # The meta device stores no data.
        if found.type != "meta":
            torch.zeros(1, device=found)
            return found
    # Each kind of device raises its own error where it is missing.
    except Exception:
        pass
    kinds = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    legal = choices(["cpu", *(kind for kind, there in kinds.items() if there)])
    raise ConfigError(f"device {str(device)!r}: this machine has none of this name; expected {legal}")
