"""What the environment says of addresses: those of this app, and those of proxies, which Gradio must not see."""

from __future__ import annotations

import errno
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from vitviz.errors.kinds import ConfigError
from vitviz.errors.messages import quote

NAME, PORT = "GRADIO_SERVER_NAME", "GRADIO_SERVER_PORT"
# Gradio would ask itself through a proxy; one of SOCKS, or a port that is no number, would end its import.
HIDDEN = ("http_proxy", "https_proxy", "all_proxy", NAME.lower(), PORT.lower())
LOOPBACK = ("127.0.0.1", "::1", "localhost")
IN_USE = "port {} is in use; expected a free one: vitviz app --port 8000"
HOSTS = "127.0.0.1 or ::1 for this machine alone, 0.0.0.0 or :: for its networks, or an address or a name that it has"


@contextmanager
def hidden_environment() -> Iterator[None]:
    """A context in which Gradio sees no proxy, since it asks this machine alone, and no address: vitviz hands it on."""
    values = {name: os.environ.pop(name) for name in [*os.environ] if name.lower() in HIDDEN}
    try:
        yield
    finally:
        os.environ.update(values)


def listening_address(host: str | None = None, port: int | None = None) -> tuple[str, int | None]:
    """The host and port on which the app listens; the port is None for the first that is free from 7860.

    Args:
        host: a name or an address, that of IPv6 with brackets or without; by default, ``GRADIO_SERVER_NAME`` has it.
        port: 0 for any that is free; by default, ``GRADIO_SERVER_PORT`` has it.

    Raises:
        ConfigError: nobody can listen there.
    """
    name = (host or os.environ.get(NAME) or LOOPBACK[0]).removeprefix("[").removesuffix("]")
    text = os.environ.get(PORT, "").strip() if port is None else str(port)
    if text and not (re.fullmatch(r"[0-9]{1,5}", text) and int(text) < 2**16):
        raise ConfigError(
            f"{f'{PORT}={quote(text)}' if port is None else f'port {text}'}: expected 1 to 65535, or 0 for any that is "
            "free: vitviz app --port 8000"
        )
    number = int(text or 0)
    try:
        # Patterns would be names of other hosts, too, and no URL has the network card behind an address.
        if re.search(r"[^\w.:-]", name):
            raise ValueError
        name = name.encode("idna").decode().lower()
        for family, kind, _, _, place in socket.getaddrinfo(name, number, type=socket.SOCK_STREAM):
            with socket.socket(family, kind) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((place[0], number, *place[2:]))
                number = number or (probe.getsockname()[1] if text else 0)
    except (OSError, ValueError) as error:
        reasons = {
            errno.EADDRINUSE: IN_USE.format(number),
            errno.EACCES: f"port {number}: this user may not listen there; expected 1024 or above",
        }
        elsewhere = f"host {quote(name)}: this machine cannot listen there; expected {HOSTS}"
        raise ConfigError(reasons.get(getattr(error, "errno", 0), elsewhere)) from None
    return f"[{name}]" if ":" in name else name, number or None
