"""The preprocessing of a module, from its attributes or from the user."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from vitviz.errors.kinds import CheckpointError, ConfigError
from vitviz.errors.messages import choices, describe
from vitviz.images.callable_preprocessing import CallablePreprocessing
from vitviz.images.preprocessing import Preprocessing
from vitviz.models.watched.module_config import Size
from vitviz.weights.metadata.normalisations import NORMALISATIONS, moments_of
from vitviz.weights.metadata.rules import PreprocessingRule
from vitviz.weights.metadata.stated_preprocessing import OF_TIMM, timm_rule
from vitviz.weights.modules.missing import Question
from vitviz.weights.modules.transforms import read_transform, stated_moments

EXPECTED = (
    "expected preprocessing = a vitviz.Preprocessing, a transform of torchvision, timm, open_clip or albumentations "
    "(the transforms() of torchvision's weights), an image processor of transformers, timm's data_config, or any "
    "function from a PIL image to a tensor"
)
# What a user may state of a module, but not of a checkpoint.
OF_MODULES = f"; or {EXPECTED.removeprefix('expected ')}"
# The normalisation of networks with such a part in the name of their class.
OF_CLASSES = {"siglip": "half", "clip": "clip", "": "imagenet"}
# Sources of configurations that timm read from a file.
TIMM_FILES = ("hf-hub", "local-dir")
# Entries of timm's data_config, all of which timm writes.
DATA_CONFIG = ("input_size", "interpolation", "mean", "std", "crop_pct", "crop_mode")


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
    if isinstance(stated, Preprocessing):
        if normalisation is not None and type(stated) is Preprocessing:
            standardised = replace(stated, **moments_of(normalisation, channels))
            return standardised, f"preprocessing, with normalisation {normalisation!r}", False
        if len(stated.mean) != channels:
            raise ConfigError(
                f"preprocessing makes inputs of {len(stated.mean)} channels; the module takes {channels}; expected a "
                "mean and deviation for each, such as those of normalisation='half'"
            )
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
    # The package's mean of three channels says nothing of a grey network.
    if rule is not None and (normalisation is not None or len(rule.preprocessing.mean) == channels):
        rule = rule if normalisation is None else rule.standardised(normalisation, channels)
        preprocessing, source = rule.fit_network(
            *size, patch, any_size=stated is not None and getattr(module, "dynamic_img_size", False)
        )
        return preprocessing, source + rule.assumption, bool(rule.defaults)
    if normalisation is None:
        return None
    preprocessing = Preprocessing(*size, **moments_of(normalisation, channels))
    return preprocessing, f"normalisation {normalisation!r}, by a centred crop", False


def normalisation_question(module: nn.Module) -> Question:
    """Of a module that states no preprocessing."""
    usual = next(each for part, each in OF_CLASSES.items() if part in type(module).__name__.lower())
    return f"{choices(NORMALISATIONS)}, with a centred crop{OF_MODULES}", repr(usual)


def _rule_of_module(module: nn.Module, channels: int) -> PreprocessingRule | None:
    """The preprocessing in a module of timm or open_clip; None if it has none.

    A module whose configuration timm read from a file states it; any other has timm's default, and may have been
    trained otherwise. So may one with open_clip's default.
    """
    timm = getattr(module, "pretrained_cfg", None)
    is_of_file = isinstance(timm, Mapping) and timm.get("source") in TIMM_FILES
    if isinstance(timm, Mapping) and (is_of_file or timm.get("mean") is not None):
        rule = timm_rule(timm, "timm's pretrained_cfg", channels)
        return replace(rule, defaults=rule.defaults if is_of_file else OF_TIMM)
    open_clip = getattr(module, "preprocess_cfg", None)
    if isinstance(open_clip, Mapping) and open_clip.get("mean") is not None:
        return _rule_of_open_clip(open_clip)
    return None


def _rule_of_open_clip(cfg: Mapping[str, Any]) -> PreprocessingRule:
    """The preprocessing in open_clip's ``preprocess_cfg``, by the transform that open_clip makes of it.

    Raises:
        CheckpointError: it pads pictures.
    """
    from open_clip.transform import PreprocessCfg, image_transform_v2

    source, stated = "open_clip's preprocess_cfg", PreprocessCfg(**cfg)
    found = read_transform(image_transform_v2(stated, is_train=False))
    if found is None:
        raise CheckpointError(f"{source}: resize_mode {stated.resize_mode!r}: expected 'shortest' or 'squash'")
    is_default = stated == PreprocessCfg(size=stated.size)
    return PreprocessingRule(source, found, defaults=("mean", "std", "interpolation") * is_default)


def _rule_of_data_config(stated: Any, channels: int) -> PreprocessingRule:
    """The preprocessing of timm's ``data_config``.

    Raises:
        ConfigError: it is none.
    """
    if not isinstance(stated, Mapping) or not stated.keys() >= {*DATA_CONFIG}:
        entries = f", with {', '.join(DATA_CONFIG)}" * isinstance(stated, Mapping)
        raise ConfigError(f"preprocessing = {describe(stated)}: {EXPECTED.replace('preprocessing = ', '')}{entries}")
    return timm_rule(stated, "the data_config", channels)


def read_function(function: Callable[..., Any], box: Any, normalisation: str | None) -> Preprocessing:
    """The preprocessing of a transform, a processor or any other function.

    What a transform or a processor states is done by vitviz itself, at any resolution and fit, and can be written to a
    file. Any other function is called for every picture.

    Args:
        function: as :class:`CallablePreprocessing` takes it.
        box: as there.
        normalisation: a name in :data:`NORMALISATIONS`, by which the function standardises; None for that of its steps.

    Raises:
        ImageError: the function fails.
    """
    known = read_transform(function)
    if known is not None:
        return known
    moments = stated_moments(function) if normalisation is None else NORMALISATIONS[normalisation]
    return CallablePreprocessing(function, box, moments)
