"""What a class-specific map is asked about: a class, one class against another, or likeness to another picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from vitviz.attention.precision import precise
from vitviz.errors.arguments import integer_or_none
from vitviz.errors.kinds import MethodError
from vitviz.errors.messages import choices, describe, did_you_mean
from vitviz.models.pooling import Output

# A score so near to its maximum has a gradient that is mostly rounding.
NEAR_MAXIMUM = 1e-6
# A message names all classes where there are no more.
FEW_LABELS = 12
NO_CLASSIFIER = "this model has no classifier, so no map can be about a class"


@dataclass(frozen=True)
class Target:
    """A score that the output of a network gives.

    Args:
        name: fit for a caption, such as ``"class dog"``.
        score: what is read of one image to one number.
        reads: what that is, as :meth:`vitviz.VisionTransformer.read` gives it: logits ``"class"``, pooled features
            ``"feature"`` or patches ``"patch width"``.
        maximum: what the score cannot exceed; None where there is no such bound.
    """

    name: str
    score: Callable[[torch.Tensor], torch.Tensor]
    reads: Output = "logits"
    maximum: float | None = None

    def scores(self, outputs: torch.Tensor) -> torch.Tensor:
        """The score of each image, ``"image"``, by what is read of all of them."""
        return torch.stack([self.score(output) for output in outputs])

    def rising_score(self, output: torch.Tensor) -> torch.Tensor:
        """The score of an image whose gradient is wanted.

        Raises:
            MethodError: the score is as high as it can be, so that nothing would raise it.
        """
        score = self.score(output)
        value = float(score.detach())
        if self.maximum is not None and value >= self.maximum - NEAR_MAXIMUM:
            raise MethodError(
                f"{self.name} is {value:.6g} already, the highest there is: no gradient can say what would "
                f"raise it; expected another picture, or occlusion or integrated_gradients"
            )
        return score


@dataclass(frozen=True)
class ClassScore:
    """The logit of a class: logits ``"class"`` to one number. A function of its own could not be pickled."""

    index: int

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        return logits[self.index]


@dataclass(frozen=True)
class ContrastScore:
    """The logit of one class minus that of another."""

    first: int
    second: int

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        return logits[self.first] - logits[self.second]


@dataclass(frozen=True)
class MarginScore:
    """The logit of a class minus the highest of all others."""

    index: int

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        others = torch.cat([logits[: self.index], logits[self.index + 1 :]])
        return logits[self.index] - others.max()


@dataclass(frozen=True, eq=False)
class LikenessScore:
    """The mean cosine between what is read of an image and what was read of another one.

    Args:
        features: of the other image, ``"feature"``, of length 1.
        name: of the target, for messages.
    """

    features: torch.Tensor
    name: str

    def __call__(self, output: torch.Tensor) -> torch.Tensor:
        if output.shape[-1] != len(self.features):
            sizes = f"{len(self.features)} features of the other picture, {output.shape[-1]} of this one"
            raise MethodError(f"{self.name}: {sizes}; expected two pictures encoded by the same model")
        own = F.normalize(precise(output), dim=-1)
        return (own @ self.features.to(own)).mean()


@dataclass(frozen=True)
class ClassDifference:
    """A class against another one, or against the best of all others, before the model is known.

    Args:
        first: by label or number; None for the most probable class.
        second: by label or number; None for the best of all others.
    """

    first: int | str | None = None
    second: int | str | None = None

    def target(self, logits: torch.Tensor, labels: Sequence[str]) -> Target:
        """What it is for the logits ``"class"`` of one image.

        Raises:
            MethodError: the model has no such class, both are the same, or there is no other class.
        """
        first = class_index(self.first, logits, labels)
        name = class_target(first, len(logits), labels).name
        if self.second is None:
            if len(logits) < 2:
                raise MethodError(f"margin of {name}: this model has no other class")
            return Target(f"{name} against the best of the others", MarginScore(first))
        second = class_index(self.second, logits, labels)
        other = class_target(second, len(logits), labels).name
        if first == second:
            raise MethodError(f"contrast of {name} with itself: expected two classes")
        return Target(f"{name} against {other}", ContrastScore(first, second))


TargetChoice = int | str | Target | ClassDifference | None
"""What a map can be asked about: a class by label or number, the most probable one for None, a class against others,
or any other target."""


def contrast(first: int | str | None, second: int | str) -> ClassDifference:
    """One class against another: what speaks for the first and not as much for the second, ``y_first - y_second``.

    ``y`` are the logits, whose difference is the logarithm of the ratio of the two probabilities. The map of a class
    alone also shows what speaks for both. Prabhushankar et al. 2020, "Contrastive Explanations in Neural Networks",
    ask the same question, "why P, rather than Q".

    Args:
        first: by label or number; None for the most probable class.
        second: by label or number.

    Returns:
        A target for any model that has both classes, for every function that takes one.
    """
    if second is None:
        raise MethodError("second = None: expected a class by label or number; margin() takes the best of all others")
    return ClassDifference(first, second)


def margin(first: int | str | None = None) -> ClassDifference:
    """A class against the best of all others: ``y_first - max(y_other)``.

    Crammer & Singer 2001, "On the Algorithmic Implementation of Multiclass Kernel-based Vector Machines":
    positive where the class is the most probable one. Which of the others is the best is found anew in every
    computation, also for a picture without some of its patches.

    Args:
        first: by label or number; the most probable class where it is not given.

    Returns:
        A target for any model with two classes or more, for every function that takes one.
    """
    return ClassDifference(first)


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


def chosen_target(choice: TargetChoice, logits: torch.Tensor, labels: Sequence[str]) -> int | Target:
    """The index of a class as :func:`class_index` finds it; the target of two classes; a target as it is.

    Raises:
        MethodError: as :func:`class_index` and :meth:`ClassDifference.target`.
    """
    if isinstance(choice, ClassDifference):
        return choice.target(logits, labels)
    return choice if isinstance(choice, Target) else class_index(choice, logits, labels)


def as_target(chosen: int | Target, classes: int, labels: Sequence[str] = ()) -> Target:
    """The logit of a class as :func:`class_target` gives it; a target as it is.

    Raises:
        MethodError: as :func:`class_target`.
    """
    return chosen if isinstance(chosen, Target) else class_target(chosen, classes, labels)


@dataclass(frozen=True)
class ClassProbability:
    """The probability of a class, in [0, 1], as :class:`Target` has a score."""

    index: int
    reads: Output = "logits"

    def scores(self, outputs: torch.Tensor) -> torch.Tensor:
        """The probability for each image, ``"image"``, by the logits ``"image class"``."""
        return outputs.float().softmax(-1)[:, self.index]


WatchedScore = Target | ClassProbability


def watched_score(chosen: int | Target, classes: int) -> WatchedScore:
    """What is watched of a target: of a class its probability, in [0, 1]; of a :class:`Target` its score.

    Args:
        chosen: index of a class, or a target.
        classes: how many the network has.

    Raises:
        MethodError: the network has no such class.
    """
    if isinstance(chosen, Target):
        return chosen
    # Raises for an unknown class.
    class_target(chosen, classes)
    return ClassProbability(chosen)


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
    number = integer_or_none(choice)
    if number is not None:
        return number
    known = f": {choices(labels)}" if len(labels) <= FEW_LABELS else ""
    expected = f"expected a label or a number to {len(logits) - 1}{known}"
    if not isinstance(choice, str):
        raise MethodError(f"target {describe(choice)}: {expected}, or a vitviz.Target")
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
