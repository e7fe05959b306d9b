"""How the app is launched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr

# Of a checkpoint; pictures have a bound of their own.
MAX_FILE = "2gb"


def launch_options() -> dict[str, Any]:
    """What ``Blocks.launch`` needs for the look of the page; nothing of it is fetched from anywhere."""
    theme = gr.themes.Base(
        primary_hue="indigo",
        neutral_hue="slate",
        font=("system-ui", "sans-serif"),
        font_mono=("ui-monospace", "monospace"),
    )
    css = Path(__file__).with_name("style.css").read_text()
    return {"theme": theme, "css": css, "ssr_mode": False, "max_file_size": MAX_FILE, "footer_links": []}
