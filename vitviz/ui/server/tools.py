"""Pictures in calls by MCP, kept as uploads before Gradio sees the call.

The package of MCP takes 4 MiB, and Gradio would keep the pictures in a folder that nobody empties.
"""

from __future__ import annotations

import base64
from typing import Any
from urllib.parse import quote, unquote_to_bytes

from vitviz.ui.server.files import Folder
from vitviz.ui.server.routes import FILE


def with_uploads(value: Any, folder: Folder) -> Any:
    """The JSON of a request by MCP, with the addresses of uploads in the place of ``data:`` URLs.

    Raises:
        LimitError: there is no room for them.
    """
    parameters = value.get("params") if isinstance(value, dict) else None
    if not isinstance(parameters, dict) or "arguments" not in parameters:
        return value
    arguments = _kept(parameters["arguments"], folder)
    return {**value, "params": {**parameters, "arguments": arguments}}


def _kept(value: Any, folder: Folder) -> Any:
    if isinstance(value, dict):
        return {name: _kept(item, folder) for name, item in value.items()}
    if isinstance(value, list):
        return [_kept(item, folder) for item in value]
    if not isinstance(value, str) or not value.startswith("data:"):
        return value
    # Nothing is sent to the host.
    return f"http://localhost{FILE}{quote(str(folder.keep(_decoded(value), 'picture')))}"


def _decoded(url: str) -> bytes:
    """The content of a ``data:`` URL (RFC 2397); empty if it cannot be read."""
    head, _, text = url.partition(",")
    try:
        return base64.b64decode(text) if head.endswith(";base64") else unquote_to_bytes(text)
    except ValueError:
        return b""
