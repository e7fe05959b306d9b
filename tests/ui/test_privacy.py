"""What a server keeps to itself: pictures and maps, its own files; and what a checkpoint would smuggle in."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from tests.support.api_calls import PLAIN
from tests.support.example import ROOT
from tests.support.makers import MakeModel
from tests.support.visits import Visit, on_loop
from vitviz.ui.facts import model_facts
from vitviz.ui.handlers import Handlers
from vitviz.ui.pictures import Upload
from vitviz.ui.progress_reports import ExpiredError
from vitviz.ui.runs import PageRuns
from vitviz.ui.server.explorer_files import PAGE, PICTURE
from vitviz.ui.service import AnalysisService

HOSTILE = '<img src=x onerror="alert(1)">'


# Of one visitor to another.


def test_a_guessed_id_gets_no_file_of_an_analysis(service: AnalysisService, picture: Upload) -> None:
    key, _ = on_loop(service.analyze(service.models.start, picture, "squash"))
    # Of 128 bits.
    assert re.fullmatch(r"[\w-]{22}", key)
    wrong = [key[:-1], key + "A", key[::-1], key.swapcase(), "", "*", "../" + key, "%" + key, key[:-1] + "\0"]
    visit = Visit(PageRuns(Handlers(service)))
    for guess in wrong:
        for name in ("layer 0", "rollout", PAGE, PICTURE):
            with pytest.raises(ExpiredError):
                on_loop(service.file(guess, name))
        assert visit.ask("map", uid=guess, method="rollout") == {"expired": True}
        assert visit.ask("describe", uids=[guess], state={})["python"] == ""


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


def test_characters_that_turn_text_round_are_escaped(make_model: MakeModel) -> None:
    labels = ("cat\u200b", *"bcde")
    turned = replace(make_model(), name="a\u202eb", labels=labels, card={"\u2066": "\u0000"})
    facts = model_facts("", "mine\u202e.pth", turned)
    assert (facts["name"], facts["title"], facts["labels"][0]) == ("a\\u202eb", "mine\\u202e.pth", "cat\\u200b")
    assert ["\\u2066", "\\x00"] in facts["card"]
