"""The explorer in Firefox, where one is installed: the same words, the same picture, and everything works."""

from __future__ import annotations

import base64
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitviz
from tests.firefox import ADVICE, VARIABLE, Firefox, find_firefox, running_firefox
from tests.support.example import EXAMPLE
from tests.ui.explorer.page_driver import EXPLORER, SHAPES, made
from vitviz import Analysis, Style
from vitviz.ui.explorer.saved_page import whole_page

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def firefox() -> Iterator[Firefox]:
    path = find_firefox()
    if path is None and VARIABLE in os.environ:
        pytest.fail(f"{VARIABLE} names no Firefox that starts: {os.environ[VARIABLE]}")
    if path is None:
        pytest.skip(ADVICE)
    with running_firefox(path) as found:
        yield found


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


def expect_caption(page: Firefox, text: str) -> None:
    caption = "document.querySelector('.vx-status')?.textContent ?? ''"
    assert page.until(f"({caption}).includes({json.dumps(text)})"), f"{text} is not in: {page.evaluate(caption)}"


def test_what_goes_wrong_in_a_page_is_heard(firefox: Firefox) -> None:
    firefox.open("data:text/html,<script>console.error('logged'); Promise.reject(Error('rejected')); thrown()</script>")
    heard = firefox.errors()
    assert len(heard) == 3
    for said in ("logged", "rejected", "thrown is not defined"):
        assert any(said in one for one in heard)
    with pytest.raises(RuntimeError, match="nobody is not defined"):
        firefox.evaluate("nobody")


def test_the_explorer_from_disk_has_the_words_and_the_picture_of_the_library(firefox: Firefox, tmp_path: Path) -> None:
    """With registers, on a picture of which a part was cut off."""
    small, file = vitviz.analyze(EXAMPLE, made(*SHAPES["registers"])), tmp_path / "explorer.html"
    file.write_text(whole_page(small, "Noise", link="?method=attention&opacity=1&fade=false"), encoding="utf-8")
    firefox.open(file.as_uri())
    assert firefox.until("document.querySelector('.vx-canvas[data-loaded=page]')")
    layout = small.trace.layout
    for row, column in ((0, 0), (3, 7)):
        firefox.move(*place(firefox, ".vx-canvas", *middle(small, row, column)))
        attention = small.attention(query=(row, column))
        expect_caption(firefox, attention.description)
        expect_caption(firefox, f"Strongest: patch {attention.token_map.strongest} with 0.")
        ours = np.asarray(attention.overlay(Style(opacity=1, fade=False)), dtype=np.float32)
        address = firefox.evaluate("document.querySelector('.vx-canvas').toDataURL()")
        with Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2]))) as found:
            shown = np.asarray(found.convert("RGB"), dtype=np.float32)
        for patch in np.ndindex(layout.grid_height, layout.grid_width):
            across, down = middle(small, *patch)
            one, other = (each[int(down * each.shape[0]), int(across * each.shape[1])] for each in (shown, ours))
            assert np.abs(one - other).max() <= 4, patch
    # A part of the picture that was cut off holds no patch.
    firefox.move(*place(firefox, ".vx-canvas", 0.01, 0.01))
    expect_caption(firefox, "Attention from the CLS token")
    firefox.evaluate(f"{EXPLORER}.store.patchView(0, {{ method: 'rollout', parameters: {{ query: [2, 3] }} }})")
    expect_caption(firefox, f"{small.rollout(query=(2, 3)).description}")
    assert firefox.errors() == []
    assert [url for url in firefox.requested() if not url.startswith(("file:", "data:", "blob:"))] == []


def test_the_app_shows_maps_of_the_page_and_of_the_server(
    firefox: Firefox, request: pytest.FixtureRequest, example: Analysis
) -> None:
    # The app is started only where there is a Firefox.
    app: str = request.getfixturevalue("address")
    firefox.open(f"{app}/?__theme=light&method=attention")
    expect_caption(firefox, example.attention().description)
    firefox.move(*place(firefox, ".vx-canvas", *middle(example, 5, 2)))
    expect_caption(firefox, example.attention(query=(5, 2)).description)
    # A map that the server computes, of a class that is clicked at.
    firefox.move(1, 1)
    assert firefox.until(f"{EXPLORER}.settled()")
    button = ".vx-predictions button:nth-child(2)"
    firefox.click(*place(firefox, button))
    index = int(firefox.evaluate(f"document.querySelector('{button}').dataset.index"))
    expect_caption(firefox, example.map("relevance", target=index).description)
    assert firefox.until(f"{EXPLORER}.settled()")
    assert firefox.evaluate("location.search").endswith(f"&method=relevance&p.target={index}")
    # Back, as before the click.
    firefox.evaluate("history.back()")
    expect_caption(firefox, "Attention from the CLS token")
    assert firefox.until(f"{EXPLORER}.settled()") and firefox.errors() == []
    assert [url for url in firefox.requested() if not url.startswith((app, "data:", "blob:"))] == []
    # What a server refuses would have been heard.
    firefox.evaluate(f"fetch('{app}/missing').then(() => null)")
    assert firefox.errors() == [f"404: {app}/missing"]
