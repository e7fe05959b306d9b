"""Modules that can be captured: in evaluation mode, on one device, neither compiled nor scripted nor sharded."""

from __future__ import annotations

import torch
from torch import nn

from vitviz.errors.kinds import ConfigError
from vitviz.errors.messages import choices

WHOLE = (
    "expected a module with all its weights; fill a plain one with what get_model_state_dict(module, "
    "options=StateDictOptions(full_state_dict=True)) of torch.distributed.checkpoint.state_dict gives"
)


def device_of(module: nn.Module) -> torch.device:
    """The device of all weights; the processor's for a module without any.

    Raises:
        ConfigError: they are on several, or on none.
    """
    devices = sorted({str(tensor.device) for tensor in (*module.parameters(), *module.buffers())})
    if len(devices) > 1:
        raise ConfigError(f"weights on {' and '.join(devices)}: expected a module on one device")
    if devices == ["meta"]:
        raise ConfigError("weights on the meta device, which stores no data: expected a module with weights")
    return torch.device(devices[0] if devices else "cpu")


def dtype_of(module: nn.Module) -> torch.dtype:
    """The floating type of its first weight; single precision where it has none."""
    floating = (each.dtype for each in (*module.parameters(), *module.buffers()) if each.is_floating_point())
    return next(floating, torch.float32)


def check_state(module: nn.Module) -> None:
    """Refuse a module whose attention cannot be seen, or is not what it would be in use; it is not changed.

    Raises:
        ConfigError: it is in training mode, compiled, scripted, sharded, or not on one device.
    """
    device_of(module)
    for name, part in module.named_modules():
        place = f"its part {name!r}" if name else "it"
        if part.training:
            raise ConfigError(f"{place} is in training mode, where dropout is random: call module.eval() first")
        if isinstance(part, torch.jit.ScriptModule):
            raise ConfigError(f"{place} is scripted by torch.jit, inside which nothing is seen: expected it in Python")
        if getattr(part, "_compiled_call_impl", None) is not None or type(part).__name__ == "OptimizedModule":
            raise ConfigError(f"{place} is compiled, inside which nothing is seen: expected it before torch.compile")
        if any(base.__name__ in ("FullyShardedDataParallel", "FSDPModule") for base in type(part).__mro__):
            raise ConfigError(f"{place} is sharded over several processes: {WHOLE}")


def check_asked_device(module: nn.Module, device: torch.device) -> None:
    """Refuse another device than the module's own.

    Raises:
        ConfigError: it is on another.
    """
    own = device_of(module)
    if device.type != own.type or (device.index is not None and device.index != own.index):
        found = f"the module is on {choices([str(own)])} and stays there"
        raise ConfigError(f"device {str(device)!r}: {found}; move it by module.to({str(device)!r}) and load it again")
