"""Maps of every layer and head."""

from __future__ import annotations

from io import BytesIO

from PIL import Image

from vitviz.visualization.heatmaps import Heatmap, Style


class Sheet(list[list[Heatmap]]):
    """Maps of one token in every layer (outer list) and head (inner list), which a notebook shows as one picture."""

    def picture(self, style: Style | str | None = None, *, shared_scale: bool = False, cell: int = 110) -> Image.Image:
        """All of them, layers below one another and heads side by side, with a transparent background.

        Args:
            style: of every cell, or the name of a colormap.
            shared_scale: the style's scale fitted to all cells together instead of to each cell.
            cell: longest side of a cell in pixels.

        Raises:
            MethodError: the style is none.
            QueryError: there is no map, or the maps are not of one image.
        """
        # matplotlib takes a while to import, and most analyses draw nothing.
        from vitviz.visualization.figures import sheet

        return sheet(self, Style.of(style), shared_scale, cell=cell)[0]

    def _repr_png_(self) -> bytes:
        """What a notebook shows of it."""
        content = BytesIO()
        self.picture().save(content, "png")
        return content.getvalue()
