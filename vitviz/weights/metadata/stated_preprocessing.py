"""The preprocessing in the fields of timm's ``pretrained_cfg``, of transformers' processors and of open_clip.

They are read as ``create_transform(**resolve_data_config(…))``, ``AutoImageProcessor`` with torchvision installed, and
``image_transform_v2`` read them. Whatever does more than resize, crop, and standardise is refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from vitviz.errors.kinds import CheckpointError, UnknownFamilyError
from vitviz.errors.messages import quote
from vitviz.images.resizing import BACKENDS, INTERPOLATIONS
from vitviz.weights.metadata.beside import Beside
from vitviz.weights.metadata.normalisations import HALVES, IMAGENET
from vitviz.weights.metadata.rules import PreprocessingRule, common_fraction, fraction_of
from vitviz.weights.metadata.sides import are_sides, both_sides, is_side

Fields = Mapping[str, Any]
# Entries that timm writes for every model, which its defaults replace.
OF_TIMM = ("mean", "std", "crop_pct", "interpolation")
# Names of interpolations by Pillow's numbers, which transformers uses; the ones that torchvision has for tensors.
RESAMPLINGS = {int(number): name for name, number in INTERPOLATIONS.items() if name in BACKENDS["torchvision"]}
# Fields that transformers' ViTImageProcessor has where a file does not state them.
OF_VIT = {"size": {"height": 224, "width": 224}, "resample": 2, "image_mean": HALVES[0], "image_std": HALVES[1]}
# Its names in files.
VIT_PROCESSOR = re.compile("ViT(ImageProcessor(Fast|Pil)?|FeatureExtractor)")


def find_rule(files: Beside, channels: int) -> PreprocessingRule | None:
    """The preprocessing that the files beside a checkpoint state; None if none does.

    Of transformers' processors it reads that of ViT; its other ones are for their package.

    Args:
        files: beside the checkpoint.
        channels: of the network's images.

    Raises:
        CheckpointError: timm's file states values that :class:`Preprocessing` cannot follow exactly.
        UnknownFamilyError: a processor is another one, or does more, so that its package has to open the checkpoint.
    """
    config, stated = files.config, files.preprocessor
    if "pretrained_cfg" in config or files.package == "timm":
        return timm_rule(config.get("pretrained_cfg") or config, "timm's pretrained_cfg in config.json", channels)
    if not stated:
        return None
    source, kind = "preprocessor_config.json", stated.get("image_processor_type", stated.get("feature_extractor_type"))
    if kind is not None and not VIT_PROCESSOR.fullmatch(str(kind)):
        raise UnknownFamilyError(f"{source}: {kind!r}: expected ViT's own; what else there is, its package reads")
    # A switch of null is off.
    named = {
        name: value for name, value in stated.items() if value is not None or name.startswith(("do_", "default_to"))
    }
    defaults = tuple(name for name in OF_VIT if stated.get(name) is None)
    return processor_rule({**OF_VIT, **named}, source, channels, defaults)


def timm_rule(cfg: Fields, source: str, channels: int) -> PreprocessingRule:
    """The preprocessing in timm's ``pretrained_cfg`` or ``data_config``.

    Raises:
        CheckpointError: an entry is illegal.
    """
    size, fits = cfg.get("input_size") or (3, 224, 224), {"center": "crop", "squash": "squash"}
    fit = fits.get(cfg.get("crop_mode") or "center")
    if not are_sides(size, 3) or fit is None or cfg.get("label_offset"):
        raise CheckpointError(
            f"{source}: expected input_size [channels, height, width], crop_mode 'center' or 'squash', and no "
            f"label_offset; found {quote(size)}, {quote(cfg.get('crop_mode'))}, {quote(cfg.get('label_offset'))}"
        )
    arguments = {
        "mean": _moments(cfg.get("mean"), IMAGENET[0], channels),
        "std": _moments(cfg.get("std"), IMAGENET[1], channels),
        "fit": fit,
        f"{fit}_fraction": cfg.get("crop_pct") or 0.875,
        "interpolation": cfg.get("interpolation") or "bicubic",
    }
    defaults = tuple(name for name in OF_TIMM if not cfg.get(name))
    return PreprocessingRule(source, arguments, (size[1], size[2]), defaults)


def processor_rule(
    fields: Fields, source: str, channels: int, defaults: tuple[str, ...] = (), float_first: bool = False
) -> PreprocessingRule:
    """The preprocessing in the fields of an image processor of transformers.

    Args:
        fields: of the processor; missing switches are those of most classes.
        source, defaults: as of :class:`PreprocessingRule`.
        channels: of the images.
        float_first: whether it rescales before it resizes, and so does not round to whole levels.

    Raises:
        UnknownFamilyError: it does anything else.
    """
    on = {name: fields.get(f"do_{name}", name not in ("center_crop", "pad")) for name in SWITCHES}
    interpolation = RESAMPLINGS.get(fields.get("resample", -1))
    size, square = fields.get("size"), fields.get("default_to_square", True)
    fit: dict[str, Any] = {"fit": "squash"}
    target = _sides(size, square)
    if on["center_crop"]:
        crop = _sides(fields.get("crop_size"), True)
        if isinstance(target, int) and isinstance(crop, tuple) and max(crop) <= target:
            fit, target = {"fit": "crop", "crop_fraction": fraction_of(min(crop), target)}, crop
        elif isinstance(target, tuple) and isinstance(crop, tuple) and (part := common_fraction(crop, target)):
            fit, target = {"fit": "squash", "squash_fraction": part}, crop
        else:
            target = None
    patch = fields.get("patch_size") if fields.get("max_num_patches") else None
    if patch:
        count = fields["max_num_patches"]
        rows = next(each for each in range(math.isqrt(count), 0, -1) if count % each == 0)
        fit, target = {"fit": "native"}, (rows * patch, count // rows * patch)
    if not on["resize"] or on["pad"] or interpolation is None or not isinstance(target, tuple):
        raise UnknownFamilyError(
            f"{source}: expected one that resizes, crops a part of that, and standardises; found {_stated(fields)}"
        )
    white = fields.get("rescale_factor", 1 / 255) * 255 if on["rescale"] else 255.0
    mean, std = (0.0,) * channels, (1.0,) * channels
    if on["normalize"]:
        mean = _moments(fields.get("image_mean"), HALVES[0], channels)
        std = _moments(fields.get("image_std"), HALVES[1], channels)
    if abs(white - 1) > 1e-12:
        mean, std = (tuple(each / white for each in values) for values in (mean, std))
    arguments = {
        **{"mean": mean, "std": std, "interpolation": interpolation, "rounding": "transformers", **fit},
        "backend": "torchvision float" if float_first and on["rescale"] else "torchvision",
    }
    return PreprocessingRule(source, arguments, target, defaults)


SWITCHES = ("resize", "center_crop", "pad", "rescale", "normalize")
SHOWN = ("size", "crop_size", "resample", *(f"do_{name}" for name in SWITCHES))


def _stated(fields: Fields) -> str:
    return ", ".join(f"{name} {fields[name]!r}" for name in SHOWN if fields.get(name) is not None)


def _moments(stated: Any, usual: tuple[float, ...], channels: int) -> tuple[float, ...]:
    """One number for each channel; a single number is repeated, and 0 and empty values count as missing."""
    values = stated or usual
    return (float(values),) * channels if isinstance(values, int | float) else tuple(map(float, values))


def _sides(value: Any, square: bool) -> tuple[int, int] | int | None:
    """Height and width, or only the shorter side; None for anything else."""
    if isinstance(value, Mapping):
        sides = {name: side for name, side in value.items() if side is not None}
        # A limit of the longer side beside it makes another size.
        if sides.keys() == {"shortest_edge"}:
            return sides["shortest_edge"] if is_side(sides["shortest_edge"]) else None
        return both_sides((sides["height"], sides["width"])) if sides.keys() == {"height", "width"} else None
    return both_sides(value) if square or not isinstance(value, int) else value
