"""The app under many visitors at once."""

from __future__ import annotations

import asyncio

from benchmarks.benchmark import Benchmark, Case, Facts, Settings
from benchmarks.load import Plan, measure
from benchmarks.load_tally import facts_of, tables
from benchmarks.shapes import Shape

BUNDLED = Shape("the bundled model", 112, 8, 384, 6, depth=8, classes=108)
QUICK_PLAN = Plan(sessions=3, hostile=1, arrive=0.0, think=0.0, most_seconds=120.0, most_requests=1000)


def facts(case: Case, settings: Settings) -> Facts:
    tally = asyncio.run(measure(QUICK_PLAN if settings.quick else Plan()))
    if not tally.analyses or tally.limit_error:
        raise RuntimeError(tables(tally).splitlines()[-1])
    return facts_of(tally)


BENCHMARK = Benchmark(
    "load",
    "Many visitors at once",
    f"{Plan.sessions} sessions over HTTP, without browsers: each uploads a picture of its own, fetches what the "
    "explorer draws from, opens a model of its own, goes back to the bundled one and leaves, every fifth in the middle "
    f"of it; what each is shown is held against what the library computes. {Plan.hostile} are hostile; the others come "
    "once more without these. The app and the visitors share the cores.",
    (Case(BUNDLED, 1, variant=f"{Plan.sessions} visitors"),),
    facts=facts,
)
