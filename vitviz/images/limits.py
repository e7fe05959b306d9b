"""What a picture file may cost to open: one that was made to take minutes or gigabytes is refused before it does.

Pillow itself bounds the pixels of a picture and the compressed texts of a PNG. What else a few bytes can make it do is
bounded here: read a header in millions of pieces, turn megabytes into numbers, go through a JPEG a thousand times, or
need several times the memory that the pixels do.
"""

from __future__ import annotations

import io
import math
import re
import struct
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from PIL import ExifTags, Image, ImageFile

from vitviz.errors.kinds import ImageError

# Bytes at any time: of the pixels, of what their decoder needs beside them, and of the picture they become.
MAX_MEMORY = 482_000_000
# Bytes that are no pixels. A WebP file is read whole before its size is known; a TIFF's tags are read twice.
MAX_HEADER, MAX_WEBP, MAX_TIFF_HEADER = 2**24, 2**27, 2**28
# How often a file may be read from: before the pixels, and then for them.
HEADER_PIECES, PIXEL_PIECES = 10_000, 1_000_000
# Entries and numbers in the directories of a TIFF file, an EXIF block or an MPO index.
MAX_NUMBERS = 150_000
# Every scan of a JPEG goes through all of its pixels.
MAX_SCANNED = 1_500_000_000
# Pillow decodes run-length encoded BMP files in Python.
MAX_RUN_LENGTH = 4_000_000
# Bytes of a JPEG's frame headers and quantisation tables, of which Pillow makes numbers; a picture has some 300.
MAX_TABLES = 2**16
MAX_PROFILES = 64
# A decoder that waits for more bytes begins again with all it has: it gets the file in at most so many blocks.
MAX_BLOCKS = 16

# Bytes of a pixel by its mode; four in all others.
PIXEL_BYTES = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16L": 2, "I;16B": 2, "I;16N": 2}
# JPEG: markers without a body, of frames, the first that there is, of a scan; how one begins that libjpeg accepts.
BARE = (0x00, 0xC8, *range(0xD0, 0xDA), *range(0xF0, 0xFE))
FRAMES, PROGRESSIVE = set(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}, {0xC2, 0xC6, 0xCA, 0xCE}
FIRST, SCAN, QUANTISATION = 0xC0, 0xDA, 0xDB
# Matches only the last byte of the padding before a marker: a pattern for all of it takes quadratic time.
MARKER = re.compile(rb"(?s)\xff([^\x00\xff])")
SCAN_HEAD = re.compile(rb"\xff\xda\x00(?:\x08\x01|\x0a\x02|\x0c\x03|\x0e\x04)")
# A directory's number by its type; Pillow leaves out entries of other types.
NUMBERS = dict(zip((1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 16), "BBHLQbBhlqfdLQ", strict=True))
# These stay in one piece, but for the places of strips and tiles: each of those becomes an object.
TEXTS, PLACES = (1, 2, 7), (273, 324)
SMALL_PIECES = "cut into too many small pieces"
EXIF_HEADS, MAX_EXIF_HEADS = re.compile(rb"(?:Exif\0\0)*"), 600
DIRECTORIES = (ExifTags.IFD.Exif, ExifTags.IFD.GPSInfo, ExifTags.IFD.Interop)


class BudgetedReader(io.BufferedReader):
    """A file of which only so much is read, in so many pieces: whoever reads on gets an :class:`ImageError`.

    Args:
        raw: the file.
        called: its name in the message.
    """

    def __init__(self, raw: Any, called: str) -> None:
        super().__init__(raw)
        self.called = called
        # How often a JPEG's decoder goes through the pixels, and the bytes of a TIFF's tags.
        self.scans, self.tags = 1, 0
        self.size = self.seek(0, io.SEEK_END)
        self.seek(0)
        self.allow(HEADER_PIECES, MAX_HEADER, "before")

    def allow(self, pieces: int, size: int, when: str) -> None:
        """From now on, so many pieces and bytes may be read; ``when`` is before its pixels or for them."""
        self._pieces, self._left, self._allowed, self._when = pieces, size, size, when

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
            raise refusal(self.called, f"more than {self._allowed:,} bytes to read {self._when} its pixels")
        if self._pieces < 0:
            raise refusal(self.called, SMALL_PIECES)
        return data


def refusal(called: str, found: str) -> ImageError:
    """What is raised of a file that would cost too much."""
    return ImageError(f"{called}: {found}; expected a picture that opens in little time and memory")


def check_header(stream: BudgetedReader) -> None:
    """Refuse a file of which Pillow could not even read the header in time; leaves it at its beginning.

    Raises:
        ImageError: it is such a file.
    """
    start = stream.read(16)
    stream.seek(0)
    check, most = next(guard for signature, guard in GUARDS.items() if re.match(signature, start))
    stream.allow(PIXEL_PIECES, stream.size + MAX_HEADER, "before")
    check(stream)
    stream.seek(0)
    stream.allow(HEADER_PIECES, most, "before")


def check_pixels(image: Image.Image, stream: BudgetedReader) -> None:
    """Refuse a file whose pixels would take too long or too much memory to decode; its header has been read.

    Raises:
        ImageError: it is such a file.
    """
    pixels, header = image.width * image.height, stream.used + stream.tags
    stream.allow(PIXEL_PIECES, 2 * stream.size + MAX_HEADER, "for")
    if isinstance(image, ImageFile.ImageFile):
        image.decodermaxblock = max(image.decodermaxblock, stream.size // MAX_BLOCKS)
    size = f"{image.width}×{image.height} pixels"
    if pixels * stream.scans > MAX_SCANNED:
        raise refusal(stream.called, f"{size} in {stream.scans:,} scans")
    if pixels > MAX_RUN_LENGTH and any(tile[0] == "bmp_rle" for tile in getattr(image, "tile", ())):
        raise refusal(stream.called, f"{size}, run-length encoded, of which at most {MAX_RUN_LENGTH:,} are opened")
    needs = BESIDE.get(image.format or "")
    result = 0 if image.mode == "RGB" else 4 * pixels
    check_memory(image, stream.called, max(needs(image, stream) if needs else 0, result) + header)


def check_memory(image: Image.Image, called: str, beside: float) -> None:
    """Refuse a picture whose pixels and so many bytes beside them are too much at one time.

    Raises:
        ImageError: they are.
    """
    needed = PIXEL_BYTES.get(image.mode, 4) * image.width * image.height + beside
    if needed > MAX_MEMORY:
        found = f"{image.width}×{image.height} pixels, {image.format} {image.mode}, would take {needed / 1e6:,.0f} MB"
        raise refusal(called, f"{found} of memory, of which at most {MAX_MEMORY / 1e6:,.0f} MB are taken")


def check_tags(file: BinaryIO, called: str, most: int = MAX_HEADER) -> int:
    """Refuse tags that Pillow would unpack into too much; returns their bytes.

    Args:
        file: an EXIF block, an MPO index or a TIFF file from its first byte on.
        called: the picture's name in the message.
        most: bytes of the tags.

    Raises:
        ImageError: there are more, or too many numbers in them.
    """
    numbers = size = 0
    for tag, kind, count in _tags(file):
        numbers += 1 if kind in TEXTS and tag not in PLACES else max(1, count)
        size += count * _size(NUMBERS[kind])
        if numbers > MAX_NUMBERS:
            raise refusal(called, f"more than {MAX_NUMBERS:,} numbers beside its pixels")
        if size > most:
            raise refusal(called, f"more than {most:,} bytes beside its pixels")
    return size


def check_exif(block: bytes, called: str) -> None:
    """Refuse an EXIF block that Pillow would unpack into too much.

    Raises:
        ImageError: it is such a block.
    """
    beginning = EXIF_HEADS.match(block)
    head = beginning.end() if beginning else 0
    # Pillow takes them off one by one, each time with a copy of the rest.
    if head > MAX_EXIF_HEADS:
        raise refusal(called, SMALL_PIECES)
    check_tags(io.BytesIO(block[head:]), called)


def _tags(file: BinaryIO) -> Iterator[tuple[int, int, int]]:
    """Tag, type and count of every entry that Pillow reads, of directories in a directory too."""
    end = file.seek(0, io.SEEK_END)
    file.seek(0)
    head = file.read(16).ljust(16, b"\0")
    order, is_big = ">" if head.startswith(b"MM") else "<", head[2] == 43
    length, entry, place = (order + form for form in (("Q", "HHQ8s", "Q") if is_big else ("H", "HHL4s", "L")))

    def at(offset: int, form: str) -> tuple[Any, ...]:
        """What stands there; nothing where the file ends before."""
        if not 0 <= offset <= end - _size(form):
            return ()
        file.seek(offset)
        return struct.unpack(form, file.read(_size(form)))

    waiting, seen = list(at(8 if is_big else 4, place)), set()
    while waiting:
        start = waiting.pop()
        entries = at(start, length)
        if start in seen or not entries:
            continue
        seen.add(start)
        for index in range(entries[0]):
            here = start + _size(length) + index * _size(entry)
            found = at(here, entry)
            # Pillow stops at the first entry that is not whole, and leaves out those of other types.
            if not found:
                break
            tag, kind, count, data = found
            if kind not in NUMBERS:
                yield tag, 1, 0
                continue
            size, values = count * _size(NUMBERS[kind]), here + _size(entry) - len(data)
            if size > len(data):
                [values] = struct.unpack(place, data)
            if values + size > end:
                break
            if tag in DIRECTORIES:
                waiting += filter(lambda value: isinstance(value, int), at(values, order + NUMBERS[kind]))
            yield tag, kind, count


def _size(form: str) -> int:
    # Without padding: what stands in a file has none.
    return struct.calcsize(form if form[0] in "<>" else f"<{form}")


def _check_nothing(stream: BudgetedReader) -> None:
    """Of the others, Pillow reads nothing that :class:`BudgetedReader` does not bound."""


def _check_jpeg(stream: BudgetedReader) -> None:
    """What Pillow unpacks at once: the EXIF block, the MPO index, Photoshop's entries, tables; counts the scans."""
    exif = []
    components, is_progressive = 0, False
    tables = photoshop_entries = 0
    for marker, body in _segments(stream.read(MAX_HEADER), stream.called):
        tables += len(body) if marker in FRAMES or marker == QUANTISATION else 0
        if tables > MAX_TABLES:
            raise refusal(stream.called, f"more than {MAX_TABLES:,} bytes of tables")
        photoshop_entries += body.count(b"8BIM") if marker == 0xED else 0
        if photoshop_entries > MAX_NUMBERS:
            raise refusal(stream.called, f"more than {MAX_NUMBERS:,} numbers beside its pixels")
        if marker == 0xE1 and body.startswith(b"Exif\0\0"):
            exif.append(body[6:])
        if marker == 0xE2 and body.startswith(b"MPF\0"):
            check_tags(io.BytesIO(body[4:]), stream.called)
        if marker in FRAMES and len(body) > 5:
            components, is_progressive = body[5], marker in PROGRESSIVE
        if marker == SCAN and (is_progressive or body[:1] != bytes([components])):
            stream.seek(0)
            # The scans of pictures behind the first one count as well.
            blocks = iter(lambda: stream.read(2**20), b"")
            stream.scans = sum(len(SCAN_HEAD.findall(block)) for block in blocks)
    check_exif(b"".join(exif), stream.called)


def _segments(header: bytes, called: str) -> Iterator[tuple[int, bytes]]:
    """Marker and body of every segment that Pillow reads."""
    at = 2
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
    raise refusal(called, SMALL_PIECES)


def _check_png(stream: BudgetedReader) -> None:
    """The chunks that are not pixels, of which Pillow keeps even those behind them."""
    stream.seek(8)
    pixels = size = pieces = profiles = 0
    for length, kind in iter(lambda: struct.unpack(">I4s", stream.read(8).ljust(8, b"\0")), (0, bytes(4))):
        here = stream.tell()
        # It is cut short or damaged, which Pillow says.
        if kind == b"IEND" or here + length > stream.size:
            return
        if kind == b"IHDR":
            pixels = math.prod(struct.unpack(">II", stream.read(8).ljust(8, b"\0")))
        # Pillow fills a second frame of an animation while it reads the header.
        if kind == b"fcTL" and 12 * pixels > MAX_MEMORY:
            raise refusal(stream.called, f"an animation of {pixels:,} pixels")
        # Each is unpacked to a megabyte.
        profiles += kind == b"iCCP"
        if profiles > MAX_PROFILES:
            raise refusal(stream.called, f"more than {MAX_PROFILES} colour profiles")
        if kind != b"IDAT":
            size, pieces = size + length, pieces + 1
        if size > MAX_HEADER:
            raise refusal(stream.called, f"more than {MAX_HEADER:,} bytes beside its pixels")
        if pieces > HEADER_PIECES:
            raise refusal(stream.called, SMALL_PIECES)
        stream.seek(here + length + 4)


def _check_tiff(stream: BudgetedReader) -> None:
    stream.tags = check_tags(stream, stream.called, MAX_TIFF_HEADER)


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
    # Turned already, the width may be the height.
    strip = min(pixels, tags.get(278, image.height) * max(image.size))
    unpacked = max(strip, tags.get(322, 0) * tags.get(323, 0)) * per_pixel
    turned = 4 * pixels if tags.get(ExifTags.Base.Orientation, 1) != 1 else 0
    return max(turned, unpacked if any(tile[0] == "libtiff" for tile in image.tile) else 0)


# By the first bytes: what is looked at before Pillow does, and the most bytes of a header.
GUARDS: dict[bytes, tuple[Callable[[BudgetedReader], None], int]] = {
    rb"\xff\xd8\xff": (_check_jpeg, MAX_HEADER),
    rb"\x89PNG": (_check_png, MAX_HEADER),
    rb"II|MM": (_check_tiff, MAX_TIFF_HEADER),
    rb"(?s)RIFF.{4}WEBP": (_check_nothing, MAX_WEBP),
    rb"": (_check_nothing, MAX_HEADER),
}
# By format: bytes that its decoder needs beside the pixels it makes.
BESIDE: dict[str, Callable[[Any, BudgetedReader], float]] = {
    "JPEG": _beside_jpeg,
    "MPO": _beside_jpeg,
    "TIFF": _beside_tiff,
    # Two canvases, and one of them copied.
    "WEBP": lambda image, stream: 12 * image.width * image.height,
}
