"""A region of a picture, given as a mask or a box: the share of a map's values in it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from PIL import Image, ImageOps

from vitviz.errors.kinds import ConfigError, ImageError, MethodError
from vitviz.errors.messages import describe
from vitviz.images.geometry import Geometry, as_box
from vitviz.images.image_facts import ImageFacts
from vitviz.system.paths import missing, user_path

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from vitviz.visualization.heatmaps import Heatmap

Region: TypeAlias = "str | os.PathLike[str] | Image.Image | ArrayLike | torch.Tensor"

EXPECTED_MASK = "expected a mask 'height width', nonzero inside, or a box (left, top, right, bottom)"
EXPECTED_BOX = "expected four numbers (left, top, right, bottom) in pixels, left < right and top < bottom"
# Modes of Pillow whose pixels are one number; all others become colours.
GREY_MODES = ("1", "L", "I", "F", "I;16", "I;16L", "I;16B")
# A mask of more than two values has edges that were smoothed, by resizing or as JPEG: at least this share is black or
# white, and the others have more than so many values. Classes of a label map are fewer.
MIN_BLACK_AND_WHITE, MAX_LABELS = 0.9, 16
UNKNOWN_PLACE = "a region of the picture: nobody says what part of the picture its preprocessing shows the model"
NO_SHARE_OF_SIGNED = (
    "a signed map has no share inside a region, since its values cancel each other; "
    "expected a map of values of at least 0, such as relevance"
)


def share_inside(heatmap: Heatmap, region: Region) -> float | None:
    """As :meth:`vitviz.visualization.heatmaps.Heatmap.share_inside`."""
    if heatmap.token_map.signed:
        raise MethodError(f"{heatmap.description}: {NO_SHARE_OF_SIGNED}")
    shares = region_shares(region, heatmap.image, heatmap.geometry, heatmap.shape)
    values = heatmap.values.double().cpu()
    inside, total = float((values * shares).sum()), float(values.sum())
    return min(inside / total, 1.0) if total else None


def region_shares(region: Region, image: Image.Image, geometry: Geometry, grid: tuple[int, int]) -> torch.Tensor:
    """The share of each patch that a region covers: ``"row column"``, in [0, 1].

    Args:
        image: the picture.
        geometry: position of the model's input on it.
        grid: rows and columns of patches.
        region: as :meth:`vitviz.visualization.heatmaps.Heatmap.share_inside` takes it.

    Raises:
        ImageError: the region is no mask or box of this picture.
    """
    # Those of the file, if the image was reduced while it was decoded.
    facts = ImageFacts.of(image)
    if facts.is_input:
        raise ImageError(f"{UNKNOWN_PLACE}: state it by vitviz.load(module, preprocessing=…, box=…)")
    width, height = facts.size
    view = geometry.resized(*facts.size).box
    rows, columns = grid
    box = as_box(region)
    if box is not None:
        left, top, right, bottom = box
        if not (0 <= left < right <= width and 0 <= top < bottom <= height):
            raise ImageError(
                f"box {describe(box)}: expected a rectangle inside the picture of {width:g}×{height:g} pixels"
            )
        down, across = _overlap(view[1], view[3], rows, top, bottom), _overlap(view[0], view[2], columns, left, right)
        return torch.from_numpy(np.outer(down, across))
    mask = _mask(region)
    mask_height, mask_width = mask.shape
    # To a pixel: the sides of a mask of another size are rounded.
    if abs(mask_width * height - mask_height * width) > max(width, height):
        raise ImageError(
            f"mask of {mask_width}×{mask_height} pixels: expected the proportions of the picture, {width:g}×{height:g}"
        )
    scales = (mask_width / width, mask_height / height) * 2
    left, top, right, bottom = (edge * scale for edge, scale in zip(view, scales, strict=True))
    return patch_shares(mask, (left, top, right, bottom), rows, columns)


def patch_shares(
    mask: np.ndarray, box: tuple[float, float, float, float], grid_height: int, grid_width: int
) -> torch.Tensor:
    """The share of each patch that a mask covers: ``"row column"``, in [0, 1].

    Args:
        mask: ``"height width"``, True inside.
        box: what the patches cover: left, top, right and lower edge in pixels of the mask; beyond it, nothing is
            inside.
        grid_height, grid_width: size of the patch grid.
    """
    from scipy import ndimage

    # A summed-area table, interpolated, gives means over rectangles whose edges lie between pixels.
    sums = np.pad(mask.cumsum(0, dtype=float).cumsum(1), ((1, 0), (1, 0)))
    left, top, right, bottom = box
    rows, columns = np.linspace(top, bottom, grid_height + 1), np.linspace(left, right, grid_width + 1)
    corners = ndimage.map_coordinates(sums, np.meshgrid(rows, columns, indexing="ij"), order=1, mode="nearest")
    inside = np.diff(np.diff(corners, axis=0), axis=1)
    areas = np.diff(rows)[:, None] * np.diff(columns)
    return torch.from_numpy(inside / areas).clamp(0, 1)


def checked_box(box: Any) -> tuple[float, float, float, float]:
    """A box as four numbers.

    Raises:
        ConfigError: it is none, or empty.
    """
    numbers = as_box(box)
    if numbers is None or not (0 <= numbers[0] < numbers[2] and 0 <= numbers[1] < numbers[3]):
        raise ConfigError(f"box = {describe(box)}: {EXPECTED_BOX}")
    return numbers


def _overlap(low: float, high: float, count: int, start: float, stop: float) -> np.ndarray:
    """The share of each of ``count`` equal parts from ``low`` to ``high`` that lies between ``start`` and ``stop``."""
    edges = np.linspace(low, high, count + 1).clip(start, stop)
    return np.diff(edges) * count / (high - low)


def _mask(region: Any) -> np.ndarray:
    """A mask ``"height width"``, True inside.

    Raises:
        ImageError: it is none.
    """
    name = f"mask {region}" if isinstance(region, str | os.PathLike) else "mask"
    values = _values(region, name)
    found = np.unique(values)
    if len(found) <= 2:
        if len(found) == 2 and found[0] != 0:
            raise ImageError(f"{name}: its values are {found[0]} and {found[1]}; expected 0 outside")
        return np.asarray(values != 0)
    white = found[-1]
    plain = np.isin(values, (0, white)).mean() if found[0] == 0 else 0
    if plain < MIN_BLACK_AND_WHITE or len(found) <= MAX_LABELS:
        raise ImageError(
            f"{name}: {len(found)} values from {found[0]} to {found[-1]}, as of a label map or a photograph; "
            "expected two, 0 outside, such as labels == 3 or values > 127"
        )
    return values >= white / 2


def _values(region: Any, name: str) -> np.ndarray:
    """The pixels of a mask as one number each: ``"height width"``."""
    try:
        if isinstance(region, str | os.PathLike):
            with Image.open(user_path(region)) as image:
                values = _pixels(image, name)
        elif isinstance(region, Image.Image):
            values = _pixels(region, name)
        else:
            values = np.asarray(region.detach().cpu() if isinstance(region, torch.Tensor) else region)
    except (OSError, ValueError, TypeError, Image.DecompressionBombError) as error:
        is_missing = isinstance(error, FileNotFoundError)
        raise ImageError(
            f"{name}: cannot be read ({missing(region) if is_missing else getattr(error, 'strerror', None) or error}); "
            f"{EXPECTED_MASK}"
        ) from None
    if values.ndim != 2 or not values.size or values.dtype.kind not in "biuf":
        raise ImageError(f"{name}: {describe(region)} found; {EXPECTED_MASK}")
    if not np.isfinite(values).all():
        raise ImageError(f"{name}: not all values are finite; {EXPECTED_MASK}")
    return values


def _pixels(image: Image.Image, name: str) -> np.ndarray:
    """The pixels of a picture, upright, as one number each; colours as far as they are black and one other."""
    upright = ImageOps.exif_transpose(image)
    if upright.mode in GREY_MODES:
        return np.asarray(upright)
    red, green, blue, alpha = np.moveaxis(np.asarray(upright.convert("RGBA")), -1, 0)
    if (alpha != 255).any():
        raise ImageError(f"{name}: transparent pixels found; expected a mask without them, black outside")
    if (red == green).all() and (green == blue).all():
        return red
    colours = (red.astype(np.int32) << 16) | (green.astype(np.int32) << 8) | blue
    if len(np.unique(colours)) > 2:
        raise ImageError(f"{name}: several colours, as of a label map or a photograph; expected black and white")
    return colours
