"""The cost of the page: the browser's main thread for one step of a control, and the time of a map from the server."""

from __future__ import annotations

import json
from collections.abc import Callable
from http.client import HTTPConnection
from statistics import median
from time import perf_counter, process_time
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from benchmarks.benchmark import Benchmark, Case, Facts, Settings
from benchmarks.models import Models
from benchmarks.shapes import B_16

STEPS, MAPS, QUICK_COUNT = 20, 20, 3
POLL_MS = 200
STEP_LIMIT_MS = 50.0
STEP_TABLE = "One step of a slider, main thread of the browser"
MAP_TABLE = "A map of the server, round trip, beside the library"
# The parameter that changes from map to map, so that no map is kept, and its values. The matrices of a rollout stay in
# memory, as on a page whose slider moves: with another weight of the residual connection it takes less than a request.
MAP_PARAMETERS: dict[tuple[str, str], Callable[[int], float]] = {
    ("rollout", "discard_ratio"): lambda index: round(0.05 + 0.02 * index, 2),
    ("rollout", "residual_weight"): lambda index: round(0.05 + 0.02 * index, 2),
}


def facts(case: Case, settings: Settings) -> Facts:
    from tests.driver import TOKENS, UNFOLD, running_browser, settle
    from tests.ui.explorer.page_driver import small_app

    model = Models(case.input_shape, settings.folder).vitviz
    with small_app(model) as app, running_browser() as browser:
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.goto(f"{app.address}/?__theme=light&{TOKENS}")
        settle(page)
        page.evaluate(UNFOLD)
        steps = QUICK_COUNT if settings.quick else STEPS
        step_facts = {
            "the layer of token attention, drawn here": _steps(page, "layer", steps),
            "the residual weight of rollout, a map of the server": _steps(_rollout(page), "residual_weight", steps),
        }
        maps = QUICK_COUNT if settings.quick else MAPS
        uid = str(page.locator(".vx-canvas").first.get_attribute("data-loaded"))
        map_facts = {
            f"{method}, another {name}": _maps(app, uid, method, name, maps) for method, name in MAP_PARAMETERS
        }
        page.close()
    return {STEP_TABLE: step_facts, MAP_TABLE: map_facts}


def _rollout(page: Any) -> Any:
    from tests.driver import choose_method

    choose_method(page, "rollout")
    return page


def _steps(page: Any, parameter: str, count: int) -> dict[str, float]:
    """Processor time of the browser's main thread for every step, until everything that follows from it is drawn."""
    from tests.driver import MAP_SECONDS, SETTLED

    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def busy_ms() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return 1000 * float(next(each["value"] for each in metrics if each["name"] == "TaskDuration"))

    slider = page.locator(f'.vx-parameter[data-name="{parameter}"] input[type=range]')
    slider.focus()
    times = []
    for step in range(count):
        start_ms = busy_ms()
        slider.press("ArrowLeft" if step % 6 < 3 else "ArrowRight")
        # The sheet and the address are updated after the drawing. Polling in every frame would itself take time.
        page.wait_for_function(SETTLED, polling=POLL_MS, timeout=1000 * MAP_SECONDS)
        times.append(busy_ms() - start_ms)
    session.detach()
    return {"median, ms": median(times), "95 %, ms": float(np.percentile(times, 95)), "bar, ms": STEP_LIMIT_MS}


def _maps(app: Any, uid: str, method: str, parameter: str, count: int) -> dict[str, float]:
    """Round trips of maps on one connection, and equal maps by the library, in turns; the app runs in this process."""
    connection = HTTPConnection(urlsplit(app.address).netloc)
    trips, library = [], []
    for index in range(2 * count):
        value = MAP_PARAMETERS[method, parameter](index)
        started, cpu = perf_counter(), process_time()
        if index % 2:
            app.analysis.map(method, **{parameter: value})
            library.append(process_time() - cpu)
        else:
            request = {"uid": uid, "method": method, "parameters": {parameter: value}}
            connection.request("POST", "/map", json.dumps(request), {"content-type": "application/json"})
            connection.getresponse().read()
            trips.append(perf_counter() - started)
    connection.close()
    trip, cost = median(trips), median(library)
    return {"round trip, s": trip, "library, s of a processor": cost, "ratio": trip / cost, "bar of the ratio": 1.5}


BENCHMARK = Benchmark(
    "page",
    "The page and its server",
    f"{STEPS} steps of each slider: processor time of the browser's main thread, as the browser counts it, for all "
    "that follows from a step, the sheet of all layers and heads and the address within. "
    f"{MAPS} rollouts, each with a value that no map before had, from the request to the last byte, and as many by the "
    "library, in turns, in processor time; headless Chromium, the app in the process that measures.",
    (Case(B_16, 1),),
    facts=facts,
)
