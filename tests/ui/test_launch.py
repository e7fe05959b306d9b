"""The app starts whatever proxies are set, and says which port it cannot have."""

from __future__ import annotations

import logging
import os
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from tests.support.modules import OwnViT, load_own
from vitviz.errors.kinds import ConfigError, MethodError
from vitviz.ui import build_demo, launch
from vitviz.ui.server.settings import ServerSettings

PROXIES = {"http_proxy": "http://127.0.0.1:9", "ALL_PROXY": "socks5://127.0.0.1:9"}


@pytest.fixture(autouse=True)
def _nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "shared_worker", lambda: SimpleNamespace(start=lambda: None))
    monkeypatch.setattr(launch, "guard_connections", lambda *_: None)
    monkeypatch.setattr(launch, "check_limits", lambda _: None)


def test_no_proxy_stands_between_the_app_and_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradio asks the app once it listens."""
    for name, value in PROXIES.items():
        monkeypatch.setenv(name, value)
    seen: list[set[str]] = []

    def start(**options: Any) -> tuple[None, str, None]:
        seen.append(PROXIES.keys() & os.environ.keys())
        return None, "http://127.0.0.1:7860/", None

    demo: Any = SimpleNamespace(
        launch=start, get_blocks=lambda: SimpleNamespace(server=None), rules=None, handlers=Mock()
    )
    assert launch.serve(demo, block=False, quiet=True) == "http://127.0.0.1:7860"
    assert seen == [set()] and {name: os.environ[name] for name in PROXIES} == PROXIES


def test_a_port_in_use_is_said_with_the_option_that_names_another() -> None:
    def start(**options: Any) -> None:
        raise OSError("Cannot find empty port in range: 7000-7000")

    demo: Any = SimpleNamespace(launch=start)
    with pytest.raises(ConfigError, match=r"port 7000 is in use; expected a free one: vitviz app --port"):
        launch.serve(demo, server_port=7000)


def test_a_captured_module_is_refused_with_what_shows_it() -> None:
    with pytest.raises(MethodError, match=r"the app \(vitviz explore shows OwnViT, too\): .* vitviz captures"):
        build_demo(load_own(OwnViT(), engine="module"), ServerSettings())


def test_the_package_of_tools_logs_nothing() -> None:
    """It would quote the name of a tool, which may have line breaks."""
    demo: Any = SimpleNamespace(launch=lambda **_: (None, "", None))
    assert launch.serve(demo, quiet=True) == ""
    assert not logging.getLogger("mcp.server.lowlevel.server").isEnabledFor(logging.CRITICAL)


@pytest.mark.parametrize(
    ("host", "uploads", "is_refused"),
    [("0.0.0.0", "all", True), ("0.0.0.0", "safetensors", False), ("127.0.0.1", "all", False), (None, "all", False)],
)
def test_without_a_limit_of_memory_the_app_is_for_this_machine_or_for_safetensors(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    host: str | None,
    uploads: str,
    is_refused: bool,
) -> None:
    monkeypatch.setattr(launch, "IS_LINUX", False)
    service = SimpleNamespace(server_settings=ServerSettings(uploads=uploads))
    demo: Any = SimpleNamespace(launch=lambda **_: (None, "", None), handlers=SimpleNamespace(service=service))
    if is_refused:
        with pytest.raises(ConfigError, match="VITVIZ_UPLOADS=safetensors, or 127"):
            launch.serve(demo, server_name=host)
    else:
        assert launch.serve(demo, server_name=host) == ""
        assert "no limit of memory" in capsys.readouterr().out
