"""Maps of every layer and head."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from PIL import Image, ImageDraw, ImageFont

from vitviz.errors.attributes import AttributeAdvice
from vitviz.errors.kinds import QueryError
from vitviz.images.encoded import encoded
from vitviz.visualization.heatmaps import Heatmap, Style

if TYPE_CHECKING:
    from vitviz.visualization.heatmaps import AnyStyle

INK, FONT_SIZE = "#7b7f87", 20
# Pixels: the corner of the first cell, the gap between two cells, and that between a cell and its number.
LEFT, TOP, GAP, NUMBER_GAP = 56, 52, 4, 7


class Sheet(list[list[Heatmap]], AttributeAdvice):
    """Maps of one token in every layer (outer list) and head (inner list); a notebook shows them as one picture."""

    def picture(self, style: AnyStyle = None, *, shared_scale: bool = False, cell: int = 110) -> Image.Image:
        """All maps in one picture with a transparent background, RGBA, layers as rows and heads as columns.

        Args:
            style: style of every cell, or the name of a colormap.
            shared_scale: whether to fit the style's scale to all cells together instead of to each.
            cell: longest side of a cell in pixels.

        Raises:
            MethodError: the style is invalid.
            QueryError: there is no map, or the maps belong to several images.
        """
        if not self or not self[0] or len({len(row) for row in self}) != 1:
            raise QueryError(f"sheet of rows with {[len(row) for row in self]} maps: expected rows of one length")
        first = self[0][0]
        maps = [heatmap for row in self for heatmap in row]
        if any(heatmap.image is not first.image or heatmap.geometry != first.geometry for heatmap in maps):
            raise QueryError("sheet of maps on several images: expected maps on one")
        style = Style.of(style)
        if shared_scale:
            scale = style.fitted([each.values for each in maps], any(each.token_map.signed for each in maps))
            style = replace(style, scale=scale, low=None, high=None)
        # Resized once, since it would take seconds to do in every cell of a large photo.
        small = first.resized(cell)
        width, height = small.image.size
        lefts = [LEFT + column * (width + GAP) for column in range(len(self[0]))]
        tops = [TOP + row * (height + GAP) for row in range(len(self))]
        picture = Image.new("RGBA", (lefts[-1] + width + GAP, tops[-1] + height + GAP))
        for top, row in zip(tops, self, strict=True):
            for left, heatmap in zip(lefts, row, strict=True):
                picture.paste(replace(small, token_map=heatmap.token_map).overlay(style), (left, top))
        texts: list[tuple[str, tuple[float, float], str]] = [("head", (LEFT, GAP), "lt")]
        texts.append(("layer", (LEFT - NUMBER_GAP, TOP - NUMBER_GAP), "rs"))
        texts += [(str(row), (LEFT - NUMBER_GAP, top + height / 2), "rm") for row, top in enumerate(tops)]
        texts += [(str(column), (left + width / 2, TOP - NUMBER_GAP), "ms") for column, left in enumerate(lefts)]
        draw, font = ImageDraw.Draw(picture), ImageFont.load_default(FONT_SIZE)
        for text, place, anchor in texts:
            draw.text(place, text, INK, font, anchor=anchor)
        return picture

    def _repr_png_(self) -> bytes:
        """The picture that a notebook shows."""
        return encoded(self.picture(), "PNG")
