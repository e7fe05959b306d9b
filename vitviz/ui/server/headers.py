"""The headers of every response."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.types import Message

from vitviz.ui.server.routes import DEVICE, FILE

# Nothing inline, nothing from elsewhere, and no text becomes code.
PAGE_POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self' data: blob:",
    "font-src": "data:",
    "media-src": "'self' blob:",
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "require-trusted-types-for": "'script'",
}
# In addition, kernels in WebAssembly, and workers whose script the page has fetched.
DEVICE_POLICY = {**PAGE_POLICY, "script-src": "'self' 'wasm-unsafe-eval'", "worker-src": "blob:"}
FILE_POLICY = {"default-src": "'none'", "img-src": "'self'", "style-src": "'unsafe-inline'", "sandbox": ""}


class ResponseHeaders:
    """Adds headers that isolate the page and its files from other sites.

    Args:
        frames: other origins that may show the page in a frame.
    """

    def __init__(self, frames: Iterable[str] = ()) -> None:
        ancestors = {"frame-ancestors": " ".join(["'self'", *frames])}
        self._page, self._device, self._file = (
            "; ".join(f"{name} {value}".rstrip() for name, value in {**policy, **ancestors}.items()).encode()
            for policy in (PAGE_POLICY, DEVICE_POLICY, FILE_POLICY)
        )

    def secured(self, start: Message, path: str) -> Message:
        """The start of a response with these headers, for a path below the app's root."""
        is_file = path.startswith((FILE, "/files/", "/made/"))
        policy = self._file if is_file else self._device if path == DEVICE else self._page
        headers = [
            # Gradio's CORS headers let pages of other sites read the response.
            *(pair for pair in start.get("headers", []) if not pair[0].lower().startswith(b"access-control-")),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"same-origin"),
            (b"content-security-policy", policy),
            (b"cross-origin-resource-policy", b"same-origin"),
        ]
        return {**start, "headers": headers}
