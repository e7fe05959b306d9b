"""The explorer stays itself: on slow networks, in little memory, after a restart of its server, on small screens."""

from __future__ import annotations

import base64
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import gradio as gr
import numpy as np
import pytest
import torch
from playwright.sync_api import Browser, Locator, Page, Request, Route, expect
from safetensors.torch import save

import vitviz
from tests.driver import EXAMPLE, ROOT, new_page, open_panel, running_app
from tests.ui.explorer.test_explorer import SHAPES, at, canvas_of, loaded, made, numbers, status
from tests.ui.explorer.test_explorer_files import allowed
from vitviz import Analysis, AttentionTrace, Model
from vitviz.ui.explorer import AttentionExplorer, Explored, pack, whole_page
from vitviz.ui.files import keep

pytestmark = pytest.mark.browser

LAYERS, HEADS, WIDTH = 8, 2, 8
PACKS = ROOT / "vitviz" / "ui" / "explorer" / "js" / "packs.js"


@dataclass
class Served:
    """One explorer, `#deep`, and what its server keeps.

    Args:
        address: of the page.
        analysis: of many layers.
        kept: the ids whose files it gives away.
    """

    address: str
    analysis: Analysis
    kept: set[str]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    small = made(*SHAPES["cifar"])
    queries, keys = torch.randn(2, LAYERS, HEADS, small.trace.layout.token_count, WIDTH)
    deep, kept = replace(small, trace=AttentionTrace(queries, keys, 1.0, small.trace.layout)), {"deep"}

    def files(uid: str, name: str, folder: str) -> Path | None:
        if uid not in kept:
            return None
        return Path(keep(whole_page(deep).encode() if name == "page" else pack(deep.trace, name), "pack", folder))

    def again(event: gr.EventData) -> Explored:
        kept.add(f"{event._data['uid']}-again")
        return Explored(f"{event._data['uid']}-again", deep)

    with gr.Blocks(analytics_enabled=False) as demo:
        explorer = AttentionExplorer(Explored("deep", deep), files=files, elem_id="deep")
        explorer.expired(again, None, explorer)
    _, address, _ = demo.launch(prevent_thread_lock=True, quiet=True, ssr_mode=False, footer_links=[])
    yield Served(f"{address}?__theme=light", deep, kept)
    demo.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    wrong: list[str] = []
    page = new_page(browser)
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
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
        page.route(re.compile("component_server"), self._hold)

    def _hold(self, route: Route) -> None:
        name = route.request.post_data_json["data"]["name"]
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


def expect_layer(explorer: Locator, analysis: Analysis, layer: int) -> None:
    """The page's numbers of a layer are the library's, within what the files say of themselves."""
    weights, wrong = analysis.trace.weights(layer).numpy(), allowed(analysis.trace, layer).numpy()
    for head in range(HEADS):
        for token in (0, 30):
            found = numbers(explorer, layer, head, token, "row")
            assert found.shape == weights[head, token].shape
            assert (np.abs(found - weights[head, token]) <= wrong[head, token]).all()


# A slow network.


def test_while_a_layer_is_fetched_others_are_explored_and_the_chosen_one_is_next(page: Page, served: Served) -> None:
    slow = Slow(page)
    page.goto(served.address)
    explorer, analysis = page.locator("#deep"), served.analysis
    # Two at once, the nearest to the chosen one.
    slow.holds("layer 7", "layer 6")
    expect(status(explorer)).to_have_text("CLS: layer 7, mean of 2 heads is being fetched …")
    expect(explorer.locator(".vx-chip span").first).to_have_text("…")
    expect(explorer.locator(".vx-legend").first).not_to_be_visible()
    slow.let("layer 6")
    slow.holds("layer 7", "layer 5")
    explorer.locator(".vx-layer").fill("6")
    canvas_of(explorer).hover(position=at(explorer, analysis, 2, 3))
    best = analysis.attention(layer=6, query=(2, 3)).token_map.strongest
    expect(status(explorer)).to_contain_text("patch (2, 3) looks at: layer 6, mean of 2 heads.")
    expect(status(explorer)).to_contain_text(f"Strongest: patch {best} with 0.")
    expect_layer(explorer, analysis, 6)
    sheet = explorer.locator(".vx-sheet").bounding_box()
    assert sheet is not None
    explorer.locator(".vx-sheet").hover(position={"x": sheet["width"] - 5, "y": sheet["height"] - 5})
    expect(explorer.locator(".vx-cell")).to_have_text("Layer 7 is being fetched …")
    explorer.locator(".vx-layer").fill("0")
    expect(status(explorer)).to_have_text("CLS: layer 0, mean of 2 heads is being fetched …")
    slow.holds("layer 7", "layer 5")
    slow.let("layer 5")
    slow.holds("layer 7", "layer 0")
    slow.let("layer 0")
    slow.holds("layer 7", "layer 1")
    expect(status(explorer)).to_contain_text("CLS looks at: layer 0, mean of 2 heads. Strongest")
    slow.let("layer 7")
    slow.holds("layer 1", "layer 2")
    slow.end()
    loaded(page, "deep")
    assert slow.asked == [f"layer {layer}" for layer in (7, 6, 5, 0, 1, 2, 3, 4)]
    for layer in range(LAYERS):
        expect_layer(explorer, analysis, layer)


# Little memory.

# From now on, the names that are fetched, and what is held whenever a file has come: as the explorer counts it, and as
# the browser has it.
WATCH = """(root, most) => {
    const { packs } = root.parentElement.explorer.panes[0], { fetchFile, changed } = packs;
    const seen = root.seen = { fetched: [], counted: [], real: [] };
    packs.mostBytes = most;
    packs.fetchFile = (name) => { seen.fetched.push(name); return fetchFile(name); };
    packs.changed = (name, error) => {
        const files = [...packs.held.values()], tensors = files.flatMap((file) => Object.values(file.tensors));
        const buffers = new Set(tensors.map((tensor) => tensor.buffer));
        seen.counted.push(packs.bytes);
        seen.real.push([...buffers].reduce((sum, buffer) => sum + buffer.byteLength, 0));
        changed(name, error);
    };
}"""
SETTLED = """names => {
    const { packs } = document.querySelector("#deep .vx").parentElement.explorer.panes[0];
    return packs.loading.size === 0 && [...packs.held.keys()].sort().join() === names.join();
}"""


def opened_with_room(page: Page, served: Served, room: float) -> Locator:
    """The explorer with memory for so many layers, before any of them has come."""
    slow = Slow(page)
    page.goto(served.address)
    slow.holds("layer 7", "layer 6")
    explorer = page.locator("#deep")
    explorer.locator(".vx").evaluate(WATCH, room * layer_bytes(served))
    slow.end()
    return explorer


def layer_bytes(served: Served) -> int:
    """Queries, keys and the logarithms of the sums, in single precision."""
    tokens = served.analysis.trace.layout.token_count
    return 4 * HEADS * tokens * (2 * WIDTH + 1)


def nearest(layer: int, count: int) -> list[str]:
    near = sorted(range(LAYERS), key=lambda other: abs(other - layer))
    return [f"layer {other}" for other in near[:count]]


@pytest.mark.parametrize(("room", "layers"), [(3.5, 3), (0.5, 1)])
def test_however_many_layers_are_visited_no_more_is_held_than_there_is_room(
    page: Page, served: Served, room: float, layers: int
) -> None:
    """Where not even one fits, it is held alone."""
    explorer = opened_with_room(page, served, room)
    page.wait_for_function(SETTLED, arg=sorted(nearest(7, layers)))
    held, expected = set(nearest(7, layers)), nearest(7, layers)[2:]
    for layer in (6, 3, 0, 4, 7):
        explorer.locator(".vx-layer").fill(str(layer))
        # The farthest have left.
        page.wait_for_function(SETTLED, arg=sorted(nearest(layer, layers)))
        expect(status(explorer)).to_contain_text(f"CLS looks at: layer {layer}, mean of 2 heads. Strongest")
        expect_layer(explorer, served.analysis, layer)
        expected += [name for name in nearest(layer, layers) if name not in held]
        held = set(nearest(layer, layers))
    seen = explorer.locator(".vx").evaluate("root => root.seen")
    # Each once where it is wanted again, and none in vain.
    assert seen["fetched"] == expected
    assert seen["counted"] == seen["real"]
    assert max(seen["counted"]) == layers * layer_bytes(served)


def test_files_of_any_size_never_take_more_than_the_room_and_are_not_fetched_for_ever(page: Page) -> None:
    generator = np.random.default_rng(0)
    sizes = {f"layer {layer}": int(generator.integers(1, 40)) for layer in range(10)}
    files = {name: base64.b64encode(save({"values": torch.zeros(size)})).decode() for name, size in sizes.items()}
    wishes = [[f"layer {layer}" for layer in generator.permutation(10)] for _ in range(30)]
    room = 60 * 4
    found = page.evaluate(
        """async ([script, files, wishes, room]) => {
            const Packs = new Function(`${script}; return Packs`)();
            const seen = [];
            let fetched = [], came = () => {};
            const fetchFile = async (name) => {
                fetched.push(name);
                await new Promise((done) => setTimeout(done));
                if (fetched.length > 100) await new Promise(() => {});
                return Uint8Array.from(atob(files[name]), (letter) => letter.charCodeAt(0)).buffer;
            };
            const packs = new Packs(fetchFile, () => setTimeout(() => came()), room);
            for (const names of wishes) {
                fetched = [];
                packs.want(names);
                while (packs.loading.size && fetched.length <= 100) await new Promise((done) => { came = done; });
                seen.push({ fetched, held: [...packs.held.keys()], bytes: packs.bytes });
            }
            return seen;
        }""",
        [PACKS.read_text(), files, wishes, room],
    )
    assert len(found) == len(wishes)
    for wanted, state in zip(wishes, found, strict=True):
        assert len(set(state["fetched"])) == len(state["fetched"])
        assert state["bytes"] == sum(4 * sizes[name] for name in state["held"]) <= room
        # What comes first fits, with all that comes before it.
        together = np.cumsum([4 * sizes[name] for name in wanted])
        assert set(wanted[: int((together <= room).sum())]) <= set(state["held"])


def test_the_sheet_shows_a_layer_that_came_in_place_of_another(page: Page, served: Served) -> None:
    explorer = opened_with_room(page, served, 3.5)
    page.wait_for_function(SETTLED, arg=sorted(nearest(7, 3)))
    explorer.locator(".vx-layer").fill("4")
    # A cell without its layer lets the page shine through.
    page.wait_for_function(
        """([layer, layers, heads]) => {
            const sheet = document.querySelector("#deep .vx-sheet"), scale = sheet.width / sheet.clientWidth;
            // SHEET_MARGIN of sheet.js.
            const [left, top] = [26 * scale, 18 * scale], context = sheet.getContext("2d");
            const x = left + (sheet.width - left) / (heads + 1) / 2;
            const y = top + (sheet.height - top) / layers * (layer + 0.5);
            return context.getImageData(x, y, 1, 1).data[3] === 255;
        }""",
        arg=[4, LAYERS, HEADS],
    )


# A server that fails, one that forgets, and one that is started again.


def test_a_server_that_fails_from_the_start_is_asked_again(page: Page, served: Served) -> None:
    page.route(re.compile("component_server"), lambda route: route.fulfill(status=200, body="gone"))
    page.goto(served.address)
    explorer, analysis = page.locator("#deep"), served.analysis
    retry = explorer.get_by_role("button", name="Try again")
    # Neither the picture, which has come, nor the mouse hides what is wrong.
    expect(explorer.locator(".vx-chip b").first).to_have_text("CLS")
    canvas_of(explorer).hover(position=at(explorer, analysis, 2, 3))
    expect(explorer.locator(".vx-chip.vx-shown")).to_have_count(0)
    expect(status(explorer)).to_contain_text("The server does not answer")
    expect(retry).to_be_visible()
    page.unroute(re.compile("component_server"))
    retry.click()
    loaded(page, "deep")
    expect(status(explorer)).to_contain_text("looks at: layer 7, mean of 2 heads. Strongest")
    expect(retry).not_to_be_visible()
    expect_layer(explorer, analysis, 7)


def test_the_whole_explorer_is_saved_although_the_server_had_forgotten_it(page: Page, served: Served) -> None:
    page.goto(served.address)
    explorer = loaded(page, "deep")
    served.kept.clear()
    explorer.get_by_text("Save and share").click()
    explorer.get_by_role("button", name="Whole explorer, HTML").click()
    loaded(page, "deep", "deep-again")
    with page.expect_download() as download:
        explorer.get_by_role("button", name="Whole explorer, HTML").click()
    assert b"layer 7" in Path(download.value.path()).read_bytes()
    served.kept.add("deep")


class Events:
    """Gradio's events of a page; where one is cut off, Gradio opens the page anew by itself."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self._open: set[Request] = set()
        page.on("request", lambda sent: self._open.add(sent) if "/queue/" in sent.url else None)
        page.on("requestfinished", lambda sent: self._open.discard(sent))
        page.on("requestfailed", lambda sent: self._open.discard(sent))

    def end(self, ask: Callable[[], None]) -> None:
        """Wait until none is under way, nor follows another.

        Args:
            ask: has the page ask for something. Gradio's client now and then keeps its stream open after the last
                event, and closes it after the next.
        """
        for _ in range(6):
            if self._ended():
                return
            ask()
        pytest.fail("the page goes on asking")

    def _ended(self) -> bool:
        last, still = time.monotonic() + 6, 0
        while still < 20 and time.monotonic() < last:
            self.page.evaluate("new Promise(requestAnimationFrame)")
            still = 0 if self._open else still + 1
        return still == 20


def test_after_a_restart_pages_work_on_with_the_same_picture(browser: Browser, bundled: Model, tmp_path: Path) -> None:
    """One that had all that it wanted, and one whose analysis was cut off, which is opened anew by itself."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    page, wrong = new_page(browser), []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    events = Events(page)
    explorer = page.locator("#vv-explorer")
    retry, state = explorer.get_by_role("button", name="Try again"), explorer.locator(".vx")
    rocket = vitviz.analyze(ROOT / "assets" / "rocket.jpg", bundled)
    # Where no other server takes the place of the one that ends.
    alone = {**os.environ, "GRADIO_TEMP_DIR": "", "TMPDIR": str(tmp_path)}
    with running_app(alone, "--port", port) as address:
        page.goto(address)
        shown = {0: vitviz.analyze(EXAMPLE, bundled), 1: rocket}

        def show(*examples: int) -> None:
            for number in examples:
                page.locator("#vv-examples button").nth(number).click()
                best = shown[number].attention().token_map.strongest
                said = f"CLS looks at: layer 5, mean of 6 heads. Strongest: patch {best}"
                expect(status(explorer)).to_contain_text(said)

        # Not the picture with which it opens.
        show(1)
        events.end(lambda: show(0, 1))
        expect(explorer.locator(".vx-canvas[data-loaded]").first).to_be_attached()
        other = new_page(browser)
        other.goto(f"{address}?example=coffee.jpg")
        coffee = vitviz.analyze(ROOT / "assets" / "coffee.jpg", bundled).attention().token_map.strongest
        expect(status(other.locator("#vv-explorer"))).to_contain_text(f"Strongest: patch {coffee}")
        open_panel(other, "vv-sight")
        other.locator("#vv-resolution input").fill("512")
        other.locator("#vv-resolution input").press("Enter")
        expect(other.locator("#vv-waiting")).to_contain_text("Analysing, layer by layer")
    expect(other.locator("#vv-waiting")).not_to_be_visible()
    expect(status(other.locator("#vv-explorer"))).to_contain_text(f"Strongest: patch {coffee}")
    other.evaluate("window.isOld = true")
    # A page behind another one is drawn once a second.
    page.bring_to_front()
    explorer.get_by_label("rollout").check()
    expect(status(explorer)).to_have_text("The server does not answer (no connection).")
    expect(retry).to_be_visible()
    # What needs no server is there.
    explorer.get_by_label("looks at", exact=True).check()
    expect(status(explorer)).to_contain_text("CLS looks at: layer 5")
    expect(retry).not_to_be_visible()
    explorer.get_by_label("rollout").check()
    expect(retry).to_be_visible()
    with running_app(alone, "--port", port):
        retry.click()
        best = rocket.rollout().token_map.strongest
        expect(status(explorer)).to_contain_text(f"rollout through 6 layers. Strongest: patch {best}")
        expect(state).to_have_attribute("data-state", "ready")
        expect(retry).not_to_be_visible()
        explorer.get_by_label("looks at", exact=True).check()
        canvas_of(explorer).hover(position=at(explorer, rocket, 6, 1))
        best = rocket.attention(query=(6, 1)).token_map.strongest
        expect(status(explorer)).to_contain_text(f"Strongest: patch {best}")
        page.close()
        other.bring_to_front()
        other.wait_for_function("!window.isOld")
        expect(status(other.locator("#vv-explorer"))).to_contain_text(f"Strongest: patch {coffee}")
        other.locator("#vv-examples button").nth(1).click()
        best = rocket.attention().token_map.strongest
        expect(status(other.locator("#vv-explorer"))).to_contain_text(f"Strongest: patch {best}")
        other.close()
    assert wrong == []


# Small screens.

# What lies outside the page, and what something else lies over; what scrolls in itself may be wider.
UNREACHABLE = """root => {
    const scrolls = (part) => ["auto", "scroll"].includes(getComputedStyle(part).overflowX);
    const scrolled = ({ parentElement: around }) => around !== root && (scrolls(around) || scrolled(around));
    const parts = [...root.querySelectorAll("*")].filter((part) => part.checkVisibility());
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


@pytest.mark.parametrize(("width", "height", "zoom"), [(700, 500, 2), (320, 640, 1)])
def test_on_a_small_screen_nothing_is_cut_off_and_the_right_patch_is_hovered(
    browser: Browser, address: str, example: Analysis, width: int, height: int, zoom: int
) -> None:
    """A screen of 1400×1000 pixels at a zoom of 200 %, and the narrowest that WCAG 2.1 names (1.4.10)."""
    page = browser.new_page(viewport={"width": width, "height": height}, device_scale_factor=zoom)
    page.goto(f"{address}/?__theme=light")
    explorer = page.locator("#vv-explorer")
    expect(explorer.locator(".vx-canvas[data-loaded]").first).to_be_attached()
    for summary in ("This head through the layers", "Save and share"):
        explorer.get_by_text(summary).click()
    explorer.get_by_label("View").select_option("two")
    canvas = explorer.locator(".vx-canvas")
    expect(explorer.locator(".vx-canvas[data-loaded]")).to_have_count(2)
    explorer.get_by_role("button", name="Copy as Python").click()
    expect(explorer.locator(".vx-code")).to_be_visible()
    assert explorer.evaluate(UNREACHABLE) == [[], []]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for pane, (row, column) in enumerate(((7, 0), (0, 7))):
        # Every pixel of the screen has one of its own.
        pixels = canvas.nth(pane).evaluate("canvas => [canvas.width, canvas.clientWidth]")
        assert pixels[0] == pytest.approx(zoom * pixels[1], abs=1)
        canvas.nth(pane).hover(position=at(explorer, example, row, column))
        for said in explorer.locator(".vx-status").all():
            expect(said).to_contain_text(f"patch ({row}, {column}) looks at")
    page.close()
