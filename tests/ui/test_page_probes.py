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
    NEXT_FRAMES,
    canvas,
    caption,
    choose_example,
    click,
    downloaded,
    first_view,
    notice,
    open_settings,
    page_at,
    patch_position,
    state,
    upload,
)
from tests.support.example import EXAMPLE
from tests.ui.explorer.page_driver import SmallApp, made, small_app
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


def choose_probe(page: Page, app: SmallApp, name: str) -> None:
    page.locator(".vx-probe").select_option(name)
    expect(said(page)).to_have_text(probe(app.analysis, name).summary)


def head_of(page: Page) -> tuple[int, int]:
    """The layer and head that the page shows."""
    parameters = first_view(page)["parameters"]
    return parameters["layer"], parameters["head"]


# Where the canvas has the yellow of the marks, in parts of its width and height.
YELLOW = """() => {
    const canvas = document.querySelector(".vx-canvas"), { width, height } = canvas;
    const { data } = canvas.getContext("2d").getImageData(0, 0, width, height), found = [];
    for (let at = 0; at < data.length; at += 4) {
        const isYellow = data[at] === 255 && data[at + 1] === 212 && data[at + 2] === 59;
        if (isYellow) found.push([at / 4 % width / width, Math.floor(at / 4 / width) / height]);
    }
    return found;
}"""


def test_every_probe_shows_what_the_library_finds(browser: Browser, app: SmallApp) -> None:
    with page_at(browser, app.address, "panel=probes") as page:
        for name, record in PROBES.items():
            choose_probe(page, app, name)
            findings = probe(app.analysis, name)
            expect(page.locator(".vx-about-probe")).to_have_text(record.interpretation)
            rows = page.locator(".vx-probe-table tr").evaluate_all(
                "all => all.map((row) => [...row.cells].map((cell) => cell.textContent))"
            )
            assert rows == ([list(findings.heading), *map(list, findings.rows)] if findings.rows else rows)
            figures = page.locator(".vx-figure")
            assert figures.count() >= 1 and figures.evaluate_all(OVERLAPPING) == [], name
        # The state has it, and so have link and history.
        assert first_view(page)["probe"] == name and f"probe={name}" in page.url


def test_curves_and_sheets_lead_to_their_head_and_are_saved(browser: Browser, app: SmallApp) -> None:
    findings = probe(app.analysis, "attention_distance")
    with page_at(browser, app.address, "panel=probes&probe=attention_distance&method=grad_cam") as page:
        distance = findings.measurements["distance"].values
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
        click(page, ".vx-figure .vx-point >> nth=3")
        assert first_view(page)["method"] == "attention" and head_of(page) == (1, 1)
        # Each chart is saved as a drawing, the table for a spreadsheet.
        drawing = downloaded(page, page.get_by_role("button", name="Mean attention distance: save as SVG").click)
        assert drawing.name == "chelsea-attention_distance.mean-attention-distance.svg"
        assert drawing.read_text().startswith("<svg")
        with downloaded(page, page.locator(".vx-probe-csv").click).open(newline="") as file:
            assert list(csv.reader(file)) == [list(findings.heading), *map(list, findings.rows)]
        with np.load(downloaded(page, page.locator(".vx-probe-npz").click)) as numbers:
            assert set(numbers) == {*findings.arrays(), "about"}
            for name, expected in findings.arrays().items():
                np.testing.assert_allclose(numbers[name], expected.astype(float), atol=1e-4, rtol=1e-4)
        # The predictions of every layer, as lines.
        choose_probe(page, app, "logit_lens")
        expect(page.locator(".vx-probe-saved")).to_be_empty()
        lens = probe(app.analysis, "logit_lens").measurements["probability"].values
        found = dict(text.rsplit(": ", 1) for text in points(page))
        for index, label in enumerate(app.model.labels):
            assert found[f"{label} after layer 2"] == percent(float(lens[3, index]))
        expect(page.get_by_text("Probability of each patch’s class, after every layer")).to_be_visible()
        # A sheet of heads leads to its head, too.
        choose_probe(page, app, "head_similarity")
        height = page.locator(".vx-figure canvas").evaluate("canvas => canvas.clientHeight")
        page.locator(".vx-figure canvas").click(position={"x": 5, "y": height - 5})
        assert head_of(page) == (0, 1)


def test_one_patch_is_compared_with_all_and_a_click_compares_another(browser: Browser, app: SmallApp) -> None:
    link = "panel=probes&probe=patch_similarity&probe.layer=1&probe.query=2,3&probe.features=keys"
    with page_at(browser, app.address, link) as page:
        findings = probe(app.analysis, "patch_similarity", query=(2, 3), layer=1, features="keys")
        expect(said(page)).to_have_text(findings.summary)
        figure, layout = page.locator(".vx-figure canvas"), app.analysis.trace.layout
        width = figure.evaluate("canvas => canvas.clientWidth") / canvas(page).evaluate("canvas => canvas.clientWidth")
        place = {name: width * value for name, value in patch_position(page, app.analysis, 5, 1).items()}
        figure.hover(position=place)
        cosine = float(findings.measurements["similarity"].values[layout.index((5, 1))])
        text = page.locator(".vx-figure .vx-readout").inner_text()
        assert text.startswith("patch (5, 1): ") and float(text.split()[-1].replace("−", "-")) == pytest.approx(
            cosine, abs=0.01
        )
        # A click keeps it; other tokens are in a menu.
        figure.click(position=place)
        expect(said(page)).to_contain_text("Cosine of patch (5, 1)")
        assert first_view(page)["probe_parameters"] == {"query": [5, 1], "layer": 1, "features": "keys"}
        page.get_by_label("Token", exact=True).select_option("register 2")
        expect(said(page)).to_contain_text("Cosine of register 2")
        page.get_by_role("radio", name="tokens").check()
        # Another picture has other patches.
        for name in ("chelsea.jpg", "rocket.jpg"):
            choose_example(page, name)
            analysis = vitviz.analyze(EXAMPLE.with_name(name), app.model)
            expected = probe(analysis, "patch_similarity", query="register 2", layer=1)
            expect(said(page)).to_have_text(expected.summary)
            assert first_view(page)["probe_parameters"] == {"query": "register 2", "layer": 1}
        assert "probe.query=register+2" in page.url


def test_outlier_patches_are_marked_and_counted(browser: Browser, app: SmallApp) -> None:
    rule = OutlierRule.of(norms_of_patches(app.analysis.trace))
    with page_at(browser, app.address) as page:
        expect(caption(page)).not_to_contain_text("outlier")
        page.get_by_label("outlier patches").check()
        expect(caption(page)).to_contain_text(f"2 of 64 patches are outliers: norm above {rule.threshold:.1f} where")
        assert state(page)["outliers"] and "outliers=true" in page.url
        # What is outlined are these patches: the yellow of the marks is nowhere else.
        yellow = page.evaluate(YELLOW)
        left, top, right, bottom = app.analysis.prepared.geometry.box
        width, height = app.analysis.prepared.image.size
        # As patches, of which each outline may be a tenth off.
        points = np.array(yellow) * [width, height] - [left, top]
        cells = points / [right - left, bottom - top] * 8 - 0.5
        near = [np.abs(cells - [column, row]).max(1) <= 0.6 for row, column in OUTLIERS]
        assert all(each.any() for each in near) and np.logical_or(*near).all()


def test_all_of_a_picture_that_is_mostly_cropped_is_a_click_away(
    browser: Browser, app: SmallApp, tmp_path: Path
) -> None:
    for name, height in (("tall", 150), ("square", 60)):
        Image.effect_noise((60, height), 90).convert("RGB").save(tmp_path / f"{name}.png")
    with page_at(browser, app.address) as page:
        # Two thirds of the example are seen.
        expect(notice(page)).not_to_be_visible()
        upload(page, tmp_path / "tall.png")
        # A new picture of which most would be hidden is shown whole.
        assert first_view(page)["fit"] == "native"
        expect(notice(page)).to_contain_text("hides 60% of this picture, which is shown whole")
        open_settings(page).locator(".vx-fit").select_option("crop")
        assert first_view(page)["fit"] is None
        expect(notice(page)).to_contain_text("The model sees the middle 40% of this picture")
        page.get_by_role("button", name="Show the whole picture").click()
        assert first_view(page)["fit"] == "native"
        expect(notice(page)).not_to_be_visible()
        expect(page.locator(".vx-seen-as")).to_contain_text("13×5 patches")
        # The next picture is prepared as the model's are.
        upload(page, tmp_path / "square.png")
        assert first_view(page)["fit"] is None
