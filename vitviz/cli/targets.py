"""The target of a class-specific map, as the options of the command state it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from vitviz.analysis.analysis import Analysis
from vitviz.analysis.encoder import analyze
from vitviz.analysis.likeness import likeness
from vitviz.errors.kinds import MethodError
from vitviz.models.targets import ClassDifference, TargetChoice

OPTION_GROUPS = (("--target", "--against", "--margin"), ("--text",), ("--like", "--like-patch"))
"""Options of one group may be combined, except those of :data:`EXCLUSIVE_OPTIONS`."""
EXCLUSIVE_OPTIONS = {"--against", "--margin"}


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
            return analysis.model.text(self.text)
        if self.like is not None or self.like_patch is not None:
            liked_analysis = analysis if self.like is None else analyze(self.like, analysis.model, **settings)
            return likeness(liked_analysis, self.like_patch)
        if self.against is not None or self.margin:
            return ClassDifference(self.target, self.against)
        return self.target
