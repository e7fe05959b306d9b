"""The preprocessing of transforms and processors by their fields: torchvision's, timm's, open_clip's, transformers'."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from vitviz.errors.kinds import CheckpointError, ConfigError
from vitviz.images.preprocessing import Preprocessing
from vitviz.weights.metadata.rules import common_fraction
from vitviz.weights.metadata.stated_preprocessing import SWITCHES, processor_rule

PACKAGES = ("torchvision", "timm", "open_clip")
# Steps without an effect on RGB pictures.
IDLE = ("MaybeConvertMode", "_convert_to_rgb", "RGB", "Identity")
# Steps by what they make of a picture or a tensor: levels, or values from 0 to 1.
MAKES: dict[Any, str] = {
    **dict.fromkeys(("PILToTensor", "MaybePILToTensor", "ToImage"), "levels"),
    **dict.fromkeys(("ToTensor", "MaybeToTensor"), "floats"),
    torch.uint8: "to_levels",
    torch.float32: "to_floats",
}
TENSOR = "(floats |levels (?:to_levels )*(?:to_floats )?)"
RESIZED = "(?:Resize|ResizeKeepRatio) (?:CenterCrop )?"
ORDER = re.compile(f"(?:{RESIZED}{TENSOR}|{TENSOR}{RESIZED}(?:to_levels )*(?:to_floats )?)(?:Normalize )?")
# Fields of a resizing with which it does what vitviz's own does.
USUAL = {"antialias": True, "max_size": None, "longest": 0, "random_scale_prob": 0, "random_aspect_prob": 0}
# Image processors of transformers that resize, crop and standardise, and do nothing else.
KINDS = re.compile("(ViT|DeiT|Beit|Bit|CLIP|ChineseCLIP|Blip|Flava|Siglip|Siglip2|DINOv3ViT)ImageProcessor(Fast|Pil)?")
# The backend by a base of transformers' image processors.
PROCESSORS = {"TorchvisionBackend": "torchvision", "BaseImageProcessorFast": "torchvision", "PilBackend": "pillow"}

# Fields that a processor's class may have for all.
FIELDS = (*SWITCHES, "resample", "rescale_factor", "image_mean", "image_std", "default_to_square")


def read_transform(function: Callable[..., Any]) -> Preprocessing | None:
    """The preprocessing that a transform or processor states; None if it is another function, or does anything else."""
    steps = {name: step for name, step in steps_of(function) if name not in IDLE}
    names = "".join(f"{name} " for name, _ in steps_of(function) if name not in IDLE)
    order = ORDER.fullmatch(names)
    if order is None or "floats" not in names:
        return _read_processor(getattr(function, "image_processor", function))
    backend = "pillow" if order[1] else "torchvision float" if "floats" in order[2] else "torchvision"
    resize = steps.get("Resize") or steps["ResizeKeepRatio"]
    interpolation = str(getattr(resize.interpolation, "value", resize.interpolation))
    size, crop = (np.ravel(each.size).tolist() for each in (resize, steps.get("CenterCrop", resize)))
    is_of_shorter_side, size, crop = len(size) == 1, (size * 2)[:2], (crop * 2)[:2]
    # torchvision crops a square of a picture with this shorter side; timm covers both sides of an oblong.
    fit = "crop" if is_of_shorter_side or "ResizeKeepRatio" in steps else "squash"
    is_square = crop[0] == crop[1] and size[0] == size[1]
    is_usual = (
        all(getattr(resize, name, usual) == usual for name, usual in USUAL.items())
        # torchvision's "nearest" of tensors is not Pillow's.
        and (interpolation != "nearest" or backend == "pillow")
        and (fit == "squash" or ("CenterCrop" in steps and is_square == is_of_shorter_side))
    )
    fraction = common_fraction(crop, size)
    if not is_usual or fraction is None:
        return None
    mean, std = (each * (3 // len(each)) for each in stated_moments(function) or ((0.0,), (1.0,)))
    how: dict[str, Any] = {"fit": fit, f"{fit}_fraction": fraction, "backend": backend}
    with suppress(ConfigError):
        return Preprocessing(crop[0], crop[1], mean, std, interpolation=interpolation.removesuffix("-exact"), **how)
    return None


def stated_moments(function: Callable[..., Any]) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Mean and deviation of a transform's only Normalize, in the fewest digits of single precision; else None."""
    steps = [step for name, step in steps_of(function) if name == "Normalize"]
    if len(steps) != 1:
        return None
    mean, std = (
        tuple(float(str(each)) for each in np.ravel(np.float32(values))) for values in (steps[0].mean, steps[0].std)
    )
    return mean, std


def steps_of(function: Any) -> Iterator[tuple[str, Any]]:
    """The steps of a transform, with what they make by :data:`MAKES`, or their names; ``"?"`` of other packages."""
    owner = function if hasattr(function, "__name__") else type(function)
    name = owner.__name__ if owner.__module__.partition(".")[0] in PACKAGES else "?"
    if name == "Compose":
        for each in function.transforms:
            yield from steps_of(each)
    elif name == "ImageClassification":
        # Of torchvision's weights.
        yield "Resize", SimpleNamespace(**{**vars(function), "size": function.resize_size})
        yield from (("CenterCrop", SimpleNamespace(size=function.crop_size)), ("floats", None), ("Normalize", function))
    elif name in ("ToDtype", "ConvertImageDtype"):
        yield MAKES.get(function.dtype, "?") if getattr(function, "scale", True) else "?", function
    else:
        yield MAKES.get(name, name), function


def _read_processor(processor: Any) -> Preprocessing | None:
    backend = next((PROCESSORS[base.__name__] for base in type(processor).__mro__ if base.__name__ in PROCESSORS), None)
    kind = KINDS.fullmatch(type(processor).__name__)
    if backend is None or kind is None or not type(processor).__module__.startswith("transformers."):
        return None
    # Sizes as a file has them.
    fields = {**{name: getattr(processor, name, None) for name in FIELDS}, **processor.to_dict()}
    # DINOv3's processor rescales first, and so does not round to whole levels.
    backend = f"{backend} float" if kind[1] == "DINOv3ViT" and fields.get("do_rescale") else backend
    with suppress(CheckpointError):
        return processor_rule(fields, "preprocessing", 3, {}, backend).preprocessing
    return None
