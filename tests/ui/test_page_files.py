"""Files in and out: pictures that visitors hand over, and what they save."""

from __future__ import annotations

import io
import json
from math import ceil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, expect

import vitviz
from tests.driver import (
    ask,
    canvas,
    canvas_values,
    caption,
    choose_example,
    choose_method,
    choose_option,
    click_patch,
    expect_map,
    first_view,
    keep_picture,
    new_page,
    notice,
    open_figure,
    open_link,
    open_menu,
    open_panel,
    open_settings,
    patch_position,
    save_figure,
    set_slider,
    settle,
    upload,
    watch_errors,
)
from tests.support.example import EXAMPLE, FINER
from tests.ui.answers import SENTENCE, Library, check_page, number_of
from tests.ui.explorer.page_driver import HEADS, SmallApp
from vitviz import Analysis, Model, Style

pytestmark = pytest.mark.browser


@pytest.fixture
def wide(tmp_path: Path) -> Path:
    """A picture larger than the page draws it."""
    noise = np.random.default_rng(1).integers(0, 255, (4, 9, 3), dtype=np.uint8)
    Image.fromarray(noise).resize((900, 400)).save(tmp_path / "wide.png")
    return tmp_path / "wide.png"


# What a page that works from disk has drawn.
SAVED_VALUES = """() => {
    let part = document.querySelector(".vx");
    while (!part.explorer) part = part.parentElement;
    return part.explorer.map(part.explorer.store.state.views[0].parameters.query);
}"""


def saved(page: Page, act: str) -> Path:
    """Save something, and return the file, under the name that the page gave it."""
    panel = open_panel(page, "save")
    with page.expect_download() as download:
        panel.locator(f"[data-act={act}]").click()
    path = Path(download.value.path())
    return path.rename(path.with_name(download.value.suggested_filename))


# ---- pictures of visitors ----


def test_an_upload_is_analysed_at_once(page: Page, bundled: Model, tmp_path: Path) -> None:
    photo = tmp_path / "automobile.png"
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 255, (9, 16, 3), dtype=np.uint8)).resize((640, 360)).save(photo)
    upload(page, photo)
    assert first_view(page)["picture"].startswith("picture:") and "picture=" in page.url
    check_page(page, Library(bundled, pictures={first_view(page)["picture"]: photo}))
    keep_picture(page, "upload.png")


@pytest.mark.long
def test_a_bad_file_is_told_and_the_picture_before_stays(cifar_page: Page, cifar: SmallApp) -> None:
    page, library = cifar_page, Library(cifar.model)
    choose_example(page, "rocket.jpg")
    before, words = canvas(page).evaluate("canvas => canvas.toDataURL()"), caption(page).inner_text()
    for number, content in enumerate([b"", b"<html>not a picture</html>", EXAMPLE.read_bytes()[:9000]]):
        name = f"my _notes_ [{number}].jpg"
        upload(page, {"name": name, "mimeType": "image/jpeg", "buffer": content})
        expect(notice(page)).to_contain_text(f"{name}: ")
        expect(notice(page)).to_contain_text("The previous view is still shown.")
        expect(page.get_by_text("Traceback")).to_have_count(0)
        assert canvas(page).evaluate("canvas => canvas.toDataURL()") == before
        assert caption(page).inner_text() == words and first_view(page)["picture"] == "example:rocket.jpg"
        check_page(page, library)
        # The message goes by itself when something else is chosen, or by its button.
        page.locator(".vx-notice button").click()
        expect(notice(page)).not_to_be_visible()


@pytest.mark.long
def test_a_rotated_tiff_is_shown_upright(page: Page, bundled: Model, tmp_path: Path) -> None:
    photo = tmp_path / "scan.tiff"
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.open(EXAMPLE).save(photo, exif=exif)
    upload(page, photo)
    assert vitviz.analyze(photo, bundled).prepared.image.size == (300, 451)
    check_page(page, Library(bundled, pictures={first_view(page)["picture"]: photo}))
    edges = canvas(page).bounding_box()
    assert edges is not None and edges["width"] < edges["height"]


# A picture that needs no file: a rectangle on blue, as PNG.
PICTURE = """async () => {
    const canvas = Object.assign(document.createElement("canvas"), { width: 200, height: 100 });
    const drawing = canvas.getContext("2d");
    drawing.fillStyle = "rgb(51 102 255)";
    drawing.fillRect(0, 0, 200, 100);
    drawing.fillStyle = "white";
    drawing.fillRect(120, 40, 40, 20);
    const png = await new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
    const data = new DataTransfer();
    data.items.add(new File([png], "made.png", { type: "image/png" }));
    return data;
}"""


DROP = """(files) => {
    const data = new DataTransfer();
    for (const [name, text] of files) data.items.add(new File([text], name));
    document.body.dispatchEvent(new DragEvent("drop", { bubbles: true, cancelable: true, dataTransfer: data }));
}"""


def test_a_checkpoint_is_dropped_anywhere_and_an_address_is_not_fetched(page: Page) -> None:
    with page.expect_request(lambda sent: sent.url.endswith("/run")):
        page.evaluate(DROP, [["weights.pth", "no checkpoint"]])
    expect(notice(page)).to_contain_text("weights.pth")
    expect(notice(page)).to_contain_text("The previous view is still shown")
    page.evaluate(
        """() => {
            const data = new DataTransfer();
            data.setData("text/plain", "https://localhost/cat.jpg");
            document.body.dispatchEvent(new DragEvent("drop", { bubbles: true, cancelable: true, dataTransfer: data }));
        }"""
    )
    expect(notice(page)).to_contain_text("an address, which this page does not fetch")


@pytest.mark.parametrize("way", ["paste", "drop"])
def test_a_picture_can_be_pasted_and_dropped(page: Page, bundled: Model, way: str) -> None:
    picture = Image.new("RGB", (200, 100), (51, 102, 255))
    picture.paste((255, 255, 255), (120, 40, 160, 60))
    data = page.evaluate_handle(PICTURE)
    with page.expect_request(lambda sent: sent.url.endswith("/run")):
        page.evaluate(
            """([way, data]) => {
                const place = way === "paste" ? document.body : document.querySelector(".vx-canvas");
                const options = { bubbles: true, cancelable: true, clipboardData: data, dataTransfer: data };
                const Kind = way === "paste" ? ClipboardEvent : DragEvent;
                place.dispatchEvent(new Kind(way, options));
            }""",
            [way, data],
        )
    settle(page)
    choose_method(page, "attention")
    expect_map(page, vitviz.analyze(picture, bundled).attention())


def test_a_picture_can_be_taken_with_the_camera(cifar_page: Page) -> None:
    page = cifar_page
    open_menu(page, "pictures")
    page.locator(".vx-camera").click()
    dialog = page.locator(".vx-shot")
    expect(dialog).to_be_visible()
    page.wait_for_function("() => document.querySelector('.vx-shot video').currentTime > 0")
    dialog.get_by_role("button", name="Cancel").click()
    expect(dialog).not_to_be_visible()
    assert first_view(page)["picture"].startswith("example:")
    open_menu(page, "pictures")
    page.locator(".vx-camera").click()
    expect(dialog).to_be_visible()
    # Escape is the dialog's, wherever the focus is, and the camera is off afterwards.
    canvas(page).evaluate("() => document.activeElement.blur()")
    page.keyboard.press("Escape")
    expect(dialog).not_to_be_visible()
    assert page.evaluate("() => document.querySelector('.vx-shot video').srcObject") is None
    open_menu(page, "pictures")
    page.locator(".vx-camera").click()
    page.wait_for_function("() => document.querySelector('.vx-shot video').currentTime > 0")
    with page.expect_request(lambda sent: sent.url.endswith("/run")):
        page.locator(".vx-shoot").click()
    settle(page)
    assert first_view(page)["picture"].startswith("picture:")
    assert page.evaluate("() => document.querySelector('.vx-shot video').srcObject") is None
    expect(caption(page)).to_contain_text("Strongest: patch")


# ---- what is saved ----


# Of a figure, in its units: the margin and the gap between panels, and the widths of one panel and of one of several.
GAP, ONE, SEVERAL = 18, 640, 420


def pixels_of(path: Path) -> np.ndarray:
    with Image.open(path) as opened:
        return np.asarray(opened.convert("RGB"), dtype=np.float32)


def test_a_figure_has_what_is_shown_and_panels_that_were_kept(page: Page, bundled: Model, wide: Path) -> None:
    page.set_viewport_size({"width": 700, "height": 900})
    upload(page, wide)
    choose_method(page, "attention")
    path = save_figure(page)
    found, height = pixels_of(path), ONE * 400 / 900
    assert path.name == "wide-attention-CLS.png"
    assert found.shape == (2 * ceil(2 * GAP + height + 6), 2 * (2 * GAP + ONE), 3)
    small = vitviz.analyze(wide, bundled).attention().overlay(Style("inferno", opacity=0.85, fade=True))
    expected = np.asarray(small.resize((2 * ONE, round(2 * height))), dtype=np.float32)
    shown = found[2 * GAP :][: len(expected), 2 * GAP : 2 * (GAP + ONE)]
    assert float(np.abs(shown - expected).mean()) < 3
    # Names, legend and caption make it higher, and twice the scale larger.
    told = pixels_of(save_figure(page, "png4", parts=("badge", "legend", "caption")))
    assert told.shape[1] == 2 * found.shape[1] and told.shape[0] > 2 * found.shape[0] + 4 * 3 * 17
    open_figure(page).locator(".vx-paper-keep").click()
    expect(notice(page)).to_contain_text("Kept as panel a")
    choose_method(page, "relevance")
    both = ElementTree.parse(save_figure(page, "svg")).getroot()
    assert [each.text for each in both.findall("{*}text")] == ["a", "b"] and len(both.findall("{*}image")) == 2
    assert float(both.attrib["width"]) == 3 * GAP + 2 * SEVERAL
    assert save_figure(page, "pdf").read_bytes().startswith(b"%PDF-1.4")
    open_figure(page).get_by_role("button", name="Remove panel a").click()
    expect(page.locator(".vx-paper-kept button")).to_have_count(0)
    page.keyboard.press("Escape")
    expect(page.locator(".vx-paper")).not_to_be_visible()


@pytest.mark.long
def test_a_saved_picture_has_what_the_page_draws(page: Page, example: Analysis) -> None:
    open_link(page, "?method=rollout&p.query=1,1&second.method=attention&second.p.query=1,1&layout=difference")
    settle(page)
    # Where the first map begins there is its own identity, which is no difference.
    assert "Largest difference: patch (1, 1)" not in page.locator(".vx-status").all_inner_texts()[-1]
    before = pixels_of(save_figure(page, parts=("legend", "caption")))
    # Every panel has its legend, and nothing is cut off.
    below = before[2 * (GAP + 20 + round(SEVERAL * 300 / 451)) :]
    assert all((part < 60).any() for part in np.array_split(below, 3, axis=1))
    assert (before[:, -2 * GAP + 2 :] == 255).all()
    ask(page, "hide")
    click_patch(page, example, 5, 5, 1)
    after = pixels_of(save_figure(page, parts=("legend", "caption")))
    assert (before[: -len(below)] != after[: len(before) - len(below)]).any(), "no patch is crossed out"


def test_the_numbers_are_saved_with_what_they_are_of(page: Page, example: Analysis) -> None:
    choose_method(page, "relevance")
    page.locator(".vx-predictions button").nth(1).click()
    settle(page)
    click_patch(page, example, 3, 4)
    page.mouse.move(1, 1)
    settle(page)
    second, layers = example.predictions(2)[1].label, example.trace.layers
    heatmap = example.map("relevance", target=second, query=(3, 4))
    path = saved(page, "numbers")
    assert path.name == "chelsea-relevance-patch-3-4.npz"
    with np.load(path) as file:
        np.testing.assert_allclose(file["map"], heatmap.numpy(), rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(file["prefix"], list(heatmap.token_map.prefix.values()), rtol=1e-2, atol=1e-5)
        assert file["layers"].tolist() == list(range(layers))
        token = example.trace.layout.index((3, 4))
        weights = np.stack([example.trace.row(layer, (3, 4)).numpy() for layer in range(layers)])
        assert file["attention"].shape == weights.shape == (layers, 6, example.trace.layout.token_count), token
        np.testing.assert_allclose(file["attention"], weights, atol=5e-3)
        about = json.loads(file["about"].item().decode())
    assert about["model"] == example.model.name and about["method"] == "relevance"
    assert about["parameters"] == {"target": example.model.labels.index(second), "query": [3, 4]}
    assert about["picture"] == "chelsea.jpg" and about["grid"] == [example.trace.layout.grid_height] * 2
    assert about["prefix"] == list(example.trace.layout.prefix)
    assert about["caption"] == caption(page).inner_text() and "method=relevance" in about["link"]


@pytest.mark.long
def test_a_figure_of_every_layer_and_head(registers_page: Page, registers: SmallApp) -> None:
    page, example = registers_page, registers.analysis
    # Whatever the map is, the sheet is of attention.
    choose_method(page, "rollout")
    drawing = ElementTree.parse(save_figure(page, "svg", "sheet", parts=("caption",))).getroot()
    said = "Attention from the CLS token to each patch, in every layer (rows) and head (columns, after the mean of all"
    assert f"{said} heads); each on its own scale." in (drawing.findtext("{*}title") or "")
    # A mean and every head in every layer.
    assert len(drawing.findall("{*}image")) == example.trace.layers * (1 + HEADS)
    colours = pixels_of(save_figure(page, content="sheet"))[::2].reshape(-1, 3)
    assert len(np.unique(colours, axis=0)) > 200


@pytest.mark.long
def test_the_whole_explorer_works_from_disk(page: Page, browser: Browser, example: Analysis, tmp_path: Path) -> None:
    choose_method(page, "attention")
    path = saved(page, "page").replace(tmp_path / "explorer.html")
    other = new_page(browser)
    with watch_errors(other, path.as_uri()):
        other.goto(path.as_uri())
        loaded = "() => document.querySelector('.vx')?.dataset.state === 'ready'"
        other.wait_for_function(loaded)
        offered = other.locator(".vx-method option").evaluate_all("all => all.map((option) => option.value)")
        assert set(offered) == {"attention", "rollout"}
        for name, expected in (("rollout", example.rollout()), ("attention", example.attention())):
            other.locator(".vx-method").select_option(name)
            expect(caption(other)).to_contain_text(expected.description)
            found = other.evaluate(SAVED_VALUES)
            values = expected.values.double().numpy().ravel()
            np.testing.assert_allclose(found[-values.size :], values, atol=0.01 * values.max(), rtol=0)
        canvas(other).hover(position=patch_position(other, example, 4, 4))
        expect(caption(other)).to_contain_text(example.attention(query=(4, 4)).description)
        for part in (".vx-pictures", ".vx-camera", "[data-act=page]"):
            expect(other.locator(part).first).not_to_be_visible()
        keep_picture(other, "offline.png")
    other.close()


@pytest.mark.long
def test_a_saved_explorer_opens_as_it_was_left(
    registers_page: Page, registers: SmallApp, browser: Browser, tmp_path: Path
) -> None:
    page, example = registers_page, registers.analysis
    choose_method(page, "attention")
    set_slider(page, "layer", 1)
    choose_option(page, "head", 1)
    click_patch(page, example, 5, 6)
    page.keyboard.press("Enter")
    page.locator(".vx-colormap").select_option("viridis")
    settle(page)
    path = saved(page, "page").replace(tmp_path / "kept.html")
    expect(page.locator(".vx-said")).to_have_text("")
    other = new_page(browser)
    with watch_errors(other, path.as_uri()):
        other.goto(path.as_uri())
        other.wait_for_function("() => document.querySelector('.vx')?.dataset.state === 'ready'")
        expect(caption(other)).to_contain_text(example.attention(layer=1, head=1, query=(5, 6)).description)
        expect(other.locator(".vx-pin")).to_have_text(["patch (5, 6)"])
        expect(other.locator(".vx-colormap")).to_have_value("viridis")
    # A map that only the model computes is kept, with those of its pins.
    choose_method(page, "relevance")
    page.locator(".vx-predictions button").nth(1).click()
    settle(page)
    path = saved(page, "page").replace(tmp_path / "kept.html")
    expect(page.locator(".vx-said")).to_have_text("")
    shown = example.map("relevance", target=example.predictions()[1].label, query=(5, 6))
    with watch_errors(other, path.as_uri()):
        other.goto(path.as_uri())
        other.wait_for_function("() => document.querySelector('.vx')?.dataset.state === 'ready'")
        expect(caption(other)).to_contain_text(shown.description)
        found = other.evaluate(SAVED_VALUES)[-shown.values.numel() :]
        np.testing.assert_allclose(found, shown.numpy().ravel(), rtol=1e-3, atol=1e-6)
        expect(other.locator(".vx-pin")).to_have_text(["patch (5, 6)"])
        assert "relevance" in other.locator(".vx-method option").evaluate_all("all => all.map(({ value }) => value)")
    # What is about another picture is not, which is said.
    page.locator(".vx-likeness > summary").click()
    page.locator('.vx-like button[data-like="example:rocket.jpg"]').click()
    settle(page)
    path = saved(page, "page").replace(tmp_path / "kept.html")
    expect(page.locator(".vx-said")).to_contain_text("needs the server")
    with watch_errors(other, path.as_uri()):
        other.goto(path.as_uri())
        other.wait_for_function("() => document.querySelector('.vx')?.dataset.state === 'ready'")
        expect(caption(other)).to_contain_text(example.rollout(query=(5, 6)).description)
        # The mean patch is no token that the file could compute.
        expect(other.locator(".vx-chips").first).not_to_contain_text("mean patch")
    other.close()


@pytest.mark.long
def test_the_lines_of_python_make_what_is_shown(page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    choose_example(page, "rocket.jpg")
    choose_method(page, "relevance")
    page.locator(".vx-predictions button").nth(1).click()
    open_settings(page)
    page.locator(".vx-fit").select_option("native")
    page.locator(".vx-resolution").select_option(str(FINER))
    page.locator(".vx-colormap").select_option("viridis")
    page.locator(".vx-grid").check()
    settle(page)
    panel = open_panel(page, "save")
    panel.locator("[data-act=python]").click()
    expect(panel.locator(".vx-said")).to_have_text("Copied.")
    code = panel.locator(".vx-code").text_content() or ""
    assert page.evaluate("navigator.clipboard.readText()") == code
    made: dict[str, Any] = {}
    monkeypatch.chdir(tmp_path)
    exec(code, made)
    values = canvas_values(page)[-made["heatmap"].values.numel() :]
    np.testing.assert_allclose(values, made["heatmap"].numpy().ravel(), rtol=1e-3, atol=1e-5)
    said = SENTENCE.match(caption(page).inner_text())
    assert said is not None, caption(page).inner_text()
    assert said["description"] == made["heatmap"].description
    assert number_of(said["value"]) == pytest.approx(float(made["heatmap"].values.max()), rel=0.01)
    # The picture that the lines save is the one that the page saves.
    with Image.open(tmp_path / "relevance.png") as ours:
        size = (2 * ONE, round(2 * ONE * ours.height / ours.width))
        first = np.asarray(ours.convert("RGB").resize(size), dtype=np.float32)
    second = pixels_of(save_figure(page))[2 * GAP : 2 * GAP + size[1], 2 * GAP : 2 * (GAP + ONE)]
    assert first.shape == second.shape and float(np.abs(first - second).mean()) < 6


@pytest.mark.long
def test_a_file_of_another_name_is_called_so_in_what_is_saved(cifar_page: Page) -> None:
    page = cifar_page
    content = io.BytesIO()
    Image.new("RGB", (64, 64), (200, 30, 30)).save(content, "PNG")
    upload(page, {"name": "red & <b>.png", "mimeType": "image/png", "buffer": content.getvalue()})
    choose_method(page, "grad_cam")
    with np.load(saved(page, "numbers")) as file:
        assert json.loads(file["about"].item().decode())["picture"] == "red & <b>.png"
