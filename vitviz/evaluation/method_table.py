"""Methods over many images: how faithful their maps are, how they change with shuffled weights, how sure that is."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vitviz.analysis.encoder import analyze
from vitviz.attribution import METHODS
from vitviz.errors.kinds import DataError, MethodError
from vitviz.evaluation.randomization import cascade, method_names, steps
from vitviz.images.opening import FILE_SUFFIXES
from vitviz.metrics.faithfulness import METRICS, RANDOM, faithfulness
from vitviz.weights import Model

# 95 % of a normal distribution lie within this many standard deviations.
STANDARD_DEVIATIONS_95 = 1.96

Areas = Mapping[str, Mapping[str, torch.Tensor]]
"""By metric and method, that of every image: ``"image"``."""


@dataclass(frozen=True)
class Interval:
    """A mean and half the width of its 95 % confidence interval."""

    mean: float
    margin: float

    @classmethod
    def of(cls, values: torch.Tensor) -> Interval:
        """The interval of at least two values, ``"image"``."""
        return cls(float(values.mean()), STANDARD_DEVIATIONS_95 * float(values.std()) / len(values) ** 0.5)

    @property
    def sign(self) -> int:
        """1 or -1 where zero is outside the interval, on its lower or its upper side; else 0."""
        return (self.mean > self.margin) - (self.mean < -self.margin)


def methods_for(model: Model, methods: Iterable[str] | None = None) -> list[str]:
    """The chosen methods, or all that can serve a model, by name.

    Raises:
        MethodError: the model has no classifier, without which there is no probability to watch; or there is no such
            method, or it cannot serve the model.
    """
    if not model.labels:
        raise MethodError(f"{model.name} has no classifier: no probability tells how faithful a map is")
    return method_names(model, methods)


def find_images(folder: Path, count: int, seed: int = 0) -> list[Path]:
    """So many images from anywhere in a folder, by chance but the same for the same seed.

    Raises:
        DataError: there are not so many.
    """
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in FILE_SUFFIXES and path.is_file())
    if len(paths) < count or count < 2:
        raise DataError(f"{folder}: {len(paths)} images in it; expected at least {max(2, count)}")
    chosen = torch.randperm(len(paths), generator=torch.Generator().manual_seed(seed))[:count]
    return [paths[index] for index in sorted(chosen.tolist())]


def areas(
    model: Model,
    images: Iterable[Path],
    metrics: tuple[str, ...] = tuple(METRICS),
    report: Callable[[int], None] | None = None,
    resolution: int | None = None,
    methods: Iterable[str] | None = None,
) -> dict[str, dict[str, torch.Tensor]]:
    """The area of methods and of random orders, with default parameters, for each image's most probable class.

    Args:
        model: with a classifier.
        images: files.
        metrics: by name in :data:`vitviz.metrics.faithfulness.METRICS`.
        report: receives how many images are done, after each.
        resolution: as :func:`vitviz.analyze` takes it.
        methods: by name in :data:`vitviz.METHODS`; all that can serve the model where they are not given.

    Raises:
        MethodError: the model has no classifier; or there is no such method, or it cannot serve the model.
        ImageError: an image cannot be opened.
        ConfigError: there is no such resolution.
    """
    chosen = methods_for(model, methods)
    rows: list[dict[str, dict[str, float]]] = []
    for number, path in enumerate(images):
        analysis = analyze(path, model, resolution=resolution)
        maps = {name: analysis.map(name).values for name in chosen}
        target = int(analysis.logits.argmax())
        curves = faithfulness(model.network, analysis.prepared.pixels, maps, target, metrics, seed=number)
        rows.append({metric: {name: curve.area for name, curve in each.items()} for metric, each in curves.items()})
        if report is not None:
            report(number + 1)
    names = [*chosen, RANDOM]
    return {metric: {name: torch.tensor([row[metric][name] for row in rows]) for name in names} for metric in metrics}


def verdicts(areas: Areas, metric: str) -> dict[str, int]:
    """By method, 1 where it is better than random orders on the same images, -1 where worse, 0 where unclear."""
    better = -1 if METRICS[metric].lower_is_better else 1
    chance = areas[metric][RANDOM]
    return {name: better * Interval.of(area - chance).sign for name, area in areas[metric].items() if name != RANDOM}


def table(areas: Areas) -> str:
    """The areas in Markdown: mean and confidence; ▲ and ▼ where a method is better or worse than random orders."""
    marks = {1: " ▲", 0: "", -1: " ▼"}
    verdicts_by_metric = {metric: verdicts(areas, metric) for metric in areas}
    heads = [f"{METRICS[metric].title} ({'↓' if METRICS[metric].lower_is_better else '↑'})" for metric in areas]
    lines = [f"| method | {' | '.join(heads)} |", f"| --- |{' --- |' * len(heads)}"]
    for name in next(iter(areas.values())):
        cells = []
        for metric, each in areas.items():
            interval = Interval.of(each[name])
            cells.append(f"{interval.mean:.3f} ± {interval.margin:.3f}{marks[verdicts_by_metric[metric].get(name, 0)]}")
        title = METHODS[name].title if name in METHODS else name
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def cascades(
    model: Model,
    images: Iterable[Path],
    methods: Iterable[str] | None = None,
    report: Callable[[int], None] | None = None,
    resolution: int | None = None,
) -> dict[str, torch.Tensor]:
    """How far every method's map stays the same while the weights are shuffled, for each image's most probable class.

    Args:
        model: without a classifier it has only the methods that need none.
        images: files; for each the weights are shuffled anew, so that no result hangs on one way to shuffle.
        methods: as :func:`vitviz.evaluation.randomization.cascade` takes them.
        report: receives how many images are done, after each.
        resolution: as :func:`vitviz.analyze` takes it.

    Returns:
        By method the rank correlations of :func:`vitviz.evaluation.randomization.cascade`, ``"image step"``.

    Raises:
        MethodError: there is no such method, or it cannot serve the model.
        ImageError: an image cannot be opened.
        ConfigError: there is no such resolution.
    """
    names = None if methods is None else list(methods)
    rows: list[dict[str, torch.Tensor]] = []
    for number, path in enumerate(images):
        rows.append(cascade(analyze(path, model, resolution=resolution), names, seed=number))
        if report is not None:
            report(number + 1)
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def cascade_table(correlations_by_method: Mapping[str, torch.Tensor]) -> str:
    """What :func:`cascades` gives in Markdown: mean and confidence at every step but the first, where all are 1.

    Images for which a map is constant are left out; how many are left then stands in brackets.
    """
    heads = steps(next(iter(correlations_by_method.values())).shape[1] - 3)[1:]
    lines = [f"| layers shuffled | {' | '.join(heads)} |", f"| --- |{' --- |' * len(heads)}"]
    for name, correlations in correlations_by_method.items():
        lines.append(f"| {METHODS[name].title} | {' | '.join(map(_ordered, correlations.unbind(1)[1:]))} |")
    return "\n".join(lines)


def _ordered(correlations: torch.Tensor) -> str:
    """Mean and confidence of the values other than NaN, ``"image"``."""
    there = correlations[~correlations.isnan()]
    left = f" ({len(there)})" * (len(there) < len(correlations))
    # A confidence interval needs two values.
    if len(there) < 2:
        return f"–{left}"
    interval = Interval.of(there)
    # A zero has no sign.
    return f"{round(interval.mean, 2) + 0.0:.2f} ± {interval.margin:.2f}{left}"


def record(model: Model, folder: Path, images: Iterable[Path], **results: Any) -> str:
    """What was found for images of a folder, as JSON: tensors as lists, and null where there is no number."""

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: plain(each) for name, each in value.items()}
        if isinstance(value, torch.Tensor | list):
            return [plain(each) for each in (value.tolist() if isinstance(value, torch.Tensor) else value)]
        # JSON has no NaN.
        return None if isinstance(value, float) and math.isnan(value) else value

    content = {"checkpoint": model.name, "images": [str(path.relative_to(folder)) for path in images], **plain(results)}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"
