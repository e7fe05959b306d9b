"""The public API on a bench of its own, behind a proxy, and as tools."""

from __future__ import annotations

import asyncio
import io
import threading
from ast import literal_eval
from base64 import b64decode, b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from gradio_client.exceptions import AppError
from PIL import Image

import vitviz
from tests.support.api_calls import ENDPOINTS, ROLLOUT, endpoints, post_json
from tests.support.apps import close
from tests.support.example import EXAMPLE
from tests.support.makers import MakeModel
from tests.support.visits import on_loop
from tests.support.waiting import HANG_SECONDS
from vitviz import Analysis, ConfigError, Model
from vitviz.ui import api, build_demo, launch
from vitviz.ui.server.log import INTERNAL_ERROR
from vitviz.ui.server.settings import ServerSettings
from vitviz.ui.service import AnalysisService
from vitviz.weights import BUNDLED

pytestmark = pytest.mark.process


# On a bench of its own.


@pytest.fixture
def upload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A picture among the uploads, as Gradio tells of one."""
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    Image.effect_noise((48, 32), 80).convert("RGB").save(tmp_path / "noise.png")
    return {"path": str(tmp_path / "noise.png")}


@pytest.fixture
def service(make_model: MakeModel) -> AnalysisService:
    return AnalysisService(make_model())


def failing(error: Exception) -> Any:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def test_what_nobody_expected_is_told_to_the_log_only(
    service: AnalysisService, upload: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(service, "analyze", failing(RuntimeError("/home/secret")))
    with pytest.raises(AppError) as error:
        on_loop(endpoints(service).analyze(upload))
    assert error.value.message == INTERNAL_ERROR and not error.value.print_exception
    assert "/home/secret" in caplog.text and "/analyze" in caplog.text


def test_a_model_that_has_to_be_downloaded_is_opened_first(
    service: AnalysisService, upload: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "is_cached", lambda repository: False)
    with pytest.raises(AppError, match=r"'dino_vits16': not on this server yet; /open downloads it \(87 MB\)"):
        on_loop(endpoints(service).analyze(upload, "dino_vits16"))
    # One that cannot be opened says so in the words of the page.
    sentence = "timm/vit: not completely in the cache (HF_HUB_CACHE), and offline"
    monkeypatch.setattr(service.models, "open", failing(vitviz.CheckpointError(sentence)))
    with pytest.raises(AppError) as error:
        on_loop(endpoints(service).open("dino_vits16"))
    assert error.value.message == sentence


def test_the_model_of_the_start_is_asked_by_its_name(make_model: MakeModel, upload: Any) -> None:
    api_of = endpoints(AnalysisService(make_model(classes=0, cls_token=False, register_tokens=2, pooling="mean")))
    assert on_loop(api_of.models())[0]["name"] == "small"
    answer = on_loop(api_of.analyze(upload, "small", "native"))
    assert (answer["model"], answer["predictions"]) == ("small", [])
    assert (answer["grid"], answer["prefix"]) == ([4, 6], ["register 1", "register 2"])
    drawn = on_loop(api_of.maps(answer["id"], [{"method": "attention", "parameters": {"query": "register 2"}}]))
    assert "register 2" in drawn[0]["description"]
    with pytest.raises(AppError, match=r"parameters\.target = 1: this model has no classifier"):
        on_loop(api_of.maps(answer["id"], [{"method": "relevance", "parameters": {"target": 1}}]))


def test_a_shared_app_offers_the_models_of_its_operator(make_model: MakeModel, upload: Any) -> None:
    api_of = endpoints(AnalysisService(make_model(), ServerSettings(shared=True)))
    assert [each["name"] for each in on_loop(api_of.models())] == ["small", "vitviz-photos"]
    with pytest.raises(AppError, match="model = 'dino_vits16': expected a name that /models lists"):
        on_loop(api_of.analyze(upload, "dino_vits16"))


def test_a_map_that_takes_long_is_computed_once(
    service: AnalysisService, upload: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    api_of = endpoints(service)
    key = on_loop(api_of.analyze(upload))["id"]
    before = on_loop(api_of.maps(key, [{"method": "attention_flow", "parameters": {"most_patches": 6}}]))
    monkeypatch.setattr(Analysis, "map", lambda *_, **__: pytest.fail("computed again"))
    assert on_loop(api_of.maps(key, [{"method": "attention_flow", "parameters": {"most_patches": 6}}])) == before
    assert on_loop(api_of.overlay(key, "attention_flow", {"most_patches": 6}))["orig_name"] == "attention_flow.png"


def test_a_picture_is_drawn_in_its_turn(service: AnalysisService, upload: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the event loop, it held everybody up."""
    api_of, threads = endpoints(service), list[str]()
    key = on_loop(api_of.analyze(upload))["id"]
    monkeypatch.setattr(api, "as_png", lambda picture: threads.append(threading.current_thread().name) or b"")
    on_loop(api_of.overlay(key))
    assert [name.startswith("vitviz-line") for name in threads] == [True]


def test_an_upload_is_known_by_its_address_too(service: AnalysisService, upload: Any) -> None:
    address = f"https://example.org/vit/gradio_api/file={upload['path']}"
    assert on_loop(endpoints(service).analyze({"path": address}))["model"] == "small"


def test_tools_without_their_package_are_refused_with_the_way_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADIO_MCP_SERVER", "True")
    monkeypatch.setattr(launch, "find_spec", lambda name: None)
    app: Any = SimpleNamespace(server_settings=ServerSettings())
    with pytest.raises(ConfigError, match=r"GRADIO_MCP_SERVER=true needs mcp: pip install 'gradio\[mcp\]>=6\.31,<7'"):
        launch.serve(app)


@pytest.fixture(scope="module")
def served(bundled: Model) -> Iterator[tuple[Any, str]]:
    """The app in this process, behind a proxy, with tools where these are installed."""
    app = build_demo(bundled)
    options: dict[str, Any] = {"root_path": "/vit", "mcp_server": find_spec("mcp") is not None}
    try:
        yield app, launch.serve(app, block=False, quiet=True, server_name="::1", **options)
    # A machine without IPv6.
    except ConfigError:
        yield app, launch.serve(app, block=False, quiet=True, **options)
    close(app)


def test_behind_a_proxy_health_and_calls_are_where_the_page_is(served: tuple[Any, str]) -> None:
    _, address = served
    # A proxy may hand on the whole path, or what is behind its own.
    for path in ("/health", "/vit/health"):
        assert httpx.get(f"{address}{path}", timeout=HANG_SECONDS).json()["status"] == "ok"
    event = post_json(address, "call/v2/models", b"{}").json()["event_id"]
    answer = httpx.get(f"{address}/gradio_api/call/v2/models/{event}", timeout=HANG_SECONDS).text
    assert answer.startswith("event: complete") and BUNDLED[0] in answer


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
            # More than the package of MCP takes.
            large = io.BytesIO()
            Image.effect_noise((1800, 2000), 80).save(large, "png")
            address = f"data:image/png;base64,{b64encode(large.getvalue()).decode()}"
            assert len(address) > 4 * 2**20
            told = await session.call_tool("analyze", {"image": address})
            assert literal_eval(told.content[0].text)["image"] == [1800, 2000]
            elsewhere = await session.call_tool("analyze", {"image": "http://127.0.0.1:1/cat.png"})
            assert elsewhere.isError and "not uploaded here" in elsewhere.content[0].text
            wrong = await session.call_tool("maps", {"id": "guess", "maps": [ROLLOUT]})
            assert wrong.isError and "no analysis of this id" in wrong.content[0].text

    # Playwright's loop may run in this one already.
    with ThreadPoolExecutor(1) as other_thread:
        other_thread.submit(asyncio.run, talk()).result()
