"""Looking into the model: every probe on the page is the library's, and outlier patches are marked."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Locator, Page, expect

import vitviz
from tests.driver import (
    EXPLORER,
    NEXT_FRAMES,
    canvas,
    caption,
    choose_example,
    downloaded,
    first_view,
    notice,
    open_settings,
    page_at,
    patch_position,
    settle,
    state,
    upload,
)
from tests.support.example import EXAMPLE
from tests.ui.explorer.page_driver import SmallApp, made, pixels, small_app
from vitviz.attention.sinks import OutlierRule, norms_of_patches
from vitviz.errors.number_text import percent
from vitviz.evaluation.probes import PROBES, probe

pytestmark = pytest.mark.browser
OUTLIERS = ((1, 2), (4, 6))


@pytest.fixture(scope="module")
def app() -> Iterator[SmallApp]:
    """Of a network two of whose patches are outliers."""
    model = made(32, 32, 2, 4)
    for row, column in OUTLIERS:
        model.network.positions[row, column] *= 100
    with small_app(model) as found:
        yield found


def said(page: Page) -> Locator:
    return page.locator(".vx-probe-said")


def points(page: Page) -> list[str]:
    """What the points of a chart say."""
    found: list[str] = page.locator(".vx-figure .vx-point title").evaluate_all(
        "all => all.map((each) => each.textContent)"
    )
    return found


OVERLAPPING = """figures => figures.flatMap((figure) => {
    const texts = [...figure.querySelectorAll("text")], boxes = texts.map((text) => text.getBoundingClientRect());
    // The letters leave the edges of their boxes free.
    const overlap = (from, to, box, other) => Math.min(box[to], other[to]) - Math.max(box[from], other[from]) > 3;
    const meet = (box, other) => overlap("left", "right", box, other) && overlap("top", "bottom", box, other);
    return texts.filter((_, one) => boxes.some((box, other) => other < one && meet(box, boxes[one])))
        .map((text) => text.textContent);
})"""


def test_every_probe_shows_what_the_library_finds(browser: Browser, app: SmallApp) -> None:
    with page_at(browser, app.address, "panel=probes") as page:
        for name, record in PROBES.items():
            page.locator(".vx-probe").select_option(name)
            findings = probe(app.analysis, name)
            expect(said(page)).to_have_text(findings.summary)
            expect(page.locator(".vx-about-probe")).to_have_text(record.interpretation)
            rows = page.locator(".vx-probe-table tr").evaluate_all(
                "all => all.map((row) => [...row.cells].map((cell) => cell.textContent))"
            )
            assert rows == ([list(findings.heading), *map(list, findings.rows)] if findings.rows else rows)
            figures = page.locator(".vx-figure")
            assert figures.count() >= 1 and figures.evaluate_all(OVERLAPPING) == [], name
        # The state has it, and so have link and history.
        assert first_view(page)["probe"] == "patch_filters" and "probe=patch_filters" in page.url


def test_curves_lead_to_their_head(browser: Browser, app: SmallApp) -> None:
    with page_at(browser, app.address, "panel=probes&probe=attention_distance&method=grad_cam") as page:
        distance = probe(app.analysis, "attention_distance").measurements["distance"].values
        expect(page.locator(".vx-figure .vx-point")).to_have_count(distance.numel())
        for place, text in enumerate(points(page)):
            layer, head = divmod(place, distance.shape[1])
            assert text == f"layer {layer}, head {head}: {float(f'{distance[layer, head]:.3g}'):g}"
        # Points stay while the page is laid out, so that they can be clicked; in another width they are drawn anew.
        first = page.locator(".vx-figure .vx-point").first.element_handle()
        page.locator(".vx-found").evaluate("(figures) => { figures.style.paddingBottom = '40px'; }")
        page.evaluate(NEXT_FRAMES)
        assert first.evaluate("(point) => point.isConnected")
        page.locator(".vx-figure").first.evaluate("(figure) => { figure.style.width = '300px'; }")
        page.wait_for_function("(point) => !point.isConnected", arg=first)
        page.locator(".vx-figure .vx-point").nth(3).click()
        view = first_view(page)
        assert (view["method"], view["parameters"]["layer"], view["parameters"]["head"]) == ("attention", 1, 1)
        expect(caption(page)).to_contain_text("layer 1 of 0–2, head 1")
        # Each chart is saved as a drawing, the table for a spreadsheet.
        drawing = downloaded(page, page.get_by_role("button", name="Mean attention distance: save as SVG"))
        assert (
            drawing.read_text().startswith("<svg")
            and drawing.name == "chelsea-attention_distance.mean-attention-distance.svg"
        )
        with downloaded(page, page.locator(".vx-probe-csv")).open(newline="") as file:
            findings = probe(app.analysis, "attention_distance")
            assert list(csv.reader(file)) == [list(findings.heading), *map(list, findings.rows)]
        with np.load(downloaded(page, page.locator(".vx-probe-npz"))) as numbers:
            assert set(numbers) == {*findings.arrays(), "about"}
            for name, expected in findings.arrays().items():
                np.testing.assert_allclose(numbers[name], expected.astype(float), atol=1e-4, rtol=1e-4)
        # The predictions of every layer, as lines.
        page.locator(".vx-probe").select_option("logit_lens")
        expect(said(page)).to_have_text(probe(app.analysis, "logit_lens").summary)
        lens = probe(app.analysis, "logit_lens").measurements["probability"].values
        found = dict(text.rsplit(": ", 1) for text in points(page))
        for index, label in enumerate(app.model.labels):
            assert found[f"{label} after layer 2"] == percent(float(lens[3, index]))
        titles = page.locator(".vx-figure figcaption span")
        expect(titles.last).to_have_text("Probability of each patch’s class, after every layer")
        # A sheet of heads leads to its head, too.
        page.locator(".vx-probe").select_option("head_similarity")
        expect(said(page)).to_have_text(probe(app.analysis, "head_similarity").summary)
        edges = page.locator(".vx-figure canvas").bounding_box()
        assert edges is not None
        page.locator(".vx-figure canvas").click(position={"x": 5, "y": edges["height"] - 5})
        assert [first_view(page)["parameters"].get(name) for name in ("layer", "head")] == [0, 1]


def test_one_patch_is_compared_with_all_on_hover(browser: Browser, app: SmallApp) -> None:
    link = "panel=probes&probe=patch_similarity&probe.layer=1&probe.query=2,3&probe.features=keys"
    with page_at(browser, app.address, link) as page:
        findings = probe(app.analysis, "patch_similarity", query=(2, 3), layer=1, features="keys")
        expect(said(page)).to_have_text(findings.summary)
        vectors = findings.measurements["vectors"].values.double().numpy()

        def shown() -> np.ndarray:
            return np.array(page.evaluate(f"{EXPLORER}.probes.figures[0].values()"))

        def cosines(row: int, column: int) -> np.ndarray:
            return vectors @ vectors[app.analysis.trace.layout.index((row, column))]

        title = page.locator(".vx-figure figcaption span")
        expect(title).to_have_text("Cosine of patch (2, 3) with every token")
        np.testing.assert_allclose(shown(), cosines(2, 3), atol=1e-4)
        figure = page.locator(".vx-figure canvas")
        width = figure.evaluate("canvas => canvas.clientWidth") / canvas(page).evaluate("canvas => canvas.clientWidth")
        place = {name: width * value for name, value in patch_position(page, app.analysis, 5, 1).items()}
        before = pixels(figure)
        figure.hover(position=place)
        expect(title).to_have_text("Cosine of patch (5, 1) with every token")
        np.testing.assert_allclose(shown(), cosines(5, 1), atol=1e-4)
        assert pixels(figure) != before
        # Also for what the pointer is on above.
        canvas(page).hover(position=patch_position(page, app.analysis, 6, 6))
        expect(title).to_have_text("Cosine of patch (6, 6) with every token")
        page.mouse.move(1, 1)
        expect(title).to_have_text("Cosine of patch (2, 3) with every token")
        # A click keeps it; other tokens are in a menu.
        figure.click(position=place)
        expect(said(page)).to_contain_text("Cosine of patch (5, 1)")
        assert first_view(page)["probe_parameters"] == {"query": [5, 1], "layer": 1, "features": "keys"}
        page.get_by_label("Token", exact=True).select_option("register 2")
        expect(said(page)).to_contain_text("Cosine of register 2")
        page.get_by_role("radio", name="tokens").check()
        expected = probe(app.analysis, "patch_similarity", query="register 2", layer=1)
        expect(said(page)).to_have_text(expected.summary)
        settle(page)
        np.testing.assert_allclose(shown(), expected.measurements["similarity"].values.numpy(), atol=1e-4)
        # Another picture has other patches.
        choose_example(page, "rocket.jpg")
        assert first_view(page)["probe_parameters"] == {"query": "register 2", "layer": 1}
        rocket = vitviz.analyze(EXAMPLE.with_name("rocket.jpg"), app.model)
        expect(said(page)).to_have_text(probe(rocket, "patch_similarity", query="register 2", layer=1).summary)
        assert "probe.query=register+2" in page.url


def test_outlier_patches_are_marked_and_counted(browser: Browser, app: SmallApp) -> None:
    norms = norms_of_patches(app.analysis.trace).numpy()
    rule = OutlierRule.of(norms_of_patches(app.analysis.trace))
    assert {divmod(int(place), 8) for place in np.flatnonzero(norms > rule.threshold)} == set(OUTLIERS)
    with page_at(browser, app.address) as page:
        before = pixels(canvas(page))
        expect(caption(page)).not_to_contain_text("outlier")
        page.get_by_label("outlier patches").check()
        settle(page)
        expect(caption(page)).to_contain_text(f"2 of 64 patches are outliers: norm above {rule.threshold:.1f} where")
        assert pixels(canvas(page)) != before and state(page)["outliers"] and "outliers=true" in page.url
        # What is outlined are these patches: the yellow of the marks is nowhere else.
        yellow = page.evaluate(
            """() => {
                const canvas = document.querySelector(".vx-canvas"), { width, height } = canvas;
                const { data } = canvas.getContext("2d").getImageData(0, 0, width, height), found = [];
                for (let at = 0; at < data.length; at += 4) {
                    const isYellow = data[at] === 255 && data[at + 1] === 212 && data[at + 2] === 59;
                    if (isYellow) found.push([at / 4 % width / width, Math.floor(at / 4 / width) / height]);
                }
                return found;
            }"""
        )
        box = app.analysis.prepared.geometry.box
        width, height = app.analysis.prepared.image.size
        cells = set()
        for x, y in yellow:
            column, row = (x * width - box[0]) / (box[2] - box[0]) * 8, (y * height - box[1]) / (box[3] - box[1]) * 8
            near = [(r, c) for r, c in OUTLIERS if r - 0.1 <= row <= r + 1.1 and c - 0.1 <= column <= c + 1.1]
            assert near, (row, column)
            cells |= set(near)
        assert cells == set(OUTLIERS)


def test_all_of_a_picture_that_is_mostly_cropped_is_a_click_away(
    browser: Browser, app: SmallApp, tmp_path: Path
) -> None:
    Image.effect_noise((60, 150), 90).convert("RGB").save(tmp_path / "tall.png")
    with page_at(browser, app.address) as page:
        hint = notice(page)
        # Two thirds of the example are seen.
        expect(hint).not_to_be_visible()
        upload(page, tmp_path / "tall.png")
        # A new picture of which most would be hidden is shown whole.
        assert first_view(page)["fit"] == "native"
        expect(hint).to_contain_text("hides 60% of this picture, which is shown whole")
        open_settings(page).locator(".vx-fit").select_option("crop")
        assert first_view(page)["fit"] is None
        expect(hint).to_contain_text("The model sees the middle 40% of this picture")
        page.get_by_role("button", name="Show the whole picture").click()
        assert first_view(page)["fit"] == "native"
        expect(hint).not_to_be_visible()
        expect(page.locator(".vx-seen-as")).to_contain_text("13×5 patches")
        # The next picture is prepared as the model's are.
        Image.effect_noise((60, 60), 90).convert("RGB").save(tmp_path / "square.png")
        upload(page, tmp_path / "square.png")
        assert first_view(page)["fit"] is None
