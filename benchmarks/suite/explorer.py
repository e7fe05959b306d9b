"""The time from a move of the pointer to the explorer's drawing: in a headless browser, from its file on disk."""

from __future__ import annotations

from typing import Any

import numpy as np

import vitviz
from benchmarks.benchmark import Benchmark, Case, Models
from benchmarks.networks import B_14, B_16, S_8
from vitviz.weights import resources

# Moves of the pointer, and the rest after each: one frame, in milliseconds.
MOVES, REST_MS = 300, 17
HIGH = "95 %, ms"
HOVER_TIMES = "document.querySelector('.vx').parentElement.explorer.timings.hovers"


def facts(models: Models) -> dict[str, float]:
    from tests.driver import running_browser
    from vitviz.ui.explorer.saved_page import whole_page

    file = models.settings.folder / "explorer.html"
    file.write_text(whole_page(vitviz.analyze(resources("assets") / "chelsea.jpg", models.vitviz)))
    with running_browser() as browser:
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.goto(file.as_uri(), timeout=120_000)
        page.locator(".vx-canvas[data-loaded]").first.wait_for(timeout=120_000)
        edges: Any = page.locator(".vx-canvas").first.bounding_box()
        # In the middle of the picture, which is visible with every fit.
        for across, down in np.random.default_rng(0).uniform(
            0.25, 0.75, (MOVES // 10 if models.settings.quick else MOVES, 2)
        ):
            page.mouse.move(edges["x"] + edges["width"] * across, edges["y"] + edges["height"] * down)
            page.wait_for_timeout(REST_MS)
        # Until the end of each drawing, with the wait for the next frame of the screen.
        times = page.evaluate(HOVER_TIMES)
    return {"median, ms": np.median(times), HIGH: np.percentile(times, 95), "file, MB": file.stat().st_size / 1e6}


BENCHMARK = Benchmark(
    "explorer",
    "From a move of the pointer to the drawing",
    f"{MOVES} moves of the pointer over the picture, with the mean of all heads; headless Chromium without a GPU, "
    "whose next frame comes after up to 17 ms. The sheet of all layers and heads follows in slices of time.",
    (Case(B_16, 1), Case(B_14, 1), Case(S_8.at(480), 1)),
    facts=facts,
    bars={("", HIGH): (17.0, 33.0, None)},
)
