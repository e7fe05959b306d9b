"""Hugging Face transformers (Wolf et al. 2020): folders with a ``config.json`` that has a ``model_type``."""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import torch
from einops import rearrange
from PIL import Image
from torch import nn

from vitviz.errors.kinds import CheckpointError
from vitviz.errors.messages import listing, quote
from vitviz.weights.metadata.sidecars import Sidecars
from vitviz.weights.modules.sizes import find_channels
from vitviz.weights.modules.unwrap import find_vision_part
from vitviz.weights.packages import timm
from vitviz.weights.packages.reference import Package, ReferenceModel, Size, as_mode
from vitviz.weights.suggestions import ignore_argument


def _find_mention(sidecars: Sidecars) -> str | None:
    return "model_type in config.json" if "model_type" in sidecars.config else None


def reference_of(model: Any, folder: Path | None = None) -> ReferenceModel:
    """A model of transformers, alone or as the tower of one of images and text, as a reference.

    Args:
        model: a ``PreTrainedModel``.
        folder: with the file of its image processor; None for a model without one.
    """
    import transformers

    if hasattr(model, "timm_model"):
        return timm.reference_of(_wrapped_timm(model))
    title, tower = f"{type(model).__name__} of transformers {transformers.__version__}", _tower(model)
    projections = (getattr(module, "visual_projection", None) for module in model.modules() if tower is not model)
    projection = next((each for each in projections if isinstance(each, nn.Linear)), None)
    return ReferenceModel(tower, title, partial(_preprocess, folder, find_channels(tower) or 3), projection)


def _tower(model: Any) -> nn.Module:
    """The vision tower, without heads for pretraining and without text towers."""
    name, part = type(model).__name__, find_vision_part(model)
    if name.endswith(("ForImageClassification", "WithTeacher")):
        return model
    if part is not None:
        return model.get_submodule(part)
    # Models for pretraining have heads that reconstruct pixels; their encoder is the tower.
    return model.base_model if "For" in name else model


def _preprocess(folder: Path | None, channels: int, image: Image.Image) -> torch.Tensor:
    from transformers import AutoImageProcessor

    # transformers selects the class: one with torchvision, if that is installed.
    processor = AutoImageProcessor.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    inputs = processor(as_mode(image, channels), return_tensors="pt")
    pixels = torch.as_tensor(inputs["pixel_values"])
    if "spatial_shapes" not in inputs:
        return pixels
    rows, columns = inputs["spatial_shapes"][0].tolist()
    # The image that NaFlex's patches form.
    patch = math.isqrt(pixels.shape[-1] // channels)
    order = "1 (row column) (height width channel) -> 1 channel (row height) (column width)"
    return rearrange(pixels[:, : rows * columns], order, row=rows, column=columns, height=patch, width=patch)


def _wrapped_timm(model: Any) -> Any:
    """The model of timm in transformers' wrapper, with the entries of timm's configuration."""
    inner, config = model.timm_model, model.config
    stated = {name: value for name in timm.CLASS_ENTRIES if (value := getattr(config, name, None))}
    # As its image processor does, leave entries that the configuration omits to timm's defaults for all models.
    inner.pretrained_cfg = {**(getattr(config, "pretrained_cfg", None) or inner.pretrained_cfg), **stated}
    return inner


def _load(folder: Path, size: Size | None, ignore: Sequence[str] | None) -> ReferenceModel:
    cls = _model_class(folder)
    # A folder's `auto_map`, which names code of its own, is never read: the class is one of transformers.
    options = {"local_files_only": True, "weights_only": True, "use_safetensors": None if ignore is None else True}
    model, report = cls.from_pretrained(folder, **options, output_loading_info=True)
    if report["missing_keys"] and all("pooler." in key for key in report["missing_keys"]):
        # A pooler without weights in the file would be random.
        model, report = cls.from_pretrained(folder, **options, output_loading_info=True, add_pooling_layer=False)
    if missing := sorted(report["missing_keys"]):
        raise CheckpointError(f"{folder.name}: transformers finds no {listing(missing)} for its {cls.__name__}")
    surplus = sorted(report["unexpected_keys"])
    surplus = [key for key in surplus if not any(fnmatchcase(key, pattern) for pattern in ignore or ())]
    if ignore is not None and surplus:
        raise CheckpointError(
            f"{folder.name}: keys that transformers' {cls.__name__} does not have: {listing(surplus)}; "
            f"{ignore_argument(surplus, model.state_dict())} leaves them out, where you know that they do not matter"
        )
    if getattr(model.config, "mask_ratio", None):
        model.config.mask_ratio = 0.0
    return reference_of(model.float().eval().requires_grad_(False), folder)


def _model_class(folder: Path) -> Any:
    import transformers

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    names = config.get("architectures") or []
    if not names:
        parsed = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        return transformers.AutoModel._model_mapping[type(parsed)]
    model_type = config.get("model_type")
    cls: Any = _find_model_class(names[0], model_type) if isinstance(names[0], str) else None
    is_model_class = isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel)
    if not is_model_class or getattr(cls.config_class, "model_type", None) != model_type:
        raise CheckpointError(
            f"{folder.name}: architectures = {quote(names)} in its config.json: transformers "
            f"{transformers.__version__} has no such model of type {quote(model_type)}"
        )
    return cls


def _find_model_class(name: str, model_type: Any) -> Any:
    """A class of transformers by its name, exported or not; None if it does not exist."""
    import transformers

    if hasattr(transformers, name) or model_type not in transformers.CONFIG_MAPPING:
        return getattr(transformers, name, None)
    # This module belongs to transformers; nothing that a folder names is imported.
    module = transformers.CONFIG_MAPPING[model_type].__module__.replace(".configuration_", ".modeling_")
    return getattr(importlib.import_module(module), name, None)


PACKAGE = Package(
    "transformers", _find_mention, ("config.json", "model.safetensors"), lambda config, _: dict(config), _load
)
