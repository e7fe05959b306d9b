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

from benchmarks.machine import machine
from benchmarks.measure import Entry, Job
from benchmarks.part import Case, Part, Settings
from benchmarks.parts import PARTS
from benchmarks.plot import draw_cost
from benchmarks.report import Results, report, shown

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
    chosen = [name for name in PARTS if name in (options.only or PARTS)]
    with ThreadPoolExecutor(os.cpu_count() if options.quick else 1) as pool:
        started = ((name, _start(pool, PARTS[name], settings)) for name in chosen)
        # Side by side only where no number counts: else a part begins when the one before is written.
        for name, found in list(started) if options.quick else started:
            entries: list[Entry] = []
            for entry in found:
                print(f"{name:12} {entry['case']:28} {entry['contestant']:54} {shown(entry)}", flush=True)
                entries.append(entry)
                failed |= entry["kind"] == "failed"
            write(output, {name: {"machine": machine(options.threads, options.quick), "entries": entries}})
    return int(failed)


def write(output: Path, measured: Results) -> None:
    """Replace the parts that were measured, and only those, in the results; then make table and picture of all."""
    path = output / "results.json"
    results: Results = json.loads(path.read_text()) if path.exists() else {}
    results = {name: part for name in PARTS if (part := measured.get(name) or results.get(name))}
    path.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    picture = draw_cost(results["tokens"]["entries"], output) if "tokens" in results else None
    (output / "results.md").write_text(report(results, picture))


def run_apart(job: Job) -> list[Entry]:
    """What a process of its own finds out; of one that fails, the last that it said."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(job.settings.threads)}
    command = [sys.executable, "-m", "benchmarks.measure", job.to_json()]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode == 0:
        entries: list[Entry] = json.loads(done.stdout.splitlines()[-1])
        return entries
    said = done.stderr.strip().splitlines() or [f"ended with {done.returncode}"]
    return [{"case": job.case, "contestant": job.contestant or job.kind, "kind": "failed", "error": said[-1]}]


def _start(pool: ThreadPoolExecutor, part: Part, settings: Settings) -> Iterator[Entry]:
    found = pool.map(lambda case: list(_measured(part, case, settings)), part.chosen(settings))
    return (entry for entries in found for entry in entries)


def _measured(part: Part, case: Case, settings: Settings) -> Iterator[Entry]:
    """All entries of a case. Its processes share a folder, in which the first leaves the checkpoint."""
    with TemporaryDirectory() as folder:
        settings = replace(settings, folder=Path(folder))
        if part.contestants is None:
            yield from run_apart(Job(part.name, case.name, "facts", settings))
            return
        yield from run_apart(Job(part.name, case.name, "time", settings))
        contestants = list(part.contestants(case, settings)) if case.memory else []
        if settings.quick:
            contestants = contestants[-1:]
        for contestant in contestants:
            yield from run_apart(Job(part.name, case.name, "memory", settings, contestant))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__)
    add = parser.add_argument
    add("--output", type=Path, help=f"folder for results.json, results.md and cost.svg ({OUTPUT.relative_to(ROOT)})")
    add("--only", nargs="+", choices=list(PARTS), metavar="PART", help=f"measure these anew: {', '.join(PARTS)}")
    add("--quick", action="store_true", help="tiny stand-ins, to try out the benchmark; needs --output")
    add("--vit-explain", type=Path, metavar="PATH", help="a checkout of jacobgil/vit-explain, to be measured too")
    add("--threads", type=int, default=os.cpu_count() or 1, help="of torch (default: as many as there are cores)")
    add("--repeats", type=int, help="of every contestant (default: fewer, the longer they take)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
