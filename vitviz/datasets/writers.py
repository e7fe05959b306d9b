"""The files that a run writes beside its table: one record and one function for each kind of file about a picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitviz.datasets.rows import PictureResult
from vitviz.system.atomic import atomic_write
from vitviz.visualization.heatmaps import Style

PathMaker = Callable[[str], Path]
"""Returns the path of a picture's file with an ending in the writer's folder, and makes that folder."""


@dataclass(frozen=True)
class Writer:
    """A kind of file about every picture.

    Args:
        folder: of the files, relative to the results.
        write: writes the files of a picture.
        endings: of a picture's files, given the names of the requested maps.
        whole_pictures: whether it needs the picture at full size; a smaller one takes less memory.
    """

    folder: str
    write: Callable[[PictureResult, PathMaker], None]
    endings: Callable[[Sequence[str]], Sequence[str]]
    whole_pictures: bool = True


def overlays(style: Style) -> Writer:
    """An overlay of every map as PNG, drawn in this style."""

    def write(result: PictureResult, make_path: PathMaker) -> None:
        for name, heatmap in result.maps.items():
            heatmap.save(make_path(_picture_name(name)), style)

    return Writer("pictures", write, lambda maps: [_picture_name(name) for name in maps])


def _numbers(result: PictureResult, make_path: PathMaker) -> None:
    arrays = {name: heatmap.numpy() for name, heatmap in result.maps.items()} | {
        "box": np.array(result.box or UNKNOWN_BOX)
    }
    with atomic_write(make_path("npz")) as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


NUMBERS = Writer("numbers", _numbers, lambda maps: ["npz"], whole_pictures=False)
"""Every picture's maps and `box` as an NPZ file."""
# Where nobody says what of the picture the model sees.
UNKNOWN_BOX = (np.nan,) * 4


def _picture_name(column: str) -> str:
    """The ending of a column's pictures, without the characters that some file systems refuse."""
    return "".join(char if char.isalnum() or char in "._-=," else "_" for char in column) + ".png"
