"""How soon the explorer has drawn what is under the pointer: in a headless browser, from its file on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import vitviz
from benchmarks.models import Models
from benchmarks.part import Case, Facts, Part, Settings
from benchmarks.shapes import B_14, B_16, S_8
from vitviz.weights.load import resources

# At so many places, with a rest of one frame between them.
MOVES, REST = 300, 17
# The largest time that still is one frame of a screen, and two, at the 95th percentile.
BARS = {B_16.title: 17.0, B_14.title: 33.0}
MEASURED = "document.querySelector('.vx').parentElement.explorer.measured.hovers"


def facts(case: Case, settings: Settings) -> Facts:
    from tests.driver import running_browser
    from vitviz.ui.explorer import whole_page

    analysis = vitviz.analyze(resources("assets") / "chelsea.jpg", Models(case.seen, settings.folder).vitviz)
    file = Path(settings.folder) / f"explorer-{case.seen.tokens}.html"
    file.write_text(whole_page(analysis))
    with running_browser() as browser:
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.goto(file.as_uri(), timeout=120_000)
        page.locator(".vx-canvas[data-loaded]").first.wait_for(timeout=120_000)
        found = _hover(page, MOVES // 10 if settings.quick else MOVES)
        page.close()
    bar = BARS.get(case.name)
    said = {"median, ms": np.percentile(found, 50), "95 %, ms": np.percentile(found, 95)}
    said |= {} if bar is None else {"bar of the 95 %, ms": bar}
    return {"From a move of the pointer to the drawing": {case.name: said | {"file, MB": file.stat().st_size / 1e6}}}


def _hover(page: Any, moves: int) -> list[float]:
    """Milliseconds from every event to the end of its drawing, the waiting for the screen's next frame within."""
    edges = page.locator(".vx-canvas").first.bounding_box()
    places = np.random.default_rng(0).uniform(0.05, 0.95, (moves, 2))
    for across, down in places:
        # The middle of the picture, which every fit of it shows.
        page.mouse.move(edges["x"] + edges["width"] * (0.25 + across / 2), edges["y"] + edges["height"] * down)
        page.wait_for_timeout(REST)
    hovers: list[float] = page.evaluate(MEASURED)
    return hovers


PART = Part(
    "explorer",
    "The explorer",
    f"{MOVES} moves of the pointer over the picture, with the mean of all heads; headless Chromium without a graphics "
    "card, whose next frame comes after up to 17 ms. The sheet of all layers and heads follows in slices of time.",
    (Case(B_16, 1), Case(B_14, 1), Case(S_8, 1, resolution=480)),
    facts=facts,
)
