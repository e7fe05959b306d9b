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
from vitviz.images.file_kinds import AS_ARRAY, RAW, RAW_SUFFIXES, THUMBNAIL
from vitviz.images.sources import CUT, NOT_NUMBERS, ValueRange, eight_bit

# Converting in strips avoids a third copy of the picture in memory.
STRIP_PIXELS = 2**18
# Tags of a TIFF file and some of their values; the last tag is of DNG files only.
SUBFILE, BITS, PHOTOMETRIC, SAMPLES, PLANAR, DIRECTORIES = 254, 258, 262, 277, 284, 330
EXTRA_SAMPLES, SAMPLE_FORMAT, DNG_VERSION = 338, 339, 50706
IS_THUMBNAIL, WHITE_IS_ZERO, COLOURS, YCBCR, IN_PLANES, UNSIGNED, SIGNED = 1, 0, 2, 6, 2, (1,), (2,)
# Numbers of several bytes in the other order than this machine's.
SWAPPED_RAWMODES = ("F;32BF", "I;16BS", "I;32B", "I;32BS")
# Of a PNG file with a transparent colour, which Pillow does not scale as it scales the pixels.
MISREAD_TRANSPARENCY = ("L;2", "L;4", "RGB;16B")
DEEP_TOP = 65535
# Pictures whose brightest level is below this look black, such as masks of 0 and 1; of deep ones, those of 12 bits in
# 16. Those whose darkest level is above all but as many look white.
BLACK_LEVELS, DEEP_BLACK_SHARE = 16, 0.25
# In an assumption of this module: that a picture is dark, and the value of white that may be meant.
DARK = re.compile(r"(its .*, so that it is dark)(?:: value_range=\(0, (\d+)\))?")
MODES_IN_RANGE = ("1", "L", "RGB")
AS_BRIGHTER_ARRAY = ": as an array with value_range, such as cv2.imread(path, -1)[..., 2::-1], it is brighter"
PALE = (
    "it is nearly white everywhere, since it is transparent or of little ink: "
    "PIL.Image.open(path).convert('RGB') leaves transparency out, and an array with value_range reads 16 bits"
)


@dataclass(frozen=True)
class Encoding:
    """What a file states about its values, read before it is decoded.

    Args:
        top: the largest value that a deep greyscale file can hold.
        white_is_zero: whether large values are dark, in a TIFF file of deep greyscale.
        is_cut: whether Pillow reads 8 of its 9 to 16 bits a colour.
    """

    top: int
    white_is_zero: bool
    is_cut: bool

    @classmethod
    def of(cls, image: Image.Image, name: str) -> Encoding:
        """The encoding of an image.

        Raises:
            ImageError: it is a camera's raw file, or Pillow gives wrong values of it.
        """
        tags: Any = getattr(image, "tag_v2", {})
        decoder, *_, arguments = (getattr(image, "tile", ()) or [("", "")])[0]
        rawmode = arguments if isinstance(arguments, str) else str(arguments[0]) if arguments else ""
        if tags and (DNG_VERSION in tags or name.lower().endswith(RAW_SUFFIXES)):
            raise ImageError(f"{name}: {RAW}")
        if tags.get(SUBFILE, 0) & IS_THUMBNAIL and (DIRECTORIES in tags or image.is_animated):  # type: ignore[attr-defined]
            raise ImageError(f"{name}: {THUMBNAIL}")
        bits, numbers = tags.get(BITS, (8,)), tags.get(SAMPLE_FORMAT, UNSIGNED)
        is_misread = (
            (tags.get(PLANAR) == IN_PLANES and tags.get(SAMPLES, 1) > 1)
            or (bits, numbers) in (((8,), SIGNED), ((32,), UNSIGNED))
            or (tags.get(PHOTOMETRIC) == YCBCR and decoder == "raw")
            # Its fourth band would be taken for transparency.
            or (tags.get(PHOTOMETRIC) == COLOURS and tags.get(SAMPLES, 1) > 3 and not tags.get(EXTRA_SAMPLES))
            or (decoder == "libtiff" and rawmode in SWAPPED_RAWMODES)
        )
        if is_misread:
            raise ImageError(f"{name}: a TIFF file of bands, numbers or colours that Pillow misreads; {AS_ARRAY}")
        if image.format == "PNG" and "transparency" in image.info and rawmode in MISREAD_TRANSPARENCY:
            raise ImageError(
                f"{name}: a PNG file of 2, 4 or 16 bits a channel, of which one colour is transparent and which Pillow "
                "misreads; expected a copy saved with 8 bits a channel"
            )
        is_ppm = image.format == "PPM" and isinstance(arguments, tuple) and arguments[-1] > 255
        is_cut = (is_ppm or rawmode.endswith((";16B", ";16L", ";16N"))) and not _is_deep(image)
        return cls(4095 if bits == (12,) else DEEP_TOP, tags.get(PHOTOMETRIC) == WHITE_IS_ZERO, is_cut)


def to_rgb(
    image: Image.Image, name: str, encoding: Encoding, value_range: ValueRange | None, color_profile: str
) -> tuple[Image.Image, list[str]]:
    """An image as RGB, on white where it is transparent, and what was assumed, a sentence each.

    Args:
        image: decoded.
        name: of the image in error messages.
        encoding: of its file.
        value_range: the values of black and white; None for those of its mode.
        color_profile: ``"apply"`` or ``"ignore"``.

    Raises:
        ImageError: values lie outside of the range, or it cannot be applied.
    """
    conversion, sentence = conversion_of(image) if color_profile == "apply" else (None, "")
    assumptions, is_clear = [sentence], image.has_transparency_data
    convert: Callable[[Image.Image], Image.Image] | None = None
    if _is_deep(image):
        ends, sentence = _deep_range(image, name, encoding, value_range)
        assumptions.append(sentence)
        convert = partial(_from_deep_grey, name, ends, encoding, conversion)
    elif value_range is not None and tuple(value_range) != (0, 255):
        _check_range(image, name, encoding)
        convert = partial(_from_levels, name, value_range, conversion)
    elif is_clear or conversion is not None or image.mode != "RGB":
        convert = partial(_on_white if is_clear else _opaque, conversion)
    # A copy of the whole by crop, which counts Pillow's limit of pixels.
    rgb = image.crop((0, 0, *image.size)) if convert is None else Image.new("RGB", image.size)
    if convert is not None:
        for box, strip in strips(image):
            rgb.paste(convert(strip), box)
    # A few pixels tell of most pictures that they are not dark.
    is_dim = np.max(rgb.resize((64, 64), Image.Resampling.NEAREST).getextrema()) < BLACK_LEVELS
    if value_range is None and is_dim and not _is_deep(image):
        dark = dark_sentence(int(np.max(rgb.getextrema())), 255)
        is_other = image.mode not in MODES_IN_RANGE or encoding.is_cut or is_clear or conversion is not None
        assumptions.append(dark.partition(":")[0] + AS_BRIGHTER_ARRAY if is_other and dark else dark)
    if (is_clear or image.mode == "CMYK") and np.min(rgb.getextrema()) >= 256 - BLACK_LEVELS:
        assumptions.append(PALE)
    return rgb, [*filter(None, assumptions)]


def _is_deep(image: Image.Image) -> bool:
    return image.mode == "F" or image.mode.startswith("I")


def strips(image: Image.Image) -> Iterator[tuple[tuple[int, int, int, int], Image.Image]]:
    """The box, left, top, right and bottom, and the pixels of each strip of an image, from top to bottom."""
    rows = max(1, STRIP_PIXELS // image.width)
    for top in range(0, image.height, rows):
        box = (0, top, image.width, min(top + rows, image.height))
        yield box, image.crop(box)


def _opaque(conversion: Conversion | None, image: Image.Image) -> Image.Image:
    return image.convert("RGB") if conversion is None else conversion(image)


def _on_white(conversion: Conversion | None, image: Image.Image) -> Image.Image:
    # Of premultiplied grey, Pillow converts to nothing else.
    image = (image.convert("LA") if image.mode == "La" else image).convert("RGBA")
    white = Image.new("RGB", image.size, "white")
    white.paste(_opaque(conversion, image), mask=image)
    return white


def _from_levels(name: str, value_range: ValueRange, conversion: Conversion | None, image: Image.Image) -> Image.Image:
    levels = eight_bit(np.asarray(image.convert("L") if image.mode == "1" else image), name, value_range)
    return _opaque(conversion, Image.fromarray(levels))


def _check_range(image: Image.Image, name: str, encoding: Encoding) -> None:
    """Check that a range of values can be applied to the levels of an image."""
    if image.mode not in MODES_IN_RANGE or image.has_transparency_data:
        raise ImageError(
            f"{name}: a picture of mode {image.mode}{' with transparency' * image.has_transparency_data}; expected "
            "greyscale or opaque RGB for value_range, or no value_range"
        )
    if encoding.is_cut:
        raise ImageError(f"{name}: 16 bits a colour, of which Pillow reads 8, so that no value_range fits: {AS_ARRAY}")


def _deep_range(
    image: Image.Image, name: str, encoding: Encoding, value_range: ValueRange | None
) -> tuple[ValueRange, str]:
    """The values of black and white of deep greyscale, and a sentence on them where the file leaves them open."""
    bounds = [(values.min(), values.max()) for values in (np.asarray(strip) for _, strip in strips(image))]
    # Python's min and max may hide NaN.
    low, high = np.min(bounds), np.max(bounds)
    if np.isnan(low):
        raise ImageError(f"{name}: {NOT_NUMBERS}")
    is_integer = image.mode == "I"
    top = 1.0 if image.mode == "F" else 255 if is_integer and high <= 255 else encoding.top
    start, end = value_range or (0.0, top)
    if not (low >= start and high <= end):
        hint = f", or the values of black and white, such as value_range=({min(low, 0):g}, {high:g})"
        raise ImageError(
            f"{name}: greyscale values from {low:g} to {high:g}; expected {start:g} to {end:g}"
            f"{hint if value_range is None else f' = value_range{CUT}'}"
        )
    if value_range is not None:
        return value_range, ""
    sentence = dark_sentence(top - low if encoding.white_is_zero else high, top, encoding.white_is_zero)
    numbers = f"its whole numbers, up to {high:,}, are read as 0 (black) to {top:,} (white)"
    return (start, end), sentence or numbers * is_integer


def dark_sentence(highest: float, top: float, white_is_zero: bool = False) -> str:
    """A sentence on a picture whose values end far below that of white; empty if they do not.

    Args:
        highest: its brightest value, of which 0 is black.
        top: the value of white.
        white_is_zero: whether the file stores ``top`` minus the value.
    """
    if highest >= (BLACK_LEVELS if top == 255 else top * DEEP_BLACK_SHARE):
        return ""
    if not highest:
        return "its values are all 0, so that it is dark"
    white = 2.0 ** math.ceil(math.log2(highest)) if top == 1 else 2 ** int(highest).bit_length() - 1
    black_white = f"({top - white:g}, {top:g})" if white_is_zero else f"(0, {white:g})"
    return (
        f"its values end at {highest:,.6g} of {top:,g}, so that it is dark: value_range={black_white} makes it brighter"
    )


def _from_deep_grey(
    name: str, black_white: ValueRange, encoding: Encoding, conversion: Conversion | None, image: Image.Image
) -> Image.Image:
    """Deep greyscale as 8-bit RGB, scaled by a range of values, not by that of the picture."""
    values = np.asarray(image, dtype=np.float32)
    if encoding.white_is_zero:
        values = sum(black_white) - values
    transparent = image.info.get("transparency")
    if transparent is not None:
        values = np.where(values == transparent, black_white[1], values)
    return _opaque(conversion, Image.fromarray(eight_bit(values, name, black_white)))
