"""The sheet of all layers and heads: cells lie side by side, and show what the maps show."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vitviz import Geometry, Heatmap, Style, TokenMap
from vitviz.errors.kinds import QueryError
from vitviz.visualization.sheets import GAP, LEFT, TOP, Sheet


def heatmaps(
    rows: int = 2, columns: int = 3, size: tuple[int, int] = (60, 40), cropped: bool = False
) -> list[list[Heatmap]]:
    """Maps of different ranges on one image."""
    noise = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    box = (size[0] / 6, 0.0, size[0] * 5 / 6, float(size[1])) if cropped else (0.0, 0.0, *map(float, size))
    geometry = Geometry(*size, box, 8, 12)
    return [
        [
            Heatmap(TokenMap(torch.rand(2, 3) * (row + column + 1), {}, "weight", "a map"), image, geometry)
            for column in range(columns)
        ]
        for row in range(rows)
    ]


def cell_box(size: tuple[int, int], row: int, column: int) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of the pixels of a cell of this width and height."""
    left, top = LEFT + column * (size[0] + GAP), TOP + row * (size[1] + GAP)
    return left, top, left + size[0], top + size[1]


def cell_pixels(picture: Image.Image, size: tuple[int, int], row: int, column: int) -> np.ndarray:
    return np.asarray(picture.crop(cell_box(size, row, column)))


SHAPES: dict[str, dict[str, Any]] = {
    "landscape": {},
    "portrait": {"size": (40, 60)},
    "one row": {"rows": 1},
    "one cell": {"rows": 1, "columns": 1},
    "tall": {"rows": 5, "columns": 1},
    "cropped": {"cropped": True},
    "enlarged": {"size": (12, 8)},
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("style", [None, Style("gray", 0.3, smooth=True, grid=True)], ids=["plain", "styled"])
def test_every_cell_is_the_overlay_of_its_layer_and_head(shape: dict[str, Any], style: Style | None) -> None:
    maps = heatmaps(**shape)
    picture, size = Sheet(maps).picture(style, cell=50), maps[0][0].resized(50).image.size
    *_, right, bottom = cell_box(size, len(maps) - 1, len(maps[0]) - 1)
    assert (picture.mode, picture.size) == ("RGBA", (right + GAP, bottom + GAP))
    for row, cells in enumerate(maps):
        for column, heatmap in enumerate(cells):
            expected = heatmap.resized(50).overlay(style)
            found = cell_pixels(picture, size, row, column)
            assert found.shape == (expected.height, expected.width, 4)
            assert np.array_equal(found[..., :3], np.asarray(expected))
            assert (found[..., 3] == 255).all()


def test_the_background_is_transparent_and_the_labels_are_not() -> None:
    maps = heatmaps()
    picture, size = Sheet(maps).picture(), maps[0][0].resized(110).image.size
    alpha = np.asarray(picture)[..., 3]
    assert alpha[0, 0] == alpha[-1, -1] == alpha[0, -1] == alpha[-1, 0] == 0
    for row in range(2):
        _, top, _, bottom = cell_box(size, row, 0)
        assert alpha[top:bottom, LEFT // 2 : LEFT].any(), "the layer's number"
    for column in range(3):
        left, _, right, _ = cell_box(size, 0, column)
        assert alpha[TOP // 2 : TOP, left:right].any(), "the head's number"


# Invalid sheets.


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([3, 2], "sheet of rows with [3, 2] maps: expected rows of one length"),
        ([0, 0], "sheet of rows with [0, 0] maps: expected rows of one length"),
        ([], "sheet of rows with [] maps: expected rows of one length"),
    ],
)
def test_ragged_or_empty_rows_are_refused(lengths: list[int], message: str) -> None:
    rows = [row[:length] for row, length in zip(heatmaps(), lengths, strict=False)]
    with pytest.raises(QueryError, match=f"^{re.escape(message)}$"):
        Sheet(rows).picture()


def test_maps_of_several_images_are_refused() -> None:
    with pytest.raises(QueryError, match=r"^sheet of maps on several images: expected maps on one$"):
        Sheet([*heatmaps(1), *heatmaps(1)]).picture()
