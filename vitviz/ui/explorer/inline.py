"""The explorer inside a notebook: the one-file page in a frame of its own, without a server."""

from __future__ import annotations

import html
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from vitviz.analysis.analysis import Analysis
from vitviz.analysis.encoder import MAX_BYTES, analyze, check_order
from vitviz.attention.precision import Precision
from vitviz.errors.arguments import instance, integer, named_arguments
from vitviz.errors.extras import needs
from vitviz.errors.kinds import ConfigError, ImageError, MethodError
from vitviz.errors.messages import describe
from vitviz.images.colours import ColorProfile
from vitviz.images.encoded import encoded
from vitviz.images.preprocessing import Fit
from vitviz.images.sources import COLUMN, ImageSource, Row, ValueRange
from vitviz.system.atomic import atomic_write
from vitviz.weights import Model

if TYPE_CHECKING:
    from vitviz.ui.explorer.selection import Selection

HEIGHT, MIN_HEIGHT = 760, 200
# The page needs scripts and downloads; the sandbox keeps it from the notebook and other cells.
SANDBOX = "allow-scripts allow-downloads"


@dataclass(frozen=True)
class InlineExplorer:
    """The explorer of one analysis, as a notebook displays it.

    Args:
        page: HTML that fetches nothing.
        height: of the frame in pixels.
        title: of the frame.
        still: JPEG of all layers and heads, for where a notebook's frames are not shown: an untrusted notebook, a PDF.
        analysis: that it shows.
        listener: the widget of :func:`vitviz.ui.explorer.selection.listener`.
    """

    page: str = field(repr=False)
    height: int
    title: str
    still: bytes = field(repr=False)
    analysis: Analysis = field(repr=False)
    listener: Any = field(repr=False)

    @property
    def selection(self) -> Selection | None:
        """What is chosen on the page now, with its map; None before the page is shown. It needs the extra `notebook`.

        The map is computed anew, by :meth:`vitviz.Analysis.map`.

        Raises:
            ConfigError: the extra is not installed.
        """
        if self.listener is None:
            raise ConfigError(needs("explorer.selection", "anywidget"))
        from vitviz.ui.explorer.selection import select

        return select(self.analysis, dict(self.listener.view)) if self.listener.view else None

    def _repr_html_(self) -> str:
        name = "" if self.listener is None else self.listener.frame
        return (
            f'<iframe name="{name}" title="{html.escape(self.title)}" sandbox="{SANDBOX}" '
            f'srcdoc="{html.escape(self.page)}" '
            f'style="width:100%;height:{self.height}px;border:0"></iframe>'
        )

    def _repr_jpeg_(self) -> bytes:
        return self.still

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page to a file that works from disk.

        Raises:
            ImageError: the file cannot be written.
        """
        if not isinstance(path, str | os.PathLike):
            raise ImageError(f"path: {describe(path)} found; expected the path of a page to write, such as 'cat.html'")
        with atomic_write(path, error=ImageError) as file:
            file.write(self.page.encode())


@named_arguments(MethodError)
def explore(
    image: ImageSource | Row | Analysis,
    model: Model | None = None,
    fit: Fit | None = None,
    *,
    resolution: int | None = None,
    value_range: ValueRange | None = None,
    color_profile: ColorProfile | None = None,
    column: str = COLUMN,
    storage: Precision | None = None,
    max_bytes: int = MAX_BYTES,
    height: int = HEIGHT,
) -> InlineExplorer:
    """The whole explorer in a notebook: every layer and head, and any patch's attention under the pointer.

    The frame has all queries and keys, about 2.7 bytes for each feature: 10 MB for a ViT-B/16 at 197 tokens, which
    are saved with the notebook. With the extra ``notebook``, :attr:`InlineExplorer.selection` is what is chosen there.

    Args:
        image: as :func:`vitviz.analyze` takes it, or an analysis.
        model, fit, resolution, value_range, color_profile, column, storage, max_bytes: as :func:`vitviz.analyze` takes
            them. An analysis has its model and picture: a model, fit or resolution beside it is refused.
        height: of the frame in pixels.

    Raises:
        MethodError: the height is too low, or there is a model beside an analysis.
        ImageError, LimitError, ConfigError: as :func:`vitviz.analyze`.

    >>> vitviz.explore(analysis).save("cat.html")
    """
    check_order("explore", image, model)
    height = integer("height", height, MIN_HEIGHT, MethodError)
    if isinstance(image, Analysis):
        if (model, fit, resolution) != (None, None, None):
            raise MethodError("explore: an analysis has its model and picture; expected no model, fit or resolution")
        analysis = image
    else:
        analysis = analyze(
            image,
            instance("model", model, Model, "vitviz.load()"),
            fit,
            resolution=resolution,
            value_range=value_range,
            color_profile=color_profile,
            column=column,
            storage=storage,
            max_bytes=max_bytes,
        )
    name = analysis.source.name if isinstance(analysis.source, Path) else "picture.jpg"
    from vitviz.ui.explorer.saved_page import whole_page
    from vitviz.ui.explorer.selection import listener

    page = whole_page(analysis, name, name=name, fit=fit or "", resolution=resolution)
    title = f"{name} seen by {analysis.model.name}"
    return InlineExplorer(page, height, title, _still(analysis), analysis, listener())


def _still(analysis: Analysis) -> bytes:
    sheet = analysis.attention_sheet().picture()
    picture = Image.new("RGB", sheet.size, "white")
    picture.paste(sheet, mask=sheet)
    return encoded(picture, "JPEG", quality=85)
