"""Pictures as the content of files."""

from __future__ import annotations

from io import BytesIO
from typing import Any

from PIL import Image


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    """The content of a file of this kind, such as ``"PNG"``, with Pillow's options."""
    content = BytesIO()
    image.save(content, kind, **options)
    return content.getvalue()
