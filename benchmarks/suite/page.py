"""The cost of the page: the browser's main thread for one step of a control, and the time of a map from the server."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter, process_time, thread_time
from typing import Any

import numpy as np

from benchmarks.benchmark import Benchmark, Case, Facts, Settings
from benchmarks.models import Models
from benchmarks.shapes import B_16

STEPS, MAPS, QUICK_COUNT = 20, 9, 3
POLL_MS = 200
STEP_LIMIT_MS, MAP_LIMIT_RATIO = 50.0, 1.3
STEP_TABLE = "One step of a slider, main thread of the browser"
MAP_TABLE = "A map of the server, from the choice to the drawing, beside the library"
# By method, the parameter that changes from map to map, so that none is cached, and its values.
MAP_PARAMETERS: dict[str, tuple[str, Callable[[int], Any]]] = {
    "rollout": ("discard_ratio", lambda index: round(0.05 + 0.04 * index, 2)),
    "relevance": ("target", lambda index: 10 * index),
}


def facts(case: Case, settings: Settings) -> Facts:
    from tests.driver import TOKENS, running_browser, settle
    from tests.ui.explorer.page_driver import small_app

    model = Models(case.input_shape, settings.folder).vitviz
    with small_app(model) as app, running_browser() as browser:
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.goto(f"{app.address}/?__theme=light&{TOKENS}")
        settle(page)
        steps = QUICK_COUNT if settings.quick else STEPS
        step_facts = {
            "the layer of token attention, drawn here": _steps(page, "layer", steps),
            "the residual weight of rollout, a map of the server": _steps(_rollout(page), "residual_weight", steps),
        }
        map_facts = {
            method: _maps(page, app.analysis, method, QUICK_COUNT if settings.quick else MAPS)
            for method in MAP_PARAMETERS
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


def _maps(page: Any, analysis: Any, method: str, count: int) -> dict[str, float]:
    """Times of equal maps by the page and by the library, in turns; the app runs in this process."""
    from tests.driver import EXPLORER, choose_method

    choose_method(page, method)
    name, value = MAP_PARAMETERS[method]
    pairs, cpu_pairs = [], []
    for index in range(1, count + 1):
        page_value, library_value = value(2 * index), value(2 * index + 1)
        # This thread only drives the browser, so its own processor time does not count.
        started, start_cpu = perf_counter(), process_time() - thread_time()
        page.evaluate(
            f"""async ([name, value]) => {{
                const {{ store, panes }} = {EXPLORER}, before = panes[0].drawing;
                store.patchParameters(0, {{ [name]: value }});
                const frame = () => new Promise(requestAnimationFrame);
                while (!panes[0].values(undefined) || panes[0].drawing === before) await frame();
                await frame();
            }}""",
            [name, page_value],
        )
        page_seconds, page_cpu = perf_counter() - started, process_time() - thread_time() - start_cpu
        started, start_cpu = perf_counter(), process_time()
        analysis.map(method, **{name: library_value})
        pairs.append((page_seconds, perf_counter() - started))
        cpu_pairs.append((page_cpu, process_time() - start_cpu))
    return {
        "page, s": median(page_time for page_time, _ in pairs),
        "library, s": median(library_time for _, library_time in pairs),
        "ratio": median(page_time / library_time for page_time, library_time in pairs),
        "ratio of processor time": median(page_time / library_time for page_time, library_time in cpu_pairs),
        "bar of the ratio": MAP_LIMIT_RATIO,
    }


BENCHMARK = Benchmark(
    "page",
    "The page and its server",
    f"{STEPS} steps of each slider: processor time of the browser's main thread, as the browser counts it, for all "
    "that follows from a step, the sheet of all layers and heads and the address within. "
    f"{MAPS} maps of each method, each with a value that no map before had, from the page's request to its drawing, "
    "and as many in the library, in turns; headless Chromium, the app in the process that measures.",
    (Case(B_16, 1),),
    facts=facts,
)
