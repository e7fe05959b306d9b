"""What the explorer saves and shares, and what it does when things go wrong."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, Request, Route, expect

import vitviz
from tests.driver import canvas, caption, choose_example, new_page, open_menu, opened_page, patch_position, settle
from tests.support.example import EXAMPLE
from tests.ui.explorer.page_driver import (
    EXPLORER,
    HEADS,
    LAYERS,
    SHAPES,
    Apps,
    SmallApp,
    drawn,
    loaded,
    made,
    panel,
    weights,
)
from vitviz import Style
from vitviz.ui.explorer.saved_page import whole_page

# What the page asks for once it is open.
SERVER = re.compile("/(files/.*(layer|rollout)|map|describe)")

pytestmark = pytest.mark.browser


# What is saved and shared.


def saved(page: Page, name: str) -> Path:
    """The file that a button gives."""
    with page.expect_download() as download:
        page.get_by_role("button", name=name).click()
    return Path(download.value.path())


@pytest.mark.long
def test_numbers_and_pictures_are_saved(registers_page: Page, registers: SmallApp) -> None:
    page, analysis = registers_page, registers.analysis
    canvas(page).click(position=patch_position(page, analysis, 2, 3))
    panel(page, "Save and share")
    page.get_by_label("fade weak values").uncheck()
    page.get_by_label("Opacity").fill("1")
    settle(page)
    with np.load(saved(page, "Numbers, NPZ")) as numbers:
        rows = analysis.trace.rows((2, 3)).numpy()
        assert (np.abs(numbers["attention"] - rows) < 0.01 * rows.max()).all()
        assert numbers["layers"].tolist() == [0, 1, 2]
        np.testing.assert_allclose(numbers["map"], rows[2].mean(0)[5:].reshape(6, 10), atol=0.01 * rows.max())
        np.testing.assert_allclose(numbers["prefix"], rows[2].mean(0)[:5], atol=0.01 * rows.max())
        about = json.loads(numbers["about"].item())
    assert (about["model"], about["picture"], about["method"]) == ("small", EXAMPLE.name, "attention")
    assert about["parameters"] == {"query": [2, 3]} and "p.query=2,3" in about["link"]
    assert about["prefix"] == list(analysis.trace.layout.prefix) and about["grid"] == [6, 10]
    with Image.open(saved(page, "Picture, PNG")) as picture, Image.open(EXAMPLE) as given:
        # As wide as the page shows it, or as it was given, with its legend and caption below.
        shown = page.evaluate(f"{EXPLORER}.panes[0].facts.width")
        size = (max(shown, given.width), round(max(shown, given.width) * given.height / given.width))
        assert picture.width == size[0] and picture.height > size[1]
        ours = analysis.attention(query=(2, 3)).overlay(Style(opacity=1, fade=False)).resize(size)
        left, top, right, bottom = (
            round(edge * size[0] / analysis.prepared.image.width) for edge in analysis.prepared.geometry.box
        )
        inside = np.s_[top:bottom, left:right]
        one, other = (np.asarray(each.convert("RGB"), dtype=float)[: size[1]] for each in (picture, ours))
        # All but the mark and the edges of the patches.
        assert np.median(np.abs(one - other)[inside]) <= 1
        below = np.asarray(picture.convert("L"))[size[1] :]
        assert below.min() < 100 and np.median(below) == 255
    with Image.open(saved(page, "Sheet, PNG")) as sheet:
        assert sheet.width >= 1600
    drawing = ElementTree.parse(saved(page, "Sheet, SVG")).getroot()
    assert len(drawing.findall("{*}image")) == LAYERS * (HEADS + 1)
    heads = [each.text for each in drawing.findall("{*}text")]
    assert heads == ["0", "1", "2", "mean", "0", "1"]


def test_what_a_link_of_before_says_and_cannot_be_is_left_out(browser: Browser, cifar: SmallApp) -> None:
    with opened_page(browser, cifar.address, "x=1#layer=99&head=x&map=none&token=90,90&colormap=red&opacity=7") as page:
        expect(caption(page)).to_contain_text("Attention from the CLS token to each patch, layer 2 of 0–2, mean of 2")


@pytest.mark.long
def test_back_leads_to_what_was_shown_before_however_soon_the_next_was_chosen(
    browser: Browser, cifar: SmallApp
) -> None:
    """The server has not said yet what the address of the first map is."""
    page = new_page(browser)

    page.route("**/describe", lambda route: None)
    page.goto(f"{cifar.address}/?__theme=light&method=attention")
    loaded(page)
    for method in ("rollout", "relevance"):
        page.select_option(".vx-method", method)
        expect(caption(page)).to_contain_text(cifar.analysis.map(method).description)
    # It says so now; and the page stops waiting.
    page.unroute("**/describe")
    settle(page)
    for method in ("rollout", "attention"):
        page.go_back()
        expect(caption(page)).to_contain_text(cifar.analysis.map(method).description)
    page.close()


@pytest.mark.long
@pytest.mark.parametrize("shape", [(40, 1200), (1200, 40)])
def test_a_very_wide_or_tall_picture_fits_the_screen(browser: Browser, tmp_path: Path, shape: tuple[int, int]) -> None:
    """At twice the zoom, which is a screen of half the size."""
    picture = np.random.default_rng(0).integers(0, 255, (*shape, 3), dtype=np.uint8)
    analysis = vitviz.analyze(picture, made(*SHAPES["cifar"]), fit="squash")
    file = tmp_path / "explorer.html"
    file.write_text(whole_page(analysis))
    page = browser.new_page(bypass_csp=True, viewport={"width": 700, "height": 450})
    page.goto(file.as_uri())
    loaded(page)
    edges = canvas(page).bounding_box()
    assert edges is not None and edges["height"] <= 450 and edges["width"] <= 700
    assert edges["width"] / edges["height"] == pytest.approx(shape[1] / shape[0], rel=0.05)
    canvas(page).hover(position={"x": edges["width"] * 0.7, "y": edges["height"] * 0.7})
    expect(caption(page)).to_contain_text("Attention rollout for patch (5, 5)")
    assert page.evaluate("document.documentElement.scrollWidth") <= 700
    page.close()


# When things go wrong.


@pytest.mark.long
def test_what_has_left_the_server_is_computed_again(cifar_page: Page, cifar: SmallApp) -> None:
    page = cifar_page
    before = page.evaluate(f"{EXPLORER}.panes[0].facts.uid")
    cifar.forget()
    page.select_option(".vx-method", "gradient_rollout")
    settle(page)
    best = cifar.analysis.map("gradient_rollout").token_map.strongest
    expect(caption(page)).to_contain_text(f"Strongest: patch {best}")
    assert page.evaluate(f"{EXPLORER}.panes[0].facts.uid") != before
    expect(page.locator(".vx")).to_have_attribute("data-state", "ready")


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


@pytest.mark.long
def test_a_picture_that_has_left_the_server_is_made_again(browser: Browser, cifar: SmallApp) -> None:
    lost: list[str] = []

    def lose(route: Route) -> None:
        if len(lost) == most:
            return route.continue_()
        lost.append(route.request.url)
        route.fulfill(status=404, body="gone")

    with opened_page(browser, cifar.address, errors=[]) as page:
        most = 1
        page.route(re.compile("seen.webp"), lose)
        choose_example(page, "rocket.jpg")
        assert len(lost) == 1
        expect(page.locator(".vx")).to_have_attribute("data-state", "ready")
        # Where it comes to nothing, the page says so, and can be told to try again.
        lost.clear()
        most = 100
        open_menu(page, "pictures")
        page.locator('.vx-all-examples button[data-example="example:coffee.jpg"]').click()
        expect(caption(page)).to_have_text("The picture cannot be fetched.")
        most = len(lost)
        page.get_by_role("button", name="Try again").click()
        settle(page)
        expect(caption(page)).to_contain_text("Attention from the CLS token")
        expect(page.locator(".vx")).to_have_attribute("data-state", "ready")


def test_layers_are_fetched_the_nearest_first(browser: Browser, apps: Apps) -> None:
    names: list[str] = []

    def note(request: Request) -> None:
        if "/files/" in request.url and "layer" in request.url:
            names.append(unquote(request.url.rpartition("/")[2]))

    browser.contexts[0].on("request", note)
    with opened_page(browser, apps("large").address):
        pass
    browser.contexts[0].remove_listener("request", note)
    # Two are under way at once.
    assert set(names[:2]) == {"layer 2", "layer 1"} and names[2:] == ["layer 0"]


def test_the_whole_page_works_from_disk(browser: Browser, registers: SmallApp, tmp_path: Path) -> None:
    file = tmp_path / "explorer.html"
    file.write_text(whole_page(registers.analysis, "Noise"))
    page, sent, wrong = browser.new_page(bypass_csp=True), [], []
    page.on("request", lambda request: sent.append(request.url))
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(file.as_uri())
    loaded(page, "page")
    expected = registers.analysis.trace.weights(1)
    np.testing.assert_allclose(weights(page, 1, 0, 20, "row"), expected[0, 20], atol=0.02)
    # What needs a server is not offered.
    options = page.locator(".vx-method option").evaluate_all("all => all.map(({ value }) => value)")
    assert options == ["attention", "rollout"]
    for part in (".vx-pictures", ".vx-predictions", "[data-act=link]", "[data-panel=compare]"):
        expect(page.locator(part).first).not_to_be_visible()
    page.select_option(".vx-method", "rollout")
    best = registers.analysis.rollout().token_map.strongest
    expect(caption(page)).to_contain_text(f"layers 0 to 2. Strongest: patch {best}")
    panel(page, "Save and share")
    page.mouse.move(0, 0)
    with np.load(saved(page, "Numbers, NPZ")) as numbers:
        assert numbers["map"].shape == (6, 10)
    drawn(page)
    assert [address for address in sent if not address.startswith(("file:", "data:", "blob:"))] == []
    assert wrong == []
    page.close()
