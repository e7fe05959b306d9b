"""The explorer in Firefox, where one is installed: the same numbers, the same picture, and everything works."""

from __future__ import annotations

import base64
import io
import json
import os
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from PIL import Image

import vitviz
from tests.driver import ARTEFACTS
from tests.firefox import ADVICE, VARIABLE, Firefox, find_firefox, running_firefox
from tests.support.example import EXAMPLE
from tests.ui.explorer.page_driver import EXPLORER, HEADS, LAYERS, SHAPES, made
from tests.ui.explorer.test_explorer_files import allowed
from vitviz import Analysis, Style
from vitviz.ui.explorer.saved_page import whole_page

pytestmark = pytest.mark.browser

FILE = APP = "#vv-explorer"


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
    return vitviz.analyze(EXAMPLE, made(*SHAPES["registers"]))


@pytest.fixture(scope="module")
def file(small: Analysis, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("firefox") / "explorer.html"
    path.write_text(whole_page(small, "Noise", link="?method=attention"), encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def page(firefox: Firefox, file: str) -> Iterator[Firefox]:
    """The explorer from disk; fails the test on an error, and on a request to anything but itself."""
    firefox.open(file)
    assert firefox.until(f"document.querySelector('{FILE} .vx-canvas[data-loaded=page]')")
    yield firefox
    assert firefox.errors() == []
    assert [address for address in firefox.requested() if not address.startswith(("file:", "data:", "blob:"))] == []


def text_of(page: Firefox, selector: str) -> str:
    found: str = page.evaluate(f"document.querySelector({json.dumps(selector)})?.textContent ?? ''")
    return found


def expect_text(page: Firefox, selector: str, text: str) -> None:
    condition = f"document.querySelector({json.dumps(selector)})?.textContent.includes({json.dumps(text)})"
    assert page.until(condition), f"{text} is not in: {text_of(page, selector)}"


def status(explorer: str, pane: int = 1) -> str:
    return f"{explorer} .vx-pane:nth-child({pane}) .vx-status"


def numbers(page: Firefox, *question: object) -> np.ndarray:
    """What the page computes for layer, head, token and direction: ``"token"``."""
    return np.array(page.evaluate(f"Array.from({EXPLORER}.panes[0].attention.map(...{json.dumps(question)}))"))


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


# The explorer from disk.


def test_the_numbers_are_those_of_the_library(page: Firefox, small: Analysis) -> None:
    trace = small.trace
    for layer in range(LAYERS):
        weights, wrong = trace.weights(layer).numpy(), allowed(trace, layer).numpy()
        for token in (0, 20, trace.layout.token_count - 1):
            for head in range(HEADS):
                row, column = (numbers(page, layer, head, token, direction) for direction in ("row", "column"))
                assert (np.abs(row - weights[head, token]) <= wrong[head, token]).all()
                assert (np.abs(column - weights[head, :, token]) <= wrong[head, :, token]).all()
            for fusion in ("mean", "max", "min"):
                found = numbers(page, layer, fusion, token, "row")
                fused = trace.fused(layer, fusion).numpy()[token]
                assert (np.abs(found - fused) <= wrong[:, token].max(0)).all()
    set_value(page, f"{FILE} .vx-method", "rollout")
    expect_text(page, status(FILE), "layers 0 to 2. Strongest")
    token = trace.layout.index((2, 3))
    row = page.evaluate(f"Array.from({EXPLORER}.panes[0].attention.rollout({token}))")
    rolled = trace.layout.grid(torch.tensor(row, dtype=torch.float64))
    expected = small.rollout(query=(2, 3)).values.double()
    torch.testing.assert_close(rolled, expected, atol=1e-3 * float(expected.max()), rtol=0)


def test_the_picture_goes_with_the_pointer(page: Firefox, small: Analysis) -> None:
    set_value(page, f"{FILE} .vx-method", "attention")
    set_value(page, f"{FILE} .vx-opacity", "1")
    page.click(*place(page, f"{FILE} .vx-fade"))
    layout = small.trace.layout
    for row, column in ((0, 0), (3, 7)):
        page.move(*place(page, f"{FILE} .vx-canvas", *middle(small, row, column)))
        best = small.attention(query=(row, column)).token_map.strongest
        expect_text(page, status(FILE), f"Attention from patch ({row}, {column}) to each patch, layer 2 of 0–2")
        expect_text(page, status(FILE), f"Strongest: patch {best} with 0.")
        ours = np.asarray(small.attention(query=(row, column)).overlay(Style(opacity=1, fade=False)), dtype=np.float32)
        shown = picture_of(page, f"document.querySelector('{FILE} .vx-canvas')")
        for patch in np.ndindex(layout.grid_height, layout.grid_width):
            across, down = middle(small, *patch)
            one, other = (
                picture[int(down * picture.shape[0]), int(across * picture.shape[1])] for picture in (shown, ours)
            )
            assert np.abs(one - other).max() <= 4, patch
    # A part of the picture that was cut off holds no patch.
    page.move(*place(page, f"{FILE} .vx-canvas", 0.01, 0.01))
    expect_text(page, status(FILE), "Attention from the CLS token")


# The app.


@pytest.fixture
def app(firefox: Firefox, request: pytest.FixtureRequest) -> str:
    """Where the app runs; it is started only where there is a Firefox."""
    address: str = request.getfixturevalue("address")
    return address


def test_the_app_opens_with_an_example_and_shows_its_maps(firefox: Firefox, app: str, example: Analysis) -> None:
    firefox.open(f"{app}/?__theme=light&method=attention")
    first = example.attention().token_map.strongest
    expect_text(firefox, status(APP), "Attention from the CLS token to each patch, layer 7 of 0–7, mean of 6 heads. ")
    expect_text(firefox, status(APP), f"Strongest: patch {first} ")
    firefox.move(*place(firefox, f"{APP} .vx-canvas", *middle(example, 5, 2)))
    best = example.attention(query=(5, 2)).token_map.strongest
    expect_text(firefox, status(APP), "Attention from patch (5, 2) to each patch, layer 7 of 0–7, mean of 6 heads. ")
    expect_text(firefox, status(APP), f"Strongest: patch {best} ")
    trace, token = example.trace, example.trace.layout.index((5, 2))
    wrong, weights = allowed(trace, 7).numpy(), trace.weights(7).numpy()
    for head in range(6):
        found = numbers(firefox, 7, head, token, "row")
        assert (np.abs(found - weights[head, token]) <= wrong[head, token]).all()
    # A map that the server computes, of a class that is clicked at.
    firefox.move(1, 1)
    assert firefox.until(f"{EXPLORER}.settled()")
    firefox.click(*place(firefox, f"{APP} .vx-predictions button:nth-child(2)"))
    index = int(firefox.evaluate(f"document.querySelector('{APP} .vx-predictions button:nth-child(2)').dataset.index"))
    expected = example.map("relevance", target=index)
    expect_text(firefox, status(APP), expected.description)
    assert firefox.until(f"{EXPLORER}.settled()")
    assert firefox.evaluate("location.search").endswith(f"&method=relevance&p.target={index}")
    firefox.screenshot(ARTEFACTS / "firefox-app.png")
    # Back, as before the click.
    firefox.evaluate("history.back()")
    expect_text(firefox, status(APP), "Attention from the CLS token")
    assert firefox.until(f"{EXPLORER}.settled()")
    assert firefox.errors() == []
    assert [one for one in firefox.requested() if not one.startswith((app, "data:", "blob:"))] == []
    # What a server refuses would have been heard.
    missing = f"{app}/missing"
    firefox.evaluate(f"fetch({json.dumps(missing)}).then(() => null)")
    assert firefox.errors() == [f"404: {missing}"] and missing in firefox.requested()
