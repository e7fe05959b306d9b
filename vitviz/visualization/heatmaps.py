"""A token map on the user's pixels: placed by the geometry, coloured, and laid over the image."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from PIL import Image

from vitviz.attention.token_map import TokenMap
from vitviz.errors.arguments import boolean, integer, named_arguments, named_fields, number, number_or_none, word
from vitviz.errors.attributes import AttributeAdvice
from vitviz.errors.kinds import MethodError
from vitviz.errors.messages import choices, describe, did_you_mean
from vitviz.errors.words import WORDS
from vitviz.images.preprocessing import resize_longest
from vitviz.visualization.captioned import Panel, captioned, end_texts
from vitviz.visualization.colormaps import (
    DEFAULT_COLORMAP,
    DIVERGING_COLORMAP,
    ColormapName,
    check_colormap,
    colour_table,
    is_object,
)
from vitviz.visualization.map_rows import Rows
from vitviz.visualization.overlays import overlay, pixels
from vitviz.visualization.regions import share_inside
from vitviz.visualization.saving import save_as
from vitviz.visualization.scales import PERCENTILES, SCALES, FittedScale, ScaleName, fit, percentile_pair
from vitviz.visualization.user_maps import map_of, whole_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike

    from vitviz.images.sources import ImageSource
    from vitviz.visualization.regions import Region

    AnyStyle: TypeAlias = "Style | ColormapName | Colormap | None"

# Longest side of the picture in a figure, in pixels.
FIGURE_SIDE = 1280


@named_fields(MethodError)
@dataclass(frozen=True)
class Style:
    """The style in which a heatmap is drawn.

    Args:
        colormap: one of :data:`vitviz.visualization.colormaps.COLORMAPS`, or a colormap of matplotlib's own as an
            object, such as ``matplotlib.colormaps["jet"]``. In place of the default, a signed map has
            ``"coolwarm"``, whose middle, at zero, is grey.
        opacity: opacity of the colours over the image, in [0, 1].
        fade: whether weak values leave the image clear: the opacity grows with the power 1.5 of the position on the
            scale, or of the distance from zero for a signed map.
        drain: whether the image is paler and darker, so that no colour of its own is taken for the map's.
        smooth: whether to interpolate between patch centres instead of drawing each patch in one colour; a map of 0 and
            1 alone is not.
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

    colormap: ColormapName | Colormap = DEFAULT_COLORMAP
    opacity: float = 0.6
    smooth: bool = False
    grid: bool = False
    low: float | None = None
    high: float | None = None
    fade: bool = False
    drain: bool = False
    scale: ScaleName | FittedScale | None = None
    percentiles: tuple[float, float] = PERCENTILES

    def __post_init__(self) -> None:
        check_colormap(self.colormap)
        number("opacity", self.opacity, lambda opacity: 0 <= opacity <= 1, "a number in [0, 1]")
        for name in ("smooth", "grid", "fade", "drain"):
            object.__setattr__(self, name, boolean(name, getattr(self, name)))
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
    @named_arguments(MethodError)
    def of(cls, style: AnyStyle) -> Style:
        """The style itself, or the default style with this colormap.

        Raises:
            MethodError: ``style`` is neither, or there is no such colormap.
        """
        if style is None or isinstance(style, Style):
            return cls() if style is None else style
        if isinstance(style, str) or is_object(style):
            return cls(style)
        raise MethodError(f"style: {describe(style)} found; expected a vitviz.Style or a colormap's name")

    def colours(self, signed: bool = False) -> np.ndarray:
        """The colours of a map from its lowest value to its highest: ``"value channel"`` in [0, 255]."""
        is_default = signed and isinstance(self.colormap, str) and self.colormap == DEFAULT_COLORMAP
        return colour_table(DIVERGING_COLORMAP if is_default else self.colormap)

    @property
    def source(self) -> str:
        """A sentence on where the colours are from; empty for those of vitviz."""
        return "" if isinstance(self.colormap, str) else f"Colours of matplotlib's {self.colormap.name}."

    def fitted(self, maps: Iterable[Any], signed: bool) -> FittedScale:
        """The scale with its ends on which the style draws the values of these maps together."""
        if isinstance(self.scale, FittedScale):
            return self.scale
        return fit(self.scale, maps, percentiles=self.percentiles, low=self.low, high=self.high, signed=signed)


def _unknown_argument(*_: Any, unknown: str, wrong_value: Any, **__: Any) -> str:
    """The message about an unknown argument of :meth:`Heatmap.overlay`, which is often one of a style."""
    style_fields = [each.name for each in fields(Style)]
    if (meant := WORDS.get(unknown, unknown)) in style_fields:
        # A wrong value is refused by its own sentence.
        code = f"vitviz.Style({meant}={getattr(Style(**{meant: wrong_value}), meant)!r})"
        return f"no parameter {unknown!r}: it is one of a style; expected style={code}"
    legal = f"expected 'style', 'mark', or of Style {choices(style_fields)}"
    return f"no parameter {unknown!r}: {legal}{did_you_mean(unknown, style_fields)}"


@named_fields(MethodError, "vitviz.Heatmap.of(array, image)")
@dataclass(frozen=True, eq=False)
class Heatmap(Rows, AttributeAdvice):
    """A token map and the image it belongs to.

    Args:
        token_map: the map.
        image: the user's image, RGB.
        geometry: position of the model's input on the image.
        model: the model's name, which the caption of a difference of two models' maps gives; empty if there is none.
        weights: samples of the model's weights, which tell models of one name apart; empty if there are none.

    >>> heatmap = analysis.rollout(head_fusion="max", discard_ratio=0.9)
    >>> heatmap.values.shape
    torch.Size([14, 14])
    >>> heatmap.save("rollout.png")
    """

    def __post_init__(self) -> None:
        # An image that was reduced while it was decoded has the coordinates of its file.
        object.__setattr__(self, "geometry", self.geometry.resized(*self.image.size))
        # A picture needs no gradient, whose graph would be kept.
        if self.token_map.values.requires_grad:
            object.__setattr__(self, "token_map", replace(self.token_map, values=self.token_map.values.detach()))

    @classmethod
    @named_arguments(MethodError)
    def of(cls, array: TokenMap | ArrayLike | torch.Tensor, image: ImageSource) -> Heatmap:
        """A map of your own on a picture, which it covers whole.

        If the network saw only a part of the picture, as after a centre crop, give it that part.

        Args:
            array: ``"row column"``, from the top left corner: an array, a tensor on any device, or a list of rows; or a
                :class:`vitviz.TokenMap`, such as :func:`vitviz.attribution.rollout` gives. With values below zero, it
                is drawn as a signed map.
            image: as :func:`vitviz.open_image` takes it.

        Raises:
            MethodError: the values are no finite numbers in rows and columns.
            ImageError: the image cannot be opened.
        """
        token_map = array if isinstance(array, TokenMap) else map_of(array)
        return cls(token_map, *whole_picture(image, token_map.values.shape))

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        rows, columns = self.values.shape
        return rows, columns

    def __getitem__(self, place: Any) -> Any:
        """Values by row and column, as of :meth:`numpy`."""
        return self.numpy()[place]

    @property
    def description(self) -> str:
        """How the map was computed, as captions show it."""
        return self.token_map.description

    @named_arguments(MethodError)
    def scale(self, style: AnyStyle = None) -> FittedScale:
        """The scale with its ends on which a style draws this map.

        Raises:
            MethodError: the style is invalid.
        """
        return Style.of(style).fitted([self.values], self.token_map.signed)

    @named_arguments(MethodError)
    def caption(self, style: AnyStyle = None) -> str:
        """The description, and a sentence on the scale unless it is linear and includes all values.

        Raises:
            MethodError: the style is invalid.
        """
        style = Style.of(style)
        text = " ".join(filter(None, [self.scale(style).caption(self.values), style.source]))
        return f"{self.description}. {text}" if text else self.description

    @named_arguments(MethodError)
    def resized(self, longest_side: int) -> Heatmap:
        """The heatmap on an image of another size, such as for the screen.

        Raises:
            MethodError: the size is not a positive whole number of pixels.
        """
        image, geometry = resize_longest(
            self.image, self.geometry, integer("longest_side", longest_side, 1, MethodError)
        )
        return replace(self, image=image, geometry=geometry)

    def __repr__(self) -> str:
        rows, columns = self.values.shape
        image = f"{self.image.width}×{self.image.height} pixels"
        return f"Heatmap({self.description!r}, {rows}×{columns} patches, image of {image})"

    @named_arguments(MethodError)
    def pixels(self, smooth: bool = False) -> np.ndarray:
        """The value at every pixel of the image: ``"height width"``, float32, NaN outside the model's input.

        Args:
            smooth: whether to interpolate between patch centres instead of one value per patch.
        """
        return pixels(self, smooth)

    @named_arguments(MethodError)
    def share_inside(self, region: Region) -> float | None:
        """The share of the map inside a mask or a box: each value counts by the share of its patch that lies inside.

        An even map has as much inside as the region takes of the model's input; what lies outside of that counts for
        nothing.

        Args:
            region: a mask of the picture or of its proportions, nonzero inside: an array or tensor ``"height width"``,
                a PIL image or the path of one, black outside. If its edges are smoothed, at least half of white is
                inside. Or a box ``(left, top, right, bottom)`` in pixels of the upright picture. The border that a
                preprocessing function adds is no part of the picture.

        Returns:
            The share, in [0, 1]; None for a map of zeros, such as that of a class that nothing raises.

        Raises:
            MethodError: the map is signed.
            ImageError: there is no such mask, it has other proportions or more than two values, such as a label map,
                or the box leaves the picture.
        """
        return share_inside(self, region)

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
        return overlay(self, Style.of(style), mark)

    @named_arguments(MethodError, _unknown_argument)
    def save(
        self,
        path: str | os.PathLike[str],
        style: AnyStyle = None,
        mark: tuple[int, int] | None = None,
    ) -> None:
        """Write :meth:`overlay` to a file, in the format of its ending, such as ``.png`` or ``.jpg``.

        The picture carries :meth:`caption` as its description (Exif), where the format has one.

        ``.svg`` and ``.pdf`` are :meth:`figure`, with its grid, colour bar and text as vectors. ``.npz`` has the
        numbers, whatever the style: ``values``, as of :meth:`numpy`; ``box``, the left, top, right and bottom of the
        map on the picture in pixels; ``size``, the picture's width and height; ``grid``, the map's rows and columns;
        and ``description``.

        Args:
            path: path of the file, which is overwritten if it exists.
            style, mark: as in :meth:`overlay`.

        Raises:
            ImageError: the file cannot be written, or no format has this ending.
            MethodError, QueryError: as :meth:`overlay`.
        """
        arrays: dict[str, Any] = {"values": self.numpy(), "box": self.geometry.box, "grid": self.shape}
        size = self.geometry.image_width, self.geometry.image_height
        arrays |= {"size": size, "description": self.description}
        drawn = partial(self.overlay, style, mark), partial(self.figure, style, mark)
        save_as(path, *drawn, arrays, self.caption(style))

    @named_arguments(MethodError, _unknown_argument)
    def figure(self, style: AnyStyle = None, mark: tuple[int, int] | None = None, ax: Axes | None = None) -> Figure:
        """:meth:`overlay` with its colour bar and caption, for a notebook, a paper, TensorBoard or Weights & Biases.

        Args:
            style, mark: as in :meth:`overlay`.
            ax: axes of a figure of your own, which get the map and, below it, its colour bar. The title is yours;
                :meth:`caption` has a text for it.

        Returns:
            The new figure, or that of the axes.

        Raises:
            MethodError, QueryError: as :meth:`overlay`.
        """
        if ax is None:
            return captioned([self.panel(style, mark)])
        # Imported here, so that computing maps does not wait for matplotlib.
        from vitviz.visualization.vector_heatmap import draw_into

        return draw_into(ax, self._small, Style.of(style), mark)

    @named_arguments(MethodError, _unknown_argument)
    def panel(self, style: AnyStyle = None, mark: tuple[int, int] | None = None, heading: str = "") -> Panel:
        """The map as a panel of a figure, with what stands above it."""
        from vitviz.visualization.vector_heatmap import draw_map

        style, scale, small = Style.of(style), self.scale(style), self._small
        draw = partial(draw_map, heatmap=small, style=style, mark=mark)
        colours, ends = style.colours(scale.signed), end_texts(scale.ends, scale.beyond(self.values))
        return Panel(small.image.size, draw, colours, ends, self.caption(style), heading)

    @property
    def _small(self) -> Heatmap:
        return self if max(self.image.size) <= FIGURE_SIDE else self.resized(FIGURE_SIDE)

    @named_arguments(MethodError, _unknown_argument)
    def show(self, style: AnyStyle = None, mark: tuple[int, int] | None = None) -> None:
        """Show :meth:`figure`: below the cell of a notebook, or else in the system's viewer of pictures.

        Args and errors are those of :meth:`overlay`.
        """
        captioned([self.panel(style, mark)]).show()

    def _repr_png_(self) -> bytes:
        """The figure that a notebook shows."""
        return captioned([self.panel()]).png()
