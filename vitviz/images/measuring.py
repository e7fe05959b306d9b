"""Measure on test pictures what a transform does: to values, and where its input lies on the picture."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image

from vitviz.errors.kinds import ConfigError
from vitviz.images.transforms import Transform

Size = tuple[int, int]
Box = tuple[float, float, float, float]

# A ramp on fewer pixels is not linear once it is enlarged.
MIN_SIDE = 32
# Of a range of values from 0 (black) to 1 (white): a plain colour is exact but for floating point.
PLAIN_TOLERANCE = 1e-3
# Repetitions that find a flip with a probability of 0.1 in all but one of a thousand cases; fewer for large inputs.
REPETITIONS, MIN_REPETITIONS = 64, 8
REPEATED_PIXELS = 2**24


@dataclass(frozen=True)
class Placement:
    """Where an input lies on a picture.

    Args:
        box: left, top, right and lower edge, in pixels of the picture; beyond the picture where it is padded.
        height, width: of the input in pixels.
        padding: red, green and blue, 0 to 255, of what lies beside the picture; black if nothing does.
    """

    box: Box
    height: int
    width: int
    padding: tuple[int, int, int]


@dataclass(frozen=True)
class Values:
    """What a transform does to values from 0 (black) to 1 (white): it subtracts a mean and divides by a deviation."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def undo(self, pixels: torch.Tensor) -> torch.Tensor:
        """Values from 0 to 1 of an input ``"channel height width"``."""
        mean, std = (pixels.new_tensor(each)[:, None, None] for each in (self.mean, self.std))
        return pixels * std + mean


def noise(width: int, height: int) -> Image.Image:
    """A picture of random levels, always the same."""
    levels = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(levels)


def check_repeatable(transform: Transform, picture: Image.Image) -> None:
    """Check that a transform does the same again.

    Raises:
        ConfigError: it does not.
    """
    first = transform(picture)
    count = REPEATED_PIXELS // (first.shape[1] * first.shape[2])
    for _ in range(min(REPETITIONS, max(MIN_REPETITIONS, count))):
        again = transform(picture)
        if first.shape != again.shape or not torch.equal(first, again):
            raise ConfigError(
                "it is random: one picture gives several inputs; expected the transform of evaluation, without "
                "random crops, flips and colours"
            )


def measure_values(transform: Transform, width: int, height: int) -> Values:
    """Mean and deviation by which a transform standardises, from plain pictures of this size.

    Raises:
        ConfigError: it changes values in another way.
    """
    black, dark, white = (_centre(transform(_plain(width, height, level))) for level in (0, 51, 255))
    contrast = white - black
    mixed = transform(noise(width, height)).flatten(1)
    # Interpolation may go a little beyond black and white. Where all values are the same, NaN fails, too.
    if not bool((2 * contrast.abs() > mixed.amax(1) - mixed.amin(1)).all()):
        raise ConfigError(
            "a black and a white picture become about the same values: it standardises each picture by itself, or "
            "hides its centre; expected one mean and deviation for all pictures"
        )
    if bool((contrast < 0).any()):
        raise ConfigError("it inverts black and white; expected white above black")
    if float(((dark - black) / contrast - 51 / 255).abs().max()) > PLAIN_TOLERANCE:
        raise ConfigError(
            "it changes the contrast of grey levels otherwise than by a mean and a deviation; expected no change of "
            "gamma, brightness or number of levels"
        )
    std = [_shortest(1 / value, 1 / value) for value in contrast.double().tolist()]
    mean = [_shortest(-low * each, each) for low, each in zip(black.double().tolist(), std, strict=True)]
    return Values(tuple(mean), tuple(std))


def measure_placement(transform: Transform, values: Values, width: int, height: int) -> Placement:
    """Where a transform takes its input from on pictures of this size, from ramps of grey.

    Raises:
        ConfigError: its input is no upright rectangle of the picture.
    """
    # Transforms depend on the shape of a small picture, not on its size; where one does, it is refused.
    scale = max(1, math.ceil(MIN_SIDE / min(width, height)))
    large = (scale * width, scale * height)
    black, white = (values.undo(transform(_plain(*large, level))) for level in (0, 255))
    shown = ((black.abs() < PLAIN_TOLERANCE) & ((white - 1).abs() < PLAIN_TOLERANCE)).all(0)
    rows, columns = shown.any(1), shown.any(0)
    if not shown.any() or int(shown.sum()) != int(rows.sum() * columns.sum()):
        raise ConfigError("it shows no upright rectangle of the picture, or hides parts of it")
    across, down = _positions(transform, values, *large)
    if across.shape != shown.shape:
        raise ConfigError("the size of its input depends on the content of the picture")
    left, right = _fit_line(across.T, columns, rows, large[0])
    top, bottom = _fit_line(down, rows, columns, large[1])
    box = (left / scale, top / scale, right / scale, bottom / scale)
    input_height, input_width = shown.shape if scale == 1 else _check_small(transform, values, (width, height), box)
    red, green, blue = 0, 0, 0
    if not shown.all():
        row, column = (int(index) for index in (~shown).nonzero()[0])
        red, green, blue = (255 * black[:, row, column]).round().clamp(0, 255).int().expand(3).tolist()
    return Placement(box, input_height, input_width, (red, green, blue))


def _check_small(transform: Transform, values: Values, size: Size, box: Box) -> torch.Size:
    """Check a box that was measured on an enlarged picture on one of the right size; returns the input's size.

    Raises:
        ConfigError: the box of the small picture differs by more than a pixel.
    """
    ramps = _positions(transform, values, *size)
    height, width = ramps[0].shape
    across = box[0] + (torch.arange(width) + 0.5) * (box[2] - box[0]) / width
    down = box[1] + (torch.arange(height)[:, None] + 0.5) * (box[3] - box[1]) / height
    is_inside = ((across - size[0] / 2).abs() < size[0] / 2 - 0.5) & ((down - size[1] / 2).abs() < size[1] / 2 - 0.5)
    for found, expected, side in zip(ramps, (across, down), size, strict=True):
        if bool(((found - expected).abs() > min(1, side / 4))[is_inside].any()):
            raise ConfigError("what it takes of a small picture depends on its size in pixels, not on its shape alone")
    return ramps[0].shape


def _positions(transform: Transform, values: Values, width: int, height: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The position across and down the picture of each pixel of the input, ``"height width"`` each.

    They follow from two ramps of grey. Both are tilted, so that the errors of rounding to whole levels cancel.
    """
    across, down = np.linspace(0, 1, width), np.linspace(0, 1, height)[:, None]
    steep, tilt = 250, 5
    ramps = [steep * across + tilt * down, tilt * across + steep * down]
    images = [Image.fromarray(ramp.round().astype(np.uint8)).convert("RGB") for ramp in ramps]
    first, second = (255 * values.undo(transform(image)).mean(0) for image in images)
    determinant = steep**2 - tilt**2
    return (
        (steep * first - tilt * second) / determinant * (width - 1) + 0.5,
        (steep * second - tilt * first) / determinant * (height - 1) + 0.5,
    )


def _fit_line(positions: torch.Tensor, along: torch.Tensor, beside: torch.Tensor, side: int) -> tuple[float, float]:
    """Positions on the picture of both edges of the input.

    Args:
        positions: ``"along beside"``, in pixels of the picture.
        along, beside: where the input shows the picture.
        side: of the picture in pixels.
    """
    inside = positions[along][:, beside].double()
    profile = inside.mean(1)
    # Interpolation bends a ramp at the edges of the picture.
    margin = len(profile) // 10
    middle = slice(margin, len(profile) - margin)
    indices = along.nonzero()[middle, 0].double() + 0.5
    offsets = indices - indices.mean()
    slope = float((offsets * profile[middle]).sum() / (offsets**2).sum())
    start = float(profile[middle].mean() - slope * indices.mean())
    # Levels are whole, and interpolation "nearest" moves by up to half a pixel.
    tolerance = 1.5 * max(1.0, side / 255) + abs(slope)
    if slope * len(positions) < -tolerance:
        raise ConfigError("it mirrors or turns the picture; expected an upright one")
    bend = (profile[middle] - start - slope * indices).abs().max()
    spread = (inside[middle] - profile[middle, None]).abs().max()
    # NaN fails, too: an input of one pixel has no slope.
    if not (slope * len(positions) > 1 and max(float(bend), float(spread)) <= tolerance):
        raise ConfigError("it turns or distorts the picture; expected an upright rectangle of the picture")
    edges = start, start + slope * len(positions)
    low, high = (_snap(edge, target, side, bool(along.all())) for edge, target in zip(edges, (0, side), strict=True))
    return low, high


def _snap(edge: float, target: int, side: int, is_whole: bool) -> float:
    """An edge of the input, or that of the picture if it is closer than the ramp's precision."""
    if abs(edge - target) <= 0.005 * side:
        return float(target)
    if is_whole and not 0 <= edge <= side:
        raise ConfigError(
            "it continues the picture beyond its border, or changes levels by the picture's content; expected padding "
            "of one colour, if any, and the same for all pictures"
        )
    return edge


def _plain(width: int, height: int, level: int) -> Image.Image:
    return Image.new("RGB", (width, height), (level, level, level))


def _centre(pixels: torch.Tensor) -> torch.Tensor:
    return pixels[:, pixels.shape[1] // 2, pixels.shape[2] // 2]


def _shortest(value: float, scale: float) -> float:
    """The number of fewest digits that float32 cannot tell from a value, beside numbers of a scale."""
    tolerance = 3e-7 * max(abs(value), scale)
    candidates = (0.0, *(float(f"{value:.{digits}g}") for digits in range(1, 10)), value)
    return next(candidate for candidate in candidates if abs(candidate - value) <= tolerance)
