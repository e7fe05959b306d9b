"""The first tab of the app: the explorer shows what the page is about, and goes with the picture and the model."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Locator, Page, expect

import vitviz
from tests.driver import ARTEFACTS, EXAMPLE, ROOT, expect_map, new_page, open_panel, opened_page, upload
from vitviz import Analysis, Model, Style

pytestmark = pytest.mark.browser


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    with opened_page(browser, address) as found:
        found.get_by_role("tab", name="Explore").click()
        yield found


def canvas(page: Page) -> Locator:
    return page.locator("#vv-explorer .vx-canvas").first


def status(page: Page) -> Locator:
    return page.locator("#vv-explorer .vx-status").first


def expect_token(page: Page, analysis: Analysis, row: int, column: int) -> None:
    """Move over a patch; the page says what the library says."""
    edges, layout = canvas(page).bounding_box(), analysis.trace.layout
    assert edges is not None
    left, top, right, bottom = analysis.prepared.geometry.patch_rectangle(
        row, column, layout.grid_height, layout.grid_width
    )
    width, height = analysis.prepared.image.size
    across, down = (left + right) / 2 / width, (top + bottom) / 2 / height
    canvas(page).hover(position={"x": across * edges["width"], "y": down * edges["height"]})
    best = analysis.attention(query=(row, column)).token_map.strongest
    expect(status(page)).to_contain_text(f"patch ({row}, {column}) looks at: layer")
    expect(status(page)).to_contain_text(f"Strongest: patch {best}")


def expect_analysis(page: Page, analysis: Analysis) -> None:
    """Wait for another picture; what was hovered before does not count any more."""
    best = analysis.attention().token_map.strongest
    expect(status(page)).to_contain_text(f"CLS looks at: layer 5, mean of 6 heads. Strongest: patch {best}")


def test_it_opens_on_the_explorer_of_the_example(browser: Browser, address: str, example: Analysis) -> None:
    page = new_page(browser)
    page.goto(address)
    expect_analysis(page, example)
    expect_token(page, example, 5, 2)
    page.close()


def test_it_goes_with_picture_fit_and_resolution(page: Page, bundled: Model, tmp_path: Path) -> None:
    photo = tmp_path / "wide.png"
    noise = np.random.default_rng(0).integers(0, 255, (4, 9, 3), dtype=np.uint8)
    Image.fromarray(noise).resize((900, 400)).save(photo)
    upload(page, photo)
    squashed = vitviz.analyze(photo, bundled)
    expect_analysis(page, squashed)
    expect_token(page, squashed, 6, 1)
    open_panel(page, "vv-sight")
    page.locator("#vv-fit input").click()
    page.get_by_role("option", name="whole picture, its own shape").click()
    native = vitviz.analyze(photo, bundled, fit="native")
    expect_analysis(page, native)
    expect_token(page, native, native.trace.layout.grid_height - 1, native.trace.layout.grid_width - 1)
    page.locator("#vv-resolution input").click()
    page.get_by_role("option", name="64 pixels").click()
    larger = vitviz.analyze(photo, bundled, fit="native", resolution=64)
    expect_analysis(page, larger)
    expect_token(page, larger, larger.trace.layout.grid_height - 1, larger.trace.layout.grid_width - 1)
    page.locator("#vv-photo").get_by_label("Remove Image").click()
    expect(status(page)).to_contain_text("Drop a picture")
    upload(page, EXAMPLE)
    expect(status(page)).to_contain_text("CLS looks at")


def test_other_methods_are_shown_and_compared_with_attention(page: Page, example: Analysis) -> None:
    expect_analysis(page, example)
    page.get_by_label("Other maps").select_option(label="Relevance (TransMM)")
    relevance = example.map("relevance")
    expect(status(page)).to_contain_text(
        f"{relevance.description}. Strongest: patch {relevance.token_map.strongest} with"
    )
    own = page.locator("#vv-explorer .vx-chip span").first
    expect(own).to_have_text(re.compile(r"^[\d.]+$"))
    assert float(own.inner_text()) == pytest.approx(relevance.token_map.prefix["cls"], rel=0.01)
    page.locator("#vv-explorer").get_by_label("View").select_option("two")
    page.get_by_label("Other maps").select_option(label="Grad-CAM")
    second = page.locator("#vv-explorer .vx-status").nth(1)
    expect(second).to_contain_text(example.map("grad_cam").description)
    # Of prefix tokens, it says nothing.
    chips = page.locator("#vv-explorer .vx-pane").nth(1).locator(".vx-chip span")
    expect(chips).to_have_text(["–"] * len(example.trace.layout.prefix))
    page.locator("#vv-explorer").get_by_label("looks at", exact=True).check()
    expect(second).to_contain_text("CLS looks at: layer 5")


def test_a_click_on_a_prediction_opens_the_maps(page: Page, example: Analysis) -> None:
    best = example.predictions(1)[0].label
    page.locator("#vv-predictions").get_by_role("button", name=best).click()
    expect_map(page, example.map("relevance", target=best))


def test_an_example_is_explored(page: Page, bundled: Model) -> None:
    page.locator("#vv-examples button").nth(1).click()
    rocket = vitviz.analyze(ROOT / "assets" / "rocket.jpg", bundled)
    expect_analysis(page, rocket)
    expect_token(page, rocket, 1, 6)


def test_a_link_restores_picture_model_and_resolution(browser: Browser, address: str, bundled: Model) -> None:
    page = new_page(browser)
    page.goto(f"{address}/?example=rocket.jpg&fit=native&resolution=48#layer=1&head=3&token=3,5")
    rocket = vitviz.analyze(ROOT / "assets" / "rocket.jpg", bundled, fit="native", resolution=48)
    best = rocket.attention(layer=1, head=3, query=(3, 5)).token_map.strongest
    expect(status(page)).to_contain_text(f"patch (3, 5) looks at: layer 1, head 3. Strongest: patch {best}")
    page.wait_for_function("location.search === '?example=rocket.jpg&fit=native&resolution=48'")
    page.goto(f"{address}/?example=../secret&model=nothing&fit=other")
    expect(status(page)).to_contain_text("CLS looks at: layer 5")
    page.close()


def choose_resolution(page: Page, resolution: str) -> None:
    page.locator("#vv-resolution input").fill(resolution)
    page.locator("#vv-resolution input").press("Enter")


def test_what_takes_long_shows_how_far_it_is_and_can_be_stopped(page: Page, example: Analysis) -> None:
    expect_analysis(page, example)
    before, waiting = status(page).inner_text(), page.locator("#vv-waiting")
    expect(waiting).not_to_be_visible()
    open_panel(page, "vv-sight")
    choose_resolution(page, "448")
    expect(waiting).to_contain_text("Analysing, layer by layer")
    page.locator("#vv-waiting-stop").click()
    expect(page.locator("#vv-notice")).to_contain_text("Stopped. Below is still what was there before.")
    expect(waiting).not_to_be_visible()
    # What was asked for in between is not wanted any more once the page is back at what it shows.
    choose_resolution(page, "440")
    expect(waiting).to_contain_text("Analysing, layer by layer")
    choose_resolution(page, "as trained")
    expect(waiting).not_to_be_visible()
    expect(status(page)).to_have_text(before)
    assert "resolution" not in page.url


@pytest.fixture
def wide(tmp_path: Path) -> Path:
    """A picture larger than the page draws it."""
    noise = np.random.default_rng(1).integers(0, 255, (4, 9, 3), dtype=np.uint8)
    Image.fromarray(noise).resize((1800, 800)).save(tmp_path / "wide.png")
    return tmp_path / "wide.png"


def test_a_link_restores_an_uploaded_picture_and_what_it_is_compared_with(
    page: Page, browser: Browser, address: str, bundled: Model, example: Analysis, wide: Path
) -> None:
    expect_analysis(page, example)
    upload(page, wide)
    analysis = vitviz.analyze(wide, bundled)
    expect_analysis(page, analysis)
    open_panel(page, "vv-second")
    page.locator("#vv-second-photo input[type=file]").set_input_files(ROOT / "assets" / "rocket.jpg")
    second = page.locator("#vv-explorer .vx-status").nth(1)
    expect(second).to_contain_text("CLS looks at")
    page.locator("#vv-explorer .vx-layer").first.fill("1")
    page.locator("#vv-explorer .vx-pane").first.locator(".vx-canvas").press("ArrowRight")
    page.wait_for_function("location.search.includes('second.example=rocket.jpg') && location.hash.includes('layer=1')")
    page.wait_for_function("location.hash.includes('token=')")
    explorer = page.locator("#vv-explorer")
    explorer.get_by_text("Save and share").click()
    explorer.get_by_role("button", name="Copy link").click()
    expect(explorer.locator(".vx-said")).to_contain_text("Whoever has this link sees your picture")
    expect(explorer.locator(".vx-code")).to_have_text(page.url)
    first_said, second_said = status(page).inner_text(), second.inner_text()
    link = page.url
    other = browser.new_page()
    other.goto(link)
    # What the first shows while the link is being followed is not of this picture.
    expect(status(other)).to_have_text(first_said)
    expect(other.locator("#vv-explorer .vx-status").nth(1)).to_have_text(second_said)
    other.wait_for_function("link => location.href === link", arg=link)
    name = re.search(r"picture=([\w-]{22})", link)
    assert name is not None
    other.goto(link.replace(name[1], name[1][::-1]))
    expect(other.locator("#vv-notice")).to_contain_text("no longer kept here")
    other.close()


def test_what_is_shown_is_saved_as_large_as_the_picture(page: Page, bundled: Model, wide: Path) -> None:
    upload(page, wide)
    analysis = vitviz.analyze(wide, bundled)
    expect_analysis(page, analysis)
    explorer = page.locator("#vv-explorer")
    explorer.get_by_label("patch grid").uncheck()
    explorer.get_by_text("Save and share").click()
    with page.expect_download() as saved:
        explorer.get_by_role("button", name="Picture, PNG").click()
    found = np.asarray(Image.open(saved.value.path()).convert("RGB"), dtype=np.float32)
    style = Style(smooth=False, grid=False, opacity=0.6, colormap="turbo")
    expected = np.asarray(analysis.attention(query="cls").overlay(style), dtype=np.float32)
    assert found.shape == expected.shape == (800, 1800, 3)
    assert float(np.abs(found - expected).mean()) < 2
    # Two maps lie side by side.
    explorer.get_by_label("View").select_option("difference")
    expect(page.locator("#vv-explorer .vx-status").nth(1)).to_contain_text("Map 1 minus map 2")
    with page.expect_download() as saved:
        explorer.get_by_role("button", name="Picture, PNG").click()
    with Image.open(saved.value.path()) as both:
        assert both.size == (3600, 800)


def test_another_picture_is_shown_beside_the_first(page: Page, example: Analysis, bundled: Model) -> None:
    rocket = ROOT / "assets" / "rocket.jpg"
    expect_analysis(page, example)
    open_panel(page, "vv-second")
    page.locator("#vv-second-photo input[type=file]").set_input_files(rocket)
    second = page.locator("#vv-explorer .vx-status").nth(1)
    best = vitviz.analyze(rocket, bundled).attention(query=(4, 4)).token_map.strongest
    expect(second).to_contain_text("CLS looks at")
    expect_token(page, example, 4, 4)
    expect(second).to_contain_text(f"patch (4, 4) looks at: layer 5, mean of 6 heads. Strongest: patch {best}")
    # It stays beside another first picture, and goes when it is removed.
    page.locator("#vv-examples button").nth(2).click()
    coffee = vitviz.analyze(ROOT / "assets" / "coffee.jpg", bundled)
    expect_analysis(page, coffee)
    expect_token(page, coffee, 4, 4)
    expect(second).to_contain_text(f"patch (4, 4) looks at: layer 5, mean of 6 heads. Strongest: patch {best}")
    page.screenshot(path=ARTEFACTS / "second.png", full_page=True)
    page.locator("#vv-second-photo").get_by_label("Remove Image").click()
    best = coffee.attention().token_map.strongest
    expect(second).to_contain_text(f"CLS looks at: layer 5, mean of 6 heads. Strongest: patch {best}")
    expect_token(page, coffee, 2, 2)
    best = coffee.attention(query=(2, 2)).token_map.strongest
    expect(second).to_contain_text(f"patch (2, 2) looks at: layer 5, mean of 6 heads. Strongest: patch {best}")


def test_another_model_is_shown_beside_the_first(page: Page, example: Analysis) -> None:
    """The same one stands in the menu by its name; others would have to be downloaded."""
    expect_analysis(page, example)
    open_panel(page, "vv-second")
    page.locator("#vv-second-model input").click()
    page.get_by_role("option", name="vitviz-cifar10").last.click()
    second = page.locator("#vv-explorer .vx-status").nth(1)
    best = example.attention().token_map.strongest
    expect(second).to_contain_text(f"CLS looks at: layer 5, mean of 6 heads. Strongest: patch {best}")
