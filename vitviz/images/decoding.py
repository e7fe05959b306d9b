"""Pillow's image of a file: formats that Pillow does not open by itself, large JPEG files, and those without an end."""

from __future__ import annotations

import io
import re
import struct
from collections import defaultdict
from contextlib import suppress
from functools import cache
from typing import Any

from PIL import Image
from PIL.JpegImagePlugin import jpeg_factory

from vitviz.images.colours import MAX_PROFILE_BYTES
from vitviz.images.kinds import FORMATS, HEIC, HEIF, MAX_PIXELS, START_BYTES, kind_of
from vitviz.images.levels import strips

# JPEG decodes at these fractions of its size.
REDUCTIONS = (1, 2, 4, 8)
JPEG_START, JPEG_END = b"\xff\xd8", b"\xff\xd9"
# The size of a header with a profile, and that it is part of the file: BITMAPV5HEADER.
BMP_V5, BMP_PROFILE = struct.pack("<I", 124), b"DEBM"
# What follows a JPEG file without its end makes no difference if all pixels are there.
ANYTHING = (bytes(64), b"\xa5\x5a" * 32, b"\xd3\x2c" * 32)
# The beginning of every scan that libjpeg accepts.
SCAN = b"\xff\xda"
SCAN_HEAD = re.compile(rb"\xff\xda\x00(?:\x08\x01|\x0a\x02|\x0c\x03|\x0e\x04)")


class PictureFile(io.BufferedReader):
    """A file that may be continued with a few bytes, and knows whether a reader wanted more than there is.

    Args:
        raw: the file.
    """

    def __init__(self, raw: Any) -> None:
        super().__init__(raw)
        self._end, self.is_exhausted = b"", False
        # Where the header of a JPEG file ends, with the head of its first scan.
        self.header_end = 0

    def end_with(self, end: bytes) -> None:
        """Continue the file with a few bytes."""
        self._end, self.is_exhausted = end, False

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(-1 if size is None else size)
        if not data:
            data, self._end = self._end, b""
            self.is_exhausted = size != 0
        return data


def open_undecoded(stream: PictureFile) -> Image.Image:
    """The image in a file, not decoded yet; of a JPEG file, which can be reduced, whatever its number of pixels.

    Raises what Pillow raises.
    """
    start = stream.peek(START_BYTES)[:START_BYTES]
    formats = heif_formats() if kind_of(start) == HEIC else FORMATS
    image = jpeg_factory(stream) if start.startswith(JPEG_START) else Image.open(stream, formats=formats)
    stream.header_end = stream.tell()
    if image.format == "BMP" and start[14:18] == BMP_V5 and start[70:74] == BMP_PROFILE:
        # Pillow does not read it.
        place, size = struct.unpack_from("<2I", start, 126)
        stream.seek(14 + place)
        image.info["icc_profile"] = stream.read(min(size, MAX_PROFILE_BYTES + 1))
    return image


@cache
def heif_formats() -> tuple[str, ...]:
    """Pillow's name of the format HEIC, if the extra ``heif`` is installed."""
    try:
        import pillow_heif
    except ImportError:
        return ()
    pillow_heif.register_heif_opener()
    return (HEIF,)


def allow_reduction(image: Image.Image) -> None:
    """Let a JPEG file with too many pixels be reduced while it is decoded; other formats know no such thing."""
    most = min(MAX_PIXELS, Image.MAX_IMAGE_PIXELS or MAX_PIXELS)
    factor = next((each for each in REDUCTIONS if image.width * image.height <= each**2 * most), REDUCTIONS[-1])
    if factor > 1:
        image.draft(None, (image.width // factor, image.height // factor))


def _has_all_scans(image: Any, stream: PictureFile) -> bool:
    """Whether the scans of a JPEG file have each coefficient of every component, in full precision."""
    stream.seek(0)
    content, found = stream.read(), defaultdict[int, set[int]](set)
    # Not the scans of a thumbnail in the header.
    for match in SCAN_HEAD.finditer(content, content.rfind(SCAN, 0, stream.header_end)):
        count = content[match.end() - 1]
        head = content[match.end() : match.end() + 2 * count + 3]
        *components, first, last, precision = head.ljust(3, b"\xff")
        if len(head) == 2 * count + 3 and not precision % 16:
            for component in components[::2]:
                found[component] |= set(range(first, last + 1))
    return len(found) == image.layers and all(coefficients >= set(range(64)) for coefficients in found.values())


def decode(image: Image.Image, stream: PictureFile | None) -> None:
    """Decode an image, also a JPEG file without its end marker if all of its pixels are there."""
    file: Any = image
    tiles = list(getattr(image, "tile", ()))
    try:
        image.load()
    except OSError:
        if stream is None or image.format != "JPEG" or not _has_all_scans(image, stream):
            raise
        stream.seek(-1, io.SEEK_END)
        # After 255, only a 0 begins no marker.
        begin = b"\0" * (stream.read(1) == b"\xff")
        first: Image.Image | None = None
        for rest in ANYTHING:
            file.tile, file.fp = list(tiles), stream
            stream.end_with(begin + rest + JPEG_END)
            image.load()
            if first is None:
                first = image.copy()
            elif any(strip.tobytes() != first.crop(box).tobytes() for box, strip in strips(image)):
                raise


def has_frames(image: Image.Image, stream: PictureFile | None) -> bool:
    """Whether an image has further frames or pages, and none but the first was chosen."""
    if stream is not None:
        stream.seek(0)
        image = open_undecoded(stream)
    # The file behind an image may be closed, and the image decoded.
    with suppress(ValueError):
        return bool(getattr(image, "is_animated", False)) and not image.tell()
    return False
