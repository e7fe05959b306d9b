"""The preprocessing of a module, from its attributes or from the user."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from vitviz.errors.arguments import word
from vitviz.errors.kinds import CheckpointError, ConfigError
from vitviz.errors.messages import choices, describe
from vitviz.images.callable_preprocessing import CallablePreprocessing
from vitviz.images.preprocessing import Preprocessing
from vitviz.weights.metadata.normalisations import NORMALISATIONS
from vitviz.weights.metadata.open_clip_transform import read_open_clip_transform
from vitviz.weights.metadata.rules import PreprocessingRule
from vitviz.weights.metadata.settings import Settings
from vitviz.weights.metadata.sidecars import Sidecars
from vitviz.weights.metadata.timm_transform import STATED_ENTRIES, read_timm_transform
from vitviz.weights.modules.missing import Question
from vitviz.weights.modules.transforms import read_transform, stated_moments

Size = tuple[int, int]
EXPECTED = (
    "expected preprocessing = a vitviz.Preprocessing, a transform of torchvision, timm, open_clip or albumentations "
    "(the transforms() of torchvision's weights), an image processor of transformers, timm's data_config, or any "
    "function from a PIL image to a tensor"
)
QUESTION: Question = (
    f"{choices(NORMALISATIONS)}, with a centred crop; or {EXPECTED.removeprefix('expected ')}",
    "'half'",
)
# Sources of configurations that timm read from a file.
TIMM_FILES = ("hf-hub", "local-dir")


def module_preprocessing(
    module: nn.Module, stated: Any, normalisation: str | None, size: Size, patch: Size, channels: int
) -> tuple[Preprocessing, str, bool] | None:
    """The preprocessing of a module, its source, and whether only defaults of its package state it; None if none does.

    Args:
        module: whose images are prepared.
        stated: by the user or by the package that built it; None to read the module's own.
        normalisation: a name in :data:`NORMALISATIONS`, whose mean and deviation replace those that are stated; None
            for these.
        size, patch: height and width of the module's images and patches in pixels.
        channels: of its images.

    Raises:
        CheckpointError: vitviz cannot do the module's preprocessing exactly, and the user states no other.
    """
    if normalisation is not None:
        word("normalisation", normalisation, NORMALISATIONS, ConfigError)
    if isinstance(stated, Preprocessing):
        if len(stated.mean) != channels:
            raise ConfigError(f"preprocessing makes inputs of {len(stated.mean)} channels; the module takes {channels}")
        if normalisation is not None and type(stated) is Preprocessing:
            mean, std = (values[:channels] for values in NORMALISATIONS[normalisation])
            return replace(stated, mean=mean, std=std), f"preprocessing, with normalisation {normalisation!r}", False
        return stated, "preprocessing" if type(stated) is Preprocessing else f"{stated}, run as it is", False
    rule: PreprocessingRule | None = None
    if stated is not None:
        rule = _rule_of_data_config(stated, channels)
    else:
        try:
            rule = _rule_of_module(module, channels)
        except CheckpointError as error:
            if normalisation is None:
                raise CheckpointError(f"{error}; {EXPECTED}; or normalisation = {choices(NORMALISATIONS)}") from None
    if rule is not None:
        rule = rule if normalisation is None else rule.standardised(normalisation, channels)
        preprocessing, source = rule.fit_network(*size, patch, False)
        is_assumed = bool(rule.defaults) and stated is None
        return preprocessing, source + rule.assumption * is_assumed, is_assumed
    if normalisation is not None:
        mean, std = (values[:channels] for values in NORMALISATIONS[normalisation])
        return Preprocessing(*size, mean, std), f"normalisation {normalisation!r}, by a centred crop", False
    return None


def as_sidecars(config: Mapping[str, Any] | None = None, open_clip: Mapping[str, Any] | None = None) -> Sidecars:
    """Attributes of a module as the files beside a checkpoint would have them."""
    return Sidecars(
        Settings(config or {}, "the module's configuration"),
        Settings({}, "preprocessing"),
        Settings(open_clip or {}, "preprocess_cfg"),
    )


def _rule_of_module(module: nn.Module, channels: int) -> PreprocessingRule | None:
    """The preprocessing in a module of timm or open_clip; None if it has none.

    A module whose configuration timm read from a file states it; any other has timm's default, and may have been
    trained otherwise. So may one with open_clip's default.
    """
    timm = getattr(module, "pretrained_cfg", None)
    if isinstance(timm, Mapping) and timm.get("mean") is not None:
        rule = read_timm_transform(as_sidecars(config={"pretrained_cfg": _as_json(timm)}), channels)
        defaults = () if timm.get("source") in TIMM_FILES else STATED_ENTRIES
        return rule and replace(rule, source="timm's pretrained_cfg", defaults=defaults or rule.defaults)
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


def _rule_of_data_config(stated: Any, channels: int) -> PreprocessingRule:
    """The preprocessing of timm's ``data_config``.

    Raises:
        ConfigError: it is none, or has other entries.
    """
    rule, expected = None, EXPECTED.removeprefix("expected preprocessing = ")
    if isinstance(stated, Mapping):
        sidecars = as_sidecars(config={"pretrained_cfg": _as_json(stated)})
        rule = read_timm_transform(sidecars, channels)
        if unknown := sidecars.config.unread():
            names = choices(name.removeprefix("pretrained_cfg.") for name in unknown)
            raise ConfigError(
                f"preprocessing: a mapping with {names}, which timm's data_config has not; expected {expected}"
            )
    if rule is None:
        raise ConfigError(f"preprocessing = {describe(stated)}: expected {expected}")
    return replace(rule, source="the data_config")


def read_function(function: Callable[..., Any], box: Any, normalisation: str | None) -> Preprocessing:
    """The preprocessing of a transform, a processor or any other function.

    What a transform or a processor states is done by vitviz itself, at any resolution and fit, and can be written to a
    file. Any other function is called for every picture.

    Args:
        function: as :class:`CallablePreprocessing` takes it.
        box: as there; None for a transform that states what it does.
        normalisation: a name in :data:`NORMALISATIONS`, by which the function standardises; None for that of its steps.

    Raises:
        ImageError: the function fails.
        ConfigError: there is a box where it is known.
    """
    known = read_transform(function)
    if known is None:
        moments = stated_moments(function) if normalisation is None else NORMALISATIONS[normalisation]
        return CallablePreprocessing(function, box, moments)
    if box is not None:
        raise ConfigError(f"box: the preprocessing, {describe(function)}, states itself what it shows; expected no box")
    return known


def _as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values as a JSON file would have them."""
    return {name: _json_value(value) for name, value in values.items()}


def _json_value(value: Any) -> Any:
    return [_json_value(each) for each in value] if isinstance(value, tuple | list) else value
