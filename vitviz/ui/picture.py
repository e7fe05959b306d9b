"""The pictures that the app shows."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import gradio as gr
from gradio.processing_utils import encode_pil_to_bytes, hash_bytes
from PIL import Image


class PictureOutput(gr.Image):
    """An image output whose files are written whole or not at all.

    gr.Image keeps a picture under the hash of its bytes and writes it again, in place, when the same picture is shown
    again: a page that fetches it at that moment gets half of it.
    """

    # Drawn by the browser code of the class it is made from.
    is_template = True

    def postprocess(self, value: Any) -> Any:
        if not isinstance(value, Image.Image):
            return super().postprocess(value)
        content = encode_pil_to_bytes(value, self.format)
        folder = Path(self.GRADIO_CACHE) / hash_bytes(content)
        path = folder / f"image.{self.format}"
        if path.exists():
            # Files leave the cache by their age.
            os.utime(path)
        else:
            folder.mkdir(exist_ok=True, parents=True)
            with NamedTemporaryFile(dir=folder, delete=False) as written:
                written.write(content)
            os.replace(written.name, path)
        return super().postprocess(str(path))
