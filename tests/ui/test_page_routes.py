"""The routes of the page: files, maps, uploads and runs, each by a request."""

from __future__ import annotations

import asyncio
import html
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from safetensors.torch import load
from starlette.applications import Starlette
from starlette.testclient import TestClient

import vitviz
from tests.support.example import EXAMPLE
from tests.support.visits import PAGE
from tests.support.waiting import HANG_SECONDS
from vitviz import Analysis
from vitviz.errors.kinds import VitvizError
from vitviz.system.strangers import FILE_BYTES
from vitviz.ui import facts, page_routes
from vitviz.ui.explorer.app_page import static_version
from vitviz.ui.handlers import Handlers
from vitviz.ui.image_bytes import as_png
from vitviz.ui.packs import features_packs, pack
from vitviz.ui.page_routes import PageRoutes
from vitviz.ui.previews import Previews
from vitviz.ui.server import explorer_files
from vitviz.ui.server.explanations import refusal
from vitviz.ui.service import AnalysisService
from vitviz.ui.state import PageState
from vitviz.weights import resources

JSON = {"content-type": "application/json"}


@pytest.fixture
def handlers(service: AnalysisService) -> Handlers:
    return Handlers(service)


@pytest.fixture
def client(handlers: Handlers, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    # On a slow machine, too.
    monkeypatch.setattr(page_routes, "SENTENCE_SECONDS", HANG_SECONDS)
    errors: Any = {VitvizError: lambda _, error: refusal(error)}
    # Without an event loop that stays, each request would have one of its own.
    with TestClient(Starlette(routes=PageRoutes(handlers).routes, exception_handlers=errors)) as found:
        yield found


def test_the_page_begins_with_an_analysis_and_its_files_never_change(client: TestClient, uid: str) -> None:
    page = client.get("/")
    assert page.headers["cache-control"] == "no-cache" and page.headers["content-encoding"] == "gzip"
    start = json.loads(page.text.partition('id="start">')[2].partition("</script>")[0])
    assert start["views"][0]["uid"] == uid and "files" not in start
    for name in ("page.js", "page.css"):
        address = f"static/{static_version()}/{name}"
        assert f'"{address}"' in page.text and "immutable" in client.get(address).headers["cache-control"]
    # A link is shown with a picture, whose address is whole; a proxy says under which name it is reached.
    for headers, start in (
        ({}, "http://testserver"),
        ({"x-forwarded-host": "vit.example.org"}, "http://vit.example.org"),
    ):
        picture = f"{start}/static/{static_version()}/preview.jpg"
        assert f'property="og:image" content="{picture}"' in client.get("/", headers=headers).text
    preview = client.get(f"static/{static_version()}/preview.jpg")
    assert Image.open(io.BytesIO(preview.content)).size == (1200, 630)
    for wrong in ("static/0/page.js", f"static/{static_version()}/app.py"):
        assert client.get(wrong).status_code == 404


def test_what_a_page_begins_with_is_found_once_while_its_analysis_is_kept(
    client: TestClient, handlers: Handlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start_id() -> str:
        found: str = json.loads(client.get("/").text.partition('id="start">')[2].partition("</script>")[0])["views"][0][
            "uid"
        ]
        return found

    first = start_id()
    with monkeypatch.context() as patch:
        patch.setattr(handlers, "start", lambda: pytest.fail("found again"))
        assert start_id() == first
    handlers.service.cache.drop(first)
    assert start_id() != first


def meta(client: TestClient, query: str) -> dict[str, str]:
    """The properties of the preview of a link."""
    found = re.findall(r'<meta property="og:(\w+)" content="([^"]*)">', client.get(f"/?{query}").text)
    return {name: html.unescape(value) for name, value in found}


def test_a_link_to_an_example_is_shown_with_its_answer_and_its_map(
    client: TestClient, handlers: Handlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = "example=coffee.jpg&method=rollout&p.discard_ratio=0.5&p.query=cls"
    found = vitviz.analyze(resources("assets") / "coffee.jpg", handlers.service.models.start)
    [best], known = found.predictions(1), len(found.model.labels)
    said = f"the {known} things it knows: {best.label}"
    about = meta(client, query)
    assert said in about["title"] and f"{best.probability:.0%}" in about["title"]
    assert about["image"] == f"http://testserver/preview?{query}"
    pictures = []
    for link in (query, f"{query}&colormap=viridis", f"{query}&patches-off=1.1;1.2"):
        answer = client.get(about["image"].replace(query, link))
        assert answer.headers["content-type"] == "image/jpeg"
        pictures.append(np.asarray(Image.open(io.BytesIO(answer.content)), dtype=float))
    assert all(each.shape == (630, 1200, 3) for each in pictures)
    overlay = ImageOps.pad(found.rollout(discard_ratio=0.5).overlay(PageState().style), (1200, 630))
    distance = np.abs(np.asarray(overlay.convert("RGB"), dtype=float) - pictures[0])[:, 400:800].mean()
    assert distance < 12 and all(np.abs(each - pictures[0]).mean() > 0.3 for each in pictures[1:])
    assert meta(client, f"{query}&patches-off=1.1;1.2")["title"].startswith("Without 2 squares: of the ")
    # What was drawn once is kept.
    monkeypatch.setattr(handlers.service, "heatmap", None)
    monkeypatch.setattr(handlers.service, "run", None)
    assert client.get(f"/preview?{query}").status_code == 200 and meta(client, query) == about


@pytest.mark.parametrize("service", ["bundled"], indirect=True)
def test_below_the_answer_stands_what_the_page_says_below_it(client: TestClient, handlers: Handlers) -> None:
    analysis = vitviz.analyze(resources("assets") / "chelsea.jpg", handlers.service.models.start)
    look, flip = facts.far_look(analysis, "chelsea.jpg"), analysis.flip(random_orders=0)
    assert look is not None
    row, column = look["query"]
    far = f"example=chelsea.jpg&method=attention&p.layer={look['layer']}&p.head={look['head']}&p.query={row}.{column}"
    assert meta(client, far)["description"] == look["sentence"]
    # Of no far look, and of the covered squares, what covering changes.
    covered = ";".join(f"{row}.{column}" for row, column in flip.patches)
    cover, turned, without = (
        meta(client, query)["description"]
        for query in (
            "example=chelsea.jpg&method=relevance",
            f"{far}&p.direction=column",
            f"{far}&patches-off={covered}",
        )
    )
    assert cover.startswith("Cover ") and str(flip).endswith(f" {cover}") and turned == cover
    assert without == cover.replace("Cover", "Without").replace(" and it", ", it")


@pytest.mark.parametrize(
    "query",
    [
        "utm_source=post",
        "picture=" + "x" * 22,
        "own=mine.pth&example=coffee.jpg",
        "model=hf:a/b&example=coffee.jpg",
        "method=occlusion&example=coffee.jpg",
        "method=relevance&like=example:chelsea.jpg",
        "resolution=100000&example=coffee.jpg",
        "&".join(f"a{number}=1" for number in range(999)),
    ],
)
def test_any_other_link_has_the_general_preview(client: TestClient, uid: str, query: str) -> None:
    if query.startswith("resolution"):
        # Not legal for the model, so that the trained one is shown.
        assert meta(client, query)["title"] != "vitviz"
        return
    about = meta(client, query)
    assert about["title"] == "vitviz" and about["image"].endswith("preview.jpg")
    assert client.get(f"/preview?{query}").status_code == 404


def test_a_page_does_not_wait_for_the_sentence_of_its_link(
    client: TestClient, service: AnalysisService, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = "method=rollout&example=coffee.jpg"
    assert meta(client, query)["title"] != "vitviz"
    monkeypatch.setattr(page_routes, "SENTENCE_SECONDS", 0)
    monkeypatch.setattr(Previews, "find", lambda self, kind, query: asyncio.Event().wait())
    assert meta(client, query)["title"] == "vitviz"
    # It goes on, and counts.
    assert service.under_way.counts.total() == 1


def test_a_link_is_only_text_in_its_preview(client: TestClient) -> None:
    page = client.get('/?example=coffee.jpg&method=rollout&x="><script>alert(1)</script>').text
    assert "<script>alert" not in page and 'content="http://testserver/preview?example=coffee.jpg' in page


def test_a_file_of_an_analysis_is_fetched_once(client: TestClient, uid: str, analysis: Analysis) -> None:
    layer = client.get(f"/files/{uid}/layer 0")
    assert layer.content == pack(analysis.trace, "layer 0")
    assert layer.headers["cache-control"] == "private, max-age=31536000, immutable"
    assert client.get(f"/files/{uid}/seen.webp").content[8:12] == b"WEBP"
    wrong = client.get(f"/files/{uid}/layer 9")
    assert wrong.status_code == 400 and "layers 0 to 2" in wrong.json()["failed"]
    for name in ("layer 0", "seen.webp"):
        gone = client.get(f"/files/theirs/{name}")
        assert (gone.status_code, gone.json()) == (410, {"expired": True})


def test_one_pass_writes_the_features_of_all_layers(
    client: TestClient, uid: str, analysis: Analysis, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = dict(features_packs(analysis, "features 0"))
    passes = []

    def counted(*arguments: Any) -> Any:
        passes.append(arguments)
        return features_packs(*arguments)

    monkeypatch.setattr(explorer_files, "features_packs", counted)
    for name in (*expected, "features 1"):
        found = client.get(f"/files/{uid}/{name}")
        assert (found.status_code, found.content) == (200, expected[name])
    assert len(passes) == 1
    wrong = client.get(f"/files/{uid}/features 9")
    assert wrong.status_code == 400 and "'features 0' to 'features 2'" in wrong.json()["failed"]


def test_a_quick_map_comes_at_once_and_another_is_a_run(client: TestClient, uid: str, analysis: Analysis) -> None:
    request = {"uid": uid, "method": "attention_mass", "parameters": {"mass": 0.3}}
    expected = analysis.map("attention_mass", mass=0.3).values
    values = load(client.post("/map", json=request).content)["values"]
    torch.testing.assert_close(analysis.trace.layout.grid(values), expected.float())
    for method in ("relevance", "attention_flow", "integrated_gradients"):
        answer = client.post("/map", json={"uid": uid, "method": method, "parameters": {}})
        assert answer.status_code == 400 and method in answer.json()["failed"]
    wrong = client.post("/map", json={**request, "parameters": {"mass": 7}})
    assert wrong.status_code == 400 and wrong.json()["final"] is True and "mass" in wrong.json()["failed"]
    assert client.post("/map", json={**request, "uid": "theirs"}).status_code == 410


@pytest.mark.parametrize("route", ["map", "describe", "run", "end"])
@pytest.mark.parametrize("wanted", [None, [], "uid", 3, {}, {"uid": 1}, {"uid": ["a"], "page": "short"}])
def test_what_is_no_question_is_refused_in_a_sentence(client: TestClient, route: str, wanted: object) -> None:
    answer = client.post(f"/{route}", content=json.dumps(wanted), headers=JSON)
    key = "detail" if route in ("run", "end") else "failed"
    if route == "map" and isinstance(wanted, dict):
        # What is no id is as one that is not kept.
        assert answer.status_code == 410
    else:
        assert answer.status_code == 400 and "expected" in answer.json()[key]


def test_a_run_is_lines_of_json(client: TestClient, uid: str) -> None:
    request = {"page": PAGE, "number": 1, "kind": "map", "uid": uid, "method": "relevance", "parameters": {}}
    answer = client.post("/run", json=request)
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    *_, last = answer.text.splitlines()
    assert "content" in json.loads(last)["reply"]
    assert client.post("/end", json={"page": PAGE}).status_code == 204


def test_an_upload_has_a_folder_of_its_own(client: TestClient, tmp_path: Path) -> None:
    content = as_png(Image.new("RGB", (8, 8)))
    answers = [client.post("/upload", params={"name": "../a/cät 1.png"}, content=content).json() for _ in "ab"]
    assert all(re.fullmatch(r"picture:[\w-]{22}", answer["picture"]) for answer in answers)
    paths = [answer["path"] for answer in answers]
    for path in map(Path, paths):
        assert path.name == "_a_cät 1.png" and path.parents[1] == tmp_path and path.read_bytes() == content
        assert (path.parent.stat().st_mode & 0o777, path.stat().st_mode & 0o777) == (0o700, 0o600)
    assert len(set(paths)) == 2 and answers[0]["picture"] != answers[1]["picture"]
    example = EXAMPLE.with_name("rocket.jpg").read_bytes()
    copied = client.post("/upload", params={"name": "rocket.jpg"}, content=example).json()
    assert copied["picture"] == "example:rocket.jpg"
    assert Path(client.post("/upload", params={"name": ".."}, content=b"").json()["path"]).name == "file"


def test_what_a_run_has_made_is_fetched_by_its_address(
    client: TestClient, service: AnalysisService, tmp_path: Path
) -> None:
    address = service.folder.publish(b"film", "maps.mp4")
    assert client.get(address).content == b"film"
    folder = address.split("/")[1]
    tmp_path.with_name("secret").write_bytes(b"x")
    for wrong in ("made/other/file", f"made/{folder}/..", "made/%2E%2E/secret", f"made/{folder}/none"):
        assert client.get(wrong).status_code == 404


@pytest.mark.parametrize(
    ("ranges", "status", "content"),
    [
        ("bytes=1-2", 206, b"il"),
        ("bytes=-2", 206, b"lm"),
        ("bytes=0-1,1-3", 206, b"film"),
        ("bytes=0-0,3-3", 206, None),
        ("bytes=9-", 416, b""),
        ("bytes=a-b,c", 400, None),
        ("bytes=0-0,9-9", 416, b""),
    ],
)
def test_one_range_or_several_of_a_file_are_served(
    client: TestClient, service: AnalysisService, ranges: str, status: int, content: bytes | None
) -> None:
    address = service.folder.publish(b"film", "maps.mp4")
    path = service.folder.path / Path(*Path(address).parts[1:])
    for each in (address, f"/gradio_api/file={path}"):
        answer = client.get(each, headers={"range": ranges})
        assert answer.status_code == status and content in (None, answer.content)


def test_an_upload_for_which_there_is_no_room_is_refused_and_leaves_nothing(
    client: TestClient, service: AnalysisService, tmp_path: Path
) -> None:
    service.folder.sizes.bound.limit = FILE_BYTES + 5
    form = {"files": {"files": ("a.png", b"123456")}}
    for address, options in [("/upload", {"content": b"123456"}), ("/gradio_api/upload", form)]:
        refused = client.post(address, **options)
        assert refused.status_code == 507 and "no room for more files of yours" in refused.json()["detail"]
        assert list(tmp_path.iterdir()) == []
        assert service.folder.sizes.bound.held.total() == 0
    assert client.post("/upload", content=b"12345").status_code == 200
