"""Firefox where one is installed, driven by the protocol that it speaks itself: WebDriver BiDi, over a WebSocket.

``VITVIZ_FIREFOX`` names one that is to be used.
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
# Its services look for hosts outside: some can be switched off, the others find no names and a proxy that is not there.
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
    # A mouse, which can hover.
    "ui.allPointerCapabilities": 6,
    "ui.primaryPointerCapabilities": 6,
}
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Key": base64.b64encode(bytes(16)).decode(),
    "Sec-WebSocket-Version": "13",
}
CLOSED = 8
# Firefox takes a mask of zeros for none.
MASK = b"mask"
EVENTS = ("log.entryAdded", "network.beforeRequestSent", "network.responseCompleted")
KEYS = {"ArrowLeft": "\ue012", "ArrowUp": "\ue013", "ArrowRight": "\ue014", "ArrowDown": "\ue015", "Enter": "\ue007"}
SECONDS_TO_APPEAR = 30
SECONDS_TO_ANSWER = 60


def find_firefox() -> Path | None:
    """The Firefox that VITVIZ_FIREFOX names; where it is not set, the first one here that starts."""
    named = os.environ.get(VARIABLE)
    places = [shutil.which(named)] if named else [place for place in firefox_places() if place and not in_snap(place)]
    return next((Path(place) for place in places if place and version(place)), None)


def firefox_places() -> Iterator[str | Path | None]:
    """Where a Firefox may be, in the order of preference. Not every place exists."""
    yield from map(shutil.which, COMMANDS)
    if sys.platform == "darwin":
        yield from (folder / MAC_APPLICATION for folder in (Path("/Applications"), Path.home() / "Applications"))


def in_snap(place: str | Path) -> bool:
    """Whether it sees no temporary folder: neither the profile nor the pages there."""
    file = Path(place).resolve()
    return "snap" in file.parts or (file.is_file() and b"/snap/" in file.read_bytes()[:4096])


class Connection:
    """A WebSocket (RFC 6455) to a port of this machine, for text."""

    def __init__(self, port: int) -> None:
        self.http = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS_TO_ANSWER)
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
            if start & 15 == CLOSED:
                raise ConnectionError("Firefox has closed the connection")
            content += self.stream.read(size)
            last = bool(start & 128)
        return content.decode()

    def _read(self, form: str) -> tuple[int, ...]:
        size = struct.calcsize(form)
        found = self.stream.read(size)
        if len(found) < size:
            raise ConnectionError("Firefox is gone")
        return struct.unpack(form, found)

    def close(self) -> None:
        self.stream.close()
        self.http.close()


class Firefox:
    """A running Firefox with one page."""

    def __init__(self, connection: Connection) -> None:
        self.connection, self.count = connection, 0
        self.heard: list[dict[str, Any]] = []
        self.command("session.new", capabilities={})
        self.command("session.subscribe", events=EVENTS)
        self.context = self.command("browsingContext.getTree")["contexts"][0]["context"]

    def command(self, method: str, **parameters: object) -> dict[str, Any]:
        """What Firefox answers. Events that come before are kept."""
        self.count += 1
        self.connection.send(json.dumps({"id": self.count, "method": method, "params": parameters}))
        while (answer := self._hear()).get("id") != self.count:
            pass
        if answer["type"] == "error":
            raise RuntimeError(f"{method}: {answer['error']}: {answer['message']}")
        result: dict[str, Any] = answer["result"]
        return result

    def _hear(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self.connection.receive())
        if message["type"] == "event":
            self.heard.append(message)
        return message

    def open(self, address: str, width: int = 1400, height: int = 1000) -> None:
        """Show another page, and forget what was heard of the one before."""
        self.command("browsingContext.navigate", context=self.context, url="about:blank", wait="complete")
        self.settle()
        self.heard.clear()
        viewport = {"width": width, "height": height}
        self.command("browsingContext.setViewport", context=self.context, viewport=viewport)
        self.command("browsingContext.navigate", context=self.context, url=address, wait="complete")

    def evaluate(self, expression: str) -> Any:
        """The value of JavaScript; of a promise, what it brings."""
        target = {"context": self.context}
        found = self.command("script.evaluate", expression=expression, target=target, awaitPromise=True)
        if found["type"] == "exception":
            raise RuntimeError(f"{found['exceptionDetails']['text']} in: {expression}")
        return plain(found["result"])

    def until(self, condition: str) -> bool:
        """Whether a condition in JavaScript comes true; it is looked at before every frame."""
        look = f"""new Promise((done) => {{
            const last = performance.now() + {1000 * SECONDS_TO_APPEAR};
            const look = () => {{
                if ({condition}) done(true);
                else if (performance.now() > last) done(false);
                else requestAnimationFrame(look);
            }};
            look();
        }})"""
        return bool(self.evaluate(look))

    def move(self, x: float, y: float) -> None:
        """Move the mouse, in pixels of the viewport."""
        self._act("pointer", {"type": "pointerMove", "x": round(x), "y": round(y)})

    def click(self, x: float, y: float) -> None:
        self.move(x, y)
        self._act("pointer", {"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0})

    def press(self, key: str) -> None:
        """Press a key by its name, as `KeyboardEvent.key` has it."""
        value = KEYS.get(key, key)
        self._act("key", {"type": "keyDown", "value": value}, {"type": "keyUp", "value": value})

    def _act(self, kind: str, *actions: dict[str, object]) -> None:
        source = {"type": kind, "id": kind, "actions": actions}
        self.command("input.performActions", context=self.context, actions=[source])

    def screenshot(self, path: Path) -> None:
        found = self.command("browsingContext.captureScreenshot", context=self.context, origin="document")
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(base64.b64decode(found["data"]))

    def settle(self) -> None:
        """Hear what the page has done so far: what it logs comes after what it logged before."""
        mark = f"mark {self.count}"
        self.evaluate(f"console.debug({json.dumps(mark)})")
        while not any(event["params"].get("text") == mark for event in self.heard):
            self._hear()

    def errors(self) -> list[str]:
        """What the page has logged or thrown, and what it was refused."""
        self.settle()
        logged = [event["text"] for event in self._all("log.entryAdded") if event["level"] == "error"]
        responses = [event["response"] for event in self._all("network.responseCompleted")]
        return logged + [f"{found['status']}: {found['url']}" for found in responses if found["status"] >= 400]

    def asked(self) -> list[str]:
        """The addresses that the page has asked for."""
        self.settle()
        return [event["request"]["url"] for event in self._all("network.beforeRequestSent")]

    def _all(self, method: str) -> list[dict[str, Any]]:
        return [event["params"] for event in self.heard if event["method"] == method]


def plain(value: dict[str, Any]) -> Any:
    """A value of JavaScript as Python has it."""
    kind: str = value["type"]
    content: Any = value.get("value")
    if kind == "array":
        return [plain(part) for part in content]
    if kind == "object":
        return {name: plain(part) for name, part in content}
    # What JSON has no number for comes as text: NaN, Infinity, -0.
    return float(content) if kind == "number" else content


@contextmanager
def running_firefox(path: Path) -> Iterator[Firefox]:
    """A Firefox of its own, without a window, with a profile that goes with it."""
    options: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        lines = (f"user_pref({json.dumps(name)}, {json.dumps(value)});\n" for name, value in PREFERENCES.items())
        Path(profile, "user.js").write_text("".join(lines))
        command = [
            str(path),
            "--headless",
            "--no-remote",
            "--profile",
            profile,
            "--remote-debugging-port=0",
            "about:blank",
        ]
        with subprocess.Popen(command, start_new_session=True, **options) as process:
            assert process.stdout is not None
            # A pipe that nobody reads would hold it up.
            reader = Thread(target=process.stdout.read)
            try:
                port = _announced(process)
                reader.start()
                with closing(Connection(port)) as connection:
                    firefox = Firefox(connection)
                    yield firefox
                    firefox.command("browser.close")
                process.wait(SECONDS_TO_ANSWER)
            finally:
                _end(process)
                if reader.ident:
                    reader.join()


def _announced(process: subprocess.Popen[str]) -> int:
    """The port that it prints."""
    printed, timer = "", Timer(SECONDS_TO_APPEAR, _end, [process])
    timer.start()
    try:
        for line in process.stdout or ():
            printed += line
            if found := re.search(r"WebDriver BiDi listening on ws://127\.0\.0\.1:(\d+)", line):
                return int(found[1])
    finally:
        timer.cancel()
    raise RuntimeError(f"Firefox does not start: {printed}")


def _end(process: subprocess.Popen[str]) -> None:
    """With all that it has started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
