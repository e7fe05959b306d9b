"""Maps of every layer and head."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING

from PIL import Image

from vitviz.errors.attributes import AttributeAdvice
from vitviz.visualization.heatmaps import Heatmap, Style

if TYPE_CHECKING:
    from vitviz.visualization.heatmaps import AnyStyle


class Sheet(list[list[Heatmap]], AttributeAdvice):
    """Maps of one token in every layer (outer list) and head (inner list); a notebook shows them as one picture."""

    def picture(self, style: AnyStyle = None, *, shared_scale: bool = False, cell: int = 110) -> Image.Image:
        """All maps in one picture with a transparent background, layers as rows and heads as columns.

        Args:
            style: style of every cell, or the name of a colormap.
            shared_scale: whether to fit the style's scale to all cells together instead of to each.
            cell: longest side of a cell in pixels.

        Raises:
            MethodError: the style is invalid.
            QueryError: there is no map, or the maps belong to several images.
        """
        # Imported here, since matplotlib is slow to import and most analyses draw nothing.
        from vitviz.visualization.figures import sheet

        return sheet(self, Style.of(style), shared_scale, cell=cell)[0]

    def _repr_png_(self) -> bytes:
        """The picture that a notebook shows."""
        content = BytesIO()
        self.picture().save(content, "png")
        return content.getvalue()
