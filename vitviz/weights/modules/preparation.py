"""The preprocessing of a module, from its attributes or from the user."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from typing import Any

from torch import nn

from vitviz.errors.arguments import word
from vitviz.errors.kinds import CheckpointError, ConfigError
from vitviz.errors.messages import choices, describe
from vitviz.images.preprocessing import Preprocessing
from vitviz.weights.metadata.image_processors import read_image_processor
from vitviz.weights.metadata.open_clip_transform import read_open_clip_transform
from vitviz.weights.metadata.preparation import NORMALISATIONS
from vitviz.weights.metadata.rules import PreprocessingRule, fraction_of
from vitviz.weights.metadata.settings import Settings
from vitviz.weights.metadata.sidecars import Sidecars
from vitviz.weights.metadata.timm_transform import STATED_ENTRIES, read_timm_transform
from vitviz.weights.modules.missing import NotStated

Size = tuple[int, int]
EXPECTED = (
    "expected preprocessing = a vitviz.Preprocessing, an image processor of transformers, the transforms() of "
    "torchvision's weights, a transform of timm or open_clip, or timm's data_config"
)
# Sources of configurations that timm read from a file.
TIMM_FILES = ("hf-hub", "local-dir")
# Steps in a composed transform that change no number, or that vitviz does anyway.
HARMLESS_STEPS = (
    *("ToTensor", "MaybeToTensor", "PILToTensor", "MaybePILToTensor", "ConvertImageDtype"),
    *("MaybeConvertMode", "function"),
)


def module_preprocessing(
    module: nn.Module, stated: Any, normalisation: str | None, size: Size, patch: Size, channels: int
) -> tuple[Preprocessing, str, bool]:
    """The preprocessing of a module, its source, and whether only defaults of its package state it.

    Args:
        module: whose images are prepared.
        stated: by the user or by the files beside a checkpoint; None to read the module's own.
        normalisation: a name in :data:`NORMALISATIONS`, used if the module states no preprocessing that vitviz can do;
            None for no such default.
        size, patch: height and width of the module's images and patches in pixels.
        channels: of its images.

    Raises:
        NotStated: neither the module nor the user states it.
        CheckpointError: vitviz cannot do the module's preprocessing exactly, and the user states no other.
    """
    if isinstance(stated, Preprocessing):
        return stated, "preprocessing", False
    if isinstance(stated, PreprocessingRule):
        rule: PreprocessingRule | None = stated
    else:
        rule = _stated_rule(stated, channels) if stated is not None else None
    if stated is None:
        try:
            rule = _rule_of_module(module, channels)
        except CheckpointError as error:
            if normalisation is None:
                raise CheckpointError(f"{error}; {EXPECTED}; or normalisation = {choices(NORMALISATIONS)}") from None
    if rule is not None:
        preprocessing, source = rule.fit_network(*size, patch, False)
        is_assumed = bool(rule.defaults) and (stated is None or stated is rule)
        return preprocessing, source + rule.assumption * is_assumed, is_assumed
    if normalisation is not None:
        word("normalisation", normalisation, NORMALISATIONS, ConfigError)
        mean, std = (values[:channels] for values in NORMALISATIONS[normalisation])
        return Preprocessing(*size, mean, std), f"normalisation {normalisation!r}, by a centred crop", False
    expected = f"{choices(NORMALISATIONS)}, with a centred crop"
    raise NotStated("normalisation", f"{expected}; or {EXPECTED.removeprefix('expected ')}", "'half'")


def as_sidecars(
    config: Mapping[str, Any] | None = None,
    preprocessor: Mapping[str, Any] | None = None,
    open_clip: Mapping[str, Any] | None = None,
) -> Sidecars:
    """Attributes of a module as the files beside a checkpoint would have them."""
    places = {"config": "the module's configuration", "preprocessor": "preprocessing", "open_clip": "preprocess_cfg"}
    return Sidecars(
        Settings(config or {}, places["config"]),
        Settings(preprocessor or {}, places["preprocessor"]),
        Settings(open_clip or {}, places["open_clip"]),
    )


def _rule_of_module(module: nn.Module, channels: int) -> PreprocessingRule | None:
    """The preprocessing in a module of timm or open_clip; None if it has none.

    A module whose configuration timm read from a file states it; any other has timm's default, and may have been
    trained otherwise. So may one with open_clip's default.
    """
    timm = getattr(module, "pretrained_cfg", None)
    if isinstance(timm, Mapping) and timm.get("mean") is not None:
        rule = _timm_rule(timm, "timm's pretrained_cfg", channels)
        is_read = timm.get("source") in TIMM_FILES
        return rule if rule is None or is_read else replace(rule, defaults=STATED_ENTRIES)
    open_clip = getattr(module, "preprocess_cfg", None)
    if isinstance(open_clip, Mapping) and open_clip.get("mean") is not None:
        image_size = getattr(module, "image_size", None)
        config = {
            "preprocess_cfg": _as_json(open_clip),
            "model_cfg": {"vision_cfg": {"image_size": _json_value(image_size)}},
        }
        rule = read_open_clip_transform(as_sidecars(open_clip=config), channels)
        default = read_open_clip_transform(as_sidecars(open_clip={"model_cfg": {}}), channels)
        is_default = rule is not None and default is not None and rule.arguments == default.arguments
        return replace(rule, defaults=default.defaults) if rule and default and is_default else rule
    return None


def _stated_rule(value: Any, channels: int) -> PreprocessingRule:
    name = type(value).__name__
    if isinstance(value, Mapping):
        rule = _timm_rule(value, "the data_config", channels)
    elif callable(getattr(value, "to_dict", None)) and hasattr(value, "image_mean"):
        values = {"image_processor_type": name, **_as_json(value.to_dict())}
        rule = read_image_processor(as_sidecars(preprocessor=values), channels)
    elif name == "ImageClassification":
        rule = _torchvision_rule(value)
    elif isinstance(getattr(value, "transforms", None), list):
        rule = _rule_of_transforms(value.transforms)
    else:
        rule = None
    if rule is None:
        raise ConfigError(f"preprocessing = {describe(value)}: {EXPECTED.replace('preprocessing = ', '', 1)}")
    return rule


def _timm_rule(values: Mapping[str, Any], source: str, channels: int) -> PreprocessingRule | None:
    rule = read_timm_transform(as_sidecars(config={"pretrained_cfg": _as_json(values)}), channels)
    return None if rule is None else replace(rule, source=source)


def _torchvision_rule(preset: Any) -> PreprocessingRule:
    """The preprocessing of torchvision's preset for PIL images."""
    resize, crop = _side(preset.resize_size), _side(preset.crop_size)
    arguments = {
        "mean": tuple(preset.mean),
        "std": tuple(preset.std),
        "fit": "crop",
        "crop_fraction": fraction_of(crop, resize),
        "interpolation": preset.interpolation.value,
    }
    return PreprocessingRule("torchvision's ImageClassification", arguments, (crop, crop))


def _rule_of_transforms(transforms: list[Any]) -> PreprocessingRule:
    """The preprocessing of a list of transforms as in timm and open_clip: resize, crop to the centre, normalise."""
    steps = {type(step).__name__: step for step in transforms}
    unknown = [name for name in steps if name not in (*HARMLESS_STEPS, "Resize", "CenterCrop", "Normalize")]
    missing = [name for name in ("Resize", "Normalize") if name not in steps]
    if unknown or missing:
        problem = f"no {choices(missing)}" if missing else f"{choices(unknown)}"
        raise ConfigError(f"preprocessing: {problem} among its transforms; expected Resize, CenterCrop and Normalize")
    resize, normalize = steps["Resize"], steps["Normalize"]
    values = {"mean": tuple(map(float, normalize.mean)), "std": tuple(map(float, normalize.std))}
    values["interpolation"] = resize.interpolation.value
    sides = resize.size if isinstance(resize.size, list | tuple) else [resize.size]
    if "CenterCrop" not in steps:
        if len(sides) != 2:
            raise ConfigError("preprocessing: Resize of the shorter side without CenterCrop; expected one size for all")
        return PreprocessingRule("the transforms", {**values, "fit": "squash"}, (sides[0], sides[1]))
    crop = tuple(steps["CenterCrop"].size)
    if len(sides) == 1:
        fit = {"fit": "crop", "crop_fraction": fraction_of(min(crop), sides[0])}
    else:
        fit = {"fit": "squash", "squash_fraction": fraction_of(crop[0], sides[0])}
    return PreprocessingRule("the transforms", {**values, **fit}, (crop[0], crop[1]))


def _as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values as a JSON file would have them."""
    return {name: _json_value(value) for name, value in values.items()}


def _json_value(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_json_value(each) for each in value]
    if isinstance(value, Mapping) or type(value).__name__ == "SizeDict":
        return {key: each for key, each in dict(value).items() if each is not None}
    return value.value if isinstance(value, Enum) else value


def _side(size: Any) -> int:
    return int(size[0] if isinstance(size, list | tuple) else size)
