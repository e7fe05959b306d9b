"""Launching the app."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

import gradio as gr

from vitviz.errors.kinds import ConfigError
from vitviz.isolation import shared_worker
from vitviz.ui.api import health
from vitviz.ui.page_routes import page_of
from vitviz.ui.server.connections import guard_connections
from vitviz.ui.server.hosts import HostRules
from vitviz.ui.server.request_filter import app_options
from vitviz.ui.server.settings import ServerSettings
from vitviz.ui.stubs import without_proxies

# The environment variable with which Gradio serves the endpoints as tools.
MCP = "GRADIO_MCP_SERVER"
# Of the clients of programs, which Gradio remembers.
MAX_SESSIONS = 1000


def has_tools() -> bool:
    """Whether the package of MCP servers is installed."""
    return find_spec("mcp") is not None


def serve(
    demo: gr.Blocks,
    server_settings: ServerSettings | None = None,
    *,
    block: bool = True,
    quiet: bool = False,
    **options: Any,
) -> str:
    """Launch the app, print its address and return it; the address is empty when Gradio reloads a running app.

    Args:
        demo, server_settings: the app of :func:`vitviz.ui.build_demo`, and its settings.
        block: until it is interrupted.
        quiet: print nothing.
        options: of ``Blocks.launch``, such as ``server_name`` and ``server_port``.

    Raises:
        ConfigError: the environment asks for an MCP server, whose package is not installed, or the port is in use.
    """
    # Started now, so that the first visitor does not wait for it.
    shared_worker().start()
    # With _frontend, Gradio requests its own page and gives up after three seconds, too few for a busy machine.
    defaults: dict[str, Any] = {"prevent_thread_lock": True, "_frontend": False, "quiet": True}
    try:
        with without_proxies():
            _, address, _ = demo.launch(**{**defaults, **launch_options(server_settings), **options})
    except OSError as error:
        # Gradio's sentence names options of its own.
        if "empty port" not in str(error):
            raise
        port = options.get("server_port") or os.environ.get("GRADIO_SERVER_PORT") or "7860 to 7959"
        raise ConfigError(f"port {port} is in use; expected a free one: vitviz app --port 8000") from None
    if not address:
        return ""
    guard_connections(demo.server, demo.app, host_rules(server_settings or ServerSettings.of()))
    if not quiet:
        print(f"vitviz runs at {(demo.share_url or address).rstrip('/')} (Ctrl-C ends it)", flush=True)
    if block:
        demo.block_thread()
    return address.rstrip("/")


def launch_options(server_settings: ServerSettings | None = None) -> dict[str, Any]:
    """The options of ``Blocks.launch`` for the theme of the page and the API; none fetches anything from elsewhere.

    Args:
        server_settings: limits of the app; those of the environment by default.

    Raises:
        ConfigError: the environment asks for an MCP server, whose package is not installed.
    """
    # Gradio would end with a traceback.
    if os.environ.get(MCP, "").lower() == "true" and not has_tools():
        raise ConfigError(f"{MCP}=true: this needs mcp: pip install 'vitviz[mcp]'")
    server_settings = server_settings or ServerSettings.of()
    rules = host_rules(server_settings)
    return {
        "ssr_mode": False,
        "max_file_size": server_settings.upload_bytes,
        "state_session_capacity": MAX_SESSIONS,
        "footer_links": [],
        "enable_monitoring": False,
        # It lets a page save to a repository of the hub with a token in a header.
        "run_history": False,
        "app_kwargs": app_options(page_of, health, rules, server_settings.upload_bytes),
    }


def host_rules(server_settings: ServerSettings) -> HostRules:
    """The hosts, proxies and frames of the settings."""
    return HostRules.of(server_settings.hosts, server_settings.trusted_proxies, server_settings.frames)
