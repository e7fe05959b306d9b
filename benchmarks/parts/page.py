"""What the page costs: the browser's main thread for one step of a control, and the way of a map from the server."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter, process_time, thread_time
from typing import Any

import numpy as np

from benchmarks.models import Models
from benchmarks.part import Case, Facts, Part, Settings
from benchmarks.shapes import B_16

STEPS, MAPS, QUICK = 20, 9, 3
# In milliseconds.
LOOK_EVERY = 200
STEP_BAR, MAP_BAR = 50.0, 1.3
STEPPED = "One step of a slider, main thread of the browser"
FETCHED = "A map of the server, from the choice to the drawing, beside the library"
# Each with a parameter that no map before it had, and the values that it takes.
MAPS_OF: dict[str, tuple[str, Callable[[int], Any]]] = {
    "rollout": ("discard_ratio", lambda index: round(0.05 + 0.04 * index, 2)),
    "relevance": ("target", lambda index: 10 * index),
}


def facts(case: Case, settings: Settings) -> Facts:
    from tests.driver import TOKENS, running_browser, settle
    from tests.ui.explorer.page_driver import small_app

    model = Models(case.seen, settings.folder).vitviz
    with small_app(model) as app, running_browser() as browser:
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.goto(f"{app.address}/?__theme=light&{TOKENS}")
        settle(page)
        steps = QUICK if settings.quick else STEPS
        stepped = {
            "the layer of token attention, drawn here": _steps(page, "layer", steps),
            "the residual weight of rollout, a map of the server": _steps(_rollout(page), "residual_weight", steps),
        }
        fetched = {method: _maps(page, app.analysis, method, QUICK if settings.quick else MAPS) for method in MAPS_OF}
        page.close()
    return {STEPPED: stepped, FETCHED: fetched}


def _rollout(page: Any) -> Any:
    from tests.driver import choose_method

    choose_method(page, "rollout")
    return page


def _steps(page: Any, parameter: str, count: int) -> dict[str, float]:
    """Processor time of the browser's main thread for every step, with all that follows from it until it is drawn."""
    from tests.driver import MAP_SECONDS, SETTLED

    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def busy() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return 1000 * float(next(each["value"] for each in metrics if each["name"] == "TaskDuration"))

    slider = page.locator(f'.vx-parameter[data-name="{parameter}"] input[type=range]')
    slider.focus()
    found = []
    for step in range(count):
        before = busy()
        slider.press("ArrowLeft" if step % 6 < 3 else "ArrowRight")
        # The sheet and the address follow after the drawing. To look in every frame would itself be work.
        page.wait_for_function(SETTLED, polling=LOOK_EVERY, timeout=1000 * MAP_SECONDS)
        found.append(busy() - before)
    session.detach()
    return {"median, ms": median(found), "95 %, ms": float(np.percentile(found, 95)), "bar, ms": STEP_BAR}


def _maps(page: Any, analysis: Any, method: str, count: int) -> dict[str, float]:
    """Times of the page and of the library for the same maps, in turns; the app runs in this process."""
    from tests.driver import EXPLORER, choose_method

    choose_method(page, method)
    name, value = MAPS_OF[method]
    pairs, processor = [], []
    for index in range(1, count + 1):
        asked, own = value(2 * index), value(2 * index + 1)
        # This thread only drives the browser meanwhile, which is no part of the app.
        started, used = perf_counter(), process_time() - thread_time()
        page.evaluate(
            f"""async ([name, value]) => {{
                const {{ store, panes }} = {EXPLORER}, before = panes[0].shown;
                store.patchParameters(0, {{ [name]: value }});
                const frame = () => new Promise(requestAnimationFrame);
                while (!panes[0].values(undefined) || panes[0].shown === before) await frame();
                await frame();
            }}""",
            [name, asked],
        )
        shown, shown_used = perf_counter() - started, process_time() - thread_time() - used
        started, used = perf_counter(), process_time()
        analysis.map(method, **{name: own})
        pairs.append((shown, perf_counter() - started))
        processor.append((shown_used, process_time() - used))
    return {
        "page, s": median(page_time for page_time, _ in pairs),
        "library, s": median(own_time for _, own_time in pairs),
        "ratio": median(one / other for one, other in pairs),
        "ratio of processor time": median(one / other for one, other in processor),
        "bar of the ratio": MAP_BAR,
    }


PART = Part(
    "page",
    "The page and its server",
    f"{STEPS} steps of each slider: processor time of the browser's main thread, as the browser counts it, for all "
    "that follows from a step, the sheet of all layers and heads and the address within. "
    f"{MAPS} maps of each method, each with a value that no map before had, from the page's request to its drawing, "
    "and as many in the library, in turns; headless Chromium, the app in the process that measures.",
    (Case(B_16, 1),),
    facts=facts,
)
