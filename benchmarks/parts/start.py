"""How long whoever starts the app waits for its first picture: in a headless browser, with the model that ships."""

from __future__ import annotations

import os
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks.part import Case, Facts, Part, Settings
from benchmarks.shapes import TI_16

STARTS = 3
ADDRESS, PAGE, WHOLE = "address printed, s", "picture in the page after that, s", "both, s"


def facts(case: Case, settings: Settings) -> Facts:
    from tests.driver import running_browser

    with running_browser() as browser:
        found = [_start(browser) for _ in range(settings.repeats or case.repeats)]
    said = {name: median(one[name] for one in found) for name in (ADDRESS, PAGE, WHOLE)}
    said["both, slowest, s"] = max(one[WHOLE] for one in found)
    return {"From the command to the first picture": {case.name: said}}


def _start(browser: Any) -> dict[str, float]:
    """Seconds of one start; nothing of the page is in the browser's cache."""
    from tests.driver import running_app

    begun = perf_counter()
    with running_app(os.environ) as address:
        printed = perf_counter()
        context = browser.new_context(viewport={"width": 1400, "height": 1000})
        page = context.new_page()
        page.goto(address)
        page.locator(".vx-canvas[data-loaded]").first.wait_for(timeout=120_000)
        shown = perf_counter()
        context.close()
    return {ADDRESS: printed - begun, PAGE: shown - printed, WHOLE: shown - begun}


PART = Part(
    "start",
    "The start of the app",
    f"Medians of {STARTS} starts of `python app.py` in a process of its own, whose files the system has read before; "
    "headless Chromium, already open, opens the address as soon as it is printed.",
    # Of which no network is made: the app opens with its own.
    (Case(TI_16, STARTS, variant="python app.py"),),
    facts=facts,
)
