"""The results as Markdown: every bar, then a table for each case of each benchmark."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from math import inf
from typing import Any

from benchmarks.measure import Entry
from benchmarks.suite import BENCHMARKS
from benchmarks.tables import mebibytes, seconds, significant, table

Results = dict[str, dict[str, Any]]
"""By benchmark: ``machine``, and ``entries`` in the order in which they were measured."""
PICTURE = """
![Time and peak memory against the number of tokens](cost.svg)

Drawn by `python -m benchmarks --only tokens`."""


def report(results: Results) -> str:
    """All results, and the picture of cost against tokens if there is one."""
    lines = ["# Measurements", "", "Made by `python -m benchmarks`.", "", "## Bars", "", *table(_bars(results))]
    for name, result in results.items():
        benchmark, entries = BENCHMARKS[name], result["entries"]
        machine = "{processor}, {threads} of {cores} cores; {system}; {versions}; {date}.".format(**result["machine"])
        lines += ["", f"## {benchmark.title}", "", benchmark.note, "", machine, *[PICTURE] * (name == "tokens")]
        for case in dict.fromkeys(entry["case"] for entry in entries):
            rows: dict[str, dict[str, str]] = {}
            for entry in entries:
                if entry["case"] == case:
                    rows.setdefault(entry["contestant"], {}).update(cells_of(entry))
            lines += ["", f"### {case}", "", *table(rows)]
    return "\n".join((*lines, ""))


def cells_of(entry: Entry) -> dict[str, str]:
    """The cells of one entry, by column."""
    if entry["kind"] == "memory":
        return {"peak memory": mebibytes(entry["bytes"])}
    if entry["kind"] == "failed":
        return {"failed": entry["error"]}
    if entry["kind"] == "facts":
        return {name: significant(value) for name, value in entry["values"].items()}
    taken, ratio = entry["seconds"], {name: significant(value) for name, value in entry["ratio"].items()}
    cells = {
        "median": seconds(taken["median"]),
        "middle half": f"{seconds(taken['lower'])} – {seconds(taken['upper'])}",
        "least": seconds(taken["least"]),
        "runs": str(taken["count"]),
        f"× {entry['baseline']}": f"{ratio['median']} ({ratio['lower']} – {ratio['upper']})",
    }
    interval = entry.get("interval")
    return cells | ({"95 % interval": " – ".join(f"{end:.4f}" for end in interval)} if interval else {})


def _limited(entry: Entry) -> Mapping[str, float]:
    """The values of an entry that a bar may limit, by what bars call them."""
    if entry["kind"] == "time":
        return dict.fromkeys(("time", "interval"), entry["ratio"]["median"])
    return {"memory": entry["bytes"]} if entry["kind"] == "memory" else entry.get("values", {})


def _bars(results: Results) -> dict[str, dict[str, str]]:
    rows = {}
    for name, result in results.items():
        benchmark = BENCHMARKS[name]
        for ((contestant, kind), limits), entry in product(benchmark.bars.items(), result["entries"]):
            # The table of facts has a row for each case.
            rows_of_cases = [
                (benchmark.title, case.name) if benchmark.facts else (case.name, contestant) for case in benchmark.cases
            ]
            limit = dict(zip(rows_of_cases, limits, strict=True)).get((entry["case"], entry["contestant"]))
            value = _limited(entry).get(kind)
            if value is None or limit is None:
                continue
            number = mebibytes if kind == "memory" else significant
            low, high = entry.get("interval") or (inf, -inf)
            is_met = low <= limit <= high if kind == "interval" else value <= limit
            rows[f"{benchmark.title}: {entry['case']}: {entry['contestant']}{', memory' * (kind == 'memory')}"] = {
                "measured": number(value),
                "at most": number(limit) + " in the interval" * (kind == "interval"),
                "met": "✓" if is_met else "✗",
            }
    return rows
