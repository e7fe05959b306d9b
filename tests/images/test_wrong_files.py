"""A file that is no picture, a damaged one or a bomb is one error, and warnings stay inside."""

from __future__ import annotations

import math
import re
import struct
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile, WebPImagePlugin

from tests.support.image_files import (
    FORMATS,
    UPRIGHT,
    animated_webp,
    bmp,
    chunk,
    encoded,
    gif,
    jpeg,
    palette_image,
    png,
    quadrants,
    riff,
    row_image,
    tiff,
)
from vitviz.errors.kinds import ImageError
from vitviz.images import opening
from vitviz.images.file_kinds import AVIF, MAX_PIXELS
from vitviz.images.image_facts import ImageFacts
from vitviz.images.opening import UnopenedImage, open_image

# Bombs.

BOMBS = {
    "big.png": (png(100_000, 100_000, 8, 2, bytes(30)), 10_000_000_000),
    "medium.png": (png(12_000, 8_000, 8, 2, bytes(30)), 96_000_000),
    "little.png": (png(8_001, 8_000, 8, 0, bytes(30)), 64_008_000),
    "screen.gif": (gif((65_535, 65_535), (4, 4)), 4_294_836_225),
    "frame.gif": (gif((4, 4), (12_000, 12_000)), 144_000_000),
    "big.tif": (tiff(100_000, 100_000, 8, 1, 1, bytes(30)), 10_000_000_000),
    "medium.tif": (tiff(12_000, 12_000, 8, 1, 1, bytes(30)), 144_000_000),
    "still.webp": (riff((b"VP8L", b"\x2f" + struct.pack("<I", 16_383 | 16_383 << 14) + bytes(20))), 268_435_456),
    "moving.webp": (animated_webp(12_000, 12_000), 144_000_000),
    "big.bmp": (bmp(100_000, 100_000), 10_000_000_000),
    "medium.bmp": (bmp(10_000, 10_000), 100_000_000),
    # What is left of it when it is decoded at an eighth of its sides.
    "big.jpg": (jpeg(65_000, 65_000), 66_015_625),
}
# Twice Pillow's default.
PILLOW_PIXELS = 2 * 89_478_485


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_and_never_decoded(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, pixels = BOMBS[name]
    (tmp_path / name).write_bytes(data)
    decoded = []
    for plugin in (ImageFile.ImageFile, WebPImagePlugin.WebPImageFile):
        monkeypatch.setattr(plugin, "load", lambda image: decoded.append(image))
    count = rf"^{re.escape(name)}: ({pixels:,} pixels|Image size \({pixels} pixels\)(?: exceeds .*)?); "
    with warnings.catch_warnings(), pytest.raises(ImageError, match=f"{count}at most 64,000,000 .* smaller copy"):
        warnings.simplefilter("ignore")
        UnopenedImage(tmp_path / name, max_pixels=MAX_PIXELS)
    if pixels > PILLOW_PIXELS:
        limit = "raise PIL.Image.MAX_IMAGE_PIXELS .* smaller"
        with pytest.raises(ImageError, match=count + limit):
            open_image(tmp_path / name)
    assert not decoded


# Files that are no images.

HTML = b"<!DOCTYPE html>\n<html><body><svg></svg>404</body></html>"
SVG = b'<?xml version="1.0"?>\n<!-- drawn -->\n<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1"/>'
WRONG = {
    "empty.jpg": (b"", "an empty file"),
    "blank.png": (b" \n" * 5000, "an empty file"),
    "page.jpg": (HTML, "an HTML page"),
    "bare.png": (b"\xef\xbb\xbf<html></html>", "an HTML page"),
    "drawing.svg": (SVG, "an SVG drawing"),
    "drawing.png": (b'<svg width="3"></svg>', "an SVG drawing"),
    "notes.txt": (b"no picture at all\n", "a text file"),
    "data.xml": (b"<?xml version='1.0'?><a/>", "a text file"),
    "paper.jpg": (b"%PDF-1.7\n...", "a PDF document"),
    "IMG_0001.HEIC": (b"\0\0\0\x18ftypheic\0\0\0\0", "a HEIC photo"),
    "new.avif": (b"\0\0\0\x18ftypavif\0\0\0\0", AVIF),
    "clip.mp4": (b"\0\0\0\x18ftypisom\0\0\0\0", "a video"),
    "many.zip": (b"PK\x03\x04" + bytes(40), "a ZIP archive"),
    "noise.png": (bytes(range(128, 256)), "not an image"),
    "head.png": (b"\x89PNG\r\n\x1a\n", "a PNG file with a damaged header"),
    "head.jpg": (b"\xff\xd8\xff\xe0\0", "a JPEG file with a damaged header"),
    "head.gif": (b"GIF89a\x01", "a GIF file with a damaged header"),
    "head.bmp": (b"BM\0\0", "a BMP file with a damaged header"),
    "rare.tif": (tiff(2, 2, 32, 3, 3, bytes(48)), "a TIFF file of a kind that Pillow does not read"),
    "deep.tif": (encoded(row_image("I", [0, 70_000]), "TIFF"), "greyscale values from 0 to 70000; expected 0 to 65535"),
    "below.tif": (encoded(row_image("I", [-1, 70]), "TIFF"), "greyscale values from -1 to 70; expected 0 to 255"),
    "bright.tif": (encoded(row_image("F", [0.0, 1.5]), "TIFF"), "greyscale values from 0 to 1.5; expected 0 to 1"),
    "hole.tif": (encoded(row_image("F", [0.0, math.nan]), "TIFF"), "NaN among its values"),
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
    data, description = WRONG[name]
    (tmp_path / name).write_bytes(data)
    assert description in refusal_of(tmp_path / name)


def test_a_missing_file_and_a_directory_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=re.escape(f"gone.jpg: no such file in {tmp_path}; expected a JPEG")):
        open_image(tmp_path / "gone.jpg")
    (tmp_path / "photos").mkdir()
    with pytest.raises(ImageError, match=r"^photos: a folder; expected a JPEG"):
        open_image(tmp_path / "photos")
    assert "cannot be read" in refusal_of(tmp_path / ("long" * 200 + ".jpg"))
    (tmp_path / "cat.jpg").write_bytes(encoded(quadrants(), "JPEG"))
    with pytest.raises(ImageError, match=r"Cat\.JPG: no such file in .*; did you mean 'cat\.jpg'\?$"):
        open_image(tmp_path / "Cat.JPG")
    assert "cannot be read" in refusal_of(tmp_path / "cat.jpg" / "inside.jpg")


COMPLETE = {
    format: encoded(Image.fromarray(np.random.default_rng(2).integers(0, 256, (40, 40, 3), dtype=np.uint8)), format)
    for format in (*FORMATS, "MPO")
}


@pytest.mark.parametrize("format", COMPLETE)
@pytest.mark.parametrize("part", [0.5, 0.8])
def test_a_truncated_file_is_refused_by_name(format: str, part: float, tmp_path: Path) -> None:
    path = tmp_path / f"cut.{format.lower()}"
    path.write_bytes(COMPLETE[format][: int(len(COMPLETE[format]) * part)])
    assert re.search("damaged|cut short|header", refusal_of(path))


def survives(data: bytes) -> bool:
    """Whether the data opens; anything but a picture or an ImageError fails the test."""
    try:
        return open_image(data, "it").mode == "RGB"
    except ImageError as error:
        assert str(error).startswith("it: ")
        return False


@pytest.mark.parametrize("format", COMPLETE)
def test_a_file_with_wrong_bytes_gives_a_picture_or_one_error(format: str) -> None:
    random = np.random.default_rng(3)
    outcomes = set()
    for _ in range(60):
        data = bytearray(COMPLETE[format])
        # Mostly in the header, where a wrong byte has the largest effect.
        for place in random.integers(0, random.choice([60, 400, len(data)]), size=4):
            data[min(place, len(data) - 1)] = random.integers(0, 256)
        outcomes.add(survives(bytes(data)))
    assert False in outcomes


# Large pictures, and the user's own limit.


def test_a_large_picture_of_ones_own_is_reduced(monkeypatch: pytest.MonkeyPatch) -> None:
    shades = np.arange(12, dtype=np.uint8).reshape(3, 4).repeat(60, 0).repeat(60, 1) * 20
    monkeypatch.setattr(opening, "MAX_PIXELS", 10_000)
    for source in (encoded(Image.fromarray(shades), "PNG"), Image.fromarray(shades), shades):
        opened = open_image(source)
        assert opened.size == (80, 60) and ImageFacts.of(opened).size == (240, 180)
        assert np.array_equal(np.asarray(opened)[..., 0], shades[::3, ::3])
        assert ImageFacts.of(opened).assumptions == ("it is reduced from 240×180 to 80×60 pixels",)
        again = open_image(opened)
        assert ImageFacts.of(again) == ImageFacts.of(opened)


def test_the_users_own_limit_counts_as_in_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    picture = Image.effect_noise((300, 200), 90)
    files = {format: encoded(picture, format) for format in ("PNG", "TIFF", "WEBP", "BMP")}
    for limit in (None, 60_000):
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        assert all(open_image(data).size == (300, 200) for data in files.values())
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 40_000)
    for data in files.values():
        with pytest.warns(Image.DecompressionBombWarning):
            open_image(data)
        with pytest.raises(ImageError, match=r"60000 pixels\) exceeds limit of 40000 .* raise PIL\.Image\.MAX_IMAGE"):
            # Here, warnings are errors.
            open_image(data)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 20_000)
    for data in files.values():
        with pytest.raises(ImageError, match=r"60000 pixels\) exceeds limit of 40000 .* raise PIL\.Image\.MAX_IMAGE"):
            open_image(data)
    assert open_image(encoded(picture, "JPEG")).size == (150, 100)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(ImageError, match=r"pixels\) exceeds limit of 200 .* raise PIL\.Image\.MAX_IMAGE"):
        open_image(encoded(picture, "JPEG"))


def opened_by_path(path: Path) -> Image.Image:
    with Image.open(path) as image:
        return image


def opened_by_file(path: Path) -> Image.Image:
    with open(path, "rb") as file:
        return Image.open(file)


def closed_after_loading(path: Path) -> Image.Image:
    image = Image.open(path)
    image.load()
    image.close()
    return image


def loaded_by_path(path: Path) -> Image.Image:
    with Image.open(path) as image:
        image.load()
    return image


@pytest.mark.parametrize("format", [*FORMATS, "PPM", "TGA"])
def test_a_closed_image_is_said_to_be_closed_and_one_that_was_loaded_before_is_opened(
    format: str, tmp_path: Path
) -> None:
    path = tmp_path / "it"
    path.write_bytes(encoded(quadrants(), format))
    for way in (opened_by_path, opened_by_file, closed_after_loading):
        # Pillow reads the whole of a WebP file at once.
        if format == "WEBP" and way != closed_after_loading:
            continue
        with pytest.raises(ImageError, match=r"the image is closed, .* image.copy\(\)") as refusal:
            open_image(way(path))
        assert "damaged" not in str(refusal.value)
    assert open_image(loaded_by_path(path)).size == open_image(loaded_by_path(path).copy()).size == (32, 32)


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_what_pillow_warns_of_does_not_hide_the_picture() -> None:
    noisy = {
        "a palette with alphas": encoded(palette_image(), "PNG", transparency=bytes([255, 0, 255, 128])),
        "an invalid animation": png(2, 2, 8, 0, bytes(2), chunk(b"acTL", struct.pack(">II", 0, 0))),
        "damaged EXIF": encoded(Image.fromarray(UPRIGHT), "JPEG", exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x09"),
    }
    assert all(survives(data) for data in noisy.values())
