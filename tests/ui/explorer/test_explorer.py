"""The explorer in a browser: its numbers are those of the library, and everything works by mouse, key and touch."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Page, expect

import vitviz
from tests.driver import (
    canvas,
    caption,
    choose_layout,
    choose_other,
    click_patch,
    first_view,
    open_menu,
    page_at,
    patch_position,
    state,
)
from tests.support.example import EXAMPLE
from tests.ui.explorer.page_driver import SmallApp, pixels, slider
from vitviz.visualization.scales import fit

pytestmark = pytest.mark.browser


# The mouse.


def test_hovering_shows_a_patch_and_asks_nobody(registers_page: Page, registers: SmallApp) -> None:
    page, analysis, seen, sent = registers_page, registers.analysis, set[str](), list[str]()
    shown, before = canvas(page), caption(page).inner_text()
    # The search for squares that change the answer waits until nothing is asked.
    page.on("request", lambda request: "flip" in (request.post_data or "") or sent.append(request.url))
    for row, column in ((0, 0), (3, 7), (5, 9)):
        shown.hover(position=patch_position(page, analysis, row, column))
        expected = analysis.attention(query=(row, column))
        expect(caption(page)).to_contain_text(expected.description)
        expect(caption(page)).to_contain_text(f"Strongest: patch {expected.token_map.strongest} with 0.")
        seen.add(pixels(shown))
    assert len(seen) == 3
    # A picture's part that was cut off holds no patch.
    assert analysis.prepared.geometry.box[1] > 0
    shown.hover(position={"x": 5, "y": 5})
    expect(caption(page)).to_contain_text("Attention from the CLS token")
    shown.hover(position=patch_position(page, analysis, 1, 1))
    expect(caption(page)).to_contain_text("Attention from patch (1, 1)")
    page.mouse.move(1, 1)
    expect(caption(page)).to_have_text(before)
    assert sent == [] and first_view(page)["parameters"] == {}


# The keyboard.


def test_keys_of_a_field_are_its_own(registers_page: Page) -> None:
    page, field = registers_page, registers_page.locator(".vx-search")
    open_menu(page, "models")
    field.focus()
    before, said = state(page), caption(page).inner_text()
    for key in ("r", "1", "[", "g", "p", "Enter", "ArrowRight"):
        field.press(key)
    expect(field).to_have_value("r1[gp")
    # Nor are the letters the page's while the menu is open, and a click on the picture closes it and does nothing else.
    page.locator(".vx-models summary").first.press("g")
    canvas(page).click(position={"x": 30, "y": 30})
    expect(field).not_to_be_visible()
    page.mouse.move(1, 1)
    expect(caption(page)).to_have_text(said)
    assert state(page) == before
    # A slider has the arrows, and the page the letters.
    slider(page, "layer").press("ArrowLeft")
    expect(caption(page)).to_contain_text("Attention from the CLS token to each patch, layer 1 of 0–2, mean")
    slider(page, "layer").press("r")
    expect(caption(page)).to_contain_text("Attention from register 1")
    # Escape empties the search, as in any other page, and leaves the pins.
    canvas(page).press("Enter")
    open_menu(page, "models")
    field.fill("vit")
    field.press("Escape")
    expect(field).to_have_value("")
    expect(page.locator(".vx-pin")).to_have_count(1)


# Two maps.


def test_two_layers_side_by_side_share_hover_token_and_scale(registers_page: Page, registers: SmallApp) -> None:
    page, analysis = registers_page, registers.analysis
    choose_layout(page, "two")
    choose_other(page, "head", "mean")
    # Both unfold their tokens, so that the pictures stay side by side.
    more = page.get_by_role("button", name="more", exact=True)
    more.first.click()
    expect(more).to_have_count(0)
    tops = page.locator(".vx-pane:not([hidden]) .vx-canvas").evaluate_all(
        "all => all.map((each) => each.getBoundingClientRect().top)"
    )
    assert tops[0] == tops[1]
    # A click makes a map the one that the controls are about.
    click_patch(page, analysis, 3, 4, 1)
    expect(page.locator(".vx-active")).to_contain_text("change B")
    slider(page, "layer").fill("0")
    for row, column in ((3, 4), (2, 3)):
        canvas(page).hover(position=patch_position(page, analysis, row, column))
        for pane, layer in ((0, 2), (1, 0)):
            expect(caption(page, pane)).to_contain_text(
                f"Attention from patch ({row}, {column}) to each patch, layer {layer}"
            )
    scale = fit(None, [analysis.attention(layer=layer, query=(2, 3)).values for layer in (2, 0)])
    # An end that no colour tells from 0 is written as 0.
    ends = [0 if abs(end) < 5e-4 * max(map(abs, scale.ends)) else end for end in scale.ends]
    for name, value in zip(("low", "high"), ends, strict=True):
        texts = page.locator(f".vx-pane:not([hidden]) .vx-{name}").all_inner_texts()[:2]
        assert list(map(float, texts)) == pytest.approx([value] * 2, rel=0.02)
    # A click on the first makes it the one again.
    click_patch(page, analysis, 0, 0)
    expect(slider(page, "layer")).to_have_value("2")
    expect(page.locator("[data-name=layer]")).to_contain_text("2 of 0–2")
    canvas(page).click(position=patch_position(page, analysis, 1, 1), modifiers=["Shift"])
    expect(page.locator(".vx-pin")).to_have_text(["patch (1, 1)"])
    for layout in ("one", "two"):
        choose_layout(page, layout)
        expect(canvas(page, 1)).to_be_visible(visible=layout == "two")
    assert state(page)["views"][1]["parameters"]["layer"] == 0


def test_another_grid_is_linked_by_position(browser: Browser, cifar: SmallApp) -> None:
    """Two maps of one picture, of which the second is finer."""
    with page_at(browser, cifar.address, "layout=two&second.method=attention&second.resolution=48") as page:
        finer = vitviz.analyze(EXAMPLE, cifar.model, resolution=48)
        assert (finer.trace.layout.grid_height, cifar.analysis.trace.layout.grid_height) == (12, 8)
        canvas(page).hover(position=patch_position(page, cifar.analysis, 7, 0))
        expect(caption(page)).to_contain_text("Attention from patch (7, 0)")
        expect(caption(page, 1)).to_contain_text("Attention from patch (11, 0)")
        canvas(page, 1).hover(position=patch_position(page, finer, 0, 11, pane=1))
        expect(caption(page)).to_contain_text("Attention from patch (0, 7)")
        choose_layout(page, "difference")
        expect(caption(page, 2)).to_contain_text("different grids")
