"""The results as Markdown: every bar, then a table for each case of each benchmark."""

from __future__ import annotations

from typing import Any

from benchmarks.bars import BARS, is_met, value_of
from benchmarks.measure import Entry
from benchmarks.numbers import mebibytes, seconds, significant, table
from benchmarks.suite import BENCHMARKS

Results = dict[str, dict[str, Any]]
"""By benchmark: ``machine``, and ``entries`` in the order in which they were measured."""
MARKS = {True: "✓", False: "✗"}
QUICK = "**Tiny stand-ins, to try out the benchmark: these numbers say nothing.**"


def report(results: Results, picture: str | None = None) -> str:
    """All results, and the picture of cost against tokens if there is one."""
    lines = ["# Measurements", "", "Made by `python -m benchmarks`."]
    if any(result["machine"]["quick"] for result in results.values()):
        lines += ["", QUICK]
    lines += ["", "## Bars", "", *table(_bars(results))]
    for name, benchmark in BENCHMARKS.items():
        if name not in results:
            continue
        machine = "{processor}, {threads} of {cores} cores; {system}; {versions}; {date}.".format
        lines += ["", f"## {benchmark.title}", "", benchmark.note, "", machine(**results[name]["machine"])]
        if name == "tokens" and picture:
            lines += ["", f"![Time and peak memory against the number of tokens]({picture})"]
            lines += ["", "Drawn by `python -m benchmarks --only tokens`."]
        entries = results[name]["entries"]
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


def _bars(results: Results) -> dict[str, dict[str, str]]:
    rows = {}
    for (benchmark, case, contestant, kind), limit in BARS.items():
        for entry in results.get(benchmark, {}).get("entries", []):
            value = value_of(entry, kind) if (entry["case"], entry["contestant"]) == (case, contestant) else None
            if value is not None:
                number = mebibytes if kind == "memory" else significant
                cells = {
                    "measured": number(value),
                    "at most": number(limit) + " in the interval" * (kind == "interval"),
                }
                cells["met"] = "✓" if is_met(entry, kind, value, limit) else "✗"
                rows[f"{BENCHMARKS[benchmark].title}: {case}: {contestant}{', memory' * (kind == 'memory')}"] = cells
    return rows
