"""The explorer in a browser: its numbers are those of the library, and everything works by mouse, key and touch."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from playwright.sync_api import Browser, Locator, Page, expect

import vitviz
from tests.driver import (
    ask,
    canvas,
    caption,
    choose_layout,
    choose_other,
    keep_picture,
    open_menu,
    opened_page,
    patch_position,
    settle,
    state,
)
from tests.support.example import EXAMPLE
from tests.ui.explorer.page_driver import (
    HEADS,
    LAYERS,
    SHAPES,
    Apps,
    SmallApp,
    all_weights,
    made,
    panel,
    pixels,
    radio,
    rolled,
    slider,
    small_app,
)
from tests.ui.explorer.test_explorer_files import allowed
from vitviz.errors.number_text import digits
from vitviz.visualization.scales import fit

pytestmark = pytest.mark.browser


# The numbers.

WAYS = ("row", "column")


# The others differ from the first only in size.
LONG = ("base", "large")


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.long] * (name in LONG)) for name in SHAPES])
def test_the_numbers_of_the_page_are_those_of_the_library(browser: Browser, apps: Apps, name: str) -> None:
    trace = apps(name).analysis.trace
    tokens = [0, trace.layout.prefix_count, trace.layout.token_count - 1, trace.layout.token_count // 2]
    with opened_page(browser, apps(name).address) as page:
        for layer in range(LAYERS):
            expected, wrong = trace.weights(layer).numpy(), allowed(trace, layer).numpy()
            fused = {fusion: trace.fused(layer, fusion).numpy() for fusion in ("mean", "max", "min")}
            asked_for = [(layer, head, token, way) for head in range(HEADS) for token in tokens for way in WAYS]
            asked_for += [(layer, fusion, token, "row") for fusion in fused for token in tokens]
            for (_, head, token, way), found in zip(asked_for, all_weights(page, asked_for), strict=True):
                if isinstance(head, str):
                    assert (np.abs(found - fused[head][token]) <= wrong[:, token].max(0)).all()
                elif way == "row":
                    assert (np.abs(found - expected[head, token]) <= wrong[head, token]).all()
                else:
                    assert (np.abs(found - expected[head, :, token]) <= wrong[head, :, token]).all()
    assert expected.max() > 3 / trace.layout.token_count


@pytest.mark.parametrize("name", ["cifar", "registers"])
def test_the_rollout_of_the_page_is_that_of_the_library(browser: Browser, apps: Apps, name: str) -> None:
    analysis = apps(name).analysis
    with opened_page(browser, apps(name).address, "method=rollout") as page:
        layout, best = analysis.trace.layout, analysis.rollout().token_map.strongest
        expect(caption(page)).to_contain_text(f"layers 0 to 2. Strongest: patch {best} with 0.")
        for query in ("cls", (2, 3)):
            found = layout.grid(torch.tensor(rolled(page, layout.index(query))))
            expected = analysis.rollout(query=query).values.double()
            torch.testing.assert_close(found, expected, atol=1e-3 * float(expected.max()), rtol=0)


HOSTILE = '<img src=x onerror="document.title=1"> **b** [a](b)'


@pytest.mark.long
def test_what_studies_say_of_a_class_is_shown_to_the_letter(browser: Browser) -> None:
    # Of few patches, so that all studies are soon there.
    model = replace(made(16, 16, 0, 4), name=HOSTILE, labels=tuple(f"{HOSTILE} {index}" for index in range(3)))
    with small_app(model) as app, opened_page(browser, app.address, "method=relevance&p.target=1") as page:
        before = page.locator("img").count()
        expect(page.locator(".vx-model-name")).to_have_text(HOSTILE)
        panel(page, "Compare all methods")
        page.get_by_role("button", name="Compare all", exact=True).click()
        expect(page.locator(".vx-compared").first).to_be_visible(timeout=90_000)
        ask(page, "hide")
        page.get_by_role("button", name="Rank the heads").click()
        expect(page.locator(".vx-switch-said")).to_contain_text(HOSTILE)
        assert page.locator("img").count() == before and page.locator("[onerror]").count() == 0
        assert page.title() == "vitviz"


# The mouse.


def test_hovering_shows_a_patch_and_asks_nobody(registers_page: Page, registers: SmallApp) -> None:
    page, analysis = registers_page, registers.analysis
    shown, seen, before = canvas(page), [], caption(page).inner_text()
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url))
    for row, column in ((0, 0), (3, 7), (5, 9)):
        shown.hover(position=patch_position(page, analysis, row, column))
        best = analysis.attention(query=(row, column)).token_map.strongest
        expect(caption(page)).to_contain_text(
            f"Attention from patch ({row}, {column}) to each patch, layer 2 of 0–2, mean of 2 heads."
        )
        expect(caption(page)).to_contain_text(f"Strongest: patch {best} with 0.")
        seen.append(pixels(shown))
    assert len(set(seen)) == 3
    # A picture's part that was cut off holds no patch.
    edges = shown.bounding_box()
    assert edges is not None and analysis.prepared.geometry.box[1] > 0
    shown.hover(position={"x": 5, "y": 5})
    expect(caption(page)).to_contain_text("Attention from the CLS token")
    shown.hover(position=patch_position(page, analysis, 1, 1))
    expect(caption(page)).to_contain_text("Attention from patch (1, 1)")
    page.mouse.move(1, 1)
    expect(caption(page)).to_have_text(before)
    assert sent == [] and state(page)["views"][0]["parameters"] == {}


@pytest.mark.long
def test_prefix_tokens_are_hovered_and_chosen_like_patches(registers_page: Page, registers: SmallApp) -> None:
    page, chips = registers_page, registers_page.locator(".vx-pane").first.locator(".vx-chip")
    # All but the first stand behind one button.
    expect(chips.locator("b")).to_have_text(["CLS"])
    page.get_by_role("button", name=re.compile(r"^\d+ more$")).click()
    page.mouse.move(0, 0)
    expect(chips.locator("b")).to_have_text(["CLS", *(f"register {number}" for number in range(1, 5)), "mean patch"])
    shares = registers.analysis.attention(query="cls").token_map.prefix
    expect(chips.locator("span")).to_have_text([*map(digits, shares.values()), ""])
    chips.nth(2).hover()
    expect(caption(page)).to_contain_text("Attention from register 2")
    chips.nth(3).click()
    page.mouse.move(0, 0)
    expect(caption(page)).to_contain_text("Attention from register 3")
    expect(chips.nth(3)).to_have_attribute("aria-pressed", "true")
    chips.nth(1).click(modifiers=["Shift"])
    expect(page.locator(".vx-pin")).to_have_text(["register 1"])


# The keyboard.


@pytest.mark.long
def test_everything_works_by_keyboard(registers_page: Page) -> None:
    """Where nothing has the focus, all but the arrows, with which the page scrolls."""
    page = registers_page
    page.locator(".vx-method").focus()
    page.locator("h1").click()
    assert page.evaluate("document.activeElement === document.body")
    for key, said in {
        "r": "register 1",
        "[": "layer 1 of 0–2",
        "1": "layer 1 of 0–2, head 1",
        "0": "layer 1 of 0–2, head 0",
        "m": "layer 1 of 0–2, mean",
        "]": "layer 2 of 0–2",
        "c": "Attention from the CLS token",
    }.items():
        page.keyboard.press(key)
        expect(caption(page)).to_contain_text(said)
    page.keyboard.press("Enter")
    expect(page.locator(".vx-pin")).to_have_text(["CLS"])
    page.keyboard.press("g")
    expect(page.get_by_label("patch grid")).to_be_checked()
    page.keyboard.press("p")
    expect(page.locator(".vx-play")).to_have_attribute("aria-pressed", "true")
    expect(caption(page)).to_contain_text("layer 0 of 0–2, mean")
    expect(caption(page)).to_contain_text("layer 1 of 0–2, mean")
    page.keyboard.press("p")
    expect(page.locator(".vx-play")).to_have_text("Play")
    page.keyboard.press("Escape")
    expect(page.locator(".vx-pin")).to_have_count(0)


def test_keys_of_a_field_are_its_own(registers_page: Page) -> None:
    page, field = registers_page, registers_page.locator(".vx-search")
    open_menu(page, "models")
    field.focus()
    before, said = state(page), caption(page).inner_text()
    for key in ("r", "1", "[", "g", "p", "Enter", "ArrowRight"):
        field.press(key)
    expect(field).to_have_value("r1[gp")
    assert (state(page), caption(page).inner_text()) == (before, said)
    # A slider has the arrows, and the page the letters.
    slider(page, "layer").press("ArrowLeft")
    expect(caption(page)).to_contain_text("Attention from the CLS token to each patch, layer 1 of 0–2, mean")
    slider(page, "layer").press("r")
    expect(caption(page)).to_contain_text("Attention from register 1")


def test_escape_in_a_field_is_its_own(registers_page: Page) -> None:
    """It empties the search, as in any other page, and leaves the pins."""
    page, field = registers_page, registers_page.locator(".vx-search")
    canvas(page).press("Enter")
    open_menu(page, "models")
    field.fill("vit")
    field.press("Escape")
    expect(field).to_have_value("")
    expect(page.locator(".vx-pin")).to_have_count(1)


@pytest.mark.long
def test_every_control_changes_the_picture(cifar_page: Page) -> None:
    page = cifar_page
    shown, sheet = canvas(page), page.locator(".vx-sheet")

    def changes(picture: Locator, act: Callable[[], object]) -> None:
        selector = f".{picture.get_attribute('class')}"
        before = pixels(picture)
        act()
        page.wait_for_function(
            "([selector, before]) => document.querySelector(selector).toDataURL() !== before", arg=[selector, before]
        )

    changes(shown, lambda: slider(page, "layer").fill("0"))
    changes(shown, lambda: radio(page, "direction", "is attended by").check())
    changes(shown, lambda: radio(page, "head", "max").check())
    changes(shown, lambda: page.locator(".vx-colormap").select_option("viridis"))
    changes(shown, lambda: page.get_by_label("Opacity").fill("0.9"))
    changes(shown, lambda: page.get_by_label("smooth").check())
    changes(shown, lambda: page.get_by_label("fade weak values").uncheck())
    changes(shown, lambda: page.get_by_label("patch grid").check())
    changes(sheet, lambda: page.get_by_label("one scale for the sheet").check())
    settle(page)
    assert "shared=true" in page.url


# Two maps.


def test_two_layers_side_by_side_share_hover_token_and_scale(registers_page: Page, registers: SmallApp) -> None:
    page, analysis = registers_page, registers.analysis
    choose_layout(page, "two")
    choose_other(page, "head", "mean")
    # Both unfold their tokens, so that the pictures stay side by side.
    page.get_by_role("button", name=re.compile(r"^\d+ more$")).first.click()
    settle(page)
    tops = page.locator(".vx-pane:not([hidden]) .vx-canvas").evaluate_all(
        "all => all.map((each) => each.getBoundingClientRect().top)"
    )
    assert tops[0] == tops[1] and page.get_by_role("button", name=re.compile(r"^\d+ more$")).count() == 0
    # A click makes a map the one that the controls are about.
    canvas(page, 1).click(position=patch_position(page, analysis, 4, 4, pane=1))
    expect(page.locator(".vx-active")).to_contain_text("change B")
    slider(page, "layer").fill("0")
    for pane in (0, 1):
        expect(caption(page, pane)).to_contain_text("Attention from patch (4, 4)")
    canvas(page).hover(position=patch_position(page, analysis, 2, 3))
    expect(caption(page, 0)).to_contain_text("Attention from patch (2, 3) to each patch, layer 2")
    expect(caption(page, 1)).to_contain_text("Attention from patch (2, 3) to each patch, layer 0")
    low, high = fit(None, [analysis.attention(layer=layer, query=(2, 3)).values for layer in (2, 0)]).ends
    for pane in (0, 1):
        assert float(page.locator(".vx-low").nth(pane).inner_text()) == pytest.approx(low, rel=0.02)
        assert float(page.locator(".vx-high").nth(pane).inner_text()) == pytest.approx(high, rel=0.02)
    # A click on the first makes it the one again.
    canvas(page).click(position=patch_position(page, analysis, 0, 0))
    expect(slider(page, "layer")).to_have_value("2")
    expect(page.locator("[data-name=layer]")).to_contain_text("2 of 0–2")
    canvas(page).click(position=patch_position(page, analysis, 1, 1), modifiers=["Shift"])
    expect(page.locator(".vx-pin")).to_have_text(["patch (1, 1)"])
    keep_picture(page, "explorer-two.png")
    choose_layout(page, "one")
    expect(canvas(page, 1)).not_to_be_visible()


def test_another_grid_is_linked_by_position(browser: Browser, cifar: SmallApp) -> None:
    """Two maps of one picture, of which the second is finer."""
    with opened_page(browser, cifar.address, "layout=two&second.method=attention&second.resolution=48") as page:
        finer = vitviz.analyze(EXAMPLE, cifar.model, resolution=48)
        assert (finer.trace.layout.grid_height, cifar.analysis.trace.layout.grid_height) == (12, 8)
        canvas(page).hover(position=patch_position(page, cifar.analysis, 7, 0))
        expect(caption(page)).to_contain_text("Attention from patch (7, 0)")
        expect(caption(page, 1)).to_contain_text("Attention from patch (11, 0)")
        canvas(page, 1).hover(position=patch_position(page, finer, 0, 11, pane=1))
        expect(caption(page)).to_contain_text("Attention from patch (0, 7)")
        choose_layout(page, "difference")
        expect(caption(page, 2)).to_contain_text("different grids")
