"""The results as Markdown: every bar, then a table for each case of each benchmark."""

from __future__ import annotations

from typing import Any

from benchmarks import bars
from benchmarks.measure import Entry
from benchmarks.numbers import mebibytes, seconds, significant
from benchmarks.suite import BENCHMARKS

Results = dict[str, dict[str, Any]]
"""By benchmark: ``machine``, and ``entries`` in the order in which they were measured."""
MARKS = {True: "✓", False: "✗", None: ""}
QUICK = "**Tiny stand-ins, to try out the benchmark: these numbers say nothing.**"


def report(results: Results, picture: str | None = None) -> str:
    """All results, and the picture of cost against tokens if there is one."""
    lines = ["# Measurements", "", "Made by `python -m benchmarks`."]
    if any(result["machine"]["quick"] for result in results.values()):
        lines += ["", QUICK]
    lines += ["", *_summary(results)]
    for name, benchmark in BENCHMARKS.items():
        if name not in results:
            continue
        lines += ["", f"## {benchmark.title}", "", benchmark.note, "", _machine(results[name]["machine"])]
        if name == "tokens" and picture:
            lines += ["", f"![Time and peak memory against the number of tokens]({picture})"]
            lines += ["", "Drawn by `python -m benchmarks --only tokens`."]
        for case in dict.fromkeys(entry["case"] for entry in results[name]["entries"]):
            entries = [entry for entry in results[name]["entries"] if entry["case"] == case]
            lines += ["", f"### {case}", "", *_case(name, entries)]
    return "\n".join((*lines, ""))


def entry_text(entry: Entry) -> str:
    """One entry in a line."""
    if entry["kind"] == "time":
        return f"{seconds(entry['seconds']['median']):>10}  {_ratio(entry['ratio'])}"
    if entry["kind"] == "memory":
        return f"{mebibytes(entry['bytes']):>10}"
    if entry["kind"] == "failed":
        return f"failed: {entry['error']}"
    return ", ".join(f"{name} {significant(value)}" for name, value in entry["values"].items())


def table(header: list[str], rows: list[list[str]]) -> list[str]:
    """The lines of a Markdown table, without empty columns."""
    columns = [index for index in range(len(header)) if index == 0 or any(row[index] for row in rows)]
    lines = [[cells[index] for index in columns] for cells in (header, *rows)]
    return [f"| {' | '.join(cells)} |" for cells in (lines[0], ["---"] * len(columns), *lines[1:])]


def _summary(results: Results) -> list[str]:
    rows = []
    for bar in bars.BARS:
        for entry in results.get(bar.benchmark, {}).get("entries", []):
            if bars.bar_of(bar.benchmark, entry) == bar:
                value = bars.value_of(entry)
                numbers = [bar.format(value), bar.condition, MARKS[bar.is_met(entry)]]
                rows.append([f"{BENCHMARKS[bar.benchmark].title}: {bar.case}", bar.contestant, *numbers])
    if not rows:
        return []
    return ["## Bars", "", *table(["where", "what", "measured", "at most", "met"], rows)]


def _case(benchmark: str, entries: list[Entry]) -> list[str]:
    failures = [f"- {entry['contestant']}: failed, {entry['error']}" for entry in entries if entry["kind"] == "failed"]
    facts = [entry for entry in entries if entry["kind"] == "facts"]
    if facts:
        return [*_facts(facts), *failures]
    times = {entry["contestant"]: entry for entry in entries if entry["kind"] == "time"}
    memories = {entry["contestant"]: entry for entry in entries if entry["kind"] == "memory"}
    baseline = next((entry["baseline"] for entry in times.values()), "")
    header = ["", "median", "middle half", "least", "runs", f"× {baseline}", "95 % interval", "at most", "met"]
    rows = [
        [name, *_time(benchmark, times.get(name)), *_memory(benchmark, memories.get(name))]
        for name in {**times, **memories}
    ]
    lines = table([*header, "peak memory", "at most", "met"], rows) if rows else []
    return [*lines, *([""] if lines and failures else []), *failures]


def _time(benchmark: str, entry: Entry | None) -> list[str]:
    if entry is None:
        return [""] * 8
    seconds_spread = entry["seconds"]
    middle = f"{seconds(seconds_spread['lower'])} – {seconds(seconds_spread['upper'])}"
    return [
        *(seconds(seconds_spread["median"]), middle, seconds(seconds_spread["least"]), str(seconds_spread["count"])),
        *(_ratio(entry["ratio"]), _interval(entry), *_bar(benchmark, entry)),
    ]


def _memory(benchmark: str, entry: Entry | None) -> list[str]:
    return [""] * 3 if entry is None else [mebibytes(entry["bytes"]), *_bar(benchmark, entry)]


def _bar(benchmark: str, entry: Entry) -> list[str]:
    bar = bars.bar_of(benchmark, entry)
    return ["", ""] if bar is None else [bar.condition, MARKS[bar.is_met(entry)]]


def _interval(entry: Entry) -> str:
    """The confidence interval of the ratio; empty if there is none."""
    return " – ".join(f"{end:.4f}" for end in entry["interval"]) if entry.get("interval") else ""


def _facts(entries: list[Entry]) -> list[str]:
    names = list(dict.fromkeys(name for entry in entries for name in entry["values"]))
    values = [(entry["contestant"], entry["values"]) for entry in entries]
    rows = [[row, *(significant(found[name]) if name in found else "" for name in names)] for row, found in values]
    return table(["", *names], rows)


def _ratio(ratio: dict[str, float]) -> str:
    return f"{significant(ratio['median'])} ({significant(ratio['lower'])} – {significant(ratio['upper'])})"


def _machine(machine: dict[str, Any]) -> str:
    return (
        f"{machine['processor']}, {machine['threads']} of {machine['cores']} cores; {machine['system']}; "
        f"{machine['versions']}; {machine['date']}."
    )
