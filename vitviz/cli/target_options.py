"""The target of a class-specific map, as the options of the command state it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any

from vitviz.analysis.analysis import Analysis
from vitviz.analysis.encoder import analyze
from vitviz.analysis.likeness import likeness
from vitviz.errors.kinds import MethodError
from vitviz.errors.messages import choices
from vitviz.models.targets import ClassDifference, TargetChoice

OPTION_GROUPS = (("target", "against"), ("target", "margin"), ("text",), ("like", "like_patch"))
"""Options of one group may be combined."""


def take_target(parameters: dict[str, Any]) -> dict[str, Any]:
    """Take the options of the target out of the parameters of a method; those that are given.

    Raises:
        MethodError: two of them contradict each other.
    """
    options = {name: parameters.pop(name) for name in dict.fromkeys(chain(*OPTION_GROUPS))}
    given = {name: value for name, value in options.items() if value is not None and value is not False}
    if not any(given.keys() <= set(group) for group in OPTION_GROUPS):
        raise MethodError(
            f"{_flags(given)}: more than one target of the map; expected options of one kind: "
            f"{choices(map(_flags, OPTION_GROUPS))}"
        )
    return given


def target_of(given: dict[str, Any], analysis: Analysis, **settings: Any) -> TargetChoice:
    """The target of the maps of an analysis.

    Args:
        given: as :func:`take_target` gives it.
        analysis: of the image itself.
        settings: of the analysis of the other image, as :func:`vitviz.analyze` takes them.

    Raises:
        VitvizError: the other image cannot be opened, or the model does not support this target.
    """
    if "text" in given:
        return analysis.model.text(given["text"])
    if "like" in given or "like_patch" in given:
        liked = analyze(given["like"], analysis.model, **settings) if "like" in given else analysis
        return likeness(liked, given.get("like_patch"))
    if "against" in given or "margin" in given:
        return ClassDifference(given.get("target"), given.get("against"))
    return given.get("target")


def _flags(names: Iterable[str]) -> str:
    return " ".join(f"--{name.replace('_', '-')}" for name in names)
