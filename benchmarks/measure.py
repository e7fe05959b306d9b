"""One measurement in a process of its own: a job as JSON on the command line, its entries as one line of JSON."""

from __future__ import annotations

import json
import resource
import sys
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from benchmarks.part import Part, Settings

Entry = dict[str, Any]
"""One row of the results: ``case``, ``contestant``, ``kind`` and what belongs to the kind."""


@dataclass(frozen=True)
class Job:
    """What one process measures.

    Args:
        part, case: by name.
        kind: ``"time"`` of all contestants in turn, ``"memory"`` of one of them, or ``"facts"``.
        contestant: whose memory.
        settings: of the whole run.
    """

    part: str
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


def measure(job: Job, part: Part) -> list[Entry]:
    """The entries of a job."""
    import torch

    torch.set_num_threads(job.settings.threads)
    torch.manual_seed(0)
    case = next(case for case in part.chosen(job.settings) if case.name == job.case)
    if job.kind == "facts":
        assert part.facts is not None
        facts = part.facts(case, job.settings)
        return [
            {"case": table, "contestant": row, "kind": "facts", "values": values}
            for table, rows in facts.items()
            for row, values in rows.items()
        ]
    assert part.contestants is not None
    makes = part.contestants(case, job.settings)
    if job.kind == "memory":
        from benchmarks.memory import peak_bytes

        assert job.contestant is not None
        peak = peak_bytes(makes[job.contestant]())
        return [{"case": case.name, "contestant": job.contestant, "kind": "memory", "bytes": peak}]
    from benchmarks.spread import median_interval, ratios, spread
    from benchmarks.timing import interleave

    runs = {name: make() for name, make in makes.items()}
    clock = processor_time if part.paired else perf_counter
    found = interleave(runs, job.settings.repeats or case.repeats, clock, alternate=part.paired)
    baseline = next(iter(found))
    return [
        {
            "case": case.name,
            "contestant": name,
            "kind": "time",
            "tokens": case.seen.tokens,
            "seconds": spread([value / case.images for value in seconds])._asdict(),
            "ratio": spread(ratios(seconds, found[baseline]))._asdict(),
            **({"interval": median_interval(ratios(seconds, found[baseline]))} if part.paired else {}),
            "baseline": baseline,
        }
        for name, seconds in found.items()
    ]


def processor_time() -> float:
    """Seconds of all processors for this process and those that it started and that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return process_time() + ended.ru_utime + ended.ru_stime


def main() -> None:
    from benchmarks.parts import PARTS

    job = Job.from_json(sys.argv[1])
    print(json.dumps(measure(job, PARTS[job.part])))


if __name__ == "__main__":
    main()
