"""The options that say what a class-specific map is about."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from vitviz.analysis.analysis import Analysis
from vitviz.analysis.encoder import analyze
from vitviz.analysis.likeness import likeness
from vitviz.errors.kinds import MethodError
from vitviz.models.targets import ClassDifference, TargetChoice
from vitviz.weights.text_tower import open_text_tower

KINDS = (("--target", "--against", "--margin"), ("--text",), ("--like", "--like-patch"))
"""The options that may stand together, but for :data:`EITHER`."""
EITHER = {"--against", "--margin"}


def add_target(parser: argparse.ArgumentParser) -> None:
    """What the map is about, where it is not the most probable class or that of ``--target``."""
    against = "a class that the map's own is compared with: what speaks for the one and not as much for the other"
    parser.add_argument("--against", type=class_choice, default=None, metavar="CLASS", help=against)
    margin = "compare the map's class with the best of all others"
    parser.add_argument("--margin", action="store_true", help=margin)
    parser.add_argument("--text", default=None, help="what the map is about, for CLIP-type models, in words")
    like = "another image: what makes this one like it, with a classifier or without"
    parser.add_argument("--like", type=Path, default=None, metavar="IMAGE", help=like)
    patch = "a patch of the image of --like, or of this one: what is like it"
    parser.add_argument("--like-patch", type=patch_choice, default=None, metavar="ROW,COLUMN", help=patch)


@dataclass(frozen=True)
class TargetOptions:
    """What the command line says that a map is about.

    Args:
        target, against: classes by label or number.
        margin: whether the class is compared with the best of all others.
        text: in words.
        like: path of another image.
        like_patch: row and column of a patch of that, or of the image itself.

    Raises:
        MethodError: two of them contradict each other.
    """

    target: int | str | None = None
    against: int | str | None = None
    margin: bool = False
    text: str | None = None
    like: Path | None = None
    like_patch: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        flags = {f"--{each.name.replace('_', '-')}": getattr(self, each.name) for each in fields(self)}
        given = [flag for flag, value in flags.items() if value is not None and value is not False]
        if not any(set(given) <= set(kind) for kind in KINDS) or set(given) >= EITHER:
            legal = "; ".join(" ".join(kind) for kind in KINDS)
            raise MethodError(
                f"{' '.join(given)}: what the map is about, said twice; expected options of one kind ({legal}), "
                f"and of {' and '.join(sorted(EITHER))} at most one"
            )

    @classmethod
    def of(cls, parameters: dict[str, Any]) -> TargetOptions:
        """The options among those of a method, which are taken out of them."""
        return cls(**{each.name: parameters.pop(each.name) for each in fields(cls)})

    def choice(self, analysis: Analysis, **settings: Any) -> TargetChoice:
        """What the maps of an analysis are about.

        Args:
            analysis: of the image itself.
            settings: how the other image is analysed, as :func:`vitviz.analyze` takes them.

        Raises:
            VitvizError: the other image cannot be opened, or the model cannot have this target.
        """
        if self.text is not None:
            return open_text_tower(analysis.model).target(self.text)
        if self.like is not None or self.like_patch is not None:
            other = analysis if self.like is None else analyze(self.like, analysis.model, **settings)
            return likeness(other, self.like_patch)
        if self.against is not None or self.margin:
            return ClassDifference(self.target, self.against)
        return self.target


def class_choice(text: str) -> int | str:
    """A class by its number, or by its label."""
    return int(text) if text.isdecimal() else text


def patch_choice(text: str) -> tuple[int, int]:
    """The row and column of a patch."""
    row, _, column = (part.strip() for part in text.partition(","))
    if not (row.isdecimal() and column.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r}: expected ROW,COLUMN, both whole numbers")
    return int(row), int(column)
