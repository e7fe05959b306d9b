"""What a server keeps to itself: pictures and maps, its own files; and what a checkpoint would smuggle in."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import httpx
import pytest

from tests.support.api_calls import PLAIN
from tests.support.example import ROOT
from tests.support.makers import MakeModel
from tests.support.visits import STATE, Visit, on_loop
from vitviz import Model
from vitviz.ui.explorer.saved_page import whole_page
from vitviz.ui.facts import model_facts
from vitviz.ui.handlers import Handlers
from vitviz.ui.pictures import Upload
from vitviz.ui.progress_reports import ExpiredError
from vitviz.ui.runs import PageRuns
from vitviz.ui.server.explorer_files import PAGE, PICTURE
from vitviz.ui.service import AnalysisService

HOSTILE = '<img src=x onerror="alert(1)">'


# Of one visitor to another.


@pytest.mark.parametrize("name", ["layer 0", "rollout", PAGE, PICTURE])
def test_a_guessed_id_gets_no_file_of_an_analysis(make_model: MakeModel, picture: Upload, name: str) -> None:
    bench = AnalysisService(make_model())
    key, _ = on_loop(bench.analyze(bench.start, picture, "squash"))
    wrong = [key[:-1], key + "A", key[::-1], key.swapcase(), "", "*", "../" + key, "%" + key, key[:-1] + "\0"]
    visit = Visit(PageRuns(Handlers(bench)))
    for guess in wrong:
        with pytest.raises(ExpiredError):
            on_loop(bench.file(guess, name))
        assert visit.ask("map", uid=guess, method="rollout") == {"expired": True}
        assert visit.ask("describe", uids=[guess], state={})["python"] == ""


@pytest.mark.slow
def test_ids_are_of_128_bits_and_never_twice(make_model: MakeModel, picture: Upload) -> None:
    bench = AnalysisService(make_model())
    keys = {on_loop(bench.analyze(bench.start, picture, "squash"))[0] for _ in range(20)}
    assert len(keys) == 20 and all(re.fullmatch(r"[\w-]{22}", key) for key in keys)


def test_the_picture_that_is_analysed_is_the_visitors_own(address: str) -> None:
    """Ways to make the server read a file that was not uploaded to it."""
    own = [str(ROOT / "app.py"), str(ROOT / "assets" / "rocket.jpg")]
    number = 0
    for path in ("/etc/passwd", "../../etc/passwd", "/proc/self/environ", *own):
        meta = {"meta": {"_type": "gradio.FileData"}}
        file = {"path": path, "orig_name": "mine.png"}
        for part in ({"own": {"files": [file]}}, {"own": {"files": [file | meta]}}):
            number += 1
            request = {"page": "a" * 22, "number": number, "kind": "analyze", "state": STATE, "index": 0, **part}
            told = httpx.post(f"{address}/run", json=request, **PLAIN).text
            assert "not uploaded here" in told and "predictions" not in told, told
            assert "root:" not in told and "build_demo" not in told and "Traceback" not in told


# Of the server.

SECRETS = [
    "/etc/passwd",
    "/proc/self/environ",
    str(ROOT / "app.py"),
    str(ROOT / "assets" / "chelsea.jpg"),
    "app.py",
    "../../../../etc/passwd",
    "..%2f..%2f..%2f..%2fetc%2fpasswd",
    "%2e%2e/%2e%2e/etc/passwd",
    "{cache}/../../etc/passwd",
    "{cache}/%2e%2e/%2e%2e/etc/passwd",
    "{cache}",
    "{cache}/",
    "file:///etc/passwd",
    "http://127.0.0.1/",
    "//etc/passwd",
    "/etc/passwd%00.png",
]


@pytest.fixture(scope="module")
def cache(address: str) -> str:
    """Where the app keeps files, as an upload is told."""
    path: str = httpx.post(f"{address}/upload?name=a.png", content=b"x", **PLAIN).json()["path"]
    return str(Path(path).parents[1])


@pytest.mark.parametrize("path", SECRETS)
@pytest.mark.parametrize("route", ["/gradio_api/file=", "/file=", "/gradio_api/file/", "/static/", "/made/", "/files/"])
def test_no_route_serves_a_file_outside_its_folder(address: str, cache: str, route: str, path: str) -> None:
    answer = httpx.get(f"{address}{route}{path.format(cache=cache)}", follow_redirects=True, **PLAIN)
    assert answer.status_code in (400, 403, 404, 405, 500)
    assert "root:" not in answer.text and "PATH=" not in answer.text and "Traceback" not in answer.text
    assert "build_demo" not in answer.text


def test_the_page_names_no_place_but_its_cache_and_nothing_of_the_environment(address: str, cache: str) -> None:
    page = httpx.get(f"{address}/", **PLAIN).text + httpx.get(f"{address}/config", **PLAIN).text
    for secret in (str(ROOT), os.environ["PATH"]):
        assert secret not in page.replace(cache, "")


# What a checkpoint or a file is called.


class Elements(HTMLParser):
    """The elements that a text makes where it is read as HTML."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(tag)


@pytest.fixture
def hostile(make_model: MakeModel) -> Model:
    model = make_model()
    labels = tuple(f"{HOSTILE} {index} ![](x) [a](b)" for index in range(model.network.config.classes))
    return replace(model, name=HOSTILE, labels=labels, card={"data": HOSTILE, HOSTILE: "yes"})


def test_what_a_checkpoint_calls_its_classes_is_text(hostile: Model, picture: Upload) -> None:
    bench = AnalysisService(hostile)
    _, analysis = on_loop(bench.analyze(hostile, Upload(picture.path, HOSTILE)))
    page, plain = (whole_page(analysis, title, name=title) for title in (HOSTILE, "plain"))
    assert Elements(page).found == Elements(plain).found and HOSTILE not in page


def test_characters_that_turn_text_round_are_escaped(hostile: Model) -> None:
    turned = replace(hostile, name="a\u202eb", labels=("cat\u200b", *hostile.labels[1:]), card={"\u2066": "\u0000"})
    facts = model_facts("", "mine\u202e.pth", turned)
    assert (facts["name"], facts["title"], facts["labels"][0]) == ("a\\u202eb", "mine\\u202e.pth", "cat\\u200b")
    assert ["\\u2066", "\\x00"] in facts["card"]
