"""The preprocessing of a module, from its attributes or from the user."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from PIL import Image
from torch import nn

from vitviz.errors.arguments import word
from vitviz.errors.kinds import CheckpointError, ConfigError, ImageError
from vitviz.errors.messages import choices, describe
from vitviz.images.callable_preprocessing import COMMON, GREYS, CallablePreprocessing, bordered
from vitviz.images.measuring import noise
from vitviz.images.preprocessing import ROUNDINGS, Fit, Preprocessing
from vitviz.images.resizing import BACKENDS
from vitviz.weights.metadata.normalisations import NORMALISATIONS
from vitviz.weights.metadata.open_clip_transform import read_open_clip_transform
from vitviz.weights.metadata.rules import PreprocessingRule, fraction_of
from vitviz.weights.metadata.settings import Settings
from vitviz.weights.metadata.sidecars import Sidecars
from vitviz.weights.metadata.timm_transform import STATED_ENTRIES, read_timm_transform
from vitviz.weights.modules.missing import NotStated

Size = tuple[int, int]
EXPECTED = (
    "expected preprocessing = a vitviz.Preprocessing, a transform of torchvision, timm, open_clip or albumentations "
    "(the transforms() of torchvision's weights), an image processor of transformers, timm's data_config, or any "
    "function from a PIL image to a tensor"
)
# Sources of configurations that timm read from a file.
TIMM_FILES = ("hf-hub", "local-dir")
# Sizes of the test pictures at which a function is compared. Some limit the longer side, or treat large pictures
# otherwise. The small ones come first, as they tell most candidates apart.
TEST_SIZES = (
    *((61, 37), (37, 61), (301, 203), (211, 400), (256, 256), (2, 3)),
    *((90, 9), (9, 90), (4200, 420), (420, 4200), (2100, 1600)),
)
# Of test pictures of little contrast with a plain border, which some functions trim.
COLOURS = ("red", "lime", "blue", "yellow", "cyan", "magenta")
# Of values from 0 to 1; one level of 256 is 0.004.
EQUAL = 5e-6


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
        if len(stated.mean) != channels:
            raise ConfigError(f"preprocessing makes inputs of {len(stated.mean)} channels; the module takes {channels}")
        return stated, "preprocessing" if type(stated) is Preprocessing else f"{stated}, run as it is", False
    rule: PreprocessingRule | None = None
    if isinstance(stated, PreprocessingRule):
        rule = stated
    elif stated is not None:
        rule = _rule_of_data_config(stated, channels)
    else:
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


def recognise(function: Callable[..., Any]) -> Preprocessing:
    """The preprocessing of a function: vitviz's own if it gives the same pixels for all test pictures.

    Else it is the function itself. Only vitviz's own has other resolutions and fits, and can be written to a file.

    Raises:
        ConfigError: as :class:`CallablePreprocessing`.
    """
    own = CallablePreprocessing(function)
    tinted = [Image.blend(bordered(colour), Image.new("RGB", COMMON, colour), 0.6) for colour in (*GREYS, *COLOURS)]
    expected = []
    for picture in (*itertools.starmap(noise, TEST_SIZES), *tinted, noise(*COMMON)):
        # It may refuse a picture, such as one that is smaller than its crop.
        with suppress(ImageError):
            expected.append((picture, own.apply(picture)))
    box = own.locate(picture).box
    for candidate, patch in _candidates(own, box, {tuple(pixels.shape[1:]) for _, pixels in expected}):
        if all(_is_same(candidate, patch, *each) for each in expected):
            found = candidate.prepare(picture, patch, patch).geometry.box
            if max(abs(ours - theirs) for ours, theirs in zip(found, box, strict=True)) < 0.01 * max(COMMON):
                return candidate
    return own


def _candidates(
    own: CallablePreprocessing, box: tuple[float, float, float, float], shapes: set[tuple[int, ...]]
) -> Iterator[tuple[Preprocessing, int]]:
    """Preprocessing that may be the same as a function, with a side of patches that fits its inputs.

    Args:
        own: the function.
        box: of its input on pictures of the size :data:`COMMON`.
        shapes: height and width of its inputs for test pictures.
    """
    across, down = (box[2] - box[0]) / COMMON[0], (box[3] - box[1]) / COMMON[1]
    if max(across, down) > 1:
        return
    # On pictures of this size, both fits show the same part of inputs of their aspect ratio alone.
    fits: list[Fit] = ["squash"] * (abs(across - down) < 0.01)
    fits += ["crop"] * (abs(across / down * COMMON[0] / COMMON[1] / (own.width / own.height) - 1) < 0.02)
    plain, patch = Preprocessing(own.height, own.width, own.mean, own.std), 1
    if len(shapes) > 1:
        fits, patch = ["native"], math.gcd(*itertools.chain(*shapes))
    for fit, backend, rounding, side in itertools.product(fits, BACKENDS, ROUNDINGS, {own.height, own.width}):
        fraction = fraction_of(side, max(side, round(side / max(across, down))))
        fractions: dict[str, Any] = {} if fit == "native" else {f"{fit}_fraction": fraction}
        for interpolation in BACKENDS[backend]:
            how = replace(plain, fit=fit, interpolation=interpolation, rounding=rounding, backend=backend)
            yield replace(how, **fractions), patch


def _is_same(candidate: Preprocessing, patch: int, picture: Image.Image, expected: torch.Tensor) -> bool:
    """Whether a preprocessing gives a picture the expected input, as exactly as float32 has it."""
    if candidate.input_size(picture, patch, patch) != tuple(expected.shape[1:]):
        return False
    difference = (candidate.prepare(picture, patch, patch).pixels[0] - expected).abs().amax((1, 2))
    return bool((difference <= EQUAL * expected.new_tensor(candidate.std).reciprocal()).all())


def _timm_rule(values: Mapping[str, Any], source: str, channels: int) -> PreprocessingRule | None:
    rule = read_timm_transform(as_sidecars(config={"pretrained_cfg": _as_json(values)}), channels)
    return None if rule is None else replace(rule, source=source)


def _as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values as a JSON file would have them."""
    return {name: _json_value(value) for name, value in values.items()}


def _json_value(value: Any) -> Any:
    return [_json_value(each) for each in value] if isinstance(value, tuple | list) else value
