"""The public API as programs use it: through Gradio's client, plain HTTP and MCP."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from typing import Any

import numpy as np
import pytest
from gradio_client import Client, handle_file
from PIL import Image

import vitviz
from tests.support.api_calls import ENDPOINTS, PHOTO, maps
from tests.support.example import COARSE, EXAMPLE, ROOT
from tests.support.waiting import HANG_SECONDS
from vitviz import METHODS, Analysis, Model, Style
from vitviz.images.preprocessing import FITS
from vitviz.ui.service import CANVAS_SIDE
from vitviz.visualization.colormaps import COLORMAPS
from vitviz.weights import BUNDLED, ZOO

pytestmark = pytest.mark.process
DOCUMENTATION = ROOT / "docs" / "app.md"


# Of every kind of value; every method is asked in tests/ui/test_runs.py.
DRAWN: list[tuple[str, dict[str, Any]]] = [
    ("attention_mass", {}),
    ("attention_flow", {"most_patches": 16}),
    ("attention", {"layer": -2, "head": 3, "query": [2, 5], "direction": "column"}),
    ("relevance", {"target": "dog", "start_layer": 2}),
    ("rollout", {"head_fusion": "max", "discard_ratio": 0.9, "query": "patches"}),
]


def in_python(analysis: Analysis, method: str, said: dict[str, Any]) -> vitviz.Heatmap:
    """The same map by the library."""
    query = {"query": tuple(said["query"])} if isinstance(said.get("query"), list) else {}
    return analysis.map(method, **{**said, **query})


# What there is.


def test_exactly_the_documented_endpoints_are_shown_each_part_with_its_type_and_words(client: Client) -> None:
    shown: Any = client.view_api(return_format="dict", print_info=False)
    assert tuple(shown["named_endpoints"]) == ENDPOINTS and not shown["unnamed_endpoints"]
    # None is hidden.
    assert {f"/{each['api_name']}" for each in client.config["dependencies"]} == set(ENDPOINTS)
    for name, endpoint in shown["named_endpoints"].items():
        assert endpoint["description"], name
        for part in endpoint["parameters"] + endpoint["returns"]:
            assert part["python_type"]["type"] not in ("", "Any") and part["python_type"]["description"], (name, part)
        assert f"`{name}`" in DOCUMENTATION.read_text()
    analyze, overlay = (shown["named_endpoints"][name]["parameters"] for name in ("/analyze", "/overlay"))
    said = {part["parameter_name"]: part["python_type"]["description"] for part in analyze + overlay}
    assert all(fit in said["fit"] for fit in FITS) and all(name in said["colormap"] for name in COLORMAPS)
    default = {part["parameter_name"]: part["parameter_default"] for part in overlay if part["parameter_has_default"]}
    assert Style(**{name: default[name] for name in default.keys() & vars(Style()).keys() - {"percentiles"}}) == Style()
    # Whoever puts a type into a schema of their own, as MCP does, would find nothing elsewhere.
    assert "$ref" not in json.dumps(shown)


def test_the_models_are_those_of_the_menu(client: Client) -> None:
    listed = client.predict(api_name="/models")
    assert [each["name"] for each in listed] == [*BUNDLED, *ZOO]
    assert listed[0]["megabytes_to_download"] == 0
    costs = {each["name"]: each["megabytes_to_download"] for each in listed[1:]}
    assert all(costs[name] in (0, model.megabytes) for name, model in ZOO.items())


def test_the_methods_are_those_of_the_table(client: Client) -> None:
    listed = client.predict(api_name="/methods")
    assert [each["name"] for each in listed] == list(METHODS)
    for each, method in zip(listed, METHODS.values(), strict=True):
        said = (each["title"], each["source"], each["interpretation"])
        assert said == (method.title, method.citation, method.interpretation)
        assert [(part["name"], part["default"]) for part in each["parameters"]] == [
            (part.name, part.default) for part in method.parameters
        ]
    rollout = {part["name"]: part for part in listed[list(METHODS).index("rollout")]["parameters"]}
    assert rollout["head_fusion"]["choices"] == ["mean", "max", "min"] and rollout["query"]["kind"] == "token"
    assert (rollout["discard_ratio"]["minimum"], rollout["discard_ratio"]["maximum"]) == (0, 0.99)


def test_an_opened_model_says_what_it_is(client: Client, bundled: Model) -> None:
    opened = client.predict(api_name="/open")
    assert opened == client.predict(model=bundled.name, api_name="/open")
    config = bundled.network.config
    assert (opened["layers"], opened["heads"], opened["patch"]) == (config.depth, config.heads, [8, 8])
    assert (opened["input"], opened["labels"]) == ([112, 112], list(bundled.labels))


# What is computed.


def test_an_analysis_is_that_of_the_library(found: dict[str, Any], example: Analysis) -> None:
    with Image.open(EXAMPLE) as picture:
        width, height = picture.size
    assert (found["image"], found["box"]) == ([width, height], [0, 0, width, height])
    assert found["assumptions"] == list(example.prepared.assumptions)
    prefix = ["cls", "register 1", "register 2", "register 3", "register 4"]
    assert (found["grid"], found["prefix"], found["layers"], found["heads"]) == ([14, 14], prefix, 8, 6)
    expected = example.predictions(5)
    assert [each["label"] for each in found["predictions"]] == [each.label for each in expected]
    assert [example.model.labels[each["index"]] for each in found["predictions"]] == [each.label for each in expected]
    np.testing.assert_allclose(
        [each["probability"] for each in found["predictions"]], [each.probability for each in expected], rtol=1e-6
    )


def test_fit_and_resolution_say_what_is_seen(client: Client, bundled: Model) -> None:
    cropped = client.predict(image=PHOTO, fit="crop", resolution=64, api_name="/analyze")
    expected = vitviz.analyze(EXAMPLE, bundled, "crop", resolution=64)
    np.testing.assert_allclose(cropped["box"], expected.prepared.geometry.box, atol=1e-5)
    assert cropped["grid"] == [8, 8]
    (row,) = maps(client, cropped["id"], {"method": "attention"})
    np.testing.assert_allclose(row["values"], expected.attention().values, rtol=1e-5, atol=1e-7)


def test_a_map_is_that_of_the_library(client: Client, coarse_example: Analysis) -> None:
    coarse = client.predict(image=PHOTO, resolution=COARSE, api_name="/analyze")
    answers = maps(client, coarse["id"], *({"method": method, "parameters": said} for method, said in DRAWN))
    for (method, said), answer in zip(DRAWN, answers, strict=True):
        expected = in_python(coarse_example, method, said).token_map
        scale = max(map(abs, expected.range))
        np.testing.assert_allclose(answer["values"], expected.values, rtol=1e-5, atol=2e-6 * scale, err_msg=method)
        assert answer["prefix"].keys() == expected.prefix.keys()
        assert (answer["method"], answer["quantity"]) == (method, expected.quantity)
        assert answer["description"] == expected.description
        assert answer["domain"] == [end if math.isfinite(end) else None for end in expected.domain]
        np.testing.assert_allclose(answer["range"], expected.range, rtol=1e-5, atol=2e-6 * scale)


def test_a_map_can_be_about_likeness_to_an_upload(client: Client, bundled: Model) -> None:
    other = ROOT / "assets" / "coffee.jpg"
    key = client.predict(PHOTO, resolution=64, api_name="/analyze")["id"]
    own, liked = (vitviz.analyze(path, bundled, resolution=64) for path in (EXAMPLE, other))
    target = {"like": handle_file(other), "patch": [2, 3]}
    (found,) = maps(client, key, {"method": "relevance", "parameters": {"target": target}})
    expected = own.map("relevance", target=vitviz.likeness(liked, (2, 3)))
    np.testing.assert_allclose(found["values"], expected.values, rtol=1e-3, atol=1e-6)
    assert found["description"] == expected.description


@pytest.mark.parametrize(
    ("method", "said", "style"),
    [
        ("attention", None, Style()),
        ("attention", {"layer": 2, "query": [2, 5]}, Style("magma", 0.8, True, True, 0, 0.03)),
        ("rollout", {"head_fusion": "max"}, Style(scale="log")),
        ("rollout", None, Style(scale="robust", percentiles=(5, 90))),
    ],
)
def test_an_overlay_is_that_of_the_library(
    client: Client, found: dict[str, Any], example: Analysis, method: str, said: dict[str, Any] | None, style: Style
) -> None:
    path = client.predict(id=found["id"], method=method, parameters=said, **vars(style), api_name="/overlay")
    heatmap = in_python(example, method, said or {}).resized(CANVAS_SIDE)
    expected = heatmap.overlay(style, tuple(said["query"]) if said and "query" in said else None)
    assert path.endswith(f"{method}.png")
    assert np.array_equal(np.asarray(Image.open(path)), np.asarray(expected))


# What is written of it.


def lines(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", DOCUMENTATION.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def at(address: str, text: str) -> str:
    assert "http://127.0.0.1:7860" in text and "assets/chelsea.jpg" in text
    return text.replace("http://127.0.0.1:7860", address).replace("assets/chelsea.jpg", str(EXAMPLE))


def test_the_documented_lines_of_python_run(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(at(address, lines("python")), "app.md", "exec"), {})
    said = capsys.readouterr().out
    assert "cat" in said and "Attention rollout for the CLS token" in said and "rollout.png" in said


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_documented_lines_of_the_shell_run(address: str) -> None:
    run = subprocess.run(
        ["bash", "-e", "-c", at(address, lines("sh"))], capture_output=True, text=True, timeout=HANG_SECONDS
    )
    assert '"status":"ok"' in run.stdout and "event: complete" in run.stdout and '"label": "cat"' in run.stdout
