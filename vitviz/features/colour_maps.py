"""A colour for each patch, on the user's pixels: drawn alone, or laid over the picture."""

from __future__ import annotations

import math
import os
from collections import UserList
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

from vitviz.errors.arguments import named_arguments, number
from vitviz.errors.attributes import AttributeAdvice
from vitviz.errors.kinds import MethodError
from vitviz.images.geometry import Geometry
from vitviz.visualization.captioned import Panel, captioned
from vitviz.visualization.heatmaps import FIGURE_SIDE
from vitviz.visualization.overlays import dim_outside
from vitviz.visualization.saving import save_as
from vitviz.visualization.sheets import draw_picture

if TYPE_CHECKING:
    from vitviz.features.basis import Basis
    from vitviz.visualization.drawing import OwnFigure

# Of OKLab: the darkest and the lightest colour, and the width of both hues, within what screens show.
DARKEST, LIGHTEST, HUES = 0.42, 0.86, (0.42, 0.40)
# Ottosson 2020, "A perceptual color space for image processing": to cones, and from their cubes to linear sRGB.
CONES = ((1, 0.3963377774, 0.2158037573), (1, -0.1055613458, -0.0638541728), (1, -0.0894841775, -1.291485548))
LINEAR = (
    (4.0767416621, -3.3077115913, 0.2309699292),
    (-1.2684380046, 2.6097574011, -0.3413193965),
    (-0.0041960863, -0.7034186147, 1.707614701),
)
GAP_PX = 12


def component_colours(places: torch.Tensor) -> torch.Tensor:
    """The colours of components ``"… component"`` in [0, 1]: sRGB ``"… channel"`` in [0, 1].

    The first two components are hues, the third is the lightness, of OKLab, in which equal steps look equal; of fewer,
    the rest is in the middle. What no screen shows is clipped.
    """
    first, second, third = F.pad(places, (0, max(0, 3 - places.shape[-1])), value=0.5)[..., :3].unbind(-1)
    oklab = torch.stack([DARKEST + (LIGHTEST - DARKEST) * third, (first - 0.5) * HUES[0], (second - 0.5) * HUES[1]], -1)
    linear = ((oklab @ oklab.new_tensor(CONES).T) ** 3 @ oklab.new_tensor(LINEAR).T).clamp(0, 1)
    return torch.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)


def group_colours(count: int) -> torch.Tensor:
    """As many colours that look different, sRGB ``"group channel"`` in [0, 1]: hues around, dark and light in turn."""
    hues, is_light = torch.arange(count) * 2 * math.pi / count, torch.arange(count) % 2
    return component_colours(
        torch.stack([0.5 + hues.cos() / 2, 0.5 + hues.sin() / 2, 0.2 + 0.6 * is_light], -1).float()
    )


class Picture(AttributeAdvice):
    """What one map has, and several have side by side."""

    description: str
    overlay: Any

    @named_arguments(MethodError)
    def save(self, path: str | os.PathLike[str], opacity: float = 1.0, smooth: bool | None = None) -> None:
        """Write ``overlay(opacity, smooth)`` to a file in the format of its ending; ``.svg`` and ``.pdf`` are a figure.

        Raises:
            ImageError: the file cannot be written, or no format has this ending.
            MethodError: the opacity is out of range.
        """
        save_as(path, partial(self.overlay, opacity, smooth), self.figure, caption=self.description)

    def figure(self) -> OwnFigure:
        """The picture with its caption, for a notebook or a paper."""
        picture = self.overlay()
        picture.thumbnail((FIGURE_SIDE, FIGURE_SIDE))
        draw = partial(draw_picture, picture, ())
        return captioned([Panel(picture.size, draw, np.empty((0, 3)), ("", ""), self.description)], legend=False)

    def _repr_png_(self) -> bytes:
        """The figure that a notebook shows."""
        return self.figure().png()


@dataclass(frozen=True, eq=False)
class ColourMap(Picture):
    """A colour for each patch of one picture.

    Args:
        values: ``"row column component"``, the numbers that the colours show.
        colours: ``"row column channel"``, sRGB in [0, 1]; black for patches of the background.
        image: the user's picture, RGB.
        geometry: position of the model's input on the picture.
        layer: whose vectors they are, from 0.
        description: how it was made, as captions show it.
        is_smooth: whether a colour between two others means something, unlike that between two groups.
        basis: of the components; None for groups.

    >>> maps = vitviz.components([analysis])
    >>> maps[0].colours.shape
    torch.Size([14, 14, 3])
    """

    values: torch.Tensor = field(repr=False)
    colours: torch.Tensor = field(repr=False)
    image: Image.Image = field(repr=False)
    geometry: Geometry = field(repr=False)
    layer: int
    description: str
    is_smooth: bool = True
    basis: Any = field(default=None, repr=False)

    @named_arguments(MethodError)
    def overlay(self, opacity: float = 1.0, smooth: bool | None = None) -> Image.Image:
        """The colours over the picture, which is dim outside the model's input.

        Args:
            opacity: of the colours, in [0, 1]; 1 for the colours alone.
            smooth: whether to interpolate between patch centres instead of drawing each patch in one colour; by default
                unless the colours are those of groups.

        Raises:
            MethodError: the opacity is out of range.
        """
        number("opacity", opacity, lambda value: 0 <= value <= 1, "a number in [0, 1]")
        # An image that was reduced while it was decoded has the coordinates of its file.
        geometry = self.geometry.resized(*self.image.size)
        left, top, right, bottom = geometry.box
        across, down = self.colours.shape[1] / (right - left), self.colours.shape[0] / (bottom - top)
        patches = Image.fromarray((self.colours * 255).round().to(torch.uint8).numpy())
        # Pillow takes the centre of each pixel.
        inverse = (across, 0, -left * across, 0, down, -top * down)
        resampling = (
            Image.Resampling.BICUBIC if (self.is_smooth if smooth is None else smooth) else Image.Resampling.NEAREST
        )
        colours = patches.transform(self.image.size, Image.Transform.AFFINE, inverse, resampling)
        overlay = Image.blend(self.image, colours, opacity)
        dim_outside(self.image, geometry, overlay)
        return overlay


class ColourMaps(UserList[ColourMap], Picture):
    """The colours of several pictures, the same for what is alike; a notebook shows them side by side.

    A part of it, such as ``maps[1:]``, is one as well.
    """

    def __init__(self, maps: Iterable[ColourMap] = ()) -> None:
        super().__init__(maps)
        self.description = "".join(each.description for each in self.data[:1])

    def overlay(self, opacity: float = 1.0, smooth: bool | None = None) -> Image.Image:
        """All overlays side by side at one height, as of :meth:`ColourMap.overlay`."""
        height = min(FIGURE_SIDE, max(each.image.height for each in self))
        drawn = [each.overlay(opacity, smooth) for each in self]
        drawn = [each.resize((max(1, round(each.width * height / each.height)), height)) for each in drawn]
        spaced = [np.pad(np.asarray(each), ((0, 0), (0, GAP_PX), (0, 0)), constant_values=255) for each in drawn]
        return Image.fromarray(np.hstack(spaced)[:, :-GAP_PX])


class Components(ColourMaps):
    """Colours that are components of one basis."""

    @property
    def basis(self) -> Basis:
        """The basis of the components of all maps."""
        return self[0].basis
