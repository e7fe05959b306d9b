"""Maps of every layer and head."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from io import BytesIO
from typing import TYPE_CHECKING

from PIL import Image, ImageDraw, ImageFont

from vitviz.errors.arguments import integer, named_arguments
from vitviz.errors.attributes import AttributeAdvice
from vitviz.errors.kinds import MethodError, QueryError
from vitviz.images.encoded import encoded
from vitviz.visualization.captioned import (
    MAX_PICTURE_INCHES,
    WIDTH_INCHES,
    Panel,
    captioned,
    end_texts,
)
from vitviz.visualization.heatmaps import Heatmap, Style
from vitviz.visualization.saving import VECTOR_DPI, save_as
from vitviz.visualization.scales import FittedScale

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from vitviz.visualization.drawing import OwnFigure
    from vitviz.visualization.heatmaps import AnyStyle

    Text = tuple[str, tuple[float, float], str]

INK, FONT_SIZE = "#7b7f87", 20
# Pixels: the corner of the first cell, the gap between two cells, and that between a cell and its number.
LEFT, TOP, GAP, NUMBER_GAP = 66, 52, 4, 7
# The same in a figure is so many times as large; its font is then of 8 points.
UNIT = 5 / 3
# The letters by which Pillow names the place of a text, in the words of matplotlib.
PLACES = {"l": "left", "r": "right", "m": "center", "t": "top", "s": "baseline"}


class Sheet(list[list[Heatmap]], AttributeAdvice):
    """Maps of one token in every layer (outer list) and head (inner list); a notebook shows them as one picture.

    Args:
        rows: the maps, all on one image.
        layers, heads: the numbers of the rows and columns; from 0 by default.
        subject: what all maps show, with which a caption begins.
    """

    def __init__(
        self,
        rows: Iterable[list[Heatmap]] = (),
        layers: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
        subject: str = "Maps",
    ) -> None:
        super().__init__(rows)
        self.layers, self.heads, self.subject = layers, heads, subject

    @named_arguments(MethodError)
    def picture(self, style: AnyStyle = None, *, shared_scale: bool = False, cell: int = 110) -> Image.Image:
        """All maps in one picture with a transparent background, RGBA, layers as rows and heads as columns.

        Args:
            style: style of every cell, or the name of a colormap.
            shared_scale: whether to fit the style's scale to all cells together instead of to each.
            cell: longest side of a cell in pixels.

        Raises:
            MethodError: the style or the size of a cell is invalid.
            QueryError: there is no map, or the maps belong to several images.
        """
        style = self._style(style, shared_scale)
        picture, texts = self._drawn(style, self[0][0].resized(integer("cell", cell, 1, MethodError)))
        draw, font = ImageDraw.Draw(picture), ImageFont.load_default(FONT_SIZE)
        for text, place, anchor in texts:
            draw.text(place, text, INK, font, anchor=anchor)
        return picture

    @named_arguments(MethodError)
    def figure(self, style: AnyStyle = None, *, shared_scale: bool = False) -> OwnFigure:
        """All maps as a figure for a paper, with colour bar and caption: layers down, heads across, text as text.

        The maps are pictures of 300 dots per inch, and a patch is a whole number of dots wide.

        Args:
            style: style of every cell, or the name of a colormap.
            shared_scale: as in :meth:`picture`; a scale of all cells has its ends at the bar.

        Raises:
            MethodError, QueryError: as :meth:`picture`.
        """
        style, maps = self._style(style, shared_scale), [heatmap for row in self for heatmap in row]
        width, height = round(WIDTH_INCHES * VECTOR_DPI), round(MAX_PICTURE_INCHES * VECTOR_DPI)
        first, longest = maps[0], max(maps[0].image.size)
        room = (width - LEFT * UNIT) / len(self[0]), (height - TOP * UNIT) / len(self)
        dots = min((side - GAP * UNIT) / px for side, px in zip(room, first.image.size, strict=True))
        patch = (first.geometry.box[2] - first.geometry.box[0]) / first.shape[1]
        dots = math.floor(dots * patch) / patch if dots * patch >= 1 else dots
        picture, texts = self._drawn(style, first.resized(max(1, round(longest * dots))), UNIT, width, "white")
        scales, values = [heatmap.scale(style) for heatmap in maps], [heatmap.numpy() for heatmap in maps]
        names, ends = dict.fromkeys(each.scale.title.lower() for each in scales), ("low", "high")
        sentence = f"Each map has a scale of its own, {' or '.join(names)}."
        is_fixed = len({(each.scale.name, each.ends) for each in scales}) == 1 and scales[0].scale.name != "rank"
        if is_fixed or isinstance(style.scale, FittedScale):
            ends = end_texts(scales[0].ends, scales[0].beyond(values))
            sentence = f"All maps share one scale. {scales[0].caption(values)}"
        caption = f"{self.subject}: layers down, heads across. {sentence} {style.source}"
        colours = style.colours(any(heatmap.token_map.signed for heatmap in maps))
        return captioned([Panel(picture.size, partial(draw_picture, picture, texts), colours, ends, caption.strip())])

    @named_arguments(MethodError)
    def save(self, path: str | os.PathLike[str], style: AnyStyle = None, *, shared_scale: bool = False) -> None:
        """Write :meth:`figure` to a file, in the format of its ending: ``.pdf`` and ``.svg``, or a picture.

        Args:
            path: path of the file, which is overwritten if it exists.
            style, shared_scale: as in :meth:`figure`.

        Raises:
            ImageError: the file cannot be written, or no format has this ending.
            MethodError, QueryError: as :meth:`picture`.
        """
        figure = partial(self.figure, style, shared_scale=shared_scale)
        save_as(path, lambda: Image.open(BytesIO(figure().png(VECTOR_DPI))).convert("RGB"), figure)

    def _style(self, style: AnyStyle, shared_scale: bool) -> Style:
        """The style, with one fitted scale if all cells share it; the maps are checked."""
        if not self or not self[0] or len({len(row) for row in self}) != 1:
            raise QueryError(f"sheet of rows with {[len(row) for row in self]} maps: expected rows of one length")
        maps = [heatmap for row in self for heatmap in row]
        if any(each.image is not maps[0].image or each.geometry != maps[0].geometry for each in maps):
            raise QueryError("sheet of maps on several images: expected maps on one")
        style = Style.of(style)
        if shared_scale:
            scale = style.fitted([each.values for each in maps], any(each.token_map.signed for each in maps))
            style = replace(style, scale=scale, low=None, high=None)
        return style

    def _drawn(
        self, style: Style, cell: Heatmap, unit: float = 1.0, width: int = 0, background: str | int = 0
    ) -> tuple[Image.Image, list[Text]]:
        """All maps in cells like this one, in the middle of a picture at least so wide; and its texts, to be drawn."""
        # Resized once, since it would take seconds to do in every cell of a large photo.
        (across, down), font, gap = cell.image.size, FONT_SIZE * unit, round(GAP * unit)
        left, top, beside = round(LEFT * unit), round(TOP * unit), NUMBER_GAP * unit
        size = left + (across + gap) * len(self[0]), top + (down + gap) * len(self)
        left += max(0, width - size[0]) // 2
        picture = Image.new("RGBA", (max(width, size[0]), size[1]), background)
        lefts = [left + column * (across + gap) for column in range(len(self[0]))]
        tops = [top + row * (down + gap) for row in range(len(self))]
        for y, maps in zip(tops, self, strict=True):
            for x, heatmap in zip(lefts, maps, strict=True):
                picture.paste(replace(cell, token_map=heatmap.token_map).overlay(style), (x, y))
        # Of numbers that have no room, those of every second cell stay, or even fewer.
        steps = math.ceil(font / (down + gap)), math.ceil(1.5 * font / (across + gap))
        rows = list(zip(self.layers or range(len(self)), tops, strict=True))[:: steps[0]]
        columns = list(zip(self.heads or range(len(self[0])), lefts, strict=True))[:: steps[1]]
        texts: list[Text] = [("head", (left, gap), "lt"), ("layer", (left - beside, top - beside), "rs")]
        texts += [(str(layer), (left - beside, y + down / 2), "rm") for layer, y in rows]
        texts += [(str(head), (x + across / 2, top - beside), "ms") for head, x in columns]
        return picture, texts

    def _repr_png_(self) -> bytes:
        """The picture that a notebook shows."""
        return encoded(self.picture(), "PNG")


def draw_picture(picture: Image.Image, texts: Sequence[Text], axes: Axes) -> None:
    """Draw a picture into axes of its shape, and texts over it, each with its place in pixels and its anchor."""
    axes.imshow(picture)
    axes.axis("off")
    for text, place, anchor in texts:
        across, down = PLACES[anchor[0]], "center" if anchor[1] == "m" else PLACES[anchor[1]]
        axes.text(*place, text, color=INK, fontsize=FONT_SIZE * UNIT * 72 / VECTOR_DPI, ha=across, va=down)
