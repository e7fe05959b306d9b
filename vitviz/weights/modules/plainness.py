"""Whether a module is what its package made: a copy of its weights in another network can then stand for it."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from vitviz.errors.kinds import ConfigError
from vitviz.errors.messages import choices
from vitviz.weights.modules.unwrap import package_of

PACKAGES = ("timm", "transformers", "open_clip", "torchvision")
# Where torch's own layers are defined. Its other modules change weights or outputs: parametrizations, quantisation.
LAYERS = "torch.nn.modules."
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def foreign_part(module: nn.Module) -> str | None:
    """What a copy of the weights would lack, in words; None where the module is as its package made it.

    Hooks, replaced methods, classes of others (adapters, quantised or parametrised layers, one's own), and weights of
    another type than single precision.
    """
    if package_of(module) not in PACKAGES:
        return f"its class {type(module).__name__} is none of {choices(PACKAGES)}"
    checked: set[type] = set()
    for name, part in module.named_modules():
        place = f"its part {name!r}" if name else "it"
        kind = type(part)
        if not (_root(kind.__module__) in PACKAGES or kind.__module__.startswith(LAYERS)):
            return f"{place} is a {kind.__module__}.{kind.__qualname__}"
        if kind not in checked:
            checked.add(kind)
            replaced = _replaced_method(kind)
            if replaced:
                return f"{replaced} of {kind.__name__} was replaced"
        if any(inspect.isroutine(getattr(kind, attribute, None)) for attribute in vars(part)):
            return f"{place} has a method of its own"
        if any(_root(hook.__module__) not in PACKAGES for hook in _hooks(part)):
            return f"{place} has a hook"
    for name, tensor in _tensors(module):
        if type(tensor) not in (nn.Parameter, torch.Tensor) or tensor.layout != torch.strided:
            return f"{name!r} is a {type(tensor).__name__}"
        if tensor.is_floating_point() and tensor.dtype != torch.float32:
            return f"{name!r} is {str(tensor.dtype)[6:]}, and a copy would compute in float32"
    return None


@dataclass(eq=False)
class Unchanged:
    """Refuses to go on when the module has changed whose weights a network is a copy of.

    Args:
        module: that was copied. It is not kept alive: what is gone changes no more.
        name: what the message calls it.
    """

    module: weakref.ref[nn.Module]
    name: str
    state: tuple[Any, ...] = field(default=())

    @classmethod
    def since_now(cls, module: nn.Module, name: str) -> Unchanged:
        return cls(weakref.ref(module), name, _state(module))

    def __call__(self) -> None:
        module = self.module()
        if module is not None and _state(module) != self.state:
            raise ConfigError(
                f"{self.name}: the module has changed since its weights were copied: load it again, or with "
                "engine = 'module', which sees every change"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy of the network, in this process or another, is one of what the weights were.
        return _nothing, ()


def _nothing() -> None:
    return None


def _state(module: nn.Module) -> tuple[Any, ...]:
    """Which parts and tensors a module has, with hooks and attributes, and how often each tensor was changed in place,
    as torch counts it."""
    parts = ((type(part), len(vars(part)), sum(1 for _ in _hooks(part))) for part in module.modules())
    return (*parts, *((tensor.data_ptr(), _version(tensor)) for _, tensor in _tensors(module)))


def _version(tensor: torch.Tensor) -> int:
    # Of a tensor made in inference mode, torch does not count.
    return 0 if tensor.is_inference() else tensor._version


def _tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _hooks(part: nn.Module) -> Iterable[Any]:
    return (hook for kind in HOOKS for hook in getattr(part, kind, {}).values())


def _replaced_method(kind: type) -> str | None:
    """A method that another package than the class's has put into it."""
    for base in kind.__mro__:
        if base is nn.Module:
            return None
        for name, method in vars(base).items():
            if inspect.isfunction(method) and _root(method.__module__) not in (*PACKAGES, "torch"):
                return name
    return None


def _root(module: str) -> str:
    return module.partition(".")[0]
