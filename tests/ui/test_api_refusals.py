"""What the public API refuses is told in one sentence, and the next good call is answered."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import pytest
from gradio_client import Client, handle_file
from gradio_client.exceptions import AppError

from tests.support.api_calls import PHOTO, PLAIN, ROLLOUT, answer_of, maps, post_json
from tests.support.api_calls import endpoints as endpoints_of
from tests.support.example import EXAMPLE, ROOT
from tests.support.visits import on_loop
from vitviz import Model
from vitviz.system.strangers import JSON_BYTES
from vitviz.ui.service import AnalysisService
from vitviz.weights import BUNDLED

pytestmark = pytest.mark.process

LARGE, DEEP = 10**400, json.loads("[" * 24 + "]" * 24)
BAD_ANALYSES: list[tuple[dict[str, Any], str]] = [
    ({"image": None}, "image = None: expected a file"),
    ({"image": "cat.jpg"}, "image = 'cat.jpg': expected a file that was uploaded"),
    ({"image": 5}, "image = 5"),
    ({"image": {"path": "/etc/passwd"}}, "image = '/etc/passwd': not uploaded here"),
    ({"image": handle_file("http://127.0.0.1/cat.jpg")}, "image = 'http://127.0.0.1/cat.jpg': not uploaded here"),
    ({"model": "vitviz-photo"}, "did you mean 'vitviz-photos'"),
    ({"model": ["dino_vits16"]}, "model = ['dino_vits16']: expected a name that /models lists"),
    ({"model": "hf:owner/name"}, "model = 'hf:owner/name': expected a name that /models lists"),
    ({"model": "../../etc/passwd"}, "model = '../../etc/passwd': expected a name"),
    ({"model": "x" * 2**16}, "xx...xx"),
    ({"fit": "stretch"}, "fit = 'stretch': expected 'crop', 'squash' or 'native'"),
    ({"fit": {}}, "fit = {}: expected 'crop'"),
    ({"resolution": "64"}, "resolution = '64': expected a whole number"),
    ({"resolution": True}, "resolution = True: expected a whole number"),
    ({"resolution": 33}, "resolution = 33: expected a multiple of the patch's 8 pixels: 32 or 40"),
    ({"resolution": -32}, "resolution = -32: expected a whole number from 1"),
    ({"resolution": LARGE}, "resolution = 1000"),
    ({"resolution": 4096}, "262,149 tokens take 8.5e+14 operations; expected at most 9.0e+12"),
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
    ("rollout", {"reference": "captum"}, "reference = 'captum': expected 'vit-explain'"),
    ("rollout", {"reference": "vit-explain", "start_layer": 2}, "vit-explain knows only 0.5 and 0"),
    ("attention", {"layer": 8}, "layer = 8: expected a whole number from -8 to 7"),
    ("attention", {"layer": 1.5}, "layer = 1.5: expected a whole number"),
    ("attention", {"head": 6}, "head = 6: expected a whole number from -6 to 5"),
    ("attention", {"head": "first"}, "head = 'first': expected 'mean', 'max' or 'min'"),
    ("attention", {"query": [14, 0]}, "] of a patch, a square of the picture, from [0, 0] to [13, 13]"),
    ("attention", {"query": [0, 1, 2]}, "query = [0, 1, 2]: expected [row, column] of a patch"),
    ("attention", {"query": "register 5"}, "query = 'register 5': expected 'cls', 'register 1', "),
    ("attention", {"query": 201}, "query = 201: expected a whole number from 0 to 200"),
    ("attention", {"query": {"row": 1}}, "query = {'row': 1}: expected a whole number"),
    ("attention_flow", {"most_patches": 10**6}, "most_patches = 1000000: expected a whole number from 1 to 1024"),
    ("relevance", {"target": "unicorn"}, "target 'unicorn': this model has no such class"),
    ("relevance", {"target": 108}, "target = 108: expected a whole number from 0 to 107"),
    ("relevance", {"target": "x" * 2**16}, "expected a label of the model"),
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
    ("relevance", {"target": {"patch": [99, 0]}}, "target.patch = [99, 0]: expected [row, column] of a patch, "),
    ("relevance", {"target": {"text": "a cat"}}, "it reads no texts; expected a network of pictures and texts"),
]
BAD_STYLES: list[tuple[dict[str, Any], str]] = [
    ({"method": "heat"}, "method = 'heat': expected 'attention', "),
    ({"parameters": {"layer": 8}}, "parameters.layer = 8"),
    ({"colormap": "jet"}, "colormap = 'jet': expected 'inferno', "),
    ({"scale": "ranks"}, "scale = 'ranks': expected 'linear', 'robust', 'log', 'rank' or 'zero'; did you mean 'rank'?"),
    ({"percentiles": [98, 2]}, "percentiles = [98, 2]: expected two numbers from 0 to 100, the lower one first"),
    ({"percentiles": "2"}, "percentiles = '2': expected two numbers"),
    ({"opacity": 1.01}, "opacity = 1.01: expected a number from 0 to 1"),
    ({"smooth": 1}, "smooth = 1: expected true or false"),
    ({"low": LARGE}, "low = 1000"),
    ({"low": 2, "high": 1}, "low = 2.0 and high = 1.0: expected finite numbers, low at most high"),
]


Ask = Callable[..., Any]


@pytest.fixture(scope="module")
def endpoints(bundled: Model, tmp_path_factory: pytest.TempPathFactory) -> Ask:
    """Asks endpoints in this process, as the app does once a call has come through its queue."""
    folder = tmp_path_factory.mktemp("uploads")
    (folder / EXAMPLE.name).write_bytes(EXAMPLE.read_bytes())
    api = endpoints_of(AnalysisService(bundled))

    def ask(api_name: str, **said: Any) -> Any:
        if said.get("image") is PHOTO:
            said["image"] = {"path": str(folder / EXAMPLE.name)}
        # The app in this process has another folder of uploads.
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("GRADIO_TEMP_DIR", str(folder))
            return on_loop(getattr(api, api_name.removeprefix("/"))(**said))

    return ask


def refused(ask: Ask, phrase: str, endpoint: str, **said: Any) -> None:
    with pytest.raises((AppError, ValueError)) as error:
        ask(**said, api_name=endpoint)
    message = str(getattr(error.value, "message", error.value))
    assert phrase in message
    # One sentence, however much was said.
    assert len(message) < 500 and "Traceback" not in message and str(ROOT) not in message


def bad_calls(key: str) -> Iterator[tuple[str, dict[str, Any], Any, str]]:
    """Endpoint, arguments, what is wrong with them, and words of the refusal."""
    for bad, phrase in BAD_ANALYSES:
        yield "/analyze", {"image": PHOTO, **bad}, bad, phrase
    for wanted, phrase in BAD_MAPS:
        yield "/maps", {"id": key, "maps": wanted}, wanted, phrase
    for method, said, phrase in BAD_PARAMETERS:
        yield "/maps", {"id": key, "maps": [ROLLOUT, {"method": method, "parameters": said}]}, said, phrase
    for look, phrase in BAD_STYLES:
        yield "/overlay", {"id": key, **look}, look, phrase


def test_a_bad_call_is_told_in_one_sentence(endpoints: Ask) -> None:
    key = endpoints("/analyze", image=PHOTO)["id"]
    for endpoint, said, _, phrase in bad_calls(key):
        refused(endpoints, phrase, endpoint, **said)


def test_the_sentence_comes_through_the_queue_and_the_next_good_call_is_answered(
    client: Client, found: dict[str, Any]
) -> None:
    """What names a file or is long or deep, which the app looks at before the endpoint does, and one call of each."""
    key, asked = found["id"], 0
    seen: set[str] = set()
    for endpoint, said, bad, phrase in bad_calls(key):
        text = json.dumps(bad)
        if endpoint not in seen or "path" in text or "image" in text or len(text) > 400:
            refused(client.predict, phrase, endpoint, **said)
            seen.add(endpoint)
            asked += 1
    assert seen == {"/analyze", "/maps", "/overlay"} and asked >= 12
    assert maps(client, key, ROLLOUT)[0]["method"] == "rollout"


def test_what_is_no_picture_is_refused_by_its_name(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "not a cat.jpg"
    path.write_text("meow")
    refused(client.predict, "not a cat.jpg: a text file; expected a JPEG", "/analyze", image=handle_file(str(path)))


def test_an_id_that_was_never_given_opens_nothing(
    client: Client, endpoints: Ask, found: dict[str, Any], address: str
) -> None:
    # Whoever has the id can ask, from wherever.
    body = json.dumps({"id": found["id"], "maps": [ROLLOUT]})
    assert answer_of(address, "call/v2/maps", body.encode()).startswith("event: complete")
    key = endpoints("/analyze", image=PHOTO)["id"]
    for ask, given in ((client.predict, found["id"]), (endpoints, key)):
        near = given[:-1] + ("A" if given[-1] != "A" else "B")
        refused(ask, "no analysis of this id", "/maps", id=near, maps=[ROLLOUT])
        refused(ask, "ask /analyze for one", "/overlay", id=near)
    for guess in (key.swapcase(), key[:-1], "", key + " ", "../" + key, None, 0, [key], {"id": key}):
        refused(endpoints, "no analysis of this id", "/maps", id=guess, maps=[ROLLOUT])


@pytest.mark.parametrize(
    ("endpoint", "body", "status", "phrase"),
    [
        ("call/analyze", b"", 400, "no JSON"),
        ("call/analyze", b"{meow}", 400, "no JSON"),
        ("call/analyze", b"[1]", 400, "data = None; expected a list of 4"),
        ("call/analyze", b'{"data": {"image": 1}}', 400, "data = {'image': 1}; expected a list of 4"),
        ("call/analyze", b'{"data": [1, 2, 3]}', 400, "data = 3 values; expected a list of 4"),
        ("call/analyze", b'{"data": [1, 2, 3, 4, 5]}', 400, "data = 5 values; expected a list of 4"),
        ("call/analyze", b'{"data": [' + b"9" * 5000 + b", 1, 1, 1]}", 400, "a number of thousands of digits"),
        ("call/analyze", b'{"data": ' + b"[" * 15_000 + b"]" * 15_000 + b"}", 400, "nests too deeply"),
        ("call/analyze", b'{"data": "' + b"x" * JSON_BYTES + b'"}', 413, "more than 131,072 bytes"),
        ("call/analyze", b'{"data": [{"path": 5, "meta": 5}, 1, 1, 1]}', 400, "expected a file that was uploaded here"),
        ("call/analyze", b'{"data": [{"path": "\\u0000"}, 1, 1, 1]}', 400, "not uploaded here"),
        ("call/v2/analyze", b'{"imag": 1}', 400, "/analyze has no 'imag': expected 'image', "),
        ("call/v2/analyze", b'{"fit": "crop"}', 400, "/analyze: 'image' is missing"),
        ("call/v2/maps", b"{}", 400, "/maps: 'id', 'maps' are missing"),
        ("call/nothing", b'{"data": []}', 404, "endpoint 'nothing': expected 'models', "),
        ("call/v2/nothing", b"{}", 404, "endpoint 'nothing': expected 'models', "),
        (
            "queue/join",
            b'{"data": [], "fn_index": 9999, "session_hash": "page"}',
            422,
            "endpoint 9999: expected 'models', ",
        ),
        ("queue/join", b'{"data": [], "fn_index": 1}', 422, "session_hash = None: expected"),
    ],
)
def test_a_request_that_cannot_be_served_is_told_at_once(
    address: str, endpoint: str, body: bytes, status: int, phrase: str
) -> None:
    answer = post_json(address, endpoint, body)
    assert (answer.status_code, phrase in answer.text) == (status, True), answer.text
    assert len(answer.text) < 500


def test_a_form_is_no_call(address: str) -> None:
    answer = post_json(address, "call/models", b"data=[]", {"Content-Type": "application/x-www-form-urlencoded"})
    assert answer.status_code == 400 and "the body is no JSON" in answer.json()["detail"]


def test_a_file_that_was_not_uploaded_is_not_read_wherever_it_is_said(address: str, found: dict[str, Any]) -> None:
    own = {"path": str(EXAMPLE), "meta": {"_type": "gradio.FileData"}}
    for body in ({"id": own, "maps": []}, {"id": found["id"], "maps": [{"method": own}]}):
        answer = post_json(address, "call/v2/maps", json.dumps(body).encode())
        assert answer.status_code == 400 and "not uploaded here" in answer.json()["detail"]


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 400, "null", '"a"', "[]", "{}"])
def test_no_word_of_json_is_a_number_in_range_unless_it_is_one(address: str, found: dict[str, Any], word: str) -> None:
    body = f'{{"id": "{found["id"]}", "opacity": {word}}}'
    answer = answer_of(address, "call/v2/overlay", body.encode())
    assert answer.startswith("event: error") and "opacity = " in answer and "a number from 0 to 1" in answer


def test_health_is_told_without_the_queue(address: str) -> None:
    answer = httpx.get(f"{address}/health", **PLAIN)
    assert answer.json() == {"status": "ok", "version": version("vitviz"), "model": BUNDLED[0]}
    assert answer.headers["Content-Type"] == "application/json"
