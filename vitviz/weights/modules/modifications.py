"""Checks that a module is unmodified, so that a copy of its weights in another network computes the same."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from vitviz.errors.kinds import ConfigError
from vitviz.errors.messages import choices
from vitviz.models.weight_samples import AFTER_TRAINING, weight_samples
from vitviz.weights.modules.unwrap import package_of

PACKAGES = ("timm", "transformers", "open_clip", "torchvision")
# Package of torch's plain layers. Others, such as parametrizations and quantisation, change weights or outputs.
LAYERS = "torch.nn.modules."
# Attributes that transformers adds when a call returns attentions or hidden states.
ADDED_ATTRIBUTES = {"_output_capturing_hooks_installed"}
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def find_modification(module: nn.Module) -> str | None:
    """The first modification that a copy of the weights would lack, in words; None for an unmodified module.

    Modifications are hooks, replaced methods, classes of other packages (adapters, quantised or parametrised layers,
    the user's own), and weights in another type than float32.
    """
    if package_of(module) not in PACKAGES:
        return f"its class {type(module).__name__} is none of {choices(PACKAGES)}"
    checked: set[type] = set()
    for name, submodule in module.named_modules():
        place = f"its part {name!r}" if name else "it"
        cls = type(submodule)
        if not (_root(cls.__module__) in PACKAGES or cls.__module__.startswith(LAYERS)):
            return f"{place} is a {cls.__module__}.{cls.__qualname__}"
        if cls not in checked:
            checked.add(cls)
            method = _replaced_method(cls)
            if method:
                return f"{method} of {cls.__name__} was replaced"
        if any(inspect.isroutine(getattr(cls, attribute, None)) for attribute in vars(submodule)):
            return f"{place} has a method of its own"
        if _foreign_hooks(submodule):
            return f"{place} has a hook"
    for name, tensor in _tensors(module):
        if type(tensor) not in (nn.Parameter, torch.Tensor) or tensor.layout != torch.strided:
            return f"{name!r} is a {type(tensor).__name__}"
        if tensor.is_floating_point() and tensor.dtype != torch.float32:
            return f"{name!r} is {str(tensor.dtype)[6:]}, and a copy would compute in float32"
    return None


@dataclass(eq=False)
class ChangeGuard:
    """Called before a network with copied weights runs; raises an error once the original module has changed.

    Args:
        module: that was copied, by a weak reference: a deleted module cannot change.
        name: of the module, for the message.
    """

    module: weakref.ref[nn.Module]
    name: str
    state: tuple[Any, ...] = field(default=())

    @classmethod
    def watch(cls, module: nn.Module, name: str) -> ChangeGuard:
        return cls(weakref.ref(module), name, _snapshot(module))

    def __call__(self) -> None:
        module = self.module()
        if module is not None and _snapshot(module) != self.state:
            raise ConfigError(
                f"{self.name}: the module has changed since its weights were copied: load it again (with engine = "
                f"'module', vitviz sees every change) and {AFTER_TRAINING}"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        # A pickled network keeps the weights that were copied, so its copies need no guard.
        return _never_refuse, ()


def _never_refuse() -> None:
    return None


def _snapshot(module: nn.Module) -> tuple[Any, ...]:
    """Counts and types that change with a module: its submodules, attributes, hooks and tensors, with torch's count of
    in-place changes and samples of the values."""
    submodules = (
        (
            type(submodule),
            len(vars(submodule).keys() - ADDED_ATTRIBUTES),
            _foreign_hooks(submodule),
            _settings(submodule),
        )
        for submodule in module.modules()
    )
    tensors = [tensor for _, tensor in _tensors(module)]
    return (*submodules, *((tensor.data_ptr(), _version(tensor)) for tensor in tensors), weight_samples(tensors))


def _settings(module: nn.Module) -> tuple[tuple[str, Any], ...]:
    """The attributes that say how it computes, such as a factor; counts are left out, in which modules keep caches."""
    own = ((name, value) for name, value in vars(module).items() if name not in ADDED_ATTRIBUTES)
    return tuple((name, value) for name, value in own if isinstance(value, bool | float | str))


def _version(tensor: torch.Tensor) -> int:
    # torch does not count changes of tensors from inference mode.
    return 0 if tensor.is_inference() else tensor._version


def _tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _foreign_hooks(module: nn.Module) -> int:
    """The number of hooks that the module's own package did not put there."""
    hooks = (hook for attribute in HOOKS for hook in getattr(module, attribute, {}).values())
    return sum(_root(hook.__module__) not in PACKAGES for hook in hooks)


def _replaced_method(cls: type) -> str | None:
    """The name of a method that a foreign package has put into a class; None if there is none."""
    for base in cls.__mro__:
        if base is nn.Module:
            return None
        for name, method in vars(base).items():
            if inspect.isfunction(method) and _root(method.__module__) not in (*PACKAGES, "torch"):
                return name
    return None


def _root(module: str) -> str:
    return module.partition(".")[0]
