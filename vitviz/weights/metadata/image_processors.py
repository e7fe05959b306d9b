"""The image processors of transformers, as ``AutoImageProcessor`` builds them from ``preprocessor_config.json``.

With torchvision installed, that is a class that resizes tensors with torchvision, whatever class wrote the file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from vitviz.errors.kinds import CheckpointError
from vitviz.errors.messages import choices
from vitviz.images.resizing import BACKENDS, INTERPOLATIONS
from vitviz.weights.metadata.normalisations import CLIP, HALVES, IMAGENET
from vitviz.weights.metadata.rules import PreprocessingRule, common_fraction, fraction_of
from vitviz.weights.metadata.settings import Settings, are_sides, is_side
from vitviz.weights.metadata.sidecars import Sidecars


@dataclass(frozen=True)
class ImageProcessor:
    """The defaults of an image processor of transformers.

    Args:
        moments: mean and standard deviation.
        resample: Pillow's number of the interpolation.
        size: as in a file; None for the processor that keeps the aspect ratio.
        crops: whether it crops to the centre.
        crop_size: as in a file; None for a class without a default.
        square: whether a size of one number means a square; else it means the shorter side.
        to_rgb: whether it converts a grey picture to three channels.
        rescales_first: whether it rescales before it resizes, and so does not round to whole levels.
        square_switch: an entry that replaces the size by a square of the default size.
        unused: entries of the class that change no pixel, or only together with a switch in ``off``.
        off: entries that must be false.
    """

    moments: tuple[tuple[float, ...], tuple[float, ...]]
    resample: int
    size: Mapping[str, int] | None
    crops: bool = False
    crop_size: Mapping[str, int] | None = None
    square: bool = True
    to_rgb: bool = False
    rescales_first: bool = False
    square_switch: str | None = None
    unused: tuple[str, ...] = ()
    off: tuple[str, ...] = ()


SQUARE = {"height": 224, "width": 224}
SHORTER = {"shortest_edge": 224}
_CLIP = ImageProcessor(CLIP, 3, SHORTER, crops=True, crop_size=SQUARE, square=False, to_rgb=True)
PROCESSORS = {
    "ViTImageProcessor": ImageProcessor(HALVES, 2, SQUARE),
    "DeiTImageProcessor": ImageProcessor(HALVES, 3, {"height": 256, "width": 256}, crops=True, crop_size=SQUARE),
    # These change segmentation maps, not pixels.
    "BeitImageProcessor": ImageProcessor(
        HALVES, 3, SQUARE, crop_size=SQUARE, unused=("do_reduce_labels", "reduce_labels")
    ),
    "BitImageProcessor": _CLIP,
    "CLIPImageProcessor": replace(_CLIP, square_switch="use_square_size"),
    "ChineseCLIPImageProcessor": _CLIP,
    "BlipImageProcessor": ImageProcessor(CLIP, 3, {"height": 384, "width": 384}, to_rgb=True),
    "FlavaImageProcessor": ImageProcessor(
        CLIP,
        3,
        SQUARE,
        crops=True,
        crop_size=SQUARE,
        # Masks and pixels for the codebook are for training.
        unused=(
            *("codebook_*", "mask_group_*", "return_image_mask", "return_codebook_pixels"),
            *("input_size_patches", "total_mask_patches"),
        ),
    ),
    "SiglipImageProcessor": ImageProcessor(HALVES, 3, SQUARE, square=False, to_rgb=True),
    "Siglip2ImageProcessor": ImageProcessor(HALVES, 2, None, off=("do_center_crop",)),
    "DINOv3ViTImageProcessor": ImageProcessor(IMAGENET, 2, SQUARE, rescales_first=True),
}
# Processors of files that name none, by the model_type in config.json.
MODEL_TYPES = {
    "vit": "ViTImageProcessor",
    "vit_mae": "ViTImageProcessor",
    "vit_msn": "ViTImageProcessor",
    "ijepa": "ViTImageProcessor",
    "clipseg": "ViTImageProcessor",
    "deit": "DeiTImageProcessor",
    "beit": "BeitImageProcessor",
    "dinov2": "BitImageProcessor",
    "clip": "CLIPImageProcessor",
    "metaclip_2": "CLIPImageProcessor",
    "altclip": "CLIPImageProcessor",
    "git": "CLIPImageProcessor",
    "chinese_clip": "ChineseCLIPImageProcessor",
    "blip": "BlipImageProcessor",
    "flava": "FlavaImageProcessor",
    "siglip": "SiglipImageProcessor",
    "siglip2": "Siglip2ImageProcessor",
    "dinov3_vit": "DINOv3ViTImageProcessor",
}
# Entries that change no pixel: names of classes, the form of the result, and what a call overrides for PIL images.
UNUSED_ENTRIES = (
    *("processor_class", "auto_map", "_valid_processor_keys", "model_input_names", "image_seq_length"),
    *("data_format", "input_data_format", "return_tensors", "device", "disable_grouping"),
)
# Names of interpolations by Pillow's numbers, which transformers uses; the ones that torchvision has for tensors.
RESAMPLINGS = dict(
    sorted((int(number), name) for name, number in INTERPOLATIONS.items() if name in BACKENDS["torchvision"])
)


def read_image_processor(sidecars: Sidecars, channels: int) -> PreprocessingRule | None:
    if not sidecars.preprocessor:
        return None
    section = sidecars.preprocessor
    processor = _find_processor(section, sidecars.config.get("model_type"))
    section.skip(UNUSED_ENTRIES + processor.unused)
    for name in processor.off:
        section.only(name, False)
    if section.flag("do_convert_rgb", processor.to_rgb) and channels != 3:
        raise section.refuse("do_convert_rgb", "false for a model of one channel")
    arguments = {**_read_values(section, processor, channels), "rounding": "transformers"}
    if not section.flag("do_resize", True):
        raise section.refuse("do_resize", "true: vitviz does not make inputs of every picture's own size")
    if processor.size is None:
        # This processor pads patches, not pixels.
        section.skip(("size", "default_to_square", "crop_size", "do_pad", "pad_size"))
        patch, size = _read_patches(section)
        return PreprocessingRule(section.place, {**arguments, "fit": "native"}, size, patch, _defaults(section, ()))
    if section.flag("do_pad", False):
        raise section.refuse("do_pad", "false: vitviz does not pad pictures")
    section.skip(("pad_size",))
    fit, size = _read_size(section, processor)
    sizes = ("size", "crop_size") if section.flag("do_center_crop", processor.crops) else ("size",)
    return PreprocessingRule(section.place, {**arguments, **fit}, size, defaults=_defaults(section, sizes))


def _defaults(section: Settings, sizes: tuple[str, ...]) -> tuple[str, ...]:
    """The entries among these sizes, and those of every processor, that its class alone states."""
    moments = ("image_mean", "image_std") if section.flag("do_normalize", True) else ()
    return tuple(name for name in (*sizes, "resample", *moments) if section.get(name) is None)


def _find_processor(section: Settings, model_type: object) -> ImageProcessor:
    section.skip(("image_processor_type", "feature_extractor_type"))
    for name in ("image_processor_type", "feature_extractor_type"):
        stated = section.get(name)
        if stated is not None:
            # The same class has had several names.
            class_name = re.sub("FeatureExtractor$", "ImageProcessor", re.sub("(Fast|Pil)$", "", str(stated)))
            if class_name not in PROCESSORS:
                file = section.place.rpartition(" ")[2]
                instead = f"ignore=['{file}:*'] prepares pictures by the convention of the family"
                raise section.refuse(name, f"{choices(PROCESSORS)}; {instead}")
            return PROCESSORS[class_name]
    if not isinstance(model_type, str) or model_type not in MODEL_TYPES:
        raise CheckpointError(f"{section.place}: no image_processor_type; expected {choices(PROCESSORS)}")
    return PROCESSORS[MODEL_TYPES[model_type]]


def _read_values(section: Settings, processor: ImageProcessor, channels: int) -> dict[str, Any]:
    """Interpolation, backend, mean and deviation that have the effect of the processor on values in [0, 1]."""
    resample = section.get("resample", processor.resample)
    if not isinstance(resample, int) or isinstance(resample, bool) or resample not in RESAMPLINGS:
        numbers = ", ".join(f"{number} ({name})" for number, name in RESAMPLINGS.items())
        raise section.refuse("resample", f"one of {numbers}")
    rescales, normalises = section.flag("do_rescale", True), section.flag("do_normalize", True)
    factor = section.positive("rescale_factor", 1 / 255)
    if isinstance(section.get("rescale_factor"), int) and (processor.rescales_first or not normalises):
        raise section.refuse("rescale_factor", "a number with a decimal point: levels times a whole number overflow")
    # The value of white before normalisation.
    white = factor * 255 if rescales else 255.0
    means, deviations = (0.0,) * channels, (1.0,) * channels
    if normalises:
        means = section.numbers("image_mean", processor.moments[0], channels)
        deviations = section.numbers("image_std", processor.moments[1], channels)
        if min(deviations) <= 0:
            raise section.refuse("image_std", "numbers above 0")
    else:
        section.skip(("image_mean", "image_std"))
    if not rescales and normalises and processor.rescales_first:
        raise section.refuse("do_rescale", "true, where do_normalize is")
    if abs(white - 1) > 1e-12:
        means = tuple(mean / white for mean in means)
        deviations = tuple(deviation / white for deviation in deviations)
    return {
        "mean": means,
        "std": deviations,
        "interpolation": RESAMPLINGS[resample],
        "backend": "torchvision float" if processor.rescales_first and rescales else "torchvision",
    }


def _read_size(section: Settings, processor: ImageProcessor) -> tuple[dict[str, Any], tuple[int, int]]:
    """The fit with its fraction, and height and width of the input."""
    square = section.flag("default_to_square", processor.square)
    size = _read_sides(section, "size", processor.size, square)
    if processor.square_switch is not None and section.flag(processor.square_switch, False):
        size = SQUARE["height"], SQUARE["width"]
    if not section.flag("do_center_crop", processor.crops):
        section.skip(("crop_size",))
        if isinstance(size, int):
            raise section.refuse("do_center_crop", f"true, where size is a shortest_edge of {size}")
        return {"fit": "squash"}, size
    crop = _read_sides(section, "crop_size", processor.crop_size, square=True)
    if isinstance(size, int):
        if isinstance(crop, int) or max(crop) > size:
            raise section.refuse("crop_size", f"a height and width of at most {size} pixels, the shortest_edge")
        return {"fit": "crop", "crop_fraction": fraction_of(min(crop), size)}, crop
    fraction = None if isinstance(crop, int) else common_fraction(crop, size)
    if isinstance(crop, int) or fraction is None:
        raise section.refuse("crop_size", f"a height and width, the same part of size's {size[0]}×{size[1]} pixels")
    return {"fit": "squash", "squash_fraction": fraction}, crop


def _read_patches(section: Settings) -> tuple[int, tuple[int, int]]:
    """NaFlex's patch, and the size of the image with its number of patches that is closest to a square."""
    for name in ("patch_size", "max_num_patches"):
        if not is_side(section.get(name, 1)):
            raise section.refuse(name, "a whole number above 0")
    patch, count = section.get("patch_size", 16), section.get("max_num_patches", 256)
    rows = next(rows for rows in range(math.isqrt(count), 0, -1) if count % rows == 0)
    return patch, (rows * patch, count // rows * patch)


def _read_sides(section: Settings, name: str, default: object, square: bool) -> tuple[int, int] | int:
    """Height and width, or only the shorter side."""
    value = section.get(name, default)
    if is_side(value):
        return (value, value) if square else value
    if are_sides(value, 2):
        return value[0], value[1]
    if isinstance(value, Mapping):
        sides = {key: side for key, side in value.items() if side is not None}
        if all(map(is_side, sides.values())):
            if sides.keys() == {"height", "width"}:
                return sides["height"], sides["width"]
            if sides.keys() == {"shortest_edge"}:
                return int(sides["shortest_edge"])
    raise section.refuse(name, "{'height', 'width'}, {'shortest_edge'}, [height, width] or a whole number")
