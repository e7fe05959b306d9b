"""Turning off what Gradio would fetch on a visitor's word.

Gradio fetches addresses for the routes ``file=`` and ``proxy=``, and for files in the data of a call. The routes are
refused by the door. The functions raise here, so that no other path leads to them.
"""

from __future__ import annotations

from typing import Any, NoReturn

from gradio import processing_utils, route_utils, routes

from vitviz.errors.kinds import ConfigError

REFUSED = "this server fetches nothing from an address that a visitor gives: upload the file"
# The package by which Gradio fetches.
_processing: Any = processing_utils
_client = _processing.sh
# Every function of Gradio that asks another server because of what a request says.
FETCHING: tuple[tuple[Any, str, bool], ...] = (
    (_client, "async_validate_url", True),
    (_client, "get", True),
    (processing_utils, "async_ssrf_protected_get", True),
    (processing_utils, "async_ssrf_protected_download", True),
    (processing_utils, "ssrf_protected_download", False),
    (processing_utils, "save_url_to_cache", False),
    (processing_utils, "unsafe_download", False),
    (route_utils, "secure_url_stream_response", True),
    (routes, "secure_url_stream_response", True),
    (routes.App, "build_proxy_request", False),
)


def refuse(*_: object, **__: object) -> NoReturn:
    """Stands for a function that fetches."""
    raise PermissionError(REFUSED)


async def refuse_soon(*_: object, **__: object) -> NoReturn:
    """Stands for a coroutine that fetches."""
    raise PermissionError(REFUSED)


def forbid_fetching() -> None:
    """Make every fetching function of Gradio raise.

    Raises:
        ConfigError: this version of Gradio lacks one, so that another may have taken its place.
    """
    for owner, name, is_async in FETCHING:
        if not hasattr(owner, name):
            raise ConfigError(f"gradio: expected a version in which {owner.__name__}.{name} exists")
        setattr(owner, name, refuse_soon if is_async else refuse)
