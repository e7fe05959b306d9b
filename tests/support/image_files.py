"""Image files, made by hand where Pillow does not write them."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
from PIL import Image

from vitviz.images.opening import open_image

RED, GREEN, BLUE, WHITE, BLACK = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255), (0, 0, 0)
QUADRANTS = (RED, GREEN, BLUE, BLACK)
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP")


# Files, made by hand where Pillow does not write them.


def quadrants(side: int = 16) -> Image.Image:
    """Red and green above blue and black."""
    array = np.zeros((2 * side, 2 * side, 3), np.uint8)
    array[:side, :side], array[:side, side:], array[side:, :side] = RED, GREEN, BLUE
    return Image.fromarray(array)


def encoded(image: Image.Image, format: str, **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, format, **options)
    return stream.getvalue()


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, depth: int, colour_type: int, row: bytes, *extra: bytes) -> bytes:
    """A PNG of equal rows."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour_type, 0, 0, 0))
    rows = chunk(b"IDAT", zlib.compress((b"\0" + row) * min(height, 64)))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(extra) + rows + chunk(b"IEND", b"")


def transparent(*colour: int) -> bytes:
    return chunk(b"tRNS", struct.pack(f">{len(colour)}H", *colour))


def tiff(width: int, height: int, bits: int, samples: int, kind: int, data: bytes) -> bytes:
    """An uncompressed little-endian TIFF; ``kind`` 1 is unsigned, 3 is floating point."""
    tags = [(256, 4, 1, width), (257, 4, 1, height), (258, 3, 1, bits), (259, 3, 1, 1), (262, 3, 1, min(samples, 2))]
    tags += [(273, 4, 1, 200), (277, 3, 1, samples), (278, 4, 1, height), (279, 4, 1, len(data)), (339, 3, 1, kind)]
    if samples == 3:
        tags[2] = (258, 3, 3, 180)
    entries = b"".join(struct.pack("<HHII", *tag) for tag in tags)
    head = b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + struct.pack("<I", 0)
    return head.ljust(180, b"\0") + struct.pack("<3H", bits, bits, bits).ljust(20, b"\0") + data


def tiff_of(array: np.ndarray, photometric: int, in_planes: bool = False, order: str = "<", **tags: object) -> bytes:
    """A TIFF of an array ``"height width channel"``, in one strip or one for each channel.

    Tags are ``compression``, a number: 8 is applied, and others are only stated; ``extra``, the kinds of further
    samples; and ``colours``, a colour map.
    """
    height, width, samples = array.shape
    compression, kind = int(tags.get("compression", 1)), {"u": 1, "i": 2, "f": 3}[array.dtype.kind]
    values = array.astype(array.dtype.newbyteorder(order))
    parts = [values[..., index].tobytes() for index in range(samples)] if in_planes else [values.tobytes()]
    parts = [zlib.compress(part) for part in parts] if compression == 8 else parts
    entries: dict[int, tuple[str, object]] = {
        256: ("I", [width]), 257: ("I", [height]), 258: ("H", [array.itemsize * 8] * samples),
        259: ("H", [compression]), 262: ("H", [photometric]), 273: ("I", [0] * len(parts)), 277: ("H", [samples]),
        278: ("I", [height]), 279: ("I", [len(part) for part in parts]), 284: ("H", [1 + in_planes]),
        320: ("H", tags.get("colours")), 338: ("H", tags.get("extra")), 339: ("H", [kind] * samples),
    }  # fmt: skip
    entries = {tag: entry for tag, entry in entries.items() if entry[1]}
    place = 8 + 2 + 12 * len(entries) + 4
    start = place + sum(len(values) * struct.calcsize(kind) for kind, values in entries.values())
    entries[273] = ("I", [start + sum(map(len, parts[:index])) for index in range(len(parts))])
    table, tail = b"", b""
    for tag, (kind, values) in entries.items():
        content = struct.pack(f"{order}{len(values)}{kind}", *values)
        table += struct.pack(order + "HHI", tag, 3 if kind == "H" else 4, len(values))
        table += content.ljust(4, b"\0") if len(content) <= 4 else struct.pack(order + "I", place + len(tail))
        tail += content * (len(content) > 4)
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(order + "IH", 8, len(entries))
    return (head + table + bytes(4) + tail).ljust(start, b"\0") + b"".join(parts)


def riff(*chunks: tuple[bytes, bytes]) -> bytes:
    body = b"".join(kind + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2) for kind, data in chunks)
    return b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WEBP" + body


def animated_webp(width: int, height: int) -> bytes:
    """One frame of 4×4 on a canvas of any size."""
    small = encoded(Image.new("RGB", (4, 4)), "WEBP", lossless=True)[12:]
    canvas = b"\x02\0\0\0" + struct.pack("<I", width - 1)[:3] + struct.pack("<I", height - 1)[:3]
    frame = bytes(6) + b"\x03\0\0" * 2 + b"\x64\0\0\0" + small
    return riff((b"VP8X", canvas), (b"ANIM", bytes(6)), (b"ANMF", frame))


def gif(screen: tuple[int, int], frame: tuple[int, int]) -> bytes:
    head = b"GIF89a" + struct.pack("<HHBBB", *screen, 0, 0, 0)
    return head + b"," + struct.pack("<HHHHB", 0, 0, *frame, 0) + b"\x02\x02\x4c\x01\x00;"


def bmp(width: int, height: int) -> bytes:
    return b"BM" + struct.pack("<IHHI", 54, 0, 0, 54) + struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, *[0] * 6)


def jpeg(width: int, height: int) -> bytes:
    """A small JPEG that claims another size."""
    data = bytearray(encoded(Image.new("RGB", (16, 16)), "JPEG"))
    offset = data.index(b"\xff\xc0") + 5
    data[offset : offset + 4] = struct.pack(">HH", height, width)
    return bytes(data)


def centres(image: Image.Image) -> list[tuple[int, ...]]:
    """The colours at the centres of the quadrants."""
    return [image.getpixel(point) for point in ((8, 8), (24, 8), (8, 24), (24, 24))]


def distance(found: object, expected: object) -> int:
    """The largest difference between two lists of colours, in levels of 8 bits."""
    assert len(found) == len(expected)
    return int(np.abs(np.subtract(found, expected, dtype=np.int64)).max())


def row_of(data: bytes) -> list[tuple[int, ...]]:
    image = open_image(data)
    return [image.getpixel((x, 0)) for x in range(image.width)]


def palette_image(transparency: object = None) -> Image.Image:
    """An image with a palette: index 0, 1, 2, 3 is red, green, blue, black."""
    image = Image.new("P", (4, 2))
    image.putpalette([*RED, *GREEN, *BLUE, *BLACK])
    image.putdata([0, 1, 2, 3] * 2)
    if transparency is not None:
        image.info["transparency"] = transparency
    return image


def row_image(mode: str, values: list[object]) -> Image.Image:
    image = Image.new(mode, (len(values), 2))
    for x, value in enumerate(values):
        for y in (0, 1):
            image.putpixel((x, y), value)
    return image


UPRIGHT = np.random.default_rng(0).integers(0, 256, (20, 36, 3), dtype=np.uint8)
# EXIF orientation: which sides of the picture the first row and the first column of the file are.
STORED = {
    1: lambda upright: upright,
    2: lambda upright: upright[:, ::-1],
    3: lambda upright: upright[::-1, ::-1],
    4: lambda upright: upright[::-1],
    5: lambda upright: upright.swapaxes(0, 1),
    6: lambda upright: upright.swapaxes(0, 1)[::-1],
    7: lambda upright: upright.swapaxes(0, 1)[::-1, ::-1],
    8: lambda upright: upright.swapaxes(0, 1)[:, ::-1],
}


def oriented_file(upright: np.ndarray, orientation: int, format: str, **options: object) -> bytes:
    """A file whose rows are stored in an EXIF orientation; for an unknown one they are stored upright."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = np.ascontiguousarray(STORED.get(orientation, STORED[1])(upright))
    return encoded(Image.fromarray(stored), format, exif=exif, **options)
