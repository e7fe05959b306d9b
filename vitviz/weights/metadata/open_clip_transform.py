"""The preprocessing in open_clip's ``preprocess_cfg``, as ``image_transform`` reads it."""

from __future__ import annotations

from vitviz.weights.metadata.normalisations import CLIP
from vitviz.weights.metadata.rules import PreprocessingRule, read_moments
from vitviz.weights.metadata.sidecars import Sidecars

# open_clip reads the size from vision_cfg, and fills borders only if resize_mode is "longest".
UNUSED_ENTRIES = ("size", "fill_color")
# Interpolations in evaluation; "random" is for training.
INTERPOLATIONS = {"bicubic": "bicubic", "bilinear": "bilinear", "random": "bicubic"}


def read_open_clip_transform(sidecars: Sidecars, channels: int) -> PreprocessingRule | None:
    if not sidecars.open_clip:
        return None
    config = sidecars.open_clip
    section = config.inner_or_empty("preprocess_cfg")
    vision = config.inner_or_empty("model_cfg").inner_or_empty("vision_cfg")
    section.skip(UNUSED_ENTRIES)
    section.only("mode", "RGB")
    size = vision.size("image_size")
    arguments = {
        **read_moments(section, CLIP, channels),
        # "longest" would pad.
        "fit": section.choice("resize_mode", {"shortest": "crop", "squash": "squash"}, "shortest"),
        "interpolation": section.choice("interpolation", INTERPOLATIONS, "bicubic"),
    }
    if arguments["fit"] == "crop" and size is not None and size[0] != size[1]:
        # image_transform ignores the file's interpolation here.
        arguments["interpolation"] = "bicubic"
    defaults = tuple(name for name in ("mean", "std", "interpolation") if not section.get(name))
    return PreprocessingRule(config.place, arguments, size, defaults=defaults)
