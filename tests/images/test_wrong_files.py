"""A file that is no picture, a damaged one or a bomb is one error, and warnings stay inside."""

from __future__ import annotations

import io
import math
import re
import struct
import threading
import warnings
from pathlib import Path
from typing import Any

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
from tests.support.waiting import HANG_SECONDS
from vitviz.errors.kinds import ImageError
from vitviz.images.kinds import AVIF
from vitviz.images.opening import open_image

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
    "medium.jpg": (jpeg(40_000, 40_000), "1,600,000,000"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_at_once_and_never_decoded(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, description = BOMBS[name]
    (tmp_path / name).write_bytes(data)
    decoded = []
    for plugin in (ImageFile.ImageFile, WebPImagePlugin.WebPImageFile):
        monkeypatch.setattr(plugin, "load", lambda image: decoded.append(image))
    with pytest.raises(ImageError, match=f"^{re.escape(name)}: {description} pixels; at most 64,000,000 are opened$"):
        open_image(tmp_path / name)
    assert not decoded


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


@pytest.mark.parametrize("name", ["empty.jpg", "page.jpg", "notes.txt", "noise.png"])
def test_a_refusal_lists_the_formats_that_are_opened(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(WRONG[name][0])
    assert all(format in refusal_of(tmp_path / name) for format in FORMATS)


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


@pytest.mark.parametrize(
    ("source", "description"), [(None, "None"), (3, "3"), ([[0, 1]], "[[0, 1]]"), (io.StringIO(""), "a StringIO")]
)
def test_a_source_of_another_kind_is_refused_with_the_accepted_kinds(source: Any, description: str) -> None:
    with pytest.raises(ImageError) as caught:
        open_image(source)
    expected = "expected a path, bytes, a PIL image, a NumPy array or a tensor"
    assert str(caught.value).startswith(f"the image: {description} found; {expected}")


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
    # Pillow does emit these warnings.
    for name in ("an invalid animation", "a large header", "damaged EXIF"):
        with pytest.warns(Warning), Image.open(io.BytesIO(noisy[name])) as image:
            image.getexif()


def test_threads_that_overlap_leave_the_warning_filters_as_they_were() -> None:
    before = list(warnings.filters)
    inside, leave = [threading.Event(), threading.Event()], [threading.Event(), threading.Event()]

    def opening(index: int) -> threading.Thread:
        image = quadrants()

        def load() -> None:
            inside[index].set()
            leave[index].wait(HANG_SECONDS)

        image.load = load
        thread = threading.Thread(target=open_image, args=(image,))
        thread.start()
        assert inside[index].wait(HANG_SECONDS)
        return thread

    first, second = opening(0), opening(1)
    leave[0].set()
    first.join(HANG_SECONDS)
    assert warnings.filters != before
    leave[1].set()
    second.join(HANG_SECONDS)
    assert warnings.filters == before
