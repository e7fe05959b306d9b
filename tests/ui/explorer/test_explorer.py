"""The explorer in a browser: its numbers are those of the library, and everything works by mouse, key and touch."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import gradio as gr
import numpy as np
import pytest
import torch
from axe_playwright_python.sync_playwright import Axe
from PIL import Image
from playwright.sync_api import Browser, Locator, Page, expect

import vitviz
from tests.driver import ARTEFACTS, new_page
from tests.ui.explorer.test_explorer_files import allowed
from vitviz import Analysis, AttentionTrace, Model, Preprocessing, Style, VisionTransformer, ViTConfig
from vitviz.ui.explorer import AttentionExplorer, Explored, pack, whole_page
from vitviz.ui.files import keep

pytestmark = pytest.mark.browser

# Name, height and width of the input, registers, and the side of a patch.
SHAPES = {
    "cifar": (32, 32, 0, 4),
    "base": (56, 56, 0, 4),
    "registers": (24, 40, 4, 4),
}
# On a page of its own, which takes a while to load.
LARGE = (148, 148, 0, 4)
LAYERS, HEADS = 3, 2


def made(height: int, width: int, registers: int, patch: int) -> Analysis:
    """A small network on a picture of noise that is wider than what it sees."""
    torch.manual_seed(0)
    config = ViTConfig(
        image_height=height,
        image_width=width,
        patch_height=patch,
        patch_width=patch,
        width=16,
        depth=LAYERS,
        heads=HEADS,
        head_width=8,
        mlp_width=16,
        classes=3,
        register_tokens=registers,
    )
    network = VisionTransformer(config).eval().requires_grad_(False)
    for parameter in network.parameters():
        parameter.normal_(0, 0.7)
    preprocessing = Preprocessing(height, width, (0.5,) * 3, (0.5,) * 3, "crop")
    picture = np.random.default_rng(0).integers(0, 255, (2 * height, 3 * width, 3), dtype=np.uint8)
    return vitviz.analyze(picture, Model("small", network, preprocessing, ("a", "b", "c")))


@dataclass
class Served:
    """Explorers on one page, and what their server keeps.

    Args:
        address: of the page.
        kept: the analyses whose files it gives away, by name.
        asked: the names of the files that were asked for.
    """

    address: str
    kept: dict[str, Analysis]
    asked: list[str]


@contextmanager
def serving(kept: dict[str, Analysis], second: tuple[str, str] | None = None) -> Iterator[Served]:
    """An explorer for each of these analyses, and one for two of them."""
    asked: list[str] = []
    all_of_them = dict(kept)

    def files(uid: str, name: str, folder: str) -> Path | None:
        asked.append(f"{uid}: {name}")
        return Path(keep(pack(kept[uid].trace, name), "pack", folder)) if uid in kept else None

    def again(event: gr.EventData) -> Any:
        gone = event._data["uid"]
        kept[f"{gone} again"] = all_of_them[gone]
        return Explored(f"{gone} again", all_of_them[gone])

    def token_of(event: gr.EventData) -> str:
        return str(event._data["token"])

    with gr.Blocks(analytics_enabled=False) as demo:
        pinned = gr.Textbox(elem_id="pinned")
        for name, analysis in kept.items():
            explorer = AttentionExplorer(Explored(name, analysis), files=files, elem_id=name)
            explorer.pinned(token_of, None, pinned, trigger_mode="always_last")
            explorer.expired(again, None, explorer)
        if second is not None:
            one, other = (Explored(name, kept[name]) for name in second)
            AttentionExplorer(replace(one, other=other), files=files, elem_id="other")
    _, address, _ = demo.launch(prevent_thread_lock=True, quiet=True, ssr_mode=False, footer_links=[])
    yield Served(address, kept, asked)
    demo.close()


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving({name: made(*shape) for name, shape in SHAPES.items()}, ("cifar", "base")) as found:
        yield found


@pytest.fixture(scope="module")
def large() -> Iterator[Served]:
    with serving({"large": made(*LARGE)}) as found:
        yield found


@contextmanager
def watched(browser: Browser, served: Served, names: Iterable[str], link: str = "") -> Iterator[Page]:
    """A page with these explorers loaded; fails the test on an error in it.

    Args:
        browser, served: where it is opened, and what it shows.
        names: of the explorers that are waited for.
        link: the whole address, where it says more than where the page is.
    """
    wrong: list[str] = []
    page = new_page(browser)
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(link or f"{served.address}?__theme=light")
    for name in names:
        loaded(page, name)
    yield page
    page.close()
    assert wrong == []


@pytest.fixture
def page(browser: Browser, served: Served) -> Iterator[Page]:
    with watched(browser, served, SHAPES) as found:
        yield found


@pytest.fixture
def large_page(browser: Browser, large: Served) -> Iterator[Page]:
    with watched(browser, large, ["large"]) as found:
        yield found


def loaded(page: Page, name: str, uid: str | None = None) -> Locator:
    """The explorer of a name, once all layers of an analysis are there."""
    explorer = page.locator(f"#{name}")
    expect(explorer.locator(f".vx-canvas[data-loaded={uid or name}]").first).to_be_attached()
    return explorer


def numbers(explorer: Locator, *question: object) -> np.ndarray:
    """What the page computes for layer, head, token and direction: ``"token"``."""
    found = explorer.locator(".vx").evaluate(
        "(root, question) => root.parentElement.explorer.map(...question)", list(question)
    )
    return np.array(found)


def at(explorer: Locator, analysis: Analysis, row: int, column: int) -> dict[str, float]:
    """The middle of a patch, in pixels of the canvas."""
    edges, layout = canvas_of(explorer).bounding_box(), analysis.trace.layout
    assert edges is not None
    left, top, right, bottom = analysis.prepared.geometry.patch_rectangle(
        row, column, layout.grid_height, layout.grid_width
    )
    width, height = analysis.prepared.image.size
    return {"x": (left + right) / 2 / width * edges["width"], "y": (top + bottom) / 2 / height * edges["height"]}


def status(explorer: Locator) -> Locator:
    return explorer.locator(".vx-pane").first.locator(".vx-status")


def canvas_of(explorer: Locator, pane: int = 0) -> Locator:
    return explorer.locator(".vx-canvas").nth(pane)


def pixels(canvas: Locator) -> str:
    address: str = canvas.evaluate("canvas => canvas.toDataURL()")
    return address


# The numbers.


def test_the_numbers_of_the_page_are_those_of_the_library(page: Page, served: Served) -> None:
    for name in SHAPES:
        expect_numbers(page.locator(f"#{name}"), served.kept[name].trace)


def test_so_are_those_of_many_tokens(large_page: Page, large: Served) -> None:
    expect_numbers(large_page.locator("#large"), large.kept["large"].trace)


def expect_numbers(explorer: Locator, trace: AttentionTrace) -> None:
    tokens = [0, trace.layout.prefix_count, trace.layout.token_count - 1, trace.layout.token_count // 2]
    for layer in range(LAYERS):
        weights, wrong = trace.weights(layer).numpy(), allowed(trace, layer).numpy()
        for token in tokens:
            for head in range(HEADS):
                row, column = (numbers(explorer, layer, head, token, direction) for direction in ("row", "column"))
                assert (np.abs(row - weights[head, token]) <= wrong[head, token]).all()
                assert (np.abs(column - weights[head, :, token]) <= wrong[head, :, token]).all()
            for fusion in ("mean", "max", "min"):
                found = numbers(explorer, layer, fusion, token, "row")
                fused = trace.fused(layer, fusion).numpy()[token]
                assert (np.abs(found - fused) <= wrong[:, token].max(0)).all()
    assert weights.max() > 3 / trace.layout.token_count


def test_the_rollout_of_the_page_is_that_of_the_library(page: Page, served: Served) -> None:
    for name in ("cifar", "registers"):
        explorer, analysis = page.locator(f"#{name}"), served.kept[name]
        explorer.get_by_label("rollout").check()
        expect(status(explorer)).to_contain_text("rollout through 3 layers. Strongest")
        layout = analysis.trace.layout
        for query in ("cls", (2, 3)):
            found = layout.grid(torch.tensor(numbers(explorer, 0, "mean", layout.index(query), "rollout")))
            expected = analysis.rollout(query=query).values.double()
            torch.testing.assert_close(found, expected, atol=1e-3 * float(expected.max()), rtol=0)


# The mouse.


def test_hovering_shows_a_patch_and_asks_nobody(page: Page, served: Served) -> None:
    explorer, analysis = page.locator("#registers"), served.kept["registers"]
    canvas, seen = canvas_of(explorer), []
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url))
    for row, column in ((0, 0), (3, 7), (5, 9)):
        canvas.hover(position=at(explorer, analysis, row, column))
        best = analysis.attention(query=(row, column)).token_map.strongest
        expect(status(explorer)).to_contain_text(f"patch ({row}, {column}) looks at: layer 2, mean of 2 heads.")
        expect(status(explorer)).to_contain_text(f"patch {best} with 0.")
        seen.append(pixels(canvas))
    assert len(set(seen)) == 3
    # A picture's part that was cut off holds no patch.
    canvas.hover(position={"x": 5, "y": 5})
    expect(status(explorer)).to_contain_text("CLS looks at")
    assert sent == []


def test_a_click_pins_and_another_unpins(page: Page, served: Served) -> None:
    explorer, analysis = page.locator("#cifar"), served.kept["cifar"]
    canvas, small = canvas_of(explorer), explorer.locator(".vx-pin")
    for row, column in ((1, 1), (6, 2)):
        canvas.click(position=at(explorer, analysis, row, column))
    expect(small).to_have_text(["patch (1, 1)", "patch (6, 2)"])
    expect(page.locator("#pinned textarea, #pinned input")).to_have_value(str(1 + 6 * 8 + 2))
    borders = small.locator("canvas").evaluate_all("all => all.map(one => getComputedStyle(one).borderColor)")
    assert len(set(borders)) == 2
    small.first.click()
    expect(small).to_have_text(["patch (6, 2)"])
    for column in range(7):
        canvas.click(position=at(explorer, analysis, 3, column))
    expect(small).to_have_count(6)
    page.keyboard.press("Escape")
    expect(small).to_have_count(0)


def test_prefix_tokens_are_hovered_and_pinned_like_patches(page: Page, served: Served) -> None:
    explorer, analysis = page.locator("#registers"), served.kept["registers"]
    chips = explorer.locator(".vx-pane").first.locator(".vx-chip")
    expect(chips.locator("b")).to_have_text(["CLS", *(f"register {number}" for number in range(1, 5))])
    shares = analysis.attention(query="cls").token_map.prefix
    expect(chips.locator("span")).to_have_text([f"{100 * share:.1f}%" for share in shares.values()])
    chips.nth(2).hover()
    expect(status(explorer)).to_contain_text("register 2 looks at")
    chips.nth(2).click()
    expect(explorer.locator(".vx-pin")).to_have_text(["register 2"])


def test_the_sheet_follows_and_a_cell_is_chosen(page: Page, served: Served) -> None:
    explorer, analysis = page.locator("#cifar"), served.kept["cifar"]
    sheet = explorer.locator(".vx-sheet")
    before = pixels(sheet)
    canvas_of(explorer).hover(position=at(explorer, analysis, 4, 4))
    page.wait_for_function("before => document.querySelector('#cifar .vx-sheet').toDataURL() !== before", arg=before)
    page.mouse.move(0, 0)
    edges = sheet.bounding_box()
    assert edges is not None
    place = {"x": edges["width"] * 0.95, "y": edges["height"] * 0.3}
    sheet.hover(position=place)
    row = analysis.trace.row(0, "cls")[1].double()
    entropy = float(-(row * row.log()).sum())
    expect(explorer.locator(".vx-cell")).to_contain_text(f"of {math.log(65):.2f} nats")
    said = re.fullmatch(r"Layer 0, head 1: entropy ([\d.]+) of .*", explorer.locator(".vx-cell").inner_text())
    assert said and float(said[1]) == pytest.approx(entropy, abs=0.02)
    sheet.click(position=place)
    expect(status(explorer)).to_contain_text("layer 0, head 1")
    expect(explorer.locator(".vx-heads input:checked")).to_have_attribute("value", "1")


def test_a_strip_shows_the_head_through_the_layers(page: Page) -> None:
    explorer = page.locator("#cifar")
    explorer.get_by_text("This head through the layers").click()
    frames = explorer.locator(".vx-frame")
    expect(frames).to_have_text([f"layer {layer}" for layer in range(LAYERS)])
    expect(frames.nth(2)).to_have_attribute("aria-pressed", "true")
    assert len(set(frames.locator("canvas").evaluate_all("all => all.map(one => one.toDataURL())"))) == LAYERS
    frames.first.click()
    expect(status(explorer)).to_contain_text("layer 0, mean")
    expect(frames.first).to_have_attribute("aria-pressed", "true")


# The keyboard.


def test_everything_works_by_keyboard(page: Page) -> None:
    explorer = page.locator("#registers")
    canvas_of(explorer).focus()
    for key, said in {
        "r": "register 1",
        "ArrowRight": "patch (0, 0) looks at: layer 2, mean",
        "ArrowDown": "patch (1, 0)",
        "[": "layer 1",
        "1": "layer 1, head 1",
        "0": "layer 1, head 0",
        "m": "layer 1, mean",
        "]": "layer 2",
        "c": "CLS looks at",
    }.items():
        page.keyboard.press(key)
        expect(status(explorer)).to_contain_text(said)
    page.keyboard.press("Enter")
    expect(explorer.locator(".vx-pin")).to_have_text(["CLS"])
    page.keyboard.press("g")
    expect(explorer.get_by_label("patch grid")).not_to_be_checked()
    page.keyboard.press("p")
    expect(explorer.locator(".vx-play")).to_have_attribute("aria-pressed", "true")
    expect(status(explorer)).to_contain_text("layer 0, mean")
    expect(status(explorer)).to_contain_text("layer 1, mean")
    page.keyboard.press("p")
    expect(explorer.locator(".vx-play")).to_have_text("Play")


def test_every_control_changes_the_picture(page: Page) -> None:
    explorer = page.locator("#cifar")
    canvas, sheet = canvas_of(explorer), explorer.locator(".vx-sheet")

    def changes(picture: Locator, act: Callable[[], object]) -> None:
        selector = f"#cifar .{picture.get_attribute('class')}"
        before = pixels(picture)
        act()
        page.wait_for_function(
            "([selector, before]) => document.querySelector(selector).toDataURL() !== before", arg=[selector, before]
        )

    changes(canvas, lambda: explorer.locator(".vx-layer").fill("0"))
    changes(canvas, lambda: explorer.get_by_label("is looked at by").check())
    changes(canvas, lambda: explorer.locator(".vx-heads").get_by_label("max").check())
    changes(canvas, lambda: explorer.get_by_label("Colours").select_option("viridis"))
    changes(canvas, lambda: explorer.get_by_label("Opacity").fill("0.9"))
    changes(canvas, lambda: explorer.get_by_label("smooth").check())
    changes(canvas, lambda: explorer.get_by_label("patch grid").uncheck())
    changes(sheet, lambda: explorer.get_by_label("one scale for all cells").check())


# Two maps.


def test_two_layers_side_by_side_share_hover_pins_and_scale(page: Page, served: Served) -> None:
    explorer, analysis = page.locator("#registers"), served.kept["registers"]
    explorer.get_by_label("View").select_option("two")
    second = explorer.locator(".vx-pane").nth(1)
    # The second map is the one that the controls are about now.
    explorer.locator(".vx-layer").fill("0")
    canvas_of(explorer).hover(position=at(explorer, analysis, 2, 3))
    expect(status(explorer)).to_contain_text("patch (2, 3) looks at: layer 2")
    expect(second.locator(".vx-status")).to_contain_text("patch (2, 3) looks at: layer 0")
    maps = [analysis.attention(layer=layer, query=(2, 3)).token_map.range for layer in (2, 0)]
    low, high = min(low for low, _ in maps), max(high for _, high in maps)
    for pane in (explorer.locator(".vx-pane").first, second):
        assert float(pane.locator(".vx-low").inner_text()) == pytest.approx(low, rel=0.02)
        assert float(pane.locator(".vx-high").inner_text()) == pytest.approx(high, rel=0.02)
    canvas_of(explorer, 1).click(position=at(explorer, analysis, 4, 4))
    expect(explorer.locator(".vx-pin")).to_have_text(["patch (4, 4)"])
    # A click on the first makes it the one again.
    canvas_of(explorer).click(position=at(explorer, analysis, 0, 0))
    expect(explorer.locator(".vx-layer-said")).to_have_text("2 of 0–2")
    explorer.screenshot(path=ARTEFACTS / "explorer-two.png")
    explorer.get_by_label("View").select_option("one")
    expect(second).not_to_be_visible()


def test_a_difference_has_a_sign(page: Page, served: Served) -> None:
    explorer, analysis = page.locator("#cifar"), served.kept["cifar"]
    explorer.get_by_label("View").select_option("difference")
    second = explorer.locator(".vx-pane").nth(1)
    expect(second.locator(".vx-high")).to_have_text("0")
    # Nothing is neither more nor less, so that it has the colour of the middle.
    drawn = explorer.locator(".vx").evaluate("root => root.parentElement.explorer.panes[1].shown.range")
    assert drawn == [-1, 1]
    explorer.locator(".vx-layer").fill("1")
    difference = analysis.attention(layer=2).values - analysis.attention(layer=1).values
    most = float(difference.abs().max())
    expect(second.locator(".vx-high")).not_to_have_text("0")
    assert float(second.locator(".vx-high").inner_text()) == pytest.approx(most, rel=0.05)
    assert float(second.locator(".vx-low").inner_text()) == pytest.approx(-most, rel=0.05)


def test_another_picture_is_linked_by_position(page: Page, served: Served) -> None:
    """The left part of the page compares a grid of 8×8 patches with one of 14×14."""
    explorer, analysis = page.locator("#other"), served.kept["cifar"]
    explorer.get_by_label("View").select_option("two")
    second = explorer.locator(".vx-pane").nth(1)
    canvas_of(explorer).hover(position=at(explorer, analysis, 7, 0))
    expect(status(explorer)).to_contain_text("patch (7, 0) looks at")
    expect(second.locator(".vx-status")).to_contain_text("patch (13, 0) looks at")
    canvas_of(explorer, 1).hover(position=at(explorer, served.kept["base"], 0, 13))
    expect(status(explorer)).to_contain_text("patch (0, 7) looks at")
    explorer.get_by_label("View").select_option("difference")
    expect(second.locator(".vx-status")).to_contain_text("different tokens")


def test_the_divider_slides_between_map_and_picture(page: Page) -> None:
    explorer = page.locator("#cifar")
    column = """canvas => Array.from(
        canvas.getContext("2d").getImageData(Math.round(canvas.width * 0.75), 0, 1, canvas.height).data)"""
    waiting = (
        f"([before, same]) => (({column})(document.querySelector('#cifar .vx-canvas')).join() === before) === same"
    )

    def becomes(before: list[int], same: bool) -> list[int]:
        page.wait_for_function(waiting, arg=[",".join(map(str, before)), same])
        found: list[int] = canvas_of(explorer).evaluate(column)
        return found

    covered: list[int] = canvas_of(explorer).evaluate(column)
    explorer.get_by_label("Opacity").fill("0")
    plain = becomes(covered, same=False)
    explorer.get_by_label("Opacity").fill("0.6")
    becomes(covered, same=True)
    explorer.get_by_label("View").select_option("slide")
    becomes(plain, same=True)
    explorer.get_by_label("Divider").fill("1")
    becomes(covered, same=True)


# Nobody is left out.


def test_a_touch_shows_and_pins_and_the_page_still_scrolls(browser: Browser, served: Served) -> None:
    context = browser.new_context(has_touch=True, is_mobile=True, viewport={"width": 320, "height": 640})
    page = context.new_page()
    page.goto(f"{served.address}?__theme=light")
    explorer, analysis = loaded(page, "cifar"), served.kept["cifar"]
    canvas = canvas_of(explorer)
    canvas.tap(position=at(explorer, analysis, 2, 5))
    expect(explorer.locator(".vx-pin")).to_have_text(["patch (2, 5)"])
    assert canvas.evaluate("canvas => getComputedStyle(canvas).touchAction") == "pan-y"
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
    page.screenshot(path=ARTEFACTS / "explorer-320.png")
    context.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_no_violation(browser: Browser, served: Served, theme: str) -> None:
    with watched(browser, served, ["registers"], f"{served.address}?__theme={theme}") as page:
        explorer = page.locator("#registers")
        canvas_of(explorer).click(position=at(explorer, served.kept["registers"], 2, 2))
        expect(explorer.locator(".vx-pin")).to_have_count(1)
        found = Axe().run(page, context="#registers", options={"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]})
        assert found.violations_count == 0, found.generate_report()
        explorer.screenshot(path=ARTEFACTS / f"explorer-{theme}.png")


# What is saved and shared.


def saved(page: Page, explorer: Locator, name: str) -> Path:
    """The file that a button gives."""
    with page.expect_download() as download:
        explorer.get_by_role("button", name=name).click()
    return Path(download.value.path())


def test_numbers_and_pictures_are_saved(page: Page, served: Served) -> None:
    explorer, analysis = page.locator("#registers"), served.kept["registers"]
    canvas_of(explorer).click(position=at(explorer, analysis, 2, 3))
    explorer.get_by_text("Save and share").click()
    with np.load(saved(page, explorer, "Numbers, NPZ")) as numbers_of:
        rows = analysis.trace.rows((2, 3)).numpy()
        assert (np.abs(numbers_of["attention"] - rows) < 0.01 * rows.max()).all()
        assert numbers_of["layers"].tolist() == [0, 1, 2]
        np.testing.assert_allclose(numbers_of["map"], rows[2].mean(0)[5:].reshape(6, 10), atol=0.01 * rows.max())
        np.testing.assert_allclose(numbers_of["prefix"], rows[2].mean(0)[:5], atol=0.01 * rows.max())
    explorer.get_by_label("Opacity").fill("1")
    with Image.open(saved(page, explorer, "Picture, PNG")) as picture:
        assert picture.size == analysis.prepared.image.size
        ours = analysis.attention(query=(2, 3)).overlay(Style(opacity=1))
        difference = np.abs(np.asarray(picture.convert("RGB"), dtype=float) - np.asarray(ours, dtype=float))
        # All but the lines of the grid, the mark and the noise that the model did not see, which came as WebP.
        assert np.median(difference[12:36, 40:80]) <= 1
    with Image.open(saved(page, explorer, "Sheet, PNG")) as sheet:
        assert sheet.width >= 300
    drawing = ElementTree.parse(saved(page, explorer, "Sheet, SVG")).getroot()
    assert len(drawing.findall("{*}image")) == LAYERS * (HEADS + 1)


def test_the_lines_of_python_make_the_same_map(page: Page, served: Served, tmp_path: Path) -> None:
    explorer, analysis = page.locator("#cifar"), served.kept["cifar"]
    explorer.locator(".vx-layer").fill("1")
    explorer.locator(".vx-heads").get_by_label("1", exact=True).check()
    canvas_of(explorer).click(position=at(explorer, analysis, 4, 1))
    explorer.get_by_text("Save and share").click()
    explorer.get_by_role("button", name="Copy as Python").click()
    lines = explorer.locator(".vx-code").inner_text()
    calls: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        patch.setattr(vitviz, "load", lambda *source: calls.append(source))
        patch.setattr(vitviz, "analyze", lambda *said, **options: calls.append((said, options)) or analysis)
        exec(lines, {})
    assert calls == [(), (("picture.jpg", None), {"fit": "crop"})]
    ours = analysis.attention(layer=1, head=1, query=(4, 1)).overlay(Style(grid=True), mark=(4, 1))
    with Image.open(tmp_path / "attention.png") as made_by_them:
        np.testing.assert_array_equal(np.asarray(made_by_them), np.asarray(ours))


def test_a_link_restores_what_was_shown(page: Page, browser: Browser, served: Served) -> None:
    explorer, analysis = page.locator("#cifar"), served.kept["cifar"]
    explorer.locator(".vx-layer").fill("0")
    explorer.get_by_label("is looked at by").check()
    explorer.get_by_label("Colours").select_option("viridis")
    canvas_of(explorer).click(position=at(explorer, analysis, 6, 5))
    page.wait_for_function("location.hash.includes('token=6%2C5')")
    with watched(browser, served, ["cifar"], page.url) as opened:
        explorer = opened.locator("#cifar")
        expect(status(explorer)).to_contain_text("patch (6, 5) is looked at by: layer 0, mean of 2 heads")
        assert explorer.get_by_label("Colours").input_value() == "viridis"
        # Both of two maps.
        explorer.get_by_label("View").select_option("two")
        explorer.locator(".vx-layer").fill("2")
        explorer.locator(".vx-heads").get_by_label("1", exact=True).check()
        opened.wait_for_function("location.hash.includes('second.head=1')")
        link = opened.url
    with watched(browser, served, ["cifar"], link) as opened:
        explorer = opened.locator("#cifar")
        second = explorer.locator(".vx-status").nth(1)
        expect(status(explorer)).to_contain_text("patch (6, 5) is looked at by: layer 0, mean of 2 heads")
        expect(second).to_contain_text("patch (6, 5) is looked at by: layer 2, head 1")
    # What a link says that cannot be is left out.
    link = f"{served.address}#layer=99&head=x&map=none&token=90,90&colormap=red&opacity=7&view=all"
    with watched(browser, served, ["cifar"], link) as opened:
        expect(status(opened.locator("#cifar"))).to_contain_text("CLS looks at: layer 2, mean of 2 heads")


@pytest.mark.parametrize("shape", [(40, 1200), (1200, 40)])
def test_a_very_wide_or_tall_picture_fits_the_screen(browser: Browser, tmp_path: Path, shape: tuple[int, int]) -> None:
    """At twice the zoom, which is a screen of half the size."""
    picture = np.random.default_rng(0).integers(0, 255, (*shape, 3), dtype=np.uint8)
    analysis = vitviz.analyze(picture, made(*SHAPES["cifar"]).model, fit="squash")
    file = tmp_path / "explorer.html"
    file.write_text(whole_page(analysis))
    page = browser.new_page(viewport={"width": 700, "height": 450})
    page.goto(file.as_uri())
    canvas = canvas_of(loaded(page, "explorer", "page"))
    edges = canvas.bounding_box()
    assert edges is not None and edges["height"] <= 450 and edges["width"] <= 700
    assert edges["width"] / edges["height"] == pytest.approx(shape[1] / shape[0], rel=0.05)
    canvas.hover(position={"x": edges["width"] * 0.7, "y": edges["height"] * 0.7})
    expect(status(page.locator("#explorer"))).to_contain_text("patch (5, 5) looks at")
    assert page.evaluate("document.documentElement.scrollWidth") <= 700
    page.close()


# When things go wrong.


def test_what_has_left_the_server_is_computed_again(page: Page, served: Served) -> None:
    explorer = page.locator("#cifar")
    analysis = served.kept.pop("cifar")
    explorer.get_by_label("rollout").check()
    expect(status(explorer)).to_contain_text("rollout through 3 layers. Strongest")
    assert "cifar again" in served.kept
    expect(explorer.locator(".vx")).to_have_attribute("data-state", "ready")
    served.kept["cifar"] = analysis


def test_a_server_that_does_not_answer_is_asked_again(page: Page) -> None:
    explorer = page.locator("#base")
    page.route(re.compile("component_server"), lambda route: route.fulfill(status=200, body="gone"))
    explorer.get_by_label("rollout").check()
    expect(status(explorer)).to_contain_text("The server does not answer")
    page.unroute(re.compile("component_server"))
    explorer.get_by_role("button", name="Try again").click()
    expect(status(explorer)).to_contain_text("rollout through 3 layers. Strongest")
    expect(explorer.get_by_role("button", name="Try again")).not_to_be_visible()


def test_layers_are_fetched_the_nearest_first(browser: Browser, large: Served) -> None:
    large.asked.clear()
    with watched(browser, large, ["large"]):
        pass
    # Gradio makes a page that is loaded again twice.
    asked = list(dict.fromkeys(large.asked))
    # Two are under way at once.
    assert set(asked[:2]) == {"large: layer 2", "large: layer 1"} and asked[2:] == ["large: layer 0"]


def test_the_whole_page_works_from_disk(browser: Browser, served: Served, tmp_path: Any) -> None:
    file = tmp_path / "explorer.html"
    file.write_text(whole_page(served.kept["registers"], "Noise"))
    page = browser.new_page()
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url))
    page.goto(file.as_uri())
    explorer = page.locator("#explorer")
    expect(explorer.locator(".vx-canvas[data-loaded=page]")).to_be_attached()
    weights = served.kept["registers"].trace.weights(1)
    np.testing.assert_allclose(numbers(explorer, 1, 0, 20, "row"), weights[0, 20], atol=0.02)
    explorer.get_by_label("rollout").check()
    expect(status(explorer)).to_contain_text("rollout through 3 layers. Strongest")
    assert [address for address in sent if not address.startswith(("file:", "data:", "blob:"))] == []
    page.close()
