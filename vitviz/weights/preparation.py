"""How pictures are prepared for a checkpoint: what the JSON files beside it say of it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from vitviz.errors import CheckpointError, ConfigError, choices
from vitviz.preprocessing import INTERPOLATIONS, Preprocessing
from vitviz.weights.settings import Settings, is_number, is_pair, is_side
from vitviz.weights.sidecars import Sidecars

# Means and deviations.
HALVES = ((0.5,) * 3, (0.5,) * 3)
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))

NORMALISATIONS = {"imagenet": IMAGENET, "half": HALVES, "clip": CLIP, "none": ((0.0,) * 3, (1.0,) * 3)}
"""How pixels are standardised, by the names that a user may say: means and deviations of red, green and blue."""

UNSAID = "the family's convention: no file beside the checkpoint says how its pictures are prepared"
"""The sentence of a preprocessing that is the default."""

# "random" is for training: open_clip then evaluates with bicubic, and timm cannot evaluate.
TIMM_INTERPOLATIONS = {**{name: name for name in INTERPOLATIONS}, "random": "bicubic"}
OPEN_CLIP_INTERPOLATIONS = {"bicubic": "bicubic", "bilinear": "bilinear", "random": "bicubic"}
# Pillow's numbers, in which transformers names them.
RESAMPLINGS = dict(sorted((int(number), name) for name, number in INTERPOLATIONS.items()))


def read_preprocessing(
    sidecars: Sidecars,
    image_height: int,
    image_width: int,
    default: Preprocessing,
    patch: tuple[int, int] | None = None,
) -> tuple[Preprocessing, str]:
    """The checkpoint's own preprocessing at the network's size, and a sentence that says where it comes from.

    Of several files, timm's comes first, then transformers', then open_clip's. Where a file speaks of another size than
    the network's, the part of the picture that it keeps stays the same, and the sentence says so.

    Args:
        sidecars: what lies beside the checkpoint.
        image_height, image_width: what the network was trained at, in pixels; at most 64 million together.
        default: the convention of its family, where no file says anything; has as many channels as the network.
        patch: height and width of a patch, for a network that its library runs at any multiple of it: then the size
            that a file states is used, as the library does.

    Raises:
        CheckpointError: a file asks for what :class:`Preprocessing` cannot do exactly, or for what cannot be.
    """
    for read in (_read_timm, _read_transformers, _read_open_clip):
        rule = read(sidecars, len(default.mean))
        if rule is not None:
            if patch and rule.size and rule.size[0] % patch[0] == rule.size[1] % patch[1] == 0:
                return rule.at(*rule.size), rule.source
            return rule.at(image_height, image_width), rule.sentence(image_height, image_width)
    return replace(default, height=image_height, width=image_width), UNSAID


@dataclass(frozen=True)
class PreprocessingRule:
    """What a file says of the preprocessing, before the network's size is known.

    Args:
        source: where it says so.
        arguments: those of :class:`Preprocessing`, without the size.
        size: the height and width that it speaks of, if any; with the fit ``"native"``, only their product counts.
    """

    source: str
    arguments: Mapping[str, Any]
    size: tuple[int, int] | None

    def at(self, height: int, width: int) -> Preprocessing:
        """The preprocessing of a network of this size.

        Raises:
            CheckpointError: a value is out of range.
        """
        try:
            return Preprocessing(height, width, **self.arguments)
        except ConfigError as error:
            raise CheckpointError(f"{self.source}: {error}") from None

    def sentence(self, height: int, width: int) -> str:
        """Where it says so, and whether it speaks of another size than this one."""
        if self.size is None:
            return self.source
        stated, trained = f"{self.size[0]}×{self.size[1]}", f"{height}×{width}"
        if self.arguments["fit"] == "native":
            stated, trained = f"{math.prod(self.size):,}", f"{height * width:,}"
        if stated == trained:
            return self.source
        return f"{self.source}; not at its {stated} pixels but at the {trained} that the network was trained at"


def _read_timm(sidecars: Sidecars, channels: int) -> PreprocessingRule | None:
    section, source = sidecars.config.inner("pretrained_cfg"), "timm's pretrained_cfg in config.json"
    # timm's older files are flat; transformers' have a model_type and, in the plural, architectures.
    if section is None and "architecture" in sidecars.config and "model_type" not in sidecars.config:
        section, source = sidecars.config, "timm's config.json"
    if section is None:
        return None
    size = section.get("input_size", [3, 224, 224])
    if not isinstance(size, list | tuple) or len(size) != 3 or not all(map(is_side, size)):
        raise section.refuse("input_size", "[channels, height, width]")
    # "border" would pad.
    fit = section.choice("crop_mode", {"center": "crop", "squash": "squash"}, "center")
    part = section.get("crop_pct", 0.875)
    if not is_number(part) or not 0 < part <= 1:
        raise section.refuse("crop_pct", "a number in (0, 1]")
    arguments = {
        "mean": section.numbers("mean", IMAGENET[0], channels),
        "std": section.numbers("std", IMAGENET[1], channels),
        "fit": fit,
        f"{fit}_fraction": part,
        "interpolation": section.choice("interpolation", TIMM_INTERPOLATIONS, "bicubic"),
    }
    return PreprocessingRule(source, arguments, (size[1], size[2]))


def _read_open_clip(sidecars: Sidecars, channels: int) -> PreprocessingRule | None:
    if not sidecars.open_clip:
        return None
    whole = sidecars.open_clip
    section = whole.part("preprocess_cfg")
    vision = whole.part("model_cfg").part("vision_cfg")
    size = vision.get("image_size")
    if is_side(size):
        size = [size, size]
    if size is not None and not is_pair(size):
        raise vision.refuse("image_size", "a whole number or [height, width]")
    arguments = {
        "mean": section.numbers("mean", CLIP[0], channels),
        "std": section.numbers("std", CLIP[1], channels),
        # "longest" would pad.
        "fit": section.choice("resize_mode", {"shortest": "crop", "squash": "squash"}, "shortest"),
        "interpolation": section.choice("interpolation", OPEN_CLIP_INTERPOLATIONS, "bicubic"),
    }
    return PreprocessingRule(whole.place, arguments, None if size is None else (size[0], size[1]))


@dataclass(frozen=True)
class _Processor:
    """What an image processor of transformers does where its file is silent.

    Args:
        moments: mean and deviation.
        resample: Pillow's number of the interpolation.
        size: as the file has it; None for the one that keeps the aspect ratio.
        crops: whether it cuts out the centre.
        square: whether a size of one number is a square's; else it is the shorter side's.
    """

    moments: tuple[tuple[float, ...], tuple[float, ...]]
    resample: int
    size: Mapping[str, int] | None
    crops: bool = False
    square: bool = True


SQUARE = {"height": 224, "width": 224}
SHORTER = {"shortest_edge": 224}
PROCESSORS = {
    "ViTImageProcessor": _Processor(HALVES, 2, SQUARE),
    "DeiTImageProcessor": _Processor(HALVES, 3, {"height": 256, "width": 256}, crops=True),
    "BeitImageProcessor": _Processor(HALVES, 3, SQUARE),
    "BitImageProcessor": _Processor(CLIP, 3, SHORTER, crops=True, square=False),
    "CLIPImageProcessor": _Processor(CLIP, 3, SHORTER, crops=True, square=False),
    "SiglipImageProcessor": _Processor(HALVES, 3, SQUARE, square=False),
    "Siglip2ImageProcessor": _Processor(HALVES, 2, None),
    "DINOv3ViTImageProcessor": _Processor(IMAGENET, 2, SQUARE),
}
# Whose processor it is where the file does not say, by the model_type in config.json.
MODEL_TYPES = {
    "vit": "ViTImageProcessor",
    "vit_mae": "ViTImageProcessor",
    "vit_msn": "ViTImageProcessor",
    "ijepa": "ViTImageProcessor",
    "deit": "DeiTImageProcessor",
    "beit": "BeitImageProcessor",
    "dinov2": "BitImageProcessor",
    "clip": "CLIPImageProcessor",
    "siglip": "SiglipImageProcessor",
    "siglip2": "Siglip2ImageProcessor",
    "dinov3_vit": "DINOv3ViTImageProcessor",
}


def _read_transformers(sidecars: Sidecars, channels: int) -> PreprocessingRule | None:
    if not sidecars.preprocessor:
        return None
    section = sidecars.preprocessor
    processor = _find_processor(section, sidecars.config.get("model_type"))
    for name, expected in (("do_resize", True), ("do_rescale", True), ("do_pad", False)):
        if section.flag(name, expected) is not expected:
            raise section.refuse(name, str(expected).lower())
    factor = section.get("rescale_factor", 1 / 255)
    if not is_number(factor) or abs(factor * 255 - 1) > 1e-6:
        raise section.refuse("rescale_factor", "1/255")
    resample = section.get("resample", processor.resample)
    if not isinstance(resample, int) or isinstance(resample, bool) or resample not in RESAMPLINGS:
        numbers = ", ".join(f"{number} ({name})" for number, name in RESAMPLINGS.items())
        raise section.refuse("resample", f"one of {numbers}")
    mean, std = processor.moments
    arguments = {
        "mean": section.numbers("image_mean", mean, channels),
        "std": section.numbers("image_std", std, channels),
        "interpolation": RESAMPLINGS[resample],
        "rounding": "transformers",
    }
    if not section.flag("do_normalize", True):
        arguments.update(mean=(0.0,) * channels, std=(1.0,) * channels)
    fit, size = _read_patches(section) if processor.size is None else _read_size(section, processor)
    return PreprocessingRule(section.place, {**arguments, **fit}, size)


def _find_processor(section: Settings, model_type: object) -> _Processor:
    for name in ("image_processor_type", "feature_extractor_type"):
        stated = section.get(name)
        if stated is not None:
            # One class under the names of several years.
            known = re.sub("FeatureExtractor$", "ImageProcessor", re.sub("(Fast|Pil)$", "", str(stated)))
            if known not in PROCESSORS:
                raise section.refuse(name, choices(PROCESSORS))
            return PROCESSORS[known]
    if not isinstance(model_type, str) or model_type not in MODEL_TYPES:
        raise CheckpointError(f"{section.place}: no image_processor_type; expected {choices(PROCESSORS)}")
    return PROCESSORS[MODEL_TYPES[model_type]]


def _read_size(section: Settings, processor: _Processor) -> tuple[dict[str, Any], tuple[int, int]]:
    """The fit and its fraction, and the size of the input."""
    size = _read_sides(section, "size", processor.size, section.flag("default_to_square", processor.square))
    if not section.flag("do_center_crop", processor.crops):
        if isinstance(size, int):
            raise section.refuse("do_center_crop", f"true, where size is a shortest_edge of {size}")
        return {"fit": "squash"}, size
    crop = _read_sides(section, "crop_size", SQUARE, square=True)
    if isinstance(size, int):
        if isinstance(crop, int) or crop[0] != crop[1] or crop[0] > size:
            raise section.refuse("crop_size", f"a square of at most {size} pixels, the shortest_edge")
        return {"fit": "crop", "crop_fraction": crop[0] / size}, crop
    if isinstance(crop, int) or crop[0] * size[1] != crop[1] * size[0] or crop[0] > size[0]:
        raise section.refuse("crop_size", f"a height and width, the same part of size's {size[0]}×{size[1]} pixels")
    return {"fit": "squash", "squash_fraction": crop[0] / size[0]}, crop


def _read_patches(section: Settings) -> tuple[dict[str, Any], tuple[int, int]]:
    """The fit of NaFlex, and a size of as many patches."""
    for name in ("patch_size", "max_num_patches"):
        if not is_side(section.get(name, 1)):
            raise section.refuse(name, "a whole number above 0")
    side = section.get("patch_size", 16)
    return {"fit": "native"}, (side, side * section.get("max_num_patches", 256))


def _read_sides(section: Settings, name: str, default: object, square: bool) -> tuple[int, int] | int:
    """Height and width, or the shorter side alone."""
    value = section.get(name, default)
    if is_side(value):
        return (value, value) if square else value
    if is_pair(value):
        return value[0], value[1]
    if isinstance(value, Mapping):
        sides = {key: side for key, side in value.items() if side is not None}
        if all(map(is_side, sides.values())):
            if sides.keys() == {"height", "width"}:
                return sides["height"], sides["width"]
            if sides.keys() == {"shortest_edge"}:
                return int(sides["shortest_edge"])
    raise section.refuse(name, "{'height', 'width'}, {'shortest_edge'}, [height, width] or a whole number")
