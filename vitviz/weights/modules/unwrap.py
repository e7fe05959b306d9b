"""The module inside wrappers that do not change what it computes, and the part of a model that takes pictures."""

from __future__ import annotations

from typing import Any

from torch import nn

# Attributes with the unchanged module, by class: torch.compile, DataParallel and DistributedDataParallel.
WRAPPERS = {"OptimizedModule": "_orig_mod", "DataParallel": "module", "DistributedDataParallel": "module"}
# Names of the part for pictures in a model of pictures and texts.
VISION_PARTS = (
    *("visual", "vision_model", "vision_tower", "vision_encoder", "visual_encoder", "visual_model"),
    *("image_encoder", "image_model", "image_tower"),
)


def unwrap(module: nn.Module) -> nn.Module:
    """The module without wrappers of ``torch.compile``, data parallelism and peft; adapters of peft stay in it."""
    while True:
        inner: Any = getattr(module, WRAPPERS.get(type(module).__name__, ""), None)
        if package_of(module) == "peft" and hasattr(module, "get_base_model"):
            inner = module.get_base_model()  # type: ignore[operator]
        if not isinstance(inner, nn.Module) or inner is module:
            return module
        module = inner


def package_of(module: nn.Module) -> str:
    """The package that defines the module's class, such as ``"timm"``."""
    return type(module).__module__.partition(".")[0]


def vision_config(module: nn.Module) -> Any:
    """The configuration of a model of transformers, or of its vision tower; None for modules of other packages."""
    config = getattr(module, "config", None) if package_of(module) == "transformers" else None
    towers = (getattr(config, name, None) for name in ("vision_config", "backbone_config"))
    return next((tower for tower in towers if hasattr(tower, "patch_size")), config)


def find_vision_part(module: nn.Module) -> str | None:
    """The attribute of a model of pictures and texts that takes pictures alone, such as ``"vision_model"``; else None.

    In transformers it is the outermost part that has the configuration of the vision tower, elsewhere it is known by
    its name.
    """
    submodules = [(name, submodule) for name, submodule in module.named_modules() if name]
    if package_of(module) == "transformers":
        config: Any = getattr(module, "config", None)
        is_captioner = getattr(config, "model_type", None) == "vision-encoder-decoder"
        sections = ("encoder",) if is_captioner else ("vision_config", "image_config")
        towers = [type(getattr(config, section)) for section in sections if getattr(config, section, None) is not None]
        parts = (name for name, submodule in submodules if type(getattr(submodule, "config", None)) in towers)
        # FLAVA has heads for pretraining with the same configuration.
        names = [name for name in parts if not name.endswith("_head")]
        names += ["timm_model"] * hasattr(module, "timm_model")
    else:
        names = [name for name, _ in submodules if name.rpartition(".")[2] in VISION_PARTS]
    return min(names, key=lambda name: name.count("."), default=None)
