"""The module inside wrappers that do not change what it computes."""

from __future__ import annotations

from typing import Any

from torch import nn

# Attributes with the unchanged module, by class: torch.compile, DataParallel and DistributedDataParallel.
WRAPPERS = {"OptimizedModule": "_orig_mod", "DataParallel": "module", "DistributedDataParallel": "module"}


def unwrap(module: nn.Module) -> nn.Module:
    """The module without wrappers of ``torch.compile``, data parallelism and peft; adapters of peft stay in it."""
    while True:
        attribute = WRAPPERS.get(type(module).__name__)
        inner: Any = None if attribute is None else getattr(module, attribute)
        base: Any = getattr(module, "get_base_model", None)
        if package_of(module) == "peft" and callable(base):
            inner = base()
        if not isinstance(inner, nn.Module) or inner is module:
            return module
        module = inner


def package_of(module: nn.Module) -> str:
    """The package that defines the module's class, such as ``"timm"``."""
    return type(module).__module__.partition(".")[0]
