"""What a run writes beside its table: one record and one function for each kind of file about a picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitviz.datasets.rows import Found
from vitviz.visualization.heatmaps import Style
from vitviz.weights.formats.atomic import atomic_write

Place = Callable[[str], Path]
"""The path of a picture's file with an ending, in the writer's folder, which is made."""


@dataclass(frozen=True)
class Writer:
    """A kind of file about every picture.

    Args:
        folder: below the results, where the files lie.
        write: writes those of a picture.
        endings: of a picture's files, by the names of the maps that are asked for.
        whole_pictures: whether it needs the picture at its own size; a smaller one takes less memory.
    """

    folder: str
    write: Callable[[Found, Place], None]
    endings: Callable[[Sequence[str]], Sequence[str]]
    whole_pictures: bool = True


def overlays(style: Style) -> Writer:
    """An overlay of every map as PNG, drawn in this style."""

    def write(found: Found, place: Place) -> None:
        for name, heatmap in found.maps.items():
            heatmap.save(place(_overlay_ending(name)), style)

    return Writer("pictures", write, lambda maps: [_overlay_ending(name) for name in maps])


def _overlay_ending(column: str) -> str:
    return f"{_file_name(column)}.png"


def _numbers(found: Found, place: Place) -> None:
    arrays = {name: heatmap.numpy() for name, heatmap in found.maps.items()}
    with atomic_write(place("npz")) as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


NUMBERS = Writer("numbers", _numbers, lambda maps: ["npz"], whole_pictures=False)
"""Every picture's maps as an NPZ file."""


def _file_name(column: str) -> str:
    """Of a column, without the signs that some file systems refuse."""
    return "".join(sign if sign.isalnum() or sign in "._-=," else "_" for sign in column)
