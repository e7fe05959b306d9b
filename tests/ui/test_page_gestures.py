"""What a visitor does on the canvas: mouse, keys, pins, the sheet and the look; every number is the library's."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.driver import (
    box_of,
    canvas,
    canvas_values,
    caption,
    choose_method,
    choose_option,
    click_cell,
    click_patch,
    first_view,
    page_at,
    patch_position,
    settle,
    state,
)
from tests.ui.answers import Library, check_page
from vitviz import Analysis
from vitviz.errors.number_text import digits
from vitviz.visualization.scales import fit

pytestmark = pytest.mark.browser


def chip(page: Page, name: str) -> Locator:
    return page.locator(".vx-chip").filter(has_text=re.compile(rf"^{name}")).first


# ---- the mouse ----


def test_patches_and_names_above_the_picture_are_asked_by_a_click(
    page: Page, example: Analysis, library: Library
) -> None:
    click_patch(page, example, 5, 2)
    choose_option(page, "direction", "column")
    check_page(page, library)
    assert first_view(page)["parameters"] == {"query": [5, 2], "direction": "column"}
    choose_option(page, "direction", "row")
    chips = page.locator(".vx-pane").first.locator(".vx-chip")
    chips.filter(has_text="more").click()
    names = ["CLS", *(f"register {number}" for number in range(1, 5)), "mean patch"]
    expect(chips.locator("b")).to_have_text(names)
    for name, query in (("register 2", "register 2"), ("mean patch", "patches")):
        chip(page, name).click()
        check_page(page, library)
        assert first_view(page)["parameters"] == {"query": query}
    chip(page, "register 3").hover()
    expect(caption(page)).to_contain_text("Attention from register 3")
    chip(page, "CLS").click()
    assert first_view(page)["parameters"] == {}


def test_a_map_under_the_pointer_looks_as_it_does_after_a_click(
    browser: Browser, address: str, example: Analysis
) -> None:
    kinds = {(3, 3): "robust", (3, 6): "linear", (5, 3): "linear"}
    for patch, kind in kinds.items():
        assert fit(None, [example.attention(4, query=patch).values.double().numpy()]).scale.name == kind
    with page_at(browser, address, "method=attention&p.layer=4&p.query=0,0") as page:
        legend = page.locator(".vx-pane").first.locator(".vx-legend")
        for patch, kind in kinds.items():
            canvas(page).hover(position=patch_position(page, example, *patch))
            expect(caption(page)).to_contain_text(f"Attention from patch {patch}")
            expect(legend.locator(".vx-scale-name")).to_have_text(kind)
            previewed = legend.inner_text()
            click_patch(page, example, *patch)
            assert legend.inner_text() == previewed


def test_what_the_model_does_not_see_is_dimmed_and_cannot_be_asked(
    browser: Browser, address: str, library: Library
) -> None:
    with page_at(browser, address, "method=attention&fit=crop") as page:
        check_page(page, library)
        edges = box_of(canvas(page))
        canvas(page).click(position={"x": 0.03 * edges["width"], "y": 0.5 * edges["height"]})
        assert first_view(page)["parameters"] == {}


# ---- the keys ----


def test_keys_choose_patch_layer_head_and_token(page: Page, example: Analysis, library: Library) -> None:
    canvas(page).focus()
    before_last = example.trace.layers - 2
    for key, expected in (
        ("ArrowRight", {"query": [0, 0]}),
        ("ArrowRight", {"query": [0, 1]}),
        ("ArrowDown", {"query": [1, 1]}),
        ("ArrowLeft", {"query": [1, 0]}),
        ("[", {"query": [1, 0], "layer": before_last}),
        ("2", {"query": [1, 0], "layer": before_last, "head": 2}),
        ("m", {"query": [1, 0], "layer": before_last}),
        # A default that is chosen is not written down.
        ("]", {"query": [1, 0]}),
        ("r", {"query": "register 1"}),
        ("r", {"query": "register 2"}),
        ("c", {}),
    ):
        page.keyboard.press(key)
        assert first_view(page)["parameters"] == expected, key
    # Where nothing has the focus, the page scrolls with the arrows.
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("g")
    assert state(page)["grid"] and first_view(page)["parameters"] == {}
    check_page(page, library)


def test_the_layers_are_played_until_something_else_is_asked(page: Page) -> None:
    play = page.locator(".vx-play")
    page.keyboard.press("p")
    page.wait_for_function("() => document.querySelector('.vx-status').textContent.includes('layer 1 of')")
    choose_method(page, "rollout")
    expect(play).to_have_attribute("aria-pressed", "false")
    assert first_view(page)["method"] == "rollout"


def test_the_picture_is_shown_alone_for_a_projector_and_everything_again(page: Page) -> None:
    def check(*, is_alone: bool) -> None:
        for part in (".vx-header", ".vx-side", ".vx-wide"):
            expect(page.locator(part)).to_be_visible(visible=not is_alone)
        settle(page)
        width = canvas(page).evaluate("canvas => canvas.clientWidth")
        assert width > before if is_alone else width == before

    before, keys = canvas(page).evaluate("canvas => canvas.clientWidth"), page.keyboard
    for begin, end in (
        (lambda: page.locator(".vx-project").click(), page.locator(".vx-project-end").click),
        (lambda: keys.press("f"), lambda: keys.press("Escape")),
        (lambda: keys.press("f"), lambda: keys.press("f")),
    ):
        begin()
        check(is_alone=True)
        end()
        check(is_alone=False)


@pytest.mark.parametrize("size", [(1024, 768), (1280, 720), (1440, 900), (1920, 1080)], ids=str)
def test_a_room_sees_the_answer_and_what_is_asked(page: Page, size: tuple[int, int]) -> None:
    page.set_viewport_size({"width": size[0], "height": size[1]})
    page.evaluate("document.querySelector('.vx-under').open = false")
    page.keyboard.press("f")
    settle(page)
    parts = ["headline", "tabs", "badge", "stage", "chips", "strip"]
    boxes = [box_of(page.locator(f".vx-{part}").first) for part in parts]
    for part, box in zip(parts, boxes, strict=True):
        assert box["y"] >= 0 and box["y"] + box["height"] <= size[1], part
        assert box["x"] >= 0 and box["x"] + box["width"] <= size[0], part
    tabs, badge, stage = boxes[1:4]
    assert stage["height"] >= 0.7 * size[1]
    assert max(part["y"] + part["height"] for part in (tabs, badge)) <= stage["y"]
    last = box_of(page.locator(".vx-tab").last)
    assert last["x"] + last["width"] < badge["x"]


# ---- pins ----


def test_pins_are_set_and_taken_away(page: Page, example: Analysis) -> None:
    pins, keys = page.locator(".vx-pin"), page.keyboard

    def pin(*cells: tuple[int, int]) -> None:
        for cell in cells:
            canvas(page).click(position=patch_position(page, example, *cell), modifiers=["Shift"])

    pin((1, 1), (6, 2))
    expect(pins).to_have_text(["patch (1, 1)", "patch (6, 2)"])
    assert first_view(page)["pins"] == [[1, 1], [6, 2]]
    for looks in ("canvas.toDataURL()", "getComputedStyle(canvas).borderColor"):
        assert len(set(pins.locator("canvas").evaluate_all(f"all => all.map((canvas) => {looks})"))) == 2
    pins.first.click()
    expect(pins).to_have_text(["patch (6, 2)"])
    canvas(page).focus()
    for key in ("ArrowRight", "Enter"):
        keys.press(key)
    canvas(page).dblclick(position=patch_position(page, example, 4, 7))
    expect(pins).to_have_text(["patch (6, 2)", "patch (0, 0)", "patch (4, 7)"])
    pin(*((3, column) for column in range(7)))
    expect(pins).to_have_count(6)
    keys.press("Escape")
    expect(pins).to_have_count(0)
    assert first_view(page)["pins"] == [] and "pins" not in page.url


# ---- the sheet ----


FRAME = """([x, y]) => {
    const sheet = document.querySelector(".vx-sheet"), scale = sheet.width / sheet.clientWidth;
    const { data } = sheet.getContext("2d").getImageData(scale * x, scale * y, 1, 12 * scale);
    const colours = Array.from({ length: data.length / 4 }, (_, pixel) => data.slice(4 * pixel, 4 * pixel + 3).join());
    return ["255,255,255", "67,56,202"].every((tone) => colours.includes(tone));
}"""


def test_a_cell_of_the_sheet_is_previewed_and_leads_from_any_map_to_attention(
    page: Page, example: Analysis, library: Library
) -> None:
    choose_method(page, "relevance")
    edges = box_of(page.locator(".vx-sheet"))
    # The last column of the second row.
    place = {"x": edges["width"] * 0.97, "y": 18 + (edges["height"] - 18) * 1.5 / example.trace.layers}
    page.locator(".vx-sheet").hover(position=place)
    # Under the pointer, the cell is shown large, and everything about the map is about the cell.
    expect(caption(page)).to_contain_text(example.map("attention", layer=1, head=5).description)
    expect(page.locator(".vx-badge").first).to_contain_text("layer 1 · head 5")
    expect(page.locator(".vx-quantity").first).to_have_text("attention weight")
    row = example.trace.row(1, "cls")[5].double()
    entropy, most = float(-(row * row.log()).sum()), math.log(example.trace.layout.token_count)
    expect(page.locator(".vx-cell")).to_contain_text(f"of {digits(most)} nats")
    said = re.fullmatch(r"Layer 1, head 5: entropy ([\d.]+) of .*", page.locator(".vx-cell").inner_text())
    assert said is not None and float(said[1]) == pytest.approx(entropy, abs=0.02)
    assert first_view(page)["method"] == "relevance"
    page.locator(".vx-sheet").click(position=place)
    assert (first_view(page)["method"], first_view(page)["parameters"]) == ("attention", {"layer": 1, "head": 5})
    check_page(page, library)
    # Its frame has two tones, of which one stands out on any map.
    page.mouse.move(1, 1)
    upper_edge = 20 + (edges["height"] - 20) / example.trace.layers
    page.wait_for_function(FRAME, arg=[place["x"], upper_edge - 6])


def test_the_numbers_of_a_cell_are_those_of_the_direction(page: Page, example: Analysis) -> None:
    layout, trace, cell = example.trace.layout, example.trace, page.locator(".vx-cell")
    click_patch(page, example, 3, 4)
    # Beside the words about a square, too, the legend is whole.
    assert page.locator(".vx-quantity").first.evaluate("part => part.scrollWidth <= part.clientWidth")
    for direction, values, words in (
        ("row", trace.row(2, (3, 4))[1], r"Layer 2, head 1: entropy \S+ of \S+ nats, mean distance (\S+) patches\."),
        # What a token gets from the others is no distribution, which would have an entropy.
        ("column", trace.column(2, (3, 4))[1], r"Layer 2, head 1, attended from a mean distance of (\S+) patches\."),
    ):
        choose_option(page, "direction", direction)
        click_cell(page, example, 2, 1)
        weights = layout.grid(values.double()).numpy()
        places = np.stack(np.indices(weights.shape))
        distances = np.hypot(places[0] - 3, places[1] - 4)
        said = re.fullmatch(words, cell.inner_text())
        assert said is not None, cell.inner_text()
        assert float(said[1]) == pytest.approx(float((weights * distances).sum() / weights.sum()), rel=0.01)
    # Only places of the picture are near or far.
    chip(page, "CLS").click()
    click_cell(page, example, 2, 1)
    expect(cell).to_have_text("Layer 2, head 1.")


@pytest.mark.parametrize("width", [1000, 1280, 1440])
def test_a_token_stays_in_place_while_it_is_pointed_at(page: Page, example: Analysis, width: int) -> None:
    """Its own map has other numbers in the legend and another word before the tokens."""
    page.set_viewport_size({"width": width, "height": 800})
    click_patch(page, example, 3, 4)
    choose_option(page, "direction", "column")
    click_cell(page, example, 2, 1)
    for token in page.locator(".vx-chip:visible").all():
        page.locator(".vx-headline").hover()
        settle(page)
        place = box_of(token)
        token.hover()
        settle(page)
        assert box_of(token) == place


def test_one_head_is_shown_through_the_layers(page: Page, example: Analysis, library: Library) -> None:
    frames = page.locator(".vx-frame")
    layers = example.trace.layers
    expect(frames).to_have_text([str(layer) for layer in range(layers)])
    expect(frames.nth(layers - 1)).to_have_attribute("data-chosen", "true")
    page.wait_for_function(
        """(layers) =>
            new Set([...document.querySelectorAll('.vx-frame canvas')].map((each) => each.toDataURL())).size
                === layers""",
        arg=layers,
    )
    frames.nth(2).click()
    assert first_view(page)["parameters"] == {"layer": 2}
    expect(frames.nth(2)).to_have_attribute("data-chosen", "true")
    check_page(page, library)


# ---- the look ----


def test_the_look_changes_the_picture_and_not_the_numbers(page: Page, library: Library) -> None:
    before = canvas_values(page)
    for name, is_chosen in (("smooth", False), ("grid", True), ("fade", False), ("drain", False)):
        page.locator(f".vx-{name}").first.set_checked(is_chosen, force=True)
    page.locator(".vx-opacity").fill("1")
    page.locator(".vx-colormap").select_option("viridis")
    chosen = {"smooth": False, "grid": True, "fade": False, "drain": False, "opacity": 1, "colormap": "viridis"}
    assert state(page).items() >= chosen.items()
    check_page(page, library)
    np.testing.assert_array_equal(canvas_values(page), before)
    expect(page.locator(".vx-ramp").first).to_have_attribute("style", re.compile(r"rgb\(68[, ]+1[, ]+84\)"))
