"""The explorer in Firefox, where one is installed: the same numbers, the same picture, and everything works."""

from __future__ import annotations

import base64
import io
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.driver import ARTEFACTS, says
from tests.firefox import ADVICE, VARIABLE, Firefox, find_firefox, running_firefox
from tests.ui.explorer.test_explorer import HEADS, LAYERS, SHAPES, made
from tests.ui.explorer.test_explorer_files import allowed
from vitviz import Analysis, Style
from vitviz.ui.explorer import whole_page

pytestmark = pytest.mark.browser

FILE, APP = "#explorer", "#vv-explorer"


@pytest.fixture(scope="module")
def firefox() -> Iterator[Firefox]:
    path = find_firefox()
    if path is None and VARIABLE in os.environ:
        pytest.fail(f"{VARIABLE} names no Firefox that starts: {os.environ[VARIABLE]}")
    if path is None:
        pytest.skip(ADVICE)
    with running_firefox(path) as found:
        yield found


@pytest.fixture(scope="module")
def small() -> Analysis:
    """With registers, on a picture of which a part was cut off."""
    return made(*SHAPES["registers"])


@pytest.fixture(scope="module")
def file(small: Analysis, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("firefox") / "explorer.html"
    path.write_text(whole_page(small, "Noise"), encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def page(firefox: Firefox, file: str) -> Iterator[Firefox]:
    """The explorer from disk; fails the test on an error, and on a request to anything but itself."""
    firefox.open(file)
    assert firefox.until(f"document.querySelector('{FILE} .vx-canvas[data-loaded=page]')")
    yield firefox
    assert firefox.errors() == []
    assert [address for address in firefox.asked() if not address.startswith(("file:", "data:", "blob:"))] == []


def text_of(page: Firefox, selector: str) -> str:
    found: str = page.evaluate(f"document.querySelector({json.dumps(selector)})?.textContent ?? ''")
    return found


def expect_text(page: Firefox, selector: str, text: str) -> None:
    condition = f"document.querySelector({json.dumps(selector)})?.textContent.includes({json.dumps(text)})"
    assert page.until(condition), f"{text} is not in: {text_of(page, selector)}"


def status(explorer: str, pane: int = 1) -> str:
    return f"{explorer} .vx-pane:nth-child({pane}) .vx-status"


def numbers(page: Firefox, explorer: str, *question: object) -> np.ndarray:
    """What the page computes for layer, head, token and direction: ``"token"``."""
    return np.array(page.evaluate(f"document.querySelector('{explorer}').explorer.map(...{json.dumps(question)})"))


def place(page: Firefox, selector: str, across: float = 0.5, down: float = 0.5) -> tuple[float, float]:
    """A point of an element, in pixels of the viewport; the element is brought there."""
    edges = page.evaluate(f"""(() => {{
        const found = document.querySelector({json.dumps(selector)});
        found.scrollIntoView({{ block: "center", behavior: "instant" }});
        const {{ left, top, width, height }} = found.getBoundingClientRect();
        return [left, top, width, height];
    }})()""")
    left, top, width, height = edges
    return left + across * width, top + down * height


def middle(analysis: Analysis, row: int, column: int) -> tuple[float, float]:
    """The middle of a patch, in parts of the picture."""
    layout, (width, height) = analysis.trace.layout, analysis.prepared.image.size
    left, top, right, bottom = analysis.prepared.geometry.patch_rectangle(
        row, column, layout.grid_height, layout.grid_width
    )
    return (left + right) / 2 / width, (top + bottom) / 2 / height


def set_value(page: Firefox, selector: str, value: str) -> None:
    page.evaluate(f"""(() => {{
        const control = document.querySelector({json.dumps(selector)});
        control.value = {json.dumps(value)};
        for (const name of ["input", "change"]) control.dispatchEvent(new Event(name, {{ bubbles: true }}));
    }})()""")


def picture_of(page: Firefox, canvas: str) -> np.ndarray:
    """What a canvas of the page shows: ``"height width colour"``."""
    address = page.evaluate(f"({canvas}).toDataURL()")
    with Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2]))) as found:
        return np.asarray(found.convert("RGB"), dtype=np.float32)


# What the browser itself says.


def test_what_goes_wrong_in_a_page_is_heard(firefox: Firefox) -> None:
    firefox.open("data:text/html,<script>console.error('logged'); Promise.reject(Error('rejected')); thrown()</script>")
    heard = firefox.errors()
    assert len(heard) == 3
    for said in ("logged", "rejected", "thrown is not defined"):
        assert any(said in one for one in heard)
    firefox.open("data:text/html,<p>Nothing</p>")
    assert firefox.errors() == []
    with pytest.raises(RuntimeError, match="nobody is not defined"):
        firefox.evaluate("nobody")
    assert firefox.evaluate("({ a: [1, 'b', null, true], c: Infinity, d: undefined })") == {
        "a": [1, "b", None, True],
        "c": float("inf"),
        "d": None,
    }


def test_a_firefox_counts_that_starts_and_sees_the_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def script(name: str, lines: str) -> Path:
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{lines}\n")
        path.chmod(0o755)
        return path

    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("PATH", str(tmp_path))
    script("firefox", "exit 1")
    assert find_firefox() is None
    script("firefox", "exec /snap/bin/firefox")
    assert find_firefox() is None
    own = script("firefox-esr", "echo Mozilla Firefox")
    assert find_firefox() == own
    named = script("nightly", "echo Mozilla Firefox Nightly")
    monkeypatch.setenv(VARIABLE, str(named))
    assert find_firefox() == named
    monkeypatch.setenv(VARIABLE, str(tmp_path / "none"))
    assert find_firefox() is None


# The explorer from disk.


def test_the_numbers_are_those_of_the_library(page: Firefox, small: Analysis) -> None:
    trace = small.trace
    for layer in range(LAYERS):
        weights, wrong = trace.weights(layer).numpy(), allowed(trace, layer).numpy()
        for token in (0, 20, trace.layout.token_count - 1):
            for head in range(HEADS):
                row, column = (numbers(page, FILE, layer, head, token, direction) for direction in ("row", "column"))
                assert (np.abs(row - weights[head, token]) <= wrong[head, token]).all()
                assert (np.abs(column - weights[head, :, token]) <= wrong[head, :, token]).all()
            for fusion in ("mean", "max", "min"):
                found = numbers(page, FILE, layer, fusion, token, "row")
                fused = trace.fused(layer, fusion).numpy()[token]
                assert (np.abs(found - fused) <= wrong[:, token].max(0)).all()
    page.click(*place(page, f"{FILE} .vx-rollout"))
    expect_text(page, status(FILE), "rollout through 3 layers. Strongest")
    rolled = trace.layout.grid(torch.tensor(numbers(page, FILE, 0, "mean", trace.layout.index((2, 3)), "rollout")))
    expected = small.rollout(query=(2, 3)).values.double()
    torch.testing.assert_close(rolled, expected, atol=1e-3 * float(expected.max()), rtol=0)


def test_the_picture_goes_with_the_pointer(page: Firefox, small: Analysis) -> None:
    set_value(page, f"{FILE} .vx-opacity", "1")
    page.click(*place(page, f"{FILE} .vx-grid"))
    layout = small.trace.layout
    for row, column in ((0, 0), (3, 7)):
        page.move(*place(page, f"{FILE} .vx-canvas", *middle(small, row, column)))
        best = small.attention(query=(row, column)).token_map.strongest
        expect_text(page, status(FILE), f"patch ({row}, {column}) looks at: layer 2, mean of 2 heads. Strongest: patch")
        expect_text(page, status(FILE), f"Strongest: patch {best} with 0.")
        ours = np.asarray(small.attention(query=(row, column)).overlay(Style(opacity=1)), dtype=np.float32)
        shown = picture_of(page, f"document.querySelector('{FILE} .vx-canvas')")
        for patch in np.ndindex(layout.grid_height, layout.grid_width):
            across, down = middle(small, *patch)
            one, other = (
                picture[int(down * picture.shape[0]), int(across * picture.shape[1])] for picture in (shown, ours)
            )
            assert np.abs(one - other).max() <= 4, patch
    # A part of the picture that was cut off holds no patch.
    page.move(*place(page, f"{FILE} .vx-canvas", 0.01, 0.01))
    expect_text(page, status(FILE), "CLS looks at")


def test_keys_choose_token_layer_and_head(page: Firefox) -> None:
    page.evaluate(f"document.querySelector('{FILE} .vx-canvas').focus()")
    for key, said in {
        "r": "register 1",
        "ArrowRight": "patch (0, 0) looks at: layer 2, mean",
        "ArrowDown": "patch (1, 0)",
        "[": "layer 1",
        "1": "layer 1, head 1",
        "0": "layer 1, head 0",
        "m": "layer 1, mean",
        "]": "layer 2",
        "c": "CLS looks at",
    }.items():
        page.press(key)
        expect_text(page, status(FILE), said)
    page.press("Enter")
    expect_text(page, f"{FILE} .vx-pin", "CLS")


def test_two_maps_share_pointer_pins_and_scale(page: Firefox, small: Analysis) -> None:
    set_value(page, f"{FILE} .vx-view", "two")
    # The second map is the one that the controls are about now.
    page.evaluate(f"document.querySelector('{FILE} .vx-layer').focus()")
    page.press("ArrowLeft")
    expect_text(page, status(FILE, 2), "layer 1, mean")
    page.click(*place(page, f"{FILE} .vx-canvas", *middle(small, 2, 3)))
    expect_text(page, status(FILE, 1), "patch (2, 3) looks at: layer 2")
    expect_text(page, status(FILE, 2), "patch (2, 3) looks at: layer 1")
    expect_text(page, f"{FILE} .vx-pins", "patch (2, 3)")
    ranges = [small.attention(layer=layer, query=(2, 3)).token_map.range for layer in (2, 1)]
    low, high = min(low for low, _ in ranges), max(high for _, high in ranges)
    for pane in (1, 2):
        legend = f"{FILE} .vx-pane:nth-child({pane})"
        assert float(text_of(page, f"{legend} .vx-low")) == pytest.approx(low, rel=0.02)
        assert float(text_of(page, f"{legend} .vx-high")) == pytest.approx(high, rel=0.02)
    page.screenshot(ARTEFACTS / "firefox-file.png")


# The app.


@pytest.fixture
def app(firefox: Firefox, request: pytest.FixtureRequest) -> str:
    """Where the app runs; it is started only where there is a Firefox."""
    address: str = request.getfixturevalue("address")
    return address


def test_the_app_opens_with_an_example_and_shows_its_maps(firefox: Firefox, app: str, example: Analysis) -> None:
    firefox.open(f"{app}/?__theme=light")
    first = example.attention().token_map.strongest
    expect_text(firefox, status(APP), f"CLS looks at: layer 5, mean of 6 heads. Strongest: patch {first}")
    firefox.move(*place(firefox, f"{APP} .vx-canvas", *middle(example, 5, 2)))
    best = example.attention(query=(5, 2)).token_map.strongest
    expect_text(firefox, status(APP), f"patch (5, 2) looks at: layer 5, mean of 6 heads. Strongest: patch {best}")
    trace, token = example.trace, example.trace.layout.index((5, 2))
    wrong, weights = allowed(trace, 5).numpy(), trace.weights(5).numpy()
    owner = "document.querySelector('#vv-explorer .vx').parentElement"
    for head in range(6):
        found = np.array(firefox.evaluate(f"{owner}.explorer.map(5, {head}, {token}, 'row')"))
        assert (np.abs(found - weights[head, token]) <= wrong[head, token]).all()
    firefox.screenshot(ARTEFACTS / "firefox-explore.png")
    firefox.click(*place(firefox, "#vv-maps-button"))
    for sentence in says(example.attention()):
        expect_text(firefox, "#vv-caption", sentence)
    images = "[...document.querySelectorAll('#vv-canvas img')]"
    assert firefox.until(f"{images}.some((image) => image.complete && image.naturalWidth)")
    shown = picture_of(
        firefox,
        """(() => {
            const image = document.querySelector("#vv-canvas img"), canvas = document.createElement("canvas");
            Object.assign(canvas, { width: image.naturalWidth, height: image.naturalHeight });
            canvas.getContext("2d").drawImage(image, 0, 0);
            return canvas;
        })()""",
    )
    ours = np.asarray(example.attention().resized(900).overlay(Style(grid=True)), dtype=np.float32)
    assert shown.shape == ours.shape and np.abs(shown - ours).mean() < 4
    firefox.screenshot(ARTEFACTS / "firefox-maps.png")
    assert firefox.errors() == []
    assert [one for one in firefox.asked() if not one.startswith((app, "data:", "blob:"))] == []
    # What a server refuses would have been heard.
    missing = f"{app}/missing"
    firefox.evaluate(f"fetch({json.dumps(missing)}).then(() => null)")
    assert firefox.errors() == [f"404: {missing}"] and missing in firefox.asked()
