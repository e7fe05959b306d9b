"""What a visitor does on the canvas: mouse, keys, pins, the sheet and the look; every number is the library's."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Locator, Page, expect

import vitviz
from tests.driver import (
    canvas,
    canvas_values,
    caption,
    choose_method,
    choose_option,
    click_patch,
    expect_map,
    first_view,
    keep_picture,
    opened_page,
    patch_position,
    settle,
    state,
    upload,
)
from tests.ui.answers import Library, check_page
from vitviz import Analysis, Model
from vitviz.errors.number_text import digits

pytestmark = pytest.mark.browser


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    """With attention, which is computed in the page."""
    with opened_page(browser, address, "method=attention") as found:
        yield found


def chip(page: Page, name: str) -> Locator:
    return page.locator(".vx-chip").filter(has_text=re.compile(rf"^{name}")).first


# ---- the mouse ----


def test_a_click_on_a_patch_shows_its_attention_in_both_directions(
    page: Page, example: Analysis, library: Library
) -> None:
    click_patch(page, example, 5, 2)
    page.mouse.move(1, 1)
    check_page(page, library)
    expect_map(page, example.attention(query=(5, 2)))
    choose_option(page, "direction", "column")
    expect_map(page, example.attention(query=(5, 2), direction="column"))
    check_page(page, library)


@pytest.mark.long
def test_the_heat_lies_where_the_object_is(page: Page, bundled: Model, tmp_path: Path) -> None:
    for size, spot in (((300, 800), (210, 140)), ((800, 300), (670, 90))):
        check_spot(page, bundled, tmp_path / f"{size}.png", size, spot)
        keep_picture(page, f"spot-{'portrait' if size[0] < size[1] else 'landscape'}.png")
        chip(page, "CLS").click()
        settle(page)


def check_spot(page: Page, bundled: Model, photo: Path, size: tuple[int, int], spot: tuple[int, int]) -> None:
    """A click on a bright spot of a picture asks the patch that lies there."""
    picture = Image.new("RGB", size, (25, 25, 25))
    picture.paste((255, 240, 60), (spot[0] - 30, spot[1] - 30, spot[0] + 30, spot[1] + 30))
    picture.save(photo)
    upload(page, photo)
    analysis = vitviz.analyze(photo, bundled)
    expect_map(page, analysis.attention())
    edges, layout = canvas(page).bounding_box(), analysis.trace.layout
    assert edges is not None
    at = {"x": spot[0] / size[0] * edges["width"], "y": spot[1] / size[1] * edges["height"]}
    canvas(page).click(position=at)
    page.mouse.move(1, 1)
    patch = int(spot[1] / size[1] * layout.grid_height), int(spot[0] / size[0] * layout.grid_width)
    assert first_view(page)["parameters"] == {"query": list(patch)}
    expect_map(page, analysis.attention(query=patch))
    check_page(page, Library(bundled, pictures={first_view(page)["picture"]: photo}))


def test_what_the_model_does_not_see_is_dimmed_and_cannot_be_asked(
    browser: Browser, address: str, library: Library
) -> None:
    with opened_page(browser, address, "method=attention&fit=crop") as page:
        check_page(page, library)
        edges = canvas(page).bounding_box()
        assert edges is not None
        canvas(page).click(position={"x": 0.03 * edges["width"], "y": 0.5 * edges["height"]})
        settle(page)
        assert first_view(page)["parameters"] == {}


def test_names_above_the_picture_are_asked_like_patches(page: Page, example: Analysis, library: Library) -> None:
    more = page.locator(".vx-chip").filter(has_text="more")
    if more.count():
        more.click()
    names = ["CLS", *(f"register {number}" for number in range(1, 5)), "mean patch"]
    expect(page.locator(".vx-chip b")).to_have_text(names)
    chip(page, "register 2").click()
    page.mouse.move(1, 1)
    settle(page)
    expect_map(page, example.attention(query="register 2"))
    check_page(page, library)
    chip(page, "mean patch").click()
    page.mouse.move(1, 1)
    settle(page)
    expect_map(page, example.attention(query="patches"))
    check_page(page, library)
    chip(page, "CLS").click()
    settle(page)
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
        ("]", {"query": [1, 0]}),
        ("r", {"query": "register 1"}),
        ("r", {"query": "register 2"}),
        ("c", {}),
    ):
        page.keyboard.press(key)
        settle(page)
        assert first_view(page)["parameters"] == expected, key
    check_page(page, library)
    page.keyboard.press("g")
    settle(page)
    assert state(page)["grid"]
    check_page(page, library)


def test_playing_goes_through_the_layers(page: Page) -> None:
    page.locator(".vx-play").click()
    page.wait_for_function("() => document.querySelector('.vx-status').textContent.includes('layer 2 of')")
    page.locator(".vx-play").click()
    settle(page)
    assert first_view(page)["parameters"]["layer"] >= 2


# ---- pins ----


def test_pins_are_set_and_taken_away(page: Page, example: Analysis) -> None:
    pins = page.locator(".vx-pin")
    for row, column in ((1, 1), (6, 2)):
        canvas(page).click(position=patch_position(page, example, row, column), modifiers=["Shift"])
    expect(pins).to_have_text(["patch (1, 1)", "patch (6, 2)"])
    assert first_view(page)["pins"] == [[1, 1], [6, 2]]
    drawn = pins.locator("canvas").evaluate_all("all => all.map((canvas) => canvas.toDataURL())")
    assert len(set(drawn)) == 2
    borders = pins.locator("canvas").evaluate_all("all => all.map((one) => getComputedStyle(one).borderColor)")
    assert len(set(borders)) == 2
    pins.first.click()
    expect(pins).to_have_text(["patch (6, 2)"])
    canvas(page).focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(pins).to_have_text(["patch (6, 2)", "patch (0, 0)"])
    canvas(page).dblclick(position=patch_position(page, example, 0, 7))
    expect(pins).to_have_text(["patch (6, 2)", "patch (0, 0)", "patch (0, 7)"])
    for column in range(7):
        canvas(page).click(position=patch_position(page, example, 3, column), modifiers=["Shift"])
    expect(pins).to_have_count(6)
    page.keyboard.press("Escape")
    expect(pins).to_have_count(0)
    settle(page)
    assert first_view(page)["pins"] == [] and "pins" not in page.url


# ---- the sheet ----


def test_a_cell_of_the_sheet_says_its_entropy_and_is_chosen(page: Page, example: Analysis, library: Library) -> None:
    sheet = page.locator(".vx-sheet")
    before = sheet.evaluate("sheet => sheet.toDataURL()")
    canvas(page).hover(position=patch_position(page, example, 4, 4))
    page.wait_for_function("before => document.querySelector('.vx-sheet').toDataURL() !== before", arg=before)
    page.mouse.move(1, 1)
    edges = sheet.bounding_box()
    assert edges is not None
    # The last column of the second row.
    place = {"x": edges["width"] * 0.97, "y": 18 + (edges["height"] - 18) * 1.5 / example.trace.layers}
    sheet.hover(position=place)
    row = example.trace.row(1, "cls")[5].double()
    entropy, most = float(-(row * row.log()).sum()), math.log(example.trace.layout.token_count)
    expect(page.locator(".vx-cell")).to_contain_text(f"of {digits(most)} nats")
    said = re.fullmatch(r"Layer 1, head 5: entropy ([\d.]+) of .*", page.locator(".vx-cell").inner_text())
    assert said is not None and float(said[1]) == pytest.approx(entropy, abs=0.02)
    sheet.click(position=place)
    settle(page)
    assert first_view(page)["parameters"] == {"layer": 1, "head": 5}
    check_page(page, library)


@pytest.mark.long
def test_the_sheet_of_a_long_picture_is_not_longer(page: Page, tmp_path: Path) -> None:
    picture = tmp_path / "long.png"
    for size in ((40, 400), (400, 40)):
        Image.linear_gradient("L").convert("RGB").resize(size).save(picture)
        upload(page, picture)
        edges = page.locator(".vx-sheet").bounding_box()
        assert edges is not None and 0.3 * edges["width"] < edges["height"] < 2.5 * edges["width"], size


def test_a_cell_of_the_sheet_leads_from_any_map_to_attention(page: Page, example: Analysis, library: Library) -> None:
    choose_method(page, "relevance")
    edges = page.locator(".vx-sheet").bounding_box()
    assert edges is not None
    place = {"x": edges["width"] * 0.97, "y": 18 + (edges["height"] - 18) * 2.5 / example.trace.layers}
    # Under the pointer, the cell is shown large, and everything about the map is about the cell.
    page.locator(".vx-sheet").hover(position=place)
    expect(caption(page)).to_contain_text(example.map("attention", layer=2, head=5).description)
    expect(page.locator(".vx-badge").first).to_contain_text("layer 2 · head 5")
    expect(page.locator(".vx-quantity").first).to_have_text("attention weight")
    assert first_view(page)["method"] == "relevance"
    page.locator(".vx-sheet").click(position=place)
    settle(page)
    assert (first_view(page)["method"], first_view(page)["parameters"]) == ("attention", {"layer": 2, "head": 5})
    check_page(page, library)


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
    settle(page)
    assert first_view(page)["parameters"] == {"layer": 2}
    expect(frames.nth(2)).to_have_attribute("data-chosen", "true")
    check_page(page, library)


# ---- the look ----


def test_a_projector_shows_the_picture_alone(page: Page) -> None:
    before = canvas(page).bounding_box()
    page.keyboard.press("f")
    settle(page)
    for part in (".vx-header", ".vx-side", ".vx-tabs"):
        expect(page.locator(part)).not_to_be_visible()
    after = canvas(page).bounding_box()
    assert before is not None and after is not None and after["width"] > before["width"]
    page.keyboard.press("f")
    expect(page.locator(".vx-header")).to_be_visible()


def test_the_look_changes_the_picture_and_not_the_numbers(page: Page, library: Library) -> None:
    before = canvas_values(page)
    page.locator(".vx-smooth").check()
    page.locator(".vx-grid").check()
    page.locator(".vx-fade").uncheck()
    page.locator(".vx-opacity").fill("1")
    page.locator(".vx-colormap").select_option("viridis")
    settle(page)
    chosen = {name: state(page)[name] for name in ("smooth", "grid", "fade", "opacity", "colormap")}
    assert chosen == {"smooth": True, "grid": True, "fade": False, "opacity": 1, "colormap": "viridis"}
    check_page(page, library)
    np.testing.assert_array_equal(canvas_values(page), before)
    expect(page.locator(".vx-ramp").first).to_have_attribute("style", re.compile(r"rgb\(68[, ]+1[, ]+84\)"))
