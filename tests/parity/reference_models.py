"""Models of packages with random weights, and what the packages themselves make of a picture and of pixels."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from einops import rearrange
from PIL import Image
from torch import nn

from vitviz.weights.modules.sizes import find_channels, find_image_size
from vitviz.weights.modules.unwrap import find_vision_part, package_of
from vitviz.weights.packages import tower_of


@dataclass(frozen=True, eq=False)
class ReferenceModel:
    """A model of a package.

    Args:
        module: takes pixels: the model or its vision tower.
        preprocess: the package's own preprocessing of an RGB image: ``"1 channel height width"``.
        projection: what the model around the tower applies to its features; None for nothing.
    """

    module: nn.Module
    preprocess: Callable[[Image.Image], torch.Tensor]
    projection: nn.Module | None = None


def reference_of(model: nn.Module, folder: Path) -> ReferenceModel:
    """Of a model that a package opened from a folder."""
    package = package_of(model)
    if package == "transformers":
        model.set_attn_implementation("eager")  # type: ignore[operator]
        return of_transformers(model, folder)
    return of_open_clip(getattr(model, "visual", model)) if package == "open_clip" else of_timm(model)


def of_timm(model: Any) -> ReferenceModel:
    return ReferenceModel(model, partial(_by_timm, model))


def of_open_clip(visual: Any) -> ReferenceModel:
    from open_clip.transform import PreprocessCfg, image_transform_v2

    def preprocess(image: Image.Image) -> torch.Tensor:
        transform = image_transform_v2(PreprocessCfg(**visual.preprocess_cfg), is_train=False)
        return torch.as_tensor(transform(image))[None]

    return ReferenceModel(visual, preprocess)


def of_transformers(model: Any, folder: Path) -> ReferenceModel:
    """Of a folder that has the files of its image processor."""
    part = find_vision_part(model) if hasattr(model, "get_image_features") else None
    tower: nn.Module = tower_of(model) if part is None else model.get_submodule(part)
    projections = (getattr(module, "visual_projection", None) for module in model.modules() if tower is not model)
    projection = next((each for each in projections if isinstance(each, nn.Linear)), None)
    return ReferenceModel(tower, partial(_by_transformers, folder, find_channels(tower) or 3), projection)


@contextmanager
def restored_state() -> Iterator[None]:
    """Without downloads and warnings, and with the state of random numbers and the hub's switch afterwards."""
    from huggingface_hub import constants

    offline = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")
            yield
    finally:
        constants.HF_HUB_OFFLINE = offline


def _by_timm(model: Any, image: Image.Image) -> torch.Tensor:
    from timm.data.config import resolve_model_data_config
    from timm.data.transforms_factory import create_transform

    config, size = resolve_model_data_config(model), find_image_size(model)
    channels = config["input_size"][0]
    if size is not None and not getattr(model, "dynamic_img_size", False):
        # A folder may state the size of an original model, which this one does not accept.
        config["input_size"] = (channels, *size)
    transform = create_transform(**config, is_training=False)
    return torch.as_tensor(transform(_as_mode(image, channels)))[None]


def _by_transformers(folder: Path, channels: int, image: Image.Image) -> torch.Tensor:
    from transformers import AutoImageProcessor

    # transformers selects the class: one with torchvision, if that is installed.
    processor = AutoImageProcessor.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    inputs = processor(_as_mode(image, channels), return_tensors="pt")
    pixels = torch.as_tensor(inputs["pixel_values"])
    if "spatial_shapes" not in inputs:
        return pixels
    rows, columns = inputs["spatial_shapes"][0].tolist()
    # The image that NaFlex's patches form.
    patch = math.isqrt(pixels.shape[-1] // channels)
    order = "1 (row column) (height width channel) -> 1 channel (row height) (column width)"
    return rearrange(pixels[:, : rows * columns], order, row=rows, column=columns, height=patch, width=patch)


def _as_mode(image: Image.Image, channels: int) -> Image.Image:
    """An RGB image with as many channels as a model takes."""
    return image if channels == 3 else image.convert({1: "L", 4: "RGBA"}[channels])
