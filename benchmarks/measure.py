"""One measurement in its own process, which takes a job as JSON on the command line and prints its entries as JSON."""

from __future__ import annotations

import json
import resource
import sys
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from benchmarks.benchmark import Benchmark, Settings

Entry = dict[str, Any]
"""One row of the results: ``case``, ``contestant``, ``kind`` and the fields of that kind."""


@dataclass(frozen=True)
class Job:
    """The measurement of one process.

    Args:
        benchmark, case: by name.
        kind: ``"time"`` of all contestants in turn, ``"memory"`` of one of them, or ``"facts"``.
        contestant: whose memory.
        settings: of the whole run.
    """

    benchmark: str
    case: str
    kind: str
    settings: Settings
    contestant: str | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> Job:
        values = json.loads(text)
        settings = values.pop("settings")
        for name in ("folder", "vit_explain"):
            settings[name] = settings[name] and Path(settings[name])
        return cls(**values, settings=Settings(**{each.name: settings[each.name] for each in fields(Settings)}))


def measure(job: Job, benchmark: Benchmark) -> list[Entry]:
    """The entries of a job."""
    import torch

    torch.set_num_threads(job.settings.threads)
    torch.manual_seed(0)
    case = next(case for case in benchmark.select_cases(job.settings) if case.name == job.case)
    if job.kind == "facts":
        assert benchmark.facts is not None
        facts = benchmark.facts(case, job.settings)
        return [
            {"case": table, "contestant": row, "kind": "facts", "values": values}
            for table, rows in facts.items()
            for row, values in rows.items()
        ]
    assert benchmark.contestants is not None
    contestants = benchmark.contestants(case, job.settings)
    if job.kind == "memory":
        from benchmarks.memory import peak_bytes

        assert job.contestant is not None
        peak = peak_bytes(contestants[job.contestant]())
        return [{"case": case.name, "contestant": job.contestant, "kind": "memory", "bytes": peak}]
    from benchmarks.spread import median_interval, ratios, spread
    from benchmarks.timing import interleave

    runs = {name: make() for name, make in contestants.items()}
    clock = processor_time if benchmark.paired else perf_counter
    seconds_by_name = interleave(runs, job.settings.repeats or case.repeats, clock, alternate=benchmark.paired)
    baseline = next(iter(seconds_by_name))
    return [
        {
            "case": case.name,
            "contestant": name,
            "kind": "time",
            "tokens": case.input_shape.tokens,
            "seconds": spread([value / case.images for value in seconds])._asdict(),
            "ratio": spread(ratios(seconds, seconds_by_name[baseline]))._asdict(),
            **({"interval": median_interval(ratios(seconds, seconds_by_name[baseline]))} if benchmark.paired else {}),
            "baseline": baseline,
        }
        for name, seconds in seconds_by_name.items()
    ]


def processor_time() -> float:
    """Processor seconds of this process and of its child processes that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return process_time() + children.ru_utime + children.ru_stime


def main() -> None:
    from benchmarks.suite import BENCHMARKS

    job = Job.from_json(sys.argv[1])
    print(json.dumps(measure(job, BENCHMARKS[job.benchmark])))


if __name__ == "__main__":
    main()
