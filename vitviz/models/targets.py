"""What a class-specific map is asked about."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from vitviz.errors.arguments import whole_or_none
from vitviz.errors.kinds import MethodError
from vitviz.errors.messages import described, did_you_mean

NO_CLASSIFIER = "this model has no classifier, so that no map can be about a class"


@dataclass(frozen=True)
class Target:
    """A score that the output of a network gives.

    Args:
        name: fit for a caption, such as ``"class dog"``.
        score: logits ``"class"`` to one number.
    """

    name: str
    score: Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class ClassScore:
    """The logit of a class: logits ``"class"`` to one number. A function of its own could not be pickled."""

    index: int

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        return logits[self.index]


def class_target(index: int, classes: int, labels: Sequence[str] = ()) -> Target:
    """The logit of a class.

    Args:
        index: of the class, counted from 0.
        classes: how many the network has.
        labels: of the classes, where they are known; otherwise the name tells the number.

    Raises:
        MethodError: the network has no such class.
    """
    if not classes:
        raise MethodError(f"target {index}: {NO_CLASSIFIER}")
    if not 0 <= index < classes:
        raise MethodError(f"target {index}: this model has classes 0 to {classes - 1}")
    return Target(f"class {labels[index] if labels else index}", ClassScore(index))


def chosen_target(choice: int | str | Target | None, logits: torch.Tensor, labels: Sequence[str]) -> int | Target:
    """The index of a class as :func:`class_index` finds it; a target as it is.

    Raises:
        MethodError: as :func:`class_index`.
    """
    return choice if isinstance(choice, Target) else class_index(choice, logits, labels)


def as_target(chosen: int | Target, classes: int, labels: Sequence[str] = ()) -> Target:
    """The logit of a class as :func:`class_target` gives it; a target as it is.

    Raises:
        MethodError: as :func:`class_target`.
    """
    return chosen if isinstance(chosen, Target) else class_target(chosen, classes, labels)


def watching(chosen: int | Target, classes: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """What is watched of a target: logits ``"image class"`` to one number for each, ``"image"``.

    Of a class its probability, in [0, 1]; of a :class:`Target` its score.

    Args:
        chosen: index of a class, or a target.
        classes: how many the network has.

    Raises:
        MethodError: the network has no such class.
    """
    if isinstance(chosen, Target):
        return lambda logits: torch.stack([chosen.score(each) for each in logits.float()])
    # Raises for an unknown class.
    class_target(chosen, classes)
    return lambda logits: logits.float().softmax(-1)[:, chosen]


def class_index(choice: int | str | None, logits: torch.Tensor, labels: Sequence[str]) -> int:
    """The index of a class by number or label; of the most probable class where nothing is wanted.

    A label is found as it is written, or by the first of its synonyms in any case.

    Raises:
        MethodError: the model has no classifier, no class of this label, or several.
    """
    if not len(logits):
        raise MethodError(f"target {choice!r}: {NO_CLASSIFIER}")
    if choice is None:
        return int(logits.argmax())
    number = whole_or_none(choice)
    if number is not None:
        return number
    expected = f"expected a label or a number to {len(logits) - 1}"
    if not isinstance(choice, str):
        raise MethodError(f"target {described(choice)}: {expected}, or a vitviz.models.targets.Target")
    found = [index for index, label in enumerate(labels) if label == choice]
    found = found or [index for index, label in enumerate(labels) if _short(label) == _short(choice)]
    if len(found) != 1:
        found_text = (
            f"{len(found)} classes of this name, numbers {', '.join(map(str, found))}" if found else "no such class"
        )
        near = "" if found else did_you_mean(choice, map(_short, labels))
        raise MethodError(f"target {choice!r}: this model has {found_text}; {expected}{near}")
    return found[0]


def _short(label: str) -> str:
    return label.partition(",")[0].strip().lower()
