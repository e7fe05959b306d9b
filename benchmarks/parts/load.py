"""What becomes of the app when many visit it at once."""

from __future__ import annotations

import asyncio

from benchmarks.load import Plan, measure
from benchmarks.load_tally import facts_of, printed
from benchmarks.part import Case, Facts, Part, Settings
from benchmarks.shapes import Shape

BUNDLED = Shape("the bundled model", 32, 4, 192, 6, depth=6, classes=10)
TRIED = Plan(sessions=2, arrive=0.0, think=0.0, resolution=64, most_seconds=120.0, most_requests=1000)


def facts(case: Case, settings: Settings) -> Facts:
    tally = asyncio.run(measure(TRIED if settings.quick else Plan()))
    if not tally.analyses or tally.stopped:
        raise RuntimeError(printed(tally).splitlines()[-1])
    return facts_of(tally)


PART = Part(
    "load",
    "Many visitors at once",
    f"{Plan.sessions} sessions over HTTP, without browsers: each uploads a picture of its own, fetches what the "
    "explorer draws from, opens a model of its own, goes back to the bundled one and leaves, every fifth in the middle "
    "of it; what each is shown is held against what the library computes. Then half as many again, and one visitor "
    f"beside a large analysis ({Plan.resolution:,} pixels). The app and the visitors share the cores.",
    (Case(BUNDLED, 1, variant=f"{Plan.sessions} visitors"),),
    facts=facts,
)
