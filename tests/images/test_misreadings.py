"""No file becomes a black, a white or another picture without a word: it is right, refused, or said to be so."""

from __future__ import annotations

import io
import re
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.support.image_files import chunk, encoded, tiff_of
from vitviz.errors.kinds import ImageError
from vitviz.images.image_facts import ImageFacts
from vitviz.images.opening import open_image

RGB = np.random.default_rng(0).integers(1, 200, (6, 8, 3)).astype(np.uint8)
GREY, ALPHA = RGB[..., :1], np.random.default_rng(1).integers(1, 200, (6, 8, 1)).astype(np.uint8)
OPAQUE, CLEAR = np.full_like(ALPHA, 255), np.zeros_like(ALPHA)


def joined(*channels: np.ndarray) -> np.ndarray:
    return np.concatenate(channels, -1)


def sentences(image: Image.Image) -> str:
    return "; ".join(ImageFacts.of(image).assumptions)


def png_of(array: np.ndarray, colour_type: int) -> bytes:
    """A PNG of 16 bits a channel."""
    height, width, _ = array.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in array)
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 16, colour_type, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


# Values of 8 bits in files of 16.


def deep_files(factor: int) -> dict[str, bytes]:
    rgb, grey, opaque = (each.astype(np.uint16) * factor for each in (RGB, GREY, OPAQUE))
    files = {
        "RGB PNG": png_of(rgb, 2),
        "RGBA PNG": png_of(joined(rgb, opaque), 6),
        "grey PNG with alpha": png_of(joined(grey, opaque), 4),
        "opaque RGBA PNG": png_of(joined(rgb, np.full_like(opaque, 65535)), 6),
        "PPM": b"P6 8 6 65535\n" + rgb.astype(">u2").tobytes(),
        "PPM of digits": b"P3 8 6 65535\n" + b" ".join(b"%d" % value for value in rgb.ravel()),
    }
    for order in "<>":
        for compression in (1, 8):
            suffix, way = f"{order}{compression}", {"order": order, "compression": compression}
            files[f"RGB TIFF {suffix}"] = tiff_of(rgb, 2, **way)
            files[f"RGBA TIFF {suffix}"] = tiff_of(joined(rgb, opaque), 2, extra=[2], **way)
            files[f"TIFF of inks {suffix}"] = tiff_of(joined(255 * factor - rgb, opaque * 0), 5, **way)
    return files


EIGHT_IN_SIXTEEN, SIXTEEN = deep_files(1), deep_files(257)


@pytest.mark.parametrize("name", SIXTEEN)
def test_values_of_eight_bits_in_sixteen_are_said(name: str) -> None:
    assert np.abs(np.subtract(open_image(SIXTEEN[name]), RGB if "grey" not in name else GREY, dtype=int)).max() <= 1
    assert ImageFacts.of(open_image(SIXTEEN[name])).assumptions == ()
    said = sentences(open_image(EIGHT_IN_SIXTEEN[name]))
    # Of alpha, too, 8 of 16 bits are read.
    is_pale = "ink" in name or "alpha" in name or name.startswith("RGBA")
    assert ("it is nearly white everywhere" if is_pale else "so that it is dark: as an array with value_range") in said


@pytest.mark.parametrize("white_is_zero", [False, True])
def test_dark_values_of_twelve_bits_and_floats_are_said_with_their_range(white_is_zero: bool) -> None:
    files = {4095: tiff_of(GREY.astype(np.uint16) * 16, 1), 0.25: tiff_of(GREY.astype(np.float32) / 1000, 1)}
    if white_is_zero:
        files = {
            4095: tiff_of(65535 - GREY.astype(np.uint16) * 16, 0),
            0.25: tiff_of(1 - GREY.astype(np.float32) / 1000, 0),
        }
    for white, data in files.items():
        top = 65535 if white > 1 else 1
        black_white = (top - white, top) if white_is_zero else (0, white)
        assert f"value_range=({black_white[0]:g}, {black_white[1]:g}) makes it brighter" in sentences(open_image(data))
        bright = open_image(data, value_range=black_white)
        assert sentences(bright) == ""
        shown = GREY * (16 / 4095 if white > 1 else 1 / 250) * 255
        assert np.abs(np.asarray(bright, float) - shown).max() <= 1


def test_dark_arrays_are_said_in_their_own_values() -> None:
    floats, mask = (RGB / 255 * 0.01).astype(np.float32), (joined(RGB, OPAQUE) > 99).astype(np.uint8)
    assert "of 1, so that it is dark: value_range=(0, 0.0078125)" in sentences(open_image(floats))
    assert sentences(open_image(floats, value_range=(0, 0.0078125))) == ""
    assert "nearly white everywhere" in sentences(open_image(mask))
    palette = Image.fromarray(mask[..., 0]).convert("P", palette=Image.Palette.ADAPTIVE)
    assert "end at 1 of 255, so that it is dark: as an array" in sentences(open_image(palette))
    assert sentences(Image.new("RGB", (4, 4))) == "" != sentences(open_image(Image.new("RGB", (4, 4))))
    one_bright_pixel = np.pad(np.full((1, 1, 3), 16, np.uint8), ((5, 194), (5, 194), (0, 0)))
    assert sentences(open_image(one_bright_pixel)) == ""


# Transparency.


def bitmap(alpha: int, header: int, order: str = "BGR") -> bytes:
    """A BMP file of 32 bits with masks."""
    bands = [RGB[::-1, :, "RGB".index(letter)] for letter in order]
    pixels = np.dstack([*bands, np.full((6, 8), alpha, np.uint8)]).tobytes()
    masks = {letter: 255 << 8 * place for place, letter in enumerate(order)}
    head = struct.pack("<IiiHHIIiiII", header, 8, 6, 1, 32, 3, len(pixels), 0, 0, 0, 0)
    head = (head + struct.pack("<4I", *(masks[letter] for letter in "RGB"), 255 << 24)).ljust(header, b"\0")
    return b"BM" + struct.pack("<IHHI", 14 + header + len(pixels), 0, 0, 14 + header) + head + pixels


@pytest.mark.parametrize("header", [56, 108, 124])
@pytest.mark.parametrize("order", ["BGR", "RGB"])
def test_a_bitmap_without_any_alpha_is_opaque(header: int, order: str) -> None:
    for alpha in (255, 0):
        data = bitmap(alpha, header, order)
        for source in (data, Image.open(io.BytesIO(data))):
            opened = open_image(source)
            assert np.array_equal(opened, RGB)
            assert ("alpha is 0 everywhere" in sentences(opened)) == (alpha == 0)


@pytest.mark.parametrize("format", ["DIB", "TGA"])
def test_a_picture_of_the_clipboard_or_a_tga_without_any_alpha_is_opaque(format: str) -> None:
    data = bitmap(0, 124)[14:] if format == "DIB" else encoded(Image.fromarray(joined(RGB, CLEAR)), "TGA")
    assert np.array_equal(open_image(Image.open(io.BytesIO(data), formats=[format])), RGB)


@pytest.mark.parametrize("format", ["PNG", "WEBP", "TIFF"])
def test_a_picture_that_is_transparent_everywhere_is_white_and_said_to_be(format: str) -> None:
    options = {"lossless": True, "exact": True} if format == "WEBP" else {}
    data = encoded(Image.fromarray(joined(RGB, CLEAR)), format, **options)
    for source in (data, Image.open(io.BytesIO(data)), joined(RGB, CLEAR)):
        opened = open_image(source)
        assert np.asarray(opened).min() == 255 and "it is nearly white everywhere" in sentences(opened)
    assert sentences(open_image(joined(RGB, OPAQUE))) == ""


# TIFF files.


@pytest.mark.parametrize("compression", [1, 8])
@pytest.mark.parametrize("order", ["<", ">"])
def test_what_pillow_misreads_of_a_tiff_is_refused(compression: int, order: str) -> None:
    way: dict[str, Any] = {"order": order, "compression": compression}
    refused = {
        "RGB in planes": tiff_of(RGB, 2, True, **way),
        "RGB and alpha in planes": tiff_of(joined(RGB, OPAQUE), 2, True, extra=[2], **way),
        "inks in planes": tiff_of(joined(255 - RGB, CLEAR), 5, True, **way),
        "bands in planes": tiff_of(RGB.astype(np.uint16), 1, True, extra=[0, 0], **way),
        "signed": tiff_of(GREY.astype(np.int8), 1, **way),
        "four bands": tiff_of(joined(RGB, ALPHA), 2, **way),
        "32 bits": tiff_of(GREY.astype(np.uint32) << 24, 1, **way),
    }
    if compression == 1:
        refused["YCbCr"] = tiff_of(RGB, 6, **way)
    elif order == ">":
        refused["floats"] = tiff_of(GREY.astype(np.float32), 1, **way)
        refused["signed of 16 bits"] = tiff_of(GREY.astype(np.int16), 1, **way)
    for name, data in refused.items():
        with pytest.raises(ImageError, match=r"that Pillow (misreads|does not read).*tifffile\.imread"):
            pytest.fail(f"{name}: {open_image(data)}")
    # As an image of the user's.
    with pytest.raises(ImageError, match="that Pillow misreads"):
        open_image(Image.open(io.BytesIO(refused["RGB in planes"])))


def test_a_colour_map_of_eight_bits_is_said_to_be_dark() -> None:
    indices = np.arange(48, dtype=np.uint8).reshape(6, 8, 1)
    colours = np.random.default_rng(2).integers(0, 256, (256, 3))
    for factor in (257, 256, 1):
        data = tiff_of(indices, 3, colours=[int(each) for each in (colours * factor).T.ravel()])
        opened = open_image(data)
        if factor > 1:
            assert np.array_equal(opened, colours[indices[..., 0]]) and opened.info == {}
        else:
            assert "so that it is dark" in sentences(opened)


@pytest.mark.parametrize("compression", [50001, 34712, 34887, 50002, 34925, 50000, 60606])
def test_a_compression_that_pillow_does_not_decode_is_not_called_damaged(
    compression: int, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ImageError) as refusal:
        open_image(tiff_of(RGB, 2, compression=compression), "scan.tif")
    message = str(refusal.value)
    assert re.match(r"scan\.tif: a TIFF file .*of a kind that Pillow does not read", message)
    assert "tifffile.imread" in message
    # libtiff writes there what it lacks.
    capfd.readouterr()


def test_a_bitmap_of_a_rare_kind_is_called_so() -> None:
    data = bytearray(bitmap(255, 124))
    # Masks of ten bits.
    data[54:66] = struct.pack("<3I", 1023 << 20, 1023 << 10, 1023)
    with pytest.raises(ImageError, match=r"^it: Pillow cannot decode this image: .* of a rare kind \(Unsupported BMP"):
        open_image(bytes(data), "it")
