"""The answers of the tests' hub to each request, and the faults that a test injects into them."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any, ClassVar
from urllib.parse import quote, unquote, urlsplit


@dataclass(frozen=True)
class Request:
    """One request: ``target`` is the method with the file, or with the kind of request, such as "GET list"."""

    target: str
    method: str
    path: str
    range: str | None
    authorization: str | None


@dataclass
class Fault:
    """A fault; see :meth:`HubServer.fault`."""

    kind: str | int
    on: str
    after: int
    times: int | None
    headers: Mapping[str, str]


@dataclass(frozen=True)
class Commit:
    """A commit: its files by name."""

    id: str
    files: Mapping[str, bytes]
    lfs: frozenset[str]
    xet: frozenset[str]


@dataclass
class State:
    revisions: dict[str, dict[str, Commit]] = field(default_factory=dict)
    large: dict[str, bytes] = field(default_factory=dict)
    log: list[Request] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    answers: dict[str, bytes] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    repaired: threading.Event = field(default_factory=threading.Event)
    connections: list[socket.socket] = field(default_factory=list)
    # Addresses of clients that are never answered.
    stalled: set[Any] = field(default_factory=set)


def git_hash(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


# The refusals of the hub: the status without and with a token, and the headers.
REFUSALS: dict[str, tuple[int, int, dict[str, str]]] = {
    "gated": (401, 403, {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to model is restricted."}),
    "no repository": (401, 404, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}),
    "no revision": (404, 404, {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "Invalid rev id"}),
    "no file": (404, 404, {"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"}),
    "bad token": (401, 401, {"X-Error-Message": "Invalid credentials in Authorization header"}),
}

ROUTES = (
    ("list", re.compile(r"/api/models/(?P<repository>[^/]+/[^/]+)(?:/revision/(?P<revision>[^/]+))?")),
    ("xet", re.compile(r"/api/models/[^/]+/[^/]+/xet-read-token/[^/]+")),
    ("file", re.compile(r"/(?P<repository>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<name>.+)")),
    ("large", re.compile(r"/large/(?P<hash>[0-9a-f]{64})/(?P<name>.+)")),
)


class _Answered(Exception):
    pass


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Headers and content are two writes; with Nagle's algorithm the second waits for the acknowledgement of the first.
    disable_nagle_algorithm = True
    state: ClassVar[State]

    def setup(self) -> None:
        super().setup()
        self.state.connections.append(self.connection)

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.answer(404, {}, b"")

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        kind, groups = next(
            ((kind, match.groupdict()) for kind, route in ROUTES if (match := route.fullmatch(path))), ("nothing", {})
        )
        fields = {name: unquote(value) for name, value in groups.items() if value is not None}
        # The hub's client also sends requests that concern no repository.
        self.faults: list[Fault] = []
        if kind != "nothing":
            self.note(f"{self.command} {'link to ' * self.is_link(kind, fields)}{fields.get('name', kind)}", path)
        try:
            self.refuse()
            if kind in self.state.answers:
                return self.answer(200, {"Content-Type": "application/json"}, self.state.answers[kind])
            getattr(self, f"answer_{kind}")(**fields)
        except (_Answered, ConnectionError):
            pass

    def is_link(self, kind: str, fields: Mapping[str, str]) -> bool:
        """Whether the request is for the content of a large file, which is answered by a redirect."""
        commit = self.state.revisions.get(fields.get("repository", ""), {}).get(fields.get("revision", ""))
        return kind == "file" and self.command == "GET" and commit is not None and fields["name"] in commit.lfs

    def note(self, target: str, path: str) -> None:
        with self.state.lock:
            headers = (self.headers.get("Range"), self.headers.get("Authorization"))
            self.state.log.append(Request(target, self.command, path, *headers))
            for fault in self.state.faults:
                if fault.on in target and fault.times != 0:
                    self.faults.append(fault)
                    fault.times = None if fault.times is None else fault.times - 1

    def fault(self, kind: str) -> Fault | None:
        return next((fault for fault in self.faults if fault.kind == kind), None)

    def refuse(self) -> None:
        for fault in self.faults:
            if isinstance(fault.kind, int):
                self.answer(fault.kind, fault.headers, b"")
            elif fault.kind in REFUSALS:
                anonymous, authorized, headers = REFUSALS[fault.kind]
                self.answer(
                    authorized if self.headers.get("Authorization") else anonymous, {**headers, **fault.headers}, b""
                )
            elif fault.kind == "html":
                self.answer(200, {"Content-Type": "text/html"}, b"<!doctype html><title>Log in</title>")
            else:
                continue
            raise _Answered

    def answer(self, status: int, headers: Mapping[str, str], content: bytes) -> None:
        stall, drop, truncate = self.fault("stall"), self.fault("drop"), self.fault("truncate")
        if truncate and self.command == "GET":
            content = content[: truncate.after]
        if stall and not stall.after:
            self.wait()
        if drop and self.command == "HEAD":
            self.close_connection = True
            raise _Answered
        self.send_response(status)
        wrong = self.fault("headers")
        headers = {**headers, **(wrong.headers if wrong else {})}
        if self.fault("no length"):
            self.close_connection = True
            headers = {name: value for name, value in headers.items() if name != "Content-Length"}
            headers["Connection"] = "close"
        else:
            headers = {"Content-Length": str(len(content)), **headers}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "GET":
            return
        interruption = stall or drop
        self.wfile.write(content if interruption is None else content[: interruption.after])
        if interruption is not None:
            self.wfile.flush()
            if stall:
                self.wait()
            self.close_connection = True
            raise _Answered

    def wait(self) -> None:
        self.state.stalled.add(self.client_address)
        self.state.repaired.wait()
        self.close_connection = True
        raise _Answered

    def commit(self, repository: str, revision: str) -> Commit:
        if repository not in self.state.revisions:
            self.faults.append(Fault("no repository", "", 0, None, {}))
        elif revision not in self.state.revisions[repository]:
            self.faults.append(Fault("no revision", "", 0, None, {}))
        self.refuse()
        return self.state.revisions[repository][revision]

    def answer_nothing(self) -> None:
        self.answer(404, {}, b"")

    # A client that loads files from Xet would begin here.
    answer_xet = answer_nothing

    def answer_list(self, repository: str, revision: str = "main") -> None:
        commit = self.commit(repository, revision)
        siblings: list[dict[str, Any]] = []
        for name, content in commit.files.items():
            lfs = {"lfs": {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}}
            known = {"size": len(content), "blobId": git_hash(content)}
            siblings.append({"rfilename": name, **known, **(lfs if name in commit.lfs else {})})
        listing = {"id": repository, "sha": commit.id, "siblings": siblings}
        self.answer(200, {"Content-Type": "application/json"}, json.dumps(listing).encode())

    def answer_file(self, repository: str, revision: str, name: str) -> None:
        commit = self.commit(repository, revision)
        if name not in commit.files:
            self.faults.append(Fault("no file", "", 0, None, {}))
            self.refuse()
        content, origin = commit.files[name], f"http://127.0.0.1:{self.server.server_port}"
        headers, size = {"X-Repo-Commit": commit.id}, str(len(content))
        etag = hashlib.sha256(content).hexdigest() if name in commit.lfs else git_hash(content)
        if name in commit.xet:
            headers["X-Xet-Hash"] = etag
            headers["X-Xet-Refresh-Route"] = f"{origin}/api/models/{repository}/xet-read-token/{commit.id}"
            headers["Link"] = f'<{headers["X-Xet-Refresh-Route"]}>; rel="xet-auth"'
        if name in commit.lfs:
            linked = {"X-Linked-Size": size, "X-Linked-Etag": f'"{etag}"'}
            large = hashlib.sha256(content).hexdigest()
            # Another origin, which must not receive the token.
            location = f"http://localhost:{self.server.server_port}/large/{large}/{quote(name)}"
            return self.answer(302, {**headers, **linked, "Location": location}, b"")
        if self.command == "HEAD":
            headers["Content-Length"] = size
        self.answer_content({**headers, "ETag": f'"{etag}"'}, content)

    def answer_large(self, hash: str, name: str) -> None:
        self.answer_content({"ETag": f'"{hash}"'}, self.state.large[hash])

    def answer_content(self, headers: Mapping[str, str], content: bytes) -> None:
        if self.fault("corrupt"):
            content = content[:-1] + bytes([content[-1] ^ 1])
        requested = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if requested is None or self.fault("no range"):
            return self.answer(200, {"Accept-Ranges": "bytes", **headers}, content)
        start, end = int(requested[1]), min(int(requested[2] or len(content)), len(content) - 1)
        if start >= len(content):
            return self.answer(416, {"Content-Range": f"bytes */{len(content)}"}, b"")
        partial = {"Content-Range": f"bytes {start}-{end}/{len(content)}", **headers}
        self.answer(206, partial, content[start : end + 1])
