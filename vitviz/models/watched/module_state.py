"""Checks that a module can be watched: in evaluation mode, on one device, not compiled, scripted or sharded."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import torch
from torch import nn

from vitviz.errors.kinds import ConfigError
from vitviz.errors.messages import choices

# States in which attention cannot be observed, or differs from that in inference, of a module or a part of it.
STATES: tuple[tuple[Callable[[nn.Module], bool], str], ...] = (
    (
        lambda part: part.training and isinstance(part, torch.fx.GraphModule),
        "a program of torch.export, whose eval() does nothing: expected the module itself, or a file of its "
        "state_dict()",
    ),
    (lambda part: part.training, "in training mode, where dropout is random: call module.eval() first"),
    (
        lambda part: isinstance(part, torch.jit.ScriptModule),
        "scripted by torch.jit, inside which nothing is seen: expected it in Python",
    ),
    (
        lambda part: getattr(part, "_compiled_call_impl", None) is not None or type(part).__name__ == "OptimizedModule",
        "compiled, inside which nothing is seen: expected it before torch.compile",
    ),
    (
        lambda part: any(base.__name__ in ("FullyShardedDataParallel", "FSDPModule") for base in type(part).__mro__),
        "sharded over several processes: expected a module with all its weights; fill a plain one with what "
        "get_model_state_dict(module, options=StateDictOptions(full_state_dict=True)) of "
        "torch.distributed.checkpoint.state_dict gives",
    ),
)


def device_of(module: nn.Module) -> torch.device:
    """The device of all weights; the CPU for a module without weights.

    Raises:
        ConfigError: the weights are on several devices, or on the meta device.
    """
    devices = sorted(map(str, {tensor.device for tensor in chain(module.parameters(), module.buffers())}))
    if len(devices) > 1:
        raise ConfigError(f"weights on {' and '.join(devices)}: expected a module on one device")
    if devices == ["meta"]:
        raise ConfigError("weights on the meta device, which stores no data: expected a module with weights")
    return torch.device(devices[0] if devices else "cpu")


def dtype_of(module: nn.Module) -> torch.dtype:
    """The type of the first floating-point weight; single precision if there is none."""
    tensors = chain(module.parameters(), module.buffers())
    return next((tensor.dtype for tensor in tensors if tensor.is_floating_point()), torch.float32)


def check_state(module: nn.Module) -> None:
    """Refuse a module whose attention cannot be observed, or differs from that in inference.

    Raises:
        ConfigError: the module is in training mode, compiled, scripted, sharded, or not on one device.
    """
    device_of(module)
    for name, part in module.named_modules():
        if state := next((state for is_in, state in STATES if is_in(part)), None):
            raise ConfigError(f"{f'its part {name!r}' if name else 'it'} is {state}")


def check_device(module: nn.Module, device: torch.device) -> None:
    """Refuse any device but the module's own.

    Raises:
        ConfigError: the module is on another device.
    """
    current = device_of(module)
    if device.type != current.type or (device.index is not None and device.index != current.index):
        raise ConfigError(
            f"device {str(device)!r}: the module is on {choices([str(current)])} and stays there; move it by "
            f"module.to({str(device)!r}) and load it again"
        )
