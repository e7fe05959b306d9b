"""What is alike: colours and likeness of two pictures on the page are those of the library."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, expect

import vitviz
from tests.driver import (
    EXPLORER,
    ask,
    click_patch,
    close_menus,
    first_view,
    open_settings,
    opened_page,
    patch_position,
    saved,
    saved_page,
    settle,
    state,
    upload,
)
from tests.support.example import ASSETS
from vitviz import Analysis, Model
from vitviz.ui.explorer.device_page import device_page
from vitviz.ui.explorer.saved_page import whole_page

pytestmark = pytest.mark.browser

COLOUR_STEPS, COSINE = 2, 2e-3
RASTER = f"""(index) => {{
    const {{ raster }} = {EXPLORER}.panes[index].drawing.look;
    const {{ data }} = raster.getContext("2d").getImageData(0, 0, raster.width, raster.height);
    return [raster.height, raster.width, ...data];
}}"""
LINES = """() => {
    const canvas = document.querySelector(".vx-lines"), { width, height } = canvas;
    return canvas.getContext("2d").getImageData(0, 0, width, height).data.filter(Boolean).length;
}"""
COLOURED = f"() => {EXPLORER}.panes[0].drawing?.look.raster"
VALUES = f"(index) => [...({EXPLORER}.panes[index].drawing.patches ?? [])]"


@pytest.fixture(scope="module")
def pair(bundled: Model) -> list[Analysis]:
    return [vitviz.analyze(ASSETS / name, bundled) for name in ("chelsea.jpg", "astronaut.jpg")]


def expect_colours(page: Page, pair: list[Analysis], layer: int | None) -> None:
    for index, expected in enumerate(vitviz.components(pair, layer)):
        rows, columns, *levels = page.evaluate(RASTER, index)
        found = np.array(levels).reshape(rows, columns, 4)[..., :3]
        assert np.abs(found - 255 * expected.colours.numpy()).max() <= COLOUR_STEPS
        expect(page.locator(".vx-badge").nth(index)).to_contain_text(f"after layer {expected.layer}")


def expect_likeness(page: Page, pair: list[Analysis], asking: int, cell: tuple[int, int], layer: int | None) -> None:
    for index, other in enumerate(pair):
        expected = pair[asking].similarity(cell, None if index == asking else other, layer).values.flatten()
        np.testing.assert_allclose(page.evaluate(VALUES, index), expected.numpy(), atol=COSINE)


def test_colours_and_likeness_of_two_pictures_are_those_of_the_library(
    browser: Browser, address: str, pair: list[Analysis]
) -> None:
    with opened_page(browser, address) as page:
        ask(page, "alike")
        assert [view["picture"] for view in state(page)["views"]] == ["example:chelsea.jpg", "example:astronaut.jpg"]
        expect(page.locator(".vx-lead")).to_contain_text("alike to the network; which colour means nothing.")
        # The other tabs lead back to the first picture.
        expect(page.locator("[data-question=target]")).to_have_text("Why “cat”")
        expect_colours(page, pair, None)
        # All features are here: pointing at a square of one picture, then of the other, asks the server for nothing.
        requests: list[str] = []
        page.on("request", lambda request: requests.append(request.url))
        for asking, cell in ((0, (6, 9)), (1, (3, 7))):
            canvas = page.locator(".vx-canvas").nth(asking)
            canvas.hover(position=patch_position(page, pair[asking], *cell, asking))
            page.wait_for_function(f"() => {EXPLORER}.panes[0].drawing.patches")
            expect_likeness(page, pair, asking, cell, None)
            # What is most like it in the other picture has a frame, and is named where everybody looks.
            other = pair[asking].similarity(cell, pair[1 - asking])
            place = divmod(int(other.values.argmax()), other.values.shape[1])
            a, b = "AB"[asking], "BA"[asking]
            expect(page.locator(".vx-lead")).to_contain_text(
                f"Patch {cell} of {a}: most like it in {b} is {place}, cosine 0"
            )
            marks = page.evaluate(f"{EXPLORER}.panes[{1 - asking}].drawing.marks")
            prefix = pair[asking].trace.layout.prefix_count
            at = prefix + place[0] * other.values.shape[1] + place[1]
            assert marks == [{"token": at, "colour": "white", "isDashed": True}]
            page.mouse.move(2, 2)
            page.wait_for_function(f"() => !{EXPLORER}.panes[0].drawing.patches")
        assert not [url for url in requests if "/files/" in url or "/map" in url]
        # Lines are drawn on demand.
        assert page.evaluate(LINES) == 0
        page.locator(".vx-lines-on").check()
        page.wait_for_function(f"() => ({LINES})() > 1000")
        # A square without one says so.
        matched = {match.patches[0] for match in vitviz.matches(*pair)}
        alone = next(cell for cell in np.ndindex(14, 14) if cell not in matched)
        page.locator(".vx-canvas").nth(0).hover(position=patch_position(page, pair[0], *alone, 0))
        expect(page.locator(".vx-lead")).to_contain_text("No line: the two are not each other's best match.")
        assert page.evaluate(LINES) == 0
        page.mouse.move(2, 2)
        page.locator(".vx-lines-on").uncheck()
        page.wait_for_function(f"() => ({LINES})() === 0")
        # A click keeps the square; its link, with another layer, shows the same.
        click_patch(page, pair[1], 4, 7, pane=1)
        page.locator(".vx-frame").nth(3).click()
        settle(page)
        page.mouse.move(2, 2)
        expect_likeness(page, pair, 1, (4, 7), 3)
        link, python = (page.evaluate(f"{EXPLORER}.latest.{name}") for name in ("link", "python"))
        expect(page.locator(".vx-status").nth(0)).to_contain_text("Patch (4, 7) of B: most like it in A is")
        expect(page.locator(".vx-status").nth(1)).to_contain_text("most like it in B, but for its neighbours, is")
    assert "layout=alike" in link and "second.alike=4.7" in link and "alike-layer=3" in link
    assert 'vitviz.components([analysis, other], layer=3).save("alike.png", opacity=0.85, smooth=True)' in python
    there = 'other.similarity((4, 7), other=analysis, layer=3).save("alike-there.png", Style(opacity=0.85, smooth=True'
    assert there in python
    with opened_page(browser, address, link) as page:
        expect(page.locator(".vx-tab[data-question=alike]")).to_have_attribute("aria-selected", "true")
        expect_likeness(page, pair, 1, (4, 7), 3)
        # On a phone, too, both legends say what the numbers are.
        page.set_viewport_size({"width": 390, "height": 844})
        settle(page)
        expect(page.locator(".vx-quantity").nth(1)).to_have_text("cosine")
        for index in range(2):
            legend, text = (page.locator(f".vx-{name}").nth(index).bounding_box() for name in ("legend", "quantity"))
            assert legend and text and text["width"] > 30 and text["x"] + text["width"] <= legend["x"] + legend["width"]
        expect(
            page.locator(".vx-pane:not([hidden]) :is(.vx-two, .vx-scale-name)").locator("visible=true")
        ).to_have_count(0)
        page.set_viewport_size({"width": 1280, "height": 900})
        settle(page)
        page.locator(".vx-canvas").nth(1).focus()
        page.keyboard.press("ArrowLeft")
        settle(page)
        assert [view["alike"] for view in state(page)["views"]] == [None, [4, 6]]
        page.keyboard.press("Escape")
        settle(page)
        expect_colours(page, pair, 3)
        # Another question is about the first picture alone, as it was.
        ask(page, "token")
        assert len(state(page)["views"]) == 1 and first_view(page)["picture"] == "example:chelsea.jpg"


def test_the_device_has_the_same_of_its_own_pictures(browser: Browser, pair: list[Analysis], tmp_path: Path) -> None:
    """It computes the features of each layer, and begins with the one that the library chooses."""
    page_file = tmp_path / "page.html"
    page_file.write_text(device_page([pair[0].model]).as_file(), encoding="utf-8")
    with saved_page(browser, page_file) as page:
        ask(page, "alike")
        expect_colours(page, pair, None)
        click_patch(page, pair[1], 4, 7, pane=1)
        page.locator(".vx-frame").nth(3).click()
        settle(page)
        page.mouse.move(2, 2)
        expect_likeness(page, pair, 1, (4, 7), 3)
        page.locator(".vx-canvas").nth(1).focus()
        page.keyboard.press("Escape")
        page.wait_for_function(COLOURED)
        expect_colours(page, pair, 3)
        # Those of all layers come by themselves, for the film.
        page.wait_for_function(f"() => {EXPLORER}.panes.every(({{ packs }}) => packs.loaded.size >= 8)")


def test_another_second_picture_is_chosen_or_given(
    browser: Browser, address: str, pair: list[Analysis], tmp_path: Path
) -> None:
    """Of another shape, too."""
    model, own = pair[0].model, tmp_path / "own.png"
    with Image.open(ASSETS / "rocket.jpg") as rocket:
        rocket.crop((0, 0, 300, 200)).save(own)
    with opened_page(browser, address, "layout=alike&second.example=flower.jpg&alike-layer=2") as page:
        flower = vitviz.analyze(ASSETS / "flower.jpg", model)
        expect_colours(page, [pair[0], flower], 2)
        page.locator(".vx-beside-picture").select_option("example:perch.jpg")
        settle(page)
        perch = vitviz.analyze(ASSETS / "perch.jpg", model)
        expect_colours(page, [pair[0], perch], 2)
        # The first picture is framed by a click, and stays; the same again lets the square go.
        for _ in range(2):
            click_patch(page, pair[0], 1, 1)
        with page.expect_file_chooser() as chooser:
            page.locator(".vx-beside .vx-button").click()
        chooser.value.set_files(own)
        page.wait_for_function(f"() => {EXPLORER}.store.state.views[1].picture.startsWith('picture:')")
        settle(page)
        open_settings(page)
        page.locator(".vx-fit").select_option("native")
        settle(page)
        expect(page.locator(".vx-beside-picture option:checked")).to_have_text("own.png")
        given = vitviz.analyze(own, model, fit="native")
        assert given.trace.layout.grid_height != given.trace.layout.grid_width
        expect_colours(page, [pair[0], given], 2)
        assert first_view(page)["picture"] == "example:chelsea.jpg"
        # On a phone, both are in sight, one below the other, and the lines go over both.
        page.set_viewport_size({"width": 390, "height": 844})
        settle(page)
        first, second = (page.locator(".vx-canvas").nth(index).bounding_box() for index in (0, 1))
        assert first and second and first["width"] > 300 and second["y"] > first["y"] + first["height"]
        assert second["y"] + second["height"] <= 844
        close_menus(page)
        stages = [page.locator(".vx-stage").nth(index) for index in (0, 1)]
        without = [stage.screenshot() for stage in stages]
        page.locator(".vx-lines-on").check()
        page.wait_for_function(f"() => ({LINES})() > 1000")
        assert not any(stage.screenshot() == before for stage, before in zip(stages, without, strict=True))


def test_a_refused_file_takes_nothing_of_the_view(browser: Browser, address: str, tmp_path: Path) -> None:
    text, weights = tmp_path / "notes.txt", tmp_path / "weights.pth"
    for file in (text, weights):
        file.write_text("no picture, and no model")
    link = "method=rollout&layout=alike&second.example=astronaut.jpg&alike=5.5&alike-layer=3"
    with opened_page(browser, address, link) as page:
        before, url = state(page), page.url
        assert (first_view(page)["alike"], before["alike_layer"]) == ([5, 5], 3)
        for file in (text, weights):
            upload(page, file)
            expect(page.locator(".vx-notice")).to_contain_text("The previous view is still shown")
            assert state(page) == before and page.url == url


def test_a_link_without_a_second_picture_shows_an_example_beside_it(browser: Browser, address: str) -> None:
    cat, man = "example:chelsea.jpg", "example:astronaut.jpg"
    for link, expected in {"layout=alike": [cat, man], "layout=alike&example=astronaut.jpg": [man, cat]}.items():
        with opened_page(browser, address, link) as page:
            assert [view["picture"] for view in state(page)["views"]] == expected


def test_what_does_not_fit_a_link_is_left_out_with_a_reason(browser: Browser, address: str) -> None:
    with opened_page(browser, address, "layout=alike&second.example=coffee.jpg&alike=14.0&alike-layer=8") as page:
        expect(page.locator(".vx-notice")).to_contain_text("layer 8: expected at most 7. The best layer is shown.")
        expect(page.locator(".vx-notice")).to_contain_text("Left out of the squares to compare with: 1")
        assert (first_view(page)["alike"], state(page)["alike_layer"]) == (None, None)


def test_a_saved_page_has_both_pictures_and_the_layer_that_was_shown(
    browser: Browser, address: str, pair: list[Analysis]
) -> None:
    link = "layout=alike&second.example=astronaut.jpg&alike-layer=4&second.alike=4.7&patches-off=1.1"
    with opened_page(browser, address, link) as page:
        file = saved(page, "page")
        expect(page.locator(".vx-said")).to_have_text("Saved chelsea.html.")
    with saved_page(browser, file) as page:
        expect_likeness(page, pair, 1, (4, 7), 4)
        expect(page.locator(".vx-headline")).to_contain_text("A: 1 square hidden · B, of 108 things")
        page.keyboard.press("Escape")
        page.wait_for_function(COLOURED)
        expect_colours(page, pair, 4)
        # All else is of the first picture, and the second is there once more after it.
        page.locator(".vx-tab[data-question=token]").click()
        expect(page.locator(".vx-canvas").nth(1)).to_be_hidden()
        page.locator(".vx-compare-open").click()
        expect(page.locator(".vx-comparing")).to_be_visible()
        pictures = page.evaluate(f"{EXPLORER}.store.state.views.map(({{ picture }}) => picture)")
        assert pictures == ["example:chelsea.jpg"] * 2
        page.locator(".vx-tab[data-question=alike]").click()
        page.wait_for_function(COLOURED)
        expect_colours(page, pair, 4)


def test_a_page_that_python_writes_has_one_picture(browser: Browser, pair: list[Analysis], tmp_path: Path) -> None:
    """Features make it larger and take a pass: it has them where its link asks for what is alike."""
    for link, is_there in (("layout=alike&alike-layer=3&alike=6.9", True), ("method=rollout", False)):
        (tmp_path / "page.html").write_text(whole_page(pair[0], link=link))
        with saved_page(browser, tmp_path / "page.html") as page:
            tab = page.locator(".vx-tab[data-question=alike]")
            assert tab.is_visible() == is_there
            if is_there:
                expect_likeness(page, pair[:1], 0, (6, 9), 3)
                expect(page.locator(".vx-beside")).to_be_hidden()
                page.keyboard.press("Escape")
                page.wait_for_function(COLOURED)
                expect_colours(page, pair[:1], 3)
