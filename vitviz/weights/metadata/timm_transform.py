"""The preprocessing in timm's ``pretrained_cfg``, as ``create_transform(**resolve_data_config(...))`` reads it."""

from __future__ import annotations

from vitviz.images.resizing import INTERPOLATIONS
from vitviz.weights.metadata.normalisations import IMAGENET
from vitviz.weights.metadata.rules import PreprocessingRule, read_moments
from vitviz.weights.metadata.settings import Settings, are_sides, is_number
from vitviz.weights.metadata.sidecars import Sidecars

# Entries that resolve_data_config does not read by default: the origin, authors and storage of the weights, and the
# sizes of tests.
UNUSED_ENTRIES = (
    *("url", "file", "state_dict", "hf_hub_id", "hf_hub_filename", "source", "architecture", "tag", "custom_load"),
    *("license", "description", "origin_url", "paper_name", "paper_ids", "notes", "first_conv", "classifier"),
    *("test_input_size", "test_crop_pct", "min_input_size", "pool_size", "test_pool_size"),
    # The weights determine the classes and the network's size.
    *("num_classes", "fixed_input_size"),
)

# Entries that timm writes for every model, which its defaults replace.
STATED_ENTRIES = ("mean", "std", "crop_pct", "interpolation")


def read_timm_transform(sidecars: Sidecars, channels: int) -> PreprocessingRule | None:
    section, source = sidecars.config.inner("pretrained_cfg"), "timm's pretrained_cfg in config.json"
    # timm's older files are flat; those of transformers have model_type and architectures.
    if section is None and "architecture" in sidecars.config and "model_type" not in sidecars.config:
        section, source = sidecars.config, "timm's config.json"
    if section is None:
        return None
    return rule_of_cfg(section, source, channels)


def rule_of_cfg(section: Settings, source: str, channels: int) -> PreprocessingRule:
    """The preprocessing in the entries of a ``pretrained_cfg``.

    Args:
        section: the entries.
        source: where they are stated.
        channels: of the images.

    Raises:
        CheckpointError: an entry is illegal.
    """
    section.skip(UNUSED_ENTRIES)
    # With an offset, timm drops the first classes of the classifier.
    section.only("label_offset", 0)
    size = section.get("input_size", [3, 224, 224])
    if not are_sides(size, 3):
        raise section.refuse("input_size", "[channels, height, width]")
    fit = section.choice("crop_mode", {"center": "crop", "squash": "squash"}, "center")
    crop_fraction = section.get("crop_pct", 0.875)
    if not is_number(crop_fraction) or not 0 < crop_fraction <= 1:
        raise section.refuse("crop_pct", "a number in (0, 1]")
    arguments = {
        **read_moments(section, IMAGENET, channels),
        "fit": fit,
        f"{fit}_fraction": crop_fraction,
        "interpolation": section.choice("interpolation", {name: name for name in INTERPOLATIONS}, "bicubic"),
    }
    defaults = tuple(name for name in STATED_ENTRIES if not section.get(name))
    return PreprocessingRule(source, arguments, (size[1], size[2]), defaults=defaults)
