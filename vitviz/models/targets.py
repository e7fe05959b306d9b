"""The scores that class-specific maps explain: a class, one class against another, or likeness to another picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import get_args

import torch
import torch.nn.functional as F

from vitviz.attention.precision import precise
from vitviz.errors.arguments import integer_or_none, named_arguments, word
from vitviz.errors.kinds import MethodError
from vitviz.errors.messages import choices, describe, did_you_mean, quote, several
from vitviz.models.pooling import Output
from vitviz.models.probability import PROBABILITIES, class_probabilities

# Closer to its maximum than this, a score's gradient is mostly rounding.
MAXIMUM_MARGIN = 1e-6
# Messages list all classes up to this many.
MAX_LISTED_LABELS = 12
# Of a text that reads as a sentence in captions.
MAX_TEXT_CHARS = 1000
NO_CLASSIFIER = (
    "this model has no classifier, so no map can be about a class; expected a text or another picture in its place, as "
    "model.text('a cat') or vitviz.likeness(analysis), --text or --like"
)


@dataclass(frozen=True)
class Target:
    """A score computed from the output of a network.

    Args:
        name: name in captions, such as ``"class dog"``.
        score: function of one image's output that returns one number.
        reads: the output that it takes, as in :meth:`vitviz.VisionTransformer.read`: logits ``"class"``, pooled
            features ``"feature"`` or patches ``"patch width"``.
        maximum: upper bound of the score; None for no bound.

    Raises:
        MethodError: there is no such output.

    >>> target = vitviz.Target("logit of the first class", lambda logits: logits[0])
    >>> analysis.relevance(target).description
    'Relevance for logit of the first class as the CLS token sees it: layers 0 to 7'
    """

    name: str
    score: Callable[[torch.Tensor], torch.Tensor]
    reads: Output = "logits"
    maximum: float | None = None

    def __post_init__(self) -> None:
        word("reads", self.reads, get_args(Output))

    def score_of(self, output: torch.Tensor) -> torch.Tensor:
        """The score of one image, from its output.

        Raises:
            MethodError: it is not one number in a tensor.
        """
        score = self.score(output)
        if not isinstance(score, torch.Tensor) or score.numel() != 1:
            raise MethodError(
                f"{self.name}: its score is {describe(score)}; expected one number in a tensor, such as logits[3]"
            )
        return score.reshape(())

    def scores(self, outputs: torch.Tensor) -> torch.Tensor:
        """The score of each image, ``"image"``, from the outputs of all of them."""
        return torch.stack([self.score_of(output) for output in outputs])

    def score_below_maximum(self, output: torch.Tensor) -> torch.Tensor:
        """The score of an image, unless it is at its maximum, where no gradient can raise it.

        Raises:
            MethodError: the score is at its maximum, or as of :meth:`score_of`.
        """
        score = self.score_of(output)
        value = float(score.detach())
        if self.maximum is not None and value >= self.maximum - MAXIMUM_MARGIN:
            raise MethodError(
                f"{self.name} is {value:.6g} already, the highest there is: no gradient can say what would "
                f"raise it; expected another picture, or occlusion or integrated_gradients"
            )
        return score


@dataclass(frozen=True)
class ClassScore:
    """The logit of a class: logits ``"class"`` to one number. A class, since a nested function cannot be pickled."""

    index: int

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        return logits[self.index]


@dataclass(frozen=True)
class DifferenceScore:
    """The logit of one class minus that of another, or minus the highest of all others for None."""

    first: int
    second: int | None

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        others = torch.cat([logits[: self.first], logits[self.first + 1 :]])
        return logits[self.first] - (others.max() if self.second is None else logits[self.second])


@dataclass(frozen=True, eq=False)
class LikenessScore:
    """The mean cosine similarity between the output for an image and the features of another image.

    Args:
        features: features of the other image, ``"feature"``, of length 1.
        name: name of the target in messages.
    """

    features: torch.Tensor = field(repr=False)
    name: str

    def __call__(self, output: torch.Tensor) -> torch.Tensor:
        if output.shape[-1] != len(self.features):
            sizes = f"{len(self.features)} features of the other picture, {output.shape[-1]} of this one"
            raise MethodError(f"{self.name}: {sizes}; expected two pictures encoded by the same model")
        normalized = F.normalize(precise(output), dim=-1)
        return (normalized @ self.features.to(normalized)).mean()


@dataclass(frozen=True)
class ClassDifference:
    """A class against another one, or against the best of all others, for any model.

    Args:
        first: label or number; None for the most probable class.
        second: label or number; None for the best of all others.
    """

    first: int | str | None = None
    second: int | str | None = None

    def target(self, logits: torch.Tensor, labels: Sequence[str]) -> Target:
        """The target for the logits ``"class"`` of one image.

        Raises:
            MethodError: the model has no such class, both are the same, or there is no other class.
        """
        first = class_index(self.first, logits, labels)
        name = class_target(first, len(logits), labels).name
        if self.second is None:
            if len(logits) < 2:
                raise MethodError(f"margin of {name}: this model has no other class")
            return Target(f"{name} against the best of the others", DifferenceScore(first, None))
        second = class_index(self.second, logits, labels)
        second_name = class_target(second, len(logits), labels).name
        if first == second:
            raise MethodError(f"contrast of {name} with itself: expected two classes")
        return Target(f"{name} against {second_name}", DifferenceScore(first, second))


TargetChoice = int | str | Target | ClassDifference | None
"""What a map can explain: a class by label or number, the most probable class for None, a class against others, or any
other target."""


@named_arguments(MethodError)
def contrast(first: int | str | Target | None, second: int | str | Target) -> ClassDifference | Target:
    """One class or target against another: what raises the first score above the second, ``y_first - y_second``.

    ``y`` are the logits; with a softmax, their difference is the logarithm of the ratio of the two probabilities. The
    map of a single class also shows what raises both. Prabhushankar et al. 2020, "Contrastive Explanations in Neural
    Networks", ask the same question, "why P, rather than Q".

    Args:
        first: label or number; None for the most probable class; or a target, such as ``model.text("a cat")``.
        second: label or number; a target if the first is one that reads the same output.

    Returns:
        A target for any model that has both classes, accepted by every function that takes one.

    Raises:
        MethodError: the second is missing, or only one of both is a target.

    >>> analysis.relevance(vitviz.contrast("cat", "dog")).description
    'Relevance for class cat against class dog as the CLS token sees it: layers 0 to 7'
    """
    if isinstance(first, Target) and isinstance(second, Target) and first.reads == second.reads:
        return Target(f"{first.name} against {second.name}", partial(_difference, first, second), first.reads)
    if second is None or isinstance(first, Target) or isinstance(second, Target):
        classes = "expected a class by label or number; margin() takes the best of all others"
        raise MethodError(f"second = {describe(second)}: {classes}; or two targets that read the same output")
    return ClassDifference(first, second)


def _difference(first: Target, second: Target, output: torch.Tensor) -> torch.Tensor:
    return first.score(output) - second.score(output)


@named_arguments(MethodError)
def margin(first: int | str | None = None) -> ClassDifference:
    """A class against the best of all others: ``y_first - max(y_other)``.

    Crammer & Singer 2001, "On the Algorithmic Implementation of Multiclass Kernel-based Vector Machines":
    positive if the class is the most probable one. The best of the others is determined anew in every computation, such
    as for a picture without some of its patches.

    Args:
        first: label or number; the most probable class by default.

    Returns:
        A target for any model with two classes or more, accepted by every function that takes one.

    >>> analysis.relevance(vitviz.margin("cat")).description
    'Relevance for class cat against the best of the others as the CLS token sees it: layers 0 to 7'
    """
    return ClassDifference(first)


def class_target(index: int, classes: int, labels: Sequence[str] = ()) -> Target:
    """The logit of a class.

    Args:
        index: number of the class, from 0.
        classes: number of classes of the network.
        labels: names of the classes; without them the target is named by number.

    Raises:
        MethodError: the network has no such class.
    """
    if not classes:
        raise MethodError(f"target {index}: {NO_CLASSIFIER}")
    if not 0 <= index < classes:
        raise MethodError(f"target {index}: this model has classes 0 to {classes - 1}")
    # Labels that are numbers alone begin with "class", too.
    return Target(f"class {labels[index].removeprefix('class ') if labels else index}", ClassScore(index))


def resolve_target(choice: TargetChoice, logits: torch.Tensor, labels: Sequence[str]) -> int | Target:
    """The index of a class as of :func:`class_index`, the target of a class difference, or the target itself.

    Raises:
        MethodError: as :func:`class_index` and :meth:`ClassDifference.target`.
    """
    if isinstance(choice, ClassDifference):
        return choice.target(logits, labels)
    return choice if isinstance(choice, Target) else class_index(choice, logits, labels)


def as_target(choice: int | Target, classes: int, labels: Sequence[str] = ()) -> Target:
    """The target of a class index, as of :func:`class_target`, or the target itself.

    Raises:
        MethodError: as :func:`class_target`.
    """
    return choice if isinstance(choice, Target) else class_target(choice, classes, labels)


@dataclass(frozen=True)
class ClassProbability:
    """The probability of a class, in [0, 1], with the interface of :class:`Target`.

    Args:
        index: of the class.
        function: a name in :data:`vitviz.models.probability.PROBABILITIES`.
    """

    index: int
    function: str
    reads: Output = "logits"

    def scores(self, outputs: torch.Tensor) -> torch.Tensor:
        """The probability for each image, ``"image"``, from the logits ``"image class"``."""
        return class_probabilities(outputs, self.function)[:, self.index]


EffectScore = Target | ClassProbability


def effect_score(choice: int | Target, classes: int, function: str) -> EffectScore:
    """The score in which to measure an effect: a class's probability, in [0, 1], or a :class:`Target`'s own score.

    Args:
        choice: index of a class, or a target.
        classes: number of classes of the network.
        function: ``config.probability`` of the network; with ``"none"``, the score of a class is its output.

    Raises:
        MethodError: the network has no such class.
    """
    # Raises for an unknown class.
    target = as_target(choice, classes)
    if isinstance(choice, Target) or PROBABILITIES[function] is None:
        return target
    return ClassProbability(choice, function)


def class_index(choice: int | str | None, logits: torch.Tensor, labels: Sequence[str]) -> int:
    """The index of a class by number or, as :func:`class_of`, by name; that of the most probable class for None.

    Raises:
        MethodError: the model has no classifier, no class of this name, or several.
    """
    if not len(logits):
        raise MethodError(f"target {choice!r}: {NO_CLASSIFIER}")
    if choice is None:
        return int(logits.argmax())
    number = integer_or_none(choice)
    if number is not None:
        return number
    if not isinstance(choice, str):
        each = f"; of several, a map each: [analysis.relevance(target) for target in {describe(choice)}]"
        expected = f"{_expected(labels)}, or a vitviz.Target{each * (describe(choice)[0] in '[(')}"
        raise MethodError(f"target {describe(choice)}: {expected}")
    return class_of(choice, labels)


def class_of(text: str, labels: Sequence[str], subject: str = "target") -> int:
    """The index of a class by its name or, if none is named so, by its number.

    A name is a whole label, the first of the synonyms that a label lists between commas, ``"label (number)"`` of a
    label that several have, or in any case a label, its first synonym, or any other or several of them.

    Args:
        text: the name or the number.
        labels: of all classes.
        subject: what the text is, at the beginning of the message.

    Raises:
        MethodError: no class is called so, or several are.
    """
    folded = text.strip().casefold()
    tests: tuple[Callable[[int, str], bool], ...] = (
        lambda index, label: label == text,
        lambda index, label: _names(label)[0] == text,
        lambda index, label: label.casefold() == folded,
        lambda index, label: f"{label} ({index})" == text,
        lambda index, label: _names(label)[0].casefold() == folded,
        lambda index, label: set(_names(folded)) <= set(_names(label.casefold())),
        lambda index, label: str(index) == folded,
    )
    for test in tests:
        matches = [index for index, label in enumerate(labels) if test(index, label)]
        if len(matches) == 1:
            return matches[0]
        if matches:
            numbers = several([str(index) for index in matches])
            found = f"{len(matches)} classes of this name, numbers {numbers}"
            raise MethodError(f"{subject} {quote(text)}: this model has {found}; {_expected(labels)}")
    near = did_you_mean(text, (name for label in labels for name in _names(label)))
    raise MethodError(f"{subject} {quote(text)}: this model has no such class; {_expected(labels)}{near}")


def _expected(labels: Sequence[str]) -> str:
    listed = f": {choices(labels)}" if len(labels) <= MAX_LISTED_LABELS else ""
    return f"expected a label or a number to {len(labels) - 1}{listed}"


def _names(label: str) -> list[str]:
    return [name.strip() for name in label.split(",")]
