"""The image input of the app."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import gradio as gr
from gradio.image_utils import decode_base64_to_file
from gradio.processing_utils import encode_pil_to_bytes
from PIL import Image

from vitviz.ui.files import keep, shown_errors

# Formats that vitviz opens and browsers do not show.
UNSHOWN = (".tif", ".tiff")
MOST_PREVIEWS = 1000


class Upload(NamedTuple):
    """A file that a user handed over, what they call it, and whether their browser shows it."""

    path: Path
    name: str
    shown: bool = True


class Preview(NamedTuple):
    """A picture for the browser to show in place of an upload."""

    image: Image.Image
    upload: Upload


class PhotoInput(gr.Image):
    """An image input that hands over the file as it was uploaded, unopened.

    gr.Image opens it first and fails with an opaque error where it cannot; :func:`vitviz.open_image` says why. A
    :class:`Preview` as its value changes what is shown, and not what is handed over.
    """

    # Drawn by the browser code of the class it is made from.
    is_template = True

    # Uploads by the path of their preview. Of the class: Gradio makes a new instance whenever it updates one.
    _previewed: ClassVar[OrderedDict[str, Upload]] = OrderedDict()

    def preprocess(self, payload: Any) -> Any:
        if payload is None:
            return None
        if payload.path in self._previewed:
            return self._previewed[payload.path]
        path = payload.path
        if payload.url and payload.url.startswith("data:"):
            path = decode_base64_to_file(payload.url, self.GRADIO_CACHE, self.format)
        name = Path(payload.orig_name or path).name
        return Upload(Path(path), name, Path(path).suffix.lower() not in UNSHOWN)

    def postprocess(self, value: Any) -> Any:
        if not isinstance(value, Preview):
            return super().postprocess(value)
        with shown_errors():
            content = encode_pil_to_bytes(value.image, self.format)
            shown: Any = super().postprocess(keep(content, f"preview.{self.format}", self.GRADIO_CACHE))
        self._previewed[shown.path] = value.upload._replace(shown=True)
        if len(self._previewed) > MOST_PREVIEWS:
            self._previewed.popitem(last=False)
        return shown
