"""Where patches lie on the user's picture."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from vitviz.errors.kinds import ConfigError
from vitviz.images.geometry import Geometry
from vitviz.images.preprocessing import Preprocessing

WHITE = (255, 255, 255)
PATCHES = [(16, 16), (14, 14), (8, 16), (32, 8), (4, 4)]


def situations(count: int, seed: int) -> list[tuple[str, Image.Image, Preprocessing, tuple[int, int]]]:
    """Random images, alternating portrait and landscape, with every fit and patch shape."""
    random = np.random.default_rng(seed)
    cases = []
    for index in range(count):
        short, long = sorted(int(side) for side in random.integers(2, 500, 2))
        size = (short, long) if index % 2 else (long, short)
        fit = ("crop", "squash", "native")[index // 2 % 3]
        patch = PATCHES[index % len(PATCHES)]
        rows, columns = (int(side) for side in random.integers(1, 9, 2))
        height, width, fraction = rows * patch[0], columns * patch[1], float(random.choice([1, 0.9, 0.875]))
        preprocessing = Preprocessing(height, width, (0.5,) * 3, (0.5,) * 3, fit, fraction, squash_fraction=fraction)
        if index % 4 > 1:
            preprocessing = replace(preprocessing, rounding="transformers")
        cases.append((fit, Image.new("RGB", size), preprocessing, patch))
    return cases


def geometries(count: int, seed: int) -> list[tuple[str, Geometry, int, int]]:
    cases = []
    for fit, image, preprocessing, patch in situations(count, seed):
        fitted, geometry = preprocessing.fit_image(image, *patch)
        assert fitted.size == (geometry.input_width, geometry.input_height)
        assert (geometry.image_width, geometry.image_height) == image.size
        cases.append((fit, geometry, geometry.input_height // patch[0], geometry.input_width // patch[1]))
    return cases


GEOMETRIES = geometries(120, seed=4)


def test_patch_rectangles_tile_the_box_without_gap_or_overlap() -> None:
    for _, geometry, rows, columns in GEOMETRIES:
        grid = [
            [geometry.patch_rectangle(row, column, rows, columns) for column in range(columns)] for row in range(rows)
        ]
        assert grid[0][0][:2] == geometry.box[:2]
        assert grid[-1][-1][2:] == geometry.box[2:]
        for row in range(rows):
            for column in range(columns):
                left, top, right, bottom = grid[row][column]
                assert left < right and top < bottom
                assert (left, right) == (grid[0][column][0], grid[0][column][2])
                assert (top, bottom) == (grid[row][0][1], grid[row][0][3])
                assert column == columns - 1 or right == grid[row][column + 1][0]
                assert row == rows - 1 or bottom == grid[row + 1][column][1]


def test_a_point_of_the_picture_lies_in_its_patch_of_the_input() -> None:
    random = np.random.default_rng(5)
    for _, geometry, rows, columns in GEOMETRIES:
        size, (left, top, right, bottom) = np.array((geometry.image_width, geometry.image_height)), geometry.box
        # Some points lie beside the picture.
        for x, y in [*random.uniform(-0.2 * size, 1.2 * size, (10, 2)), size, -0.1 * size]:
            across = (x - left) * geometry.input_width / (right - left)
            down = (y - top) * geometry.input_height / (bottom - top)
            seen = 0 <= across < geometry.input_width and 0 <= down < geometry.input_height
            cell = (int(down * rows / geometry.input_height), int(across * columns / geometry.input_width))
            assert geometry.patch_at(x, y, rows, columns) == (cell if seen else None)
        assert geometry.patch_at(1, math.nan, rows, columns) is None


def test_whole_pixels_on_a_patch_border_belong_to_the_patch_right_and_below() -> None:
    for side in (90, 100, 224, 300, 518):
        geometry = Geometry(side, side, (0, 0, side, side), 224, 224)
        for patches in (7, 10, 14, 37):
            for pixel in range(side):
                expected = pixel * patches // side
                assert geometry.patch_at(pixel, pixel, patches, patches) == (expected, expected)


@pytest.mark.parametrize("fit", ["crop", "squash", "native"])
@pytest.mark.parametrize("size", [(640, 360), (360, 640), (500, 500)], ids=["landscape", "portrait", "square"])
@pytest.mark.parametrize("patch", [(16, 16), (8, 16)], ids=["square patch", "wide patch"])
def test_an_object_lands_in_the_patch_that_geometry_says(
    fit: str, size: tuple[int, int], patch: tuple[int, int]
) -> None:
    preprocessing = Preprocessing(96, 96, (0.5,) * 3, (0.5,) * 3, fit, 0.875)
    for across, down in ((0.38, 0.31), (0.66, 0.42), (0.53, 0.7)):
        x, y = round(size[0] * across), round(size[1] * down)
        image = Image.new("RGB", size)
        image.paste(WHITE, (x - 4, y - 4, x + 4, y + 4))
        prepared = preprocessing.prepare(image, *patch)
        rows, columns = prepared.pixels.shape[2] // patch[0], prepared.pixels.shape[3] // patch[1]
        light = prepared.pixels.reshape(3, rows, patch[0], columns, patch[1]).sum((0, 2, 4))
        brightest = divmod(int(light.argmax()), columns)
        assert prepared.geometry.patch_at(x, y, rows, columns) == brightest
        left, top, right, bottom = prepared.geometry.patch_rectangle(*brightest, rows, columns)
        assert left <= x < right and top <= y < bottom
        input_y, input_x = np.unravel_index(int(prepared.pixels[0, 0].argmax()), prepared.pixels.shape[2:])
        scale = np.subtract(prepared.geometry.box[2:], prepared.geometry.box[:2]) / prepared.pixels.shape[:1:-1]
        shown = prepared.geometry.box[:2] + scale * (input_x + 0.5, input_y + 0.5)
        assert shown == pytest.approx((x, y), abs=6)


@pytest.mark.parametrize(
    ("box", "input_size"),
    [
        ((0, 0, 21, 10), (4, 4)),
        ((0, -1, 20, 10), (4, 4)),
        ((5, 0, 5, 10), (4, 4)),
        ((8, 0, 5, 10), (4, 4)),
        ((0, 0, math.nan, 10), (4, 4)),
        ((0, 0, 20, 10), (0, 4)),
        ((0, 0, 20, 10), (4, -4)),
    ],
)
def test_an_impossible_geometry_is_refused(box: tuple[float, ...], input_size: tuple[int, int]) -> None:
    with pytest.raises(ConfigError, match=r"20×10 pixels|at least 1"):
        Geometry(20, 10, box, *input_size)
