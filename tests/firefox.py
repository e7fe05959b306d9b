"""Drives an installed Firefox by its own protocol, WebDriver BiDi, over a WebSocket.

``VITVIZ_FIREFOX`` names the one to use.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import cycle
from operator import xor
from pathlib import Path
from threading import Thread, Timer
from typing import Any

from tests.browser import version

VARIABLE = "VITVIZ_FIREFOX"
ADVICE = f"no Firefox is installed, or only in a snap, which sees no temporary folder; {VARIABLE} may name one"
COMMANDS = ("firefox", "firefox-esr")
MAC_APPLICATION = "Firefox.app/Contents/MacOS/firefox"
# Firefox's services contact other hosts. Some can be switched off; the rest get no DNS and a proxy that does not exist.
PREFERENCES = {
    "app.normandy.enabled": False,
    "app.update.auto": False,
    "browser.safebrowsing.update.enabled": False,
    "browser.shell.checkDefaultBrowser": False,
    "datareporting.healthreport.uploadEnabled": False,
    "datareporting.policy.dataSubmissionEnabled": False,
    "extensions.update.enabled": False,
    "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False,
    "network.dns.disabled": True,
    "network.proxy.type": 1,
    "network.proxy.http": "127.0.0.1",
    "network.proxy.http_port": 9,
    "network.proxy.ssl": "127.0.0.1",
    "network.proxy.ssl_port": 9,
    "network.proxy.no_proxies_on": "127.0.0.1, localhost",
    # The pointer is a mouse, which can hover.
    "ui.allPointerCapabilities": 6,
    "ui.primaryPointerCapabilities": 6,
}
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Key": base64.b64encode(bytes(16)).decode(),
    "Sec-WebSocket-Version": "13",
}
CLOSE_OPCODE = 8
# Firefox takes a mask of zeros for a missing one.
MASK = b"mask"
EVENTS = ("log.entryAdded", "network.beforeRequestSent", "network.responseCompleted")
APPEAR_SECONDS = 60
ANSWER_SECONDS = 60


def find_firefox() -> Path | None:
    """The Firefox that VITVIZ_FIREFOX names; without it, the first installed one that starts."""
    named = os.environ.get(VARIABLE)
    paths = [shutil.which(named)] if named else [path for path in firefox_paths() if path and not in_snap(path)]
    return next((Path(path) for path in paths if path and version(path)), None)


def firefox_paths() -> Iterator[str | Path | None]:
    """The paths where a Firefox may be, preferred ones first. Not every path exists."""
    yield from map(shutil.which, COMMANDS)
    if sys.platform == "darwin":
        yield from (folder / MAC_APPLICATION for folder in (Path("/Applications"), Path.home() / "Applications"))


def in_snap(path: str | Path) -> bool:
    """Whether a Firefox is a snap, which can read neither the profile nor the pages in a temporary folder."""
    file = Path(path).resolve()
    return "snap" in file.parts or (file.is_file() and b"/snap/" in file.read_bytes()[:4096])


class Connection:
    """A WebSocket (RFC 6455) for text, to a port of this machine."""

    def __init__(self, port: int) -> None:
        self.http = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_SECONDS)
        self.http.request("GET", "/session", headers=UPGRADE)
        response = self.http.getresponse()
        if response.status != http.HTTPStatus.SWITCHING_PROTOCOLS:
            raise ConnectionError(f"Firefox refused the WebSocket: {response.status} {response.reason}")
        self.stream = self.http.sock.makefile("rb")

    def send(self, text: str) -> None:
        content = text.encode()
        size = len(content)
        if size < 126:
            start = struct.pack("!BB", 129, 128 | size)
        else:
            start = struct.pack("!BBH", 129, 254, size) if size < 65536 else struct.pack("!BBQ", 129, 255, size)
        self.http.sock.sendall(start + MASK + bytes(map(xor, content, cycle(MASK))))

    def receive(self) -> str:
        content, last = b"", False
        while not last:
            start, size = self._read("!BB")
            if size > 125:
                (size,) = self._read("!H" if size == 126 else "!Q")
            if start & 15 == CLOSE_OPCODE:
                raise ConnectionError("Firefox has closed the connection")
            content += self.stream.read(size)
            last = bool(start & 128)
        return content.decode()

    def _read(self, format: str) -> tuple[int, ...]:
        size = struct.calcsize(format)
        data = self.stream.read(size)
        if len(data) < size:
            raise ConnectionError("Firefox is gone")
        return struct.unpack(format, data)

    def close(self) -> None:
        self.stream.close()
        self.http.close()


class Firefox:
    """A running Firefox with one page."""

    def __init__(self, connection: Connection) -> None:
        self.connection, self.count = connection, 0
        self.events: list[dict[str, Any]] = []
        self.command("session.new", capabilities={})
        self.command("session.subscribe", events=EVENTS)
        self.context = self.command("browsingContext.getTree")["contexts"][0]["context"]

    def command(self, method: str, **parameters: object) -> dict[str, Any]:
        """Send a command and return its result. Events that arrive before it are recorded."""
        self.count += 1
        self.connection.send(json.dumps({"id": self.count, "method": method, "params": parameters}))
        while (answer := self._receive()).get("id") != self.count:
            pass
        if answer["type"] == "error":
            raise RuntimeError(f"{method}: {answer['error']}: {answer['message']}")
        result: dict[str, Any] = answer["result"]
        return result

    def _receive(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self.connection.receive())
        if message["type"] == "event":
            self.events.append(message)
        return message

    def open(self, address: str, width: int = 1400, height: int = 1000) -> None:
        """Show another page, and drop the events of the previous one."""
        self.command("browsingContext.navigate", context=self.context, url="about:blank", wait="complete")
        self.settle()
        self.events.clear()
        viewport = {"width": width, "height": height}
        self.command("browsingContext.setViewport", context=self.context, viewport=viewport)
        self.command("browsingContext.navigate", context=self.context, url=address, wait="complete")

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, as JSON; a promise is awaited."""
        target, text = {"context": self.context}, f"(async () => JSON.stringify((await ({expression})) ?? null))()"
        reply = self.command("script.evaluate", expression=text, target=target, awaitPromise=True)
        if reply["type"] == "exception":
            raise RuntimeError(f"{reply['exceptionDetails']['text']} in: {expression}")
        return json.loads(reply["result"]["value"])

    def until(self, condition: str) -> bool:
        """Whether a JavaScript condition comes true within `APPEAR_SECONDS`. It is checked before every frame."""
        wait = f"""new Promise((done) => {{
            const last = performance.now() + {1000 * APPEAR_SECONDS};
            const check = () => {{
                if ({condition}) done(true);
                else if (performance.now() > last) done(false);
                else requestAnimationFrame(check);
            }};
            check();
        }})"""
        return bool(self.evaluate(wait))

    def move(self, x: float, y: float) -> None:
        """Move the mouse, in pixels of the viewport."""
        self._act("pointer", {"type": "pointerMove", "x": round(x), "y": round(y)})

    def click(self, x: float, y: float) -> None:
        self.move(x, y)
        self._act("pointer", {"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0})

    def _act(self, kind: str, *actions: dict[str, object]) -> None:
        source = {"type": kind, "id": kind, "actions": actions}
        self.command("input.performActions", context=self.context, actions=[source])

    def settle(self) -> None:
        """Receive every event so far. The page logs a mark, and its events arrive in order."""
        mark = f"mark {self.count}"
        self.evaluate(f"console.debug({json.dumps(mark)})")
        while not any(event["params"].get("text") == mark for event in self.events):
            self._receive()

    def errors(self) -> list[str]:
        """The errors that the page messages or threw, and the requests that failed."""
        self.settle()
        messages = [event["text"] for event in self._params("log.entryAdded") if event["level"] == "error"]
        responses = [event["response"] for event in self._params("network.responseCompleted")]
        return messages + [
            f"{response['status']}: {response['url']}" for response in responses if response["status"] >= 400
        ]

    def requested(self) -> list[str]:
        """The addresses that the page has requested."""
        self.settle()
        return [event["request"]["url"] for event in self._params("network.beforeRequestSent")]

    def _params(self, method: str) -> list[dict[str, Any]]:
        return [event["params"] for event in self.events if event["method"] == method]


@contextmanager
def running_firefox(path: Path) -> Iterator[Firefox]:
    """Start a headless Firefox with a temporary profile."""
    options: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        lines = (f"user_pref({json.dumps(name)}, {json.dumps(value)});\n" for name, value in PREFERENCES.items())
        Path(profile, "user.js").write_text("".join(lines))
        arguments = ["--headless", "--no-remote", "--profile", profile, "--remote-debugging-port=0", "about:blank"]
        command = [str(path), *arguments]
        with subprocess.Popen(command, start_new_session=True, **options) as process:
            assert process.stdout is not None
            # A full pipe would block Firefox.
            reader = Thread(target=process.stdout.read)
            try:
                port = _read_port(process)
                reader.start()
                with closing(Connection(port)) as connection:
                    firefox = Firefox(connection)
                    yield firefox
                    firefox.command("browser.close")
                process.wait(ANSWER_SECONDS)
            finally:
                _kill(process)
                if reader.ident:
                    reader.join()


def _read_port(process: subprocess.Popen[str]) -> int:
    """The port that Firefox prints when it is ready."""
    output, timer = "", Timer(APPEAR_SECONDS, _kill, [process])
    timer.start()
    try:
        for line in process.stdout or ():
            output += line
            if match := re.search(r"WebDriver BiDi listening on ws://127\.0\.0\.1:(\d+)", line):
                return int(match[1])
    finally:
        timer.cancel()
    raise RuntimeError(f"Firefox does not start: {output}")


def _kill(process: subprocess.Popen[str]) -> None:
    """Kill Firefox and all processes that it started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
