"""Files, pictures and arrays become upright RGB, or one clear error."""

from __future__ import annotations

import gc
import io
import math
import re
import struct
import threading
import time
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile, WebPImagePlugin

from vitviz.errors.kinds import ImageError
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
    at = data.index(b"\xff\xc0") + 5
    data[at : at + 4] = struct.pack(">HH", height, width)
    return bytes(data)


def centres(image: Image.Image) -> list[tuple[int, ...]]:
    """The colours in the middle of the quadrants."""
    return [image.getpixel(place) for place in ((8, 8), (24, 8), (8, 24), (24, 24))]


def distance(found: object, expected: object) -> int:
    """The largest difference of two lists of colours, in levels of 8 bits."""
    assert len(found) == len(expected)
    return int(np.abs(np.subtract(found, expected, dtype=np.int64)).max())


def row_of(data: bytes) -> list[tuple[int, ...]]:
    opened = open_image(data)
    return [opened.getpixel((x, 0)) for x in range(opened.width)]


# What files become.

BEST = {"quality": 100, "subsampling": 0}


def moving() -> dict[str, object]:
    """A white second frame; anew for every file, for Pillow leaves its encoder's settings on it."""
    return {"save_all": True, "append_images": [Image.new("RGB", (32, 32), "white")]}


FILES = {
    "photo.jpg": ("JPEG", BEST, 3),
    "progressive.jpeg": ("JPEG", {**BEST, "progressive": True}, 3),
    "phone.jpg": ("MPO", {**BEST, **moving()}, 3),
    "drawing.png": ("PNG", {}, 0),
    "moving.png": ("PNG", moving(), 0),
    "lossless.webp": ("WEBP", {"lossless": True}, 0),
    "lossy.webp": ("WEBP", {"quality": 100}, 12),
    "moving.webp": ("WEBP", {"lossless": True, **moving()}, 0),
    "picture.gif": ("GIF", {}, 0),
    "moving.gif": ("GIF", moving(), 0),
    "scan.tif": ("TIFF", {}, 0),
    "packed.tiff": ("TIFF", {"compression": "tiff_lzw"}, 0),
    "pages.tiff": ("TIFF", moving(), 0),
    "old.bmp": ("BMP", {}, 0),
}


@pytest.mark.parametrize("name", FILES)
def test_every_format_gives_its_colours_as_path_and_as_bytes(name: str, tmp_path: Path) -> None:
    format, options, tolerance = FILES[name]
    data = encoded(quadrants(), format, **options)
    (tmp_path / name).write_bytes(data)
    for source in (tmp_path / name, str(tmp_path / name), data):
        opened = open_image(source)
        assert (opened.mode, opened.size) == ("RGB", (32, 32))
        assert distance(centres(opened), QUADRANTS) <= tolerance


def palette_image(transparency: object = None) -> Image.Image:
    """Index 0, 1, 2, 3: red, green, blue, black."""
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


def big_endian_tiff() -> bytes:
    array = np.array([[0, 100 * 257, 65535]] * 2, ">u2")
    return encoded(Image.frombytes("I;16B", (3, 2), array.tobytes()), "TIFF")


def grey(*values: int) -> list[tuple[int, int, int]]:
    return [(value, value, value) for value in values]


COLOURS = bytes([*RED, *GREEN, *BLUE, *BLACK])
DEEP = struct.pack("<6H", 65535, 0, 0, 25700, 51400, 0)
INKS = row_image("CMYK", [(0, 255, 255, 0), (255, 255, 0, 0), (0, 0, 0, 255)])
MODES = {
    "palette PNG": (encoded(palette_image(), "PNG"), QUADRANTS),
    "palette GIF": (encoded(palette_image(), "GIF"), QUADRANTS),
    "palette BMP": (encoded(palette_image(), "BMP"), QUADRANTS),
    "palette TIFF": (encoded(palette_image(), "TIFF"), QUADRANTS),
    "palette PNG of 2 bits": (png(4, 2, 2, 3, b"\x1b", chunk(b"PLTE", COLOURS)), QUADRANTS),
    "grey PNG": (encoded(row_image("L", [0, 77, 255]), "PNG"), grey(0, 77, 255)),
    "grey TIFF": (encoded(row_image("L", [0, 77, 255]), "TIFF"), grey(0, 77, 255)),
    "grey PNG of 2 bits": (png(4, 2, 2, 0, b"\x1b"), grey(0, 85, 170, 255)),
    "grey PNG of 4 bits": (png(2, 2, 4, 0, b"\x3f"), grey(51, 255)),
    "1-bit PNG": (encoded(row_image("1", [0, 255, 0]), "PNG"), grey(0, 255, 0)),
    "1-bit TIFF": (encoded(row_image("1", [0, 255, 0]), "TIFF", compression="group4"), grey(0, 255, 0)),
    "1-bit BMP": (encoded(row_image("1", [0, 255, 0]), "BMP"), grey(0, 255, 0)),
    "16-bit grey PNG": (png(4, 2, 16, 0, struct.pack(">4H", 0, 25700, 128, 65535)), grey(0, 100, 0, 255)),
    "16-bit grey PNG, rounded": (png(2, 2, 16, 0, struct.pack(">2H", 129, 65406)), grey(1, 254)),
    "16-bit grey TIFF": (encoded(row_image("I;16", [0, 25700, 65535]), "TIFF"), grey(0, 100, 255)),
    "16-bit big-endian TIFF": (big_endian_tiff(), grey(0, 100, 255)),
    "32-bit integer TIFF": (encoded(row_image("I", [0, 25700, 65535]), "TIFF"), grey(0, 100, 255)),
    "float TIFF": (encoded(row_image("F", [0.0, 0.2, 0.5, 1.0]), "TIFF"), grey(0, 51, 128, 255)),
    "16-bit RGB PNG": (png(2, 2, 16, 2, struct.pack(">6H", *struct.unpack("<6H", DEEP))), (RED, (100, 200, 0))),
    "16-bit RGB TIFF": (tiff(2, 2, 16, 3, 1, DEEP * 2), (RED, (100, 200, 0))),
    "CMYK TIFF": (encoded(INKS, "TIFF"), (RED, BLUE, BLACK)),
}


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_of_a_file_gives_its_colours(mode: str) -> None:
    data, expected = MODES[mode]
    assert row_of(data) == list(expected)


def test_cmyk_jpeg_keeps_its_colours() -> None:
    data = encoded(quadrants().convert("CMYK"), "JPEG", quality=100)
    assert distance(centres(open_image(data)), QUADRANTS) <= 5


@pytest.mark.parametrize("mode", ["RGB", "RGBX", "CMYK", "YCbCr", "HSV", "LAB", "P", "RGBA", "RGBa"])
def test_every_colour_mode_of_a_pil_image_gives_its_colours(mode: str) -> None:
    source = quadrants().convert("RGBA" if mode == "RGBa" else "RGB").convert(mode)
    opened = open_image(source)
    assert opened.mode == "RGB"
    # Eight bits of LAB do not hold a saturated colour exactly.
    assert distance(centres(opened), QUADRANTS) <= (25 if mode == "LAB" else 2)


# Alpha.

FADING = row_image("RGBA", [(255, 0, 0, 255), (255, 0, 0, 128), (0, 0, 0, 0)])
FADED = (RED, (255, 127, 127), WHITE)
FADING_GREY = row_image("LA", [(200, 255), (0, 128), (0, 0)])
DEEP_RGB = (0x1234, 0x5678, 0x9ABC)
ALPHA = {
    "RGBA PNG": (encoded(FADING, "PNG"), FADED),
    "RGBA WebP": (encoded(FADING, "WEBP", lossless=True, exact=True), FADED),
    "RGBA TIFF": (encoded(FADING, "TIFF"), FADED),
    "16-bit RGBA PNG": (png(2, 2, 16, 6, struct.pack(">8H", 65535, 0, 0, 0x8080, 0, 0, 0, 0)), FADED[1:]),
    "LA PNG": (encoded(FADING_GREY, "PNG"), grey(200, 127, 255)),
    "16-bit LA PNG": (png(2, 2, 16, 4, struct.pack(">4H", 0, 0x8080, 0, 0)), grey(127, 255)),
    "palette PNG with alphas": (
        encoded(palette_image(), "PNG", transparency=bytes([255, 0, 255, 128])),
        (RED, WHITE, BLUE, (127, 127, 127)),
    ),
    "palette GIF with one colour": (encoded(palette_image(), "GIF", transparency=1), (RED, WHITE, BLUE, BLACK)),
    "RGB PNG with one colour": (
        png(2, 2, 8, 2, bytes([1, 2, 3, 4, 5, 6]), transparent(1, 2, 3)),
        (WHITE, (4, 5, 6)),
    ),
    "16-bit RGB PNG with one colour": (
        png(2, 2, 16, 2, struct.pack(">6H", *DEEP_RGB, 256, 512, 768), transparent(*DEEP_RGB)),
        (WHITE, (1, 2, 3)),
    ),
    "grey PNG with one colour": (png(2, 2, 8, 0, bytes([10, 20]), transparent(10)), grey(255, 20)),
    "grey PNG of 1 bit with black": (png(4, 2, 1, 0, b"\x50", transparent(0)), grey(255, 255, 255, 255)),
    "grey PNG of 2 bits with one colour": (png(4, 2, 2, 0, b"\x1b", transparent(1)), grey(0, 255, 170, 255)),
    "grey PNG of 4 bits with one colour": (png(2, 2, 4, 0, b"\x3a", transparent(3)), grey(255, 170)),
    "16-bit grey PNG with one colour": (
        png(3, 2, 16, 0, struct.pack(">3H", 1000, 1001, 25700), transparent(1000)),
        grey(255, 4, 100),
    ),
}


@pytest.mark.parametrize("kind", ALPHA)
def test_alpha_of_a_file_is_composited_on_white(kind: str) -> None:
    data, expected = ALPHA[kind]
    assert distance(row_of(data), expected) <= 1


def rgba_palette_image() -> Image.Image:
    image = Image.new("P", (3, 2))
    image.putpalette([255, 0, 0, 255, 255, 0, 0, 128, 0, 0, 0, 0], "RGBA")
    image.putdata([0, 1, 2] * 2)
    return image


def pa_image() -> Image.Image:
    image = Image.new("PA", (3, 2))
    image.putpalette([*BLACK, *RED])
    for x, pixel in enumerate([(1, 255), (1, 128), (0, 0)]):
        image.paste(pixel, (x, 0, x + 1, 2))
    return image


ALPHA_IMAGES = {
    "RGBA": (FADING, FADED),
    "RGBa": (FADING.convert("RGBa"), FADED),
    "LA": (FADING_GREY, grey(200, 127, 255)),
    "La": (row_image("La", [(200, 255), (0, 128), (0, 0)]), grey(200, 127, 255)),
    "PA": (pa_image(), FADED),
    "P with an RGBA palette": (rgba_palette_image(), FADED),
    "P with one colour": (palette_image(2), (RED, GREEN, WHITE, BLACK)),
    "P with alphas": (palette_image(bytes([0, 255, 255, 255])), (WHITE, GREEN, BLUE, BLACK)),
}


@pytest.mark.parametrize("kind", ALPHA_IMAGES)
def test_alpha_of_a_pil_image_is_composited_on_white(kind: str) -> None:
    image, expected = ALPHA_IMAGES[kind]
    opened = open_image(image)
    assert opened.mode == "RGB"
    assert distance([opened.getpixel((x, 0)) for x in range(opened.width)], expected) <= 1


# Orientation.

UPRIGHT = np.random.default_rng(0).integers(0, 256, (20, 36, 3), dtype=np.uint8)
# The EXIF standard says which side of the picture the first row and the first column of the file are.
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


def turned(upright: np.ndarray, orientation: int, format: str, **options: object) -> bytes:
    """A file whose rows lie as ``orientation`` says; one that does not exist is written over upright rows."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = np.ascontiguousarray(STORED.get(orientation, STORED[1])(upright))
    return encoded(Image.fromarray(stored), format, exif=exif, **options)


@pytest.mark.parametrize("format", ["PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", [*STORED, 0, 9])
def test_exif_orientation_is_followed_and_an_unknown_one_ignored(orientation: int, format: str) -> None:
    data = turned(UPRIGHT, orientation, format, **({"lossless": True} if format == "WEBP" else {}))
    assert np.array_equal(open_image(data), UPRIGHT)
    assert np.array_equal(open_image(Image.open(io.BytesIO(data))), UPRIGHT)


@pytest.mark.parametrize("orientation", STORED)
def test_exif_orientation_of_a_jpeg_puts_the_marked_corner_at_its_place(orientation: int) -> None:
    upright = np.full((32, 64, 3), 255, np.uint8)
    upright[:16, :16] = RED
    opened = open_image(turned(upright, orientation, "JPEG", quality=95))
    assert opened.size == (64, 32)
    corners = [opened.getpixel(place) for place in ((5, 5), (58, 5), (5, 26), (58, 26))]
    assert distance(corners, (RED, WHITE, WHITE, WHITE)) <= 12


def test_an_opened_image_is_not_turned_again() -> None:
    once = open_image(turned(UPRIGHT, 6, "PNG"))
    assert np.array_equal(open_image(once), UPRIGHT)
    assert once.info == {}


@pytest.mark.parametrize(
    "damage", [b"Exif\0\0", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0nonsense", b"Exif\0\0MM\0*\0\0\0\x08\0\x09"]
)
def test_a_damaged_exif_block_does_not_hide_the_picture(damage: bytes) -> None:
    image = Image.fromarray(UPRIGHT)
    assert np.array_equal(open_image(encoded(image, "PNG", exif=damage)), UPRIGHT)
    assert open_image(encoded(image, "JPEG", exif=damage)).size == image.size


def test_orientation_is_followed_where_the_rest_of_exif_cannot_be_written_again() -> None:
    # The camera's maker note is cut short: reading gives the orientation, writing raises.
    tags = struct.pack("<HHII", 0x0112, 3, 1, 6) + struct.pack("<HHII", 0x011A, 5, 1, 9999)
    exif = b"Exif\0\0II*\0" + struct.pack("<IH", 8, 2) + tags + bytes(4)
    stored = Image.fromarray(np.ascontiguousarray(STORED[6](UPRIGHT)))
    assert np.array_equal(open_image(encoded(stored, "PNG", exif=exif)), UPRIGHT)


# Arrays.

PIXELS = np.random.default_rng(1).integers(0, 256, (6, 9, 3), dtype=np.uint8)
OPAQUE = np.concatenate([PIXELS, np.full((6, 9, 1), 255, np.uint8)], axis=2)


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (PIXELS, PIXELS),
        (PIXELS[:, ::-1], PIXELS[:, ::-1]),
        (PIXELS[..., 0], PIXELS[..., [0, 0, 0]]),
        (PIXELS[..., :1], PIXELS[..., [0, 0, 0]]),
        (OPAQUE, PIXELS),
        (np.dstack([PIXELS, np.zeros((6, 9), np.uint8)]), np.full_like(PIXELS, 255)),
        (PIXELS / 255, PIXELS),
        ((PIXELS / 255).astype(np.float32), PIXELS),
        (np.full((4, 4), 0.0686, np.float16), np.full((4, 4, 3), 17)),
        (np.full((4, 4, 3), 0.998, np.float32), np.full((4, 4, 3), 254)),
    ],
)
def test_arrays_become_their_picture(array: np.ndarray, expected: np.ndarray) -> None:
    assert np.array_equal(open_image(array), expected)


@pytest.mark.parametrize(
    ("array", "phrases"),
    [
        (np.zeros(5), ["(5,)", "'height width channel'"]),
        (np.zeros((2, 3, 4, 3)), ["(2, 3, 4, 3)", "'height width channel'"]),
        (np.zeros((3, 8, 8)), ["(3, 8, 8)", "1, 3 or 4 channels"]),
        (np.zeros((0, 8, 3), np.uint8), ["(0, 8, 3)"]),
        (np.zeros((8, 8), np.int64), ["int64", "uint8 in [0, 255]", "floating point in [0, 1]"]),
        (np.zeros((8, 8), bool), ["bool", "uint8 in [0, 255]"]),
        (np.full((8, 8), 255.0), ["float64", "from 255 to 255", "[0, 1]"]),
        (np.full((8, 8), -0.1), ["from -0.1", "[0, 1]"]),
        (np.array([[0.0, np.nan], [0.5, 1.0]]), ["nan", "[0, 1]"]),
        (np.zeros((1, 8), np.uint8), ["8×1 pixels", "2×2"]),
        (np.broadcast_to(np.float64(0), (10_000, 10_000)), ["10000×10000 pixels", "64,000,000"]),
    ],
)
def test_arrays_that_are_no_picture_are_refused(array: np.ndarray, phrases: list[str]) -> None:
    with pytest.raises(ImageError) as refusal:
        open_image(array)
    assert all(phrase in str(refusal.value) for phrase in phrases), str(refusal.value)


# What may not change.


@pytest.mark.parametrize("array", [PIXELS, OPAQUE, PIXELS[..., 0], PIXELS / 255], ids=["RGB", "RGBA", "L", "float"])
def test_the_callers_array_is_untouched(array: np.ndarray) -> None:
    array = array.copy()
    before = array.copy()
    opened = open_image(array)
    opened.paste((1, 2, 3), (0, 0, *opened.size))
    assert np.array_equal(array, before)


@pytest.mark.parametrize(
    "image",
    [
        quadrants(),
        quadrants().convert("L"),
        row_image("RGBA", [(9, 8, 7, 6), (1, 2, 3, 0)]),
        palette_image(1),
        palette_image(bytes([0, 9, 255, 255])),
        row_image("I;16", [0, 1000]),
        row_image("F", [0.0, 0.5]),
        Image.open(io.BytesIO(turned(UPRIGHT, 6, "PNG"))),
        Image.open(io.BytesIO(png(4, 2, 2, 0, b"\x1b", transparent(1)))),
    ],
    ids=["RGB", "L", "RGBA", "P", "P alphas", "I;16", "F", "EXIF", "tRNS"],
)
def test_the_callers_picture_is_untouched(image: Image.Image) -> None:
    image.load()
    before = image.mode, image.size, image.tobytes(), dict(image.info), image.getpalette()
    opened = open_image(image)
    assert opened is not image
    opened.paste((1, 2, 3), (0, 0, *opened.size))
    opened.info["note"] = "mine"
    assert (image.mode, image.size, image.tobytes(), dict(image.info), image.getpalette()) == before


def test_the_file_is_closed_and_the_image_lives_on(tmp_path: Path) -> None:
    path = tmp_path / "cat.png"
    quadrants().save(path)
    # What other tests left behind is not this one's.
    gc.collect()
    with warnings.catch_warnings(record=True) as leaked:
        warnings.simplefilter("always")
        opened = open_image(path)
        gc.collect()
    assert [str(warning.message) for warning in leaked] == []
    path.unlink()
    assert opened.getpixel((24, 8)) == GREEN


# Bombs.

BOMBS = {
    "big.png": (png(100_000, 100_000, 8, 2, bytes(30)), "10,000,000,000"),
    "medium.png": (png(12_000, 8_000, 8, 2, bytes(30)), "12000×8000"),
    "little.png": (png(8_001, 8_000, 8, 0, bytes(30)), "8001×8000"),
    "screen.gif": (gif((65_535, 65_535), (4, 4)), "4,294,836,225"),
    "frame.gif": (gif((4, 4), (12_000, 12_000)), "12000×12000"),
    "big.tif": (tiff(100_000, 100_000, 8, 1, 1, bytes(30)), "10,000,000,000"),
    "medium.tif": (tiff(12_000, 12_000, 8, 1, 1, bytes(30)), "12000×12000"),
    "still.webp": (riff((b"VP8L", b"\x2f" + struct.pack("<I", 16_383 | 16_383 << 14) + bytes(20))), "268,435,456"),
    "moving.webp": (animated_webp(12_000, 12_000), "12000×12000"),
    "big.bmp": (bmp(100_000, 100_000), "10,000,000,000"),
    "medium.bmp": (bmp(10_000, 10_000), "10000×10000"),
    "big.jpg": (jpeg(65_000, 65_000), "4,225,000,000"),
    "medium.jpg": (jpeg(9_000, 9_000), "9000×9000"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_at_once_and_never_decoded(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, found = BOMBS[name]
    (tmp_path / name).write_bytes(data)
    decoded = []
    for plugin in (ImageFile.ImageFile, WebPImagePlugin.WebPImageFile):
        monkeypatch.setattr(plugin, "load", lambda image: decoded.append(image))
    start = time.perf_counter()
    with pytest.raises(ImageError, match=f"^{re.escape(name)}: {found} pixels; at most 64,000,000 are opened$"):
        open_image(tmp_path / name)
    assert time.perf_counter() - start < 1
    assert not decoded


def test_the_largest_permitted_header_is_not_called_a_bomb() -> None:
    with pytest.raises(ImageError, match="damaged or cut short PNG"):
        open_image(png(8_000, 8_000, 8, 0, bytes(30)))


# Files that are no images.

HTML = b"<!DOCTYPE html>\n<html><body><svg></svg>404</body></html>"
SVG = b'<?xml version="1.0"?>\n<!-- drawn -->\n<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1"/>'
WRONG = {
    "empty.jpg": (b"", "an empty file"),
    "page.jpg": (HTML, "an HTML page"),
    "bare.png": (b"\xef\xbb\xbf<html></html>", "an HTML page"),
    "drawing.svg": (SVG, "an SVG drawing"),
    "drawing.png": (b'<svg width="3"></svg>', "an SVG drawing"),
    "notes.txt": (b"no picture at all\n", "a text file"),
    "data.xml": (b"<?xml version='1.0'?><a/>", "a text file"),
    "paper.jpg": (b"%PDF-1.7\n...", "a PDF document"),
    "IMG_0001.HEIC": (b"\0\0\0\x18ftypheic\0\0\0\0", "a HEIC photo"),
    "new.avif": (b"\0\0\0\x18ftypavif\0\0\0\0", "an AVIF image"),
    "clip.mp4": (b"\0\0\0\x18ftypisom\0\0\0\0", "a video"),
    "many.zip": (b"PK\x03\x04" + bytes(40), "a ZIP archive"),
    "noise.png": (bytes(range(128, 256)), "not an image"),
    "head.png": (b"\x89PNG\r\n\x1a\n", "a PNG file with a damaged header"),
    "head.jpg": (b"\xff\xd8\xff\xe0\0", "a JPEG file with a damaged header"),
    "head.gif": (b"GIF89a\x01", "a GIF file with a damaged header"),
    "head.bmp": (b"BM\0\0", "a BMP file with a damaged header"),
    "layers.psd": (b"8BPS" + bytes(60), "not an image"),
    "rare.tif": (tiff(2, 2, 32, 3, 3, bytes(48)), "a TIFF file with a damaged header or of a rare kind"),
    "deep.tif": (encoded(row_image("I", [0, 70_000]), "TIFF"), "greyscale values from 0 to 70000; expected 0 to 65535"),
    "below.tif": (encoded(row_image("I", [-1, 70]), "TIFF"), "greyscale values from -1 to 70; expected 0 to 65535"),
    "bright.tif": (encoded(row_image("F", [0.0, 1.5]), "TIFF"), "greyscale values from 0 to 1.5; expected 0 to 1"),
    "hole.tif": (encoded(row_image("F", [0.0, math.nan]), "TIFF"), "greyscale values from nan"),
    "dot.png": (encoded(Image.new("RGB", (1, 1)), "PNG"), "1×1 pixels; expected at least 2×2"),
    "line.gif": (encoded(Image.new("L", (9, 1)), "GIF"), "9×1 pixels; expected at least 2×2"),
}


def refusal_of(path: Path) -> str:
    with pytest.raises(ImageError) as refusal:
        open_image(path)
    message = str(refusal.value)
    assert message.startswith(f"{path.name}: ")
    assert str(path.parent) not in message
    assert "expected" in message
    assert "\n" not in message
    return message


@pytest.mark.parametrize("name", WRONG)
def test_a_file_that_is_no_image_is_named_with_what_it_is(name: str, tmp_path: Path) -> None:
    data, found = WRONG[name]
    (tmp_path / name).write_bytes(data)
    assert found in refusal_of(tmp_path / name)


@pytest.mark.parametrize("name", ["empty.jpg", "page.jpg", "notes.txt", "noise.png"])
def test_a_refused_file_is_told_the_formats_that_are_opened(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(WRONG[name][0])
    assert all(format in refusal_of(tmp_path / name) for format in FORMATS)


def test_a_missing_file_and_a_directory_are_refused_by_name(tmp_path: Path) -> None:
    assert "no such file" in refusal_of(tmp_path / "gone.jpg")
    (tmp_path / "photos").mkdir()
    assert "photos: a directory; expected" in refusal_of(tmp_path / "photos")
    assert "cannot be read" in refusal_of(tmp_path / ("long" * 200 + ".jpg"))
    (tmp_path / "cat.jpg").write_bytes(encoded(quadrants(), "JPEG"))
    assert "cannot be read" in refusal_of(tmp_path / "cat.jpg" / "inside.jpg")


@pytest.mark.parametrize(
    ("source", "found"), [(None, "None"), (3, "3"), ([[0, 1]], "[[0, 1]]"), (io.BytesIO(b""), "a BytesIO")]
)
def test_a_source_of_another_kind_is_told_what_is_taken(source: Any, found: str) -> None:
    with pytest.raises(ImageError) as caught:
        open_image(source)
    expected = "expected a path, bytes, a PIL image, a NumPy array or a tensor"
    assert str(caught.value).startswith(f"the image: {found} found; {expected}")


# Arrays and tensors.

LEVELS = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
CHANNELS_FIRST = torch.from_numpy(LEVELS).permute(2, 0, 1)


@pytest.mark.parametrize(
    ("tensor", "value_range"),
    [
        (CHANNELS_FIRST, None),
        (CHANNELS_FIRST[None], None),
        (CHANNELS_FIRST / 255, (0, 1)),
        (CHANNELS_FIRST.double() / 255, [0.0, 1.0]),
        (CHANNELS_FIRST / 127.5 - 1, (-1, 1)),
        (CHANNELS_FIRST.float(), (0, 255)),
        (CHANNELS_FIRST.int(), (0, 255)),
        ((CHANNELS_FIRST / 255).requires_grad_(), (0, 1)),
        (LEVELS / 255, None),
        (LEVELS / 127.5 - 1, (-1, 1)),
        (LEVELS.astype(np.uint16) * 257, (0, 65535)),
    ],
)
def test_a_tensor_or_array_with_its_range_is_the_image_that_it_was_made_of(
    tensor: Any, value_range: tuple[float, float] | None
) -> None:
    assert open_image(tensor, value_range=value_range).tobytes() == LEVELS.tobytes()


def test_tensors_of_grey_and_with_alpha_are_taken() -> None:
    grey, alpha = CHANNELS_FIRST[:1], torch.cat([CHANNELS_FIRST, torch.full((1, 6, 8), 255, dtype=torch.uint8)])
    expected = np.repeat(LEVELS[..., :1], 3, -1).tobytes()
    assert open_image(grey).tobytes() == open_image(grey[0]).tobytes() == expected
    assert open_image(alpha).tobytes() == LEVELS.tobytes()
    half = torch.full((3, 4, 4), 0.5, dtype=torch.bfloat16)
    assert open_image(half, value_range=(0, 1)).getpixel((0, 0)) == (128, 128, 128)


@pytest.mark.parametrize(
    ("tensor", "value_range", "sentence"),
    [
        (
            CHANNELS_FIRST / 255,
            None,
            "nothing says what black and white are; expected value_range, such as (0, 1)",
        ),
        (CHANNELS_FIRST / 1.0, (0, 1), "outside of value_range = (0, 1)"),
        (CHANNELS_FIRST * math.nan, (0, 1), "values from nan to nan; outside of value_range = (0, 1)"),
        (CHANNELS_FIRST.permute(1, 2, 0), None, "of 'height width channel', .permute(2, 0, 1) gives that"),
        (torch.zeros(2, 3, 4, 4, dtype=torch.uint8), None, "expected 'channel height width' with 1, 3 or 4 channels"),
        (LEVELS.astype(np.int64), None, "expected uint8 in [0, 255] or floating point in [0, 1], or value_range"),
        (LEVELS * 1.0, None, "floating point must lie in [0, 1], or in value_range"),
    ],
)
def test_a_tensor_or_array_of_another_shape_or_range_is_refused(
    tensor: Any, value_range: tuple[float, float] | None, sentence: str
) -> None:
    with pytest.raises(ImageError) as caught:
        open_image(tensor, value_range=value_range)
    assert sentence in str(caught.value) and str(tuple(tensor.shape)) in str(caught.value)


def test_an_error_calls_the_input_by_the_name_that_is_given(tmp_path: Path) -> None:
    quadrants(1).crop((0, 0, 1, 2)).save(tmp_path / "narrow.png")
    for source in (b"", np.zeros(3), Image.new("RGB", (1, 1)), "/gone/cat.png", 7):
        with pytest.raises(ImageError, match=r"^your upload: "):
            open_image(source, "your upload")
    with Image.open(tmp_path / "narrow.png") as image, pytest.raises(ImageError, match=r"^narrow.png: 1×2"):
        open_image(image)
    with pytest.raises(ImageError, match=r"^the image: "):
        open_image(b"")


WHOLE = {
    format: encoded(Image.fromarray(np.random.default_rng(2).integers(0, 256, (40, 40, 3), dtype=np.uint8)), format)
    for format in (*FORMATS, "MPO")
}


@pytest.mark.parametrize("format", WHOLE)
@pytest.mark.parametrize("part", [0.5, 0.8])
def test_a_truncated_file_is_refused_by_name(format: str, part: float, tmp_path: Path) -> None:
    path = tmp_path / f"cut.{format.lower()}"
    path.write_bytes(WHOLE[format][: int(len(WHOLE[format]) * part)])
    assert re.search("damaged|cut short|header", refusal_of(path))


def survives(data: bytes) -> bool:
    """Whether it opens; anything but a picture or an ImageError fails the test."""
    try:
        return open_image(data, "it").mode == "RGB"
    except ImageError as error:
        assert str(error).startswith("it: ")
        return False


@pytest.mark.parametrize("format", WHOLE)
def test_a_file_cut_anywhere_gives_a_picture_or_one_error(format: str) -> None:
    data = WHOLE[format]
    lengths = [*range(0, min(300, len(data)), 6), *range(300, len(data), max(1, len(data) // 40))]
    assert not all(survives(data[:length]) for length in lengths)
    assert survives(data)


@pytest.mark.parametrize("format", WHOLE)
def test_a_file_with_wrong_bytes_gives_a_picture_or_one_error(format: str) -> None:
    random = np.random.default_rng(3)
    outcomes = set()
    for _ in range(60):
        data = bytearray(WHOLE[format])
        # Mostly in the header, where a wrong byte does the most.
        for place in random.integers(0, random.choice([60, 400, len(data)]), size=4):
            data[min(place, len(data) - 1)] = random.integers(0, 256)
        outcomes.add(survives(bytes(data)))
    assert False in outcomes


# Warnings.


def test_pillows_warnings_do_not_reach_the_caller() -> None:
    maker = chunk(b"acTL", struct.pack(">II", 0, 0))
    noisy = {
        "a palette with alphas": encoded(palette_image(), "PNG", transparency=bytes([255, 0, 255, 128])),
        "an invalid animation": png(2, 2, 8, 0, bytes(2), maker),
        "a large header": jpeg(12_000, 8_000),
        "damaged EXIF": encoded(Image.fromarray(UPRIGHT), "JPEG", exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x09"),
    }
    with warnings.catch_warnings(record=True) as leaked:
        warnings.simplefilter("always")
        for data in noisy.values():
            survives(data)
    assert [str(warning.message) for warning in leaked] == []
    # They are warnings that Pillow does give.
    for name in ("an invalid animation", "a large header", "damaged EXIF"):
        with pytest.warns(Warning), Image.open(io.BytesIO(noisy[name])) as image:
            image.getexif()


def test_the_callers_warnings_and_filters_stay_as_they_are() -> None:
    before = list(warnings.filters)
    open_image(quadrants())
    with pytest.raises(ImageError):
        open_image(b"")
    assert warnings.filters == before


def test_threads_that_overlap_leave_the_warning_filters_as_they_were() -> None:
    before = list(warnings.filters)
    inside, leave = [threading.Event(), threading.Event()], [threading.Event(), threading.Event()]

    def opening(index: int) -> threading.Thread:
        image = quadrants()

        def load() -> None:
            inside[index].set()
            leave[index].wait(5)

        image.load = load
        thread = threading.Thread(target=open_image, args=(image,))
        thread.start()
        assert inside[index].wait(5)
        return thread

    first, second = opening(0), opening(1)
    leave[0].set()
    first.join(5)
    assert warnings.filters != before
    leave[1].set()
    second.join(5)
    assert warnings.filters == before
