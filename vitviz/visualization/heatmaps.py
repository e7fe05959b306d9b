"""A token map on the user's pixels: placed by the geometry, coloured, and laid over the image."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from PIL import Image, ImageDraw

from vitviz.attention.token_map import TokenMap
from vitviz.errors.arguments import integer, named_arguments, named_fields, number, number_or_none, pair_or_none, word
from vitviz.errors.attributes import AttributeAdvice
from vitviz.errors.kinds import ImageError, MethodError, QueryError
from vitviz.errors.messages import choices, describe, did_you_mean
from vitviz.images.geometry import Geometry
from vitviz.images.preprocessing import resize_longest
from vitviz.system.atomic import atomic_write
from vitviz.visualization.captioned import captioned, png
from vitviz.visualization.scales import PERCENTILES, SCALES, FittedScale, ScaleName, fit, percentile_pair

if TYPE_CHECKING:
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

    AnyStyle: TypeAlias = "Style | ColormapName | Colormap | None"

# Rows per band, which fits into the processor's cache and bounds the memory for a large photo.
BAND_ROWS = 64
# Longest side of the picture in a figure, in pixels.
FIGURE_SIDE = 1280
# Perceptually uniform ones first, in which equal steps of the value look equal.
ColormapName = Literal["inferno", "viridis", "magma", "cividis", "gray", "turbo"]
COLORMAPS: tuple[ColormapName, ...] = get_args(ColormapName)
DIMMED_LEVELS = [round(0.35 * level) for level in range(256)]


@named_fields(MethodError)
@dataclass(frozen=True)
class Style:
    """The style in which a heatmap is drawn.

    Args:
        colormap: one of :data:`COLORMAPS`.
        opacity: opacity of the colours over the image, in [0, 1].
        fade: whether weak values leave the image clear: the opacity grows with the square root of the position on the
            scale, or of the distance from zero for a signed map.
        smooth: whether to interpolate between patch centres instead of drawing each patch in one colour.
        grid: whether to draw the borders of the patches.
        low, high: values at the two ends of the colormap; by default those of the scale.
        scale: the scale from values to colours, a name in :data:`vitviz.visualization.SCALES`; None for the one that
            suits the map's values, see :func:`vitviz.visualization.scales.choose`, or a linear one if an end is given.
            A scale that was fitted to other maps gives all of them the same colours.
        percentiles: ends of a robust scale, the lower one first.

    Raises:
        MethodError: the colormap or the scale is unknown, or a number is out of range.

    >>> analysis.rollout().overlay(vitviz.Style("viridis", opacity=0.4, scale="rank")).size
    (451, 300)
    """

    colormap: ColormapName | Colormap = "inferno"
    opacity: float = 0.6
    smooth: bool = False
    grid: bool = False
    low: float | None = None
    high: float | None = None
    fade: bool = False
    scale: ScaleName | FittedScale | None = None
    percentiles: tuple[float, float] = PERCENTILES

    def __post_init__(self) -> None:
        word("colormap", self.colormap, COLORMAPS)
        number("opacity", self.opacity, lambda opacity: 0 <= opacity <= 1, "a number in [0, 1]")
        for name in ("smooth", "grid", "fade"):
            if not isinstance(getattr(self, name), bool):
                raise MethodError(f"{name} = {describe(getattr(self, name))}: expected True or False")
        ends = [number_or_none(end) for end in (self.low, self.high) if end is not None]
        if None in ends or ends != sorted(end for end in ends if end is not None):
            values = f"low = {describe(self.low)} and high = {describe(self.high)}"
            raise MethodError(f"{values}: expected finite numbers, low at most high")
        if isinstance(self.scale, FittedScale):
            if ends:
                raise MethodError("low and high: a fitted scale has ends of its own; expected the name of a scale")
        elif self.scale is not None:
            word("scale", self.scale, SCALES)
        object.__setattr__(self, "percentiles", percentile_pair("percentiles", self.percentiles))

    @classmethod
    def of(cls, style: AnyStyle) -> Style:
        """The style itself, or the default style with the colormap of this name.

        Raises:
            MethodError: ``style`` is neither, or there is no such colormap.
        """
        if style is None or isinstance(style, str):
            return cls() if style is None else cls(style)
        if not isinstance(style, Style):
            raise MethodError(f"style: {describe(style)} found; expected a vitviz.Style or a colormap's name")
        return style


def _unknown_argument(*_: Any, unknown: str, **__: Any) -> str:
    """The message about an unknown argument of :meth:`Heatmap.overlay`, which is often one of a style."""
    style_fields = [field.name for field in fields(Style)]
    if unknown in style_fields:
        return f"no parameter {unknown!r}: it is one of a style; expected style=Style({unknown}=…)"
    legal = f"expected 'style', 'mark', or of Style {choices(style_fields)}"
    return f"no parameter {unknown!r}: {legal}{did_you_mean(unknown, style_fields)}"


@dataclass(frozen=True, eq=False)
class Heatmap(AttributeAdvice):
    """A token map and the image it belongs to.

    Args:
        token_map: the map.
        image: the user's image, RGB.
        geometry: position of the model's input on the image.

    >>> heatmap = analysis.rollout(head_fusion="max", discard_ratio=0.9)
    >>> heatmap.values.shape
    torch.Size([14, 14])
    >>> heatmap.save("rollout.png")
    """

    token_map: TokenMap
    image: Image.Image
    geometry: Geometry

    def __post_init__(self) -> None:
        # An image that was reduced while it was decoded has the coordinates of its file.
        object.__setattr__(self, "geometry", self.geometry.resized(*self.image.size))

    @property
    def values(self) -> torch.Tensor:
        """The map's values, ``"grid_height grid_width"``."""
        return self.token_map.values

    @property
    def description(self) -> str:
        """How the map was computed, as captions show it."""
        return self.token_map.description

    def scale(self, style: AnyStyle = None) -> FittedScale:
        """The scale with its ends on which a style draws this map.

        Raises:
            MethodError: the style is invalid.
        """
        style, token_map = Style.of(style), self.token_map
        if isinstance(style.scale, FittedScale):
            return style.scale
        ends = {"low": style.low, "high": style.high}
        return fit(style.scale, [self.values], percentiles=style.percentiles, signed=token_map.signed, **ends)

    def caption(self, style: AnyStyle = None) -> str:
        """The description, and a sentence on the scale unless it is linear and includes all values.

        Raises:
            MethodError: the style is invalid.
        """
        scale_text = self.scale(style).caption(self.values)
        return f"{self.description}. {scale_text}" if scale_text else self.description

    def resized(self, longest_side: int) -> Heatmap:
        """The heatmap on an image of another size, such as for the screen.

        Raises:
            MethodError: the size is not a positive whole number of pixels.
        """
        longest_side = integer("longest_side", longest_side, 1, MethodError)
        return Heatmap(self.token_map, *resize_longest(self.image, self.geometry, longest_side))

    def numpy(self) -> np.ndarray:
        """A copy of the map's values as an array, in their own precision: ``"grid_height grid_width"``."""
        return self.values.detach().cpu().numpy().copy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        # NumPy's protocol requires an error where a copy cannot be avoided.
        if copy is False:
            raise ValueError("the values of a heatmap cannot be had without a copy")
        return self.numpy() if dtype is None else self.numpy().astype(dtype)

    def __repr__(self) -> str:
        rows, columns = self.values.shape
        image = f"{self.image.width}×{self.image.height} pixels"
        return f"Heatmap({self.description!r}, {rows}×{columns} patches, image of {image})"

    def pixels(self, smooth: bool = False) -> np.ndarray:
        """The value at every pixel of the image: ``"height width"``, float32, NaN outside the model's input.

        Args:
            smooth: whether to interpolate between patch centres instead of one value per patch.
        """
        rows, columns = self._sampling(smooth)
        return rows @ self.values.detach().cpu().float().numpy() @ columns.T

    @named_arguments(MethodError, _unknown_argument)
    def overlay(self, style: AnyStyle = None, mark: tuple[int, int] | None = None) -> Image.Image:
        """The image with the map's colours over it; pixels outside the model's input are dimmed and have no colours.

        A channel differs by at most 1 of 255 levels from the exact mixture, rounded, and not at all if the opacity is 0
        or 1. A smooth value within rounding of the border between two of the 256 colours may get either.

        Args:
            style: the style, or the name of a colormap.
            mark: a patch ``(row, column)`` to outline.

        Raises:
            MethodError: the style is invalid.
            QueryError: the map has no such patch.
        """
        style = Style.of(style)
        palette = colour_table(style.colormap).round().astype(np.uint8).tobytes()
        scale = self.scale(style)
        steps, overlay = self._steps(scale, style.smooth), Image.new("RGB", self.image.size, None)
        for start in range(0, overlay.height, BAND_ROWS):
            box = (0, start, overlay.width, min(start + BAND_ROWS, overlay.height))
            # Pillow looks up and mixes bytes, which is faster than NumPy with wider numbers.
            colours = Image.fromarray(steps[start : start + BAND_ROWS])
            colours.putpalette(palette)
            overlay.paste(_blend(self.image.crop(box), colours, style, scale.signed), box)
        self._dim_outside(overlay)
        if style.grid:
            self._draw_grid(overlay)
        if mark is not None:
            self._draw_mark(overlay, mark)
        return overlay

    @named_arguments(MethodError, _unknown_argument)
    def save(
        self,
        path: str | os.PathLike[str],
        style: AnyStyle = None,
        mark: tuple[int, int] | None = None,
    ) -> None:
        """Write :meth:`overlay` to a file, in the format of its ending, such as ``.png`` or ``.jpg``.

        Args:
            path: path of the file, which is overwritten if it exists.
            style, mark: as in :meth:`overlay`.

        Raises:
            ImageError: the file cannot be written, or no format has this ending.
            MethodError, QueryError: as :meth:`overlay`.
        """
        if not isinstance(path, str | os.PathLike):
            raise ImageError(f"path: {describe(path)} found; expected the path of a picture to write")
        kind = Image.registered_extensions().get(Path(path).suffix.lower())
        if kind not in Image.SAVE:
            raise ImageError(f"{path}: cannot be written: expected the ending of a picture, such as .png")
        picture = self.overlay(style, mark)
        try:
            with atomic_write(Path(path)) as file:
                picture.save(file, kind)
        # Some formats cannot hold every picture, such as a very wide one.
        except (OSError, ValueError) as error:
            raise ImageError(f"{path}: cannot be written ({getattr(error, 'strerror', None) or error})") from None

    @named_arguments(MethodError, _unknown_argument)
    def figure(self, style: AnyStyle = None, mark: tuple[int, int] | None = None) -> Figure:
        """:meth:`overlay` with its colour bar and caption, for a notebook, a paper, TensorBoard or Weights & Biases.

        Args:
            style, mark: as in :meth:`overlay`.

        Raises:
            MethodError, QueryError: as :meth:`overlay`.
        """
        style, scale = Style.of(style), self.scale(style)
        small = self if max(self.image.size) <= FIGURE_SIDE else self.resized(FIGURE_SIDE)
        colours, beyond = colour_table(style.colormap), scale.beyond(self.values)
        return captioned(small.overlay(style, mark), colours, scale.ends, beyond, self.caption(style))

    def _repr_png_(self) -> bytes:
        """The figure that a notebook shows."""
        return png(self.figure())

    def _steps(self, scale: FittedScale, smooth: bool) -> np.ndarray:
        """The index of every pixel's colour in the colour table: ``"height width"``, uint8."""
        rows, columns = (np.nan_to_num(weights) for weights in self._sampling(smooth))
        # 256 equal steps, as matplotlib divides them.
        patches = 256 * scale.place(self.values)
        if not smooth:
            return patches.clip(0, 255).astype(np.uint8).take(columns.argmax(1), 1).take(rows.argmax(1), 0)
        across, steps = patches.astype(np.float32) @ columns.T, np.empty((len(rows), len(columns)), np.uint8)
        for start in range(0, len(rows), BAND_ROWS):
            band = rows[start : start + BAND_ROWS]
            is_near = band.any(0)
            steps[start : start + BAND_ROWS] = (band[:, is_near] @ across[is_near]).clip(0, 255)
        return steps

    def _sampling(self, smooth: bool) -> tuple[np.ndarray, np.ndarray]:
        """Weights of the map's rows and of its columns: ``"pixel patch"``, NaN outside the model's input."""
        left, top, right, bottom = self.geometry.box
        rows, columns = self.values.shape
        return (
            _sampling(self.image.height, top, bottom, rows, smooth),
            _sampling(self.image.width, left, right, columns, smooth),
        )

    def _dim_outside(self, overlay: Image.Image) -> None:
        width, height = overlay.size
        left, top, right, bottom = self.geometry.box
        (top, bottom), (left, right) = _pixels_between(height, top, bottom), _pixels_between(width, left, right)
        above, below = (0, 0, width, top), (0, bottom, width, height)
        for box in (above, below, (0, top, left, bottom), (right, top, width, bottom)):
            if box[0] < box[2] and box[1] < box[3]:
                overlay.paste(self.image.crop(box).point(DIMMED_LEVELS * 3), box)

    def _draw_grid(self, overlay: Image.Image) -> None:
        draw = ImageDraw.Draw(overlay, "RGBA")
        rows, columns = self.values.shape
        left, top, right, bottom = self.geometry.box
        stroke = max(1, round(max(overlay.size) / 1000))
        for row in range(rows + 1):
            y = min(top + row * (bottom - top) / rows, overlay.height - 1)
            draw.line((left, y, right, y), (255, 255, 255, 90), stroke)
        for column in range(columns + 1):
            x = min(left + column * (right - left) / columns, overlay.width - 1)
            draw.line((x, top, x, bottom), (255, 255, 255, 90), stroke)

    def _draw_mark(self, overlay: Image.Image, mark: tuple[int, int]) -> None:
        rows, columns = self.values.shape
        patch = pair_or_none(mark)
        if patch is None or not (0 <= patch[0] < rows and 0 <= patch[1] < columns):
            value = describe(mark) if patch is None else patch
            raise QueryError(f"mark {value}: this map has patches (0, 0) to ({rows - 1}, {columns - 1})")
        draw = ImageDraw.Draw(overlay)
        left, top, right, bottom = self.geometry.patch_rectangle(*patch, rows, columns)
        stroke = max(1, round(max(overlay.size) / 300))
        # White with a black border is visible on every colour.
        for grow, colour in ((2 * stroke, "black"), (stroke, "white")):
            box = (round(left) - grow, round(top) - grow, round(right) + grow - 1, round(bottom) + grow - 1)
            draw.rectangle(box, outline=colour, width=stroke)


def _blend(image: Image.Image, colours: Image.Image, style: Style, signed: bool) -> Image.Image:
    """Blend colours over an image; ``colours`` is a palette image with indices into the colour table."""
    if not style.fade:
        return Image.blend(image, colours.convert("RGB"), style.opacity)
    strengths = (abs(step - 127.5) / 127.5 if signed else step / 255 for step in range(256))
    levels = [round(255 * style.opacity * strength**0.5) for strength in strengths]
    mask = Image.frombytes("L", colours.size, colours.tobytes()).point(levels)
    return Image.composite(colours.convert("RGB"), image, mask)


@cache
def colour_table(colormap: str) -> np.ndarray:
    """The colormap's 256 colours, ``"value channel"``, float32 in [0, 255]."""
    # Imported here, so that computing maps does not wait for matplotlib.
    import matplotlib

    table = matplotlib.colormaps[colormap](np.linspace(0, 1, 256))[:, :3] * 255
    return table.astype(np.float32)


def _pixels_between(pixels: int, start: float, end: float) -> tuple[int, int]:
    """The first pixel whose centre lies in the box, along one axis, and the one after the last."""
    first, stop = np.searchsorted(np.arange(pixels) + 0.5, (start, end))
    return int(first), int(stop)


def _sampling(pixels: int, start: float, end: float, patches: int, smooth: bool) -> np.ndarray:
    """Weights of the patches along one axis at every pixel's centre: ``"pixel patch"``, NaN outside the box."""
    centres = np.arange(pixels) + 0.5
    if smooth:
        position = (centres - start) * patches / (end - start) - 0.5
        distance = np.abs(position.clip(0, patches - 1)[:, None] - np.arange(patches))
        weights = (1 - distance).clip(0)
    else:
        edges = start + (end - start) * np.arange(1, patches) / patches
        weights = np.eye(patches)[np.searchsorted(edges, centres, side="right")]
    first, stop = _pixels_between(pixels, start, end)
    weights[:first] = weights[stop:] = np.nan
    return weights.astype(np.float32)
