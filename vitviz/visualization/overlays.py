"""The pixels of a heatmap: the value at each of them, and the colours laid over the image."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image, ImageDraw

from vitviz.errors.arguments import pair_or_none
from vitviz.errors.kinds import QueryError
from vitviz.errors.messages import describe
from vitviz.images.geometry import Geometry

if TYPE_CHECKING:
    from vitviz.visualization.heatmaps import Heatmap, Style

# Rows per band, which fits into the processor's cache and bounds the memory for a large photo.
BAND_ROWS = 64
# Of a faded map: weak values leave the photograph clear, and the strongest have the whole opacity.
FADE_EXPONENT = 1.5
# Of a drained image: the share of its saturation, and of its brightness; the luminance is that of CSS filters.
DRAINED_SATURATION, DRAINED_BRIGHTNESS, LUMINANCE = 0.4, 0.68, (0.213, 0.715, 0.072)
DIMMED_LEVELS = [round(0.35 * level) for level in range(256)]
# White, as a level and an opacity of 255.
GRID_LEVEL, GRID_OPACITY = 255, 90
# A line's width as a share of the picture's longest side.
GRID_STROKE, MARK_STROKE = 1 / 1000, 1 / 300


def pixels(heatmap: Heatmap, smooth: bool) -> np.ndarray:
    """The value at every pixel of the image, as :meth:`vitviz.Heatmap.pixels`."""
    rows, columns = _samplings(heatmap, smooth)
    return rows @ heatmap.values.detach().cpu().float().numpy() @ columns.T


def overlay(heatmap: Heatmap, style: Style, mark: tuple[int, int] | None = None) -> Image.Image:
    """The image with the map's colours over it, as :meth:`vitviz.Heatmap.overlay`."""
    image, scale = drained(heatmap.image) if style.drain else heatmap.image, heatmap.scale(style)
    table = style.colours(scale.signed).round().astype(np.uint8)
    # Of what is in or out, nothing lies between.
    smooth = style.smooth and not bool(torch.isin(heatmap.values, torch.tensor([0.0, 1.0])).all())
    steps = _steps(heatmap, scale.place(heatmap.values), smooth, len(table))
    overlay = Image.new("RGB", image.size, None)
    for start in range(0, overlay.height, BAND_ROWS):
        box = (0, start, overlay.width, min(start + BAND_ROWS, overlay.height))
        # Pillow looks up and mixes bytes, which is faster than NumPy with wider numbers.
        levels = Image.fromarray(steps[start : start + BAND_ROWS])
        colours = levels.copy()
        colours.putpalette(table.tobytes())
        below, above = image.crop(box), colours.convert("RGB")
        if style.fade:
            opacities = levels.point(_opacities(style, scale.signed, len(table)))
            overlay.paste(Image.composite(above, below, opacities), box)
        else:
            overlay.paste(Image.blend(below, above, style.opacity), box)
    dim_outside(image, heatmap.geometry, overlay)
    if style.grid:
        _draw_grid(heatmap, overlay)
    if mark is not None:
        _draw_mark(heatmap, overlay, mark)
    return overlay


def drained(image: Image.Image) -> Image.Image:
    """The image paler and darker, under a map: only the map has strong colours."""
    shares = np.eye(3) * DRAINED_SATURATION + (1 - DRAINED_SATURATION) * np.array(LUMINANCE)
    matrix = np.pad(DRAINED_BRIGHTNESS * shares, ((0, 0), (0, 1)))
    return image.convert("RGB", tuple(matrix.flatten().tolist()))


def marked_rectangle(heatmap: Heatmap, mark: object) -> tuple[float, float, float, float]:
    """The rectangle of a patch ``(row, column)`` on the image, with room for the frame that :func:`overlay` draws.

    Raises:
        QueryError: the map has no such patch.
    """
    rows, columns = heatmap.shape
    patch = pair_or_none(mark)
    if patch is None or not (0 <= patch[0] < rows and 0 <= patch[1] < columns):
        value = describe(mark) if patch is None else patch
        raise QueryError(f"mark {value}: this map has patches (0, 0) to ({rows - 1}, {columns - 1})")
    size = np.array(heatmap.image.size * 2)
    # Across a picture that is too thin for its frame, the frame covers the patch.
    room = np.minimum(2 * mark_stroke(heatmap), size / 2)
    left, top, right, bottom = np.clip(
        heatmap.geometry.patch_rectangle(*patch, rows, columns), room, size - room
    ).tolist()
    return left, top, right, bottom


def mark_stroke(heatmap: Heatmap) -> int:
    """The width of each of the two lines around a mark, in pixels."""
    return max(1, round(max(heatmap.image.size) * MARK_STROKE))


def grid_lines(heatmap: Heatmap) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    """The ends of every border between rows of patches, and between columns, as x and y in pixels."""
    left, top, right, bottom = heatmap.geometry.box
    rows, columns = heatmap.shape
    across, down = np.linspace(left, right, columns + 1).tolist(), np.linspace(top, bottom, rows + 1).tolist()
    return [((left, y), (right, y)) for y in down] + [((x, top), (x, bottom)) for x in across]


def _steps(heatmap: Heatmap, positions: np.ndarray, smooth: bool, count: int) -> np.ndarray:
    """The step at every pixel, uint8, of ``count`` equal ones, as matplotlib divides them.

    ``positions`` are those of the patches, ``"row column"``.
    """
    rows, columns = (np.nan_to_num(weights) for weights in _samplings(heatmap, smooth))
    steps = count * positions
    if not smooth:
        steps = steps.clip(0, count - 1).astype(np.uint8)
        return steps.take(columns.argmax(1), 1).take(rows.argmax(1), 0)
    across = steps.astype(np.float32) @ columns.T
    result = np.empty((len(rows), len(columns)), np.uint8)
    for start in range(0, len(rows), BAND_ROWS):
        band = rows[start : start + BAND_ROWS]
        is_near = band.any(0)
        result[start : start + BAND_ROWS] = (band[:, is_near] @ across[is_near]).clip(0, count - 1)
    return result


def _samplings(heatmap: Heatmap, smooth: bool) -> tuple[np.ndarray, np.ndarray]:
    """Weights of the map's rows and of its columns: ``"pixel patch"``, NaN outside the model's input."""
    left, top, right, bottom = heatmap.geometry.box
    rows, columns = heatmap.shape
    return (
        _sampling(heatmap.image.height, top, bottom, rows, smooth),
        _sampling(heatmap.image.width, left, right, columns, smooth),
    )


def dim_outside(image: Image.Image, geometry: Geometry, overlay: Image.Image) -> None:
    """Draw the image over an overlay, dim, where the model did not see it."""
    width, height = overlay.size
    left, top, right, bottom = geometry.box
    (top, bottom), (left, right) = _pixels_between(height, top, bottom), _pixels_between(width, left, right)
    above, below = (0, 0, width, top), (0, bottom, width, height)
    for box in (above, below, (0, top, left, bottom), (right, top, width, bottom)):
        if box[0] < box[2] and box[1] < box[3]:
            overlay.paste(image.crop(box).point(DIMMED_LEVELS * 3), box)


def _draw_grid(heatmap: Heatmap, overlay: Image.Image) -> None:
    draw, ink = ImageDraw.Draw(overlay, "RGBA"), (GRID_LEVEL,) * 3 + (GRID_OPACITY,)
    stroke = max(1, round(max(overlay.size) * GRID_STROKE))
    for line in grid_lines(heatmap):
        draw.line([(min(x, overlay.width - 1), min(y, overlay.height - 1)) for x, y in line], ink, stroke)


def _draw_mark(heatmap: Heatmap, overlay: Image.Image, mark: tuple[int, int]) -> None:
    left, top, right, bottom = marked_rectangle(heatmap, mark)
    draw, stroke = ImageDraw.Draw(overlay), mark_stroke(heatmap)
    # White with a black border is visible on every colour.
    for grow, colour in ((2 * stroke, "black"), (stroke, "white")):
        box = (round(left) - grow, round(top) - grow, round(right) + grow - 1, round(bottom) + grow - 1)
        draw.rectangle(box, outline=colour, width=stroke)


def _opacities(style: Style, signed: bool, count: int) -> list[int]:
    """The opacity of each of ``count`` steps of a faded map, of 255; further ones are never asked for."""
    highest = max(1, count - 1)
    shares = np.arange(256).clip(0, highest) / highest
    strengths = abs(2 * shares - 1) if signed else shares
    return [int(level) for level in (255 * style.opacity * strengths**FADE_EXPONENT).round()]


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
