"""The hosts and origins that the app serves, and the proxies whose forwarded headers it believes."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import TypeAlias
from urllib.parse import urlsplit

from vitviz.errors.messages import quote
from vitviz.ui.server.bodies import Scope
from vitviz.ui.server.rule import RequestError

Address: TypeAlias = IPv4Address | IPv6Address

LOOPBACK, PRIVATE = "loopback", "private"
# Hugging Face sets these in a Space.
SPACE_ID, SPACE_HOST = "SPACE_ID", "SPACE_HOST"
SERVER_NAME, ROOT_PATH = "GRADIO_SERVER_NAME", "GRADIO_ROOT_PATH"
SPACE_HOSTS = "*.hf.space"
SPACE_FRAMES = ("https://huggingface.co", "https://*.hf.space")
PORTS = {"http": 80, "https": 443}
# Headers that a proxy sets, and a visitor must not.
FORWARDED = (b"x-forwarded-", b"forwarded", b"x-real-ip")
BY_PROXY = (
    "a proxy has passed on this request: expected VITVIZ_TRUSTED_PROXIES=loopback (or the proxy's address), so that "
    "the app knows its visitors apart, or VITVIZ_SHARED=0 if they are its owner alone"
)
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]{1,253})(?::(\d{1,5}))?", re.IGNORECASE)


def host_pattern(text: str) -> str:
    """A host name, in which ``*`` stands for any characters.

    Raises:
        ValueError: the text is none.
    """
    if re.fullmatch(r"[a-z0-9._*-]{1,253}", text.lower()) is None:
        raise ValueError("names of hosts without ports, such as vit.example.org or *.example.org, or * for any")
    return text.lower().rstrip(".")


def proxy_name(text: str) -> str:
    """A network, an address, ``loopback`` or ``private``.

    Raises:
        ValueError: the text is none of these.
    """
    if text not in (LOOPBACK, PRIVATE):
        try:
            ip_network(text, strict=False)
        except ValueError:
            raise ValueError(f"addresses, networks, or the words {LOOPBACK} and {PRIVATE}") from None
    return text


def frame_source(text: str) -> str:
    """An origin whose pages may show the app in a frame.

    Raises:
        ValueError: the text is no origin.
    """
    if re.fullmatch(r"https?://(\*\.)?[a-z0-9.-]+(:\d{1,5})?", text, re.IGNORECASE) is None:
        raise ValueError("origins, such as https://example.org or https://*.example.org")
    return text


@dataclass(frozen=True)
class Proxies:
    """The peers whose forwarded headers are believed.

    Args:
        names: networks, addresses, ``loopback`` or ``private``.
    """

    names: tuple[str, ...]

    def __contains__(self, address: object) -> bool:
        peer = _address(address) if isinstance(address, str) else None
        return peer is not None and any(_is_in(peer, name) for name in self.names)


@dataclass(frozen=True)
class HostRules:
    """The hosts and origins that are served.

    Args:
        hosts: patterns of names. Addresses are always served: no attacker's name can stand for them.
        proxies: the peers whose forwarded headers are believed.
        frames: other origins that may show the page in a frame.
        refuses_proxies: whether a request that a proxy has passed on is refused: nobody has said whose the app is.
    """

    hosts: tuple[str, ...]
    proxies: Proxies
    frames: tuple[str, ...] = ()
    refuses_proxies: bool = False

    @classmethod
    def of(
        cls,
        hosts: Iterable[str] | None = None,
        proxies: Iterable[str] | None = None,
        frames: Iterable[str] | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> HostRules:
        """The rules of the settings, with defaults for this machine or Space.

        Args:
            hosts, proxies, frames: of the settings.
            environment: whether this is a Space, and the name and path of the app.
        """
        is_space = bool(environment.get(SPACE_ID))
        own_names = [
            *("localhost", socket.gethostname(), f"{socket.gethostname()}.local"),
            *(environment.get(SERVER_NAME, ""), environment.get(SPACE_HOST, "")),
            urlsplit(environment.get(ROOT_PATH, "")).hostname or "",
            SPACE_HOSTS if is_space else "",
        ]
        names = [name.lower().rstrip(".") for name in own_names if re.fullmatch(r"[A-Za-z0-9._*-]{1,253}", name)]
        return cls(
            (*dict.fromkeys([*names, *(hosts or ())]),),
            Proxies(((LOOPBACK, PRIVATE) if is_space else ()) if proxies is None else tuple(proxies)),
            (SPACE_FRAMES if is_space else ()) if frames is None else tuple(frames),
        )

    def admit(self, scope: Scope) -> Scope:
        """The request for Gradio: with the visitor's address, and with forwarded headers of trusted proxies alone.

        Raises:
            RequestError: it is for another host, or comes by a proxy that nobody has named.
        """
        if self.refuses_proxies and any(name.startswith(FORWARDED) for name, _ in scope["headers"]):
            raise RequestError(403, BY_PROXY)
        peer = scope["client"][0] if scope.get("client") else ""
        is_forwarded = peer in self.proxies
        headers = [(name, value) for name, value in scope["headers"] if is_forwarded or not name.startswith(FORWARDED)]
        # Gradio's front server, which vitviz does not start, sends its address in this header.
        headers = [(name, value) for name, value in headers if name != b"x-gradio-server"]
        for name in (b"host", b"x-forwarded-host"):
            for value in _values(headers, name):
                self._check_host(value)
        admitted = {**scope, "headers": headers}
        if is_forwarded:
            admitted["client"] = (self._visitor(peer, headers), 0)
            schemes = _values(headers, b"x-forwarded-proto")
            if schemes and schemes[0] in PORTS:
                admitted["scheme"] = schemes[0]
        return admitted

    def check_origin(self, scope: Scope) -> None:
        """Refuse requests that a page of another site makes a visitor's browser send.

        A browser sends ``Origin`` with every POST; a request without it comes from a program. Sandboxed pages of any
        site send ``null``.

        Raises:
            RequestError: the origin is another one.
        """
        origins = [value for name, value in scope["headers"] if name == b"origin"]
        hosts = {*_values(scope["headers"], b"host"), *_values(scope["headers"], b"x-forwarded-host")}
        for origin in origins:
            scheme, _, name = origin.decode("latin-1").lower().partition("://")
            port = PORTS.get(scheme)
            if port is None or not any(_with_port(name, port) == _with_port(host, port) for host in hosts):
                raise RequestError(403, "this request comes from a page of another site")

    def _check_host(self, value: str) -> None:
        match = _HOST.fullmatch(value)
        name = "" if match is None else match[1].lower().rstrip(".")
        if match is None or not (
            _address(name.strip("[]")) is not None or any(fnmatchcase(name, pattern) for pattern in self.hosts)
        ):
            raise RequestError(
                403,
                f"this server does not answer for the host {quote(value)}: expected one that VITVIZ_HOSTS names, "
                f"such as VITVIZ_HOSTS={name or 'vit.example.org'}",
            )

    def _visitor(self, peer: str, headers: list[tuple[bytes, bytes]]) -> str:
        """The last address on the way here that is no trusted proxy's."""
        hops = _values(headers, b"x-forwarded-for")
        for hop in reversed(hops):
            address = _address(hop.rpartition(":")[0] if hop.count(":") == 1 else hop.strip("[]"))
            # Whoever wrote an illegible hop may have made up those before it.
            if address is None:
                break
            peer = str(address)
            if peer not in self.proxies:
                break
        return peer


@lru_cache(1024)
def visitor_key(address: str) -> str:
    """The key of a visitor: the address, or the /64 network of IPv6, all of which belongs to one visitor."""
    parsed = _address(address)
    if isinstance(parsed, IPv6Address):
        return str(ip_network((parsed, 64), strict=False))
    return address


def _address(text: str) -> Address | None:
    try:
        address = ip_address(text.strip())
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _is_in(address: Address, name: str) -> bool:
    if name == LOOPBACK:
        return address.is_loopback
    # The shared addresses of carriers and clouds are neither global nor private.
    if name == PRIVATE:
        return not address.is_global
    return address in ip_network(name, strict=False)


def _values(headers: list[tuple[bytes, bytes]], name: bytes) -> list[str]:
    """The values of all headers of a name, which commas separate."""
    return [
        item.strip().lower()
        for header, value in headers
        if header == name
        for item in value.decode("latin-1").split(",")
        if item.strip()
    ]


def _with_port(host: str, port: int) -> str:
    return host if re.search(r":\d+$", host) else f"{host}:{port}"
