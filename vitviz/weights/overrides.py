"""Facts that a user may state about a checkpoint because its file does not."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from vitviz.errors.arguments import integer, number, word
from vitviz.errors.kinds import CheckpointError
from vitviz.errors.messages import did_you_mean, plain, quote
from vitviz.models.activations import ACTIVATIONS
from vitviz.models.config import FINAL_NORMS, is_positive
from vitviz.models.pooling import POOLINGS
from vitviz.models.positions import POSITION_RULES
from vitviz.models.probability import PROBABILITIES
from vitviz.weights.metadata.normalisations import NORMALISATIONS
from vitviz.weights.metadata.sides import both_sides

CHOICES: dict[str, tuple[str, ...]] = {
    "activation": tuple(ACTIVATIONS),
    "pooling": tuple(POOLINGS),
    "final_norm": FINAL_NORMS,
    "position_rule": tuple(POSITION_RULES),
    "normalisation": tuple(NORMALISATIONS),
    "probability": tuple(PROBABILITIES),
}
SIZES = ("image_size", "patch_size")
OVERRIDES = ("heads", *SIZES, *CHOICES, "norm_epsilon", "architecture", "labels")


@dataclass(frozen=True)
class Stated:
    """What the user states about a checkpoint.

    Args:
        facts: that its file does not state, by the names in :data:`OVERRIDES`; sizes are (height, width).
        family: name of its layout.
        ignore: patterns of keys to leave out.
    """

    facts: Mapping[str, Any] = field(default_factory=dict)
    family: str | None = None
    ignore: tuple[str, ...] = ()

    @classmethod
    def of(cls, family: str | None = None, ignore: Sequence[str] = (), **facts: Any) -> Stated:
        """The user's arguments, checked as far as possible without the checkpoint; None for nothing stated.

        Raises:
            CheckpointError: there is no such fact, or a value is illegal.
        """
        if isinstance(ignore, str) or not all(isinstance(pattern, str) and pattern for pattern in ignore):
            raise CheckpointError(f"ignore = {quote(ignore)}: expected a list of patterns of keys, such as ['head.*']")
        stated = {fact: _checked(fact, value) for fact, value in facts.items() if value is not None}
        return cls(stated, family, tuple(ignore))


NOTHING = Stated()


def _checked(fact: str, value: Any) -> Any:
    if fact in CHOICES:
        return word(fact, value, CHOICES[fact], CheckpointError)
    if fact == "heads":
        return integer(fact, value, 1, CheckpointError)
    if fact == "norm_epsilon":
        return number(fact, value, is_positive, "a finite number above 0", CheckpointError)
    if fact not in READERS:
        facts = f"of a checkpoint you can pass {', '.join(OVERRIDES)}"
        raise CheckpointError(f"{plain(fact)} = {quote(value)}: {facts}{did_you_mean(fact, OVERRIDES)}")
    read, expected = READERS[fact]
    if (legal := read(value)) is None:
        raise CheckpointError(f"{fact} = {quote(value)}: expected {expected}")
    return legal


def names_of_labels(labels: Any) -> tuple[str, ...] | None:
    """The names of classes in a list, or in a dict from their numbers; None if these are no names from 0 on."""
    names = [labels.get(number) for number in range(len(labels))] if isinstance(labels, Mapping) else labels
    if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(each, str) for each in names):
        return None
    return tuple(names)


# What reads a fact that the user states, None for an illegal one, and what is expected.
READERS: dict[str, tuple[Callable[[Any], Any], str]] = {
    **dict.fromkeys(SIZES, (both_sides, "one or two whole numbers above 0 (height, width)")),
    "labels": (
        names_of_labels,
        "a name for each class from 0 on, or () where the outputs of a module are no classes",
    ),
    "architecture": (
        lambda value: value if isinstance(value, str) and value else None,
        "timm's name of one, such as 'vit_base_patch16_224'",
    ),
}


def split_overrides(text: str) -> list[str]:
    """The facts in a text such as ``"heads=6, labels=healthy, rust"``: what has no ``=`` belongs to the one before."""
    return [part for part in re.split(r"[\s,]*,(?=[^,=]+=)", text.strip(", ")) if part]


def parse_overrides(texts: Sequence[str]) -> dict[str, Any]:
    """Facts from texts such as ``"heads=6"``, ``"image_size=224x448"``, ``"pooling=mean"``, ``"labels=healthy,rust"``.

    ``"ignore=head.*"``, which may be repeated, leaves out keys.

    Raises:
        CheckpointError: a text does not have this form, or :class:`Stated` refuses it.
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
    stated = Stated.of(ignore=patterns, **overrides)
    return {**stated.facts, **({"ignore": stated.ignore} if patterns else {})}


def _parse_value(fact: str, value: str) -> Any:
    """The value of a fact in a text; the text itself where it is no number, which is refused with all other values."""
    with suppress(ValueError):
        return PARSERS.get(fact, str)(value)
    return value


def _parse_sides(text: str) -> int | list[int]:
    sides = [int(side) for side in text.replace("×", "x").split("x")]
    return sides[0] if len(sides) == 1 else sides


PARSERS: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(SIZES, _parse_sides),
    "heads": int,
    "norm_epsilon": float,
    "labels": lambda text: [name.strip() for name in text.split(",") if name.strip()],
}
