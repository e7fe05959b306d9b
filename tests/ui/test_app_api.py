"""The public API as programs use it: through Gradio's client, plain HTTP and MCP."""

from __future__ import annotations

import asyncio
import io
import json
import math
import re
import shutil
import subprocess
import time
from ast import literal_eval
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
from gradio_client import Client, handle_file
from gradio_client.exceptions import AppError
from PIL import Image

import vitviz
from tests.driver import COARSE, EXAMPLE, ROOT
from tests.support.apps import close
from vitviz import METHODS, Analysis, ConfigError, Model, Style
from vitviz.images.preprocessing import FITS
from vitviz.ui import api, build_demo, launch, launch_options
from vitviz.ui.api import UNEXPECTED, Api
from vitviz.ui.server.bodies import MAX_DEPTH
from vitviz.ui.server.routes import JSON_BYTES
from vitviz.ui.server.settings import ServerSettings
from vitviz.ui.service import CANVAS_SIDE, AnalysisService
from vitviz.visualization.heatmaps import COLORMAPS
from vitviz.weights import BUNDLED, ZOO

pytestmark = pytest.mark.process

DOCUMENTATION = ROOT / "docs" / "api.md"
ENDPOINTS = ("/models", "/open", "/methods", "/analyze", "/maps", "/overlay")
PHOTO = handle_file(str(EXAMPLE))
JSON = {"Content-Type": "application/json"}
# What takes long by default takes less.
QUICK = {"attention_flow": {"most_patches": 16}, "integrated_gradients": {"steps": 4}}
DRAWN: list[tuple[str, dict[str, Any]]] = [
    *((method, QUICK.get(method, {})) for method in METHODS if method != "pooling_attention"),
    ("attention", {"layer": -2, "head": 3, "query": [2, 5], "direction": "column"}),
    ("relevance", {"target": "dog", "start_layer": 2}),
    ("rollout", {"head_fusion": "max", "discard_ratio": 0.9, "query": "patches"}),
]


@pytest.fixture(scope="module")
def client(address: str) -> Client:
    return Client(address, verbose=False)


@pytest.fixture(scope="module")
def found(client: Client) -> dict[str, Any]:
    """What /analyze says of the example."""
    return dict(client.predict(image=PHOTO, api_name="/analyze"))


def maps(client: Client, key: str, *wanted: Any) -> list[dict[str, Any]]:
    return list(client.predict(id=key, maps=list(wanted), api_name="/maps"))


def in_python(analysis: Analysis, method: str, said: dict[str, Any]) -> vitviz.Heatmap:
    """The same map by the library."""
    query = {"query": tuple(said["query"])} if isinstance(said.get("query"), list) else {}
    return analysis.map(method, **{**said, **query})


# What there is.


def test_exactly_the_documented_endpoints_are_shown_each_part_with_its_type_and_words(client: Client) -> None:
    shown: Any = client.view_api(return_format="dict", print_info=False)
    assert tuple(shown["named_endpoints"]) == ENDPOINTS and not shown["unnamed_endpoints"]
    for name, endpoint in shown["named_endpoints"].items():
        assert endpoint["description"], name
        for part in endpoint["parameters"] + endpoint["returns"]:
            assert part["python_type"]["type"] not in ("", "Any") and part["python_type"]["description"], (name, part)
        assert f"`{name}`" in DOCUMENTATION.read_text()
    analyze, overlay = (shown["named_endpoints"][name]["parameters"] for name in ("/analyze", "/overlay"))
    assert [part["parameter_name"] for part in analyze] == ["image", "model", "fit", "resolution"]
    assert [part["python_type"]["type"] for part in analyze] == ["filepath", "str", "str", "int"]
    assert [part["parameter_has_default"] for part in analyze] == [False, True, True, True]
    said = {part["parameter_name"]: part["python_type"]["description"] for part in analyze + overlay}
    assert all(fit in said["fit"] for fit in FITS) and all(name in said["colormap"] for name in COLORMAPS)
    default = {part["parameter_name"]: part["parameter_default"] for part in overlay}
    assert (
        Style(
            **{
                name: default[name]
                for name in ("colormap", "opacity", "smooth", "grid", "fade", "low", "high", "scale")
            }
        )
        == Style()
    )


def test_no_part_of_a_type_refers_to_what_is_elsewhere(client: Client) -> None:
    # Whoever puts it into a schema of their own, as MCP does, would find nothing there.
    assert "$ref" not in json.dumps(client.view_api(return_format="dict", print_info=False))


def test_what_is_the_pages_own_no_client_can_call(client: Client, address: str) -> None:
    private = [each for each in client.config["dependencies"] if f"/{each['api_name']}" not in ENDPOINTS]
    assert private
    for each in private:
        with pytest.raises(ValueError, match="Invalid function index"):
            client.predict(fn_index=each["id"])
        with pytest.raises(ValueError, match="Cannot find a function"):
            client.predict(api_name=f"/{each['api_name']}")
    for each in private:
        answer = httpx.post(f"{address}/gradio_api/call/{each['api_name']}", json={"data": []}, timeout=60)
        assert answer.status_code == 404 and "'analyze'" in answer.json()["detail"]


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
        assert (each["title"], each["source"], each["interpretation"]) == (
            method.title,
            method.citation,
            method.interpretation,
        )
        assert [part["name"] for part in each["parameters"]] == [part.name for part in method.parameters]
        assert [part["default"] for part in each["parameters"]] == [part.default for part in method.parameters]
    rollout = {part["name"]: part for part in listed[list(METHODS).index("rollout")]["parameters"]}
    assert rollout["head_fusion"]["choices"] == ["mean", "max", "min"]
    assert (rollout["discard_ratio"]["minimum"], rollout["discard_ratio"]["maximum"]) == (0, 0.99)
    assert rollout["reference"]["choices"] == ["vit-explain"] and rollout["query"]["kind"] == "token"


def test_an_opened_model_says_what_it_is(client: Client, bundled: Model) -> None:
    opened = client.predict(api_name="/open")
    assert opened == client.predict(model=bundled.name, api_name="/open")
    config = bundled.network.config
    assert (opened["layers"], opened["heads"], opened["patch"]) == (config.depth, config.heads, [4, 4])
    assert (opened["input"], opened["labels"]) == ([64, 64], list(bundled.labels))


# What is computed.


def test_an_analysis_is_that_of_the_library(found: dict[str, Any], example: Analysis) -> None:
    with Image.open(EXAMPLE) as picture:
        width, height = picture.size
    assert (found["image"], found["box"]) == ([width, height], [0, 0, width, height])
    prefix = ["cls", "register 1", "register 2", "register 3", "register 4"]
    assert (found["grid"], found["prefix"], found["layers"], found["heads"]) == ([16, 16], prefix, 6, 6)
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
    assert cropped["grid"] == [16, 16]
    (row,) = maps(client, cropped["id"], {"method": "attention"})
    np.testing.assert_allclose(row["values"], expected.attention().values, rtol=1e-5, atol=1e-7)


def test_every_map_is_that_of_the_library(client: Client, coarse_example: Analysis) -> None:
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
    key = client.predict(handle_file(EXAMPLE), resolution=64, api_name="/analyze")["id"]
    other = ROOT / "assets" / "coffee.jpg"
    own, liked = (vitviz.analyze(path, bundled, resolution=64) for path in (EXAMPLE, other))
    asked = [
        {"method": "relevance", "parameters": {"target": {"like": handle_file(other)}}},
        {"method": "relevance", "parameters": {"target": {"like": handle_file(other), "patch": [2, 3]}}},
        {"method": "legrad", "parameters": {"target": {"class": "cat", "against": "dog"}}},
    ]
    targets = [vitviz.likeness(liked), vitviz.likeness(liked, (2, 3)), vitviz.contrast("cat", "dog")]
    for found, request, target in zip(client.predict(key, asked, api_name="/maps"), asked, targets, strict=True):
        expected = own.map(request["method"], target=target)
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


# What is refused.

LARGE, DEEP = 10**400, json.loads("[" * 24 + "]" * 24)
ROLLOUT = {"method": "rollout"}
BAD_ANALYSES: list[tuple[dict[str, Any], str]] = [
    ({"image": None}, "image = None: expected a file"),
    ({"image": "cat.jpg"}, "image = 'cat.jpg': expected a file that was uploaded"),
    ({"image": 5}, "image = 5"),
    ({"image": {"path": "/etc/passwd"}}, "image = '/etc/passwd': not uploaded here"),
    ({"image": handle_file("http://127.0.0.1/cat.jpg")}, "image = 'http://127.0.0.1/cat.jpg': not uploaded here"),
    ({"model": "vitviz-cifar11"}, "did you mean 'vitviz-cifar10'"),
    ({"model": ["dino_vits16"]}, "model = ['dino_vits16']: expected a name that /models lists"),
    ({"model": "hf:owner/name"}, "model = 'hf:owner/name': expected a name that /models lists"),
    ({"model": "../../etc/passwd"}, "model = '../../etc/passwd': expected a name"),
    ({"model": "x" * 2**19}, "xx...xx"),
    ({"fit": "stretch"}, "fit = 'stretch': expected 'crop', 'squash' or 'native'"),
    ({"fit": {}}, "fit = {}: expected 'crop'"),
    ({"resolution": "64"}, "resolution = '64': expected a whole number"),
    ({"resolution": True}, "resolution = True: expected a whole number"),
    ({"resolution": 33}, "resolution = 33: expected a multiple of the patch's 4 pixels: 32 or 36"),
    ({"resolution": -32}, "resolution = -32: expected a whole number from 1"),
    ({"resolution": LARGE}, "resolution = 1000"),
    (
        {"resolution": 4096},
        "1,048,581 tokens take 4.2e+15 operations; expected at most 9.0e+12",
    ),
]
BAD_MAPS: list[tuple[Any, str]] = [
    (None, "maps = None: expected a list of 1 to 256"),
    ([], "maps = 0 maps: expected a list of 1 to 256"),
    ([ROLLOUT] * 257, "maps = 257 maps: expected"),
    (["rollout"], "maps[0] = 'rollout': expected an object with 'method' or 'parameters'"),
    ([ROLLOUT, {}], "maps[1].method = None: expected 'attention', "),
    ([{"method": "roll out"}], "maps[0].method = 'roll out': expected 'attention', "),
    ([{"method": ["rollout"]}], "maps[0].method = ['rollout']: expected 'attention', "),
    ([ROLLOUT | {"params": {}}], "maps[0] has no 'params': expected 'method' or 'parameters'"),
    ([{"method": "pooling_attention"}], "pooling_attention: this model does not pool by attention"),
]
BAD_PARAMETERS: list[tuple[str, Any, str]] = [
    ("rollout", [1], "parameters = [1]: expected an object with 'head_fusion', "),
    ("rollout", {"heads": 1}, "parameters has no 'heads': expected 'head_fusion', "),
    ("rollout", {"head_fusion": "median"}, "head_fusion = 'median': expected 'mean', 'max' or 'min'"),
    ("rollout", {"head_fusion": DEEP}, "[[...]]]]]]]: expected 'mean', 'max' or 'min'"),
    ("rollout", {"discard_ratio": 1}, "discard_ratio = 1: expected a number from 0 to 0.99"),
    ("rollout", {"discard_ratio": False}, "discard_ratio = False: expected a number"),
    ("rollout", {"residual_weight": "0.5"}, "residual_weight = '0.5': expected a number from 0 to 1"),
    ("rollout", {"residual_weight": LARGE}, "residual_weight = 1000"),
    ("rollout", {"reference": "captum"}, "reference = 'captum': expected 'vit-explain'"),
    ("rollout", {"reference": "vit-explain", "start_layer": 2}, "vit-explain knows only 0.5 and 0"),
    ("attention", {"layer": 6}, "layer = 6: expected a whole number from -6 to 5"),
    ("attention", {"layer": -7}, "layer = -7: expected a whole number from -6 to 5"),
    ("attention", {"layer": 1.5}, "layer = 1.5: expected a whole number"),
    ("attention", {"head": 6}, "head = 6: expected a whole number from -6 to 5"),
    ("attention", {"head": "first"}, "head = 'first': expected 'mean', 'max' or 'min'"),
    ("attention", {"query": [16, 0]}, "query[0] = 16: expected a whole number from 0 to 15"),
    ("attention", {"query": [0, 1, 2]}, "query = [0, 1, 2]: expected [row, column] of a patch"),
    ("attention", {"query": "register 5"}, "query = 'register 5': expected 'cls', 'register 1', "),
    ("attention", {"query": 261}, "query = 261: expected a whole number from 0 to 260"),
    ("attention", {"query": {"row": 1}}, "query = {'row': 1}: expected a whole number"),
    ("attention_flow", {"most_patches": 10**6}, "most_patches = 1000000: expected a whole number from 1 to 1024"),
    ("relevance", {"target": "unicorn"}, "target 'unicorn': this model has no such class"),
    ("relevance", {"target": 10}, "target = 10: expected a whole number from 0 to 9"),
    ("relevance", {"target": "x" * 2**19}, "expected a label of the model"),
    ("relevance", {"target": {"text": 5}}, "target.text = 5: expected 1 to 1,000 characters"),
    ("relevance", {"target": {}}, "target: an empty object; expected"),
    ("relevance", {"target": {"class": 3}}, "target: an object with 'class'; expected"),
    ("relevance", {"target": {"text": "a cat", "against": 3}}, "target: an object with 'text' or 'against'; expected"),
    (
        "relevance",
        {"target": {"class": 3, "against": 3}},
        "target: class and against are the same; expected two classes",
    ),
    ("relevance", {"target": {"class": 3, "against": 4, "margin": True}}, "expected either against, another class, or"),
    ("relevance", {"target": {"margin": 1}}, "target.margin = 1: expected true or false"),
    ("relevance", {"target": {"like": "/etc/passwd"}}, "target.like = '/etc/passwd': expected example:NAME"),
    ("relevance", {"target": {"like": {"path": "/etc/passwd"}}}, "= '/etc/passwd': not uploaded here"),
    ("relevance", {"target": {"like": "example:rocket.jpg", "patch": [16, 0]}}, "patch (16, 0): this model has"),
    ("relevance", {"target": {"patch": 3}}, "target.patch = 3: expected [row, column] of a patch"),
    ("relevance", {"target": {"patch": [99, 0]}}, "target.patch[0] = 99: expected a whole number from 0 to"),
    ("relevance", {"target": {"text": "a cat"}}, "gives classes, not the features that a text"),
]
BAD_STYLES: list[tuple[dict[str, Any], str]] = [
    ({"method": "heat"}, "method = 'heat': expected 'attention', "),
    ({"parameters": {"layer": 6}}, "parameters.layer = 6"),
    ({"colormap": "jet"}, "colormap = 'jet': expected 'inferno', "),
    ({"scale": "ranks"}, "scale = 'ranks': expected 'linear', 'robust', 'log', 'rank' or 'zero'; did you mean 'rank'?"),
    ({"percentiles": [98, 2]}, "percentiles = [98, 2]: expected two numbers from 0 to 100, the lower one first"),
    ({"percentiles": "2"}, "percentiles = '2': expected two numbers"),
    ({"opacity": 1.01}, "opacity = 1.01: expected a number from 0 to 1"),
    ({"opacity": None}, "opacity = None: expected a number from 0 to 1"),
    ({"smooth": 1}, "smooth = 1: expected true or false"),
    ({"grid": "no"}, "grid = 'no': expected true or false"),
    ({"low": LARGE}, "low = 1000"),
    ({"low": 2, "high": 1}, "low = 2.0 and high = 1.0: expected finite numbers, low at most high"),
]


def refused(client: Client, phrase: str, endpoint: str, **said: Any) -> None:
    with pytest.raises((AppError, ValueError)) as error:
        client.predict(**said, api_name=endpoint)
    message = str(error.value)
    assert phrase in message
    # One sentence, however much was said.
    assert len(message) < 500 and "Traceback" not in message and str(ROOT) not in message


def test_a_bad_call_is_told_in_one_sentence_and_the_next_good_one_is_answered(
    client: Client, found: dict[str, Any]
) -> None:
    key = found["id"]
    for bad, phrase in BAD_ANALYSES:
        refused(client, phrase, "/analyze", **{"image": PHOTO, **bad})
    for wanted, phrase in BAD_MAPS:
        refused(client, phrase, "/maps", id=key, maps=wanted)
    for method, said, phrase in BAD_PARAMETERS:
        refused(client, phrase, "/maps", id=key, maps=[ROLLOUT, {"method": method, "parameters": said}])
    for look, phrase in BAD_STYLES:
        refused(client, phrase, "/overlay", id=key, **look)
    assert maps(client, key, ROLLOUT)[0]["method"] == "rollout"


def test_what_is_no_picture_is_refused_by_its_name(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "not a cat.jpg"
    path.write_text("meow")
    refused(client, "not a cat.jpg: a text file; expected a JPEG", "/analyze", image=handle_file(str(path)))


def test_an_id_that_was_never_given_opens_nothing(client: Client, found: dict[str, Any], address: str) -> None:
    key = found["id"]
    # Whoever has the id can ask, from wherever.
    assert maps(Client(address, verbose=False), key, ROLLOUT)
    near = key[:-1] + ("A" if key[-1] != "A" else "B")
    for guess in (near, key.swapcase(), key[:-1], "", key + " ", "../" + key, None, 0, [key], {"id": key}):
        refused(client, "no analysis of this id", "/maps", id=guess, maps=[ROLLOUT])
    refused(client, "ask /analyze for one", "/overlay", id=near)


def called(address: str, endpoint: str, body: bytes, headers: dict[str, str] = JSON) -> httpx.Response:
    return httpx.post(f"{address}/gradio_api/{endpoint}", content=body, headers=headers, timeout=60)


def answer_of(address: str, endpoint: str, body: bytes) -> str:
    """What plain HTTP gets: the event's answer."""
    event = called(address, endpoint, body).json()["event_id"]
    return httpx.get(f"{address}/gradio_api/{endpoint}/{event}", timeout=60).text


@pytest.mark.parametrize(
    ("endpoint", "body", "status", "phrase"),
    [
        ("call/analyze", b"", 400, "data = None; expected a list of 4: image, model, fit, resolution"),
        ("call/analyze", b"{meow}", 400, "no JSON"),
        ("call/analyze", b"[1]", 400, "data = None; expected a list of 4"),
        ("call/analyze", b'{"data": {"image": 1}}', 400, "data = {'image': 1}; expected a list of 4"),
        ("call/analyze", b'{"data": [1, 2, 3]}', 400, "data = 3 values; expected a list of 4"),
        ("call/analyze", b'{"data": [1, 2, 3, 4, 5]}', 400, "data = 5 values; expected a list of 4"),
        ("call/analyze", b'{"data": [' + b"9" * 5000 + b", 1, 1, 1]}", 400, "a number of thousands of digits"),
        ("call/analyze", b'{"data": ' + b"[" * 1000 + b"]" * 1000 + b"}", 400, f"more than {MAX_DEPTH} deep"),
        ("call/analyze", b"[" * 100_000, 400, f"more than {MAX_DEPTH} deep"),
        ("call/analyze", b'{"data": "' + b"x" * JSON_BYTES + b'"}', 413, "more than 1,048,576 bytes"),
        ("call/analyze", b'{"data": [{"path": 5, "meta": 5}, 1, 1, 1]}', 400, "expected a file that was uploaded here"),
        ("call/analyze", b'{"data": [{"path": "\\u0000"}, 1, 1, 1]}', 400, "not uploaded here"),
        ("call/v2/analyze", b'{"imag": 1}', 400, "/analyze has no 'imag': expected 'image', "),
        ("call/v2/analyze", b'{"fit": "crop"}', 400, "/analyze: 'image' is missing"),
        ("call/v2/maps", b"{}", 400, "/maps: 'id', 'maps' are missing"),
        ("call/nothing", b'{"data": []}', 404, "endpoint 'nothing': expected 'models', "),
        ("call/v2/nothing", b"{}", 404, "endpoint 'nothing': expected 'models', "),
        ("run/analyze", b'{"data": [1, 2, 3, 4]}', 404, "expected a POST to /gradio_api/call/analyze"),
        ("api/models", b'{"data": []}', 404, "expected a POST to /gradio_api/call/models"),
        ("queue/join", b'{"data": [], "fn_index": 9999, "session_hash": "page"}', 422, "fn_index = 9999"),
    ],
)
def test_a_request_that_cannot_be_served_is_told_at_once(
    address: str, endpoint: str, body: bytes, status: int, phrase: str
) -> None:
    answer = called(address, endpoint, body)
    assert (answer.status_code, phrase in answer.text) == (status, True), answer.text
    assert len(answer.text) < 500


def test_a_form_is_no_call(address: str) -> None:
    answer = called(address, "call/models", b"data=[]", {"Content-Type": "application/x-www-form-urlencoded"})
    assert answer.status_code == 415 and "Content-Type: application/json" in answer.json()["detail"]


def test_a_file_that_was_not_uploaded_is_not_read_wherever_it_is_said(address: str, found: dict[str, Any]) -> None:
    own = {"path": str(EXAMPLE), "meta": {"_type": "gradio.FileData"}}
    for body in ({"id": own, "maps": []}, {"id": found["id"], "maps": [{"method": own}]}):
        answer = called(address, "call/v2/maps", json.dumps(body).encode())
        assert answer.status_code == 400 and "not uploaded here" in answer.json()["detail"]


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 400, "null", '"a"', "[]", "{}"])
def test_no_word_of_json_is_a_number_in_range_unless_it_is_one(address: str, found: dict[str, Any], word: str) -> None:
    body = f'{{"id": "{found["id"]}", "opacity": {word}}}'
    answer = answer_of(address, "call/v2/overlay", body.encode())
    assert answer.startswith("event: error") and "opacity = " in answer and "a number from 0 to 1" in answer


def test_health_is_told_without_the_queue(address: str) -> None:
    answer = httpx.get(f"{address}/health", timeout=60)
    assert answer.json() == {"status": "ok", "version": version("vitviz"), "model": BUNDLED[0]}
    assert answer.headers["Content-Type"] == "application/json"


# On a bench of its own.


@pytest.fixture
def upload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A picture among the uploads, as Gradio tells of one."""
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    Image.effect_noise((48, 32), 80).convert("RGB").save(tmp_path / "noise.png")
    return {"path": str(tmp_path / "noise.png")}


Make = Callable[..., Model]


def test_what_nobody_expected_is_told_to_the_log_only(
    make_model: Make, upload: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench = AnalysisService(make_model())

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("/home/secret")

    monkeypatch.setattr(bench, "analyze", broken)
    with pytest.raises(AppError) as error:
        Api(bench).analyze(upload)
    assert error.value.message == UNEXPECTED and not error.value.print_exception
    assert "/home/secret" in caplog.text and "/analyze" in caplog.text


def test_a_model_that_has_to_be_downloaded_is_opened_first(
    make_model: Make, upload: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "is_cached", lambda repository: False)
    with pytest.raises(AppError, match=r"'dino_vits16': not on this server yet; /open downloads it \(87 MB\)"):
        Api(AnalysisService(make_model())).analyze(upload, "dino_vits16")


def test_a_model_that_cannot_be_opened_says_so_in_the_words_of_the_page(
    make_model: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = AnalysisService(make_model())

    def offline(*_: object) -> None:
        raise vitviz.CheckpointError("timm/vit: not completely in the cache (HF_HUB_CACHE), and offline")

    monkeypatch.setattr(bench, "model", offline)
    with pytest.raises(AppError) as error:
        Api(bench).open("dino_vits16")
    assert error.value.message == "timm/vit: not completely in the cache (HF_HUB_CACHE), and offline"


def test_the_model_of_the_start_is_asked_by_its_name(make_model: Make, upload: Any) -> None:
    endpoints = Api(AnalysisService(make_model(classes=0, cls_token=False, register_tokens=2, pooling="mean")))
    assert endpoints.models()[0]["name"] == "small"
    answer = endpoints.analyze(upload, "small", "native")
    assert (answer["model"], answer["predictions"]) == ("small", [])
    assert (answer["grid"], answer["prefix"]) == ((4, 6), ["register 1", "register 2"])
    drawn = endpoints.maps(answer["id"], [{"method": "attention", "parameters": {"query": "register 2"}}])
    assert "register 2" in drawn[0]["description"]
    with pytest.raises(AppError, match=r"parameters\.target = 1: this model has no classifier"):
        endpoints.maps(answer["id"], [{"method": "relevance", "parameters": {"target": 1}}])


def test_where_only_the_first_model_may_be_opened_no_other_is_offered(make_model: Make, upload: Any) -> None:
    endpoints = Api(AnalysisService(make_model(), ServerSettings(models="start")))
    assert [each["name"] for each in endpoints.models()] == ["small"]
    with pytest.raises(AppError, match="model = 'vitviz-cifar10': expected a name that /models lists"):
        endpoints.analyze(upload, "vitviz-cifar10")


def test_maps_that_take_too_long_end(make_model: Make, upload: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoints = Api(AnalysisService(make_model()))
    key = endpoints.analyze(upload)["id"]
    now = iter(range(0, 1000, 25))
    monkeypatch.setattr(api, "time", SimpleNamespace(monotonic=lambda: next(now)))
    with pytest.raises(AppError, match="attention_flow: stopped after 60 seconds at 2 of 25 steps"):
        endpoints.maps(key, [{"method": "attention_flow"}])


def test_a_map_that_takes_long_is_computed_once(make_model: Make, upload: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoints = Api(AnalysisService(make_model()))
    key = endpoints.analyze(upload)["id"]
    before = endpoints.maps(key, [{"method": "attention_flow", "parameters": {"most_patches": 6}}])
    monkeypatch.setattr(Analysis, "map", lambda *_, **__: pytest.fail("computed again"))
    assert endpoints.maps(key, [{"method": "attention_flow", "parameters": {"most_patches": 6}}]) == before
    assert endpoints.overlay(key, "attention_flow", {"most_patches": 6})["orig_name"] == "attention_flow.png"


def test_an_upload_is_known_by_its_address_too(make_model: Make, upload: Any) -> None:
    address = f"https://example.org/vit/gradio_api/file={upload['path']}"
    assert Api(AnalysisService(make_model())).analyze({"path": address})["model"] == "small"


def test_tools_without_their_package_are_refused_with_the_way_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADIO_MCP_SERVER", "True")
    monkeypatch.setattr(launch, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"GRADIO_MCP_SERVER=true: this needs mcp: pip install 'vitviz\[mcp\]'"):
        launch_options()


@pytest.fixture(scope="module")
def served(bundled: Model) -> Iterator[tuple[Any, str]]:
    """The app in this process, behind a proxy, with tools where these are installed."""
    demo = build_demo(bundled)
    app, address, _ = demo.launch(
        **launch_options(), prevent_thread_lock=True, quiet=True, root_path="/vit", mcp_server=launch.has_tools()
    )
    yield app, address.rstrip("/")
    close(demo)


def test_behind_a_proxy_health_and_calls_are_where_the_page_is(served: tuple[Any, str]) -> None:
    app, address = served
    # A proxy may hand on the whole path, or what is behind its own.
    for path in ("/health", "/vit/health"):
        assert httpx.get(f"{address}{path}", timeout=60).json()["status"] == "ok"
    event = called(address, "call/v2/models", b"{}").json()["event_id"]
    answer = httpx.get(f"{address}/gradio_api/call/v2/models/{event}", timeout=60).text
    assert answer.startswith("event: complete") and BUNDLED[0] in answer
    # Of a call without a session, nothing is kept once its answer is fetched.
    until = time.monotonic() + 30
    while event in app.state_holder.session_data and time.monotonic() < until:
        time.sleep(0.05)
    assert event not in app.state_holder.session_data and event not in app.state_holder.time_last_used


def test_the_endpoints_are_tools(served: tuple[Any, str]) -> None:
    mcp = pytest.importorskip("mcp", reason="the extra mcp is not installed")
    from mcp.client.streamable_http import streamable_http_client

    async def talk() -> None:
        async with (
            streamable_http_client(f"{served[1]}/gradio_api/mcp/") as (reading, writing, _),
            mcp.ClientSession(reading, writing) as session,
        ):
            await session.initialize()
            tools = {tool.name: tool for tool in (await session.list_tools()).tools}
            assert {f"/{name}" for name in tools} == set(ENDPOINTS)
            for tool in tools.values():
                assert tool.description and all(part["description"] for part in tool.inputSchema["properties"].values())
            picture = b64encode(EXAMPLE.read_bytes()).decode()
            told = await session.call_tool("analyze", {"image": f"data:image/jpeg;base64,{picture}"})
            key = literal_eval(told.content[0].text)["id"]
            drawn = await session.call_tool("overlay", {"id": key, "method": "rollout"})
            assert Image.open(io.BytesIO(b64decode(drawn.content[0].data))).size == (900, 599)
            wrong = await session.call_tool("maps", {"id": "guess", "maps": [ROLLOUT]})
            assert wrong.isError and "no analysis of this id" in wrong.content[0].text

    # Playwright's loop may run in this one already.
    with ThreadPoolExecutor(1) as other_thread:
        other_thread.submit(asyncio.run, talk()).result()


# What is written of it.


def lines(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", DOCUMENTATION.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def at(address: str, text: str) -> str:
    assert "http://127.0.0.1:7860" in text and "assets/chelsea.jpg" in text
    return text.replace("http://127.0.0.1:7860", address).replace("assets/chelsea.jpg", str(EXAMPLE))


def test_the_documented_lines_of_python_run(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(at(address, lines("python")), "api.md", "exec"), {})
    said = capsys.readouterr().out
    assert "cat" in said and "Attention rollout for the CLS token" in said and "rollout.png" in said


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_documented_lines_of_the_shell_run(address: str) -> None:
    run = subprocess.run(["bash", "-e", "-c", at(address, lines("sh"))], capture_output=True, text=True, timeout=60)
    assert '"status": "ok"' in run.stdout and "event: complete" in run.stdout and '"label": "cat"' in run.stdout
