"""How the app is launched."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gradio as gr

from vitviz.errors.kinds import ConfigError
from vitviz.isolation import shared_worker
from vitviz.ui.api import health
from vitviz.ui.server.connections import guard_connections
from vitviz.ui.server.door import app_options
from vitviz.ui.server.hosts import HostRules
from vitviz.ui.server.settings import ServerSettings

# By which Gradio is told to serve the endpoints as tools, too.
MCP = "GRADIO_MCP_SERVER"


def has_tools() -> bool:
    """Whether what an MCP server needs is installed."""
    return find_spec("mcp") is not None


def serve(
    demo: gr.Blocks,
    server_settings: ServerSettings | None = None,
    *,
    block: bool = True,
    quiet: bool = False,
    **options: Any,
) -> str:
    """Launch the app, print its address, and return it; nothing where it runs already.

    Args:
        demo, server_settings: what :func:`vitviz.ui.build_demo` made, and of what.
        block: until it is interrupted.
        quiet: print nothing.
        options: what else ``Blocks.launch`` takes, such as ``server_name`` and ``server_port``.

    Raises:
        ConfigError: the environment asks for an MCP server, and what it needs is not installed.
        OSError: there is no free port.
    """
    # The first visitor need not wait for it.
    shared_worker().start()
    # Gradio would ask for its own page once, and end where a busy machine takes more than three seconds.
    started: dict[str, Any] = {"prevent_thread_lock": True, "_frontend": False, "quiet": True}
    _, address, _ = demo.launch(**{**started, **launch_options(server_settings), **options})
    # Gradio has the code of an app that runs already loaded anew.
    if not address:
        return ""
    # Gradio makes the server by itself.
    guard_connections(demo.server, demo.app)
    if not quiet:
        print(f"vitviz runs at {(demo.share_url or address).rstrip('/')} (Ctrl-C ends it)", flush=True)
    if block:
        demo.block_thread()
    return address.rstrip("/")


def launch_options(server_settings: ServerSettings | None = None) -> dict[str, Any]:
    """What ``Blocks.launch`` needs for the look of the page and for its API; nothing of it is fetched from anywhere.

    Args:
        server_settings: what the app may take and keep; what the environment says where they are not given.

    Raises:
        ConfigError: the environment asks for an MCP server, and what it needs is not installed.
    """
    # Gradio reads the same variable, and would end with a traceback.
    if os.environ.get(MCP, "").lower() == "true" and not has_tools():
        raise ConfigError(f"{MCP}=true: this needs mcp: pip install 'vitviz[mcp]'")
    theme = gr.themes.Base(
        primary_hue="indigo",
        neutral_hue="slate",
        font=("system-ui", "sans-serif"),
        font_mono=("ui-monospace", "monospace"),
    )
    css = Path(__file__).with_name("style.css").read_text()
    server_settings = server_settings or ServerSettings.of()
    rules = HostRules.of(server_settings.hosts, server_settings.trusted_proxies, server_settings.frames)
    return {
        "theme": theme,
        "css": css,
        "ssr_mode": False,
        "max_file_size": server_settings.upload_bytes,
        "state_session_capacity": server_settings.pages,
        "footer_links": [],
        # Asked for below a sub-path, too.
        "head": '<link rel="icon" href="favicon.ico">',
        "enable_monitoring": False,
        # Would let a page save to a repository of the hub, by a token in a header.
        "run_history": False,
        "app_kwargs": app_options(health, rules, server_settings.upload_bytes),
    }
