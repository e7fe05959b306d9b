"""The preprocessing in timm's ``pretrained_cfg``, as ``create_transform(**resolve_data_config(...))`` reads it."""

from __future__ import annotations

from vitviz.images.resizing import INTERPOLATIONS
from vitviz.weights.metadata.rules import IMAGENET, PreprocessingRule, read_moments
from vitviz.weights.metadata.settings import is_number, is_side
from vitviz.weights.metadata.sidecars import Sidecars

# Where the weights come from, who made them, how they are stored, and which sizes they were tested at: these,
# resolve_data_config reads only where it is asked to.
UNUSED_ENTRIES = (
    *("url", "file", "state_dict", "hf_hub_id", "hf_hub_filename", "source", "architecture", "tag", "custom_load"),
    *("license", "description", "origin_url", "paper_name", "paper_ids", "notes", "first_conv", "classifier"),
    *("test_input_size", "test_crop_pct", "min_input_size", "pool_size", "test_pool_size"),
    # The classes and the network's size are those of its weights.
    *("num_classes", "fixed_input_size"),
)


def read_timm_transform(sidecars: Sidecars, channels: int) -> PreprocessingRule | None:
    section, source = sidecars.config.inner("pretrained_cfg"), "timm's pretrained_cfg in config.json"
    # timm's older files are flat; transformers' have a model_type and, in the plural, architectures.
    if section is None and "architecture" in sidecars.config and "model_type" not in sidecars.config:
        section, source = sidecars.config, "timm's config.json"
    if section is None:
        return None
    section.skip(UNUSED_ENTRIES)
    # With an offset, timm leaves out the classifier's first classes.
    section.only("label_offset", 0)
    size = section.get("input_size", [3, 224, 224])
    if not isinstance(size, list | tuple) or len(size) != 3 or not all(map(is_side, size)):
        raise section.refuse("input_size", "[channels, height, width]")
    fit = section.choice("crop_mode", {"center": "crop", "squash": "squash"}, "center")
    part = section.get("crop_pct", 0.875)
    if not is_number(part) or not 0 < part <= 1:
        raise section.refuse("crop_pct", "a number in (0, 1]")
    arguments = {
        **read_moments(section, IMAGENET, channels),
        "fit": fit,
        f"{fit}_fraction": part,
        "interpolation": section.choice("interpolation", {name: name for name in INTERPOLATIONS}, "bicubic"),
    }
    return PreprocessingRule(source, arguments, (size[1], size[2]))
