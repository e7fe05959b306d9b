"""The app starts whatever proxies are set, and says which port it cannot have."""

from __future__ import annotations

import errno
import logging
import os
import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from gradio.http_server import Server
from uvicorn import Config

from vitviz.errors.kinds import ConfigError
from vitviz.errors.messages import quote
from vitviz.ui import launch
from vitviz.ui.environment import listening_address
from vitviz.ui.server import connections
from vitviz.ui.server.hosts import HostRules
from vitviz.ui.server.rule import RequestError
from vitviz.ui.server.settings import ServerSettings

PROXIES = {"http_proxy": "http://127.0.0.1:9", "ALL_PROXY": "socks5://127.0.0.1:9"}


@pytest.fixture(autouse=True)
def _nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "shared_worker", lambda: None)
    monkeypatch.setattr(launch, "check_limits", lambda _: True)


def demo_of(start: Callable[..., Any] = lambda **_: (None, "", None)) -> Any:
    blocks = SimpleNamespace(server=None, is_running=False)
    settings = ServerSettings()
    return SimpleNamespace(
        launch=start, get_blocks=lambda: blocks, rules=HostRules.of(), handlers=Mock(), server_settings=settings
    )


def test_gradio_sees_neither_proxies_nor_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks the app once it listens, and would read a port of its own."""
    variables = PROXIES | {"GRADIO_SERVER_NAME": "localhost", "GRADIO_SERVER_PORT": ""}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    seen: list[set[str]] = []

    def start(**options: Any) -> tuple[None, str, None]:
        seen.append(variables.keys() & os.environ.keys())
        return None, "http://localhost:7860/", None

    assert launch.serve(demo_of(start), block=False, quiet=True) == "http://localhost:7860"
    assert seen == [set()] and {name: os.environ[name] for name in variables} == variables


def test_what_is_there_at_the_start_is_never_searched_for_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    freeze = Mock()
    monkeypatch.setattr(launch, "gc", Mock(freeze=freeze))
    launch.serve(demo_of(lambda **_: (None, "http://localhost:7860", None)), quiet=True)
    freeze.assert_called_once_with()


def test_ports_that_are_all_in_use_are_said_with_the_option_that_names_another() -> None:
    def start(**options: Any) -> None:
        raise OSError("Cannot find empty port in range: 7860-7959")

    with pytest.raises(ConfigError, match=r"port 7860 to 7959 is in use; expected a free one: vitviz app --port"):
        launch.serve(demo_of(start))


@pytest.mark.parametrize(
    ("host", "listened", "address", "requested"),
    [
        (None, "127.0.0.1", "http://127.0.0.1:7860", "127.0.0.1:7860"),
        ("::1", "[::1]", "http://[::1]:7860", "[::1]:7860"),
        ("[::1]", "[::1]", "http://[::1]:7860", "[::1]:7860"),
        ("::", "[::]", "http://[::1]:7860", "[2001:db8::1]:7860"),
        ("LocalHost", "localhost", "http://localhost:7860", "localhost:7860"),
        ("127.1", "127.1", "http://127.1:7860", "127.1:7860"),
    ],
)
def test_the_address_is_printed_as_a_browser_takes_it_and_served(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    host: str | None,
    listened: str,
    address: str,
    requested: str,
) -> None:
    # Not every machine has IPv6.
    monkeypatch.setattr(socket.socket, "bind", lambda *_: None)
    given: list[Any] = []

    def start(server_name: str, server_port: int | None, **_: Any) -> tuple[None, str, None]:
        given.extend((server_name, server_port))
        return None, f"http://{server_name}:7860/", None

    demo = demo_of(start)
    assert launch.serve(demo, block=False, server_name=host) == address
    assert given == [listened, None] and f"runs at {address} (" in capsys.readouterr().out
    demo.rules.admit({"headers": [(b"host", requested.encode())]})
    with pytest.raises(RequestError):
        demo.rules.admit({"headers": [(b"host", b"example.org:7860")]})


@pytest.mark.parametrize("host", ["a" * 64, "..", "a b", "http://localhost", "127.0.0.1:80", "::1::", "*", "::1%lo"])
def test_a_host_that_is_none_is_refused_with_those_that_are(host: str) -> None:
    with pytest.raises(ConfigError, match=r"this machine cannot listen there; expected 127.0.0.1 or ::1 for") as raised:
        listening_address(host)
    assert str(raised.value).startswith(f"host {quote(host)}: ")


@pytest.mark.parametrize("number", [errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, socket.EAI_NONAME])
def test_an_address_of_another_machine_is_refused(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def bind(*_: object) -> None:
        raise OSError(number, "")

    monkeypatch.setattr(socket.socket, "bind", bind)
    with pytest.raises(ConfigError, match=r"^host '127.0.0.1': this machine cannot listen there; expected "):
        listening_address("127.0.0.1", 7000)


def test_a_port_of_the_system_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def bind(*_: object) -> None:
        raise PermissionError(errno.EACCES, "")

    monkeypatch.setattr(socket.socket, "bind", bind)
    with pytest.raises(ConfigError, match=r"^port 80: this user may not listen there; expected 1024 or above"):
        listening_address(port=80)


@pytest.mark.parametrize("port", ["70000", "-1", "abc", "80.0", "1" * 5000])
def test_a_port_that_is_none_is_refused_wherever_it_stands(monkeypatch: pytest.MonkeyPatch, port: str) -> None:
    expected = "expected 1 to 65535, or 0 for any that is free: vitviz app --port 8000"
    option: Any = port
    with pytest.raises(ConfigError, match=f"^port {port}: {expected}"):
        listening_address(port=option)
    monkeypatch.setenv("GRADIO_SERVER_PORT", port)
    with pytest.raises(ConfigError, match=f"^GRADIO_SERVER_PORT='.*': {expected}"):
        launch.serve(demo_of())


def test_the_port_is_the_one_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert listening_address() == ("127.0.0.1", None)
    monkeypatch.setenv("GRADIO_SERVER_PORT", " ")
    assert listening_address() == ("127.0.0.1", None)
    host, port = listening_address(port=0)
    monkeypatch.setenv("GRADIO_SERVER_PORT", str(port))
    assert listening_address() == (host, port)
    with socket.socket() as other:
        other.bind((host, port or 0))
        other.listen()
        with pytest.raises(ConfigError, match=f"^port {port} is in use; expected a free one: vitviz app --port 8000"):
            listening_address()


def test_the_package_of_tools_logs_nothing() -> None:
    """It would quote the name of a tool, which may have line breaks."""
    assert launch.serve(demo_of(), quiet=True) == ""
    assert not logging.getLogger("mcp.server.lowlevel.server").isEnabledFor(logging.CRITICAL)
    # Some lines it writes as nobody's.
    root = logging.getLogger()
    for place, is_shown in (("site-packages/mcp/shared/session.py", False), ("mine.py", True)):
        assert bool(root.filter(root.makeRecord("root", logging.WARNING, place, 1, "secret", (), None))) is is_shown


def test_without_a_limit_of_memory_the_app_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launch, "IS_LINUX", False)
    assert launch.serve(demo_of()) == ""
    assert "no limit of memory" in capsys.readouterr().out


@pytest.mark.parametrize("is_walled", [True, False])
def test_without_a_wall_the_app_says_so_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_walled: bool
) -> None:
    monkeypatch.setattr(launch, "check_limits", lambda _: is_walled)
    assert launch.serve(demo_of()) == ""
    assert capsys.readouterr().out.count("Linux 5.13 or newer with Landlock") == (not is_walled)


def test_limits_and_descriptors_are_there_before_the_first_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    monkeypatch.setattr(launch, "check_limits", lambda _: steps.append("limits") or True)
    monkeypatch.setattr(connections, "raise_descriptors", lambda: steps.append("descriptors"))
    monkeypatch.setattr(
        Server, "run_in_thread", lambda server: steps.append("impatient" if server.config.loaded else "as it is")
    )

    def start(**_: Any) -> tuple[None, str, None]:
        Server(Config(None)).run_in_thread()
        return None, "", None

    launch.serve(demo_of(start), quiet=True)
    assert steps == ["limits", "descriptors", "impatient"]
    # Other servers of this process are as they were.
    Server(Config(None)).run_in_thread()
    assert steps[3:] == ["as it is"]


@pytest.mark.parametrize(
    ("shared", "host", "refuses_proxies"),
    [(None, "127.0.0.1", True), (False, "127.0.0.1", False), (None, "0.0.0.0", False)],
)
def test_nothing_behind_a_proxy_becomes_shared_unnoticed(shared: bool | None, host: str, refuses_proxies: bool) -> None:
    demo = demo_of()
    demo.server_settings = ServerSettings(shared=shared)
    service = demo.handlers.service
    service.share = lambda is_shared: setattr(service.models, "is_shared", is_shared)
    launch.serve(demo, server_name=host, quiet=True)
    assert demo.rules.refuses_proxies == refuses_proxies
    assert service.models.is_shared == (host == "0.0.0.0")
