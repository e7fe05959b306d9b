"""For which hosts and origins the app answers, and whose forwarded headers it believes."""

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

from vitviz.ui.server.bodies import RequestError, Scope

Address: TypeAlias = IPv4Address | IPv6Address

LOOPBACK, PRIVATE = "loopback", "private"
# By these Hugging Face tells a Space what it is.
SPACE_ID, SPACE_HOST = "SPACE_ID", "SPACE_HOST"
SERVER_NAME, ROOT_PATH = "GRADIO_SERVER_NAME", "GRADIO_ROOT_PATH"
SPACE_HOSTS = "*.hf.space"
# Of a page that is opened there without a frame, Gradio shows the name and the author at the top.
SPACE_SOURCES = ("https://huggingface.co",)
SPACE_FRAMES = ("https://huggingface.co", "https://*.hf.space")
PORTS = {"http": 80, "https": 443}
# Headers that a proxy sets, and a visitor must not.
FORWARDED = frozenset({b"forwarded", b"x-real-ip"})
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]{1,253})(?::(\d{1,5}))?", re.IGNORECASE)


def host_pattern(text: str) -> str:
    """The name of a host; ``*`` stands for any part of it.

    Raises:
        ValueError: it is none.
    """
    if re.fullmatch(r"[a-z0-9._*-]{1,253}", text.lower()) is None:
        raise ValueError("names of hosts without ports, such as vit.example.org or *.example.org, or * for any")
    return text.lower().rstrip(".")


def proxy_name(text: str) -> str:
    """A network, an address, or a word for several.

    Raises:
        ValueError: it is none.
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
        ValueError: it is none.
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

    def __post_init__(self) -> None:
        for name in self.names:
            proxy_name(name)

    def __contains__(self, address: object) -> bool:
        found = _address(address) if isinstance(address, str) else None
        return found is not None and any(_is_in(found, name) for name in self.names)


@dataclass(frozen=True)
class HostRules:
    """Which hosts and origins are served.

    Args:
        hosts: patterns of names; addresses are always served, since no name that an attacker owns can stand for them.
        proxies: the peers whose forwarded headers are believed.
        frames: origins that may show the page in a frame, besides its own.
        sources: origins that the page itself may ask, besides its own.
    """

    hosts: tuple[str, ...]
    proxies: Proxies
    frames: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for host in self.hosts:
            host_pattern(host)
        for origin in (*self.frames, *self.sources):
            frame_source(origin)

    @classmethod
    def of(
        cls,
        hosts: Iterable[str] | None = None,
        proxies: Iterable[str] | None = None,
        frames: Iterable[str] | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> HostRules:
        """The rules of the settings; what is not set is as this machine, or the Space, needs it.

        Args:
            hosts, proxies, frames: of the settings.
            environment: says whether this is a Space, and at which name and path the app is served.
        """
        is_space = bool(environment.get(SPACE_ID))
        own = ["localhost", socket.gethostname(), f"{socket.gethostname()}.local"]
        own += [environment.get(SERVER_NAME, ""), environment.get(SPACE_HOST, "")]
        own.append(urlsplit(environment.get(ROOT_PATH, "")).hostname or "")
        own += [SPACE_HOSTS] if is_space else []
        names = [name.lower().rstrip(".") for name in own if re.fullmatch(r"[A-Za-z0-9._*-]{1,253}", name)]
        default_proxies = (LOOPBACK, PRIVATE) if is_space else (LOOPBACK,)
        default_frames = SPACE_FRAMES if is_space else ()
        return cls(
            (*dict.fromkeys([*names, *(hosts or ())]),),
            Proxies(default_proxies if proxies is None else tuple(proxies)),
            default_frames if frames is None else tuple(frames),
            SPACE_SOURCES if is_space else (),
        )

    def admit(self, scope: Scope) -> Scope:
        """The request as Gradio may see it: from the visitor's address, without forwarded headers of strangers.

        Raises:
            RequestError: it is for another host.
        """
        peer = scope["client"][0] if scope.get("client") else ""
        is_forwarded = peer in self.proxies
        headers = [(name, value) for name, value in scope["headers"] if is_forwarded or not _is_forwarding(name)]
        # Gradio's own front server, which vitviz does not start, would say its address by this one.
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
        """Refuse what a page of another site makes a visitor's browser send.

        A browser sends ``Origin`` with every POST, so that a request without it is a program's. ``null`` is what
        pages in sandboxes send, of whatever site.

        Raises:
            RequestError: the origin is another one.
        """
        origins = [value for name, value in scope["headers"] if name == b"origin"]
        hosts = {*_values(scope["headers"], b"host"), *_values(scope["headers"], b"x-forwarded-host")}
        for origin in origins:
            parts = urlsplit(origin.decode("latin-1").lower())
            port = PORTS.get(parts.scheme)
            if port is None or not any(_with_port(parts.netloc, port) == _with_port(host, port) for host in hosts):
                raise RequestError(403, "this request comes from a page of another site")

    def _check_host(self, value: str) -> None:
        found = _HOST.fullmatch(value)
        name = "" if found is None else found[1].lower().rstrip(".")
        if found is None or not (
            _address(name.strip("[]")) is not None or any(fnmatchcase(name, pattern) for pattern in self.hosts)
        ):
            raise RequestError(403, "this server does not answer for this host: expected one that VITVIZ_HOSTS names")

    def _visitor(self, peer: str, headers: list[tuple[bytes, bytes]]) -> str:
        """The last address on the way here that is not of a trusted proxy."""
        hops = _values(headers, b"x-forwarded-for")
        for hop in reversed(hops):
            address = _address(hop.rpartition(":")[0] if hop.count(":") == 1 else hop.strip("[]"))
            # What stands before something illegible was said by whoever wrote that.
            if address is None:
                break
            peer = str(address)
            if peer not in self.proxies:
                break
        return peer


@lru_cache(1024)
def visitor_key(address: str) -> str:
    """By which the requests of one visitor are counted; a network of IPv6 is one, since everybody has a whole one."""
    found = _address(address)
    if isinstance(found, IPv6Address):
        return str(ip_network((found, 64), strict=False))
    return address


def _address(text: str) -> Address | None:
    try:
        found = ip_address(text.strip())
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


def _is_in(address: Address, name: str) -> bool:
    if name == LOOPBACK:
        return address.is_loopback
    # Addresses that carriers and clouds share are not global, and not private either.
    if name == PRIVATE:
        return not address.is_global
    return address in ip_network(name, strict=False)


def _is_forwarding(name: bytes) -> bool:
    return name.startswith(b"x-forwarded-") or name in FORWARDED


def _values(headers: list[tuple[bytes, bytes]], name: bytes) -> list[str]:
    """Of all headers of a name, the parts between commas."""
    return [
        part.strip().lower()
        for each, value in headers
        if each == name
        for part in value.decode("latin-1").split(",")
        if part.strip()
    ]


def _with_port(host: str, port: int) -> str:
    return host if re.search(r":\d+$", host) else f"{host}:{port}"
