"""Hosts, origins, forwarded headers, the headers of answers, and whose pages are remembered."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.server_client import RunningApp, exchange, form, post, request_head, running_here
from tests.support.example import ROOT
from vitviz.errors.kinds import ConfigError
from vitviz.ui.server.bodies import RequestError
from vitviz.ui.server.headers import ResponseHeaders
from vitviz.ui.server.hosts import LOOPBACK, PRIVATE, SPACE_FRAMES, SPACE_HOSTS, HostRules, networks
from vitviz.ui.server.settings import ServerSettings

pytestmark = pytest.mark.process

PROXY, ANNA, BEN = "127.0.0.1", "127.0.0.7", "127.0.0.8"
EDGE = "multipart/form-data; boundary=edge"
POLICY = b"content-security-policy"


@pytest.fixture(scope="module")
def served(bundled: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApp]:
    """Behind a proxy at one address of this machine; others are visitors'."""
    server_settings = ServerSettings(trusted_proxies=(PROXY,), hosts=("vit.localhost", "*.wild.localhost"))
    folder = tmp_path_factory.mktemp("gradio")
    with (
        pytest.MonkeyPatch.context() as environment,
        running_here(bundled, folder, environment, server_settings) as found,
    ):
        yield found


def scope_of(peer: str = PROXY, scheme: str = "http", **headers: str) -> dict[str, Any]:
    sent = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http", "client": (peer, 5), "scheme": scheme, "headers": sent, "method": "POST"}


def rules(*hosts: str, proxies: tuple[str, ...] = (LOOPBACK,)) -> HostRules:
    return HostRules(hosts or ("localhost",), networks(proxies))


# Hosts.


@pytest.mark.parametrize(
    ("host", "is_served"),
    [
        ("localhost", True),
        ("LOCALHOST:7860", True),
        ("localhost.", True),
        ("127.0.0.1:7860", True),
        ("[::1]:7860", True),
        ("vit.localhost", True),
        ("a.wild.localhost:80", True),
        ("wild.localhost", False),
        ("other.localhost", False),
        ("vit.localhost.other.localhost", False),
        ("127.0.0.1.other.localhost", False),
        ("localhost@other.localhost", False),
        ("localhost/", False),
        ("localhost:x", False),
        ("[localhost]", False),
        ("127.1", False),
        (".", False),
        ("*", False),
    ],
)
def test_the_app_answers_for_its_own_names_and_for_addresses(served: RunningApp, host: str, is_served: bool) -> None:
    for method, path in [("GET", "/config"), ("GET", "/health"), ("POST", "/gradio_api/upload")]:
        answer = exchange(served.port, request_head(method, path, host=host))
        assert (answer.status == 403) is not is_served, answer
        if not is_served:
            assert f"the host '{host.lower()}'" in answer.detail and "VITVIZ_HOSTS=" in answer.detail
    forwarded = exchange(served.port, request_head("GET", "/config", f"X-Forwarded-Host: {host}"))
    assert (forwarded.status == 403) is not is_served


def test_by_default_it_answers_for_this_machine_and_where_it_is_told_to_be() -> None:
    environment = {"GRADIO_SERVER_NAME": "one.localhost", "GRADIO_ROOT_PATH": "https://two.localhost/vit"}
    found = HostRules.of(environment=environment)
    for host in ("localhost", socket.gethostname().lower(), "one.localhost", "two.localhost"):
        found.admit(scope_of(host=host))
    with pytest.raises(RequestError):
        found.admit(scope_of(host="three.localhost"))
    assert (found.proxies, found.frames) == ((), ())
    HostRules.of(("*",), environment={}).admit(scope_of(host="three.localhost"))


def test_a_space_answers_in_the_frame_of_its_host() -> None:
    found = HostRules.of(environment={"SPACE_ID": "owner/name", "SPACE_HOST": "owner-name.localhost"})
    for host in ("owner-name.localhost", SPACE_HOSTS.replace("*", "owner-name")):
        admitted = found.admit(scope_of(host=host, x_forwarded_proto="https"))
        assert admitted["scheme"] == "https"
        found.check_origin({**admitted, "headers": [*admitted["headers"], (b"origin", f"https://{host}".encode())]})
    assert found.frames == SPACE_FRAMES and found.proxies == networks((LOOPBACK, PRIVATE))
    start = ResponseHeaders(found.frames).secured({"type": "http.response.start", "headers": []}, "/")
    policy = dict(start["headers"])[b"content-security-policy"].decode()
    assert f"frame-ancestors 'self' {' '.join(SPACE_FRAMES)}" in policy


# Origins.


@pytest.mark.parametrize("target", ["/gradio_api/upload", "/gradio_api/call/v2/models", "/gradio_api/cancel"])
def test_a_page_of_another_site_sends_nothing_here(served: RunningApp, target: str) -> None:
    content, kind = (form(("a", b"x")), EDGE) if "upload" in target else (b"{}", "application/json")
    own = [f"http://localhost:{served.port}", f"HTTP://LOCALHOST:{served.port}"]
    foreign = ["null", "http://localhost", f"http://localhost:{served.port + 1}", f"http://127.0.0.1:{served.port}"]
    foreign += [f"https://localhost:{served.port + 1}", "http://other.localhost", "file://", "http://[", "x", ""]
    for origin in [*own, *foreign]:
        sent = request_head(
            "POST",
            target,
            f"Origin: {origin}",
            f"Content-Type: {kind}",
            f"Content-Length: {len(content)}",
            host=f"localhost:{served.port}",
        )
        answer = exchange(served.port, sent, content)
        assert (answer.status == 403) is (origin in foreign), (origin, answer)
        if origin in foreign:
            assert answer.detail == "this request comes from a page of another site"
        assert not any(name.startswith("access-control") for name in answer.headers)
    assert post(served.port, target, content, kind=kind).status != 403


def test_ports_that_a_scheme_stands_for_need_not_be_said() -> None:
    for origin, host in [("http://localhost", "localhost:80"), ("https://localhost:443", "localhost")]:
        rules().check_origin(scope_of(host=host, origin=origin))
    rules().check_origin(scope_of(host="inner", x_forwarded_host="localhost", origin="https://localhost"))
    with pytest.raises(RequestError):
        rules().check_origin(scope_of(host="localhost:443", origin="http://localhost"))


def test_another_site_reads_nothing_here(served: RunningApp) -> None:
    answer = exchange(served.port, request_head("GET", "/config", "Origin: http://other.localhost"))
    assert not any(name.startswith("access-control") for name in answer.headers)
    preflight = request_head("OPTIONS", "/config", "Origin: http://localhost", "Access-Control-Request-Method: POST")
    assert exchange(served.port, preflight).status == 404


# Forwarded headers.


def test_what_a_stranger_says_of_proxies_is_not_heard() -> None:
    said = {"x_forwarded_host": "localhost:1", "x_forwarded_proto": "https", "x_forwarded_for": ANNA}
    said |= {
        "x_forwarded_prefix": "/x",
        "forwarded": f"for={ANNA}",
        "x_real_ip": ANNA,
        "x_gradio_server": "http://localhost",
    }
    admitted = rules(proxies=()).admit(scope_of(BEN, host="localhost", **said))
    assert [name for name, _ in admitted["headers"]] == [b"host"]
    assert (admitted["client"][0], admitted["scheme"]) == (BEN, "http")


@pytest.mark.parametrize(
    ("hops", "visitor"),
    [
        (ANNA, ANNA),
        (f"{ANNA}, {PROXY}", ANNA),
        (f"{BEN}, {ANNA}", ANNA),
        (f"{ANNA}:4711", ANNA),
        # Only a proxy can have written it.
        (f"{ANNA}, unknown", "unknown"),
        (f"{PROXY}, {PROXY}:4711", PROXY),
        ("", PROXY),
        (f"nonsense, {ANNA}, {PROXY}", ANNA),
        (PROXY, PROXY),
    ],
)
def test_a_visitor_is_the_last_address_that_is_no_proxys(hops: str, visitor: str) -> None:
    admitted = rules(proxies=(PROXY,)).admit(scope_of(host="localhost", x_forwarded_for=hops))
    assert admitted["client"][0] == visitor


def test_a_network_of_the_new_protocol_is_one_visitor() -> None:
    def visitor(address: str) -> str:
        return str(rules().admit(scope_of(address, host="localhost"))["client"][0])

    assert visitor("::1") == visitor("::2") and visitor(ANNA) != visitor(BEN)
    assert visitor("2001:db8::1") == visitor("2001:db8:0:0:8000::1") != visitor("2001:db8:0:1::1")
    assert visitor(f"::ffff:{ANNA}") == f"::ffff:{ANNA}" and visitor("unix") == "unix"


@pytest.mark.parametrize(
    ("peer", "names", "is_proxy"),
    [
        (ANNA, (LOOPBACK,), True),
        ("::1", (PRIVATE,), True),
        ("10.1.2.3", (PRIVATE,), True),
        ("100.64.0.1", (PRIVATE,), True),
        ("fd00::1", (PRIVATE,), True),
        (f"::ffff:{ANNA}", ("127.0.0.0/8",), True),
        ("2001:db8::1", ("2001:db8::/32",), True),
        ("", (PRIVATE,), False),
        ("8.8.8.8", (PRIVATE, LOOPBACK), False),
        ("10.1.2.3", (LOOPBACK,), False),
        (ANNA, (PROXY,), False),
        (ANNA, (), False),
    ],
)
def test_a_proxy_is_known_by_its_network(peer: str, names: tuple[str, ...], is_proxy: bool) -> None:
    admitted = rules(proxies=names).admit(scope_of(peer, host="localhost", x_forwarded_for=BEN))
    assert (admitted["client"][0] != peer) == is_proxy


def test_the_pages_root_is_what_a_proxy_says(served: RunningApp) -> None:
    def root(*headers: str) -> str:
        return str(json.loads(exchange(served.port, request_head("GET", "/config", *headers)).body)["root"])

    assert root() == "http://localhost"
    assert root("X-Forwarded-Host: vit.localhost", "X-Forwarded-Proto: https") == "https://vit.localhost"
    assert root("X-Gradio-Server: http://vit.localhost/x") == "http://localhost"


# Settings.


@pytest.mark.parametrize(
    ("name", "text", "phrase"),
    [
        ("TRUSTED_PROXIES", "nginx", "addresses, networks, or the words loopback and private"),
        ("TRUSTED_PROXIES", "127.0.0.1/99", "addresses, networks"),
    ],
)
def test_a_wrong_setting_is_an_error_that_says_what_is_right(name: str, text: str, phrase: str) -> None:
    with pytest.raises(ConfigError, match=rf"^VITVIZ_{name} = .*: expected {re.escape(phrase)}"):
        ServerSettings.of({f"VITVIZ_{name}": text})


def test_settings_are_lists_between_commas() -> None:
    said = {
        "VITVIZ_HOSTS": "One.localhost, *.two.localhost,",
        "VITVIZ_TRUSTED_PROXIES": "loopback,127.0.0.0/8, ::1",
        "VITVIZ_FRAMES": "http://localhost:3000, https://*.localhost",
    }
    found = ServerSettings.of(said)
    HostRules.of(found.hosts, environment={}).admit(scope_of(host="one.localhost"))
    HostRules.of(found.hosts, environment={}).admit(scope_of(host="a.two.localhost"))
    assert list(map(str, found.trusted_proxies or ())) == ["127.0.0.0/8", "::1/128", "127.0.0.0/8", "::1/128"]
    assert found.frames == ("http://localhost:3000", "https://*.localhost")
    assert ServerSettings().hosts is None


# The headers of answers.


def test_every_answer_says_what_a_browser_may_do_with_it(served: RunningApp) -> None:
    for path in ("/", "/config", "/health", "/nothing", "/theme.css", "/gradio_api/info"):
        headers = exchange(served.port, request_head("GET", path)).headers
        assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "same-origin"), path
        policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
        assert policy["frame-ancestors"] == "'self'" and policy["default-src"] == policy["base-uri"] == "'none'"
        assert "unsafe" not in headers["content-security-policy"] and "http" not in headers["content-security-policy"]


def test_the_page_on_the_device_may_run_its_kernels_and_its_workers_besides() -> None:
    start, headers = {"type": "http.response.start", "status": 200, "headers": []}, ResponseHeaders()
    page, device = (
        dict(part.split(" ", 1) for part in dict(headers.secured(start, path)["headers"])[POLICY].decode().split("; "))
        for path in ("/", "/device/")
    )
    allowed = {"script-src": "'self' 'wasm-unsafe-eval'", "worker-src": "blob:"}
    assert device == {**page, **allowed} and page["script-src"] == "'self'" and "worker-src" not in page


def test_a_file_runs_nothing_and_what_is_no_picture_is_saved(served: RunningApp) -> None:
    picture = (ROOT / "assets" / "chelsea.jpg").read_bytes()
    names = {"a.jpg": picture, "a.html": b"<script>", "a.svg": b"<svg/>", "a.txt": b"x", "a.json": b"{}", "a.pdf": b"%"}
    sent = post(served.port, "/gradio_api/upload", form(*names.items()), kind=EDGE)
    for name, path in zip(names, json.loads(sent.body), strict=True):
        headers = exchange(served.port, request_head("GET", f"/gradio_api/file={path}")).headers
        assert headers["content-security-policy"].startswith("default-src 'none'; ")
        assert "; sandbox; " in headers["content-security-policy"] and headers["x-content-type-options"] == "nosniff"
        shown = headers["content-disposition"].split(";")[0]
        assert shown == ("inline" if name == "a.jpg" else "attachment"), name
        assert "html" not in headers["content-type"] and "svg" not in headers["content-type"]
        ranged = exchange(served.port, request_head("GET", f"/gradio_api/file={path}", "Range: bytes=0-0"))
        assert ranged.headers["content-disposition"].split(";")[0] == shown
