"""Faithfulness of rollout with and without outlier patches and sinks: a table for each pair.

    python -m benchmarks.exclusion CHECKPOINT PHOTO... [--seed 0] [--output FILE.json]
    python -m benchmarks.exclusion CHECKPOINT FOLDER --count 200 --affected

The score is the probability of the most probable class. For a network without a classifier it is the likeness of the
picture without some patches to the whole picture. Differences are those to the same rollout of the same photograph with
nothing left out.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import vitviz
from benchmarks.spread import Interval, interval
from vitviz import Analysis, Heatmap, Target
from vitviz.attribution.exclusion import EXCLUSIONS
from vitviz.evaluation.method_table import find_images
from vitviz.metrics.faithfulness import METRICS, RANDOM

ROLLOUTS: dict[str, dict[str, Any]] = {
    "mean of the heads": {},
    "maximum, 0.9 discarded": {"head_fusion": "max", "discard_ratio": 0.9},
}
NOTHING = "nothing"
EXCLUSION_OPTIONS = {NOTHING: None, **{name: name for name in EXCLUSIONS}}
Row = tuple[str, str]
"""A rollout, and which tokens are left out of it."""


@dataclass(frozen=True)
class PictureResult:
    """The measurements of one photograph.

    Args:
        areas: by metric and row; :data:`RANDOM` in place of the row for random orders.
        excluded_counts: by exclusion, how many patches it leaves out.
    """

    areas: Mapping[str, Mapping[Row | str, float]]
    excluded_counts: Mapping[str, int]


def measure(analysis: Analysis, seed: int = 0) -> PictureResult:
    """The areas of every rollout of a picture, with and without exclusions."""
    maps = {
        (label, name): analysis.rollout(**options, exclude=exclude)
        for label, options in ROLLOUTS.items()
        for name, exclude in EXCLUSION_OPTIONS.items()
    }
    target: Target | None = None if analysis.model.labels else vitviz.likeness(analysis)
    distinct, stands_for = _distinct(maps)
    curves = analysis.faithfulness({str(row): maps[row] for row in distinct}, target, seed=seed)
    areas = {
        metric: {
            RANDOM: each[RANDOM].area,
            **{row: each[str(representative)].area for row, representative in stands_for.items()},
        }
        for metric, each in curves.items()
    }
    return PictureResult(areas, excluded_counts(analysis))


def excluded_counts(analysis: Analysis) -> dict[str, int]:
    """By exclusion, how many patches it leaves out."""
    return {name: len(rule(analysis.trace)) for name, (_, rule) in EXCLUSIONS.items()}


def _distinct(maps: Mapping[Row, Heatmap]) -> tuple[list[Row], dict[Row, Row]]:
    """The rows of the distinct maps, and for each row the distinct one with the same map.

    Equal maps are measured once: ties are broken at random, which must not make equal maps differ.
    """
    representatives: dict[Row, Row] = {}
    for row, heatmap in maps.items():
        equal_rows = (
            representative
            for representative in representatives.values()
            if torch.equal(maps[representative].values, heatmap.values)
        )
        representatives[row] = next(equal_rows, row)
    return list(dict.fromkeys(representatives.values())), representatives


def tables(results: Sequence[PictureResult]) -> str:
    """Areas, then differences, in Markdown; ▲ and ▼ if exclusion is better or worse by the 95 % interval."""
    heads = " | ".join(f"{metric.title} ({'↓' if metric.lower_is_better else '↑'})" for metric in METRICS.values())
    lines = [f"| rollout | left out | {heads} |", f"| --- | --- |{' --- |' * len(METRICS)}"]
    for row in _rows(results):
        cells = [_cell(interval(_values(results, metric, row))) for metric in METRICS]
        lines.append(f"| {' | '.join((*row, *cells))} |")
    cells = [_cell(interval(_values(results, metric, RANDOM))) for metric in METRICS]
    lines += [f"| random order | – | {' | '.join(cells)} |", ""]
    lines += [
        f"| rollout | difference by leaving out | pictures | {heads} |",
        f"| --- | --- | --- |{' --- |' * len(METRICS)}",
    ]
    for label, name in _rows(results):
        if name != NOTHING:
            cells = [_difference(results, metric, (label, name)) for metric in METRICS]
            lines.append(f"| {label} | {name} | {_pictures(results, name)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _rows(results: Sequence[PictureResult]) -> list[Row]:
    return [row for row in next(iter(results[0].areas.values())) if isinstance(row, tuple)]


def _values(results: Sequence[PictureResult], metric: str, row: Row | str) -> list[float]:
    return [each.areas[metric][row] for each in results]


def _pictures(results: Sequence[PictureResult], name: str) -> str:
    """How many of the pictures have excluded patches."""
    return f"{sum(each.excluded_counts[name] > 0 for each in results)} of {len(results)}"


def _difference(results: Sequence[PictureResult], metric: str, row: Row) -> str:
    pairs = zip(_values(results, metric, row), _values(results, metric, (row[0], NOTHING)), strict=True)
    differences = [without - with_all for without, with_all in pairs]
    if not any(differences):
        return "none"
    mean, margin = difference = interval(differences)
    is_better = (mean < 0) == METRICS[metric].lower_is_better
    return f"{mean:+.3f} ± {margin:.3f}{'' if difference.holds(0) else ' ▲' if is_better else ' ▼'}"


def _cell(area: Interval) -> str:
    return f"{area.mean:.3f} ± {area.margin:.3f}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.exclusion", description=__doc__.partition("\n")[0])
    parser.add_argument("checkpoint", help="as vitviz.load takes it; 'vitviz-photos' is the bundled one")
    parser.add_argument("photos", type=Path, nargs="+", metavar="PHOTO", help="files, at least two; or folders")
    parser.add_argument("--count", type=int, default=200, help="of the images drawn by chance from each folder (200)")
    parser.add_argument("--affected", action="store_true", help="measure only what has something to leave out")
    parser.add_argument("--seed", type=int, default=0, help="of the random orders of the first picture (0)")
    parser.add_argument("--output", type=Path, help="a JSON file for the area of every picture")
    options = parser.parse_args(arguments)
    photos = [
        file for path in options.photos for file in (find_images(path, options.count) if path.is_dir() else [path])
    ]
    model, results = vitviz.load(options.checkpoint), {}
    for index, path in enumerate(photos):
        analysis = vitviz.analyze(path, model)
        counts = excluded_counts(analysis)
        if options.affected and not any(counts.values()):
            continue
        print(f"{path.name}: {', '.join(f'{count} {name}' for name, count in counts.items())}", flush=True)
        results[path] = measure(analysis, options.seed + index)
    if options.affected:
        print(f"{len(results)} of {len(photos)} pictures have something to leave out")
    if len(results) < 2:
        parser.error(f"{len(results)} pictures to measure; expected at least two: one has no confidence interval")
    if options.output is not None:
        options.output.write_text(record(list(results), list(results.values())))
    print(f"\n{tables(list(results.values()))}")


def record(photos: Sequence[Path], results: Sequence[PictureResult]) -> str:
    """All measurements as JSON."""
    return json.dumps(
        {
            path.name: {
                "found": dict(each.excluded_counts),
                "areas": {
                    metric: {" / ".join(row) if isinstance(row, tuple) else row: area for row, area in areas.items()}
                    for metric, areas in each.areas.items()
                },
            }
            for path, each in zip(photos, results, strict=True)
        },
        indent=1,
        ensure_ascii=False,
    )


if __name__ == "__main__":
    main()
