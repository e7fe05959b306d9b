"""Turning off everything that Gradio fetches from addresses of visitors.

Gradio fetches addresses for the routes ``file=`` and ``proxy=``, and for files in the data of a call. The request
filter refuses the routes; here the functions themselves raise, whatever path leads to them.
"""

from __future__ import annotations

from typing import Any, NoReturn

from gradio import processing_utils, route_utils, routes

from vitviz.errors.kinds import ConfigError

REFUSED = "this server fetches nothing from an address that a visitor gives: upload the file"
# safehttpx, with which Gradio fetches.
_processing: Any = processing_utils
_client = _processing.sh
# Every function of Gradio that sends a request to an address in another request.
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
    """Replaces a function that fetches."""
    raise PermissionError(REFUSED)


async def refuse_async(*_: object, **__: object) -> NoReturn:
    """Replaces a coroutine function that fetches."""
    raise PermissionError(REFUSED)


def forbid_fetching() -> None:
    """Make every fetching function of Gradio raise.

    Raises:
        ConfigError: this version of Gradio lacks one, and may have another in its place.
    """
    for owner, name, is_async in FETCHING:
        if not hasattr(owner, name):
            raise ConfigError(f"gradio: expected a version in which {owner.__name__}.{name} exists")
        setattr(owner, name, refuse_async if is_async else refuse)
