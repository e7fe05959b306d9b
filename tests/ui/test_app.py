"""The app as a user has it: `app.py` in a process of its own, driven in a headless browser."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, expect

import vitviz
from tests.driver import (
    ARTEFACTS,
    EXAMPLE,
    ROOT,
    canvas,
    caption,
    click_at,
    expect_map,
    expect_picture,
    new_page,
    open_panel,
    opened_page,
    set_slider,
    upload,
)
from vitviz import Analysis, Model, Style, save_checkpoint

pytestmark = pytest.mark.browser


def test_it_opens_with_an_example_already_analysed(page: Page, example: Analysis) -> None:
    expect_map(page, example.attention())
    expect_picture(page, example.attention(), Style(grid=True))
    for prediction in example.predictions(5):
        line = page.locator("#vv-predictions").get_by_text(re.compile(rf"^{prediction.label}$"))
        expect(line.first).to_be_visible()
    ARTEFACTS.mkdir(exist_ok=True)
    page.screenshot(path=ARTEFACTS / "light.png", full_page=True)


def test_an_upload_is_analysed_at_once(page: Page, bundled: Model, tmp_path: Path) -> None:
    photo = tmp_path / "automobile.png"
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 255, (9, 16, 3), dtype=np.uint8)).resize((640, 360)).save(photo)
    upload(page, photo)
    analysis = vitviz.analyze(photo, bundled)
    expect_map(page, analysis.attention())
    expect_picture(page, analysis.attention(), Style(grid=True))
    best = analysis.predictions(1)[0]
    expect(page.locator("#vv-predictions")).to_contain_text(f"{best.probability:.0%}")
    page.screenshot(path=ARTEFACTS / "upload.png", full_page=True)


@pytest.mark.parametrize(("size", "spot"), [((300, 800), (210, 140)), ((800, 300), (670, 90))])
def test_the_heat_lies_where_the_object_is(
    page: Page, bundled: Model, tmp_path: Path, size: tuple[int, int], spot: tuple[int, int]
) -> None:
    picture = Image.new("RGB", size, (25, 25, 25))
    picture.paste((255, 240, 60), (spot[0] - 30, spot[1] - 30, spot[0] + 30, spot[1] + 30))
    photo = tmp_path / "spot.png"
    picture.save(photo)
    upload(page, photo)
    analysis = vitviz.analyze(photo, bundled)
    expect_map(page, analysis.attention())
    click_at(canvas(page), spot[0] / size[0], spot[1] / size[1])
    layout = analysis.trace.layout
    patch = int(spot[1] / size[1] * layout.grid_height), int(spot[0] / size[0] * layout.grid_width)
    expect_map(page, analysis.attention(query=patch))
    expect_picture(page, analysis.attention(query=patch), Style(grid=True), mark=patch)
    page.screenshot(path=ARTEFACTS / f"spot-{'portrait' if size[0] < size[1] else 'landscape'}.png")


def test_a_click_on_a_patch_shows_its_attention_in_both_directions(page: Page, example: Analysis) -> None:
    layout = example.trace.layout
    click_at(canvas(page), 2.5 / layout.grid_width, 5.5 / layout.grid_height)
    expect_map(page, example.attention(query=(5, 2)))
    page.locator("#vv-maps").get_by_label("is looked at by").check()
    expect_map(page, example.attention(query=(5, 2), direction="column"))


def test_the_token_menu_offers_the_prefix_tokens_and_every_patch(page: Page, example: Analysis) -> None:
    menu = page.locator("#vv-token input")
    menu.click()
    # Of a long menu, the page lists the beginning, and what is looked for.
    expect(page.get_by_role("option")).to_have_count(100)
    menu.clear()
    menu.press_sequentially("(15, 15)")
    page.get_by_role("option", name="patch (15, 15)").click()
    expect_map(page, example.attention(query=(15, 15)))
    menu.click()
    assert example.trace.layout.prefix == ("cls", "register 1", "register 2", "register 3", "register 4")
    page.get_by_role("option", name="Register 2").click()
    expect_map(page, example.attention(query=2))
    menu.click()
    page.get_by_role("option", name="Mean patch").click()
    expect_map(page, example.attention(query="patches"))


def test_of_many_patches_each_can_be_written(browser: Browser, address: str, bundled: Model) -> None:
    fine = vitviz.analyze(EXAMPLE, bundled, resolution=192)
    with opened_page(browser, address, "resolution=192") as page:
        expect_map(page, fine.attention())
        token = page.locator("#vv-token input")
        token.fill("Patch (31, 2)")
        token.press("Enter")
        expect_map(page, fine.attention(query=(31, 2)))
        token.fill("31, 99")
        token.press("Enter")
        expect(page.locator("#vv-notice")).to_contain_text("99")
        expect_map(page, fine.attention(query=(31, 2)))
        click_at(canvas(page), 0.99, 0.01)
        expect_map(page, fine.attention(query=(0, 47)))
        expect(page.locator("#vv-notice")).not_to_be_visible()
        expect(token).to_have_value("0,47")
        token.fill("mean")
        page.get_by_role("option", name="Mean patch").click()
        expect_map(page, fine.attention(query="patches"))


def test_layer_and_head_are_chosen_by_control_and_by_cell(page: Page, example: Analysis) -> None:
    set_slider(page, "vv-attention-layer", 1)
    page.locator("#vv-attention-head").get_by_label("4", exact=True).check()
    expect_map(page, example.attention(layer=1, head=4))
    sheet = page.locator("#vv-sheet img")
    click_at(sheet, 0.5, 0.97)
    expect(caption(page)).to_contain_text("layer 5 of 0–5, head")
    expect(page.locator("#vv-attention-layer input[type=number]")).to_have_value("5")


def test_a_slider_that_is_moved_fast_comes_to_an_end(page: Page, example: Analysis) -> None:
    asked: list[str] = []
    page.on("request", lambda sent: asked.append(sent.url) if "/queue/join" in sent.url else None)
    slider = page.locator("#vv-attention-layer input[type=range]")
    slider.focus()
    for _ in range(4):
        slider.press("ArrowLeft")
    expect_map(page, example.attention(layer=1))
    # Moves that come while one is being answered are asked for once more; nothing is asked for again and again.
    last, before = time.monotonic() + 30, -1
    while before != len(asked):
        assert time.monotonic() < last, "the page goes on asking"
        before = len(asked)
        page.wait_for_timeout(700)


def test_rollout_follows_its_controls(page: Page, example: Analysis) -> None:
    page.get_by_label("Attention rollout").check()
    expect_map(page, example.rollout())
    page.locator("#vv-rollout-head_fusion").get_by_label("max").check()
    set_slider(page, "vv-rollout-discard_ratio", 0.9)
    set_slider(page, "vv-rollout-start_layer", 2)
    expect_map(page, example.rollout(head_fusion="max", discard_ratio=0.9, start_layer=2))
    page.screenshot(path=ARTEFACTS / "rollout.png", full_page=True)
    page.get_by_label("vit-explain").check()
    expect(page.locator("#vv-notice")).to_contain_text("vit-explain knows only 0.5 and 0")
    set_slider(page, "vv-rollout-start_layer", 0)
    expect_map(page, example.rollout(head_fusion="max", discard_ratio=0.9, reference="vit-explain"))
    expect(page.locator("#vv-notice")).not_to_be_visible()


def test_what_is_chosen_looks_so_under_the_mouse_too(page: Page) -> None:
    head = page.locator("#vv-attention-head").get_by_label("max")
    head.check()
    page.locator("#vv-attention-layer input[type=number]").focus()
    colour = "input => getComputedStyle(input).backgroundColor"
    assert head.evaluate("input => input.matches(':hover') && input !== document.activeElement")
    hovered = head.evaluate(colour)
    page.mouse.move(1, 1)
    assert not head.evaluate("input => input.matches(':hover')")
    assert hovered == head.evaluate(colour) != page.locator("#vv-attention-head").get_by_label("min").evaluate(colour)


def test_a_click_on_a_prediction_shows_what_speaks_for_it(page: Page, example: Analysis) -> None:
    second = example.predictions(2)[1].label
    page.locator("#vv-predictions").get_by_role("button", name=second).click()
    expect_map(page, example.map("relevance", target=second))
    expect_picture(page, example.map("relevance", target=second), Style(grid=True))
    # The map that is about a class stays when another is asked for.
    page.get_by_label("LeGrad").check()
    expect_map(page, example.map("legrad", target=second))
    page.screenshot(path=ARTEFACTS / "legrad.png", full_page=True)
    best = example.predictions(1)[0].label
    page.locator("#vv-predictions").get_by_role("button", name=best).click()
    expect_map(page, example.map("legrad", target=best))
    page.get_by_label("Gradient rollout").check()
    set_slider(page, "vv-gradient_rollout-start_layer", 3)
    expect_map(page, example.map("gradient_rollout", target=best, start_layer=3))
    page.locator("#vv-target input").click()
    expect(page.get_by_role("option")).to_have_count(11)
    page.get_by_role("option", name="ship").click()
    page.get_by_label("Grad-CAM").check()
    expect_map(page, example.map("grad_cam", target="ship"))
    page.get_by_label("Token attention").check()
    expect(page.locator("#vv-target")).not_to_be_visible()


def test_mass_and_flow_follow_their_controls(page: Page, example: Analysis) -> None:
    page.get_by_label("Attention mass").check()
    set_slider(page, "vv-attention_mass-mass", 0.3)
    expect_map(page, example.map("attention_mass", mass=0.3))
    page.get_by_label("Attention flow").check()
    set_slider(page, "vv-attention_flow-most_patches", 16)
    expect_map(page, example.map("attention_flow", most_patches=16))
    page.screenshot(path=ARTEFACTS / "flow.png", full_page=True)


# All that the canvas and the caption said and whether a map could be stopped, however shortly.
WATCH = """() => {
    const text = name => document.querySelector(name)?.innerText ?? '';
    window.said = [];
    new MutationObserver(() => {
        const stop = document.querySelector('#vv-stop');
        window.said.push([text('#vv-canvas'), text('#vv-caption'), stop !== null && stop.offsetParent !== null]);
    }).observe(document.body, {subtree: true, childList: true, characterData: true, attributes: true});
}"""


def test_a_map_that_takes_long_shows_how_far_it_is(coarse_page: Page, coarse_example: Analysis, bundled: Model) -> None:
    page, example = coarse_page, coarse_example
    page.evaluate(WATCH)
    page.get_by_label("Occlusion").check()
    expect_map(page, example.map("occlusion"))
    expect_picture(page, example.map("occlusion"), Style(grid=True))
    expect(page.locator("#vv-stop")).not_to_be_visible()
    said = page.evaluate("window.said")
    assert any("Occlusion - " in canvas and stoppable for canvas, _, stoppable in said)
    # Another picture does too; before its map there is a quick one.
    page.locator("#vv-examples button").nth(1).click()
    other = vitviz.analyze(ROOT / "assets" / "rocket.jpg", bundled, resolution=32)
    expect_map(page, other.map("occlusion"))
    said = page.evaluate("window.said")[len(said) :]
    assert any("Occlusion - " in canvas and other.attention().description in text for canvas, text, _ in said)
    expect(page.locator("#vv-stop")).not_to_be_visible()


def test_a_map_that_takes_long_can_be_stopped(
    coarse_page: Page, make_model: Callable[..., Model], tmp_path: Path
) -> None:
    page = coarse_page
    # Of so many patches the flow takes a minute and more.
    path = tmp_path / "fine.safetensors"
    save_checkpoint(path, make_model(image_height=112, image_width=112, depth=8))
    page.get_by_label("Attention flow").check()
    set_slider(page, "vv-attention_flow-most_patches", 1024)
    expect(caption(page)).to_contain_text("Attention flow for the CLS token: layers 0 to 5.")
    page.get_by_text("Your own checkpoint", exact=True).click()
    page.locator("#vv-files input[type=file]").set_input_files(path)
    expect(page.locator("#vv-files tbody tr")).to_have_count(1)
    page.locator("#vv-open").click()
    analysis = vitviz.analyze(EXAMPLE, vitviz.load(path))
    expect_map(page, analysis.attention())
    stop = page.locator("#vv-stop")
    expect(stop).to_be_visible()
    expect(page.locator("#vv-canvas")).to_contain_text("/785 steps")
    page.screenshot(path=ARTEFACTS / "running.png", full_page=True)
    before = canvas(page).get_attribute("src")
    stop.click()
    expect(page.locator("#vv-notice")).to_contain_text("Stopped. Below is still the map before.")
    expect(stop).not_to_be_visible()
    expect(page.locator("#vv-canvas")).not_to_contain_text("steps")
    expect_map(page, analysis.attention())
    assert canvas(page).get_attribute("src") == before
    page.get_by_label("Attention rollout").check()
    expect_map(page, analysis.rollout())
    expect(page.locator("#vv-notice")).not_to_be_visible()
    # So does any other wish.
    page.get_by_label("Attention flow").check()
    expect(page.locator("#vv-canvas")).to_contain_text("/785 steps")
    page.get_by_label("Attention rollout").check()
    expect(page.locator("#vv-canvas")).not_to_contain_text("steps")
    expect(stop).not_to_be_visible()
    expect_map(page, analysis.rollout())


def test_an_emptied_control_is_told_and_loses_nothing(page: Page, example: Analysis) -> None:
    number = page.locator("#vv-attention-layer input[type=number]")
    number.fill("")
    number.press("Enter")
    expect(page.locator("#vv-notice")).to_have_text("Layer: nothing is chosen; expected a value")
    expect(page.get_by_text("Traceback")).to_have_count(0)
    set_slider(page, "vv-attention-layer", 3)
    expect_map(page, example.attention(layer=3))
    expect(page.locator("#vv-notice")).not_to_be_visible()


def test_the_look_changes_the_picture_and_not_the_numbers(page: Page, example: Analysis) -> None:
    page.get_by_text("Look", exact=True).click()
    page.locator("#vv-smooth").get_by_label("Smooth between patches").check()
    page.locator("#vv-grid").get_by_label("Patch grid").uncheck()
    set_slider(page, "vv-opacity", 1)
    page.locator("#vv-colormap input").click()
    page.get_by_role("option", name="viridis").click()
    expect(page.locator("#vv-legend .vv-ramp")).to_have_attribute("style", re.compile(r"rgb\(68[, ]+1[, ]+84\)"))
    expect_map(page, example.attention())
    expect_picture(page, example.attention(), Style("viridis", opacity=1, smooth=True))


def test_what_the_model_does_not_see_is_dimmed_and_cannot_be_asked(page: Page, bundled: Model) -> None:
    open_panel(page, "vv-sight")
    page.locator("#vv-fit input").click()
    page.get_by_role("option", name="centre, cropped").click()
    cropped = vitviz.analyze(EXAMPLE, bundled, fit="crop")
    expect_map(page, cropped.attention())
    expect_picture(page, cropped.attention(), Style(grid=True))
    click_at(canvas(page), 0.03, 0.5)
    expect(page.locator("#vv-notice")).to_contain_text("did not see this part")
    page.screenshot(path=ARTEFACTS / "crop.png", full_page=True)


def test_a_picture_is_seen_at_any_resolution(page: Page, bundled: Model) -> None:
    open_panel(page, "vv-sight")
    page.locator("#vv-resolution input").click()
    page.get_by_role("option", name="64 pixels").click()
    larger = vitviz.analyze(EXAMPLE, bundled, resolution=64)
    assert larger.trace.layout.grid_width == 16
    expect_map(page, larger.attention())
    resolution = page.locator("#vv-resolution input")
    resolution.fill("44")
    resolution.press("Enter")
    expect_map(page, vitviz.analyze(EXAMPLE, bundled, resolution=44).attention())
    resolution.fill("fine")
    resolution.press("Enter")
    expect(page.locator("#vv-notice")).to_contain_text("resolution 'fine': expected a number of pixels")


def test_a_picture_keeps_its_own_shape_on_request(page: Page, bundled: Model) -> None:
    open_panel(page, "vv-sight")
    page.locator("#vv-fit input").click()
    page.get_by_role("option", name="whole picture, its own shape").click()
    native = vitviz.analyze(EXAMPLE, bundled, fit="native")
    assert native.trace.layout.grid_width > native.trace.layout.grid_height
    expect_map(page, native.attention())
    click_at(canvas(page), 0.99, 0.01)
    expect_map(page, native.attention(query=(0, native.trace.layout.grid_width - 1)))


@pytest.mark.parametrize("content", [b"", b"<html>not a picture</html>", EXAMPLE.read_bytes()[:9000]])
def test_a_bad_file_is_told_and_the_picture_before_stays(
    page: Page, example: Analysis, tmp_path: Path, content: bytes
) -> None:
    bad = tmp_path / "my _notes_ [1].jpg"
    bad.write_bytes(content)
    before = canvas(page).get_attribute("src")
    upload(page, bad)
    expect(page.locator("#vv-notice")).to_contain_text("my _notes_ [1].jpg: ")
    expect(page.get_by_text("Traceback")).to_have_count(0)
    assert canvas(page).get_attribute("src") == before
    set_slider(page, "vv-attention-layer", 0)
    expect_map(page, example.attention(layer=0))


def test_a_rotated_tiff_is_shown_upright(page: Page, bundled: Model, tmp_path: Path) -> None:
    photo = tmp_path / "scan.tiff"
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.open(EXAMPLE).save(photo, exif=exif)
    upload(page, photo)
    analysis = vitviz.analyze(photo, bundled)
    assert analysis.prepared.image.size == (300, 451)
    expect_map(page, analysis.attention())
    natural = "image => image.naturalWidth > 0 && image.naturalWidth < image.naturalHeight"
    page.wait_for_function(f"({natural})(document.querySelector('#vv-photo img'))")
    # Not of the preview, but of the file.
    set_slider(page, "vv-attention-layer", 2)
    expect_map(page, analysis.attention(layer=2))


def test_a_picture_can_be_pasted(page: Page, bundled: Model) -> None:
    picture = Image.new("RGB", (200, 100), (51, 102, 255))
    picture.paste((255, 255, 255), (120, 40, 160, 60))
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.evaluate(
        """async () => {
            const canvas = Object.assign(document.createElement('canvas'), {width: 200, height: 100});
            const drawing = canvas.getContext('2d');
            drawing.fillStyle = 'rgb(51 102 255)';
            drawing.fillRect(0, 0, 200, 100);
            drawing.fillStyle = 'white';
            drawing.fillRect(120, 40, 40, 20);
            const png = await new Promise(resolve => canvas.toBlob(resolve, 'image/png'));
            await navigator.clipboard.write([new ClipboardItem({'image/png': png})]);
        }"""
    )
    page.locator("#vv-photo").get_by_label("Paste from clipboard").click()
    expect_map(page, vitviz.analyze(picture, bundled).attention())


def test_a_picture_can_be_taken_with_the_camera(page: Page) -> None:
    photo = page.locator("#vv-photo")
    photo.get_by_label("Remove Image").click()
    expect(caption(page)).to_contain_text("Drop a picture")
    photo.get_by_label("Capture from camera").click()
    photo.get_by_text("Click to Access Webcam").click()
    page.wait_for_function("document.querySelector('#vv-photo video')?.currentTime > 0")
    photo.get_by_label("capture photo").click()
    expect(caption(page)).to_contain_text("What the CLS token looks at: layer 5 of 0–5")


def test_an_example_is_one_click_away_and_the_picture_can_be_cleared(page: Page, bundled: Model) -> None:
    page.locator("#vv-examples button").nth(1).click()
    expect_map(page, vitviz.analyze(ROOT / "assets" / "rocket.jpg", bundled).attention())
    page.locator("#vv-photo").get_by_label("Remove Image").click()
    expect(caption(page)).to_contain_text("Drop a picture")
    upload(page, EXAMPLE)
    expect_map(page, vitviz.analyze(EXAMPLE, bundled).attention())


@pytest.mark.parametrize(("name", "width", "theme"), [("dark", 1400, "dark"), ("narrow", 390, "light")])
def test_it_fits_the_screen(browser: Browser, address: str, name: str, width: int, theme: str) -> None:
    page = new_page(browser)
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(f"{address}/?__theme={theme}")
    expect(page.locator("#vv-explorer .vx-status")).to_contain_text(["Strongest", ""])
    for tab in ("Explore", "Maps"):
        page.get_by_role("tab", name=tab).click()
        expect(page.locator("#vv-explorer canvas, #vv-canvas img").locator("visible=true").first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.screenshot(path=ARTEFACTS / f"{name}-{tab.lower()}.png", full_page=True)
    page.close()
