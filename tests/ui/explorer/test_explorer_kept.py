"""What the explorer saves in one file, and what it does when the server is slow, silent or forgetful."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, Route, expect

import vitviz
from tests.driver import (
    NEXT_FRAMES,
    box_of,
    canvas,
    caption,
    choose_example,
    click,
    open_menu,
    opened_page,
    patch_position,
    saved_page,
    settle,
)
from tests.support.example import EXAMPLE
from tests.ui.explorer.page_driver import SHAPES, SmallApp, made, slider
from vitviz.ui.explorer.saved_page import whole_page

# What the page asks for once it is open.
SERVER = re.compile("/(files/.*(layer|rollout)|map|describe)")

pytestmark = pytest.mark.browser


def test_a_very_wide_or_tall_picture_fits_the_screen(browser: Browser, tmp_path: Path) -> None:
    """At twice the zoom, which is a screen of half the size."""
    for shape in ((40, 1200), (1200, 40)):
        picture = np.random.default_rng(0).integers(0, 255, (*shape, 3), dtype=np.uint8)
        analysis = vitviz.analyze(picture, made(*SHAPES["cifar"]), fit="squash")
        file = tmp_path / "explorer.html"
        file.write_text(whole_page(analysis))
        with saved_page(browser, file, {"width": 700, "height": 450}) as page:
            edges, sheet = box_of(canvas(page)), box_of(page.locator(".vx-sheet"))
            assert edges["height"] <= 450 and edges["width"] <= 700
            assert edges["width"] / edges["height"] == pytest.approx(shape[1] / shape[0], rel=0.05)
            assert 0.2 * sheet["width"] < sheet["height"] < 2.5 * sheet["width"]
            canvas(page).hover(position={"x": edges["width"] * 0.7, "y": edges["height"] * 0.7})
            expect(caption(page)).to_contain_text("Attention from patch (5, 5)")
            assert page.evaluate("document.documentElement.scrollWidth") <= 700


# When things go wrong.


def test_while_a_layer_is_fetched_others_are_explored(cifar_page: Page, cifar: SmallApp) -> None:
    page, rocket = cifar_page, vitviz.analyze(EXAMPLE.with_name("rocket.jpg"), cifar.model)
    look = rocket.far_look()
    held: dict[str, Route] = {}
    files = re.compile("/files/.*layer")
    page.route(files, lambda route: held.update({unquote(route.request.url.rpartition("/")[2]): route}))
    open_menu(page, "pictures")
    page.locator('.vx-all-examples button[data-example="example:rocket.jpg"]').click()
    assert look is not None
    # What the square with which it opens attends to is there before its layer.
    opening = rocket.attention(layer=look.layer, head=look.head, query=look.query).token_map.strongest
    expect(caption(page)).to_contain_text(
        f"layer {look.layer} of 0–2, head {look.head}. Strongest: patch {opening} with 0."
    )
    # Two at once, the nearest to that of its far look.
    while len(held) < 2:
        page.evaluate(NEXT_FRAMES)
    assert list(held) == [f"layer {look.layer}", "layer 1"]
    canvas(page).click(position=patch_position(page, rocket, 2, 3))
    expect(caption(page)).to_have_text("Token attention: being fetched …")
    expect(page.locator(".vx-legend").first).not_to_be_visible()
    held["layer 1"].continue_()
    slider(page, "layer").fill("1")
    best = rocket.attention(layer=1, head=look.head, query=(2, 3)).token_map.strongest
    expect(caption(page)).to_contain_text(f"layer 1 of 0–2, head {look.head}. Strongest: patch {best} with 0.")
    sheet = box_of(page.locator(".vx-sheet"))
    page.locator(".vx-sheet").hover(position={"x": sheet["width"] - 5, "y": sheet["height"] - 5})
    expect(page.locator(".vx-cell")).to_have_text("Layer 2 is being fetched …")
    for name in held.keys() - {"layer 1"}:
        held[name].continue_()
    page.unroute(files)
    settle(page)


def test_a_server_that_does_not_answer_is_asked_again(cifar_page: Page, cifar: SmallApp) -> None:
    page = cifar_page
    page.route(SERVER, lambda route: route.abort())
    page.select_option(".vx-method", "rollout")
    expect(caption(page)).to_contain_text("The server does not answer")
    retry = page.get_by_role("button", name="Try again")
    expect(retry).to_be_visible()
    page.unroute(SERVER)
    retry.click()
    expect(caption(page)).to_contain_text("layers 0 to 2. Strongest")
    expect(retry).not_to_be_visible()
    settle(page)


def test_a_picture_that_has_left_the_server_is_made_again(browser: Browser, cifar: SmallApp) -> None:
    lost, most = [], 1

    def lose(route: Route) -> None:
        if len(lost) == most:
            return route.continue_()
        lost.append(route.request.url)
        route.fulfill(status=404, body="gone")

    with opened_page(browser, cifar.address, errors=[]) as page:
        page.route(re.compile("seen.webp"), lose)
        choose_example(page, "rocket.jpg")
        # Where it comes to nothing, the page says so, and can be told to try again.
        most = 100
        open_menu(page, "pictures")
        page.locator('.vx-all-examples button[data-example="example:coffee.jpg"]').click()
        expect(caption(page)).to_have_text("The picture cannot be fetched.")
        most = len(lost)
        click(page, "button:text('Try again')")
        expect(caption(page)).to_contain_text("Attention from patch")
        expect(page.locator(".vx")).to_have_attribute("data-state", "ready")
