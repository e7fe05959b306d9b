"""Facts that a user may state about a checkpoint because its file does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vitviz.errors.kinds import CheckpointError
from vitviz.errors.messages import choices, did_you_mean, plain, quote
from vitviz.models.activations import ACTIVATIONS
from vitviz.models.config import FINAL_NORMS, is_positive
from vitviz.models.pooling import POOLINGS
from vitviz.models.positions import POSITION_RULES
from vitviz.models.probability import PROBABILITIES
from vitviz.weights.metadata.normalisations import NORMALISATIONS

CHOICES: dict[str, tuple[str, ...]] = {
    "activation": tuple(ACTIVATIONS),
    "pooling": tuple(POOLINGS),
    "final_norm": FINAL_NORMS,
    "position_rule": tuple(POSITION_RULES),
    "normalisation": tuple(NORMALISATIONS),
    "probability": tuple(PROBABILITIES),
}
SIZES = ("image_size", "patch_size")
OVERRIDES = ("heads", *SIZES, *CHOICES, "norm_epsilon", "architecture")


def check_overrides(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The user's facts, checked as far as possible without the checkpoint; sizes become (height, width).

    Raises:
        CheckpointError: there is no such fact, or the value is illegal.
    """
    checked = dict(overrides)
    for fact, value in overrides.items():
        if fact not in OVERRIDES:
            legal = f"of a checkpoint you can say {', '.join(OVERRIDES)}"
            raise CheckpointError(f"{plain(fact)} = {quote(value)}: {legal}{did_you_mean(fact, OVERRIDES)}")
        if fact in CHOICES and value not in CHOICES[fact]:
            raise CheckpointError(f"{plain(fact)} = {quote(value)}: expected {choices(CHOICES[fact])}")
        if fact == "heads" and not _is_count(value):
            raise CheckpointError(f"heads = {quote(value)}: expected a whole number above 0")
        if fact == "norm_epsilon" and not is_positive(value):
            raise CheckpointError(f"norm_epsilon = {quote(value)}: expected a finite number above 0")
        if fact == "architecture" and not (isinstance(value, str) and value):
            raise CheckpointError(
                f"architecture = {quote(value)}: expected timm's name of one, such as 'vit_base_patch16_224'"
            )
        if fact in SIZES:
            pair = (value, value) if _is_count(value) else value
            if not isinstance(pair, tuple | list) or len(pair) != 2 or not all(map(_is_count, pair)):
                raise CheckpointError(
                    f"{plain(fact)} = {quote(value)}: expected one or two whole numbers above 0 (height, width)"
                )
            checked[fact] = (pair[0], pair[1])
    return checked


def check_patterns(patterns: Sequence[str]) -> tuple[str, ...]:
    """Patterns of keys and settings to ignore, checked.

    Raises:
        CheckpointError: a pattern is no text, or empty.
    """
    if isinstance(patterns, str) or not all(isinstance(pattern, str) and pattern for pattern in patterns):
        raise CheckpointError(f"ignore = {quote(patterns)}: expected a list of patterns of keys, such as ['head.*']")
    return tuple(patterns)


def parse_overrides(texts: Sequence[str]) -> dict[str, Any]:
    """Facts from texts such as ``"heads=6"``, ``"image_size=224"``, ``"image_size=224x448"``, ``"pooling=mean"``.

    ``"ignore=head.*"``, which may be repeated, leaves out keys and settings.

    Raises:
        CheckpointError: a text does not have this form, or :func:`check_overrides` refuses it.
    """
    overrides: dict[str, Any] = {}
    patterns: list[str] = []
    for text in texts:
        fact, equals, value = (side.strip() for side in text.partition("="))
        if not (fact and equals and value):
            raise CheckpointError(f"{quote(text)}: expected NAME=VALUE, such as heads=6")
        if fact == "ignore":
            patterns.append(value)
        else:
            overrides[fact] = _parse_value(fact, value)
    return {**check_overrides(overrides), **({"ignore": check_patterns(patterns)} if patterns else {})}


def _parse_value(fact: str, value: str) -> Any:
    try:
        if fact == "heads":
            return int(value)
        if fact == "norm_epsilon":
            return float(value)
        if fact in SIZES:
            sides = [int(side) for side in value.replace("×", "x").split("x")]
            return sides[0] if len(sides) == 1 else tuple(sides)
    except ValueError:
        raise CheckpointError(f"{plain(fact)} = {quote(value)}: expected a number") from None
    return value


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
