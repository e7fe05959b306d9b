"""The headers of every answer."""

from __future__ import annotations

from collections.abc import Iterable

from vitviz.ui.server.bodies import Message
from vitviz.ui.server.routes import FILE

# What browsers show without running anything in it.
PICTURES = (b"image/png", b"image/jpeg", b"image/webp", b"image/gif")
# Gradio's page has scripts and styles in it, and makes functions of text.
PAGE_POLICY = {
    "default-src": "'self'",
    "script-src": "'self' 'unsafe-inline' 'unsafe-eval' blob:",
    "style-src": "'self' 'unsafe-inline'",
    "img-src": "'self' data: blob:",
    "media-src": "'self' data: blob:",
    "font-src": "'self' data:",
    "connect-src": "'self' data: blob:",
    "worker-src": "'self' blob:",
    "object-src": "'none'",
    "base-uri": "'self'",
    "form-action": "'self'",
}
FILE_POLICY = "default-src 'none'; img-src 'self'; style-src 'unsafe-inline'; sandbox"


class ResponseHeaders:
    """Adds the headers that keep a page and its files to themselves.

    Args:
        frames: origins that may show the page in a frame, besides its own.
        sources: origins that the page may ask, besides its own.
    """

    def __init__(self, frames: Iterable[str] = (), sources: Iterable[str] = ()) -> None:
        ancestors = {"frame-ancestors": " ".join(["'self'", *frames])}
        extended = {name: " ".join([PAGE_POLICY[name], *sources]) for name in ("connect-src", "img-src")}
        policy = {**PAGE_POLICY, **extended, **ancestors}
        self._page = "; ".join(f"{name} {value}" for name, value in policy.items()).encode()
        self._file = f"{FILE_POLICY}; frame-ancestors {ancestors['frame-ancestors']}".encode()

    def secured(self, start: Message, path: str) -> Message:
        """The beginning of an answer with these headers, for a path below the app's root."""
        # Gradio lets pages of other sites read the answer.
        headers = [each for each in start.get("headers", []) if not each[0].lower().startswith(b"access-control-")]
        is_file = path.startswith(FILE)
        if is_file:
            headers = _downloaded(headers)
        headers += [
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"same-origin"),
            (b"content-security-policy", self._file if is_file else self._page),
            (b"cross-origin-resource-policy", b"same-origin"),
        ]
        return {**start, "headers": headers}


def _downloaded(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Of a file that is no picture, browsers open a window to save it, and show nothing."""
    kind = next((value for name, value in headers if name.lower() == b"content-type"), b"")
    if kind.split(b";")[0].strip().lower() in PICTURES:
        return headers
    disposition = next((value for name, value in headers if name.lower() == b"content-disposition"), b"attachment")
    others = [each for each in headers if each[0].lower() != b"content-disposition"]
    return [
        *others,
        (
            b"content-disposition",
            b"attachment" + disposition[disposition.find(b";") :] if b";" in disposition else b"attachment",
        ),
    ]
