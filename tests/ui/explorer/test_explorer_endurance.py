"""The explorer stays itself: on slow networks, in little memory, while its server fails, on small screens."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.driver import UNFOLD, canvas, caption, is_unexpected, new_page, opened_page, patch_position, settle
from tests.ui.explorer.page_driver import (
    EXPLORER,
    HEADS,
    SHAPES,
    SmallApp,
    all_weights,
    made,
    panel,
    slider,
    small_app,
)
from tests.ui.explorer.test_explorer_files import allowed
from vitviz import Analysis

# What the page asks for once it is open.
SERVER = re.compile("/(files/.*(layer|rollout)|map|describe)")

pytestmark = pytest.mark.browser

LAYERS = 8


@pytest.fixture(scope="module")
def app() -> Iterator[SmallApp]:
    """Of a network of many layers."""
    with small_app(made(*SHAPES["cifar"], layers=LAYERS)) as found:
        yield found


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    wrong: list[str] = []
    page = new_page(browser)
    page.on("console", lambda message: wrong.append(message.text) if is_unexpected(message) else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    yield page
    page.close()
    assert wrong == []


class Slow:
    """A network that holds back every file that a page asks for until it is let through.

    Attributes:
        asked: the names of all files, in the order in which the page asked for them.
    """

    def __init__(self, page: Page) -> None:
        self.page = page
        self.asked: list[str] = []
        self._waiting: dict[str, Route] = {}
        self._ended = False
        page.route(re.compile("/files/.*(layer|rollout)"), self._hold)

    def _hold(self, route: Route) -> None:
        name = unquote(route.request.url.rpartition("/")[2])
        self.asked.append(name)
        self._waiting[name] = route
        if self._ended:
            self.let(name)

    def holds(self, *names: str) -> None:
        """Wait until it holds back these files and no others."""
        last = time.monotonic() + 30
        while set(self._waiting) != set(names):
            assert time.monotonic() < last, f"the page waits for {list(self._waiting)} instead of {names}"
            # Playwright hands requests over while it waits for the page.
            self.page.evaluate("new Promise(requestAnimationFrame)")

    def let(self, name: str) -> None:
        self._waiting.pop(name).continue_()

    def end(self) -> None:
        """Let everything through from now on."""
        self._ended = True
        for name in list(self._waiting):
            self.let(name)


def expect_layer(page: Page, analysis: Analysis, layer: int) -> None:
    """The page's numbers of a layer are the library's, within what the files say of themselves."""
    expected, wrong = analysis.trace.weights(layer).numpy(), allowed(analysis.trace, layer).numpy()
    places = [(head, token) for head in range(HEADS) for token in (0, 30)]
    rows = all_weights(page, [(layer, head, token, "row") for head, token in places])
    for place, found in zip(places, rows, strict=True):
        assert found.shape == expected[place].shape
        assert (np.abs(found - expected[place]) <= wrong[place]).all()


# A slow network.


@pytest.mark.long
def test_while_a_layer_is_fetched_others_are_explored_and_the_chosen_one_is_next(page: Page, app: SmallApp) -> None:
    slow, analysis = Slow(page), app.analysis
    page.goto(f"{app.address}/?__theme=light&method=attention")
    # Two at once, the nearest to the chosen one.
    slow.holds("layer 7", "layer 6")
    expect(caption(page)).to_have_text("Token attention: being fetched …")
    expect(page.locator(".vx-chip span").first).to_have_text("…")
    expect(page.locator(".vx-legend").first).not_to_be_visible()
    slow.let("layer 6")
    slow.holds("layer 7", "layer 5")
    slider(page, "layer").fill("6")
    canvas(page).hover(position=patch_position(page, analysis, 2, 3))
    best = analysis.attention(layer=6, query=(2, 3)).token_map.strongest
    expect(caption(page)).to_contain_text(
        f"Attention from patch (2, 3) to each patch, layer 6 of 0–7, mean of 2 heads. Strongest: patch {best} with 0."
    )
    expect_layer(page, analysis, 6)
    sheet = page.locator(".vx-sheet").bounding_box()
    assert sheet is not None
    page.locator(".vx-sheet").hover(position={"x": sheet["width"] - 5, "y": sheet["height"] - 5})
    expect(page.locator(".vx-cell")).to_have_text("Layer 7 is being fetched …")
    slider(page, "layer").fill("0")
    expect(caption(page)).to_have_text("Token attention: being fetched …")
    slow.holds("layer 7", "layer 5")
    slow.let("layer 5")
    slow.holds("layer 7", "layer 0")
    slow.let("layer 0")
    slow.holds("layer 7", "layer 1")
    expect(caption(page)).to_contain_text("Attention from the CLS token to each patch, layer 0 of 0–7")
    slow.let("layer 7")
    slow.holds("layer 1", "layer 2")
    slow.end()
    settle(page)
    assert slow.asked == [f"layer {layer}" for layer in (7, 6, 5, 0, 1, 2, 3, 4)]
    for layer in range(LAYERS):
        expect_layer(page, analysis, layer)


# Little memory.

# From now on, the names that are fetched, and what is held whenever a file has come: as the explorer counts it, and as
# the browser has it.
WATCH = """([explorer, most]) => {
    const { packs } = explorer.panes[0], { fetchFile, onChange } = packs;
    const seen = window.seen = { fetched: [], counted: [], real: [] };
    packs.maxBytes = most;
    packs.fetchFile = (name) => { seen.fetched.push(name); return fetchFile(name); };
    packs.onChange = (name, error) => {
        const files = [...packs.loaded.values()], tensors = files.flatMap((file) => Object.values(file.tensors));
        const buffers = new Set(tensors.map((tensor) => tensor.buffer));
        seen.counted.push(packs.bytes);
        seen.real.push([...buffers].reduce((sum, buffer) => sum + buffer.byteLength, 0));
        onChange(name, error);
    };
}"""
HELD = f"""names => {{
    const {{ packs }} = {EXPLORER}.panes[0];
    return packs.loading.size === 0 && [...packs.loaded.keys()].sort().join() === names.join();
}}"""


def open_with_room(page: Page, app: SmallApp, room: float) -> None:
    """Open the page with memory for so many layers, before any of them has come."""
    slow = Slow(page)
    page.goto(f"{app.address}/?__theme=light&method=attention")
    slow.holds("layer 7", "layer 6")
    page.evaluate(f"(most) => ({WATCH})([{EXPLORER}, most])", room * layer_bytes(app.analysis))
    slow.end()


def layer_bytes(analysis: Analysis) -> int:
    """Queries, keys and the logarithms of the sums, in single precision."""
    queries = analysis.trace.queries
    return 4 * HEADS * analysis.trace.layout.token_count * (2 * queries.shape[-1] + 1)


def nearest(layer: int, count: int) -> list[str]:
    near = sorted(range(LAYERS), key=lambda other: abs(other - layer))
    return [f"layer {other}" for other in near[:count]]


@pytest.mark.long
@pytest.mark.parametrize(("room", "layers"), [pytest.param(3.5, 3, marks=pytest.mark.long), (0.5, 1)])
def test_however_many_layers_are_visited_no_more_is_held_than_there_is_room(
    page: Page, app: SmallApp, room: float, layers: int
) -> None:
    """Where not even one fits, it is held alone."""
    open_with_room(page, app, room)
    page.wait_for_function(HELD, arg=sorted(nearest(7, layers)))
    held, expected = set(nearest(7, layers)), nearest(7, layers)[2:]
    for layer in (6, 3, 0, 4, 7):
        slider(page, "layer").fill(str(layer))
        # The farthest have left.
        page.wait_for_function(HELD, arg=sorted(nearest(layer, layers)))
        expect(caption(page)).to_contain_text(f"Attention from the CLS token to each patch, layer {layer} of 0–7")
        expect_layer(page, app.analysis, layer)
        expected += [name for name in nearest(layer, layers) if name not in held]
        held = set(nearest(layer, layers))
    seen = page.evaluate("window.seen")
    # Each once where it is wanted again, and none in vain.
    assert seen["fetched"] == expected
    assert seen["counted"] == seen["real"]
    assert max(seen["counted"]) == layers * layer_bytes(app.analysis)


def test_the_sheet_shows_a_layer_that_came_in_place_of_another(page: Page, app: SmallApp) -> None:
    open_with_room(page, app, 3.5)
    page.wait_for_function(HELD, arg=sorted(nearest(7, 3)))
    page.evaluate(UNFOLD)
    slider(page, "layer").fill("4")
    # A cell without its layer lets the page shine through.
    page.wait_for_function(
        """([layer, layers, heads]) => {
            const sheet = document.querySelector(".vx-sheet"), scale = sheet.width / sheet.clientWidth;
            // SHEET_MARGIN of sheet.js.
            const [left, top] = [26 * scale, 18 * scale], context = sheet.getContext("2d");
            const x = left + (sheet.width - left) / (heads + 1) / 2;
            const y = top + (sheet.height - top) / layers * (layer + 0.5);
            return context.getImageData(x, y, 1, 1).data[3] === 255;
        }""",
        arg=[4, LAYERS, HEADS],
    )


# A server that fails, and one that forgets.


@pytest.mark.long
def test_a_server_that_fails_from_the_start_is_asked_again(page: Page, app: SmallApp) -> None:
    page.route(SERVER, lambda route: route.abort())
    page.goto(f"{app.address}/?__theme=light&method=attention")
    retry = page.get_by_role("button", name="Try again")
    # Neither the picture, which has come, nor the mouse hides what is wrong.
    expect(page.locator(".vx-chip b").first).to_have_text("CLS")
    canvas(page).hover(position=patch_position(page, app.analysis, 2, 3))
    expect(caption(page)).to_contain_text("The server does not answer")
    expect(retry).to_be_visible()
    page.unroute(SERVER)
    retry.click()
    page.mouse.move(0, 0)
    settle(page)
    expect(caption(page)).to_contain_text("layer 7 of 0–7, mean of 2 heads. Strongest")
    expect(retry).not_to_be_visible()
    expect_layer(page, app.analysis, 7)


@pytest.mark.long
def test_the_whole_explorer_is_saved_although_the_server_had_forgotten_it(page: Page, app: SmallApp) -> None:
    page.goto(f"{app.address}/?__theme=light&method=attention")
    settle(page)
    before = page.evaluate(f"{EXPLORER}.panes[0].facts.uid")
    app.forget()
    panel(page, "Save and share")
    page.get_by_role("button", name="Explorer as one file, HTML").click()
    expect(page.locator(".vx-said")).to_contain_text("the server had to compute this picture again; try once more")
    page.wait_for_function(f"(before) => {EXPLORER}.panes[0].facts?.uid !== before", arg=before)
    settle(page)
    with page.expect_download() as download:
        page.get_by_role("button", name="Explorer as one file, HTML").click()
    assert b"layer 7" in Path(download.value.path()).read_bytes()


@pytest.mark.long
def test_both_of_two_maps_come_back_after_the_server_has_forgotten_their_analyses(page: Page, app: SmallApp) -> None:
    page.goto(f"{app.address}/?__theme=light&method=attention&layout=two&second.method=attention&second.resolution=64")
    settle(page)
    uids = page.evaluate(f"{EXPLORER}.panes.map(({{ facts }}) => facts.uid)")
    assert len(set(uids)) == 2
    app.forget()
    page.select_option(".vx-method", "rollout")
    settle(page)
    canvas(page, 1).click()
    page.select_option(".vx-method", "rollout")
    page.mouse.move(0, 0)
    settle(page)
    for pane in (0, 1):
        expect(caption(page, pane)).to_contain_text("Attention rollout")
        expect(caption(page, pane)).to_contain_text("Strongest")
    again = page.evaluate(f"{EXPLORER}.panes.map(({{ facts }}) => facts.uid)")
    assert not set(again) & set(uids)


# Small screens.

# What lies outside the page, and what something else lies over; what scrolls in itself may be wider.
UNREACHABLE = """root => {
    const scrolls = (part) => ["auto", "scroll"].includes(getComputedStyle(part).overflowX);
    const scrolled = ({ parentElement: around }) => around !== root && (scrolls(around) || scrolled(around));
    // Outside of the page until it has the focus.
    const parts = [...root.querySelectorAll("*:not(.vx-skip)")].filter((part) => part.checkVisibility());
    const cut = parts.filter((part) => {
        const { left, right } = part.getBoundingClientRect();
        return !scrolled(part) && (left < -0.5 || right > innerWidth + 0.5);
    });
    const hidden = parts.filter((part) => part.matches("button, input, select, summary, canvas")).filter((part) => {
        part.scrollIntoView({ block: "center", inline: "center", behavior: "instant" });
        const { left, top, width, height } = part.getBoundingClientRect();
        return !part.contains(document.elementFromPoint(left + width / 2, top + height / 2));
    });
    return [cut, hidden].map((wrong) => wrong.map((part) => part.outerHTML.slice(0, 120)));
}"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("width", "height", "zoom"), [pytest.param(700, 500, 2, marks=pytest.mark.long), (320, 640, 1)]
)
def test_on_a_small_screen_nothing_is_cut_off_and_the_right_patch_is_hovered(
    browser: Browser, address: str, example: Analysis, width: int, height: int, zoom: int
) -> None:
    """A screen of 1400×1000 pixels at a zoom of 200 %, and the narrowest that WCAG 2.1 names (1.4.10)."""
    with opened_page(browser, address, "layout=two") as page:
        page.set_viewport_size({"width": width, "height": height})
        metrics = {"width": width, "height": height, "deviceScaleFactor": zoom, "mobile": False}
        page.context.new_cdp_session(page).send("Emulation.setDeviceMetricsOverride", metrics)
        settle(page)
        page.get_by_text("Attention through the layers").click()
        panel(page, "Save and share")
        expect(page.locator(".vx-canvas[data-loaded]")).to_have_count(2)
        page.get_by_role("button", name="Copy as Python").click()
        expect(page.locator(".vx-code")).to_be_visible()
        assert page.locator("#vv-explorer").evaluate(UNREACHABLE) == [[], []]
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        for pane, (row, column) in enumerate(((7, 0), (0, 7))):
            # Every pixel of the screen has one of its own.
            pixels = canvas(page, pane).evaluate("canvas => [canvas.width, canvas.clientWidth]")
            assert pixels[0] == pytest.approx(zoom * pixels[1], abs=1)
            canvas(page, pane).hover(position=patch_position(page, example, row, column, pane))
            for each in (0, 1):
                expect(caption(page, each)).to_contain_text(f"Attention from patch ({row}, {column}) to each patch")
