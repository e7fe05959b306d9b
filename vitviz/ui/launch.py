"""How the app is launched."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gradio as gr

from vitviz.errors import ConfigError
from vitviz.ui.api import health
from vitviz.ui.gate import Gate
from vitviz.ui.knobs import Knobs

# By which Gradio is told to serve the endpoints as tools, too.
MCP = "GRADIO_MCP_SERVER"


def has_tools() -> bool:
    """Whether what an MCP server needs is installed."""
    return find_spec("mcp") is not None


def launch_options(knobs: Knobs | None = None) -> dict[str, Any]:
    """What ``Blocks.launch`` needs for the look of the page and for its API; nothing of it is fetched from anywhere.

    Args:
        knobs: what the app may take and keep; what the environment says where they are not given.

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
    knobs = knobs or Knobs.of()
    return {
        "theme": theme,
        "css": css,
        "ssr_mode": False,
        "max_file_size": knobs.upload_bytes,
        "state_session_capacity": knobs.pages,
        "footer_links": [],
        # Asked for below a sub-path, too.
        "head": '<link rel="icon" href="favicon.ico">',
        "enable_monitoring": False,
        # As the server keeps its own: a class and its arguments.
        "app_kwargs": {"middleware": [(Gate, (health,), {})]},
    }
