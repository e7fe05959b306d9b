"""The time from the start of the app to its first picture: in a headless browser, with the bundled model."""

from __future__ import annotations

import os
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks.benchmark import Benchmark, Case, Facts, Settings
from benchmarks.shapes import TI_16

STARTS = 3
ADDRESS, PAGE, TOTAL = "address printed, s", "picture in the page after that, s", "both, s"


def facts(case: Case, settings: Settings) -> Facts:
    from tests.driver import running_browser

    with running_browser() as browser:
        starts = [_start(browser) for _ in range(settings.repeats or case.repeats)]
    values = {name: median(start[name] for start in starts) for name in (ADDRESS, PAGE, TOTAL)}
    values["both, slowest, s"] = max(start[TOTAL] for start in starts)
    return {"From the command to the first picture": {case.name: values}}


def _start(browser: Any) -> dict[str, float]:
    """Seconds of one start, with an empty browser cache."""
    from tests.driver import running_app

    start_time = perf_counter()
    with running_app(os.environ) as address:
        address_time = perf_counter()
        context = browser.new_context(viewport={"width": 1400, "height": 1000})
        page = context.new_page()
        page.goto(address)
        page.locator(".vx-canvas[data-loaded]").first.wait_for(timeout=120_000)
        picture_time = perf_counter()
        context.close()
    return {ADDRESS: address_time - start_time, PAGE: picture_time - address_time, TOTAL: picture_time - start_time}


BENCHMARK = Benchmark(
    "start",
    "The start of the app",
    f"Medians of {STARTS} starts of `python app.py` in a process of its own, whose files the system has read before; "
    "headless Chromium, already open, opens the address as soon as it is printed.",
    # A case needs a shape; the app opens with the bundled model.
    (Case(TI_16, STARTS, variant="python app.py"),),
    facts=facts,
)
