"""The sheet of all layers and heads: cells lie side by side, and show what the maps show."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from vitviz import Geometry, Heatmap, Style, TokenMap
from vitviz.errors.kinds import ImageError, MethodError, QueryError
from vitviz.visualization.saving import VECTOR_DPI
from vitviz.visualization.sheets import GAP, LEFT, TOP, UNIT, Sheet


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


def read_texts(figure: Figure) -> list[str]:
    """The texts of a figure: of the sheet, and of bar and caption below it."""
    return [text.get_text() for part in (figure.axes[0], figure) for text in part.texts]


@pytest.mark.parametrize("shape", [(2, 3), (6, 6), (24, 16), (1, 1)], ids=str)
@pytest.mark.parametrize("size", [(60, 40), (40, 60)], ids=str)
def test_a_figure_has_the_cells_their_numbers_and_nothing_cut_off(
    shape: tuple[int, int], size: tuple[int, int]
) -> None:
    rows, columns = shape
    maps = heatmaps(rows, columns, size)
    sheet = Sheet(maps, range(10, 10 + rows), range(columns), "Attention from CLS")
    figure = sheet.figure()
    shown = np.asarray(figure.axes[0].images[0].get_array())
    window, canvas = figure.axes[0].get_window_extent(), figure.bbox
    # A dot of the picture is one of 300 per inch, and the page of a paper has room for it.
    assert window.width / figure.dpi * VECTOR_DPI == pytest.approx(shown.shape[1], abs=0.01)
    assert window.height / figure.dpi * VECTOR_DPI == pytest.approx(shown.shape[0], abs=0.01)
    assert figure.get_figwidth() == pytest.approx(6.4) and figure.get_figheight() <= 8
    drawn = [text for part in (figure.axes[0], figure) for text in part.texts]
    boxes = [text.get_window_extent(figure.canvas.get_renderer()) for text in drawn]  # type: ignore[attr-defined]
    for number, box in enumerate(boxes):
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= canvas.x1 and box.y1 <= canvas.y1
        assert not any(box.overlaps(other) for other in boxes[number + 1 :])
    assert read_texts(figure)[:2] == ["head", "layer"]
    assert [str(layer) for layer in range(10, 10 + rows)] == read_texts(figure)[2 : 2 + rows]


@pytest.mark.parametrize("columns", [1, 3, 7, 16])
def test_every_patch_of_a_figure_is_as_many_dots_wide_as_the_others(columns: int) -> None:
    first = heatmaps()[0][0]
    cell = replace(first, token_map=TokenMap(torch.arange(6.0).view(2, 3), {}, "weight", "a map"))
    shown = np.asarray(Sheet([[cell] * columns]).figure(Style(opacity=1.0)).axes[0].images[0].get_array())
    line = shown[round(TOP * UNIT) + 1, round(LEFT * UNIT) :, :3].astype(int)
    edges = np.flatnonzero(np.abs(np.diff(line, axis=0)).sum(1))
    widths = np.diff(edges)[(line[edges[:-1] + 1] != 255).any(1)]
    assert len(widths) >= 3 * columns - 1 and len(set(widths.tolist())) == 1


def test_numbers_that_have_no_room_are_left_out() -> None:
    numbers = read_texts(Sheet(heatmaps(1, 60)).figure())
    assert "0" in numbers and "2" in numbers and "1" not in numbers[3:]


def test_a_caption_says_what_all_maps_show_and_on_which_scale() -> None:
    sheet = Sheet(heatmaps(), subject="Attention from CLS")
    own, shared = read_texts(sheet.figure("viridis")), read_texts(sheet.figure("viridis", shared_scale=True))
    assert " ".join(own[-3:]).startswith(
        "low high Attention from CLS: layers down, heads across. Each map has a scale of"
    )
    low, high = (f"{end:.3g}" for end in Style().fitted([each.values for row in sheet for each in row], False).ends)
    assert shared[-3:-1] == [low, high] and shared[-1].endswith("heads across. All maps share one scale.")
    fixed = read_texts(sheet.figure(Style(matplotlib.colormaps["jet"], low=0.0, high=0.1)))
    assert (
        fixed[-4:-2] == ["0", "0.1 ►"]
        and "share one scale" in " ".join(fixed)
        and fixed[-1].endswith("matplotlib's jet.")
    )


def test_a_sheet_is_saved_in_the_format_of_the_ending(tmp_path: Path) -> None:
    sheet = Sheet(heatmaps(), [4, 9], [0, 2, 5], "Attention from CLS")
    for name in ("sheet.pdf", "sheet.svg", "sheet.png", "sheet.jpg"):
        sheet.save(tmp_path / name)
    with Image.open(tmp_path / "sheet.png") as picture:
        shown = np.asarray(sheet.figure().axes[0].images[0].get_array())
        assert (picture.width, picture.mode) == (shown.shape[1], "RGB") and picture.height > shown.shape[0]
        # The cells are those of the figure, dot for dot; matplotlib before 3.11 moves them by a part of a dot.
        cells = slice(round(TOP * UNIT), shown.shape[0]), slice(round(LEFT * UNIT), None)
        is_moved = matplotlib.__version_info__ < (3, 11)
        assert is_moved or np.array_equal(np.asarray(picture)[cells], shown[cells][..., :3])
    texts = [each.text for each in ElementTree.parse(tmp_path / "sheet.svg").iter() if each.tag.endswith("}text")]
    assert texts[:7] == ["head", "layer", "4", "9", "0", "2", "5"] and "Attention from CLS: layers" in str(texts[9])
    assert b"/CIDFontType2" in (tmp_path / "sheet.pdf").read_bytes()
    with pytest.raises(
        ImageError, match=r"sheet\.npz: cannot be written: expected the ending of a picture, such as \.png$"
    ):
        sheet.save(tmp_path / "sheet.npz")
    with pytest.raises(MethodError, match="colormap 'red'"):
        sheet.save(tmp_path / "sheet.pdf", "red")


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


@pytest.mark.parametrize(
    ("name", "message"), [("cmap", "picture has no parameter 'cmap'"), ("cell", "cell = 0: expected")]
)
def test_an_argument_of_a_picture_is_refused_by_its_name(name: str, message: str) -> None:
    with pytest.raises(MethodError, match=f"^{message}"):
        Sheet(heatmaps()).picture(**{name: 0})  # type: ignore[arg-type]


def test_maps_of_several_images_are_refused() -> None:
    with pytest.raises(QueryError, match=r"^sheet of maps on several images: expected maps on one$"):
        Sheet([*heatmaps(1), *heatmaps(1)]).picture()
