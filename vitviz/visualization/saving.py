"""Maps as files, each in the format of its ending."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from PIL import ExifTags, Image

from vitviz.errors.kinds import ImageError
from vitviz.errors.messages import describe
from vitviz.system.atomic import atomic_write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Written by matplotlib, as vectors; pictures among them have so many dots per inch.
VECTOR_FORMATS, VECTOR_DPI = (".svg", ".pdf"), 300
NUMBERS = ".npz"
# Exif is read as ASCII by some, and a JPEG has room for 65,533 bytes of it.
PLAIN_SIGNS, MAX_CAPTION_CHARS = str.maketrans({"–": "-", "×": "x", "“": '"', "”": '"', "…": "..."}), 16_000


def check_ending(path: str | os.PathLike[str], numbers: bool = False) -> None:
    """Refuse an ending in which no picture, and no ``numbers``, can be written.

    Raises:
        ImageError: no format has this ending.
    """
    ending, also = Path(path).suffix.lower(), f", or {NUMBERS} for its numbers" * numbers
    if (
        ending not in (*VECTOR_FORMATS, *[NUMBERS] * numbers)
        and Image.registered_extensions().get(ending) not in Image.SAVE
    ):
        raise ImageError(f"{path}: cannot be written: expected the ending of a picture, such as .png{also}")


def save_as(
    path: str | os.PathLike[str],
    picture: Callable[[], Image.Image],
    figure: Callable[[], Figure],
    arrays: Mapping[str, Any] | None = None,
    caption: str = "",
) -> None:
    """Write a picture, a figure as vectors, or arrays, whichever the ending of the path asks for.

    Args:
        path: of the file.
        picture, figure: make what is written.
        arrays: by name; None where there are no numbers.
        caption: what the picture shows, its description in the Exif of formats that have one.

    Raises:
        ImageError: the file cannot be written, or no format has this ending.
    """
    if not isinstance(path, str | os.PathLike):
        raise ImageError(
            f"path: {describe(path)} found; expected the path of a file; into a buffer, "
            'heatmap.overlay().save(buffer, "PNG") writes'
        )
    ending = Path(path).suffix.lower()
    write: Callable[[IO[bytes]], Any]
    if ending == NUMBERS and arrays is not None:
        write = partial(np.savez_compressed, **arrays)
    elif ending in VECTOR_FORMATS:
        write = partial(figure().savefig, format=ending[1:])
    else:
        check_ending(path, arrays is not None)
        exif = Image.Exif()
        exif[ExifTags.Base.ImageDescription] = caption[:MAX_CAPTION_CHARS].translate(PLAIN_SIGNS).encode()
        write = partial(picture().save, format=Image.registered_extensions()[ending], exif=exif)
    # Some formats cannot hold every picture, such as a very wide one.
    with atomic_write(path, error=ImageError) as file:
        write(file)
