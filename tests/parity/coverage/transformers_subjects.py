"""Every model of transformers with a class that takes pictures, and nothing else, and may have a Vision Transformer.

Of each, one class is built: its vision tower, else its classifier, else its bare model. What has no patches (purely
convolutional networks, detectors on a convolutional backbone) is told by its configuration and left out.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from tests.parity.case import randomised
from tests.parity.coverage.subject import Subject
from tests.reference_packages import transformers

SMALL: dict[str, int] = {
    **dict.fromkeys(("hidden_size", "d_model", "width", "out_hidden_size", "embed_dim", "projection_dim"), 64),
    **dict.fromkeys(("num_hidden_layers", "depth", "num_layers", "encoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "num_heads", "num_key_value_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("intermediate_size", "mlp_dim", "encoder_ffn_dim"), 96),
    **{"image_size": 64, "patch_size": 8, "num_labels": 5, "head_dim": 16},
}
# A hierarchical network keeps its own sizes, but for its width.
WIDTHS = {"embed_dim": 48, "num_labels": 5}
MAX_PARAMETERS = 6e7
KINDS = (
    r"Vision(?:Model|Transformer|Tower|Encoder)\w*$",
    r"Vi[sT]\w*Model$",
    r"ForImageClassification$",
    r"Model$",
    r"Backbone$",
    r"ForDepthEstimation$|ForVideoClassification$|For\w+$",
)
PREFIXES = {
    "yolos": ["cls", *(f"detection {number + 1}" for number in range(3))],
    "radio": [f"register {number + 1}" for number in range(10)],
    "pixio": [f"cls {number + 1}" for number in range(8)],
}
SETTINGS: dict[str, dict[str, Any]] = {
    "yolos": {"image_size": [64, 64], "num_detection_tokens": 3},
    "beit": {"use_relative_position_bias": True},
    "data2vec": {"use_relative_position_bias": True},
    "vit_mae": {"mask_ratio": 0.0},
    "llama4": {"intermediate_size": 256},
    # Their way to attend is chosen when they are made.
    **{name: {"attn_implementation": "eager"} for name in ("sam", "sam_hq", "deepseek_ocr2", "unlimited_ocr")},
    "depth_anything": {"reassemble_hidden_size": 64},
    "prompt_depth_anything": {"reassemble_hidden_size": 64},
}


def subjects() -> Iterator[Subject]:
    for name in sorted(each.name for each in pkgutil.iter_modules(transformers.models.__path__)):
        found = _class_of(name)
        if found is None:
            continue
        kind, config = found
        options: dict[str, Any] = {"normalisation": "half"}
        if getattr(config(), "image_size", None) is None and getattr(config(), "backbone_config", None) is None:
            options["image_size"] = 224 if _is_hierarchical(config()) else SMALL["image_size"]
        if name in PREFIXES:
            options["prefix"] = PREFIXES[name]
        yield Subject(
            "transformers",
            name,
            kind.__name__,
            lambda kind=kind, config=config, name=name: built(kind, config, name),
            lambda module: module.set_attn_implementation("eager"),
            options,
        )


def built(kind: Any, config: Any, name: str) -> nn.Module:
    """With few layers, narrow heads and small images, as far as its configuration has a number for each."""
    start = config()
    settings = {**_small(start), **SETTINGS.get(name, {})}
    inner = getattr(start, "backbone_config", None)
    if inner is not None and "backbone_config" not in settings:
        settings["backbone_config"] = type(inner)(**{**inner.to_dict(), **_small(inner)})
    made = config(**settings)
    with torch.device("meta"):
        count = sum(each.numel() for each in kind(made).parameters())
    if count > MAX_PARAMETERS:
        raise MemoryError(f"{count:,} weights at the smallest size that this script makes")
    return randomised(kind(made))


def _small(start: Any) -> dict[str, Any]:
    """Small numbers for the fields that a configuration has."""
    is_hierarchical = _is_hierarchical(start)
    found: dict[str, Any] = {}
    for field, number in (WIDTHS if is_hierarchical else SMALL).items():
        # The layers that a head reads stay.
        if field == "num_hidden_layers" and getattr(start, "out_features", None):
            continue
        value = getattr(start, field, None)
        if isinstance(value, int) and not isinstance(value, bool):
            found[field] = number
        elif field in ("image_size", "patch_size") and isinstance(value, list | tuple):
            found[field] = [number] * len(value)
    depths = getattr(start, "depths", None)
    if is_hierarchical and isinstance(depths, list | tuple):
        found["depths"] = [min(depth, 2) for depth in depths]
    return found


def _is_hierarchical(config: Any) -> bool:
    return any(isinstance(getattr(config, each, None), list | tuple) for each in ("depths", "num_heads"))


def _class_of(name: str) -> tuple[Any, Any] | None:
    """The class that is built of a model, and its configuration; None where it takes no picture or has no patches."""
    modules = []
    package = f"transformers.models.{name}"
    for part in (f"modeling_{name}", f"modeling_{name}_vision"):
        try:
            modules.append(importlib.import_module(f"{package}.{part}"))
        except ImportError:
            continue
    for module in modules:
        own = [
            each
            for each in vars(module).values()
            if inspect.isclass(each)
            and issubclass(each, transformers.PreTrainedModel)
            and each.__module__ == module.__name__
            and not each.__name__.endswith("PreTrainedModel")
        ]
        for pattern in KINDS:
            for kind in own:
                config = _config_of(kind, module)
                if re.search(pattern, kind.__name__) and _takes_pictures(kind) and _has_patches(config):
                    return kind, config
    return None


def _config_of(kind: Any, module: Any) -> Any:
    found = getattr(kind, "config_class", None) or kind.__annotations__.get("config")
    return getattr(module, found, None) if isinstance(found, str) else found


def _takes_pictures(kind: Any) -> bool:
    parameters = list(inspect.signature(kind.forward).parameters)[1:]
    return bool(parameters) and (parameters[0] == "pixel_values" or "grid_thw" in parameters[:2])


def _has_patches(config: Any) -> bool:
    if config is None:
        return False
    try:
        start = config()
    # Made of other models' configurations, which it does not choose by itself.
    except Exception:
        return False
    inner = getattr(start, "vision_config", None) or getattr(start, "backbone_config", None) or start
    names = ("patch_size", "patch_sizes", "patch_embed_size", "patch_stride")
    has = any(getattr(each, name, None) is not None for each in (start, inner) for name in names)
    return has and isinstance(start, transformers.PretrainedConfig)


assert torch.get_default_dtype() == torch.float32
