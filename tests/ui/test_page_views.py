"""Two maps, and how a picture is brought to the model: each on the same canvas, each as the library has it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Page, expect

import vitviz
from tests.driver import (
    EXPLORER,
    NEXT_FRAMES,
    canvas,
    canvas_values,
    caption,
    choose_example,
    choose_layout,
    choose_method,
    choose_model,
    choose_other,
    click_patch,
    expect_map,
    first_view,
    keep_picture,
    notice,
    open_settings,
    patch_position,
    settle,
    state,
    upload,
)
from tests.support.example import EXAMPLE, FINER, ROOT
from tests.ui.answers import Library, check_page
from vitviz import Analysis, Model
from vitviz.images.code_points import PRIMARIES
from vitviz.images.colours import gamma_profile
from vitviz.weights import BUNDLED

pytestmark = pytest.mark.browser


# ---- two maps ----


def test_two_maps_have_controls_of_their_own(page: Page, example: Analysis, library: Library) -> None:
    choose_layout(page, "two")
    check_page(page, library)
    assert canvas(page, 1).is_visible()
    # A click chooses the map that the controls are about, too.
    click_patch(page, example, 4, 4, pane=1)
    page.mouse.move(1, 1)
    choose_method(page, "grad_cam")
    assert [view["method"] for view in state(page)["views"]][1] == "grad_cam"
    expect_map(page, example.map("grad_cam"), pane=1)
    check_page(page, library)
    # Of prefix tokens, it says nothing.
    chips = page.locator(".vx-pane").nth(1).locator(".vx-chip span")
    assert set(chips.all_inner_texts()) == {""}
    keep_picture(page, "two.png")
    choose_layout(page, "one")
    check_page(page, library)
    assert len(state(page)["views"]) == 1 and not canvas(page, 1).is_visible()
    choose_layout(page, "two")
    assert [view["method"] for view in state(page)["views"]][1] == "grad_cam"
    check_page(page, library)


def test_two_maps_stand_side_by_side_where_both_fit(cifar_page: Page) -> None:
    page = cifar_page
    choose_layout(page, "two")
    wider = """all => all.filter((pane) => [...pane.querySelectorAll("*")].some((part) =>
        part.getBoundingClientRect().right > pane.getBoundingClientRect().right + 1)).length"""
    for width, columns in ((390, 1), (768, 2), (1080, 2), (1400, 2)):
        page.set_viewport_size({"width": width, "height": 900})
        page.evaluate(NEXT_FRAMES)
        panes = page.locator(".vx-pane:not([hidden])").evaluate_all(
            "all => all.map((pane) => pane.getBoundingClientRect().left)"
        )
        assert len(set(panes)) == columns, width
        assert page.locator(".vx-pane").evaluate_all(wider) == 0, width


def test_another_picture_stands_beside_the_first(page: Page, bundled: Model, library: Library) -> None:
    choose_method(page, "attention")
    choose_layout(page, "two")
    choose_other(page, "head", "mean")
    canvas(page, 1).click()
    settle(page)
    choose_other(page, "picture", "rocket")
    assert [view["picture"] for view in state(page)["views"]] == ["example:chelsea.jpg", "example:rocket.jpg"]
    check_page(page, library)
    rocket = vitviz.analyze(ROOT / "assets" / "rocket.jpg", bundled)
    canvas(page, 1).hover(position=patch_position(page, rocket, 4, 4, pane=1))
    expect(caption(page, 1)).to_contain_text(rocket.attention(query=(4, 4)).description)
    page.mouse.move(1, 1)
    # It stays beside another first picture.
    canvas(page, 0).click()
    settle(page)
    choose_example(page, "coffee.jpg")
    assert [view["picture"] for view in state(page)["views"]] == ["example:coffee.jpg", "example:rocket.jpg"]
    check_page(page, library)


@pytest.mark.long
def test_another_model_stands_beside_the_first(page: Page, library: Library) -> None:
    """The menu has the bundled one by its name, too; others would have to be downloaded."""
    choose_layout(page, "two")
    canvas(page, 1).click()
    settle(page)
    buttons = page.locator(".vx-menu button").evaluate_all("all => all.map((button) => button.dataset.model)")
    choose_model(page, BUNDLED[0] if BUNDLED[0] in buttons else "")
    check_page(page, library)


def test_the_difference_of_two_maps_is_said_and_drawn(page: Page, example: Analysis, library: Library) -> None:
    choose_method(page, "attention")
    choose_layout(page, "difference")
    # B begins with another head.
    assert state(page)["views"][1]["parameters"]["head"] == 0
    choose_other(page, "head", "mean")
    expect(caption(page, 2)).to_have_text("A − B: they are equal.")
    # A scale from 0 to 0 says nothing.
    expect(page.locator(".vx-legend").nth(2)).to_be_hidden()
    # Nothing is neither more nor less, so that it has the colour of the middle.
    places = page.evaluate(
        f"""() => {{
            const {{ scale, patches }} = {EXPLORER}.difference().drawing;
            return [...scale.places(patches)];
        }}"""
    )
    assert set(places) == {0.5}
    # The difference asks as the first map does.
    canvas(page, 2).click(position=patch_position(page, example, 3, 3, pane=2))
    choose_other(page, "layer", "6")
    page.mouse.move(1, 1)
    settle(page)
    first, second = (example.attention(layer=layer, query=(3, 3)).values.numpy() for layer in (-1, -2))
    difference = first - second
    place = np.unravel_index(np.abs(difference).argmax(), difference.shape)
    said = re.fullmatch(
        r"A − B\. Largest difference: patch \((\d+), (\d+)\) with (\S+)\.(?: Scale .*)?",
        caption(page, 2).inner_text(),
    )
    assert said is not None, caption(page, 2).inner_text()
    assert (int(said[1]), int(said[2])) == tuple(place)
    assert float(said[3].replace("−", "-")) == pytest.approx(difference[place], rel=0.02)
    most = float(np.abs(difference).max())
    for end, value in (("low", -most), ("high", most)):
        text = page.locator(f".vx-{end}").nth(2).inner_text().replace("−", "-")
        assert float(text) == pytest.approx(value, rel=0.05)
    # Of tokens without a place in the picture, it is said above it.
    chip = page.locator(".vx-pane").nth(2).locator(".vx-chip").first
    cls = canvas_values(page, 0)[0] - canvas_values(page, 1)[0]
    assert float(chip.locator("span").inner_text()) == pytest.approx(cls, rel=0.01)
    # Both maps stand beside it, on one scale unless each is to have its own.
    check_page(page, library)
    page.locator(".vx-own_scales").check()
    check_page(page, library)
    assert page.locator(".vx-high").nth(0).inner_text() != page.locator(".vx-high").nth(1).inner_text()
    tops = page.locator(".vx-canvas").evaluate_all("all => all.map((each) => each.getBoundingClientRect().top)")
    assert len(tops) == 3 and len(set(tops)) == 1
    keep_picture(page, "difference.png")


def test_a_divider_stands_between_map_and_picture(page: Page) -> None:
    choose_layout(page, "slide")
    divider = page.locator(".vx-divider")
    expect(divider).to_be_visible()

    def columns() -> np.ndarray:
        """Of how many columns of the canvas the colours differ from those without a map."""
        found: list[int] = canvas(page).evaluate(
            "canvas => Array.from(canvas.getContext('2d').getImageData(0, canvas.height / 2, canvas.width, 1).data)"
        )
        return np.array(found).reshape(-1, 4)[:, :3]

    divider.fill("0")
    settle(page)
    plain = columns()
    divider.fill("0.5")
    settle(page)
    half = np.abs(columns() - plain).sum(1) > 6
    middle = len(half) // 2
    assert half[:middle].mean() > 0.3 and not half[middle + 10 :].any()
    assert state(page)["divider"] == 0.5 and state(page)["layout"] == "slide"


# ---- fit and resolution ----


@pytest.mark.long
def test_a_picture_is_fitted_as_the_library_does_it(page: Page, library: Library) -> None:
    for fit in ("crop", "native", "squash"):
        open_settings(page).locator(".vx-fit").select_option(fit)
        check_page(page, library)
        # The last is the model's own.
        found = first_view(page)["fit"], f"fit={fit}" in page.url
        assert found == ((None, False) if fit == "squash" else (fit, True))


@pytest.mark.long
def test_a_picture_is_seen_at_any_resolution(page: Page, library: Library) -> None:
    open_settings(page).locator(".vx-resolution").select_option(str(FINER))
    check_page(page, library)
    assert first_view(page)["resolution"] == FINER and f"resolution={FINER}" in page.url
    written = page.locator(".vx-pixels")
    written.fill("72")
    written.press("Enter")
    check_page(page, library)
    assert first_view(page)["resolution"] == 72
    # What cannot be is said, and what was there before stays.
    written.fill("75")
    written.press("Enter")
    expect(notice(page)).to_contain_text("75")
    check_page(page, library)
    page.locator(".vx-resolution").select_option("null")
    check_page(page, library)
    assert first_view(page)["resolution"] is None and "resolution" not in page.url


@pytest.mark.long
def test_the_value_of_white_is_a_field_and_what_was_assumed_is_said(page: Page, bundled: Model, tmp_path: Path) -> None:
    ramp = np.linspace(0, 4095, 96 * 96).reshape(96, 96).astype(np.uint16)
    Image.fromarray(ramp).save(tmp_path / "cells.tif")
    upload(page, tmp_path / "cells.tif")
    said = page.locator(".vx-picture-assumptions")
    expect(said).to_contain_text("value_range=(0, 4095)")
    expect_map(page, vitviz.analyze(tmp_path / "cells.tif", bundled).attention())
    written = open_settings(page).locator(".vx-white")
    # What cannot be is said, and the file is kept for a better number.
    for white in ("99", "4095"):
        written.fill(white)
        written.press("Enter")
        settle(page)
    expect(said).not_to_be_visible()
    assert first_view(page)["white"] == 4095
    expect_map(page, vitviz.analyze(tmp_path / "cells.tif", bundled, value_range=(0, 4095)).attention())
    choose_example(page, "rocket.jpg")
    assert first_view(page)["white"] is None


@pytest.mark.long
def test_stored_colours_can_be_kept_where_there_is_a_profile(page: Page, bundled: Model, tmp_path: Path) -> None:
    photo = tmp_path / "phone.png"
    with Image.open(EXAMPLE) as example:
        example.resize((96, 64)).save(photo, icc_profile=gamma_profile(1 / 2.2, PRIMARIES[12][1]))
    kept = open_settings(page).locator(".vx-stored-colours")
    expect(kept).not_to_be_visible()
    upload(page, photo)
    expect(page.locator(".vx-picture-assumptions")).to_contain_text("converted to sRGB")
    expect_map(page, vitviz.analyze(photo, bundled).attention())
    kept.check()
    settle(page)
    expect(page.locator(".vx-picture-assumptions")).not_to_be_visible()
    expect_map(page, vitviz.analyze(photo, bundled, color_profile="ignore").attention())
    kept.uncheck()
    settle(page)
    assert first_view(page)["color_profile"] is None


@pytest.mark.long
def test_a_picture_is_seen_at_its_own_resolution(page: Page, bundled: Model, tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (42, 63, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "small.png")
    upload(page, tmp_path / "small.png")
    open_settings(page).locator(".vx-resolution").select_option("native")
    page.locator(".vx-fit").select_option("native")
    settle(page)
    assert first_view(page)["resolution"] == "native" and "resolution=native" in page.url
    check_page(page, Library(bundled, pictures={first_view(page)["picture"]: tmp_path / "small.png"}))


@pytest.mark.long
def test_what_takes_long_shows_how_far_it_is_and_can_be_stopped(page: Page, library: Library) -> None:
    before, busy = caption(page).inner_text(), page.locator(".vx-busy")
    expect(busy).not_to_be_visible()
    written = open_settings(page).locator(".vx-pixels")
    written.fill("640")
    written.press("Enter")
    expect(busy).to_contain_text("Analysing, layer by layer")
    page.locator(".vx-stop").click()
    expect(notice(page)).to_contain_text("Stopped. The previous view is still shown.")
    check_page(page, library)
    expect(caption(page)).to_have_text(before)
    # What was asked for in between is not wanted any more once the page is back at what it shows.
    written.fill("632")
    written.press("Enter")
    expect(busy).to_contain_text("Analysing, layer by layer")
    page.locator(".vx-resolution").select_option("null")
    expect(busy).not_to_be_visible()
    check_page(page, library)
    expect(caption(page)).to_have_text(before)
    assert "resolution" not in page.url
