"""A picture with a colour profile, or a PNG with a gamma, opens in the colours of sRGB that a browser shows."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
from PIL import Image

import vitviz
from tests.support.colour_profiles import gamma_profile
from tests.support.image_files import chunk, encoded, png, row_image
from vitviz import Model
from vitviz.errors.kinds import ImageError
from vitviz.images import code_points
from vitviz.images.image_facts import ImageFacts
from vitviz.images.opening import open_image

pytestmark = pytest.mark.slow

# White, red, green and blue of two spaces with the white of sRGB.
P3 = (0.3127, 0.329, 0.68, 0.32, 0.265, 0.69, 0.15, 0.06)
ADOBE = (0.3127, 0.329, 0.64, 0.33, 0.21, 0.71, 0.15, 0.06)
SRGB = (0.3127, 0.329, 0.64, 0.33, 0.3, 0.6, 0.15, 0.06)
COLOURS = np.array(
    [(90, 140, 60), (200, 150, 125), (230, 120, 30), (90, 150, 220), (200, 60, 60), (128, 128, 128)], np.uint8
)


def to_xyz(chromaticities: tuple[float, ...]) -> np.ndarray:
    """Linear red, green and blue to XYZ: http://www.brucelindbloom.com/index.html?Eqn_RGB_XYZ_Matrix.html."""
    white, *primaries = [(x / y, 1, (1 - x - y) / y) for x, y in np.reshape(chromaticities, (4, 2))]
    matrix = np.array(primaries).T
    return matrix * np.linalg.solve(matrix, white)


def decode(levels: np.ndarray, gamma: float | None) -> np.ndarray:
    values = levels / 255
    if gamma is not None:
        return values ** (1 / gamma)
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def expected(levels: np.ndarray, chromaticities: tuple[float, ...], gamma: float | None) -> np.ndarray:
    """The sRGB levels of colours in a space of the same white, by the textbook."""
    linear = decode(levels, gamma) @ (np.linalg.inv(to_xyz(SRGB)) @ to_xyz(chromaticities)).T
    linear = linear.clip(0, 1)
    return 255 * np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)


def picture() -> Image.Image:
    return Image.fromarray(np.repeat(COLOURS[None], 4, 0).repeat(4, 1))


def colours_of(image: Image.Image) -> np.ndarray:
    return np.asarray(image)[2, 2::4].astype(int)


@pytest.mark.parametrize("format", ["PNG", "JPEG", "TIFF", "WEBP", "AVIF"])
@pytest.mark.parametrize("chromaticities", [P3, ADOBE], ids=["P3", "Adobe"])
def test_a_profile_is_applied_in_every_format(format: str, chromaticities: tuple[float, ...]) -> None:
    profile = gamma_profile(1 / 2.2, chromaticities)
    options = {"JPEG": {"quality": 100, "subsampling": 0}, "WEBP": {"lossless": True}, "AVIF": {"quality": 100}}
    data = encoded(picture(), format, icc_profile=profile, **options.get(format, {}))
    opened = open_image(data)
    tolerance = 6 if format == "AVIF" else 3
    assert np.abs(colours_of(opened) - expected(COLOURS, chromaticities, None)).max() <= tolerance
    assert "converted to sRGB from its colour profile" in ImageFacts.of(opened).assumptions[0]
    stored = open_image(data, color_profile="ignore")
    assert np.abs(colours_of(stored) - COLOURS).max() <= tolerance
    assert stored.info == {}


def test_a_profile_that_pillow_does_not_read_is_refused() -> None:
    bmp = encoded(picture(), "BMP")
    header = bytearray(bmp[14:54].ljust(124, b"\0"))
    header[:4], header[56:60] = struct.pack("<I", 124), b"DEBM"
    version_5 = bmp[:10] + struct.pack("<I", 138) + bytes(header) + bmp[54:]
    with pytest.raises(ImageError, match="a BMP file with a colour profile, which Pillow does not read"):
        open_image(version_5)
    with pytest.raises(ImageError, match=r"cannot decode this image: .*MAX_TEXT_CHUNK"):
        open_image(encoded(picture(), "PNG", icc_profile=gamma_profile(1 / 2.2, P3) + bytes(5_000_000)), "it")


@pytest.mark.parametrize("profile", [b"\xff" * 999, bytes(128), b"RGB ".rjust(20) + bytes(200)])
def test_a_profile_that_cannot_be_read_is_said_and_not_applied(profile: bytes) -> None:
    opened = open_image(encoded(picture(), "TIFF", icc_profile=profile))
    assert np.array_equal(colours_of(opened), COLOURS)
    assert "are taken for sRGB" in ImageFacts.of(opened).assumptions[0]


def test_colours_are_converted_before_they_are_laid_on_white() -> None:
    source = row_image("RGBA", [(200, 60, 60, 255), (200, 60, 60, 0), (200, 60, 60, 128)])
    opened = open_image(encoded(source, "PNG", icc_profile=gamma_profile(1 / 2.2, P3)))
    red = expected(np.array([(200, 60, 60)]), P3, None)[0]
    for x, colour in enumerate((red, (255, 255, 255), (red * 128 + 255 * 127) / 255)):
        assert np.abs(np.subtract(opened.getpixel((x, 0)), colour)).max() <= 2


@pytest.mark.parametrize("mode", ["P", "L", "LA"])
def test_other_modes_are_converted(mode: str) -> None:
    source = picture().quantize(6) if mode == "P" else picture().convert(mode)
    # A gamma that differs from that of sRGB changes greys as well.
    opened = open_image(encoded(source, "PNG", icc_profile=gamma_profile(1.0, SRGB)))
    assert np.abs(colours_of(opened) - expected(colours_of(source.convert("RGB")), SRGB, 1.0)).max() <= 2


def grey_profile(gamma: float) -> bytes:
    """A profile of greyscale with one power curve."""
    white = b"XYZ \0\0\0\0" + struct.pack(">3i", 63190, 65536, 54061)
    curve = b"curv\0\0\0\0" + struct.pack(">IH", 1, round(gamma * 256)) + b"\0\0"
    table = struct.pack(">I4sII4sII", 2, b"wtpt", 156, 20, b"kTRC", 176, len(curve))
    size = 128 + len(table) + len(white) + len(curve)
    head = struct.pack(">I", size) + bytes(4) + b"\x02\x40\0\0mntrGRAYXYZ " + bytes(12) + b"acsp" + bytes(28)
    return (head + white[8:]).ljust(128, b"\0") + table + white + curve


@pytest.mark.parametrize("mode", ["L", "I;16"])
def test_a_profile_of_greyscale_is_applied(mode: str) -> None:
    levels = [0, 40, 128, 255]
    values = levels if mode == "L" else [level * 257 for level in levels]
    opened = open_image(encoded(row_image(mode, values), "TIFF", icc_profile=grey_profile(1.0)))
    found = [opened.getpixel((x, 0))[0] for x in range(4)]
    assert np.abs(found - expected(np.array(levels)[:, None].repeat(3, 1), SRGB, 1.0)[:, 0]).max() <= 2


def test_a_profile_for_another_kind_of_picture_is_said_and_not_applied() -> None:
    opened = open_image(encoded(picture(), "PNG", icc_profile=grey_profile(1.0)))
    assert np.array_equal(colours_of(opened), COLOURS)
    assert "for pictures of another kind" in ImageFacts.of(opened).assumptions[0]


def ink_profile() -> bytes:
    """A profile of four inks on two grid points each, with the lightness 20 for black ink."""
    lab = np.zeros((2, 2, 2, 2, 3), np.uint8)
    for inks in np.ndindex(2, 2, 2, 2):
        lightness = 20 if inks[3] else 100 - 25 * sum(inks[:3])
        lab[inks] = round(2.55 * lightness), 128 - 40 * inks[0] * (not inks[3]), 128
    identity = bytes(range(256))
    matrix = struct.pack(">9i", *np.eye(3, dtype=int).ravel() * 65536)
    table = b"mft1\0\0\0\0" + bytes([4, 3, 2, 0]) + matrix + identity * 4 + lab.tobytes() + identity * 3
    body = b"XYZ \0\0\0\0" + struct.pack(">3i", 63190, 65536, 54061)
    index = struct.pack(">I4sII4sII", 2, b"wtpt", 156, 20, b"A2B0", 176, len(table))
    size = 128 + len(index) + len(body) + len(table)
    head = struct.pack(">I", size) + bytes(4) + b"\x02\x40\0\0prtrCMYKLab " + bytes(12) + b"acsp" + bytes(28)
    return (head + body[8:]).ljust(128, b"\0") + index + body + table


@pytest.mark.parametrize("format", ["JPEG", "TIFF"])
def test_inks_follow_their_profile(format: str) -> None:
    inks = Image.new("CMYK", (32, 16))
    inks.paste((0, 0, 0, 255), (16, 0, 32, 16))
    opened = open_image(
        encoded(inks, format, icc_profile=ink_profile(), **{"quality": 100} if format == "JPEG" else {})
    )
    assert np.abs(np.subtract(opened.getpixel((4, 8)), 255)).max() <= 2
    # CIE L* = 20 in sRGB.
    assert np.abs(np.subtract(opened.getpixel((28, 8)), 48)).max() <= 3


def gamma_png(gamma: float, *extra: bytes) -> bytes:
    return png(4, 4, 8, 2, bytes([64, 128, 192] * 4), chunk(b"gAMA", struct.pack(">I", round(gamma * 100_000))), *extra)


def test_the_gamma_of_a_png_is_applied_unless_it_is_that_of_srgb() -> None:
    levels = np.array([(64, 128, 192)])
    opened = open_image(gamma_png(1.0))
    assert np.abs(opened.getpixel((2, 2)) - expected(levels, SRGB, 1.0)).max() <= 2
    assert "PNG gamma 1" in ImageFacts.of(opened).assumptions[0]
    white_red_green_blue = chunk(b"cHRM", struct.pack(">8I", *(round(100_000 * value) for value in P3)))
    opened = open_image(gamma_png(1.0, white_red_green_blue))
    assert np.abs(opened.getpixel((2, 2)) - expected(levels, P3, 1.0)).max() <= 2
    for plain in (gamma_png(1 / 2.2), gamma_png(1.0, chunk(b"sRGB", b"\0")), gamma_png(0.0)):
        opened = open_image(plain)
        assert opened.getpixel((2, 2)) == (64, 128, 192) and opened.info == {}


# Code points (CICP) in place of a profile.


def with_code_points(format: str, primaries: int, transfer: int, **options: object) -> bytes:
    if format == "PNG":
        row = np.repeat(COLOURS, 4, 0).tobytes()
        gamma = chunk(b"gAMA", struct.pack(">I", 100_000))
        return png(24, 4, 8, 2, row, gamma, chunk(b"cICP", bytes([primaries, transfer, 0, options.get("full", 1)])))
    data = encoded(picture(), "AVIF", quality=100, subsampling="4:4:4", **options)
    start = data.index(b"colrnclx") + 8
    return data[:start] + struct.pack(">HH", primaries, transfer) + data[start + 4 :]


# What Chromium 156 shows: primaries and transfer of H.273, and the shown colours.
IN_CHROMIUM = {
    (12, 13): [(73, 142, 46), (209, 147, 121), (247, 112, 0), (67, 152, 226), (217, 42, 52), (128, 128, 128)],
    (9, 16): [(0, 172, 0), (255, 68, 52), (255, 0, 0), (0, 80, 255), (255, 0, 0), (132, 132, 132)],
    (12, 16): [(0, 166, 0), (255, 111, 60), (255, 0, 0), (0, 81, 255), (255, 0, 0), (132, 132, 132)],
    (9, 18): [(28, 113, 32), (227, 114, 98), (255, 31, 0), (0, 117, 221), (230, 0, 39), (99, 99, 99)],
    (1, 18): [(71, 109, 46), (194, 126, 103), (248, 96, 21), (70, 117, 218), (183, 46, 46), (99, 99, 99)],
}


@pytest.mark.parametrize("points", IN_CHROMIUM)
@pytest.mark.parametrize("format", ["PNG", "AVIF"])
def test_code_points_are_shown_as_in_a_browser(format: str, points: tuple[int, int]) -> None:
    data = with_code_points(format, *points)
    source = Image.open(io.BytesIO(data))
    # The second time, the image is decoded already.
    for opened in (open_image(data), open_image(source), open_image(source)):
        assert np.abs(colours_of(opened) - IN_CHROMIUM[points]).max() <= (1 if format == "PNG" else 8)
        assert f"(CICP {points[0]}, {points[1]}" in ImageFacts.of(opened).assumptions[0]
    stored = open_image(data, color_profile="ignore")
    assert np.abs(colours_of(stored) - COLOURS).max() <= 2 and stored.info == {}


def test_the_primaries_of_the_standard_are_a_triangle_around_their_white() -> None:
    for _, (x, y, *corners) in code_points.PRIMARIES.values():
        sides = [(corners[at], corners[at + 1], corners[(at + 2) % 6], corners[(at + 3) % 6]) for at in (0, 2, 4)]
        assert all((x2 - x1) * (y - y1) > (y2 - y1) * (x - x1) for x1, y1, x2, y2 in sides)
        # The three shares of a colour have the sum 1.
        assert all(0 < each < 1 for each in (x, y, *corners))
        assert all(corners[at] + corners[at + 1] <= 1 for at in (0, 2, 4))


@pytest.mark.parametrize("points", [(12, 9), (77, 13), (22, 1), (1, 4)])
def test_code_points_that_are_not_known_are_said(points: tuple[int, int]) -> None:
    opened = open_image(with_code_points("PNG", *points))
    assert np.array_equal(colours_of(opened), COLOURS)
    assert ImageFacts.of(opened).assumptions[0].endswith("are not converted: they are taken for sRGB")


def test_code_points_of_limited_range_are_ignored_as_in_a_browser() -> None:
    assert "PNG gamma 1" in ImageFacts.of(open_image(with_code_points("PNG", 12, 13, full=0))).assumptions[0]


def test_a_profile_counts_before_code_points_but_in_png() -> None:
    profile = gamma_profile(1 / 2.2, ADOBE)
    plain = encoded(picture(), "PNG", icc_profile=profile)
    stated = plain[:33] + chunk(b"cICP", bytes([12, 13, 0, 1])) + plain[33:]
    assert np.abs(colours_of(open_image(stated)) - IN_CHROMIUM[12, 13]).max() <= 1
    assert np.abs(colours_of(open_image(plain)) - expected(COLOURS, ADOBE, None)).max() <= 2
    profiled = encoded(picture(), "AVIF", quality=100, subsampling="4:4:4", icc_profile=profile)
    assert np.abs(colours_of(open_image(profiled)) - expected(COLOURS, ADOBE, None)).max() <= 6


def test_code_points_that_contradict_each_other_are_not_followed() -> None:
    data = with_code_points("AVIF", 12, 13)
    # Another picture's, such as that of a map of gains.
    for beside, points in (((12, 13), (12, 13)), ((1, 13), (0, 0))):
        image = Image.open(io.BytesIO(data))
        code_points.read_code_points(image, data + b"colrnclx" + struct.pack(">HH", *beside))
        assert image.info[code_points.KEY] == code_points.CodePoints(*points)


@pytest.mark.parametrize("numbers", [[0] * 8, [2**32 - 1] * 8, [1, 2, 3], [33_333] * 8])
def test_impossible_chromaticities_do_not_hide_the_picture(numbers: list[int]) -> None:
    opened = open_image(gamma_png(1.0, chunk(b"cHRM", struct.pack(f">{len(numbers)}I", *numbers))))
    assert opened.getpixel((2, 2)) == (64, 128, 192)
    assert "gamma cannot be read" in ImageFacts.of(opened).assumptions[0]


def test_an_analysis_says_what_was_assumed_and_keeps_stored_values(bundled: Model) -> None:
    data = encoded(picture(), "PNG", icc_profile=gamma_profile(1 / 2.2, P3))
    analysis = vitviz.analyze(data, bundled)
    (sentence,) = analysis.prepared.assumptions
    assert sentence in analysis._repr_html_() and analysis.prepared.resized(8).assumptions == (sentence,)
    stored = vitviz.analyze(data, bundled, color_profile="ignore")
    assert stored.prepared.assumptions == ()
    assert not stored.prepared.pixels.equal(analysis.prepared.pixels)
    [batched] = vitviz.analyze_batch([data], bundled)
    assert batched.prepared.pixels.equal(analysis.prepared.pixels)
