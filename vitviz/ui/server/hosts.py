"""The hosts and origins that the app serves, and the proxies whose forwarded headers it believes."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TypeAlias
from urllib.parse import urlsplit

from starlette.types import Scope

from vitviz.errors.messages import quote
from vitviz.ui.server.rule import RequestError

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

LOOPBACK, PRIVATE = "loopback", "private"
# The networks of the words; those of carriers and clouds (100.64.0.0/10) are private, too.
NETWORKS = {
    LOOPBACK: ("127.0.0.0/8", "::1"),
    PRIVATE: (
        *("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "169.254.0.0/16"),
        *("::1", "fc00::/7", "fe80::/10"),
    ),
}
# Hugging Face sets these in a Space.
SPACE_ID, SPACE_HOST = "SPACE_ID", "SPACE_HOST"
SERVER_NAME, ROOT_PATH = "GRADIO_SERVER_NAME", "GRADIO_ROOT_PATH"
SPACE_HOSTS = "*.hf.space"
SPACE_FRAMES = ("https://huggingface.co", "https://*.hf.space")
PORTS = {"http": ":80", "https": ":443"}
# Headers that a proxy sets, and a visitor must not; and that of Gradio's front server, which vitviz does not start.
FORWARDED, FRONT = (b"x-forwarded-", b"forwarded", b"x-real-ip"), b"x-gradio-server"
BY_PROXY = (
    "a proxy has passed on this request: expected VITVIZ_TRUSTED_PROXIES=loopback (or the proxy's address), so that "
    "the app knows its visitors apart, or VITVIZ_SHARED=0 if they are its owner alone"
)
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|\w[\w.-]{0,252})(?::\d{1,5})?", re.ASCII)


def networks(names: Iterable[str]) -> tuple[Network, ...]:
    """The networks of addresses, networks, and the words ``loopback`` and ``private``.

    Raises:
        ValueError: a name is none of these.
    """
    try:
        return tuple(ip_network(each, strict=False) for name in names for each in NETWORKS.get(name, (name,)))
    except ValueError:
        raise ValueError(f"addresses, networks, or the words {LOOPBACK} and {PRIVATE}") from None


@dataclass(frozen=True)
class HostRules:
    """The hosts and origins that are served.

    Args:
        hosts: patterns of names. Addresses are always served: no attacker's name can stand for them.
        proxies: the networks of those whose forwarded headers are believed.
        frames: other origins that may show the page in a frame.
        refuses_proxies: whether a request that a proxy has passed on is refused: nobody has said whose the app is.
    """

    hosts: tuple[str, ...]
    proxies: tuple[Network, ...] = ()
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
        names = [
            *("localhost", socket.gethostname(), f"{socket.gethostname()}.local"),
            *(environment.get(SERVER_NAME, ""), environment.get(SPACE_HOST, "")),
            urlsplit(environment.get(ROOT_PATH, "")).hostname or "",
            *([SPACE_HOSTS] if is_space else []),
            *(hosts or ()),
        ]
        return cls(
            tuple(name.lower().rstrip(".") for name in names if name),
            networks(([LOOPBACK, PRIVATE] if is_space else []) if proxies is None else proxies),
            (SPACE_FRAMES if is_space else ()) if frames is None else tuple(frames),
        )

    def admit(self, scope: Scope) -> Scope:
        """The request for Gradio: with the visitor as client, and with forwarded headers of trusted proxies alone.

        Raises:
            RequestError: it is for another host, or comes by a proxy that nobody has named.
        """
        own = [pair for pair in scope["headers"] if not pair[0].startswith(FORWARDED)]
        if self.refuses_proxies and len(own) < len(scope["headers"]):
            raise RequestError(403, BY_PROXY)
        peer = scope["client"][0] if scope.get("client") else ""
        believed = scope["headers"] if self._is_proxy(peer) else own
        headers = [pair for pair in believed if pair[0] != FRONT]
        for value in _values(headers, b"host", b"x-forwarded-host"):
            self._check_host(value)
        scheme = next(iter(_values(headers, b"x-forwarded-proto")), "")
        return {
            **scope,
            "headers": headers,
            "client": (_visitor_key(self._visitor(peer, headers)), 0),
            "scheme": scheme if scheme in PORTS else scope.get("scheme", "http"),
        }

    def check_origin(self, scope: Scope) -> None:
        """Refuse requests that a page of another site makes a visitor's browser send.

        A browser sends ``Origin`` with every POST; a request without it comes from a program. Sandboxed pages of any
        site send ``null``.

        Raises:
            RequestError: the origin is another one.
        """
        hosts = _values(scope["headers"], b"host", b"x-forwarded-host")
        for origin in [value for name, value in scope["headers"] if name == b"origin"]:
            scheme, _, name = origin.decode("latin-1").lower().partition("://")
            port = PORTS.get(scheme, "")
            if not port or name.removesuffix(port) not in [host.removesuffix(port) for host in hosts]:
                raise RequestError(403, "this request comes from a page of another site")

    def _check_host(self, value: str) -> None:
        match = _HOST.fullmatch(value)
        name = "" if match is None else match[1].rstrip(".")
        if match is None or not (_address(name) or any(fnmatchcase(name, pattern) for pattern in self.hosts)):
            raise RequestError(
                403,
                f"this server does not answer for the host {quote(value)}: expected one that VITVIZ_HOSTS names, "
                f"such as VITVIZ_HOSTS={name or 'vit.example.org'}",
            )

    def _visitor(self, peer: str, headers: list[tuple[bytes, bytes]]) -> str:
        """The last address on the way here that is no trusted proxy's, or else the first."""
        forwarded = _values(headers, b"x-forwarded-for")
        hops = [*(hop.rpartition(":")[0] if hop.count(":") == 1 else hop for hop in forwarded), peer]
        return next((hop for hop in reversed(hops) if not self._is_proxy(hop)), hops[0])

    def _is_proxy(self, peer: str) -> bool:
        address = _address(peer)
        return address is not None and any(address in network for network in self.proxies)


@lru_cache(1024)
def _visitor_key(address: str) -> str:
    """The key of a visitor: the address, or the /64 network of IPv6, all of which belongs to one visitor."""
    parsed = _address(address)
    return str(ip_network((parsed, 64), strict=False)) if isinstance(parsed, IPv6Address) else address


def _address(text: str) -> Address | None:
    try:
        address = ip_address(text.strip("[]"))
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _values(headers: list[tuple[bytes, bytes]], *names: bytes) -> list[str]:
    """The values of all headers of these names, which commas separate."""
    return [
        item.strip().lower()
        for header, value in headers
        if header in names
        for item in value.decode("latin-1").split(",")
        if item.strip()
    ]
