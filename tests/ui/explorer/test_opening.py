"""A saved explorer opens with what a link says, and holds the maps that it cannot compute."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, expect
from safetensors.numpy import load as load_pack

from tests.driver import caption, saved_page
from tests.support.example import COARSE, EXAMPLE
from tests.ui.explorer.test_explorer_files import start_of
from vitviz import Analysis, MethodError
from vitviz.cli import main
from vitviz.ui.explorer.saved_page import whole_page
from vitviz.ui.explorer.saved_state import opening
from vitviz.ui.first_view import opening_view


def test_without_a_link_it_opens_as_the_app_does(coarse_example: Analysis) -> None:
    state, maps = opening(coarse_example, "", None, None)
    assert (state.views, maps) == ((opening_view(coarse_example),), [])


@pytest.mark.parametrize("link", ["?method=attention&p.layer=2&p.head=3&p.query=1,2", "?method=rollout&p.query=cls"])
def test_what_the_page_computes_is_not_saved(coarse_example: Analysis, link: str) -> None:
    assert opening(coarse_example, link, None, None)[1] == []


@pytest.mark.parametrize(
    ("link", "method", "arguments"),
    [
        ("?method=relevance&p.target=dog", "relevance", {"target": "dog"}),
        ("method=grad_cam", "grad_cam", {}),
        ("?method=rollout&p.head_fusion=max", "rollout", {"head_fusion": "max"}),
        ("?method=rollout&p.residual_weight=1", "rollout", {"residual_weight": 1.0}),
        ("?method=attention&p.query=patches", "attention", {"query": "patches"}),
    ],
)
def test_a_map_that_needs_the_model_is_saved(
    coarse_example: Analysis, link: str, method: str, arguments: dict[str, object]
) -> None:
    _, maps = opening(coarse_example, link, None, None)
    assert {saved["method"] for saved in maps} == {method}
    labels = coarse_example.model.labels
    parameters = {name: labels.index(value) if value in labels else value for name, value in arguments.items()}
    contents = {json.dumps(saved["parameters"]): base64.b64decode(saved["content"]) for saved in maps}
    assert list(contents) == ([json.dumps(parameters), "{}"] if parameters else ["{}"])
    token_map = coarse_example.map(method, **arguments).token_map
    values = load_pack(contents[json.dumps(parameters)])["values"][len(coarse_example.trace.layout.prefix) :]
    np.testing.assert_allclose(values, token_map.values.flatten(), rtol=1e-6)


@pytest.mark.parametrize(
    ("link", "found"),
    [
        ("?model=dino_vits16", "names a model, picture, fit or resolution"),
        ("?resolution=168", "names a model, picture, fit or resolution"),
        ("?method=telepathy", "method = 'telepathy': expected"),
        ("?method=attention&p.layer=99", "Layer = 99: expected a whole number from -"),
        ("?method=relevance&p.target=unicorn", "unicorn"),
        ("?method=relevance&like=example:coffee.jpg", "expected a class"),
    ],
)
def test_a_link_that_cannot_be_shown_is_refused(coarse_example: Analysis, link: str, found: str) -> None:
    with pytest.raises(MethodError, match=re.escape(found)):
        opening(coarse_example, link, None, None)


def test_the_command_takes_an_address_of_the_app(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    address = "http://127.0.0.1:7860/?method=attention&p.layer=1&layout=slide"
    assert main(["explore", str(EXAMPLE), "--resolution", str(COARSE), "--link", address, "-o", str(file)]) == 0
    state = start_of(file.read_text())["state"]
    assert (state["layout"], state["views"][0]["method"], state["views"][0]["parameters"]) == (
        *("slide", "attention"),
        {"layer": 1},
    )


def test_a_saved_page_shows_its_maps(browser: Browser, coarse_example: Analysis, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    strongest = coarse_example.map("relevance", target="dog").token_map.strongest
    for link, said in (
        ("method=relevance&p.query=1,2&p.target=5&margin=true&pins=3,3;cls", "patch (1, 2)"),
        ("method=relevance&p.target=dog", f"Strongest: patch {strongest}"),
        ("method=rollout&p.discard_ratio=0.25&p.query=4,4", "Attention rollout for patch (4, 4)"),
        # A map of zeros has no strongest patch.
        ("method=rollout&p.residual_weight=1", "layers 0 to 7. Every patch is 0."),
    ):
        file.write_text(whole_page(coarse_example, "cat", resolution=COARSE, link=link))
        with saved_page(browser, file) as page:
            expect(caption(page)).to_contain_text(said)
            if link.endswith("query=4,4"):
                # What a link names is asked of the next map, too.
                page.select_option(".vx-method", "attention")
                expect(caption(page)).to_contain_text("Attention from patch (4, 4)")
            if "dog" not in link:
                continue
            # There and back: the map without parameters, of the most probable class.
            page.select_option(".vx-method", "rollout")
            expect(caption(page)).to_contain_text("Attention rollout")
            page.select_option(".vx-method", "relevance")
            expect(caption(page)).to_contain_text("Relevance for class")
