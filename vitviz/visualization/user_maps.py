"""Maps of the user's own, on a whole picture."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image

from vitviz.attention.token_map import TokenMap
from vitviz.errors.kinds import ConfigError, MethodError
from vitviz.errors.messages import describe
from vitviz.images.geometry import Geometry
from vitviz.images.opening import open_image
from vitviz.images.sources import ImageSource

if TYPE_CHECKING:
    from collections.abc import Sequence


def map_of(array: Any) -> TokenMap:
    """An array ``"row column"`` as a map.

    Raises:
        MethodError: the values are no finite numbers in rows and columns.
    """
    expected = "expected finite numbers 'row column'"
    if np.ma.is_masked(array):
        raise MethodError(f"array: some of its values are masked; {expected}, as .filled(0) gives")
    try:
        if not isinstance(array, torch.Tensor):
            numbers = np.array(array)
            array = torch.from_numpy(numbers.astype(numbers.dtype.newbyteorder("=")))
        # The caller may change what is theirs.
        values = array.detach().clone()
        if values.is_complex() or values.layout != torch.strided or values.is_meta:
            raise TypeError
        # Torch compares no floating point of 8 bits.
        values = values if values.is_floating_point() and values.itemsize > 1 else values.float()
    except (TypeError, ValueError):
        raise MethodError(f"array: {describe(array)} found; {expected}") from None
    if values.ndim != 2 or not values.numel():
        raise MethodError(f"array of shape {tuple(values.shape)}: {expected}")
    try:
        signed = bool((values < 0).any())
        return TokenMap(values, {}, "value", "Values of an array", (-math.inf if signed else 0.0, math.inf), signed)
    except ConfigError:
        raise MethodError(f"array of shape {tuple(values.shape)}: not all values are finite; {expected}") from None


def whole_picture(image: ImageSource, shape: Sequence[int]) -> tuple[Image.Image, Geometry]:
    """A picture, opened, and the geometry of a grid of this shape that covers it."""
    picture = open_image(image)
    rows, columns = shape
    box = (0.0, 0.0, float(picture.width), float(picture.height))
    return picture, Geometry(picture.width, picture.height, box, rows, columns)
