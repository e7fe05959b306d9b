"""Launching the app."""

from __future__ import annotations

import logging
import os
import time
from importlib.util import find_spec
from typing import Any

from vitviz.errors.extras import needs
from vitviz.errors.kinds import ConfigError
from vitviz.ui.app import App
from vitviz.ui.proxies import without_proxies
from vitviz.ui.server.connections import guard_connections
from vitviz.worker import check_limits, shared_worker
from vitviz.worker.child import IS_LINUX

# The environment variable with which Gradio serves the endpoints as tools.
MCP = "GRADIO_MCP_SERVER"


def has_tools() -> bool:
    """Whether the package of MCP servers is installed."""
    return find_spec("mcp") is not None


def serve(demo: App, *, block: bool = True, quiet: bool = False, **options: Any) -> str:
    """Launch the app, print its address and return it; the address is empty when Gradio reloads a running app.

    Args:
        demo: the app of :func:`vitviz.ui.build_demo`.
        block: until it is interrupted.
        quiet: print nothing.
        options: of ``gradio.Server.launch``, such as ``server_name`` and ``server_port``.

    Raises:
        ConfigError: the environment asks for an MCP server, whose package is not installed, the port is in use, or the
            system does not keep the limits of processes that open files, at this address.
    """
    # Gradio would end with a traceback.
    if os.environ.get(MCP, "").lower() == "true" and not has_tools():
        raise ConfigError(needs(f"{MCP}=true", "mcp"))
    # It logs what a client sends.
    logging.getLogger("mcp").setLevel(logging.CRITICAL + 1)
    if not IS_LINUX:
        host = options.get("server_name") or os.environ.get("GRADIO_SERVER_NAME") or "127.0.0.1"
        is_public = host not in ("127.0.0.1", "::1", "localhost") or bool(options.get("share"))
        if is_public and demo.handlers.service.server_settings.uploads != "safetensors":
            raise ConfigError(
                f"address {host}: this system has no limit of memory for what opens strangers' files; expected "
                "VITVIZ_UPLOADS=safetensors, or 127.0.0.1"
            )
        if not quiet:
            print("this system has no limit of memory for the processes that open files")
    # Started now, so that the first visitor does not wait for it.
    shared_worker().start()
    try:
        with without_proxies():
            _, address, share_address = demo.launch(**{"prevent_thread_lock": True, "quiet": True, **options})
    except OSError as error:
        # Gradio's sentence names options of its own.
        if "empty port" not in str(error):
            raise
        port = options.get("server_port") or os.environ.get("GRADIO_SERVER_PORT") or "7860 to 7959"
        raise ConfigError(f"port {port} is in use; expected a free one: vitviz app --port 8000") from None
    if not address:
        return ""
    blocks = demo.get_blocks()
    try:
        check_limits(shared_worker())
    except ConfigError:
        blocks.close(verbose=False)
        raise
    guard_connections(blocks.server, demo, demo.rules)
    demo.handlers.service.folder.watch()
    if not quiet:
        print(f"vitviz runs at {(share_address or address).rstrip('/')} (Ctrl-C ends it)", flush=True)
    if block:
        # Gradio's own way of waiting looks ten times a second.
        try:
            while blocks.is_running:
                time.sleep(1)
        except KeyboardInterrupt:
            blocks.close(verbose=False)
    return str(address).rstrip("/")
