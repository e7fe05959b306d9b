"""Connections: a silent one ends, and the app may have as many as the system allows."""

from __future__ import annotations

import asyncio
import logging
import resource
from typing import Any

import pytest
from uvicorn import Config
from uvicorn.server import Server

from tests.support.waiting import LoopClock, until
from vitviz.system.strangers import FIRST_REQUEST_SECONDS, READ_BYTES, TAKEN_SECONDS
from vitviz.ui.server.connections import KEEP_ALIVE_SECONDS, raise_descriptors, set_connections


@pytest.mark.parametrize(
    ("hard", "expected"), [(4096, (4096, 4096)), (resource.RLIM_INFINITY, (2**16, resource.RLIM_INFINITY))]
)
def test_the_limit_of_descriptors_is_raised(monkeypatch: pytest.MonkeyPatch, hard: int, expected: Any) -> None:
    found = list[tuple[int, int]]()
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: found.append(pair))
    raise_descriptors()
    assert found == [expected]


def test_a_system_that_does_not_raise_it_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError

    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 4096))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    raise_descriptors()


async def answer(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


async def test_a_connection_on_which_nothing_is_asked_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    config = Config(answer, port=0, lifespan="off", log_config=None)
    set_connections(config)
    server: Any = Server(config)
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    port, ask = server.servers[0].sockets[0].getsockname()[1], b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
    opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
    (silent, _), (reader, second), (slow, third), (later, fourth) = opened
    second.write(ask)
    assert (await reader.readuntil(b"ok")).split()[1] == b"200"
    # Heads that have begun, of a first and of a second request.
    third.write(ask[:-2])
    fourth.write(ask)
    assert (await later.readuntil(b"ok")).split()[1] == b"200"
    fourth.write(ask[:-2])
    waiting = server.server_state.connections
    # Of a body in chunks of one byte, no more is read before others have their turn.
    assert config.loop == "asyncio" and {each.transport.max_size for each in waiting} == {READ_BYTES}
    await until(lambda: [each.timeout_keep_alive_task for each in waiting].count(None) == 3)
    clock = LoopClock(asyncio.get_running_loop(), monkeypatch)
    clock.advance(FIRST_REQUEST_SECONDS)
    assert await silent.read() == await slow.read() == b""
    # Between two requests, one may be silent for longer.
    second.write(ask)
    assert (await reader.readuntil(b"ok")).split()[1] == b"200"
    clock.advance(FIRST_REQUEST_SECONDS)
    assert await later.read() == b""
    second.write(ask)
    assert (await reader.readuntil(b"ok")).split()[1] == b"200"
    clock.advance(KEEP_ALIVE_SECONDS)
    assert await reader.read() == b""
    for _, writer in opened:
        writer.close()
    server.should_exit = True
    await serving


async def test_a_connection_whose_answer_nobody_reads_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async def much(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % 2**26)]})
        await send({"type": "http.response.body", "body": bytes(2**26)})

    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    config = Config(much, port=0, lifespan="off", log_config=None)
    set_connections(config)
    server: Any = Server(config)
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    port, clock = server.servers[0].sockets[0].getsockname()[1], LoopClock(asyncio.get_running_loop(), monkeypatch)
    _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
    connections = server.server_state.connections
    writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    await until(lambda: any(each.transport.get_write_buffer_size() for each in connections))
    clock.advance(FIRST_REQUEST_SECONDS)
    await asyncio.sleep(0)
    assert len(connections) == 1
    # Some of it may still be on its way when it is first looked at.
    await until(lambda: clock.advance(TAKEN_SECONDS) or not connections)
    writer.close()
    server.should_exit = True
    await serving
