"""Measure everything: ``python -m benchmarks``. Each measurement runs in a fresh process."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.benchmark import Benchmark, Case, Settings
from benchmarks.machine import machine
from benchmarks.measure import Entry, Job
from benchmarks.plot import draw_cost
from benchmarks.report import Results, entry_text, report
from benchmarks.suite import BENCHMARKS

ROOT = Path(__file__).parents[1]
OUTPUT = ROOT / "docs" / "performance"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write; returns 1 if a measurement failed."""
    options = _parser().parse_args(arguments)
    if options.quick and options.output is None:
        _parser().error("--quick measures nothing of worth: name a folder for its results with --output")
    output = options.output or OUTPUT
    output.mkdir(parents=True, exist_ok=True)
    settings = Settings(
        Path(), options.threads, options.repeats, options.quick, options.vit_explain and options.vit_explain.resolve()
    )
    failed = False
    names = [name for name in BENCHMARKS if name in (options.only or BENCHMARKS)]
    with ThreadPoolExecutor(os.cpu_count() if options.quick else 1) as pool:
        runs = ((name, _start(pool, BENCHMARKS[name], settings)) for name in names)
        # Only stand-ins run in parallel: otherwise a benchmark starts when the one before is written.
        for name, benchmark_entries in list(runs) if options.quick else runs:
            entries: list[Entry] = []
            for entry in benchmark_entries:
                print(f"{name:12} {entry['case']:28} {entry['contestant']:54} {entry_text(entry)}", flush=True)
                entries.append(entry)
                failed |= entry["kind"] == "failed"
            write(output, {name: {"machine": machine(options.threads, options.quick), "entries": entries}})
    return int(failed)


def write(output: Path, measured: Results) -> None:
    """Update the results of the benchmarks that were measured; then write table and picture of all results."""
    path = output / "results.json"
    results: Results = json.loads(path.read_text()) if path.exists() else {}
    results = {name: result for name in BENCHMARKS if (result := measured.get(name) or results.get(name))}
    path.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    picture = draw_cost(results["tokens"]["entries"], output) if "tokens" in results else None
    (output / "results.md").write_text(report(results, picture))


def run_in_process(job: Job) -> list[Entry]:
    """The entries that a process measures; if it fails, an entry with the last line of its errors."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(job.settings.threads)}
    command = [sys.executable, "-m", "benchmarks.measure", job.to_json()]
    process = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if process.returncode == 0:
        entries: list[Entry] = json.loads(process.stdout.splitlines()[-1])
        return entries
    messages = process.stderr.strip().splitlines() or [f"ended with {process.returncode}"]
    return [{"case": job.case, "contestant": job.contestant or job.kind, "kind": "failed", "error": messages[-1]}]


def _start(pool: ThreadPoolExecutor, benchmark: Benchmark, settings: Settings) -> Iterator[Entry]:
    entry_lists = pool.map(
        lambda case: list(_case_entries(benchmark, case, settings)), benchmark.select_cases(settings)
    )
    return (entry for entries in entry_lists for entry in entries)


def _case_entries(benchmark: Benchmark, case: Case, settings: Settings) -> Iterator[Entry]:
    """All entries of a case. Its processes share a folder, into which the first writes the checkpoint."""
    with TemporaryDirectory() as folder:
        settings = replace(settings, folder=Path(folder))
        if benchmark.contestants is None:
            yield from run_in_process(Job(benchmark.name, case.name, "facts", settings))
            return
        yield from run_in_process(Job(benchmark.name, case.name, "time", settings))
        contestants = list(benchmark.contestants(case, settings)) if case.memory else []
        if settings.quick:
            contestants = contestants[-1:]
        for contestant in contestants:
            yield from run_in_process(Job(benchmark.name, case.name, "memory", settings, contestant))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__)
    add = parser.add_argument
    add("--output", type=Path, help=f"folder for results.json, results.md and cost.svg ({OUTPUT.relative_to(ROOT)})")
    add(
        "--only",
        nargs="+",
        choices=list(BENCHMARKS),
        metavar="NAME",
        help=f"measure these anew: {', '.join(BENCHMARKS)}",
    )
    add("--quick", action="store_true", help="tiny stand-ins, to try out the benchmark; needs --output")
    add("--vit-explain", type=Path, metavar="PATH", help="a checkout of jacobgil/vit-explain, to be measured too")
    add("--threads", type=int, default=os.cpu_count() or 1, help="of torch (default: as many as there are cores)")
    add("--repeats", type=int, help="of every contestant (default: fewer, the longer they take)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
