"""Runs the app in another process, and drives its page in a headless browser."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any
from urllib.parse import urljoin
from weakref import WeakKeyDictionary

import numpy as np
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Error,
    FloatRect,
    Locator,
    Page,
    Request,
    TimeoutError,
    ViewportSize,
    expect,
    sync_playwright,
)

from tests.browser import find_browser
from tests.support.example import FILES, ROOT
from tests.support.waiting import HANG_SECONDS, wait_until
from vitviz import Analysis, Heatmap

DESKTOP: ViewportSize = {"width": 1400, "height": 1000}
ARTEFACTS = Path(__file__).parent / "artefacts"
# The variable that asks for pictures of what tests see: to encode a whole page takes as long as many a test.
PICTURES = "VITVIZ_PICTURES"
# The background services of the browser would contact other hosts.
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # A camera that shows a test picture, without asking for permission.
    "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream",
    # The pages of a context share a process: to start one takes longer than many tests.
    "--renderer-process-limit=1",
)
expect.set_options(timeout=1000 * HANG_SECONDS)


@contextmanager
def running_app(environment: Mapping[str, str], *arguments: str) -> Iterator[str]:
    """The address that `python app.py` prints, or `vitviz app` with arguments.

    Args:
        environment: environment of the process.
        *arguments: arguments of `vitviz app`.
    """
    with TemporaryFile("w+") as output, app_process(environment, output, *arguments) as (address, _):
        yield address


@contextmanager
def app_process(
    environment: Mapping[str, str], output: IO[str], *arguments: str
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The same, with its process, which writes into a file: a pipe that nobody reads would fill up."""
    entry = ["-m", "vitviz", "app", *arguments] if arguments else [str(ROOT / "app.py")]
    command = [sys.executable, "-u", *entry]
    # No fixed port: another app on this machine may hold it.
    variables = {name: value for name, value in environment.items() if name != "GRADIO_SERVER_PORT"}
    if variables.get(FILES) == os.environ.get(FILES):
        variables.pop(FILES, None)

    address = r"http://127\.0\.0\.1:\d+"

    def printed() -> str:
        return os.pread(output.fileno(), 2**20, 0).decode(errors="replace")

    with subprocess.Popen(command, env=variables, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT) as app:
        try:
            wait_until(lambda: re.search(address, printed()) or app.poll() is not None)
            match = re.search(address, printed())
            assert match, f"the app printed no address: {printed()}"
            yield match[0], app
        finally:
            app.terminate()


@contextmanager
def running_browser() -> Iterator[Browser]:
    path = find_browser()
    assert path is not None, "no browser: run `python -m tests.browser`"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        # An empty page keeps its process alive when another page is closed.
        # Playwright evaluates texts, which the page's policy forbids.
        new_context(browser, viewport=DESKTOP, bypass_csp=True, reduced_motion="reduce").new_page()
        yield browser


def new_context(browser: Browser, **options: Any) -> BrowserContext:
    """A context of a browser, whose pages wait for as long as only a hang takes."""
    context = browser.new_context(**options)
    context.set_default_timeout(1000 * HANG_SECONDS)
    return context


def new_page(browser: Browser) -> Page:
    """A page as large as a desktop's; the files of the app are fetched and compiled by the first one alone."""
    return browser.contexts[0].new_page()


# What the page says of itself to tests; undefined before it runs.
EXPLORER = """(() => {
    let part = document.querySelector("#vv-explorer .vx");
    while (part && !part.explorer) part = part.parentElement;
    return part?.explorer;
})()"""
# The page is settled if nothing runs, link and controls match the state, and every map was loaded or has failed.
# The page asks for its link a moment after the last change; here it does so at once.
SETTLED = f"""() => {{
    const explorer = {EXPLORER};
    if (!explorer?.settled()) {{
        const describe = () => explorer.describe().catch(() => null).finally(() => {{ explorer.asking = null; }});
        if (explorer && !explorer.asking && !explorer.requests.running) explorer.asking = describe();
        return false;
    }}
    const {{ views, layout }} = explorer.store.state, isDouble = ["two", "difference", "alike"].includes(layout);
    return explorer.panes.slice(0, isDouble ? views.length : 1).every((pane, index) => {{
        const {{ alone, painter, packs }} = pane, {{ query }} = views[index].parameters;
        const isThere = () => (layout === "alike" ? pane.find("canvas").dataset.loaded : pane.values(query));
        return alone || painter && (packs.failure || (packs.loading.size === 0 && isThere()));
    }});
}}"""
# What the page still waits for.
UNSETTLED = f"""() => {{
    const explorer = {EXPLORER};
    if (!explorer) return "no explorer";
    const {{ panes, requests, store, latest }} = explorer, {{ running }} = requests;
    return JSON.stringify({{
        busy: document.querySelector("#vv-explorer .vx").getAttribute("aria-busy"),
        running: running && [running.slot, running.number, !!running.replaced],
        wanted: [...requests.queue.keys()], versions: [latest.version, store.version], state: store.state,
        panes: panes.map(({{ key, pendingKey, facts, painter, packs }}) => ({{
            key, pendingKey, uid: facts?.uid, picture: facts?.picture, painter: Boolean(painter),
            loading: [...packs?.loading ?? []], held: [...packs?.loaded.keys() ?? []],
            failed: [...packs?.failed ?? []].map(([name, error]) => [name, String(error)]),
        }})),
        texts: [...document.querySelectorAll(".vx-status, .vx-notice, .vx-busy-text")].map((node) => node.textContent),
    }});
}}"""
# The page draws once a frame, so after two frames every change is drawn.
NEXT_FRAMES = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
# Opens what is folded beside the picture.
UNFOLD = "document.querySelectorAll('.vx-fold:not(.vx-panel)').forEach((each) => { each.open = true; })"
# Brings a page back to its beginning, and opens a link as the way back to it does.
RESTART = """(link) => {
    const root = document.querySelector("#vv-explorer .vx"), find = (name) => root.querySelector(name);
    document.activeElement.blur();
    document.body.classList.remove("dark");
    document.documentElement.style.colorScheme = "light";
    root.classList.remove("vx-projected");
    if (find(".vx-play").ariaPressed === "true") find(".vx-play").click();
    find(".vx-shot").close();
    for (const part of root.querySelectorAll("details:not(.vx-probe-table)")) part.open = false;
    for (const field of root.querySelectorAll(".vx-search, .vx-own input")) field.value = "";
    find(".vx-search").dispatchEvent(new Event("input"));
    find(".vx-compare-scale").checked = false;
    scrollTo(0, 0);
    // Nothing that was opened before is covered by the page itself.
    dispatchEvent(new KeyboardEvent("keydown", { key: "Shift" }));
    history.pushState(null, "", link);
    dispatchEvent(new PopStateEvent("popstate", { state: null }));
}"""
# Of each context, the pages that tests share by the addresses of their apps, with their sizes.
KEPT_PAGES: WeakKeyDictionary[BrowserContext, dict[str, tuple[Page, ViewportSize]]] = WeakKeyDictionary()
# Long enough for a busy machine.
MAP_SECONDS = 300
TOKENS = "method=attention"


@contextmanager
def opened_page(
    browser: Browser | BrowserContext, address: str, link: str = "", errors: list[str] | None = None
) -> Iterator[Page]:
    """The app in a page of its own; fails the test on a console error, a page error or a request to elsewhere.

    Args:
        browser, address: browser or context to open it in (of a browser, its first context), and address of the app.
        link: query string of the address; the map is token attention unless it names another.
        errors: receives the errors; without it, any error fails the test.
    """
    page = context_of(browser).new_page()
    try:
        with watch_errors(page, address, errors):
            page.goto(f"{address}{path_of(link)}")
            settle(page)
            page.evaluate(UNFOLD)
            yield page
            keep_picture(page)
    finally:
        page.close()


@contextmanager
def page_at(browser: Browser | BrowserContext, address: str, link: str = "") -> Iterator[Page]:
    """The same in a page that tests share, which is brought back to its beginning: to open one takes as long as a test.

    One that a test leaves by an error is closed.
    """
    context = context_of(browser)
    kept = KEPT_PAGES.setdefault(context, {})
    page, size = kept.pop(address, (None, None))
    if page is None or size is None:
        page = context.new_page()
        size = page.viewport_size or DESKTOP
        page.goto(f"{address}{path_of(link)}")
    else:
        if page.viewport_size != size:
            page.set_viewport_size(size)
        page.mouse.move(1, 1)
        page.evaluate(RESTART, path_of(link))
    is_sound = False
    try:
        with watch_errors(page, address):
            settle(page)
            page.evaluate(UNFOLD)
            yield page
            keep_picture(page)
        page.unroute_all()
        is_sound = address not in kept
    finally:
        if is_sound:
            kept[address] = page, size
        else:
            page.close()


@contextmanager
def saved_page(browser: Browser, file: Path, size: ViewportSize = DESKTOP) -> Iterator[Page]:
    """A saved explorer, opened from disk; fails the test on an error, and on a request to anything but itself."""
    page = new_page(browser)
    try:
        page.set_viewport_size(size)
        with watch_errors(page, file.as_uri()):
            page.goto(file.as_uri())
            # The analysis whose map is drawn; empty where a map is missing.
            expect(page.locator(".vx-canvas").first).to_have_attribute("data-loaded", "page")
            yield page
    finally:
        page.close()


class Watched:
    """What a page asks for, and the errors that it shows.

    Args:
        page: that was not opened yet.
    """

    def __init__(self, page: Page) -> None:
        self.page, self.requests, self.errors = page, list[Request](), list[str]()
        page.on("request", lambda request: self.requests.append(request))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)


def context_of(browser: Browser | BrowserContext) -> BrowserContext:
    return browser if isinstance(browser, BrowserContext) else browser.contexts[0]


def path_of(link: str) -> str:
    return f"/?__theme=light&{link if re.search(r'(^|&)method=', link) else f'{TOKENS}&{link}'}"


def open_link(page: Page, link: str) -> None:
    """Open a link of the app in the place of the page."""
    page.goto(urljoin(page.url, link))
    page.evaluate(UNFOLD)


def is_unexpected(message: ConsoleMessage) -> bool:
    """Whether a message is an error, and not about a request that was refused, has expired, or that a test cuts off."""
    return message.type == "error" and not re.search(r"Failed to load resource: .*(40\d|410|ERR_FAILED)", message.text)


@contextmanager
def watch_errors(page: Page, address: str, errors: list[str] | None = None) -> Iterator[None]:
    """Fail the test on an error of a page, or a request that leaves this machine."""
    failures: list[str] = [] if errors is None else errors

    def on_console(message: ConsoleMessage) -> None:
        if is_unexpected(message):
            failures.append(message.text)

    def on_request(request: Request) -> None:
        if not request.url.startswith((address, "data:", "blob:")):
            failures.append(request.url)

    def on_error(error: Error) -> None:
        failures.append(str(error))

    page.on("console", on_console)
    page.on("pageerror", on_error)
    page.on("request", on_request)
    try:
        yield
    finally:
        page.remove_listener("console", on_console)
        page.remove_listener("pageerror", on_error)
        page.remove_listener("request", on_request)
    assert errors is not None or failures == [], failures


def settle(page: Page, seconds: float = MAP_SECONDS) -> None:
    """Wait until the page shows its state."""
    # A page in the background draws only once a second.
    page.bring_to_front()
    try:
        page.wait_for_function(SETTLED, timeout=1000 * seconds, polling=25)
    except TimeoutError as error:
        raise AssertionError(f"the page does not come to rest: {page.evaluate(UNSETTLED)}") from error
    page.evaluate(NEXT_FRAMES)


def keep_picture(page: Page) -> None:
    """Keep a picture of the page as a test leaves it, where `PICTURES` asks for it."""
    if os.environ.get(PICTURES):
        name = re.sub(r"\W+", "-", os.environ["PYTEST_CURRENT_TEST"].rpartition("/")[2])
        page.screenshot(path=ARTEFACTS / f"{name}.png", full_page=True)


def click(page: Page, selector: str) -> None:
    """Click the first such part of the page, and wait until the page shows what came of it."""
    page.locator(selector).first.click()
    settle(page)


def state(page: Page) -> dict[str, Any]:
    """The state that the page shows, once it is at rest."""
    settle(page)
    values: dict[str, Any] = page.evaluate(f"{EXPLORER}.store.state")
    return values


def first_view(page: Page) -> dict[str, Any]:
    view: dict[str, Any] = state(page)["views"][0]
    return view


def canvas_values(page: Page, pane: int = 0) -> np.ndarray:
    """The values ``"token"`` of a canvas; NaN for prefix tokens that the map has no value for."""
    values = page.evaluate(
        f"""(index) => {{
            const {{ panes, store }} = {EXPLORER}, {{ query }} = store.state.views[index].parameters;
            return Array.from(panes[index].values(query), (value) => Number.isNaN(value) ? null : value);
        }}""",
        pane,
    )
    return np.array([np.nan if value is None else value for value in values])


def box_of(part: Locator) -> FloatRect:
    """Where a part of the page is in the window."""
    box = part.bounding_box()
    assert box is not None
    return box


def canvas(page: Page, pane: int = 0) -> Locator:
    return page.locator(".vx-canvas").nth(pane)


def caption(page: Page, pane: int = 0) -> Locator:
    return page.locator(".vx-status").nth(pane)


def notice(page: Page) -> Locator:
    """The message of the page about a request that failed."""
    return page.locator(".vx-notice span")


# Actions of a visitor.


def open_menu(page: Page, name: str) -> None:
    """Open a menu of the head: pictures, models."""
    menu = page.locator(f".vx-{name}")
    if not menu.evaluate("menu => menu.open"):
        menu.locator("summary").first.click()


def close_menus(page: Page) -> None:
    """Close what is open over the picture."""
    if page.locator(".vx-menu-of[open]").count():
        page.keyboard.press("Escape")
    expect(page.locator(".vx-menu-of[open]")).to_have_count(0)


def choose_layout(page: Page, name: str) -> None:
    """Choose one map, a divider over it ("slide"), "two", or also their "difference"."""
    compare, is_paired = page.locator(".vx-compare-open"), name in ("two", "difference")
    if (compare.get_attribute("aria-pressed") == "true") != is_paired:
        compare.click()
    if is_paired:
        page.locator(".vx-difference").set_checked(name == "difference")
    else:
        page.locator(".vx-divider").fill("0.5" if name == "slide" else "1")
    settle(page)


def choose_other(page: Page, kind: str, value: str) -> None:
    """In the comparison, give B another head, layer, picture, model or class, by its title."""
    page.locator(".vx-other-kind").select_option(kind)
    page.locator(".vx-other").select_option(value)
    settle(page)


def ask(page: Page, question: str) -> None:
    """Choose one of the five questions: token, target, layers, hide or alike."""
    page.locator(f".vx-tab[data-question={question}]").click()
    settle(page)


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
    open_menu(page, "pictures")
    page.locator(f'.vx-all-examples button[data-example="example:{name}"]').click()
    settle(page)


def choose_model(page: Page, name: str) -> None:
    """Choose a model in the menu by its id in the state."""
    open_menu(page, "models")
    page.locator(f'.vx-menu button[data-model="{name}"]').click()
    settle(page)


def open_figure(page: Page) -> Locator:
    """Open the dialog of figures."""
    open_panel(page, "save").locator("[data-act=figure]").click()
    return page.locator(".vx-paper")


def downloaded(page: Page, press: Callable[[], None]) -> Path:
    """The file that is saved where something is pressed, under the name that the page gave it."""
    with page.expect_download(timeout=1000 * MAP_SECONDS) as download:
        press()
    path = Path(download.value.path())
    return path.rename(path.with_name(download.value.suggested_filename))


def saved(page: Page, act: str) -> Path:
    """The file that a button of the menu of what can be saved saves."""
    return downloaded(page, open_panel(page, "save").locator(f"[data-act={act}]").click)


# Of a figure, in its units: the margin, and the width of one panel.
FIGURE_GAP, FIGURE_WIDTH = 18, 640


def save_figure(page: Page, kind: str = "png2", content: str = "maps", parts: tuple[str, ...] = ()) -> Path:
    """The file of the figure dialog: ``kind`` of the buttons, with these of "badge", "legend" and "caption"."""
    open_figure(page).locator(".vx-paper-of").select_option(content)
    for part in ("badge", "legend", "caption"):
        page.locator(f".vx-paper-{part}").set_checked(part in parts)
    path = downloaded(page, page.locator(f"[data-figure={kind}]").click)
    page.locator(".vx-paper-close").click()
    return path


def open_panel(page: Page, name: str) -> Locator:
    """Open one of the panels beside the canvas."""
    panel = page.locator(f'[data-panel="{name}"]')
    if name == "switches":
        ask(page, "hide")
        return panel
    if name == "model":
        open_menu(page, "models")
    if panel.get_attribute("open") is None:
        panel.locator("summary").first.click()
    settle(page)
    return panel


def open_settings(page: Page) -> Locator:
    """Open the controls for fit and resolution."""
    open_menu(page, "pictures")
    settings = page.locator(".vx-seen")
    if settings.get_attribute("open") is None:
        settings.locator("summary").click()
    return settings


def write(page: Page, name: str, text: str) -> None:
    """Write a text into a field, and wait until the page shows what came of it."""
    field = page.locator(f".vx-{name}")
    field.fill(text)
    field.press("Enter")
    settle(page)


def is_run(request: Request) -> bool:
    """Whether a request starts what was asked for, not the search that goes on meanwhile."""
    return request.url.endswith("/run") and '"flip"' not in (request.post_data or "")


def upload(page: Page, file: Any) -> None:
    """Upload a picture, and wait until the page shows it or says why it does not.

    Args:
        page: the opened app.
        file: a path, or name, type and content as Playwright takes them.
    """
    with page.expect_request(is_run, timeout=1000 * MAP_SECONDS):
        page.locator(".vx-pictures .vx-file").set_input_files(file)
    settle(page)


def show_default(page: Page) -> None:
    """Show the method's own map, in place of the far look with which a picture opens."""
    page.evaluate(f"{EXPLORER}.store.patchView(0, {{ parameters: {{}} }})")
    settle(page)


def patch_position(page: Page, analysis: Analysis, row: int, column: int, pane: int = 0) -> dict[str, float]:
    """The middle of a patch, in pixels of the canvas."""
    edges, layout = box_of(canvas(page, pane)), analysis.trace.layout
    left, top, right, bottom = analysis.prepared.geometry.patch_rectangle(
        row, column, layout.grid_height, layout.grid_width
    )
    width, height = analysis.prepared.image.size
    return {"x": (left + right) / 2 / width * edges["width"], "y": (top + bottom) / 2 / height * edges["height"]}


def click_patch(page: Page, analysis: Analysis, row: int, column: int, pane: int = 0) -> None:
    close_menus(page)
    canvas(page, pane).click(position=patch_position(page, analysis, row, column, pane))
    settle(page)


def click_cell(page: Page, analysis: Analysis, layer: int, head: int | None = None, **options: Any) -> None:
    """Click a cell of the sheet; without a head, the first of its row, which fuses all."""
    close_menus(page)
    sheet, heads = page.locator(".vx-sheet"), analysis.trace.queries[0].shape[0]
    edges = box_of(sheet)
    # SHEET_MARGIN of sheet.js.
    column = 0 if head is None else head + 1
    x = 26 + (edges["width"] - 26) * (column + 0.5) / (heads + 1)
    y = 18 + (edges["height"] - 18) * (layer + 0.5) / analysis.trace.layers
    sheet.click(position={"x": x, "y": y}, **options)
    settle(page)


def expect_map(page: Page, heatmap: Heatmap, pane: int = 0) -> None:
    """Assert that a canvas has the description and values of a heatmap of the library."""
    expect(caption(page, pane)).to_contain_text(heatmap.description)
    settle(page)
    expected = heatmap.values.double().numpy().ravel()
    values = canvas_values(page, pane)[-expected.size :]
    np.testing.assert_allclose(values, expected, atol=0.01 * float(np.abs(expected).max()), rtol=0)
