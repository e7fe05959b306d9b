"""The pictures that the app shows."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import gradio as gr
from PIL import Image

from vitviz.ui.files import keep, shown_errors


class PictureOutput(gr.Image):
    """An image output whose files are written whole or not at all."""

    # Drawn by the browser code of the class it is made from.
    is_template = True

    def postprocess(self, value: Any) -> Any:
        if not isinstance(value, Image.Image):
            return super().postprocess(value)
        content = WRITERS[self.format](value)
        with shown_errors():
            return super().postprocess(keep(content, f"image.{self.format}", self.GRADIO_CACHE))


def as_png(image: Image.Image) -> bytes:
    """A picture as a file that loses nothing, written fast and not small."""
    stream = BytesIO()
    image.save(stream, "PNG", compress_level=1)
    return stream.getvalue()


def as_webp(image: Image.Image, quality: int = 80) -> bytes:
    """A picture as a small file, written in a third of the usual time; a twentieth larger."""
    stream = BytesIO()
    image.save(stream, "WEBP", quality=quality, method=2)
    return stream.getvalue()


# By the ``format`` of a :class:`PictureOutput`.
WRITERS = {"png": as_png, "webp": as_webp}
