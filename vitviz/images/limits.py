"""What a picture file may cost to open: one that was made to take minutes or gigabytes is refused before it does.

Pillow itself bounds the pixels of a picture and the compressed texts of a PNG. :class:`BudgetedReader` bounds what
Pillow reads: bytes, and in how many pieces. The rest of this module bounds what Pillow makes of a few bytes: numbers in
tags and tables, scans of a JPEG, and memory beside the pixels.
"""

from __future__ import annotations

import io
import math
import re
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from PIL import ExifTags, Image, ImageFile
from PIL.TiffImagePlugin import ImageFileDirectory_v2

from vitviz.errors.kinds import ImageError

# Bytes at any time: of the pixels, of what their decoder needs beside them, and of the picture they become.
MAX_MEMORY = 482_000_000
# Bytes that are no pixels. A WebP file is read whole before its size is known; a TIFF may carry its program's layers.
MAX_HEADER, MAX_LARGE_HEADER = 2**24, 2**27
# How often a file may be read from: before the pixels, and then for them.
HEADER_PIECES, PIXEL_PIECES = 10_000, 1_000_000
# Numbers in the directories of a TIFF file, an EXIF block or an MPO index, or in a JPEG's tables.
MAX_NUMBERS = 150_000
# Every scan of a JPEG goes through all of its pixels.
MAX_SCANNED = 1_500_000_000
# Pillow decodes run-length encoded BMP files in Python.
MAX_RUN_LENGTH = 4_000_000
# Pillow unpacks each colour profile of a PNG, the unused ones too, to at most so many bytes.
UNPACKED_PROFILE = 2**20
# A decoder that needs more bytes starts over with all it has, so the file comes in at most this many blocks.
MAX_BLOCKS = 16

# Bytes of a pixel by mode; all other modes take four.
PIXEL_BYTES = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16L": 2, "I;16B": 2, "I;16N": 2}
# JPEG: markers without a body, of frames, the first that there is, of single kinds.
BARE = (0x00, 0xC8, *range(0xD0, 0xDA), *range(0xF0, 0xFE))
FRAMES, PROGRESSIVE = set(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}, {0xC2, 0xC6, 0xCA, 0xCE}
FIRST, SCAN, QUANTISATION, EXIF, INDEX, PHOTOSHOP = 0xC0, 0xDA, 0xDB, 0xE1, 0xE2, 0xED
# Matches only the last byte of padding: matching all of it would take quadratic time.
MARKER = re.compile(rb"(?s)\xff([^\x00\xff])")
# How a scan begins that libjpeg accepts.
SCAN_HEAD = re.compile(rb"\xff\xda\x00(?:\x08\x01|\x0a\x02|\x0c\x03|\x0e\x04)")
# Types of tags that Pillow leaves in one piece, and the places of strips and tiles: each of those becomes an object.
TEXTS, PLACES = (1, 2, 7), (273, 324)
SMALL_PIECES = "cut into too many small pieces"
# Pillow takes these off one by one, each time with a copy of the rest.
EXIF_HEADS, MAX_EXIF_HEADS = re.compile(rb"(?:Exif\0\0)*"), 600
DIRECTORIES = (ExifTags.IFD.Exif, ExifTags.IFD.GPSInfo, ExifTags.IFD.Interop)


class BudgetedReader(io.BufferedReader):
    """A file of which only so much is read, in so many pieces; reading more raises an :class:`ImageError`.

    Args:
        raw: the file.
        name: what the message calls it.
    """

    def __init__(self, raw: Any, name: str) -> None:
        super().__init__(raw)
        self.label = name
        # How often a JPEG's decoder goes through the pixels.
        self.scans = 1
        self.size = self.seek(0, io.SEEK_END)
        self.seek(0)
        self.allow(HEADER_PIECES, MAX_HEADER)

    def allow(self, pieces: int, size: int, purpose: str = "beside its pixels") -> None:
        """From now on, so many pieces and bytes may be read."""
        self._pieces, self._left, self._allowed, self._purpose = pieces, size, size, purpose

    @property
    def used(self) -> int:
        """Bytes read since the last :meth:`allow`."""
        return self._allowed - self._left

    def read(self, size: int | None = -1, /) -> bytes:
        most = self._left + 1
        data = super().read(most if size is None or size < 0 else min(size, most))
        self._pieces -= 1
        self._left -= len(data)
        if self._left < 0:
            raise refusal(self.label, f"more than {self._allowed:,} bytes {self._purpose}")
        if self._pieces < 0:
            raise refusal(self.label, SMALL_PIECES)
        return data


def refusal(name: str, found: str) -> ImageError:
    """The error for a file that would cost too much."""
    return ImageError(f"{name}: {found}; expected a picture that opens in little time and memory")


def check_header(stream: BudgetedReader) -> None:
    """Refuse a file of which Pillow could not even read the header in time; leaves it at its beginning.

    Raises:
        ImageError: it is such a file.
    """
    start = stream.read(16)
    stream.seek(0)
    check, most = next((guard for signature, guard in GUARDS.items() if re.match(signature, start)), (None, MAX_HEADER))
    if check is not None:
        stream.allow(PIXEL_PIECES, stream.size + MAX_HEADER)
        check(stream)
        stream.seek(0)
    stream.allow(HEADER_PIECES, most)


def check_pixels(image: Image.Image, stream: BudgetedReader) -> None:
    """Refuse a file whose pixels would take too long or too much memory to decode; its header has been read.

    Raises:
        ImageError: it is such a file.
    """
    # Pillow reads the tags of a TIFF file a second time, for its EXIF block.
    pixels, header = image.width * image.height, stream.used * (2 if image.format == "TIFF" else 1)
    stream.allow(PIXEL_PIECES, 2 * stream.size + MAX_HEADER, "to read for its pixels")
    if isinstance(image, ImageFile.ImageFile):
        image.decodermaxblock = max(image.decodermaxblock, stream.size // MAX_BLOCKS)
    size = f"{image.width}×{image.height} pixels"
    if pixels * stream.scans > MAX_SCANNED:
        raise refusal(stream.label, f"{size} in {stream.scans:,} scans")
    if pixels > MAX_RUN_LENGTH and any(tile[0] == "bmp_rle" for tile in getattr(image, "tile", ())):
        raise refusal(stream.label, f"{size}, run-length encoded, of which at most {MAX_RUN_LENGTH:,} are opened")
    needs = BESIDE.get(image.format or "")
    result = 0 if image.mode == "RGB" else 4 * pixels
    check_memory(image, stream.label, max(needs(image, stream) if needs else 0, result) + header)


def check_memory(image: Image.Image, name: str, beside: float) -> None:
    """Refuse a picture whose pixels and so many bytes beside them are too much at one time.

    Raises:
        ImageError: they are.
    """
    needed = PIXEL_BYTES.get(image.mode, 4) * image.width * image.height + beside
    if needed > MAX_MEMORY:
        found = f"{image.width}×{image.height} pixels, {image.format} {image.mode}, would take {needed / 1e6:,.0f} MB"
        raise refusal(name, f"{found} of memory, of which at most {MAX_MEMORY / 1e6:,.0f} MB are taken")


def check_exif(block: bytes, name: str) -> None:
    """Refuse an EXIF block that Pillow would unpack into too much.

    Raises:
        ImageError: it is such a block.
    """
    start = next(EXIF_HEADS.finditer(block)).end()
    if start > MAX_EXIF_HEADS:
        raise refusal(name, SMALL_PIECES)
    _check_tags(BudgetedReader(io.BytesIO(block[start:]), name))


def _check_tags(file: BudgetedReader) -> None:
    """Refuse a TIFF file, an EXIF block or an MPO index whose tags Pillow would unpack into too many numbers."""
    head = file.read(8)
    if head[2:3] == b"+":
        head += file.read(8)
    # Pillow leaves out what is damaged, or reports it.
    damage = suppress(SyntaxError, ValueError, OverflowError, IndexError, struct.error)
    waiting: list[int] = []
    with damage:
        waiting.append(ImageFileDirectory_v2(head).next)
    visited: set[int] = set()
    numbers = 0
    while waiting:
        start = waiting.pop()
        if start in visited:
            continue
        visited.add(start)
        directory = ImageFileDirectory_v2(head)
        with damage:
            file.seek(start)
            directory.load(file)
        # Pillow unpacks a tag when it is asked for.
        for tag, data in directory._tagdata.items():
            kind = directory.tagtype[tag]
            size, _ = directory._load_dispatch[kind]
            numbers += 1 if kind in TEXTS and tag not in PLACES else len(data) // size
        _check_numbers(numbers, file.label)
        with damage:
            waiting += [place for place in map(directory.get, DIRECTORIES) if isinstance(place, int)]


def _check_numbers(count: int, name: str) -> None:
    if count > MAX_NUMBERS:
        raise refusal(name, f"more than {MAX_NUMBERS:,} numbers beside its pixels")


def _check_jpeg(stream: BudgetedReader) -> None:
    """What Pillow unpacks at once: the EXIF block, the MPO index, Photoshop's entries, tables; counts the scans."""
    exif, index = [], b""
    components, is_progressive, numbers = 0, False, 0
    for marker, body in _segments(stream.read(MAX_HEADER)):
        if marker in FRAMES or marker == QUANTISATION:
            numbers += len(body)
        elif marker == PHOTOSHOP:
            numbers += body.count(b"8BIM")
        elif marker == EXIF and body.startswith(b"Exif\0\0"):
            exif.append(body[6:])
        elif marker == INDEX and body.startswith(b"MPF\0"):
            index = body[4:]
        if marker in FRAMES and len(body) > 5:
            components, is_progressive = body[5], marker in PROGRESSIVE
        if marker == SCAN and (is_progressive or body[:1] != bytes([components])):
            stream.seek(0)
            # The scans of pictures behind the first one count as well.
            blocks = iter(lambda: stream.read(2**20), b"")
            stream.scans = sum(len(SCAN_HEAD.findall(block)) for block in blocks)
    _check_numbers(numbers, stream.label)
    check_exif(b"".join(exif), stream.label)
    _check_tags(BudgetedReader(io.BytesIO(index), stream.label))


def _segments(header: bytes) -> Iterator[tuple[int, bytes]]:
    """Marker and body of every segment that Pillow reads."""
    at = 2
    # Pillow reads every segment in at least one piece, so the reader refuses a file with more of them.
    for _ in range(HEADER_PIECES):
        found = MARKER.search(header, at)
        marker = found[1][0] if found else 0
        if found is None or (marker < FIRST and marker not in BARE):
            return
        at = found.end()
        if marker not in BARE:
            length = int.from_bytes(header[at : at + 2], "big")
            yield marker, header[at + 2 : at + length]
            at += max(2, length)
        if marker == SCAN:
            return


def _check_png(stream: BudgetedReader) -> None:
    """The chunks that are not pixels, of which Pillow keeps even those behind them."""
    at, pixels, size, pieces = 8, 0, 0, 0
    stream.seek(at)
    while len(head := stream.read(8)) == 8:
        length, kind = struct.unpack(">I4s", head)
        at += 12 + length
        # Pillow reports a file that is cut short.
        if kind == b"IEND" or at > stream.size:
            return
        if kind == b"IHDR":
            pixels = math.prod(struct.unpack(">II", stream.read(8)))
        # Pillow allocates a second frame of an animation while it reads the header.
        if kind == b"fcTL" and 12 * pixels > MAX_MEMORY:
            raise refusal(stream.label, f"an animation of {pixels:,} pixels")
        if kind != b"IDAT":
            size, pieces = size + max(length, UNPACKED_PROFILE if kind == b"iCCP" else 0), pieces + 1
        if size > MAX_HEADER:
            raise refusal(stream.label, f"more than {MAX_HEADER:,} bytes beside its pixels")
        if pieces > HEADER_PIECES:
            raise refusal(stream.label, SMALL_PIECES)
        stream.seek(at)


def _check_tiff(stream: BudgetedReader) -> None:
    stream.allow(HEADER_PIECES, MAX_LARGE_HEADER)
    _check_tags(stream)


def _beside_jpeg(image: Any, stream: BudgetedReader) -> float:
    """All coefficients, where they come in more than one scan."""
    sampled = [(across, down) for _, across, down, _ in image.layer]
    largest = max(across for across, _ in sampled) * max(down for _, down in sampled)
    coefficients = image.width * image.height * sum(across * down for across, down in sampled) / max(1, largest)
    return 2 * coefficients if stream.scans > 1 else 0


def _beside_tiff(image: Any, stream: BudgetedReader) -> float:
    """The largest strip or tile, where libtiff unpacks it; the picture before it is turned."""
    tags, pixels = image.tag_v2, image.width * image.height
    bits = tags.get(258, (1,))
    per_pixel = max(4, sum(bits) * (tags.get(277, 1) if len(bits) == 1 else 1) / 8)
    # Width and height may be swapped already.
    strip = min(pixels, tags.get(278, image.height) * max(image.size))
    unpacked = max(strip, tags.get(322, 0) * tags.get(323, 0)) * per_pixel
    turned = 4 * pixels if tags.get(ExifTags.Base.Orientation, 1) != 1 else 0
    return max(turned, unpacked if any(tile[0] == "libtiff" for tile in image.tile) else 0)


# By the first bytes: what is looked at before Pillow does, and the most bytes of a header.
GUARDS: dict[bytes, tuple[Callable[[BudgetedReader], None] | None, int]] = {
    rb"\xff\xd8\xff": (_check_jpeg, MAX_HEADER),
    rb"\x89PNG": (_check_png, MAX_HEADER),
    rb"II|MM": (_check_tiff, MAX_LARGE_HEADER),
    rb"(?s)RIFF.{4}WEBP": (None, MAX_LARGE_HEADER),
}
# By format: bytes that its decoder needs beside the pixels it makes.
BESIDE: dict[str, Callable[[Any, BudgetedReader], float]] = {
    "JPEG": _beside_jpeg,
    "MPO": _beside_jpeg,
    "TIFF": _beside_tiff,
    # Two canvases, and one of them copied.
    "WEBP": lambda image, stream: 12 * image.width * image.height,
}
