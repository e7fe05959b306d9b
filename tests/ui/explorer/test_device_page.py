"""The page that runs the network itself: from disk without a network, and from a folder under a strict policy."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from playwright.sync_api import Browser, Page, expect
from safetensors.torch import load

import vitviz
from tests.driver import (
    DESKTOP,
    EXPLORER,
    Watched,
    ask,
    canvas_values,
    caption,
    choose_example,
    choose_layout,
    choose_other,
    click_patch,
    new_context,
    settle,
)
from tests.support.colour_profiles import gamma_profile
from tests.support.example import EXAMPLE
from tests.support.folder_server import served_folder
from tests.ui.explorer.page_driver import SHAPES, made
from tests.ui.explorer.test_device_team import numbers
from tests.ui.test_page_panels import expect_changes
from vitviz import Analysis, ConfigError, Model, VisionTransformer, ViTConfig
from vitviz.images.code_points import PRIMARIES
from vitviz.ui.explorer.device_page import MAX_ROLLOUT_PRODUCTS, SHOWN_SIDE, device_page
from vitviz.ui.explorer.device_site import write_site
from vitviz.ui.facts import analysis_facts
from vitviz.ui.state import View

EXAMPLES = ("chelsea.jpg", "rocket.jpg")
TOLERANCE, POINTS = 1e-4, 0.005
# What the page computed of its picture, from the prepared pixels on, in base64.
COMPUTED = f"""async () => {{
    const {{ backend, panes }} = {EXPLORER}, {{ facts }} = panes[0], {{ pixels, logits }} = await backend.analysis(facts.uid);
    const text = (bytes) => new Uint8Array(bytes).toBase64?.() ?? btoa(String.fromCharCode(...new Uint8Array(bytes)));
    const layers = [...Array(facts.layers).keys()].map((layer) => backend.file(facts.uid, `layer ${{layer}}`));
    const files = [...await Promise.all(layers), await backend.file(facts.uid, "rollout")];
    return {{
      facts, pixels: text(pixels.slice().buffer), logits: text(logits.slice().buffer), files: files.map(text),
    }};
}}"""


def write_file(model: Model, path: Path, **options: Any) -> Path:
    path.write_text(device_page([model], **options).as_file(), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def bundled_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_file(vitviz.load("vitviz-photos"), tmp_path_factory.mktemp("device") / "photos.html")


@pytest.fixture(scope="module")
def small() -> Model:
    """Random weights, registers, an oblong input and a crop."""
    return made(*SHAPES["registers"])


@pytest.fixture(scope="module")
def small_file(small: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_file(small, tmp_path_factory.mktemp("device") / "small.html", picture=EXAMPLE, name=EXAMPLE.name)


class Visit(Watched):
    """A page in a context of its own."""

    def __init__(self, browser: Browser, address: str, *, is_offline: bool = False) -> None:
        self.context = new_context(browser, viewport=DESKTOP)
        self.context.set_offline(is_offline)
        super().__init__(self.context.new_page())
        self.page.goto(address)
        expect(self.page.locator(".vx-canvas").first).to_have_attribute("data-loaded", "page")

    def __enter__(self) -> Visit:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()

    def requests_but(self, *beginnings: str) -> list[str]:
        return [request.url for request in self.requests if not request.url.startswith(beginnings)]


def show(page: Page, path: Path) -> None:
    """Choose a file, and wait for its map."""
    page.set_input_files(".vx-pictures .vx-file", path)
    expect(page.locator(".vx-badge").first).to_contain_text(path.name)
    settle(page)


def compare(page: Page, model: Model, path: Path) -> None:
    """The page's numbers with the library's: from the pixels that it prepared, and from the file."""
    found = page.evaluate(COMPUTED)
    config, analysis = model.network.config, vitviz.analyze(path, model)
    pixels = numbers(found["pixels"]).view(analysis.prepared.pixels.shape)
    encoding = model.network.encode(pixels)
    torch.testing.assert_close(numbers(found["logits"]), encoding.logits[0], rtol=0, atol=TOLERANCE)
    (trace,) = encoding.traces
    for layer in range(config.depth):
        file = load(base64.b64decode(found["files"][layer]))
        torch.testing.assert_close(file["queries"], trace.queries[layer] * trace.scale, rtol=0, atol=TOLERANCE)
        weights = (file["queries"] @ file["keys"].mT - file["log_sums"][..., None]).exp()
        torch.testing.assert_close(weights, trace.weights(layer), rtol=0, atol=TOLERANCE)
    rollouts = load(base64.b64decode(found["files"][-1]))["rows"] / trace.layout.token_count
    torch.testing.assert_close(rollouts, vitviz.attribution.rollout_matrix(trace), rtol=0, atol=TOLERANCE)
    # Decoding is the browser's.
    facts, best = found["facts"], analysis.predictions(5)
    expected = {each.index: each.probability for each in best}
    assert all(abs(expected.get(each["index"], 0) - each["probability"]) <= POINTS for each in facts["predictions"])
    box = analysis.prepared.geometry.resized(facts["width"], facts["height"]).box
    assert facts["box"] == pytest.approx(box, abs=1e-3)
    assert facts["outliers"]["patches"] == [list(trace.layout.cell(token)) for token in outliers(analysis)]
    assert max(facts["width"], facts["height"]) == min(SHOWN_SIDE, max(facts["pixels"]))
    own_pixels = replace(analysis, trace=trace)
    own = analysis_facts(facts["uid"], own_pixels, facts["picture"], view=View(fit=facts["fit"]), name=path.name)
    # What the browser decodes has no assumptions, and its numbers are compared above.
    apart = {"model", "assumptions", "dark", "is_converted", "predictions", "box", "width", "height", "look"}
    assert {name: facts[name] for name in own.keys() - apart} == {name: own[name] for name in own.keys() - apart}
    numbers_apart = {"share", "excess"}
    found_look, own_look = facts["look"] or {}, own["look"] or {}
    assert {name: found_look[name] for name in found_look.keys() - numbers_apart} == json.loads(
        json.dumps({name: own_look[name] for name in own_look.keys() - numbers_apart})
    )
    assert [found_look.get(name) for name in numbers_apart] == pytest.approx(
        [own_look.get(name) for name in numbers_apart], abs=1e-4
    )


def outliers(analysis: Analysis) -> list[int]:
    return vitviz.attention.sinks.outlier_patches(analysis.trace)


@pytest.mark.browser
def test_from_disk_without_a_network_it_is_the_library(browser: Browser, bundled_file: Path) -> None:
    model = vitviz.load("vitviz-photos")
    assert bundled_file.stat().st_size <= 16e6
    with Visit(browser, bundled_file.as_uri(), is_offline=True) as visit:
        for name in EXAMPLES:
            show(visit.page, EXAMPLE.with_name(name))
            compare(visit.page, model, EXAMPLE.with_name(name))
        assert visit.requests_but("blob:", "data:") == [bundled_file.as_uri()] and visit.errors == []


@pytest.mark.browser
def test_what_it_offers_works_and_what_it_lacks_is_not_offered(
    browser: Browser, small: Model, small_file: Path, tmp_path: Path
) -> None:
    analysis = vitviz.analyze(EXAMPLE, small)
    layout = analysis.trace.layout
    with Visit(browser, small_file.as_uri(), is_offline=True) as visit:
        page = visit.page
        settle(page)
        for part in ("[data-act=link]", "[data-act=python]", "[data-act=page]", "[data-panel=compare]", ".vx-own"):
            assert page.locator(part).evaluate("part => getComputedStyle(part).display") == "none", part
        assert "Attention flow" not in page.locator(".vx-method").inner_html()
        expect(page.locator(".vx-absent")).to_contain_text(
            re.compile("Only the app computes .*attention flow.*maps about a text")
        )
        # Of the token that the classifier reads, rollout with a parameter; and why, by every method, with progress.
        whys = ("relevance", "occlusion", "legrad", "grad_cam", "integrated_gradients", "gradient_rollout")
        for method, given in (("rollout", {"discard_ratio": 0.5}), *((method, {}) for method in whys)):
            page.evaluate(f"{EXPLORER}.store.patchView(0, {{ method: '{method}', parameters: {json.dumps(given)} }})")
            settle(page)
            heatmap = analysis.map(method, **given)
            values = heatmap.numpy().ravel()
            tolerance, found = TOLERANCE * max(1, float(np.abs(values).max())), canvas_values(page)
            np.testing.assert_allclose(found[layout.prefix_count :], values, atol=tolerance, err_msg=method)
            expect(caption(page)).to_contain_text(heatmap.description)
        # Hiding a square and a head.
        ask(page, "hide")
        click_patch(page, analysis, 2, 3)
        page.evaluate(f"{EXPLORER}.store.patchView(0, {{ heads_off: [[1, 0]] }})")
        expect_changes(page, analysis, {(1, 0)}, {(2, 3)})
        page.get_by_role("button", name="Show everything").click()
        # A probe, and two maps with their difference.
        page.locator("[data-panel=probes] > summary").click()
        page.select_option(".vx-probe", "attention_entropy")
        expect(page.locator(".vx-probe-said")).to_contain_text("look most widely, on average")
        page.get_by_role("tab", name="Where it looks").click()
        choose_layout(page, "difference")
        choose_other(page, "layer", "0")
        expect(caption(page, 2)).to_contain_text("A − B, above 0 where A has more. Largest difference: patch")
        page.locator(".vx-compare-end").click()
        # What is no picture is refused by its name, and the one before stays.
        (tmp_path / "notes.txt").write_text("no picture")
        page.set_input_files(".vx-pictures .vx-file", tmp_path / "notes.txt")
        expect(page.locator(".vx-notice")).to_contain_text("notes.txt: this browser cannot open it as a picture")
        Image.new("L", (66_000, 8), 128).save(tmp_path / "wide.png")
        page.set_input_files(".vx-pictures .vx-file", tmp_path / "wide.png")
        expect(page.locator(".vx-notice")).to_contain_text("66000×8 pixels: this browser lets no page read so large")
        expect(page.locator(".vx-badge").first).to_contain_text(EXAMPLE.name)
        assert visit.requests_but("blob:", "data:") == [small_file.as_uri()] and visit.errors == []


@pytest.mark.browser
def test_squares_that_change_the_answer_are_found_meanwhile_and_covered_by_a_click(
    browser: Browser, bundled: Model, bundled_file: Path
) -> None:
    analysis = vitviz.analyze(EXAMPLE, bundled)
    flip = analysis.flip(random_orders=0)
    with Visit(browser, bundled_file.as_uri(), is_offline=True) as visit:
        page, line = visit.page, visit.page.locator(".vx-unless")
        expect(line).to_have_text(str(flip)[str(flip).index("Cover") :])
        line.click()
        expect(page.locator(".vx-headline")).to_contain_text(f"Without {len(flip.patches)} squares: of ")
        expect_changes(page, analysis, set(), set(flip.patches))
        # The same squares by hand, which the page asks the network about.
        page.evaluate(f"{EXPLORER}.panes[0].facts.flip = null, {EXPLORER}.store.refresh()")
        page.locator(".vx-all-on").click()
        ask(page, "hide")
        for row, column in flip.patches:
            click_patch(page, analysis, row, column)
        expect_changes(page, analysis, set(), set(flip.patches))
        # An example opens on its squares as soon as they are found.
        with Visit(browser, bundled_file.as_uri(), is_offline=True) as other:
            settle(other.page)
            choose_example(other.page, "coffee.jpg")
            expect(other.page.locator(".vx-headline")).to_contain_text("padlock")
            for width in (412, 390, 375, 360):
                other.page.set_viewport_size({"width": width, "height": 844})
                assert other.page.evaluate("document.documentElement.scrollWidth") <= width
        assert visit.requests_but("blob:", "data:") == [bundled_file.as_uri()] and visit.errors + other.errors == []


# A search that has done a part of its passes, and goes on when the test says so.
HOLD_SEARCH = f"""() => {{
    const {{ runs }} = {EXPLORER}.backend, {{ flip }} = runs;
    runs.flip = async (request, signal, report) => {{
        report(49, 196);
        await new Promise((go) => {{ window.goOn = go; }});
        return flip(request, signal, () => {{}});
    }};
}}"""


@pytest.mark.browser
def test_a_large_model_searches_when_it_is_asked_and_says_how_far_it_is(
    browser: Browser, bundled: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitviz.ui.explorer.device_page.QUICK_ON_DEVICE", 0)
    file = write_file(bundled, tmp_path / "asked.html", picture=EXAMPLE, name=EXAMPLE.name)
    with Visit(browser, file.as_uri(), is_offline=True) as visit:
        page, line, busy = visit.page, visit.page.locator(".vx-unless"), visit.page.locator(".vx-busy")
        settle(page)
        page.evaluate(HOLD_SEARCH)
        expect(line).to_have_text("Find squares without which it says something else")
        line.click()
        expect(busy).to_contain_text("Covering squares")
        assert page.locator(".vx-busy-bar").evaluate("(bar) => bar.value") == 0.25
        # Stopped, it is as before; where it fails, it says why; asked again, it ends.
        page.locator(".vx-stop").click()
        expect(busy).to_be_hidden()
        page.evaluate(
            f"() => {{ {EXPLORER}.backend.runs.flip = async () => {{ throw Error('Too little memory'); }}; }}"
        )
        line.click()
        expect(page.locator(".vx-notice")).to_contain_text("Too little memory.")
        page.reload()
        settle(page)
        page.evaluate(HOLD_SEARCH)
        line.click()
        page.wait_for_function("() => Boolean(window.goOn)")
        page.evaluate("window.goOn()")
        expect(line).to_contain_text("it says shoe")
        expect(busy).to_be_hidden()
        assert visit.errors == []


@pytest.mark.browser
def test_a_model_without_classes_has_no_question_about_them(browser: Browser, tmp_path: Path) -> None:
    file = write_file(made(*SHAPES["cifar"], classes=0), tmp_path / "features.html")
    with Visit(browser, file.as_uri(), is_offline=True) as visit:
        settle(visit.page)
        tabs = visit.page.get_by_role("tab")
        assert tabs.filter(visible=True).all_inner_texts() == ["Where it looks", "All layers", "What is alike"]
        expect(visit.page.locator(".vx-headline")).to_have_text(
            "This model names no classes: ask where it looks, or what is alike."
        )
        assert visit.errors == []


@pytest.mark.browser
@pytest.mark.parametrize("color_profile", ["apply", "ignore"])
def test_colours_are_converted_if_those_of_the_training_were(
    browser: Browser, small: Model, tmp_path: Path, color_profile: Any
) -> None:
    model = replace(small, preprocessing=replace(small.preprocessing, color_profile=color_profile))
    picture = tmp_path / "display-p3.png"
    Image.new("RGB", (90, 60), (200, 60, 40)).save(picture, icc_profile=gamma_profile(1 / 2.2, PRIMARIES[12][1]))
    with Visit(browser, write_file(model, tmp_path / "page.html").as_uri(), is_offline=True) as visit:
        show(visit.page, picture)
        expected = vitviz.analyze(picture, model).prepared.pixels
        found = numbers(visit.page.evaluate(COMPUTED)["pixels"]).view(expected.shape)
    torch.testing.assert_close(found, expected, rtol=0, atol=3 / 255 / min(model.preprocessing.std))


@pytest.fixture
def site(small: Model, tmp_path: Path) -> Iterator[tuple[Path, str, list[Model]]]:
    """A folder with two models, and its address on a server that only sends files."""
    other = vitviz.Model(
        "second", made(*SHAPES["cifar"]).network, made(*SHAPES["cifar"]).preprocessing, ("a", "b", "c")
    )
    write_site(device_page([small, other], is_downloaded=True), tmp_path / "site")

    with served_folder(tmp_path / "site") as address:
        yield tmp_path / "site", address, [small, other]


@pytest.mark.browser
def test_as_a_folder_its_policy_is_strict_and_it_asks_for_its_own_files_alone(
    browser: Browser, site: tuple[Path, str, list[Model]], tmp_path: Path
) -> None:
    folder, address, (small, other) = site
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', (folder / "index.html").read_text())
    assert policy and policy[1].replace("&#x27;", "'").split("; ") == [
        *("default-src 'none'", "script-src 'self' 'wasm-unsafe-eval'", "style-src 'self'"),
        *(
            "img-src 'self' data: blob:",
            "font-src data:",
            "connect-src 'self'",
            "worker-src blob:",
            "base-uri 'none'",
            "form-action 'none'",
        ),
    ]
    assert (folder / "README.md").read_text().startswith("---\ntitle: vitviz\n")
    Image.open(EXAMPLE).rotate(90, expand=True).save(tmp_path / "turned.png")
    with Visit(browser, address) as visit:
        show(visit.page, tmp_path / "turned.png")
        compare(visit.page, small, tmp_path / "turned.png")
        before = len(visit.requests)
        visit.page.locator(".vx-models > summary").click()
        visit.page.get_by_role("button", name=re.compile("second")).click()
        expect(visit.page.locator(".vx-badge").first).to_contain_text("second")
        settle(visit.page)
        compare(visit.page, other, tmp_path / "turned.png")
        asked = [each.url.rpartition("/")[2] for each in visit.requests[before:]]
        assert "model-1.gz" in asked
        assert visit.requests_but(address, "blob:", "data:") == [] and visit.errors == []


def test_what_a_page_cannot_run_is_refused_by_its_name() -> None:
    model = made(*SHAPES["cifar"])
    model.own_network(model.name).set_precision("bfloat16")
    with pytest.raises(ConfigError, match=r"^small computes in bfloat16"):
        device_page([model])
    with pytest.raises(ConfigError, match="none given"):
        device_page([])
    with pytest.raises(ConfigError, match="two have the same name"):
        device_page([made(*SHAPES["cifar"])] * 3)


def test_a_picture_that_browsers_may_not_open_becomes_one_that_they_do(small: Model, tmp_path: Path) -> None:
    picture = tmp_path / "scan.tif"
    Image.open(EXAMPLE).save(picture)
    page = device_page([small], picture, name=picture.name)
    assert page.parts["picture-0"].startswith(b"\xff\xd8") and page.start["views"][0]["name"] == "scan.tif"
    assert device_page([small], EXAMPLE).parts["picture-0"] == EXAMPLE.read_bytes()


def test_a_page_says_once_whether_its_pictures_have_files_of_all_rollouts(monkeypatch: pytest.MonkeyPatch) -> None:
    model = made(*SHAPES["cifar"])
    products = model.network.config.depth * model.layout.token_count**3
    assert products < MAX_ROLLOUT_PRODUCTS
    for limit, rolls in ((products, True), (products - 1, False)):
        monkeypatch.setattr("vitviz.ui.explorer.device_page.MAX_ROLLOUT_PRODUCTS", limit)
        start = device_page([model]).start
        assert start["views"][0]["rolls"] == start["device"]["models"][""]["rolls"] == rolls


@pytest.mark.long
@pytest.mark.browser
def test_fifty_pictures(browser: Browser, bundled_file: Path, tmp_path: Path) -> None:
    """Parts of the photographs, in every format that browsers and Pillow write."""
    model, rng = vitviz.load("vitviz-photos"), np.random.default_rng(0)
    names = ("chelsea", "coffee", "rocket", "astronaut", "flower", "perch")
    with Visit(browser, bundled_file.as_uri(), is_offline=True) as visit:
        for number in range(50):
            with Image.open(EXAMPLE.with_name(f"{names[number % len(names)]}.jpg")) as image:
                width, height = image.size
                edges = (rng.random(4) / 3 * [width, height, -width, -height]).round().tolist()
                part = image.crop((edges[0], edges[1], width + edges[2], height + edges[3]))
                path = tmp_path / f"{number}.{('png', 'jpg', 'webp', 'gif')[number % 4]}"
                part.convert("P" if path.suffix == ".gif" else "RGB").save(path)
            show(visit.page, path)
            compare(visit.page, model, path)
        assert visit.errors == []


# What the page shows of a map while it is made: the badge, the caption and the values of its squares.
UNFINISHED = f"""async () => {{
    const explorer = {EXPLORER}, badge = document.querySelector(".vx-badge");
    explorer.store.patchView(0, {{ method: "occlusion", parameters: {{}} }});
    while (!badge.textContent.includes("unfinished")) await new Promise(requestAnimationFrame);
    const values = explorer.panes[0].values(explorer.store.state.views[0].parameters.query);
    return [badge.textContent, document.querySelector(".vx-status").textContent, [...values]];
}}"""


@pytest.mark.browser
def test_occlusion_sharpens_and_ends_as_the_librarys(browser: Browser, bundled: Model, tmp_path: Path) -> None:
    """The bundled model with 8×8 of its 14×14 squares."""
    side, known = 64, bundled.own_network("").state_dict()
    network = VisionTransformer(
        ViTConfig(**vars(bundled.network.config) | {"image_height": side, "image_width": side})
    ).eval()
    network.load_state_dict(known | {"positions": known["positions"][3:11, 3:11]})
    model = Model("middle", network, replace(bundled.preprocessing, height=side, width=side), bundled.labels)
    file, count = write_file(model, tmp_path / "middle.html", picture=EXAMPLE), model.layout.prefix_count
    with Visit(browser, file.as_uri(), is_offline=True) as visit:
        settle(visit.page)
        badge, said, values = visit.page.evaluate(UNFINISHED)
        assert re.search(r"unfinished, \d+ of 64 squares", badge) and "and the others as the nearest of them" in said
        unfinished = np.array(values[count:])
        assert np.isfinite(unfinished).all()
        settle(visit.page)
        expect(visit.page.locator(".vx-badge").first).not_to_contain_text("unfinished")
        expected = vitviz.analyze(EXAMPLE, model).occlusion().numpy().ravel()
        found, tolerance = canvas_values(visit.page)[count:], 10 * TOLERANCE * np.abs(expected).max()
        np.testing.assert_allclose(found, expected, atol=tolerance)
        # What was shown before was already like it: of each square, the value of a near one.
        assert np.corrcoef(unfinished, expected)[0, 1] > 0.3
        for (row, column), value in np.ndenumerate(unfinished.reshape(8, 8)):
            near = expected.reshape(8, 8)[max(0, row - 2) : row + 3, max(0, column - 2) : column + 3]
            assert np.abs(near - value).min() <= tolerance, (row, column)
        visit.page.locator(".vx-options > summary").click()
        visit.page.get_by_label("Negative values").check()
        settle(visit.page)
        expected = vitviz.analyze(EXAMPLE, model).occlusion(signed=True).numpy().ravel()
        np.testing.assert_allclose(canvas_values(visit.page)[count:], expected, atol=tolerance)
        low, high = (visit.page.locator(f".vx-{end}").first.inner_text() for end in ("low", "high"))
        assert expected.min() < 0 and low == f"-{high}"
