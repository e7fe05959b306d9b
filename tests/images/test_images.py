"""Files and pictures of every format and mode become upright RGB."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from tests.support.image_files import (
    BLACK,
    BLUE,
    GREEN,
    QUADRANTS,
    RED,
    STORED,
    UPRIGHT,
    WHITE,
    centres,
    chunk,
    distance,
    encoded,
    oriented_file,
    palette_image,
    png,
    quadrants,
    row_image,
    row_of,
    tiff,
    transparent,
)
from vitviz.errors.kinds import ImageError
from vitviz.images.image_facts import ImageFacts
from vitviz.images.opening import open_image

# Files.

BEST = {"quality": 100, "subsampling": 0}


def animation_options() -> dict[str, object]:
    """Options that append a white second frame, a new one for every file: Pillow stores encoder settings on it."""
    return {"save_all": True, "append_images": [Image.new("RGB", (32, 32), "white")]}


FILES = {
    "photo.jpg": ("JPEG", BEST, 3),
    "progressive.jpeg": ("JPEG", {**BEST, "progressive": True}, 3),
    "phone.jpg": ("MPO", {**BEST, **animation_options()}, 3),
    "drawing.png": ("PNG", {}, 0),
    "moving.png": ("PNG", animation_options(), 0),
    "lossless.webp": ("WEBP", {"lossless": True}, 0),
    "lossy.webp": ("WEBP", {"quality": 100}, 12),
    "moving.webp": ("WEBP", {"lossless": True, **animation_options()}, 0),
    "picture.gif": ("GIF", {}, 0),
    "moving.gif": ("GIF", animation_options(), 0),
    "scan.tif": ("TIFF", {}, 0),
    "packed.tiff": ("TIFF", {"compression": "tiff_lzw"}, 0),
    "pages.tiff": ("TIFF", animation_options(), 0),
    "old.bmp": ("BMP", {}, 0),
}


@pytest.mark.parametrize("name", FILES)
def test_every_format_gives_its_colours_as_path_and_as_bytes(name: str, tmp_path: Path) -> None:
    format, options, tolerance = FILES[name]
    data = encoded(quadrants(), format, **options)
    (tmp_path / name).write_bytes(data)
    for source in (tmp_path / name, str(tmp_path / name), data):
        result = open_image(source)
        assert (result.mode, result.size) == ("RGB", (32, 32))
        assert distance(centres(result), QUADRANTS) <= tolerance


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


@pytest.mark.parametrize("mode", ["RGB", "RGBX", "CMYK", "YCbCr", "HSV", "LAB", "P", "RGBA", "RGBa"])
def test_every_colour_mode_of_a_pil_image_gives_its_colours(mode: str) -> None:
    source = quadrants().convert("RGBA" if mode == "RGBa" else "RGB").convert(mode)
    result = open_image(source)
    assert result.mode == "RGB"
    # LAB in eight bits cannot represent a saturated colour exactly.
    assert distance(centres(result), QUADRANTS) <= (25 if mode == "LAB" else 2)


# Alpha.

FADING = row_image("RGBA", [(255, 0, 0, 255), (255, 0, 0, 128), (0, 0, 0, 0)])
FADED = (RED, (255, 127, 127), WHITE)
FADING_GREY = row_image("LA", [(200, 255), (0, 128), (0, 0)])
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
    "RGB PNG with one colour": (png(2, 2, 8, 2, bytes([1, 2, 3, 4, 5, 6]), transparent(1, 2, 3)), (WHITE, (4, 5, 6))),
    "grey PNG with one colour": (png(2, 2, 8, 0, bytes([10, 20]), transparent(10)), grey(255, 20)),
    "grey PNG of 1 bit with black": (png(4, 2, 1, 0, b"\x50", transparent(0)), grey(255, 255, 255, 255)),
    "16-bit grey PNG with one colour": (
        png(3, 2, 16, 0, struct.pack(">3H", 1000, 1001, 25700), transparent(1000)),
        grey(255, 4, 100),
    ),
}


@pytest.mark.parametrize("kind", ALPHA)
def test_alpha_of_a_file_is_composited_on_white(kind: str) -> None:
    data, expected = ALPHA[kind]
    assert distance(row_of(data), expected) <= 1


@pytest.mark.parametrize(
    "data",
    [
        png(2, 2, 16, 2, struct.pack(">6H", 4660, 22136, 39612, 256, 512, 768), transparent(4660, 22136, 39612)),
        png(4, 2, 2, 0, b"\x1b", transparent(1)),
        png(2, 2, 4, 0, b"\x3a", transparent(3)),
    ],
)
def test_one_transparent_colour_that_pillow_does_not_scale_is_refused(data: bytes) -> None:
    for source in (data, Image.open(io.BytesIO(data))):
        with pytest.raises(ImageError, match=r"of which one colour is transparent .*; expected a copy saved with 8"):
            open_image(source)


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
    "PA": (pa_image(), FADED),
    "P with an RGBA palette": (rgba_palette_image(), FADED),
    "P with one colour": (palette_image(2), (RED, GREEN, WHITE, BLACK)),
    "P with alphas": (palette_image(bytes([0, 255, 255, 255])), (WHITE, GREEN, BLUE, BLACK)),
}


@pytest.mark.parametrize("kind", ALPHA_IMAGES)
def test_alpha_of_a_pil_image_is_composited_on_white(kind: str) -> None:
    image, expected = ALPHA_IMAGES[kind]
    result = open_image(image)
    assert result.mode == "RGB"
    assert distance([result.getpixel((x, 0)) for x in range(result.width)], expected) <= 1


# Orientation.


@pytest.mark.parametrize("format", ["PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", [*STORED, 0, 9])
def test_exif_orientation_is_followed_and_an_unknown_one_ignored(orientation: int, format: str) -> None:
    data = oriented_file(UPRIGHT, orientation, format, **({"lossless": True} if format == "WEBP" else {}))
    opened = open_image(data)
    assert np.array_equal(opened, UPRIGHT) and ImageFacts.of(opened).size == opened.size
    assert np.array_equal(open_image(Image.open(io.BytesIO(data))), UPRIGHT)


XMP = '<x:xmpmeta><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'


def turned_by_text(key: str, value: str) -> bytes:
    info = PngImagePlugin.PngInfo()
    info.add_itxt(key, value)
    return encoded(Image.fromarray(np.ascontiguousarray(STORED[6](UPRIGHT))), "PNG", pnginfo=info)


def exif_behind_the_pixels() -> bytes:
    data = oriented_file(UPRIGHT, 6, "PNG")
    start = data.index(b"eXIf") - 4
    end = start + 12 + int.from_bytes(data[start : start + 4], "big")
    return data[:start] + data[end:-12] + data[start:end] + data[-12:]


ORIENTATION_6 = (b"Exif\0\0II*\0" + struct.pack("<IH", 8, 1) + struct.pack("<HHII", 0x0112, 3, 1, 6) + bytes(4)).hex()
# Where Pillow finds an orientation beside the usual EXIF block.
TURNED = {
    "XMP": turned_by_text("XML:com.adobe.xmp", XMP),
    "text": turned_by_text("Raw profile type exif", f"\nexif\n  {len(ORIENTATION_6) // 2}\n{ORIENTATION_6}"),
    "EXIF behind the pixels": exif_behind_the_pixels(),
    "EXIF of WebP": oriented_file(UPRIGHT, 6, "WEBP", lossless=True),
}


@pytest.mark.parametrize("kind", TURNED)
def test_an_orientation_is_followed_where_pillow_finds_it(kind: str) -> None:
    opened = open_image(TURNED[kind])
    assert np.array_equal(opened, UPRIGHT) and opened.info == {}


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@pytest.mark.parametrize(
    "damage", [b"Exif\0\0", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0nonsense", b"Exif\0\0MM\0*\0\0\0\x08\0\x09"]
)
def test_a_damaged_exif_block_does_not_hide_the_picture(damage: bytes) -> None:
    image = Image.fromarray(UPRIGHT)
    assert np.array_equal(open_image(encoded(image, "PNG", exif=damage)), UPRIGHT)
    assert open_image(encoded(image, "JPEG", exif=damage)).size == image.size
