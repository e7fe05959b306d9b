"""The page about operating the app is correct: its tables, the container, a sub-path, many visitors."""

from __future__ import annotations

import asyncio
import re
import runpy
import socket
import threading
from argparse import Namespace
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gradio as gr
import httpx
import numpy as np
import pytest
import uvicorn
from gradio.utils import get_upload_folder
from PIL import Image
from playwright.sync_api import Browser
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

import vitviz
from benchmarks import load, memory_table
from benchmarks.load_guests import Guest, guests
from benchmarks.load_tally import Tally, tables
from benchmarks.visitor import LimitReachedError, Traffic, VisitError, Visitor, start_of
from tests.driver import click_patch, expect_map, opened_page, show_default, upload
from tests.support.apps import close
from tests.support.example import EXAMPLE, ROOT
from tests.support.waiting import HANG_SECONDS
from vitviz import Analysis, Model
from vitviz.ui import build_demo, serve
from vitviz.ui.app import App
from vitviz.ui.server.settings import ServerSettings

pytestmark = pytest.mark.process
PAGE = (ROOT / "docs" / "hosting.md").read_text()
SUB_PATH = "/vitviz"


def between(name: str) -> str:
    found = re.search(rf"<!-- {name} -->\n(.*?)\n<!-- /{name} -->", PAGE, re.DOTALL)
    assert found is not None, name
    return found[1]


# Statements of the page.


def test_the_table_of_memory_is_what_its_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "benchmarks" / "memory_table.py"), run_name="__main__")
    assert between("memory") == capsys.readouterr().out.rstrip("\n")
    assert "`python -m benchmarks.memory_table`" in PAGE


def test_the_table_of_memory_has_the_models_of_the_papers() -> None:
    # Millions of parameters: Dosovitskiy et al. 2021, table 1; Touvron et al. 2021, table 1.
    published = {"ViT-Ti/16": 5.7, "ViT-S/16": 22, "ViT-B/16": 86, "ViT-L/16": 304}
    parameters = {f"ViT-{shape.name}": memory_table.weight_bytes(shape) / 4e6 for shape in memory_table.SHAPES}
    assert {name: parameters[name] for name in published} == pytest.approx(published, rel=0.01)
    assert {memory_table.side(shape, 518) for shape in memory_table.SHAPES} == {512, 518}


@pytest.mark.parametrize("row", between("others").splitlines()[2:])
def test_every_variable_is_read_by_the_program_that_its_name_says(row: str) -> None:
    name = row.split("|")[1].strip(" `")
    found = find_spec("gradio" if name.startswith("GRADIO_") else "huggingface_hub")
    assert found is not None and found.submodule_search_locations
    sources = Path(found.submodule_search_locations[0]).rglob("*.py")
    assert any(f'"{name}"' in source.read_text(encoding="utf-8") for source in sources)


def test_the_numbers_of_the_page_are_those_of_the_code() -> None:
    sessions, most_requests, most_seconds = (load.OPTIONS[f][0] for f in ("sessions", "most_requests", "most_seconds"))
    assert f"lets {sessions} visitors come" in PAGE
    assert f"at most {most_requests:,} requests in {most_seconds:g} seconds" in PAGE
    allowed = re.search(r"client_max_body_size (\d+)g;", PAGE)
    assert allowed is not None and int(allowed[1]) * 2**30 >= ServerSettings().upload_bytes
    said = re.findall(r"(VITVIZ_\w+)='?([\w ]+?)'? ?(?=VITVIZ|`)", PAGE)
    assert said and ServerSettings.of(dict(said)) != ServerSettings()
    assert ServerSettings.of(dict(said)).analysis_bytes < ServerSettings().analysis_bytes


# Behind a proxy at a sub-path, with the bundled model.


@dataclass(frozen=True)
class Served:
    """The app behind a proxy.

    Args:
        address: address at the proxy, with the sub-path.
        direct: address of the app itself.
        app: of :func:`vitviz.ui.build_demo`.
        others: requests outside of the sub-path.
        first: the files of the page before the first visit.
    """

    address: str
    direct: str
    app: App
    others: list[str]
    first: set[Path]


@pytest.fixture(scope="module")
def served(bundled: Model, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("GRADIO_ROOT_PATH", SUB_PATH)
        environment.setenv("GRADIO_TEMP_DIR", str(tmp_path_factory.mktemp("gradio")))
        app = build_demo(bundled, ServerSettings(trusted_proxies=("loopback",)))
        direct = serve(app, block=False, quiet=True)
        first = kept_files()
        others: list[str] = []
        with proxy(direct, others) as address:
            yield Served(address + SUB_PATH, direct, app, others, first)
        close(app)


def kept_files() -> set[Path]:
    """Where something is in them: Gradio leaves an empty one beside every checkpoint."""
    return {path for path in Path(get_upload_folder()).rglob("*") if path.is_file() and path.stat().st_size}


@contextmanager
def proxy(target: str, others: list[str]) -> Iterator[str]:
    """A proxy like the page's nginx: it removes the sub-path, sets three headers and does not buffer.

    It keeps connections to the app as long as Caddy does.
    """
    client = httpx.AsyncClient(timeout=None, limits=httpx.Limits(max_connections=None, keepalive_expiry=120))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with client:
            yield

    async def forward(request: Request) -> Response:
        path, host = request.url.path, request.headers["host"]
        if not path.startswith(f"{SUB_PATH}/"):
            others.append(path)
            # The site has its own icon.
            return Response(status_code=204 if path == "/favicon.ico" else 404)
        headers = {name: value for name, value in request.headers.items() if name != "connection"}
        headers |= {"host": host, "x-forwarded-host": host, "x-forwarded-proto": "http"}
        url = f"{target}{path.removeprefix(SUB_PATH)}?{request.url.query}"
        forwarded = client.build_request(request.method, url, headers=headers, content=await request.body())
        answer = await client.send(forwarded, stream=True)

        async def content() -> AsyncIterator[bytes]:
            try:
                async for chunk in answer.aiter_raw():
                    yield chunk
            finally:
                await answer.aclose()

        reply_headers = {name: value for name, value in answer.headers.items() if name != "transfer-encoding"}
        return StreamingResponse(content(), answer.status_code, reply_headers)

    app = Starlette(routes=[Route("/{path:path}", forward, methods=["GET", "POST", "HEAD"])], lifespan=lifespan)
    # The socket is bound first, so that clients need not wait for the server.
    with socket.create_server(("127.0.0.1", 0)) as listening:
        # short: nobody reads its last answers.
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        server.should_exit = True
        thread.join()


def test_behind_a_proxy_the_page_shows_hovers_and_uploads(
    served: Served, browser: Browser, bundled: Model, tmp_path: Path
) -> None:
    photo = tmp_path / "own.png"
    noise = np.random.default_rng(0).integers(0, 255, (6, 8, 3), dtype=np.uint8)
    Image.fromarray(noise).resize((320, 240)).save(photo)
    example, own = (vitviz.analyze(path, bundled) for path in (EXAMPLE, photo))
    # Any request of the page outside of the sub-path fails the test.
    with opened_page(browser, served.address) as page:
        expect_map(page, example.attention())
        click_patch(page, example, 5, 2)
        expect_map(page, example.attention(query=(5, 2)))
        upload(page, photo)
        show_default(page)
        expect_map(page, own.attention())
        click_patch(page, own, 6, 1)
        expect_map(page, own.attention(query=(6, 1)))
        page.wait_for_function("start => location.href.startsWith(start)", arg=f"{served.address}/?")
        page.wait_for_function("() => new URLSearchParams(location.search).has('picture')")
    assert set(served.others) <= {"/favicon.ico"}


def test_the_health_of_the_app_is_known_at_the_proxy_and_beside_it(served: Served) -> None:
    answers = [httpx.get(f"{address}/health", timeout=HANG_SECONDS) for address in (served.address, served.direct)]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert all(answer.json()["status"] == "ok" for answer in answers)


def test_connections_are_kept_for_longer_than_the_page_lets_a_proxy_keep_them(served: Served) -> None:
    said = re.search(r"keeps a connection open for (\d+) seconds", PAGE)
    assert said is not None and served.app.get_blocks().server.config.timeout_keep_alive == int(said[1]) > 120
    assert served.app.get_blocks().max_file_size == ServerSettings().upload_bytes


def test_code_that_is_loaded_anew_starts_no_other_server(
    make_model: Callable[..., Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gr.Blocks, "_is_running_in_reload_thread", True)
    app = build_demo(make_model())
    assert serve(app) == "" and not app.get_blocks().is_running


# Many visitors.


@pytest.fixture(scope="module")
def visitors() -> list[Guest]:
    return guests(2)


def run_in_thread(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine in another thread, as the browser's event loop runs in this one."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, work).result()


def traffic_to(served: Served, requests: int = 500) -> Traffic:
    return Traffic(served.address, load.PROCESSES.Semaphore(requests))


def tally_of(served: Served, guest: Guest, number: int = 0, traffic: Traffic | None = None) -> Tally:
    """The tally of one visitor at the proxy."""
    tally = Tally()

    async def visit() -> None:
        async with Visitor.visiting(traffic or traffic_to(served)) as visitor:
            await visitor.run("open", link="")
            await load._visit(visitor, guest, number, Namespace(think=0.0), tally)

    run_in_thread(visit())
    return tally


@pytest.fixture(scope="module")
def tally(served: Served, visitors: list[Guest]) -> Tally:
    """The tally of a complete visit."""
    return tally_of(served, visitors[0])


def test_a_visitor_is_shown_what_the_library_computes(tally: Tally) -> None:
    assert tally.rows_checked == 3 and {stage for _, stage in tally.times} == {load.AMONG}


def test_a_mixup_of_visitors_results_is_detected(served: Served, visitors: list[Guest]) -> None:
    one, other = visitors
    assert one.picture != other.picture
    with pytest.raises(VisitError, match="times what the format allows"):
        shown, others = one.analyses[None], other.analyses[None]
        mixed = Analysis(shown.model, shown.prepared, shown.logits, others.trace)
        tally_of(served, replace(one, analyses={**one.analyses, None: mixed}))


def test_a_load_test_ends_at_its_limit(served: Served, visitors: list[Guest]) -> None:
    with pytest.raises(LimitReachedError, match="all requests"):
        tally_of(served, visitors[0], traffic=traffic_to(served, 4))


def test_a_refusal_of_the_app_is_an_error_of_the_visit(served: Served) -> None:
    async def ask() -> None:
        async with Visitor.visiting(traffic_to(served)) as visitor:
            with pytest.raises(VisitError, match=r"40[34]"):
                await visitor.file("../../etc/passwd")
            await visitor.run("analyze", state=visitor.state, index=0, own={"files": [{"path": "/etc/passwd"}]})

    with pytest.raises(VisitError, match="not uploaded here"):
        run_in_thread(ask())
    with pytest.raises(VisitError, match="what it begins with"):
        start_of("<html>")


def test_errors_make_a_load_test_fail() -> None:
    good = Tally(times={("layer", "alone"): [1.0, 2.0, 3.0]}, memory_bytes={"after one": 100, "after two": 109})
    assert good.is_good
    wrong: list[dict[str, Any]] = [
        {"memory_bytes": {"after one": 4 * 2**30}},
        {"memory_bytes": {}},
        {"memory_bytes": {"after one": 100, "after two": 111}},
        {"errors": ["guest-1.png: refused"]},
        {"log": ["Traceback", "ValueError: 1"]},
    ]
    for change in wrong:
        assert not replace(good, **change).is_good
    said = tables(replace(good, errors=["guest-1.png: another's"], log=["ValueError: 1"]))
    assert "| layer, alone | 3 | 2.00 s | 2.90 s | 1.45 |" in said and said.endswith(
        "- guest-1.png: another's\n- ValueError: 1"
    )


# Files that visitors leave.


def test_nothing_of_a_visitor_outlasts_the_cleaning(served: Served, tally: Tally) -> None:
    assert tally.rows_checked and kept_files() > served.first
    served.app.handlers.service.folder.sizes.drop_unused(0)
    assert kept_files() == served.first
