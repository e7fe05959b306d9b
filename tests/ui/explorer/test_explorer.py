"""The explorer in a browser: its numbers are those of the library, and everything works by mouse, key and touch."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image
from playwright.sync_api import Browser, Locator, Page, Request, Route, expect

import vitviz
from tests.driver import (
    ARTEFACTS,
    EXAMPLE,
    canvas,
    caption,
    choose_example,
    new_page,
    opened_page,
    place_of,
    settle,
    state,
)
from tests.ui.explorer.page_driver import (
    EXPLORER,
    HEADS,
    LAYERS,
    SHAPES,
    SmallApp,
    all_weights,
    asked,
    drawn,
    loaded,
    made,
    panel,
    pixels,
    radio,
    rolled,
    slider,
    small_app,
    weights,
)
from tests.ui.explorer.test_explorer_files import allowed
from vitviz import Style
from vitviz.errors.number_text import digits
from vitviz.ui.explorer.page import whole_page
from vitviz.visualization.scales import fit

pytestmark = pytest.mark.browser

Apps = Callable[[str], SmallApp]


@pytest.fixture(scope="module")
def apps() -> Iterator[Apps]:
    """Apps of small networks by the names of their shapes, each started when it is first asked for."""
    running: dict[str, SmallApp] = {}
    with ExitStack() as stack:

        def app(name: str) -> SmallApp:
            if name not in running:
                running[name] = stack.enter_context(small_app(made(*SHAPES[name])))
            return running[name]

        yield app


@pytest.fixture
def cifar(apps: Apps) -> SmallApp:
    return apps("cifar")


@pytest.fixture
def registers(apps: Apps) -> SmallApp:
    return apps("registers")


@pytest.fixture
def cifar_page(browser: Browser, cifar: SmallApp) -> Iterator[Page]:
    with opened_page(browser, cifar.address) as found:
        yield found


@pytest.fixture
def registers_page(browser: Browser, registers: SmallApp) -> Iterator[Page]:
    with opened_page(browser, registers.address) as found:
        yield found


# The numbers.

WAYS = ("row", "column")


@pytest.mark.parametrize("name", SHAPES)
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


def test_what_studies_say_of_a_class_is_shown_to_the_letter(browser: Browser) -> None:
    # Of few patches, so that all studies are soon there.
    model = replace(made(16, 16, 0, 4), name=HOSTILE, labels=tuple(f"{HOSTILE} {index}" for index in range(3)))
    with small_app(model) as app, opened_page(browser, app.address, "method=relevance&p.target=1") as page:
        before = page.locator("img").count()
        expect(page.locator(".vx-model-name")).to_have_text(HOSTILE)
        panel(page, "Compare all methods")
        page.get_by_role("button", name="Compare", exact=True).click()
        expect(page.locator(".vx-compared").first).to_be_visible(timeout=90_000)
        panel(page, "Switch parts off")
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
        shown.hover(position=place_of(page, analysis, row, column))
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
    shown.hover(position=place_of(page, analysis, 1, 1))
    expect(caption(page)).to_contain_text("Attention from patch (1, 1)")
    page.mouse.move(1, 1)
    expect(caption(page)).to_have_text(before)
    assert sent == [] and state(page)["views"][0]["parameters"] == {}


def test_prefix_tokens_are_hovered_and_chosen_like_patches(registers_page: Page, registers: SmallApp) -> None:
    page, chips = registers_page, registers_page.locator(".vx-pane").first.locator(".vx-chip")
    # More than a few stand behind one button.
    expect(chips.locator("b")).to_have_text(["CLS", "register 1", "mean patch"])
    page.get_by_role("button", name="3 more").click()
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
    page.locator(".vx-models > summary").click()
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
    changes(shown, lambda: page.get_by_label("Colours").select_option("viridis"))
    changes(shown, lambda: page.get_by_label("Opacity").fill("0.9"))
    changes(shown, lambda: page.get_by_label("smooth").check())
    changes(shown, lambda: page.get_by_label("weak values clear").uncheck())
    changes(shown, lambda: page.get_by_label("patch grid").check())
    changes(sheet, lambda: page.get_by_label("one scale for the sheet").check())
    settle(page)
    assert "shared=true" in page.url


# Two maps.


def test_two_layers_side_by_side_share_hover_token_and_scale(registers_page: Page, registers: SmallApp) -> None:
    page, analysis = registers_page, registers.analysis
    page.get_by_label("View").select_option("two")
    settle(page)
    # A click makes a map the one that the controls are about.
    canvas(page, 1).click(position=place_of(page, analysis, 4, 4, pane=1))
    expect(page.locator(".vx-active")).to_contain_text("map 2")
    slider(page, "layer").fill("0")
    for pane in (0, 1):
        expect(caption(page, pane)).to_contain_text("Attention from patch (4, 4)")
    canvas(page).hover(position=place_of(page, analysis, 2, 3))
    expect(caption(page, 0)).to_contain_text("Attention from patch (2, 3) to each patch, layer 2")
    expect(caption(page, 1)).to_contain_text("Attention from patch (2, 3) to each patch, layer 0")
    low, high = fit(None, [analysis.attention(layer=layer, query=(2, 3)).values for layer in (2, 0)]).ends
    for pane in (0, 1):
        assert float(page.locator(".vx-low").nth(pane).inner_text()) == pytest.approx(low, rel=0.02)
        assert float(page.locator(".vx-high").nth(pane).inner_text()) == pytest.approx(high, rel=0.02)
    # A click on the first makes it the one again.
    canvas(page).click(position=place_of(page, analysis, 0, 0))
    expect(slider(page, "layer")).to_have_value("2")
    expect(page.locator("[data-name=layer]")).to_contain_text("2 of 0–2")
    canvas(page).click(position=place_of(page, analysis, 1, 1), modifiers=["Shift"])
    expect(page.locator(".vx-pin")).to_have_text(["patch (1, 1)"])
    page.screenshot(path=ARTEFACTS / "explorer-two.png")
    page.get_by_label("View").select_option("one")
    expect(canvas(page, 1)).not_to_be_visible()


def test_another_grid_is_linked_by_position(browser: Browser, cifar: SmallApp) -> None:
    """Two maps of one picture, of which the second is finer."""
    with opened_page(browser, cifar.address, "layout=two&second.method=attention&second.resolution=48") as page:
        finer = vitviz.analyze(EXAMPLE, cifar.model, resolution=48)
        assert (finer.trace.layout.grid_height, cifar.analysis.trace.layout.grid_height) == (12, 8)
        canvas(page).hover(position=place_of(page, cifar.analysis, 7, 0))
        expect(caption(page)).to_contain_text("Attention from patch (7, 0)")
        expect(caption(page, 1)).to_contain_text("Attention from patch (11, 0)")
        canvas(page, 1).hover(position=place_of(page, finer, 0, 11, pane=1))
        expect(caption(page)).to_contain_text("Attention from patch (0, 7)")
        page.get_by_label("View").select_option("difference")
        expect(caption(page, 1)).to_contain_text("different tokens")


# What is saved and shared.


def saved(page: Page, name: str) -> Path:
    """The file that a button gives."""
    with page.expect_download() as download:
        page.get_by_role("button", name=name).click()
    return Path(download.value.path())


def test_numbers_and_pictures_are_saved(registers_page: Page, registers: SmallApp) -> None:
    page, analysis = registers_page, registers.analysis
    canvas(page).click(position=place_of(page, analysis, 2, 3))
    panel(page, "Save and share")
    page.get_by_label("weak values clear").uncheck()
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


def test_back_leads_to_what_was_shown_before_however_soon_the_next_was_chosen(
    browser: Browser, cifar: SmallApp
) -> None:
    """The server has not said yet what the address of the first map is."""
    page = new_page(browser)

    def hold(route: Route) -> None:
        if asked(route.request).get("fn_name") != "describe":
            route.continue_()

    page.route(re.compile("component_server"), hold)
    page.goto(f"{cifar.address}/?__theme=light&method=attention")
    loaded(page)
    for method in ("rollout", "relevance"):
        page.select_option(".vx-method", method)
        expect(caption(page)).to_contain_text(cifar.analysis.map(method).description)
    # It says so now; and the page stops waiting.
    page.unroute(re.compile("component_server"))
    settle(page)
    for method in ("rollout", "attention"):
        page.go_back()
        expect(caption(page)).to_contain_text(cifar.analysis.map(method).description)
    page.close()


@pytest.mark.parametrize("shape", [(40, 1200), (1200, 40)])
def test_a_very_wide_or_tall_picture_fits_the_screen(browser: Browser, tmp_path: Path, shape: tuple[int, int]) -> None:
    """At twice the zoom, which is a screen of half the size."""
    picture = np.random.default_rng(0).integers(0, 255, (*shape, 3), dtype=np.uint8)
    analysis = vitviz.analyze(picture, made(*SHAPES["cifar"]), fit="squash")
    file = tmp_path / "explorer.html"
    file.write_text(whole_page(analysis))
    page = browser.new_page(viewport={"width": 700, "height": 450})
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
    page.route(re.compile("component_server"), lambda route: route.fulfill(status=200, body="gone"))
    page.select_option(".vx-method", "rollout")
    expect(caption(page)).to_contain_text("The server does not answer")
    retry = page.get_by_role("button", name="Try again")
    expect(retry).to_be_visible()
    page.unroute(re.compile("component_server"))
    retry.click()
    expect(caption(page)).to_contain_text("layers 0 to 2. Strongest")
    expect(retry).not_to_be_visible()
    settle(page)


def test_a_picture_that_has_left_the_server_is_made_again(browser: Browser, cifar: SmallApp) -> None:
    lost: list[str] = []

    def lose(route: Route) -> None:
        if len(lost) == most:
            return route.continue_()
        lost.append(route.request.url)
        route.fulfill(status=404, body="gone")

    with opened_page(browser, cifar.address, errors=[]) as page:
        most = 1
        page.route(re.compile("picture.webp"), lose)
        choose_example(page, "rocket.jpg")
        assert len(lost) == 1
        expect(page.locator(".vx")).to_have_attribute("data-state", "ready")
        # Where it comes to nothing, the page says so, and can be told to try again.
        lost.clear()
        most = 100
        page.locator('.vx-examples button[data-example="example:coffee.jpg"]').click()
        expect(caption(page)).to_have_text("The picture cannot be fetched.")
        most = len(lost)
        page.get_by_role("button", name="Try again").click()
        settle(page)
        expect(caption(page)).to_contain_text("Attention from the CLS token")
        expect(page.locator(".vx")).to_have_attribute("data-state", "ready")


def test_layers_are_fetched_the_nearest_first(browser: Browser, apps: Apps) -> None:
    names: list[str] = []

    def note(request: Request) -> None:
        if asked(request).get("fn_name") == "file":
            names.append(asked(request)["data"]["name"])

    browser.contexts[0].on("request", note)
    with opened_page(browser, apps("large").address):
        pass
    browser.contexts[0].remove_listener("request", note)
    # Two are under way at once.
    assert set(names[:2]) == {"layer 2", "layer 1"} and names[2:] == ["layer 0"]


def test_the_whole_page_works_from_disk(browser: Browser, registers: SmallApp, tmp_path: Path) -> None:
    file = tmp_path / "explorer.html"
    file.write_text(whole_page(registers.analysis, "Noise"))
    page, sent, wrong = browser.new_page(), [], []
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
    for part in (".vx-source", ".vx-predictions", "[data-act=link]", "[data-panel=compare]"):
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
