"""Faithfulness of rollout with and without outlier patches and sinks: the tables of docs/faithfulness.md.

    python -m benchmarks.exclusion CHECKPOINT PHOTO... [--seed 0] [--output FILE.json]
    python -m benchmarks.exclusion CHECKPOINT FOLDER --count 200 --affected

What is watched is the probability of the most probable class, or of a network without a classifier the likeness of the
picture without some of its patches to the whole picture. Differences are those of the same rollout of the same
photograph with nothing left out.
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
LEFT_OUT = {NOTHING: None, **{name: name for name in EXCLUSIONS}}
Row = tuple[str, str]
"""A rollout and what is left out of it."""


@dataclass(frozen=True)
class Measured:
    """One photograph.

    Args:
        areas: by metric and row; :data:`RANDOM` in place of the row for random orders.
        found: by exclusion, how many patches it leaves out.
    """

    areas: Mapping[str, Mapping[Row | str, float]]
    found: Mapping[str, int]


def measure(analysis: Analysis, seed: int = 0) -> Measured:
    """The areas of every rollout of a picture, with everything and with something left out."""
    maps = {
        (label, name): analysis.rollout(**options, exclude=exclude)
        for label, options in ROLLOUTS.items()
        for name, exclude in LEFT_OUT.items()
    }
    target: Target | None = None if analysis.model.labels else vitviz.likeness(analysis)
    distinct, stands_for = _distinct(maps)
    curves = analysis.faithfulness({str(row): maps[row] for row in distinct}, target, seed=seed)
    areas = {
        metric: {
            RANDOM: each[RANDOM].area,
            **{row: each[str(other)].area for row, other in stands_for.items()},
        }
        for metric, each in curves.items()
    }
    return Measured(areas, found(analysis))


def found(analysis: Analysis) -> dict[str, int]:
    """By exclusion, how many patches it leaves out."""
    return {name: len(rule(analysis.trace)) for name, (_, rule) in EXCLUSIONS.items()}


def _distinct(maps: Mapping[Row, Heatmap]) -> tuple[list[Row], dict[Row, Row]]:
    """The maps that differ, and for each map the one of them that it equals.

    Equal maps are measured once: what breaks their ties by chance must not make a difference between them.
    """
    stands_for: dict[Row, Row] = {}
    for row, heatmap in maps.items():
        equal = (other for other in stands_for.values() if torch.equal(maps[other].values, heatmap.values))
        stands_for[row] = next(equal, row)
    return list(dict.fromkeys(stands_for.values())), stands_for


def tables(measured: Sequence[Measured]) -> str:
    """Areas, then differences, in Markdown; ▲ and ▼ where leaving out is better or worse by the 95 % interval."""
    heads = " | ".join(f"{metric.title} ({'↓' if metric.lower_is_better else '↑'})" for metric in METRICS.values())
    lines = [f"| rollout | left out | {heads} |", f"| --- | --- |{' --- |' * len(METRICS)}"]
    for row in _rows(measured):
        cells = [_cell(interval(_values(measured, metric, row))) for metric in METRICS]
        lines.append(f"| {' | '.join((*row, *cells))} |")
    cells = [_cell(interval(_values(measured, metric, RANDOM))) for metric in METRICS]
    lines += [f"| random order | – | {' | '.join(cells)} |", ""]
    lines += [
        f"| rollout | difference by leaving out | pictures | {heads} |",
        f"| --- | --- | --- |{' --- |' * len(METRICS)}",
    ]
    for label, name in _rows(measured):
        if name != NOTHING:
            cells = [_difference(measured, metric, (label, name)) for metric in METRICS]
            lines.append(f"| {label} | {name} | {_pictures(measured, name)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _rows(measured: Sequence[Measured]) -> list[Row]:
    return [row for row in next(iter(measured[0].areas.values())) if isinstance(row, tuple)]


def _values(measured: Sequence[Measured], metric: str, row: Row | str) -> list[float]:
    return [each.areas[metric][row] for each in measured]


def _pictures(measured: Sequence[Measured], name: str) -> str:
    """How many of the pictures have patches that are left out."""
    return f"{sum(each.found[name] > 0 for each in measured)} of {len(measured)}"


def _difference(measured: Sequence[Measured], metric: str, row: Row) -> str:
    pairs = zip(_values(measured, metric, row), _values(measured, metric, (row[0], NOTHING)), strict=True)
    differences = [without - whole for without, whole in pairs]
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
    model, measured = vitviz.load(options.checkpoint), {}
    for number, path in enumerate(photos):
        analysis = vitviz.analyze(path, model)
        left_out = found(analysis)
        if options.affected and not any(left_out.values()):
            continue
        print(f"{path.name}: {', '.join(f'{count} {name}' for name, count in left_out.items())}", flush=True)
        measured[path] = measure(analysis, options.seed + number)
    if options.affected:
        print(f"{len(measured)} of {len(photos)} pictures have something to leave out")
    if len(measured) < 2:
        parser.error(f"{len(measured)} pictures to measure; expected at least two: one has no confidence interval")
    if options.output is not None:
        options.output.write_text(record(list(measured), list(measured.values())))
    print(f"\n{tables(list(measured.values()))}")


def record(photos: Sequence[Path], measured: Sequence[Measured]) -> str:
    """Everything that was measured, as JSON."""
    return json.dumps(
        {
            path.name: {
                "found": dict(each.found),
                "areas": {
                    metric: {" / ".join(row) if isinstance(row, tuple) else row: area for row, area in areas.items()}
                    for metric, areas in each.areas.items()
                },
            }
            for path, each in zip(photos, measured, strict=True)
        },
        indent=1,
        ensure_ascii=False,
    )


if __name__ == "__main__":
    main()
