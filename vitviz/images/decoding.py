"""Pillow's image of a file: HEIC, which needs another package, large JPEG files, and those without an end."""

from __future__ import annotations

import io
from functools import cache
from typing import BinaryIO

from PIL import Image, ImageChops
from PIL.JpegImagePlugin import jpeg_factory

from vitviz.images.file_kinds import FORMATS, HEIC, HEIF, MAX_PIXELS, START_BYTES, kind_of

# JPEG decodes at these fractions of its size.
REDUCTIONS = (1, 2, 4, 8)
JPEG_START, JPEG_END = b"\xff\xd8", b"\xff\xd9"
# In the header of version 5, that the profile is part of the file.
BMP_PROFILE = b"DEBM"
# What follows a JPEG file without its end makes no difference if all pixels are there.
ANYTHING = (bytes(64), b"\xa5\x5a" * 32)


def open_undecoded(file: BinaryIO) -> tuple[Image.Image, tuple[int, int]]:
    """The image in a file, not decoded yet, and its full size; of a JPEG file with too many pixels a reduced one.

    Raises what Pillow raises.
    """
    start = file.read(START_BYTES)
    file.seek(0)
    if not start.startswith(JPEG_START):
        image: Image.Image = Image.open(file, formats=heif_formats() if kind_of(start) == HEIC else FORMATS)
        if image.format == "BMP" and start[70:74] == BMP_PROFILE:
            raise OSError("a BMP file with a colour profile, which Pillow does not read")
        return image, image.size
    # Image.open refuses some that are small once they are reduced.
    image = jpeg_factory(file)
    size, most = image.size, min(MAX_PIXELS, Image.MAX_IMAGE_PIXELS or MAX_PIXELS)
    factor = next((each for each in REDUCTIONS if size[0] * size[1] <= each**2 * most), REDUCTIONS[-1])
    if factor > 1:
        image.draft(None, (size[0] // factor, size[1] // factor))
    return image, size


@cache
def heif_formats() -> tuple[str, ...]:
    """Pillow's name of the format HEIC, if the extra ``heif`` is installed."""
    try:
        import pillow_heif
    except ImportError:
        return ()
    pillow_heif.register_heif_opener()
    return (HEIF,)


def decoded(image: Image.Image, file: BinaryIO | None) -> Image.Image:
    """An image with its pixels, also that of a JPEG file without its end marker if all of them are there.

    Args:
        image: of the file.
        file: None for an image of the user's.
    """
    try:
        image.load()
    except OSError:
        # Of a progressive one, the scans that refine all pixels may be missing.
        if file is None or image.format != "JPEG" or "progressive" in image.info:
            raise
        file.seek(0)
        content = file.read()
        # After 255, only a 0 begins no marker.
        content += b"\0" * content.endswith(b"\xff")
        image, other = (open_undecoded(io.BytesIO(content + each + JPEG_END))[0] for each in ANYTHING)
        if ImageChops.difference(image, other).getbbox() is not None:
            raise
    return image
