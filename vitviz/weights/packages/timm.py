"""timm (Wightman 2019): folders with a ``config.json`` that names an ``architecture``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from vitviz.errors.kinds import CheckpointError
from vitviz.errors.messages import listing, quote
from vitviz.weights.metadata.rules import PreprocessingRule
from vitviz.weights.metadata.settings import Settings
from vitviz.weights.metadata.sidecars import Sidecars
from vitviz.weights.metadata.timm_transform import STATED_ENTRIES, rule_of_cfg
from vitviz.weights.modules.sizes import find_image_size
from vitviz.weights.packages.reference import Package, ReferenceModel, Size, as_mode


def _find_mention(sidecars: Sidecars) -> str | None:
    if "architecture" in sidecars.config and "model_type" not in sidecars.config:
        return "architecture in config.json"
    return None


def reference_of(model: Any) -> ReferenceModel:
    """A Vision Transformer of timm as a reference."""
    import timm

    return ReferenceModel(model, f"{type(model).__name__} of timm {timm.__version__}", partial(_preprocess, model))


def _preprocess(model: Any, image: Image.Image) -> torch.Tensor:
    from timm.data.config import resolve_model_data_config
    from timm.data.transforms_factory import create_transform

    config, size = resolve_model_data_config(model), find_image_size(model)
    channels = config["input_size"][0]
    if size is not None and not getattr(model, "dynamic_img_size", False):
        # A folder may state the size of an original model, which this one does not accept.
        config["input_size"] = (channels, *size)
    transform = create_transform(**config, is_training=False)
    return torch.as_tensor(transform(as_mode(image, channels)))[None]


# Entries of pretrained_cfg that the loader sees: none about sources of weights, none that change the classifier.
CLASS_ENTRIES = ("label_names", "label_descriptions")
SIZE_ENTRIES = ("input_size", "fixed_input_size", "pool_size", "classifier", "first_conv", "num_classes")
PRETRAINED_ENTRIES = (
    *SIZE_ENTRIES,
    *("interpolation", "crop_pct", "crop_mode", "mean", "std"),
    *CLASS_ENTRIES,
)


def _check_config(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A configuration for the same network, with its number of classes and channels stated."""
    import timm

    architecture = config.get("architecture")
    if not isinstance(architecture, str) or not timm.is_model(architecture.partition(".")[0]):
        raise CheckpointError(f"{name}: architecture = {quote(architecture)}: timm {timm.__version__} has none so")
    arguments, stated = config.get("model_args") or {}, config.get("pretrained_cfg", config)
    if config.keys() == {"architecture"}:
        # Only the name is known: use timm's sizes, but no preprocessing, which may have been another one.
        default = timm.get_pretrained_cfg(architecture, allow_unregistered=True)
        sizes = {} if default is None else default.to_dict()
        stated = {key: sizes[key] for key in SIZE_ENTRIES if sizes.get(key) is not None}
    pretrained_cfg = {key: stated[key] for key in PRETRAINED_ENTRIES if key in stated}
    classes = arguments.get("num_classes", config.get("num_classes", stated.get("num_classes")))
    pretrained_cfg |= {} if classes is None else {"num_classes": classes}
    size, channels = pretrained_cfg.get("input_size"), arguments.get("in_chans")
    if channels is not None and isinstance(size, list):
        pretrained_cfg["input_size"] = [channels, *size[1:]]
    if "pretrained_cfg" in config:
        pretrained_cfg |= {key: config[key] for key in CLASS_ENTRIES if key in config}
    arguments = {key: value for key, value in arguments.items() if value is not None}
    return {"architecture": architecture, "model_args": arguments, "pretrained_cfg": pretrained_cfg}


def default_rule(architecture: str) -> PreprocessingRule:
    """How timm prepares pictures of three channels for an architecture by default."""
    from timm.models import get_pretrained_cfg

    cfg, source = get_pretrained_cfg(architecture), f"timm's default for {architecture}"
    entries = {} if cfg is None else cfg.to_dict()
    return replace(rule_of_cfg(Settings(entries, source), source, 3), defaults=STATED_ENTRIES)


def _load(folder: Path, size: Size | None, ignore: Sequence[str] | None) -> ReferenceModel:
    import timm

    if ignore:
        raise CheckpointError(f"ignore = {listing(ignore)}: timm reads every key of a file; expected none")
    # torch's safe loader reads the weights, and timm looks up names of layers in its tables.
    model: Any = timm.create_model(f"local-dir:{folder}", pretrained=True)
    model = model.eval().float().requires_grad_(False)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    stated = config.get("pretrained_cfg", config)
    if "input_size" not in stated:
        # timm's default for all models says nothing of this one.
        model.pretrained_cfg = {**model.pretrained_cfg, "input_size": None}
    classes, model_classes = stated.get("num_classes"), getattr(model, "num_classes", None)
    # If the number of classes differs from that of the weights, timm leaves the classifier random.
    if classes is not None and model_classes != classes:
        raise CheckpointError(f"{quote(model_classes)} classes of timm's model; its config.json says {quote(classes)}")
    if size is not None:
        # The preprocessing keeps the trained size.
        model.set_input_size(img_size=size)
    return reference_of(model)


PACKAGE = Package("timm", _find_mention, ("config.json", "model.safetensors"), _check_config, _load)
