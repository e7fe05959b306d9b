"""The app in a process of its own, and a headless browser to drive it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Error,
    Locator,
    Page,
    Request,
    TimeoutError,
    expect,
    sync_playwright,
)

from tests.browser import find_browser
from tests.support.resting import DESKTOP, MOUNTING, close_resting, mount_again, rest
from vitviz import Analysis, Heatmap

ROOT = Path(__file__).parents[1]
# With it the page opens.
EXAMPLE = ROOT / "assets" / "chelsea.jpg"
# Resolutions for the bundled model: 4 and 8 patches a side, for what takes long; and more than it was trained with.
COARSEST, COARSE, FINER = 32, 64, 168
ARTEFACTS = Path(__file__).parent / "artefacts"
# The background services of the browser would look for hosts outside.
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # A camera that shows a test picture, and no question whether it may be used.
    "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream",
    # The pages of a context share a process, which would take longer to start than what many tests do with it.
    "--renderer-process-limit=1",
)
# Where Gradio keeps files; an app that is not told has a folder of its own.
FILES = "GRADIO_TEMP_DIR"
expect.set_options(timeout=30_000)


@contextmanager
def running_app(environment: Mapping[str, str], *arguments: str) -> Iterator[str]:
    """The address that `python app.py` prints, or `vitviz app` with arguments.

    Args:
        environment: of the process.
        *arguments: of `vitviz app`.
    """
    with app_process(environment, *arguments) as (address, _):
        yield address


@contextmanager
def app_process(environment: Mapping[str, str], *arguments: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The same, with its process."""
    own = ["-m", "vitviz", "app", *arguments] if arguments else [str(ROOT / "app.py")]
    command = [sys.executable, "-u", *own]
    # No fixed port: another app on this machine may hold it.
    kept = {name: value for name, value in environment.items() if name != "GRADIO_SERVER_PORT"}
    if kept.get(FILES) == os.environ.get(FILES):
        kept.pop(FILES, None)
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, env=kept, cwd=ROOT, **pipes) as app:
        assert app.stdout is not None
        printed, found = "", None
        try:
            for line in app.stdout:
                printed += line
                found = re.search(r"http://127\.0\.0\.1:\d+", line)
                if found:
                    yield found[0], app
                    break
            else:
                pytest.fail(f"the app printed no address: {printed}")
        finally:
            if found:
                close_resting(found[0])
            app.terminate()


@contextmanager
def running_browser() -> Iterator[Browser]:
    path = find_browser()
    assert path is not None, "no browser: run `python -m tests.browser`"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        # With an empty page, so that its process stays when another one is closed.
        context = browser.new_context(viewport=DESKTOP)
        context.add_init_script(MOUNTING)
        context.new_page()
        try:
            yield browser
        finally:
            # They cannot be closed without it.
            close_resting()


def new_page(browser: Browser) -> Page:
    """A page as large as a desktop's; the files of the app are fetched and compiled by the first one alone."""
    return browser.contexts[0].new_page()


# What the page says of itself to tests; undefined before it runs.
EXPLORER = """(() => {
    let part = document.querySelector("#vv-explorer .vx");
    while (part && !part.explorer) part = part.parentElement;
    return part?.explorer;
})()"""
# Nothing runs, link and controls are those of the state, and every map that is wanted is there or cannot be had.
# The page asks for its link when nothing has changed for a while; here that is asked for at once.
SETTLED = f"""() => {{
    const explorer = {EXPLORER};
    if (!explorer?.settled()) {{
        const asked = () => explorer.describe().catch(() => null).finally(() => {{ explorer.asking = null; }});
        if (explorer && !explorer.asking && !explorer.runs.running) explorer.asking = asked();
        return false;
    }}
    const {{ views, layout }} = explorer.store.state, isDouble = layout === "two" || layout === "difference";
    return explorer.panes.slice(0, isDouble ? 2 : 1).every((pane, index) => {{
        const {{ painter, packs }} = pane, {{ query }} = views[index].parameters;
        return painter && (packs.failure || (packs.loading.size === 0 && pane.values(query)));
    }});
}}"""
# What it still waits for.
UNSETTLED = f"""() => {{
    const explorer = {EXPLORER};
    if (!explorer) return "no explorer";
    const {{ panes, runs, store, latest }} = explorer, {{ running }} = runs;
    return JSON.stringify({{
        busy: document.querySelector("#vv-explorer .vx").getAttribute("aria-busy"),
        running: running && [running.slot, running.number, running.attempts, running.unknownCount, !!running.replaced],
        wanted: [...runs.queue.keys()], versions: [latest.version, store.version], state: store.state,
        panes: panes.map(({{ key, pendingKey, facts, painter, packs }}) => ({{
            key, pendingKey, uid: facts?.uid, picture: facts?.picture, painter: Boolean(painter),
            loading: [...packs?.loading ?? []], held: [...packs?.loaded.keys() ?? []],
            failed: [...packs?.failed ?? []].map(([name, error]) => [name, String(error)]),
        }})),
        said: [...document.querySelectorAll(".vx-status, .vx-notice, .vx-busy-text")].map((part) => part.textContent),
    }});
}}"""
# What was asked for has been drawn: the page draws once a frame.
DRAWN = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
# However busy the machine is.
MAP_SECONDS = 300
TOKENS = "method=attention"


@contextmanager
def opened_page(
    browser: Browser | BrowserContext, address: str, link: str = "", errors: list[str] | None = None
) -> Iterator[Page]:
    """The opened app; fails the test on a console error, a page error or a request that leaves this machine.

    The page of an earlier test is used again where one is at rest: its explorer is mounted anew.

    Args:
        browser, address: where it is opened, and where it runs; a browser stands for its first context.
        link: what its address asks for, behind the question mark; token attention where it names no map.
        errors: receives what goes wrong, which is looked at here otherwise.
    """
    asked = f"{address}/?__theme=light&{link if re.search(r'(^|&)method=', link) else f'{TOKENS}&{link}'}"
    context = browser if isinstance(browser, BrowserContext) else browser.contexts[0]
    page = mount_again(context, address, asked)
    is_new = page is None
    page = page or context.new_page()
    viewport = page.viewport_size
    try:
        with watched(page, address, errors):
            if is_new:
                page.goto(asked)
            settle(page)
            yield page
    except BaseException:
        page.close()
        raise
    if page.evaluate(f"() => {EXPLORER}?.settled() ?? false"):
        rest(page, address, viewport)
    else:
        page.close()


@contextmanager
def watched(page: Page, address: str, errors: list[str] | None = None) -> Iterator[None]:
    """Fails the test on an error of a page, or a request that leaves this machine."""
    wrong: list[str] = [] if errors is None else errors

    def console(message: ConsoleMessage) -> None:
        if message.type == "error":
            wrong.append(message.text)

    def request(sent: Request) -> None:
        if not sent.url.startswith((address, "data:", "blob:")):
            wrong.append(sent.url)

    def thrown(error: Error) -> None:
        wrong.append(str(error))

    page.on("console", console)
    page.on("pageerror", thrown)
    page.on("request", request)
    try:
        yield
    finally:
        page.remove_listener("console", console)
        page.remove_listener("pageerror", thrown)
        page.remove_listener("request", request)
    # What Gradio says of an error that no handler put into a sentence.
    wrong += page.locator(".toast-body").all_inner_texts()
    assert errors is not None or wrong == [], wrong


def settle(page: Page, seconds: float = MAP_SECONDS) -> None:
    """Wait until the page shows what its state says."""
    # A page behind another draws once a second.
    page.bring_to_front()
    try:
        page.wait_for_function(SETTLED, timeout=1000 * seconds, polling=25)
    except TimeoutError as error:
        raise AssertionError(f"the page does not come to rest: {page.evaluate(UNSETTLED)}") from error
    page.evaluate(DRAWN)


def state(page: Page) -> dict[str, Any]:
    """The state that the page shows."""
    found: dict[str, Any] = page.evaluate(f"{EXPLORER}.store.state")
    return found


def first_view(page: Page) -> dict[str, Any]:
    found: dict[str, Any] = state(page)["views"][0]
    return found


def shown_values(page: Page, pane: int = 0) -> np.ndarray:
    """What a canvas shows: ``"token"``, NaN for the prefix tokens of which the map says nothing."""
    found = page.evaluate(
        f"""(index) => {{
            const {{ panes, store }} = {EXPLORER}, {{ query }} = store.state.views[index].parameters;
            return Array.from(panes[index].values(query), (value) => Number.isNaN(value) ? null : value);
        }}""",
        pane,
    )
    return np.array([np.nan if value is None else value for value in found])


def canvas(page: Page, pane: int = 0) -> Locator:
    return page.locator(".vx-canvas").nth(pane)


def caption(page: Page, pane: int = 0) -> Locator:
    return page.locator(".vx-status").nth(pane)


def notice(page: Page) -> Locator:
    """What the page says of what did not go as asked."""
    return page.locator(".vx-notice span")


# What a visitor does.


def choose_method(page: Page, name: str) -> None:
    page.locator(".vx-method").select_option(name)
    settle(page)


def set_slider(page: Page, name: str, value: float) -> None:
    """Move the slider of a parameter of the map."""
    page.locator(f'.vx-parameter[data-name="{name}"] input[type=range]').fill(str(value))
    settle(page)


def choose_option(page: Page, name: str, value: object) -> None:
    """Choose one of the values that a parameter of the map offers."""
    option = json.dumps(value).replace("\\", "\\\\").replace('"', '\\"')
    page.locator(f'.vx-parameter[data-name="{name}"] input[value="{option}"]').check()
    settle(page)


def choose_example(page: Page, name: str) -> None:
    page.locator(f'.vx-examples button[data-example="example:{name}"]').click()
    settle(page)


def choose_model(page: Page, name: str) -> None:
    """Choose a model of the menu, by the id that the state has for it."""
    page.locator(".vx-models > summary").click()
    page.locator(f'.vx-menu button[data-model="{name}"]').click()
    settle(page)


def open_panel(page: Page, name: str) -> Locator:
    """Open one of the panels below the canvas."""
    panel = page.locator(f'.vx-panel[data-panel="{name}"]')
    if panel.get_attribute("open") is None:
        panel.locator("summary").first.click()
    settle(page)
    return panel


def open_settings(page: Page) -> Locator:
    """Open the controls of how a picture is brought to the model."""
    part = page.locator(".vx-seen")
    if part.get_attribute("open") is None:
        part.locator("summary").click()
    return part


def upload(page: Page, file: Any) -> None:
    """Hand over a picture, and wait until it is shown, or until the page says why it is not.

    Args:
        page: which gets it.
        file: its path, or its name, type and content as Playwright takes them.
    """
    with page.expect_request(lambda sent: "/queue/join" in sent.url):
        page.locator(".vx-drop .vx-file").set_input_files(file)
    settle(page)


def place_of(page: Page, analysis: Analysis, row: int, column: int, pane: int = 0) -> dict[str, float]:
    """The middle of a patch, in pixels of the canvas."""
    edges, layout = canvas(page, pane).bounding_box(), analysis.trace.layout
    assert edges is not None
    left, top, right, bottom = analysis.prepared.geometry.patch_rectangle(
        row, column, layout.grid_height, layout.grid_width
    )
    width, height = analysis.prepared.image.size
    return {"x": (left + right) / 2 / width * edges["width"], "y": (top + bottom) / 2 / height * edges["height"]}


def click_patch(page: Page, analysis: Analysis, row: int, column: int, pane: int = 0) -> None:
    canvas(page, pane).click(position=place_of(page, analysis, row, column, pane))
    settle(page)


def expect_map(page: Page, heatmap: Heatmap, pane: int = 0) -> None:
    """The caption is the library's description, and the values are the library's."""
    expect(caption(page, pane)).to_contain_text(heatmap.description)
    settle(page)
    layout_values = heatmap.values.double().numpy().ravel()
    found = shown_values(page, pane)[-layout_values.size :]
    np.testing.assert_allclose(found, layout_values, atol=0.01 * float(np.abs(layout_values).max()), rtol=0)
