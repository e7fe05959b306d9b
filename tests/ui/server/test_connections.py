"""Connections: how many a visitor may have, and how many all of them."""

from __future__ import annotations

import asyncio
import logging
import resource
from collections.abc import Iterator
from errno import EMFILE
from typing import Any

import pytest
from uvicorn import Config
from uvicorn.server import Server

from tests.support.waiting import LoopClock, until
from vitviz.ui.server import connections
from vitviz.ui.server.connections import (
    KEEP_ALIVE_SECONDS,
    MAX_PER_VISITOR,
    Connections,
    guard_connections,
    raised_descriptors,
)
from vitviz.ui.server.hosts import HostRules, Proxies

RULES = HostRules((), proxies=Proxies(("10.0.0.1",)))


def test_a_lecture_hall_is_served_and_one_visitor_does_not_take_all(caplog: pytest.LogCaptureFixture) -> None:
    found = Connections(RULES, 1200)
    assert [found.open("192.0.2.7") for _ in range(60 * 6)] == ["192.0.2.7"] * 360
    for _ in range(1000):
        found.open("192.0.2.7")
    assert found.open("192.0.2.7") is None and found.open("192.0.2.8") == "192.0.2.8"
    # Neither what follows nor another visitor's is a second line.
    [record] = caplog.records
    assert "192.0.2" not in record.getMessage()
    found.close("192.0.2.7")
    assert found.open("192.0.2.7") == "192.0.2.7"


def test_where_there_are_few_connections_a_visitor_gets_a_third() -> None:
    found = Connections(RULES, 9)
    for visitor in ("192.0.2.7", "192.0.2.8", "192.0.2.9"):
        assert [found.open(visitor) for _ in range(5)].count(visitor) == 3


def test_addresses_of_one_network_are_one_visitor_and_a_proxy_is_many() -> None:
    found = Connections(RULES, 1200)
    assert [found.open(f"2001:db8::{number:x}") for number in range(401)].count(None) == 401 - MAX_PER_VISITOR
    assert [found.open("10.0.0.1") for _ in range(800)].count(None) == 0
    # All places are taken.
    assert found.open("10.0.0.1") is None and found.open("192.0.2.8") is None


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, int]]]:
    """The limits of descriptors, which are not those of the tests' own process."""
    found = [(1024, 4096)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: found[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: found.append(pair))
    yield found


def test_the_limit_of_descriptors_is_raised(limits: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    assert raised_descriptors() == 4096 and limits[-1] == (4096, 4096)
    assert raised_descriptors() == 4096 and len(limits) == 2
    limits.append((256, resource.RLIM_INFINITY))
    assert raised_descriptors() == 2**16 and limits[-1] == (2**16, resource.RLIM_INFINITY)

    def refuse(*_: Any) -> None:
        raise OSError

    limits.append((256, 4096))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert raised_descriptors() == 256


async def answer(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


async def test_one_connection_too_many_is_refused_and_an_idle_one_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connections, "MAX_PER_VISITOR", 2)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)

    config = Config(answer, port=0, http="h11", ws="none", lifespan="off", log_config=None)
    server: Any = Server(config)
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    guard_connections(server, answer, RULES)
    port = server.servers[0].sockets[0].getsockname()[1]
    for _ in range(3):
        asyncio.get_running_loop().call_exception_handler({"message": "no", "exception": OSError(EMFILE, "no")})
    assert len(caplog.records) == 1
    ask = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
    (silent, first), (reader, second), (refused, third) = [
        await asyncio.open_connection("127.0.0.1", port) for _ in range(3)
    ]
    assert b" 429 " in await refused.read()
    second.write(ask)
    assert (await reader.readline()).split()[1] == b"200"
    # It has sent nothing.
    LoopClock(asyncio.get_running_loop(), monkeypatch).advance(KEEP_ALIVE_SECONDS)
    assert await silent.read() == b""
    again, fourth = await asyncio.open_connection("127.0.0.1", port)
    fourth.write(ask)
    assert (await again.readline()).split()[1] == b"200"
    for writer in (first, second, third, fourth):
        writer.close()
    server.should_exit = True
    await serving
