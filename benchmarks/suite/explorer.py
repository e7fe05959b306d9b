"""The time from a move of the pointer to the explorer's drawing: in a headless browser, from its file on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import vitviz
from benchmarks.benchmark import Benchmark, Case, Facts, Settings
from benchmarks.models import Models
from benchmarks.shapes import B_14, B_16, S_8
from vitviz.weights import resources

# Moves of the pointer, and the rest after each: one frame, in milliseconds.
MOVES, REST_MS = 300, 17
# Limits of the 95th percentile in milliseconds: one and two frames of a screen.
LIMITS_MS = {B_16.title: 17.0, B_14.title: 33.0}
HOVER_TIMES = "document.querySelector('.vx').parentElement.explorer.timings.hovers"


def facts(case: Case, settings: Settings) -> Facts:
    from tests.driver import running_browser
    from vitviz.ui.explorer.saved_page import whole_page

    analysis = vitviz.analyze(resources("assets") / "chelsea.jpg", Models(case.input_shape, settings.folder).vitviz)
    file = Path(settings.folder) / f"explorer-{case.input_shape.tokens}.html"
    file.write_text(whole_page(analysis))
    with running_browser() as browser:
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.goto(file.as_uri(), timeout=120_000)
        page.locator(".vx-canvas[data-loaded]").first.wait_for(timeout=120_000)
        times = _hover(page, MOVES // 10 if settings.quick else MOVES)
        page.close()
    bar = LIMITS_MS.get(case.name)
    values = {"median, ms": np.percentile(times, 50), "95 %, ms": np.percentile(times, 95)}
    values |= {} if bar is None else {"bar of the 95 %, ms": bar}
    return {"From a move of the pointer to the drawing": {case.name: values | {"file, MB": file.stat().st_size / 1e6}}}


def _hover(page: Any, moves: int) -> list[float]:
    """Milliseconds from every event to the end of its drawing, including the wait for the next frame of the screen."""
    edges = page.locator(".vx-canvas").first.bounding_box()
    points = np.random.default_rng(0).uniform(0.05, 0.95, (moves, 2))
    for across, down in points:
        # Stay in the middle of the picture, which is visible with every fit.
        page.mouse.move(edges["x"] + edges["width"] * (0.25 + across / 2), edges["y"] + edges["height"] * down)
        page.wait_for_timeout(REST_MS)
    hovers: list[float] = page.evaluate(HOVER_TIMES)
    return hovers


BENCHMARK = Benchmark(
    "explorer",
    "The explorer",
    f"{MOVES} moves of the pointer over the picture, with the mean of all heads; headless Chromium without a GPU, "
    "whose next frame comes after up to 17 ms. The sheet of all layers and heads follows in slices of time.",
    (Case(B_16, 1), Case(B_14, 1), Case(S_8, 1, resolution=480)),
    facts=facts,
)
