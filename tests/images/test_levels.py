"""Greyscale of 16 bits, whole numbers and floats opens by its values, or says what the range is."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
from PIL import Image

from tests.support.image_files import encoded, png, row_image, tiff
from tests.support.refusals import check_refusals
from vitviz.errors.kinds import ImageError
from vitviz.images.image_facts import ImageFacts
from vitviz.images.levels import DARK
from vitviz.images.opening import open_image

RAMP = np.tile(np.linspace(0, 4095, 64).astype(np.uint16), (4, 1))


def greys(image: Image.Image) -> list[int]:
    assert np.ptp(np.asarray(image), axis=2).max() == 0
    return [image.getpixel((x, 0))[0] for x in range(image.width)]


def sentences(image: Image.Image) -> str:
    return "; ".join(ImageFacts.of(image).assumptions)


@pytest.mark.parametrize("format", ["PNG", "TIFF"])
@pytest.mark.parametrize("kind", ["path", "bytes", "PIL image"])
def test_a_range_of_values_is_applied_to_files_and_pictures(format: str, kind: str, tmp_path: object) -> None:
    data = encoded(Image.fromarray(RAMP), format)
    source = Image.open(io.BytesIO(data)) if kind == "PIL image" else data
    opened = open_image(source, value_range=(0, 4095))
    assert np.abs(np.array(greys(opened)) - RAMP[0] / 4095 * 255).max() <= 0.5
    assert opened.info == {}


def test_twelve_bits_in_sixteen_are_said_and_full_range_is_not() -> None:
    dark = open_image(encoded(Image.fromarray(RAMP), "PNG"))
    assert max(greys(dark)) == 16
    assert "end at 4,095 of 65,535" in sentences(dark) and "value_range=(0, 4095)" in sentences(dark)
    assert open_image(encoded(Image.fromarray(RAMP * 16), "PNG")).info == {}
    colour = png(2, 2, 16, 2, struct.pack(">6H", 4095, 0, 100, 0, 4000, 0))
    assert "as an array with value_range" in sentences(open_image(colour))
    found = [DARK.match(sentences(each)) for each in (dark, open_image(row_image("L", [0, 9])), open_image(colour))]
    assert [match and match[2] for match in found] == ["4095", "15", None]
    with pytest.raises(ImageError, match="of which Pillow reads 8"):
        open_image(colour, value_range=(0, 4095))


@pytest.mark.parametrize(("low", "step"), [(2**24, 1), (1.7e9, 1), (1e8, 0.25), (0, 1e-41)])
def test_a_range_far_from_zero_loses_no_level(low: float, step: float) -> None:
    values = low + np.tile(np.arange(256), (2, 1)) * step
    values = values if step != 1 else values.astype(np.int64)
    assert greys(open_image(values, value_range=(low, low + 255 * step))) == list(range(256))


def test_a_range_of_floats_and_of_eight_bits_is_applied_and_checked() -> None:
    hounsfield = encoded(row_image("F", [-1000.0, 500.0, 2000.0]), "TIFF")
    assert greys(open_image(hounsfield, value_range=(-1000, 2000))) == [0, 128, 255]
    assert greys(open_image(row_image("L", [0, 50, 100]), value_range=(0, 100))) == [0, 128, 255]
    colours = open_image(row_image("RGB", [(0, 50, 100), (100, 0, 0)]), value_range=(0, 100))
    assert colours.getpixel((0, 0)) == (0, 128, 255)
    bright, clear = row_image("L", [0, 200]), row_image("RGBA", [(0, 0, 0, 9)] * 2)
    calls = {
        r".*from -1000 to 2000; expected 0 to 1, .* value_range=\(-1000, 2000\)": lambda: open_image(hounsfield),
        ".*from -1000 to 2000; expected 0 to 1000 = value_range": lambda: open_image(hounsfield, value_range=(0, 1000)),
        r".*values from 0 to 200; outside of value_range = \(0, 100\); numpy.clip": lambda: open_image(
            bright, value_range=(0, 100)
        ),
        ".*expected greyscale or opaque RGB for value_range": lambda: open_image(clear, value_range=(0, 100)),
    }
    check_refusals(ImageError, calls)


@pytest.mark.parametrize(
    ("bits", "kind", "dtype", "top"), [(8, 1, "u1", 255), (16, 1, "<u2", 65_535), (32, 3, "<f4", 1)]
)
@pytest.mark.parametrize("white_is_zero", [False, True])
def test_white_is_zero_is_right_at_every_depth(bits: int, kind: int, dtype: str, top: int, white_is_zero: bool) -> None:
    values = np.array([[0, top, top / 5]] * 2).astype(dtype)
    data = bytearray(tiff(3, 2, bits, 1, kind, values.tobytes()))
    photometric = data.index(struct.pack("<HHI", 262, 3, 1)) + 8
    data[photometric] = not white_is_zero
    assert greys(open_image(bytes(data))) == ([255, 0, 204] if white_is_zero else [0, 255, 51])
    if bits > 8:
        ranged = greys(open_image(bytes(data), value_range=(-3 * top, top)))
        assert ranged == ([64, 0, 51] if white_is_zero else [191, 255, 204])
