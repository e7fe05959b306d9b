"""Measure everything: ``python -m benchmarks``. Each measurement runs in a fresh process."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.benchmark import Benchmark, Case, Settings
from benchmarks.measure import Entry, measure
from benchmarks.plot import draw_cost
from benchmarks.report import Results, cells_of, report
from benchmarks.suite import BENCHMARKS
from benchmarks.tables import machine

OUTPUT = Path(__file__).parents[1] / "docs" / "performance"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write; returns 1 if a measurement failed."""
    parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__)
    add = parser.add_argument
    add("--output", type=Path, help="folder for results.json, results.md and cost.svg (docs/performance)")
    add("--only", nargs="+", choices=BENCHMARKS, metavar="NAME", help=f"measure these anew: {', '.join(BENCHMARKS)}")
    add("--quick", action="store_true", help="tiny stand-ins, to try out the benchmark; needs --output")
    add("--vit-explain", type=Path, metavar="PATH", help="a checkout of jacobgil/vit-explain, to be measured too")
    add("--threads", type=int, default=os.cpu_count() or 1, help="of torch (default: as many as there are cores)")
    options = parser.parse_args(arguments)
    if options.quick and options.output is None:
        parser.error("--quick measures nothing of worth: name a folder for its results with --output")
    output = options.output or OUTPUT
    output.mkdir(parents=True, exist_ok=True)
    settings, failed = Settings(Path(), options.threads, options.quick, options.vit_explain), False
    for name in [name for name in BENCHMARKS if name in (options.only or BENCHMARKS)]:
        entries: list[Entry] = []
        for entry in _entries(BENCHMARKS[name], settings):
            print(f"{name:12} {entry['case']:28} {entry['contestant']:54}", *cells_of(entry).values(), flush=True)
            entries.append(entry)
            failed |= entry["kind"] == "failed"
        facts = {**machine(), "threads": options.threads, "quick": options.quick}
        write(output, {name: {"machine": facts, "entries": entries}})
    return int(failed)


def write(output: Path, measured: Results) -> None:
    """Update the results of the benchmarks that were measured; then write table and picture of all results."""
    path = output / "results.json"
    results: Results = json.loads(path.read_text()) if path.exists() else {}
    results = {name: result for name in BENCHMARKS if (result := measured.get(name) or results.get(name))}
    path.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    if "tokens" in results:
        draw_cost(results["tokens"]["entries"], output / "cost.svg")
    (output / "results.md").write_text(report(results))


def run_in_process(benchmark: Benchmark, case: Case, settings: Settings, memory_of: str | None = None) -> list[Entry]:
    """The entries that a fresh process measures; if it fails, an entry with its error."""
    try:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            return pool.submit(measure, benchmark.name, case.name, settings, memory_of).result()
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        return [{"case": case.name, "contestant": memory_of or "all", "kind": "failed", "error": text}]


def _entries(benchmark: Benchmark, settings: Settings) -> Iterator[Entry]:
    """All entries of a benchmark. The processes of a case share a folder."""
    for case in benchmark.select_cases(settings):
        with TemporaryDirectory() as folder:
            settings = replace(settings, folder=Path(folder))
            for contestant in (None, *(benchmark.contestants if case.memory else ())):
                yield from run_in_process(benchmark, case, settings, contestant)


if __name__ == "__main__":
    sys.exit(main())
