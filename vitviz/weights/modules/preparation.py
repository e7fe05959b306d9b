"""How images are prepared for a module: what it says of itself, or what the user gives."""

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
from vitviz.weights.metadata.timm_transform import read_timm_transform

Size = tuple[int, int]
EXPECTED = (
    "expected preprocessing = a vitviz.Preprocessing, an image processor of transformers, the transforms() of "
    "torchvision's weights, a transform of timm or open_clip, or timm's data_config"
)
# What may stand in a composed transform without changing a number beyond what vitviz does itself.
NEUTRAL = (
    *("ToTensor", "MaybeToTensor", "PILToTensor", "MaybePILToTensor", "ConvertImageDtype"),
    *("MaybeConvertMode", "function"),
)


def module_preprocessing(
    module: nn.Module, given: Any, normalisation: str | None, size: Size, patch: Size, channels: int
) -> tuple[Preprocessing, str]:
    """The preprocessing of a module, and where it comes from.

    Args:
        module: whose images are prepared.
        given: by the user, or what the files beside a checkpoint say; None for nothing.
        normalisation: a name in :data:`NORMALISATIONS`, where the module says nothing that vitviz does; None for
            nothing.
        size, patch: height and width of the module's images and patches in pixels.
        channels: of its images.

    Raises:
        ConfigError: neither the module nor the user says it.
        CheckpointError: vitviz cannot prepare images exactly so, and the user says nothing else.
    """
    if isinstance(given, Preprocessing):
        return given, "preprocessing"
    if isinstance(given, PreprocessingRule):
        rule: PreprocessingRule | None = given
    else:
        rule = _given_rule(given, channels) if given is not None else None
    if given is None:
        try:
            rule = _own_rule(module, channels)
        except CheckpointError as error:
            if normalisation is None:
                raise CheckpointError(f"{error}; {EXPECTED}; or normalisation = {choices(NORMALISATIONS)}") from None
    if rule is not None:
        preprocessing, source = rule.fit_network(*size, patch, False)
        return preprocessing, source
    if normalisation is not None:
        word("normalisation", normalisation, NORMALISATIONS, ConfigError)
        mean, std = (values[:channels] for values in NORMALISATIONS[normalisation])
        return Preprocessing(*size, mean, std), f"normalisation {normalisation!r}, by a centred crop"
    raise ConfigError(
        f"preprocessing: the module does not say how its images are prepared; {EXPECTED}; or normalisation = "
        f"{choices(NORMALISATIONS)}, with a centred crop"
    )


def sidecars(
    config: Mapping[str, Any] | None = None,
    preprocessor: Mapping[str, Any] | None = None,
    open_clip: Mapping[str, Any] | None = None,
) -> Sidecars:
    """What a module says, as the files beside its checkpoint would."""
    places = {"config": "the module's configuration", "preprocessor": "preprocessing", "open_clip": "preprocess_cfg"}
    return Sidecars(
        Settings(config or {}, places["config"]),
        Settings(preprocessor or {}, places["preprocessor"]),
        Settings(open_clip or {}, places["open_clip"]),
    )


def _own_rule(module: nn.Module, channels: int) -> PreprocessingRule | None:
    """What timm's and open_clip's modules say."""
    timm = getattr(module, "pretrained_cfg", None)
    if isinstance(timm, Mapping) and timm.get("mean") is not None:
        return _timm_rule(timm, "timm's pretrained_cfg", channels)
    open_clip = getattr(module, "preprocess_cfg", None)
    if isinstance(open_clip, Mapping) and open_clip.get("mean") is not None:
        side = getattr(module, "image_size", None)
        whole = {"preprocess_cfg": _plain(open_clip), "model_cfg": {"vision_cfg": {"image_size": _listed(side)}}}
        return read_open_clip_transform(sidecars(open_clip=whole), channels)
    return None


def _given_rule(given: Any, channels: int) -> PreprocessingRule:
    name = type(given).__name__
    if isinstance(given, Mapping):
        rule = _timm_rule(given, "the data_config", channels)
    elif callable(getattr(given, "to_dict", None)) and hasattr(given, "image_mean"):
        values = {"image_processor_type": name, **_plain(given.to_dict())}
        rule = read_image_processor(sidecars(preprocessor=values), channels)
    elif name == "ImageClassification":
        rule = _torchvision_rule(given)
    elif isinstance(getattr(given, "transforms", None), list):
        rule = _composed_rule(given.transforms)
    else:
        rule = None
    if rule is None:
        raise ConfigError(f"preprocessing = {describe(given)}: {EXPECTED.replace('preprocessing = ', '', 1)}")
    return rule


def _timm_rule(values: Mapping[str, Any], source: str, channels: int) -> PreprocessingRule | None:
    rule = read_timm_transform(sidecars(config={"pretrained_cfg": _plain(values)}), channels)
    return None if rule is None else replace(rule, source=source)


def _torchvision_rule(preset: Any) -> PreprocessingRule:
    """torchvision's preset, as it prepares PIL images."""
    resize, crop = _one(preset.resize_size), _one(preset.crop_size)
    arguments = {
        "mean": tuple(preset.mean),
        "std": tuple(preset.std),
        "fit": "crop",
        "crop_fraction": fraction_of(crop, resize),
        "interpolation": preset.interpolation.value,
    }
    return PreprocessingRule("torchvision's ImageClassification", arguments, (crop, crop))


def _composed_rule(transforms: list[Any]) -> PreprocessingRule:
    """A list of transforms such as timm and open_clip make: resize, cut out the centre, normalise."""
    steps = {type(step).__name__: step for step in transforms}
    unknown = [name for name in steps if name not in (*NEUTRAL, "Resize", "CenterCrop", "Normalize")]
    missing = [name for name in ("Resize", "Normalize") if name not in steps]
    if unknown or missing:
        found = f"no {choices(missing)}" if missing else f"{choices(unknown)}"
        raise ConfigError(f"preprocessing: {found} among its transforms; expected Resize, CenterCrop and Normalize")
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


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """As a JSON file would have it."""
    return {name: _listed(value) for name, value in values.items()}


def _listed(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_listed(each) for each in value]
    if isinstance(value, Mapping) or type(value).__name__ == "SizeDict":
        return {key: each for key, each in dict(value).items() if each is not None}
    return value.value if isinstance(value, Enum) else value


def _one(size: Any) -> int:
    return int(size[0] if isinstance(size, list | tuple) else size)
