"""The page as the app serves it: HTML, and static files whose address changes with their content."""

from __future__ import annotations

import gzip
import hashlib
from functools import cache
from html import escape
from typing import Any
from urllib.parse import urljoin

from vitviz.ui.explorer.assets import FOLDER, document_around, json_block, script, style

# The patch grid, with one patch lit.
ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 3 3'%3E%3Cpath fill='%234338ca' "
    "d='M0 0h3v3H0z'/%3E%3Cpath fill='%23fde047' d='M1 1h1v1H1z'/%3E%3C/svg%3E"
)
# What a link to the app is shown with, 1200×630 pixels; ``python -m tests.screenshot`` takes it.
PREVIEW = "preview.jpg"


@cache
def static_files() -> dict[str, tuple[bytes, str]]:
    """The files by name: their bytes, compressed with gzip, and their media type."""
    files = {
        "page.js": (script().encode(), "text/javascript"),
        "page.css": (style().encode(), "text/css"),
        PREVIEW: ((FOLDER / PREVIEW).read_bytes(), "image/jpeg"),
    }
    return {name: (gzip.compress(content), kind) for name, (content, kind) in files.items()}


@cache
def static_version() -> str:
    """The version of all files together."""
    return hashlib.sha256(f"{script()}{style()}".encode()).hexdigest()[:12]


def app_page(start: Any, address: str, title: str = "vitviz", about: str | None = None, picture: str = "") -> str:
    """The page.

    Args:
        start: JSON with which it begins.
        address: of the app, which link previews need for their picture.
        title: of a link's preview.
        about: the sentence below the title; by default, what the app is.
        picture: of a link's preview, below the address; by default, the general one.
    """
    folder = f"static/{static_version()}"
    about = about or "See where an image-recognition model looks, in your own picture."
    picture = urljoin(address, picture or f"{folder}/{PREVIEW}")
    head = (
        f'<meta name="description" content="{escape(about)}">\n<meta property="og:title" content="{escape(title)}">\n'
        f'<meta property="og:description" content="{escape(about)}">\n<meta property="og:type" content="website">\n'
        f'<meta property="og:image" content="{escape(picture)}">\n'
        f'<meta name="twitter:card" content="summary_large_image">\n<link rel="icon" href="{ICON}">\n'
        f'<link rel="stylesheet" href="{folder}/page.css">\n'
        f'<script type="module" src="{folder}/page.js"></script>'
    )
    before, after = document_around(title="vitviz", head=head, body="app", heading="", script="")
    return f"{before}{json_block(start)}{after}"
