"""Which methods say what a model depends on: areas of faithfulness over many images, with their confidence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from vitviz.analysis import analyze
from vitviz.attribution import METHODS
from vitviz.errors import DataError, MethodError
from vitviz.faithfulness import METRICS, RANDOM, faithfulness
from vitviz.training.data import SUFFIXES
from vitviz.weights import Model

# Of a normal distribution, 95 % lie within so many standard deviations.
CONFIDENCE = 1.96

Areas = Mapping[str, Mapping[str, torch.Tensor]]
"""By metric and method, that of every image: ``"image"``."""


@dataclass(frozen=True)
class Interval:
    """A mean and half the width of its 95 % confidence interval."""

    mean: float
    margin: float

    @classmethod
    def of(cls, values: torch.Tensor) -> Interval:
        """Of at least two values, ``"image"``."""
        return cls(float(values.mean()), CONFIDENCE * float(values.std()) / len(values) ** 0.5)

    @property
    def sign(self) -> int:
        """1 or -1 where zero is outside the interval, on its lower or its upper side; else 0."""
        return (self.mean > self.margin) - (self.mean < -self.margin)


def methods_for(model: Model) -> list[str]:
    """The methods that can serve a model, by name.

    Raises:
        MethodError: the model has no classifier, without which there is no probability to watch.
    """
    found = [name for name, method in METHODS.items() if method.refusal(model.network.config) is None]
    if not model.labels:
        raise MethodError(f"{model.name} has no classifier: no probability tells how faithful a map is")
    return found


def find_images(folder: Path, count: int, seed: int = 0) -> list[Path]:
    """So many images from anywhere in a folder, by chance but the same for the same seed.

    Raises:
        DataError: there are not so many.
    """
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
    if len(paths) < count or count < 2:
        raise DataError(f"{folder}: {len(paths)} images in it; expected at least {max(2, count)}")
    chosen = torch.randperm(len(paths), generator=torch.Generator().manual_seed(seed))[:count]
    return [paths[index] for index in sorted(chosen.tolist())]


def areas(
    model: Model,
    images: Iterable[Path],
    metrics: tuple[str, ...] = tuple(METRICS),
    report: Callable[[int], None] | None = None,
) -> dict[str, dict[str, torch.Tensor]]:
    """The area of every method and of random orders, with default parameters, for each image's most probable class.

    Args:
        model: with a classifier.
        images: files.
        metrics: by name in :data:`vitviz.faithfulness.METRICS`.
        report: is told how many images are done, after each.

    Raises:
        MethodError: the model has no classifier.
        ImageError: an image cannot be opened.
    """
    methods = methods_for(model)
    rows: list[dict[str, dict[str, float]]] = []
    for number, path in enumerate(images):
        analysis = analyze(path, model)
        maps = {name: analysis.map(name).values for name in methods}
        target = int(analysis.logits.argmax())
        curves = faithfulness(model.network, analysis.prepared.pixels, maps, target, metrics, seed=number)
        rows.append({metric: {name: curve.area for name, curve in each.items()} for metric, each in curves.items()})
        if report is not None:
            report(number + 1)
    names = [*methods, RANDOM]
    return {metric: {name: torch.tensor([row[metric][name] for row in rows]) for name in names} for metric in metrics}


def verdicts(found: Areas, metric: str) -> dict[str, int]:
    """Of every method: 1 where it is better than random orders on the same images, -1 where worse, 0 where unclear."""
    better = -1 if METRICS[metric].lower_is_better else 1
    chance = found[metric][RANDOM]
    return {name: better * Interval.of(area - chance).sign for name, area in found[metric].items() if name != RANDOM}


def table(found: Areas) -> str:
    """The areas in Markdown: mean and confidence; ▲ and ▼ where a method is better or worse than random orders."""
    marks = {1: " ▲", 0: "", -1: " ▼"}
    judged = {metric: verdicts(found, metric) for metric in found}
    heads = [f"{METRICS[metric].title} ({'↓' if METRICS[metric].lower_is_better else '↑'})" for metric in found]
    lines = [f"| method | {' | '.join(heads)} |", f"| --- |{' --- |' * len(heads)}"]
    for name in next(iter(found.values())):
        cells = []
        for metric, each in found.items():
            interval = Interval.of(each[name])
            cells.append(f"{interval.mean:.3f} ± {interval.margin:.3f}{marks[judged[metric].get(name, 0)]}")
        title = METHODS[name].title if name in METHODS else name
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)
