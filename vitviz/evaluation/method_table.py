"""Methods over many images: faithfulness, and change with shuffled weights, with confidence intervals."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vitviz.analysis.encoder import analyze
from vitviz.attribution import METHODS
from vitviz.attribution.methods import MethodName
from vitviz.errors.arguments import integer
from vitviz.errors.kinds import DataError, MethodError
from vitviz.evaluation.counting import count_images
from vitviz.evaluation.randomization import cascade, method_names, steps
from vitviz.images.file_kinds import left_out, picture_files, why_left_out
from vitviz.metrics.faithfulness import METRIC_NAMES, METRICS, RANDOM, MetricName, faithfulness
from vitviz.models.probability import why_no_probability
from vitviz.system.jsonable import jsonable
from vitviz.system.paths import files_in, missing
from vitviz.weights import Model

# 95 % of a normal distribution lies within this many standard deviations.
STANDARD_DEVIATIONS_95 = 1.96

Areas = Mapping[str, Mapping[str, torch.Tensor]]
"""The area of every image, ``"image"``, by metric and method."""


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
        """1 if the whole interval is above zero, -1 if it is below, otherwise 0."""
        return (self.mean > self.margin) - (self.mean < -self.margin)


def methods_for(model: Model, methods: Iterable[MethodName] | None = None) -> list[MethodName]:
    """The names of the given methods, or of all that support a model.

    Raises:
        MethodError: the model gives no probability, there is no such method, or it does not support the model.
    """
    reason = why_no_probability(model.network.config)
    if reason is not None:
        raise MethodError(f"{model.name} {reason}: no probability tells how faithful a map is")
    return method_names(model, methods)


def find_images(
    folder: Path, count: int, seed: int = 0, report: Callable[[str], None] = lambda sentence: None
) -> list[Path]:
    """A random sample of image files from a folder and its subfolders, the same for the same seed.

    Args:
        folder: is searched at every depth.
        count: how many, at least 2.
        seed: of the sample.
        report: receives a sentence on what is no image, or hidden.

    Raises:
        DataError: there is no such folder, or there are too few.
    """
    count = integer("count", count, 2, DataError)
    if not folder.is_dir():
        raise DataError(f"{folder}: {missing(folder, '; expected a folder with pictures', 'folder')}")
    paths, others = picture_files(files_in(folder), folder)
    if sentence := left_out([(path.relative_to(folder).as_posix(), why_left_out(path)) for path in others]):
        report(sentence)
    if len(paths) < count:
        fewer = f", or count={len(paths)}" * (len(paths) > 1)
        raise DataError(
            f"{folder}: {len(paths)} image{'s' * (len(paths) != 1)} in it; expected at least {count}{fewer}"
        )
    sample = torch.randperm(len(paths), generator=torch.Generator().manual_seed(seed))[:count]
    return [paths[index] for index in sorted(sample.tolist())]


def areas(
    model: Model,
    images: Iterable[Path],
    metrics: tuple[MetricName, ...] = METRIC_NAMES,
    report: Callable[[int], None] | None = None,
    resolution: int | None = None,
    methods: Iterable[MethodName] | None = None,
) -> dict[str, dict[str, torch.Tensor]]:
    """The areas of methods with default parameters, and of random orders, for each image's most probable class.

    Args:
        model: with a classifier.
        images: files.
        metrics: names in :data:`vitviz.metrics.faithfulness.METRICS`.
        report: receives the number of finished images after each.
        resolution: as in :func:`vitviz.analyze`.
        methods: names in :data:`vitviz.METHODS`; by default all that support the model.

    Raises:
        MethodError: the model gives no probability, there is no such method, or it does not support the model.
        ImageError: an image cannot be opened.
        ConfigError: there is no such resolution.
    """
    method_list = methods_for(model, methods)
    rows: list[dict[str, dict[str, float]]] = []
    for number, path in enumerate(count_images(images, report)):
        analysis = analyze(path, model, resolution=resolution)
        maps: dict[str, torch.Tensor] = {name: analysis.map(name).values for name in method_list}
        target = int(analysis.logits.argmax())
        curves = faithfulness(model.network, analysis.prepared.pixels, maps, target, metrics, seed=number)
        rows.append({metric: {name: curve.area for name, curve in row.items()} for metric, row in curves.items()})
    names = [*method_list, RANDOM]
    return {
        metric: {name: torch.tensor([row[metric][name] for row in rows], dtype=torch.float32) for name in names}
        for metric in metrics
    }


def verdicts(areas: Areas, metric: str) -> dict[str, int]:
    """For each method, 1 if it is better than random orders on the same images, -1 if worse, 0 if unclear."""
    sign = -1 if METRICS[metric].lower_is_better else 1
    chance = areas[metric][RANDOM]
    return {name: sign * Interval.of(area - chance).sign for name, area in areas[metric].items() if name != RANDOM}


def table(areas: Areas) -> str:
    """The areas in Markdown: mean and confidence; ▲ and ▼ mark methods that are better or worse than random orders."""
    marks = {1: " ▲", 0: "", -1: " ▼"}
    verdicts_by_metric = {metric: verdicts(areas, metric) for metric in areas}
    headings = [f"{METRICS[metric].title} ({'↓' if METRICS[metric].lower_is_better else '↑'})" for metric in areas]
    lines = [f"| method | {' | '.join(headings)} |", f"| --- |{' --- |' * len(headings)}"]
    for name in next(iter(areas.values())):
        cells = []
        for metric, areas_by_name in areas.items():
            interval = Interval.of(areas_by_name[name])
            cells.append(f"{interval.mean:.3f} ± {interval.margin:.3f}{marks[verdicts_by_metric[metric].get(name, 0)]}")
        title = METHODS[name].title if name in METHODS else name
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def cascades(
    model: Model,
    images: Iterable[Path],
    methods: Iterable[MethodName] | None = None,
    report: Callable[[int], None] | None = None,
    resolution: int | None = None,
) -> dict[str, torch.Tensor]:
    """The similarity of every method's map while the weights are shuffled, for each image's most probable class.

    Args:
        model: without a classifier, only methods that need none apply.
        images: files; weights are shuffled anew for each, so that results do not depend on one permutation.
        methods: as in :func:`vitviz.evaluation.randomization.cascade`.
        report: receives the number of finished images after each.
        resolution: as in :func:`vitviz.analyze`.

    Returns:
        The rank correlations of :func:`vitviz.evaluation.randomization.cascade` by method, ``"image step"``.

    Raises:
        MethodError: there is no such method, or it does not support the model.
        ImageError: an image cannot be opened.
        ConfigError: there is no such resolution.
    """
    names = None if methods is None else list(methods)
    rows = [
        cascade(analyze(path, model, resolution=resolution), names, seed=number)
        for number, path in enumerate(count_images(images, report))
    ]
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def cascade_table(correlations_by_method: Mapping[str, torch.Tensor]) -> str:
    """The result of :func:`cascades` in Markdown: mean and confidence at every step but the first, where all are 1.

    Images for which a map is constant are left out; brackets then show the number of the others.
    """
    headings = steps(next(iter(correlations_by_method.values())).shape[1] - 3)[1:]
    lines = [f"| layers shuffled | {' | '.join(headings)} |", f"| --- |{' --- |' * len(headings)}"]
    for name, correlations in correlations_by_method.items():
        lines.append(f"| {METHODS[name].title} | {' | '.join(map(_interval_text, correlations.unbind(1)[1:]))} |")
    return "\n".join(lines)


def _interval_text(correlations: torch.Tensor) -> str:
    """Mean and confidence of the values ``"image"``, without NaN."""
    valid = correlations[~correlations.isnan()]
    count = f" ({len(valid)})" * (len(valid) < len(correlations))
    # A confidence interval needs two values.
    if len(valid) < 2:
        return f"–{count}"
    interval = Interval.of(valid)
    # Adding 0.0 turns -0.0 into 0.0.
    return f"{round(interval.mean, 2) + 0.0:.2f} ± {interval.margin:.2f}{count}"


def record(model: Model, folder: Path, images: Iterable[Path], **results: Any) -> str:
    """Results for images of a folder as JSON, with tensors as lists, and NaN and infinity as null."""
    content = {
        "checkpoint": model.name,
        "images": [str(path.relative_to(folder)) for path in images],
        **jsonable(results),
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"
