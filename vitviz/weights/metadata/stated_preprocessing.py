"""The preprocessing in the fields of timm's ``pretrained_cfg`` and of transformers' processors.

They are read as ``create_transform(**resolve_data_config(…))`` and ``AutoImageProcessor`` with torchvision installed
read them. Whatever does more than resize, crop, and standardise is refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from vitviz.errors.kinds import CheckpointError, UnknownFamilyError
from vitviz.errors.messages import quote
from vitviz.images.resizing import BACKENDS, INTERPOLATIONS
from vitviz.weights.metadata.beside import Beside
from vitviz.weights.metadata.normalisations import HALVES, IMAGENET
from vitviz.weights.metadata.rules import PreprocessingRule, common_fraction
from vitviz.weights.metadata.sides import are_sides, both_sides

# Entries that timm writes for every model, which its defaults replace.
OF_TIMM = ("mean", "std", "crop_pct", "interpolation")
# Names of interpolations by Pillow's numbers, which transformers uses; the ones that torchvision has for tensors.
RESAMPLINGS = {int(number): name for name, number in INTERPOLATIONS.items() if name in BACKENDS["torchvision"]}
# Fields that transformers' ViTImageProcessor has where a file does not state them.
OF_VIT = {
    **{"size": {"height": 224, "width": 224}, "resample": 2, "image_mean": HALVES[0], "image_std": HALVES[1]},
    **{"do_resize": True, "do_rescale": True, "do_normalize": True},
}
# Its names in files.
VIT_PROCESSOR = re.compile("ViT(ImageProcessor(Fast|Pil)?|FeatureExtractor)")
# What an image processor may do.
SWITCHES = ("do_resize", "do_center_crop", "do_pad", "do_rescale", "do_normalize")


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
    return processor_rule(stated, source, channels, OF_VIT)


def timm_rule(cfg: Mapping[str, Any], source: str, channels: int) -> PreprocessingRule:
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
    return PreprocessingRule.of(
        source,
        size[1:],
        tuple(name for name in OF_TIMM if not cfg.get(name)),
        mean=_of_channels(cfg.get("mean") or IMAGENET[0], channels),
        std=_of_channels(cfg.get("std") or IMAGENET[1], channels),
        fit=fit,
        interpolation=cfg.get("interpolation") or "bicubic",
        **{f"{fit}_fraction": cfg.get("crop_pct") or 0.875},
    )


def processor_rule(
    stated: Mapping[str, Any], source: str, channels: int, usual: Mapping[str, Any], backend: str = "torchvision"
) -> PreprocessingRule:
    """The preprocessing in the fields of an image processor of transformers.

    Args:
        stated: fields of the processor.
        source: as of :class:`PreprocessingRule`.
        channels: of the images.
        usual: fields of its class, where they are not stated.
        backend: as of :class:`Preprocessing`.

    Raises:
        UnknownFamilyError: it does anything else.
        CheckpointError: a value is out of range.
    """
    # A switch of null is off; any other field of null is not stated.
    switches = {name: value for name, value in stated.items() if name.startswith(("do_", "default_to"))}
    fields = {**usual, **{name: value for name, value in stated.items() if value is not None}, **switches}
    interpolation = RESAMPLINGS.get(fields.get("resample", -1))
    size = _sides(fields.get("size"), fields.get("default_to_square", True))
    crop = _sides(fields.get("crop_size"), True) if fields.get("do_center_crop") else size
    fit, fraction = "crop" if len(size) == 1 else "squash", None
    if len(crop) == 2 and max(crop) <= max(size, default=0):
        fraction = common_fraction([min(crop)] if fit == "crop" else crop, size)
    how: dict[str, Any] = {"fit": fit, f"{fit}_fraction": fraction}
    if count := fields.get("max_num_patches"):
        rows = next(each for each in range(math.isqrt(count), 0, -1) if count % each == 0)
        how, crop = {"fit": "native"}, (rows * fields["patch_size"], count // rows * fields["patch_size"])
    if not fields.get("do_resize") or fields.get("do_pad") or interpolation is None or None in how.values():
        fields_of_size = [name for name in ("size", "crop_size", "resample", *SWITCHES) if fields.get(name) is not None]
        found = ", ".join(f"{name} {fields[name]!r}" for name in fields_of_size)
        raise UnknownFamilyError(
            f"{source}: expected one that resizes, crops a part of that, and standardises; found {found}"
        )
    moments = (fields.get("image_mean", ()), fields.get("image_std", ())) if fields.get("do_normalize") else (0.0, 1.0)
    white = round(255 * fields.get("rescale_factor", 1 / 255), 12) if fields.get("do_rescale") else 255.0
    mean, std = (tuple(each / white for each in _of_channels(values, channels)) for values in moments)
    defaults = tuple(name for name in usual if stated.get(name) is None and name not in SWITCHES)
    how |= {"interpolation": interpolation, "rounding": "transformers", "backend": backend}
    return PreprocessingRule.of(source, crop, defaults, mean=mean, std=std, **how)


def _of_channels(stated: Any, channels: int) -> tuple[float, ...]:
    """One number for each channel; a single number is repeated."""
    return (float(stated),) * channels if isinstance(stated, int | float) else tuple(map(float, stated))


def _sides(value: Any, square: bool) -> Sequence[int]:
    """Height and width, or only the shorter side; empty for anything else."""
    if isinstance(value, Mapping):
        stated = {name: side for name, side in value.items() if side is not None}
        # A limit of the longer side beside it makes another size.
        names = ("shortest_edge",) if "shortest_edge" in stated else ("height", "width")
        sides = [stated.get(name) for name in names] if stated.keys() == {*names} else []
    elif isinstance(value, int):
        sides = [value] * (1 + bool(square))
    else:
        sides = [*(both_sides(value) or ())]
    return sides if are_sides(sides, len(sides)) else ()
