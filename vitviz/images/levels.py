"""Pixels of every mode as RGB with 8 bits a channel: transparency, deep greyscale, value ranges and colours."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from PIL import Image

from vitviz.errors.kinds import ImageError
from vitviz.images.colours import Conversion, conversion_of
from vitviz.images.kinds import (
    BITS,
    EXTRA_SAMPLES,
    IN_PLANES,
    PHOTOMETRIC,
    PLANAR,
    SAMPLE_FORMAT,
    SAMPLES,
    array_instead,
    unread_tiff,
)
from vitviz.images.sources import CUT, NOT_NUMBERS, ValueRange, eight_bit

# Converting in strips avoids a third copy of the picture in memory.
STRIP_PIXELS = 2**18
# Values of a TIFF file's tags.
WHITE_IS_ZERO, COLOURS, INKS, YCBCR = 0, 2, 5, 6
UNSPECIFIED, ALPHA, UNSIGNED, SIGNED = 0, (2,), (1,), (2,)
# Channels of the colours that Pillow reads from planes.
PLANES = {COLOURS: 3, INKS: 4}
SWAPPED_RAWMODES = ("F;32BF", "I;16BS", "I;32B", "I;32BS")
DEEP_TOP = 65535
# Pictures of 8 bits that end below look black, such as masks of 0 and 1; and of deep ones, those of 12 bits in 16.
BLACK_LEVELS, DARK_SHARE = 16, 0.25
# In an assumption of this module: that a picture is dark, and the value of white that may be meant.
DARK = re.compile(r"(its .*, so that it is dark)(?:: value_range=\(0, (\d+)\))?")
MODES_IN_RANGE = ("1", "L", "RGB")
PALE = (
    "it is nearly white everywhere, since it is transparent or of little ink: "
    "PIL.Image.open(path).convert('RGB') leaves transparency out, and an array with value_range reads 16 bits"
)


@dataclass(frozen=True)
class Encoding:
    """What a file states about its values, read before it is decoded.

    Args:
        transparency: the transparent colour of a PNG, scaled to the depth of the pixels; None if Pillow scales it
            correctly itself.
        top: the largest value that a deep greyscale file can hold.
        white_is_zero: whether large values are dark, in a TIFF file of deep greyscale.
        is_cut: whether Pillow reads 8 of its 9 to 16 bits a colour.
        more_channels: a sentence on channels beyond red, green and blue that a TIFF file does not call transparency.
        misread: what it is, if it is a TIFF file of which Pillow gives wrong values; else empty.
    """

    transparency: int | tuple[int, ...] | None
    top: int
    white_is_zero: bool
    is_cut: bool
    more_channels: str
    misread: str

    @classmethod
    def of(cls, image: Image.Image) -> Encoding:
        """The encoding of an image."""
        tiles: Any = getattr(image, "tile", ())
        tags = getattr(image, "tag_v2", {})
        arguments = tiles[0][3] if tiles else ""
        rawmode = arguments if isinstance(arguments, str) else str(arguments[0]) if arguments else ""
        colour: Any = image.info.get("transparency") if image.format == "PNG" else None
        if colour is not None and rawmode in ("L;2", "L;4"):
            colour *= 85 if rawmode == "L;2" else 17
        elif colour is not None and rawmode == "RGB;16B":
            colour = tuple(channel >> 8 for channel in colour)
        else:
            colour = None
        bits, samples, photometric = tags.get(BITS, (8,)), tags.get(SAMPLES, 1), tags.get(PHOTOMETRIC)
        kinds = tags.get(EXTRA_SAMPLES, ())
        top = 4095 if bits == (12,) else DEEP_TOP
        is_ppm = image.format == "PPM" and isinstance(arguments, tuple) and arguments[-1] > 255
        is_cut = (is_ppm or rawmode.endswith((";16B", ";16L", ";16N"))) and not _is_deep(image)
        # libtiff gives the numbers of compressed pictures in the order of this machine.
        is_swapped = bool(tiles) and tiles[0][0] == "libtiff" and rawmode in SWAPPED_RAWMODES
        # Pillow takes one for the other.
        is_signed = bits == (8,) and tags.get(SAMPLE_FORMAT) == SIGNED
        is_unsigned = bits == (32,) and tags.get(SAMPLE_FORMAT, UNSIGNED) == UNSIGNED
        is_ycbcr = photometric == YCBCR and bool(tiles) and tiles[0][0] == "raw"
        is_usual = samples == PLANES.get(photometric or 0, 0) + len(kinds) and (kinds == ALPHA or not any(kinds))
        is_in_planes = tags.get(PLANAR) == IN_PLANES and samples > 1 and not (is_usual and {*bits} == {8})
        misread = unread_tiff(tags) if any((is_swapped, is_signed, is_unsigned, is_ycbcr, is_in_planes)) else ""
        more = ""
        if photometric == COLOURS and samples > 3 and not kinds:
            more = "its fourth channel is taken for transparency, which the file does not state"
        elif photometric == COLOURS and kinds and kinds[0] == UNSPECIFIED:
            more = "its channels beyond red, green and blue are not shown"
        return cls(colour, top, photometric == WHITE_IS_ZERO, is_cut, more, misread)


def to_rgb(
    image: Image.Image, name: str, encoding: Encoding, value_range: ValueRange | None, color_profile: str
) -> tuple[Image.Image, list[str]]:
    """An image as RGB, on white where it is transparent, and what was assumed, a sentence each.

    Args:
        image: decoded; it may be changed.
        name: of the image in error messages.
        encoding: of its file.
        value_range: the values of black and white; None for those of its mode.
        color_profile: ``"apply"`` or ``"ignore"``.

    Raises:
        ImageError: values lie outside of the range, or it cannot be applied.
    """
    conversion, sentence = conversion_of(image) if color_profile == "apply" else (None, "")
    assumptions = [sentence, encoding.more_channels]
    is_opaque_rgb = image.mode == "RGB" and not image.has_transparency_data
    convert: Callable[[Image.Image], Image.Image] | None = None
    if _is_deep(image):
        ends, sentence = _deep_range(image, name, encoding, value_range)
        assumptions.append(sentence)
        convert = partial(_from_deep_grey, name, ends, encoding, None if conversion is None else conversion.of_grey())
    elif value_range is not None and tuple(value_range) != (0, 255):
        convert = partial(_from_levels, _level_table(image, name, encoding, value_range), conversion)
    else:
        assumptions.append(_darkness(image, encoding) if value_range is None else "")
        if not is_opaque_rgb or conversion is not None:
            convert = partial(_on_white if image.has_transparency_data else _opaque, conversion)
    rgb = image if is_opaque_rgb else Image.new("RGB", image.size)
    if convert is not None:
        for box, strip in strips(image):
            rgb.paste(convert(strip), box)
    pale = 256 - BLACK_LEVELS * (4 if encoding.is_cut else 1)
    if (image.has_transparency_data or image.mode == "CMYK") and np.min(rgb.getextrema()) >= pale:
        assumptions.append(PALE)
    return rgb, [*filter(None, assumptions)]


def _is_deep(image: Image.Image) -> bool:
    return image.mode == "F" or image.mode.startswith("I")


def strips(image: Image.Image) -> Iterator[tuple[tuple[int, int, int, int], Image.Image]]:
    """The box, left, top, right and bottom, and the pixels of each strip of an image, from top to bottom."""
    # Pillow crops no more than its limit allows.
    rows = max(1, min(STRIP_PIXELS, Image.MAX_IMAGE_PIXELS or STRIP_PIXELS) // image.width)
    for top in range(0, image.height, rows):
        box = (0, top, image.width, min(top + rows, image.height))
        yield box, image.crop(box)


def _opaque(conversion: Conversion | None, image: Image.Image) -> Image.Image:
    return image.convert("RGB") if conversion is None else conversion.apply(image)


def _on_white(conversion: Conversion | None, image: Image.Image) -> Image.Image:
    # Pillow converts premultiplied grey to RGBA only through LA.
    image = image.convert("LA").convert("RGBA") if image.mode == "La" else image.convert("RGBA")
    white = Image.new("RGB", image.size, "white")
    white.paste(image if conversion is None else conversion.apply(image), mask=image)
    return white


def _from_levels(table: list[int], conversion: Conversion | None, image: Image.Image) -> Image.Image:
    image = image.convert("L") if image.mode == "1" else image
    return _opaque(conversion, image.point(table * len(image.getbands())))


def _level_table(image: Image.Image, name: str, encoding: Encoding, value_range: ValueRange) -> list[int]:
    """The level of each of the 256 levels of an image if these are the values of black and white."""
    if image.mode not in MODES_IN_RANGE or image.has_transparency_data:
        problem = f"a picture of mode {image.mode}{' with transparency' * image.has_transparency_data}"
        raise ImageError(f"{name}: {problem}; expected greyscale or opaque RGB for value_range, or no value_range")
    if encoding.is_cut:
        raise ImageError(
            f"{name}: 16 bits a colour, of which Pillow reads 8, so that no value_range fits: {array_instead()}"
        )
    extrema: Any = image.getextrema()
    low, high = np.min(extrema), np.max(extrema)
    values = np.arange(256)
    eight_bit(values[[low, high]], name, value_range)
    return eight_bit(values.clip(*value_range), name, value_range).tolist()


def _deep_range(
    image: Image.Image, name: str, encoding: Encoding, value_range: ValueRange | None
) -> tuple[ValueRange, str]:
    """The values of black and white of deep greyscale, and a sentence on them where the file leaves them open."""
    bounds = [(values.min(), values.max()) for values in (np.asarray(strip) for _, strip in strips(image))]
    # Python's min and max may hide NaN.
    low, high = np.min(bounds), np.max(bounds)
    is_integer = image.mode == "I"
    top = 1.0 if image.mode == "F" else 255 if is_integer and high <= 255 else encoding.top
    start, end = value_range or (0.0, top)
    if not (low >= start and high <= end):
        expected = f"expected {start:g} to {end:g}"
        hint = f", or the values of black and white, such as value_range=({min(low, 0):g}, {high:g})"
        hint = hint if value_range is None else f" = value_range{CUT}"
        if np.isnan(low):
            raise ImageError(f"{name}: {NOT_NUMBERS}")
        raise ImageError(f"{name}: greyscale values from {low:g} to {high:g}; {expected}{hint}")
    if value_range is not None:
        return value_range, ""
    sentence = dark_sentence(top - low if encoding.white_is_zero else high, top, encoding.white_is_zero)
    if is_integer and not sentence:
        sentence = f"its whole numbers, up to {high:,}, are read as 0 (black) to {top:,} (white)"
    return (start, end), sentence


def _darkness(image: Image.Image, encoding: Encoding) -> str:
    """A sentence on a picture that uses low values only; of 16 bits a colour, Pillow has dropped the lower 8."""
    bands = image.getbands()
    if bands[0] not in "1LR":
        return ""
    extrema = zip(bands, np.reshape(image.getextrema(), (-1, 2)), strict=True)
    highest = max(int(high) for band, (_, high) in extrema if band not in "Aa")
    sentence = dark_sentence(highest << 8 | 255, DEEP_TOP) if encoding.is_cut else dark_sentence(highest, 255)
    # Of others, Pillow has dropped 8 of 16 bits, or there is transparency.
    is_legal = image.mode in MODES_IN_RANGE and not encoding.is_cut and not image.has_transparency_data
    instead = ": as an array, such as cv2.imread(path, -1)[..., 2::-1], value_range="
    return sentence if is_legal else sentence.replace("end at", "end at most at").replace(": value_range=", instead)


def dark_sentence(highest: float, top: float, white_is_zero: bool = False) -> str:
    """A sentence on a picture whose values end far below that of white; empty if they do not.

    Args:
        highest: its brightest value, of which 0 is black.
        top: the value of white.
        white_is_zero: whether the file stores ``top`` minus the value.
    """
    if highest >= top * (BLACK_LEVELS / 256 if top == 255 else DARK_SHARE):
        return ""
    if not highest:
        return "its values are all 0, so that it is dark"
    white = 2.0 ** math.ceil(math.log2(highest)) if top == 1 else 2 ** int(highest).bit_length() - 1
    black_white = f"({top - white:g}, {top:g})" if white_is_zero else f"(0, {white:g})"
    return (
        f"its values end at {highest:,.6g} of {top:,g}, so that it is dark: value_range={black_white} makes it brighter"
    )


def _from_deep_grey(
    name: str, black_white: ValueRange, encoding: Encoding, colours: np.ndarray | None, image: Image.Image
) -> Image.Image:
    """Deep greyscale as 8-bit RGB, scaled by a range of values, not by that of the picture."""
    values = np.asarray(image, dtype=np.float32)
    low, high = black_white
    if encoding.white_is_zero:
        values = (low + high) - values
    transparent = image.info.get("transparency")
    if transparent is not None:
        values = np.where(values == transparent, high, values)
    if colours is None:
        return Image.fromarray(eight_bit(values, name, black_white)).convert("RGB")
    # Interpolated, since a curve may tear 8-bit levels apart.
    levels = (values - low) * (255 / (high - low))
    channels = [np.interp(levels, np.arange(256), channel) for channel in colours.T.astype(float)]
    return Image.fromarray(np.rint(np.stack(channels, -1)).astype(np.uint8))
