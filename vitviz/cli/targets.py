"""The options for the target of a class-specific map."""

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

OPTION_GROUPS = (("--target", "--against", "--margin"), ("--text",), ("--like", "--like-patch"))
"""Options of one group may be combined, except those of :data:`EXCLUSIVE_OPTIONS`."""
EXCLUSIVE_OPTIONS = {"--against", "--margin"}


def add_target(parser: argparse.ArgumentParser) -> None:
    """Add the options for targets other than a single class."""
    against = "another class: the map shows what raises the score of its own class above the score of this one"
    parser.add_argument("--against", default=None, metavar="CLASS", help=against)
    margin = "compare the map's class with the best of all others"
    parser.add_argument("--margin", action="store_true", help=margin)
    parser.add_argument("--text", default=None, help="what the map is about, for CLIP-type models, in words")
    like = "another image: what makes this one like it, with a classifier or without"
    parser.add_argument("--like", type=Path, default=None, metavar="IMAGE", help=like)
    patch = "a patch of the image of --like, or of this one: what is like it"
    parser.add_argument("--like-patch", type=patch_choice, default=None, metavar="ROW,COLUMN", help=patch)


@dataclass(frozen=True)
class TargetOptions:
    """The target of a map, as given on the command line.

    Args:
        target, against: classes by name or number.
        margin: whether the class is compared with the best of all others.
        text: a text prompt.
        like: path of another image.
        like_patch: row and column of a patch of that image, or of the image itself.

    Raises:
        MethodError: two of them contradict each other.
    """

    target: str | None = None
    against: str | None = None
    margin: bool = False
    text: str | None = None
    like: Path | None = None
    like_patch: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        flags = {f"--{each.name.replace('_', '-')}": getattr(self, each.name) for each in fields(self)}
        used_flags = [flag for flag, value in flags.items() if value is not None and value is not False]
        if not any(set(used_flags) <= set(group) for group in OPTION_GROUPS) or set(used_flags) >= EXCLUSIVE_OPTIONS:
            legal = "; ".join(" ".join(group) for group in OPTION_GROUPS)
            raise MethodError(
                f"{' '.join(used_flags)}: more than one target of the map; expected options of one kind ({legal}), "
                f"and of {' and '.join(sorted(EXCLUSIVE_OPTIONS))} at most one"
            )

    @classmethod
    def of(cls, parameters: dict[str, Any]) -> TargetOptions:
        """Take the options of the target out of the parameters of a method."""
        return cls(**{each.name: parameters.pop(each.name) for each in fields(cls)})

    def choice(self, analysis: Analysis, **settings: Any) -> TargetChoice:
        """The target of the maps of an analysis.

        Args:
            analysis: of the image itself.
            settings: of the analysis of the other image, as :func:`vitviz.analyze` takes them.

        Raises:
            VitvizError: the other image cannot be opened, or the model does not support this target.
        """
        if self.text is not None:
            return open_text_tower(analysis.model).target(self.text)
        if self.like is not None or self.like_patch is not None:
            liked_analysis = analysis if self.like is None else analyze(self.like, analysis.model, **settings)
            return likeness(liked_analysis, self.like_patch)
        if self.against is not None or self.margin:
            return ClassDifference(self.target, self.against)
        return self.target


def patch_choice(text: str) -> tuple[int, int]:
    """The row and column of a patch."""
    row, _, column = (text_part.strip() for text_part in text.partition(","))
    if not (row.isdecimal() and column.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r}: expected ROW,COLUMN, both whole numbers")
    return int(row), int(column)
