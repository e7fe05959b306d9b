"""Files in and out: pictures that visitors hand over, and what they save."""

from __future__ import annotations

import base64
import io
import json
import re
from math import ceil
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, Route, expect

import vitviz
from tests.driver import (
    EXPLORER,
    FIGURE_GAP,
    FIGURE_WIDTH,
    NEXT_FRAMES,
    ask,
    canvas,
    canvas_values,
    caption,
    choose_method,
    click,
    click_patch,
    expect_map,
    first_view,
    is_run,
    notice,
    open_figure,
    open_link,
    open_menu,
    patch_position,
    save_figure,
    saved,
    saved_page,
    settle,
    show_default,
    upload,
)
from tests.support.waiting import wait_until
from tests.ui.answers import Library, check_page
from tests.ui.explorer.page_driver import HEADS, SmallApp
from vitviz import Analysis, Model, Style
from vitviz.ui.first_view import opening_view

pytestmark = pytest.mark.browser


# ---- pictures of visitors ----


# Files that hold a picture, a rectangle on blue, and what gives them to a part of the page.
FILES = """async (names) => {
    const canvas = Object.assign(document.createElement("canvas"), { width: 200, height: 100 });
    const drawing = canvas.getContext("2d");
    drawing.fillStyle = "rgb(51 102 255)";
    drawing.fillRect(0, 0, 200, 100);
    drawing.fillStyle = "white";
    drawing.fillRect(120, 40, 40, 20);
    const png = await new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
    const data = new DataTransfer();
    for (const name of names) data.items.add(new File([png], name, { type: name.endsWith("png") ? "image/png" : "" }));
    return data;
}"""
GIVE = """([way, data, place]) => {
    const options = { bubbles: true, cancelable: true, clipboardData: data, dataTransfer: data };
    const Kind = way === "paste" ? ClipboardEvent : DragEvent;
    document.querySelector(place).dispatchEvent(new Kind(way, options));
}"""


def test_a_checkpoint_is_dropped_anywhere_and_an_address_is_not_fetched(page: Page) -> None:
    data = page.evaluate_handle(FILES, ["weights.pth"])
    with page.expect_request(is_run):
        page.evaluate(GIVE, ["drop", data, "body"])
    expect(notice(page)).to_contain_text("weights.pth")
    expect(notice(page)).to_contain_text("The previous view is still shown")
    page.evaluate("(data) => data.items.clear()", data)
    page.evaluate("(data) => data.setData('text/plain', 'https://localhost/cat.jpg')", data)
    page.evaluate(GIVE, ["drop", data, "body"])
    expect(notice(page)).to_contain_text("an address, which this page does not fetch")


def test_a_picture_is_pasted_dropped_and_uploaded(page: Page, bundled: Model, wide: Path) -> None:
    picture = Image.new("RGB", (200, 100), (51, 102, 255))
    picture.paste((255, 255, 255), (120, 40, 160, 60))
    analysis = vitviz.analyze(picture, bundled)
    opening = opening_view(analysis)
    expected = analysis.map(opening.method, **opening.parameters)
    for way, place, names in (
        ("paste", "body", ["made.png"]),
        ("drop", ".vx-canvas", ["made.png"]),
        ("drop", "body", ["one.png", "two.png"]),
    ):
        upload(page, wide)
        assert "picture=" in page.url
        check_page(page, Library(bundled, pictures={first_view(page)["picture"]: wide}))
        with page.expect_request(is_run):
            page.evaluate(GIVE, [way, page.evaluate_handle(FILES, names), place])
        expect_map(page, expected)
    expect(notice(page)).to_contain_text("2 files were dropped: the page shows one.png.")


def test_of_two_files_on_their_way_the_last_is_shown(cifar_page: Page, wide: Path) -> None:
    page, uploads, field = cifar_page, list[Route](), cifar_page.locator(".vx-pictures .vx-file")
    page.route("**/upload*", lambda route: uploads.append(route))
    for name in ("slow.jpg", "last.jpg"):
        with page.expect_request("**/upload*"):
            field.set_input_files({"name": name, "mimeType": "image/jpeg", "buffer": wide.read_bytes()})
    expect(page.locator(".vx-busy")).to_contain_text("Uploading")
    for route in reversed(uploads):
        with page.expect_response("**/upload*"):
            route.continue_()
    expect(page.locator(".vx-badge").first).to_contain_text("last.jpg")
    settle(page)
    assert "last.jpg" in page.locator(".vx-badge").first.inner_text()


FILMING = "() => document.querySelector('.vx-shot video').currentTime > 0"
# A dialog says that it was closed a moment later.
OFF = "() => document.querySelector('.vx-shot video').srcObject === null"


def test_a_picture_can_be_taken_with_the_camera(cifar_page: Page) -> None:
    page, dialog = cifar_page, cifar_page.locator(".vx-shot")
    for leave in (dialog.get_by_role("button", name="Cancel").click, lambda: page.keyboard.press("Escape")):
        open_menu(page, "pictures")
        page.locator(".vx-camera").click()
        page.wait_for_function(FILMING)
        # Escape is the dialog's, wherever the focus is, and the camera is off afterwards.
        page.evaluate("document.activeElement.blur()")
        leave()
        expect(dialog).not_to_be_visible()
        page.wait_for_function(OFF)
    assert first_view(page)["picture"].startswith("example:")
    open_menu(page, "pictures")
    page.locator(".vx-camera").click()
    page.wait_for_function(FILMING)
    with page.expect_request(is_run):
        page.locator(".vx-shoot").click()
    assert first_view(page)["picture"].startswith("picture:")
    page.wait_for_function(OFF)
    expect(caption(page)).to_contain_text("Strongest: patch")


# ---- what is saved ----


# Of a figure, in its units: the margin and the gap between panels, and the widths of one panel and of one of several.
GAP, ONE, SEVERAL = FIGURE_GAP, FIGURE_WIDTH, 420


def pixels_of(path: Path) -> np.ndarray:
    with Image.open(path) as opened:
        return np.asarray(opened.convert("RGB"), dtype=np.float32)


def test_a_figure_has_what_is_shown_and_panels_that_were_kept(page: Page, bundled: Model, wide: Path) -> None:
    page.set_viewport_size({"width": 700, "height": 900})
    upload(page, wide)
    show_default(page)
    path = save_figure(page)
    found, height = pixels_of(path), ONE * 400 / 900
    assert path.name == "wide-attention-CLS.png"
    assert found.shape == (2 * ceil(2 * GAP + height + 6), 2 * (2 * GAP + ONE), 3)
    style = Style("inferno", opacity=0.85, fade=True, smooth=True, drain=True)
    small = vitviz.analyze(wide, bundled).attention().overlay(style)
    expected = np.asarray(small.resize((2 * ONE, round(2 * height))), dtype=np.float32)
    assert float(np.abs(found[2 * GAP :][: len(expected), 2 * GAP : 2 * (GAP + ONE)] - expected).mean()) < 3
    # Names, legend and caption make it higher, and twice the scale larger.
    told = pixels_of(save_figure(page, "png4", parts=("badge", "legend", "caption")))
    assert told.shape[1] == 2 * found.shape[1] and told.shape[0] > 2 * found.shape[0] + 4 * 3 * 17
    open_figure(page).locator(".vx-paper-keep").click()
    expect(notice(page)).to_contain_text("Kept as panel a")
    choose_method(page, "relevance")
    both = ElementTree.parse(save_figure(page, "svg")).getroot()
    assert [each.text for each in both.findall("{*}text")] == ["a", "b"]
    # Of each, the photograph as JPEG, and the map in its own pixels.
    kinds = [each.attrib["href"].partition(";")[0] for each in both.findall("{*}image")]
    assert kinds == ["data:image/jpeg", "data:image/png"] * 2
    assert float(both.attrib["width"]) == 3 * GAP + 2 * SEVERAL
    open_figure(page).get_by_role("button", name="Remove panel a").click()
    expect(page.locator(".vx-paper-kept button")).to_have_count(0)
    # The figure, and the menu beneath it.
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    # What is hidden is said in the caption.
    ask(page, "hide")
    click_patch(page, vitviz.analyze(wide, bundled), 1, 1)
    open_figure(page).locator(".vx-paper-caption").check()
    preview = page.locator(".vx-paper-preview")
    expect(preview).to_have_attribute("aria-label", re.compile(r"with nothing hidden\. Without 1 square: "))
    page.keyboard.press("Escape")
    expect(page.locator(".vx-paper")).not_to_be_visible()


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
    click(page, ".vx-predictions button >> nth=1")
    click_patch(page, example, 3, 4)
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


def test_a_figure_of_every_layer_and_head(registers_page: Page, registers: SmallApp) -> None:
    page, example = registers_page, registers.analysis
    # Whatever the map is, the sheet is of attention.
    choose_method(page, "rollout")
    drawing = ElementTree.parse(save_figure(page, "svg", "sheet", parts=("caption",))).getroot()
    said = "Attention from the CLS token to each patch, in every layer (rows) and head (columns, after the mean of all"
    assert f"{said} heads); each on its own scale." in (drawing.findtext("{*}title") or "")
    # A mean and every head in every layer.
    assert len(drawing.findall("{*}image")) == example.trace.layers * (1 + HEADS)
    assert len(np.unique(pixels_of(save_figure(page, content="sheet"))[::2].reshape(-1, 3), axis=0)) > 200


def test_a_saved_explorer_keeps_its_evidence(page: Page, example: Analysis, browser: Browser, tmp_path: Path) -> None:
    """The predictions, why of the likeliest ones, and what the model says without some squares."""
    unless, found = page.locator(".vx-unless"), example.flip()
    said = f"Cover these {len(found.patches)} squares and it says {found.after.label}, {found.after.probability:.0%}."
    expect(unless).to_have_text(said)
    unless.click()
    expect(page.locator(".vx-headline")).to_contain_text(f"Without {len(found.patches)} squares")
    settle(page)
    told, bars = page.locator(".vx-headline").inner_text(), page.locator(".vx-predictions output").all_inner_texts()
    path = saved(page, "page").replace(tmp_path / "kept.html")
    with saved_page(browser, path) as other:
        headline, outputs = other.locator(".vx-headline"), other.locator(".vx-predictions output")
        expect(headline).to_have_text(told)
        assert outputs.all_inner_texts() == bars
        other.locator(".vx-all-on").click()
        expect(headline).to_contain_text("Of the ")
        expect(outputs.first).to_have_text(f"{example.predictions(1)[0].probability:.0%}")
        expect(other.locator(".vx-unless")).to_have_text(said)
        other.locator(".vx-unless").click()
        expect(headline).to_have_text(told)
        other.locator(".vx-all-on").click()
        # Why, of each class that it names.
        for place, each in enumerate(example.predictions(3)):
            other.locator(".vx-predictions button").nth(place).click()
            expected = example.relevance(target=each.index)
            expect(caption(other)).to_contain_text(expected.description)
            shown = canvas_values(other)[-expected.values.numel() :]
            np.testing.assert_allclose(shown, expected.numpy().ravel(), rtol=1e-3, atol=1e-6)


FOUND = [(0, 1), (1, 1), (3, 2)]
FIND = f"""() => {{
    const explorer = {EXPLORER};
    const flip = {{ patches: {json.dumps(FOUND)}, after: {{ index: 1, probability: 0.5 }} }};
    // A search that is under way finds other squares.
    const property = {{ get: () => flip, set: () => {{}}, configurable: true, enumerable: true }};
    Object.defineProperty(explorer.panes[0].facts, "flip", property);
    explorer.store.refresh();
}}"""


def check_line_shows_squares(page: Page, example: Analysis) -> None:
    """The line below the layers darkens on the picture the squares that it would cover, while it is pointed at."""
    layout, line, sent = example.trace.layout, page.locator(".vx-unless"), list[str]()

    def picture() -> np.ndarray:
        page.evaluate(NEXT_FRAMES)
        png = canvas(page).evaluate("(canvas) => canvas.toDataURL().split(',')[1]")
        return np.asarray(Image.open(io.BytesIO(base64.b64decode(png))).convert("L"), dtype=float)

    page.evaluate(FIND)
    expect(line).to_have_text(re.compile("^Cover these 3 squares and it says .*, 50%"))
    page.mouse.move(1, 1)
    # The map is drawn, and nothing else is on its way.
    wait_until(lambda: np.array_equal(picture(), picture()))
    before, state = picture(), page.evaluate(f"{EXPLORER}.store.state")
    page.on("request", lambda request: sent.append(request.url))
    named = f"{EXPLORER}.panes[0].drawing.named.length"

    def focus() -> None:
        # Of an element that a script focuses, the browser shows it only after a key.
        page.keyboard.press("Tab")
        line.focus()

    for begin, end in ((line.hover, lambda: page.mouse.move(1, 1)), (focus, line.blur)):
        begin()
        page.wait_for_function(f"{named} === {len(FOUND)}")
        wait_until(lambda: not np.array_equal(picture(), before))
        after, darker = picture(), list[tuple[int, ...]]()
        for cell in np.ndindex(layout.grid_height, layout.grid_width):
            # Above the lower edge, where no cross lies.
            place = patch_position(page, example, cell[0], cell[1])
            x, y = round(place["x"]), round(place["y"] + 0.3 * len(before) / layout.grid_height)
            part = np.s_[y - 1 : y + 2, x - 1 : x + 2]
            if after[part].mean() < before[part].mean() - 5:
                darker.append(cell)
        assert darker == FOUND
        end()
        assert (picture() == before).all()
    assert sent == [] and page.evaluate(f"{EXPLORER}.store.state") == state


def test_squares_are_shown_before_they_are_covered(
    registers_page: Page, registers: SmallApp, browser: Browser, tmp_path: Path
) -> None:
    check_line_shows_squares(registers_page, registers.analysis)
    with saved_page(browser, saved(registers_page, "page").replace(tmp_path / "kept.html")) as other:
        check_line_shows_squares(other, registers.analysis)


def test_a_saved_explorer_opens_as_it_was_left_without_what_needs_a_server(
    registers_page: Page, registers: SmallApp, browser: Browser, tmp_path: Path
) -> None:
    page, example = registers_page, registers.analysis
    # A map that only the model computes is kept, with those of its pins.
    choose_method(page, "relevance")
    click(page, ".vx-predictions button >> nth=1")
    click_patch(page, example, 5, 6)
    page.keyboard.press("Enter")
    page.locator(".vx-colormap").select_option("viridis")
    path = saved(page, "page").replace(tmp_path / "kept.html")
    expect(page.locator(".vx-said")).to_have_text(re.compile(r"^Saved .*\.html\.$"))
    shown = example.map("relevance", target=example.predictions()[1].label, query=(5, 6))
    with saved_page(browser, path) as other:
        expect(caption(other)).to_contain_text(shown.description)
        found = canvas_values(other)[-shown.values.numel() :]
        np.testing.assert_allclose(found, shown.numpy().ravel(), rtol=1e-3, atol=1e-6)
        expect(other.locator(".vx-pin")).to_have_text(["patch (5, 6)"])
        expect(other.locator(".vx-colormap")).to_have_value("viridis")
        options = other.locator(".vx-method option").evaluate_all("all => all.map(({ value }) => value)")
        assert sorted(options) == ["attention", "relevance", "rollout"]
        for part in (".vx-pictures", "[data-act=link]", "[data-act=page]", "[data-panel=compare]"):
            expect(other.locator(part).first).not_to_be_visible()
    # What is about another picture is not, which is said.
    page.locator(".vx-likeness > summary").click()
    click(page, '.vx-like button[data-like="example:rocket.jpg"]')
    path = saved(page, "page").replace(tmp_path / "kept.html")
    expect(page.locator(".vx-said")).to_contain_text("needs the server")
    with saved_page(browser, path) as other:
        expect(caption(other)).to_contain_text(example.rollout(query=(5, 6)).description)
        # The mean patch is no token that the file could compute.
        expect(other.locator(".vx-chips").first).not_to_contain_text("mean patch")
