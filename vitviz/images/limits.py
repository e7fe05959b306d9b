"""Limits on what a picture file may cost to open: files crafted to take minutes or gigabytes are refused early.

Pillow itself bounds the pixels of a picture and the compressed texts of a PNG. :class:`BudgetedReader` bounds the bytes
and the number of reads. The other checks bound what Pillow makes of few bytes: numbers in tags and tables, scans of a
JPEG, and memory beside the pixels.
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

MAX_PIXELS = 64_000_000
# Peak bytes: the pixels, the decoder's own memory and the converted picture together.
MAX_MEMORY = 482_000_000
# Bytes that are no pixels. A WebP file is read whole before its size is known; a TIFF may carry an editor's layers.
MAX_HEADER, MAX_LARGE_HEADER = 2**24, 2**27
# Number of reads: of the header, and then of the pixels.
MAX_HEADER_READS, MAX_PIXEL_READS = 10_000, 1_000_000
# Numbers in the directories of a TIFF file, an EXIF block or an MPO index, or in a JPEG's tables.
MAX_NUMBERS = 150_000
# Pixels times scans: every scan of a JPEG visits all pixels.
MAX_SCANNED_PIXELS = 1_500_000_000
# Pillow decodes run-length encoded BMP files in Python, and PPM files of texts or whose white is not 255.
PYTHON_DECODERS, MAX_PYTHON_PIXELS = ("bmp_rle", "ppm", "ppm_plain"), 4_000_000
# Bytes to which Pillow unpacks each colour profile of a PNG, used or not.
PROFILE_BYTES = 2**22
# A decoder that needs more bytes starts over, so the file is fed in at most this many blocks.
MAX_BLOCKS = 16

# Bytes a pixel, by mode; all other modes take four.
PIXEL_BYTES = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16L": 2, "I;16B": 2, "I;16N": 2}
# JPEG markers: those without a body, of frames, the lowest, and single kinds.
BODILESS = (0x00, 0xC8, *range(0xD0, 0xDA), *range(0xF0, 0xFE))
FRAMES, PROGRESSIVE = set(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}, {0xC2, 0xC6, 0xCA, 0xCE}
FIRST, SCAN, QUANTISATION, EXIF, INDEX, PHOTOSHOP = 0xC0, 0xDA, 0xDB, 0xE1, 0xE2, 0xED
# Matches only the last byte of padding: matching all of it would take quadratic time.
MARKER = re.compile(rb"(?s)\xff([^\x00\xff])")
# The beginning of every scan that libjpeg accepts.
SCAN_HEAD = re.compile(rb"\xff\xda\x00(?:\x08\x01|\x0a\x02|\x0c\x03|\x0e\x04)")
# Pillow keeps tags of these types as one object. Offsets of strips and tiles become one object each.
SINGLE_OBJECT_TYPES, OFFSET_TAGS = (1, 2, 7), (273, 324)
READ_PIXELS = "to read for its pixels"
TOO_MANY_PIECES = "cut into too many small pieces"
# Pillow strips these one by one, and copies the rest each time.
EXIF_PREFIXES, MAX_EXIF_PREFIX_BYTES = re.compile(rb"(?:Exif\0\0)*"), 600
DIRECTORIES = (ExifTags.IFD.Exif, ExifTags.IFD.GPSInfo, ExifTags.IFD.Interop)


class BudgetedReader(io.BufferedReader):
    """A file with a budget of bytes and reads; exceeding it raises an :class:`ImageError`.

    Args:
        raw: the file.
        name: of the file in messages.
    """

    def __init__(self, raw: Any, name: str) -> None:
        super().__init__(raw)
        self.label = name
        # How often a JPEG decoder visits all pixels, and where its first scan begins.
        self.scans, self.scan_start = 1, 0
        # Of a colour in a JPEG.
        self.bits = 8
        self._end = b""
        self.size = self.seek(0, io.SEEK_END)
        self.seek(0)
        self.allow(MAX_HEADER_READS, MAX_HEADER)

    def allow(self, reads: int, nbytes: int, purpose: str = "beside its pixels") -> None:
        """Set the budget of reads and bytes from here on."""
        self._reads_left, self._bytes_left, self._budget_bytes, self._purpose = reads, nbytes, nbytes, purpose
        # Whether more was asked for than there is.
        self.is_exhausted = False

    def end_with(self, end: bytes) -> None:
        """Continue the file with a few bytes, with a new budget for its pixels."""
        self._end = end
        self.allow(MAX_PIXEL_READS, 2 * self.size + MAX_HEADER, READ_PIXELS)

    @property
    def used(self) -> int:
        """Bytes read since the last :meth:`allow`."""
        return self._budget_bytes - self._bytes_left

    def read(self, size: int | None = -1, /) -> bytes:
        limit = self._bytes_left + 1
        data = super().read(limit if size is None or size < 0 else min(size, limit))
        if not data:
            data, self._end = self._end, b""
            self.is_exhausted = size != 0
        self._reads_left -= 1
        self._bytes_left -= len(data)
        if self._bytes_left < 0:
            raise refusal(self.label, f"more than {self._budget_bytes:,} bytes {self._purpose}")
        if self._reads_left < 0:
            raise refusal(self.label, TOO_MANY_PIECES)
        return data


def refusal(name: str, problem: str) -> ImageError:
    """The error for a file that would cost too much."""
    return ImageError(f"{name}: {problem}; expected a picture that opens in little time and memory")


def check_header(stream: BudgetedReader) -> None:
    """Refuse a file whose header alone would take Pillow too long; rewinds the stream.

    Raises:
        ImageError: the header takes too long.
    """
    start = stream.read(16)
    stream.seek(0)
    check, max_header = next(
        (guard for signature, guard in GUARDS.items() if re.match(signature, start)), (None, MAX_HEADER)
    )
    if check is not None:
        stream.allow(MAX_PIXEL_READS, stream.size + MAX_HEADER)
        check(stream)
        stream.seek(0)
    stream.allow(MAX_HEADER_READS, max_header)


def check_pixels(image: Image.Image, stream: BudgetedReader, full_size: tuple[int, int]) -> None:
    """Refuse an image with a read header whose pixels would take too long or too much memory to decode.

    Args:
        image: which may be reduced while it is decoded.
        stream: its file.
        full_size: width and height in the file.

    Raises:
        ImageError: they would.
    """
    # Pillow reads the tags of a TIFF file a second time, for its EXIF block.
    pixels, full_pixels = image.width * image.height, math.prod(full_size)
    header = stream.used * (2 if image.format == "TIFF" else 1)
    stream.allow(MAX_PIXEL_READS, 2 * stream.size + MAX_HEADER, READ_PIXELS)
    if isinstance(image, ImageFile.ImageFile):
        image.decodermaxblock = max(image.decodermaxblock, stream.size // MAX_BLOCKS)
    size = f"{full_size[0]}×{full_size[1]} pixels"
    if full_pixels * stream.scans > MAX_SCANNED_PIXELS:
        raise refusal(stream.label, f"{size} in {stream.scans:,} scans")
    if pixels > MAX_PYTHON_PIXELS and any(tile[0] in PYTHON_DECODERS for tile in getattr(image, "tile", ())):
        coding = "run-length encoded" if image.format == "BMP" else "not in bytes of 0 to 255"
        raise refusal(stream.label, f"{size}, {coding}, of which at most {MAX_PYTHON_PIXELS:,} are opened")
    decoder_bytes = DECODER_BYTES.get(image.format or "")
    result = 0 if image.mode == "RGB" else 4 * pixels
    decoded = decoder_bytes(image, stream) * full_pixels / pixels if decoder_bytes and pixels else 0
    check_memory(image, stream.label, max(decoded, result) + header)


def check_memory(image: Image.Image, name: str, extra_bytes: float) -> None:
    """Refuse a picture whose pixels and ``extra_bytes`` together exceed :data:`MAX_MEMORY`.

    Raises:
        ImageError: they do.
    """
    needed = PIXEL_BYTES.get(image.mode, 4) * image.width * image.height + extra_bytes
    if needed > MAX_MEMORY:
        problem = f"{image.width}×{image.height} pixels, {image.format} {image.mode}, would take {needed / 1e6:,.0f} MB"
        raise refusal(name, f"{problem} of memory, of which at most {MAX_MEMORY / 1e6:,.0f} MB are taken")


def check_exif(block: bytes, name: str) -> None:
    """Refuse an EXIF block that Pillow would unpack into too many numbers.

    Raises:
        ImageError: it has too many numbers or prefixes.
    """
    start = next(EXIF_PREFIXES.finditer(block)).end()
    if start > MAX_EXIF_PREFIX_BYTES:
        raise refusal(name, TOO_MANY_PIECES)
    _check_tags(BudgetedReader(io.BytesIO(block[start:]), name))


def _check_tags(file: BudgetedReader) -> None:
    """Refuse a TIFF file, EXIF block or MPO index whose tags Pillow would unpack into too many numbers."""
    head = file.read(8)
    if head[2:3] == b"+":
        head += file.read(8)
    # Pillow skips or reports damaged tags itself.
    damage = suppress(SyntaxError, ValueError, OverflowError, IndexError, struct.error)
    pending: list[int] = []
    with damage:
        pending.append(ImageFileDirectory_v2(head).next)
    visited: set[int] = set()
    numbers = 0
    while pending:
        start = pending.pop()
        if start in visited:
            continue
        visited.add(start)
        directory = ImageFileDirectory_v2(head)
        with damage:
            file.seek(start)
            directory.load(file)
        # directory.load only slices the tags; Pillow unpacks each on access.
        for tag, data in directory._tagdata.items():
            kind = directory.tagtype[tag]
            size, _ = directory._load_dispatch[kind]
            numbers += 1 if kind in SINGLE_OBJECT_TYPES and tag not in OFFSET_TAGS else len(data) // size
        _check_numbers(numbers, file.label)
        with damage:
            pending += [offset for offset in map(directory.get, DIRECTORIES) if isinstance(offset, int)]


def _check_numbers(count: int, name: str) -> None:
    if count > MAX_NUMBERS:
        raise refusal(name, f"more than {MAX_NUMBERS:,} numbers beside its pixels")


def _check_jpeg(stream: BudgetedReader) -> None:
    """Check what Pillow unpacks at once (EXIF block, MPO index, Photoshop's entries, tables), and count the scans."""
    exif, index = [], b""
    components, is_progressive, numbers = 0, False, 0
    for marker, body, start in _segments(stream.read(MAX_HEADER)):
        if marker in FRAMES or marker == QUANTISATION:
            numbers += len(body)
        elif marker == PHOTOSHOP:
            numbers += body.count(b"8BIM")
        elif marker == EXIF and body.startswith(b"Exif\0\0"):
            exif.append(body[6:])
        elif marker == INDEX and body.startswith(b"MPF\0"):
            index = body[4:]
        if marker in FRAMES and len(body) > 5:
            stream.bits, components, is_progressive = body[0], body[5], marker in PROGRESSIVE
        if marker == SCAN:
            stream.scan_start = start
        if marker == SCAN and (is_progressive or body[:1] != bytes([components])):
            stream.seek(0)
            # Scans of further pictures in the file count as well.
            blocks = iter(lambda: stream.read(2**20), b"")
            stream.scans = sum(len(SCAN_HEAD.findall(block)) for block in blocks)
    _check_numbers(numbers, stream.label)
    check_exif(b"".join(exif), stream.label)
    _check_tags(BudgetedReader(io.BytesIO(index), stream.label))


def _segments(header: bytes) -> Iterator[tuple[int, bytes, int]]:
    """Marker, body and place of every segment that Pillow reads."""
    position = 2
    # Pillow reads each segment at least once, so the reader refuses files with more of them.
    for _ in range(MAX_HEADER_READS):
        match = MARKER.search(header, position)
        marker = match[1][0] if match else 0
        if match is None or (marker < FIRST and marker not in BODILESS):
            return
        position = match.end()
        if marker not in BODILESS:
            length = int.from_bytes(header[position : position + 2], "big")
            yield marker, header[position + 2 : position + length], position - 2
            position += max(2, length)
        if marker == SCAN:
            return


def _check_png(stream: BudgetedReader) -> None:
    """Check the chunks that are not pixels; Pillow keeps even those behind the pixels."""
    position, pixels, size, chunks = 8, 0, 0, 0
    stream.seek(position)
    while len(head := stream.read(8)) == 8:
        length, kind = struct.unpack(">I4s", head)
        position += 12 + length
        # Pillow itself reports a truncated file.
        if kind == b"IEND" or position > stream.size:
            return
        if kind == b"IHDR":
            pixels = math.prod(struct.unpack(">II", stream.read(8)))
        # Pillow allocates a second frame of an animation while it reads the header.
        if kind == b"fcTL" and 12 * pixels > MAX_MEMORY:
            raise refusal(stream.label, f"an animation of {pixels:,} pixels")
        if kind != b"IDAT":
            size, chunks = size + max(length, PROFILE_BYTES if kind == b"iCCP" else 0), chunks + 1
        if size > MAX_HEADER:
            raise refusal(stream.label, f"more than {MAX_HEADER:,} bytes beside its pixels")
        if chunks > MAX_HEADER_READS:
            raise refusal(stream.label, TOO_MANY_PIECES)
        stream.seek(position)


def _check_tiff(stream: BudgetedReader) -> None:
    stream.allow(MAX_HEADER_READS, MAX_LARGE_HEADER)
    _check_tags(stream)


def _jpeg_decoder_bytes(image: Any, stream: BudgetedReader) -> float:
    """Bytes of all coefficients, which a decoder keeps if there is more than one scan."""
    sampling = [(across, down) for _, across, down, _ in image.layer]
    largest = max(across for across, _ in sampling) * max(down for _, down in sampling)
    coefficients = image.width * image.height * sum(across * down for across, down in sampling) / max(1, largest)
    return 2 * coefficients if stream.scans > 1 else 0


def _tiff_decoder_bytes(image: Any, stream: BudgetedReader) -> float:
    """Bytes of the largest strip or tile if libtiff unpacks it, or of the picture before it is turned."""
    tags, pixels = image.tag_v2, image.width * image.height
    bits = tags.get(258, (1,))
    per_pixel = max(4, sum(bits) * (tags.get(277, 1) if len(bits) == 1 else 1) / 8)
    # Pillow may have swapped width and height already.
    strip = min(pixels, tags.get(278, image.height) * max(image.size))
    unpacked = max(strip, tags.get(322, 0) * tags.get(323, 0)) * per_pixel
    turned = 4 * pixels if tags.get(ExifTags.Base.Orientation, 1) != 1 else 0
    return max(turned, unpacked if any(tile[0] == "libtiff" for tile in image.tile) else 0)


def _planes_bytes(image: Any, stream: BudgetedReader) -> float:
    return 5 * image.width * image.height


# By signature: the check before Pillow opens the file, and the limit of header bytes.
GUARDS: dict[bytes, tuple[Callable[[BudgetedReader], None] | None, int]] = {
    rb"\xff\xd8\xff": (_check_jpeg, MAX_HEADER),
    rb"\x89PNG": (_check_png, MAX_HEADER),
    rb"II|MM": (_check_tiff, MAX_LARGE_HEADER),
    rb"(?s)RIFF.{4}WEBP|.{4}ftyp": (None, MAX_LARGE_HEADER),
}
# By format: bytes that the decoder needs beside its output.
DECODER_BYTES: dict[str, Callable[[Any, BudgetedReader], float]] = {
    "JPEG": _jpeg_decoder_bytes,
    "MPO": _jpeg_decoder_bytes,
    "TIFF": _tiff_decoder_bytes,
    # Two canvases and a copy of one.
    "WEBP": lambda image, stream: 12 * image.width * image.height,
    # The decoded planes, and the pixels as bytes.
    "AVIF": _planes_bytes,
    # Deep ones are converted from 16 bits a channel.
    "HEIF": lambda image, stream: (3 if image.info["bit_depth"] <= 8 else 9) * image.width * image.height,
}
