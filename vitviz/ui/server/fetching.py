"""Turning off the fetching of addresses of visitors.

Gradio fetches the address of every file in the data of a call, also of one by MCP, before the endpoint is called. Its
routes that fetch are not among those of :mod:`vitviz.ui.server.routes`.
"""

from __future__ import annotations

from typing import Any

from gradio.components.api_component import Api

from vitviz.ui.pictures import SCHEMES, upload_of

_move = Api.async_move_resource_to_block_cache


async def move_local(component: Api, path: Any) -> str | None:
    """Gradio's method that moves a file to its cache, for files of this machine alone.

    Raises:
        ImageError: the address is no upload's.
    """
    if str(path).startswith(SCHEMES):
        return str(upload_of({"path": str(path)}).path)
    return await _move(component, path)


def forbid_fetching() -> None:
    """Let Gradio fetch no file of a call."""
    Api.async_move_resource_to_block_cache = move_local  # type: ignore
