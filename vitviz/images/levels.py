"""Pixels of every mode as RGB with 8 bits a channel: transparency, deep greyscale, value ranges and colours."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from PIL import Image

from vitviz.errors.kinds import ImageError
from vitviz.images.colours import Conversion, conversion_of
from vitviz.images.sources import CUT, NOT_NUMBERS, ValueRange, eight_bit

# Converting in strips avoids a third copy of the picture in memory.
STRIP_PIXELS = 2**18
# Tags of a TIFF file.
BITS, PHOTOMETRIC, SAMPLES, PLANAR, EXTRA_SAMPLES, SAMPLE_FORMAT = 258, 262, 277, 284, 338, 339
COLOURS, UNSPECIFIED = 2, 0
WHITE_IS_ZERO, IN_PLANES, UNSIGNED, SIGNED = 0, 2, (1,), (2,)
SWAPPED_RAWMODES = ("F;32BF", "I;16BS", "I;32B", "I;32BS")
DEEP_TOP = 65535
# Deep pictures whose brightest value has fewer bits are nearly black.
DARK_BITS = 14
# Pictures of 8 bits that end below look black, such as masks of 0 and 1.
BLACK_LEVELS = 16
# In an assumption of this module: that a picture is dark, and the value of white that may be meant.
DARK = re.compile(r"(its .*, so that it is dark): (?:.*value_range=\(0, (\d+)\))?")
MODES_IN_RANGE = ("1", "L", "RGB")
ARRAY_INSTEAD = "expected 8 bits without a sign, or an array, as tifffile gives it, and value_range"
MISREAD = f"which Pillow misreads; {ARRAY_INSTEAD}"


@dataclass(frozen=True)
class Encoding:
    """What a file states about its values, read before it is decoded.

    Args:
        transparency: the transparent colour of a PNG, scaled to the depth of the pixels; None if Pillow scales it
            correctly itself.
        top: the largest value that a deep greyscale file can hold.
        white_is_zero: whether large values are dark, in a TIFF file of deep greyscale.
        is_cut: whether Pillow reads 8 of its 16 bits.
        is_unsigned: whether a TIFF file states that no number is negative.
        more_channels: a sentence on channels beyond red, green and blue that a TIFF file does not call transparency.
        misread: what Pillow gives wrong values of; empty if there is no such thing.
    """

    transparency: int | tuple[int, ...] | None
    top: int
    white_is_zero: bool
    is_cut: bool
    is_unsigned: bool
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
        top = 4095 if tags.get(BITS) == (12,) else DEEP_TOP
        is_cut = ";16" in rawmode and not _is_deep(image)
        # libtiff gives the numbers of compressed pictures in the order of this machine.
        is_swapped = bool(tiles) and tiles[0][0] == "libtiff" and rawmode in SWAPPED_RAWMODES
        is_in_planes = tags.get(PLANAR) == IN_PLANES and len(image.getbands()) > 1 and max(tags.get(BITS, (8,))) != 8
        is_signed = tags.get(SAMPLE_FORMAT) == SIGNED and tags.get(BITS) == (8,)
        misread = "planes of 16 bits for each colour, or compressed big-endian numbers" * (is_swapped or is_in_planes)
        misread = "signed numbers of 8 bits" if is_signed else misread
        more, kinds = "", tags.get(EXTRA_SAMPLES)
        if tags.get(PHOTOMETRIC) == COLOURS and tags.get(SAMPLES, 3) > 3 and not kinds:
            more = "its fourth channel is taken for transparency, which the file does not state"
        elif tags.get(PHOTOMETRIC) == COLOURS and kinds and kinds[0] == UNSPECIFIED:
            more = "its channels beyond red, green and blue are not shown"
        is_unsigned = image.format == "TIFF" and tags.get(SAMPLE_FORMAT, UNSIGNED) == UNSIGNED
        return cls(colour, top, tags.get(PHOTOMETRIC) == WHITE_IS_ZERO, is_cut, is_unsigned, more, misread)


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
    if encoding.misread:
        raise ImageError(f"{name}: {encoding.misread}, {MISREAD}")
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
        assumptions.append(_dark_sentence(image, encoding) if value_range is None else "")
        if not is_opaque_rgb or conversion is not None:
            convert = partial(_on_white if image.has_transparency_data else _opaque, conversion)
    rgb = image if is_opaque_rgb else Image.new("RGB", image.size)
    if convert is not None:
        for box, strip in strips(image):
            rgb.paste(convert(strip), box)
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
        hint = "read it by another package, such as tifffile or imageio, and pass the array"
        raise ImageError(f"{name}: 16 bits a colour, of which Pillow reads 8; expected no value_range, or {hint}")
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
    if low < 0 and encoding.is_unsigned:
        raise ImageError(f"{name}: numbers of 32 bits above 2,147,483,647, {MISREAD}")
    is_integer = image.mode == "I"
    top = 1.0 if image.mode == "F" else 255 if is_integer and high <= 255 else encoding.top
    start, end = value_range or (0.0, top)
    if not (low >= start and high <= end):
        expected = f"expected {start:g} to {end:g}"
        hint = ", or value_range, the values of black and white" if value_range is None else f" = value_range{CUT}"
        if np.isnan(low):
            raise ImageError(f"{name}: {NOT_NUMBERS}")
        raise ImageError(f"{name}: greyscale values from {low:g} to {high:g}; {expected}{hint}")
    sentence = ""
    if value_range is None and is_integer:
        sentence = f"its whole numbers, up to {high:,}, are read as 0 (black) to {top:,} (white)"
    if value_range is None and top == DEEP_TOP and 0 < high < 2**DARK_BITS:
        sentence = f"its 16-bit values end at {high:,} of {top:,}, so that it is dark"
        bits = max(8, int(high).bit_length())
        sentence += f": if it has {bits} bits, its value of white is {2**bits - 1}, value_range=(0, {2**bits - 1})"
    return (start, end), sentence


def _dark_sentence(image: Image.Image, encoding: Encoding) -> str:
    """A sentence on a picture that uses low values only; of 16 bits a colour, Pillow has dropped the lower 8."""
    # Of 64 pixels, one is nearly always bright enough, which spares the search through all.
    sample = image.resize((8, 8), Image.Resampling.NEAREST).tobytes() if image.mode == "RGB" else b""
    if not encoding.is_cut and max(sample, default=0) >= BLACK_LEVELS:
        return ""
    extrema: Any = image.getextrema() if encoding.is_cut or image.mode in ("L", "RGB") else ()
    pairs = (extrema,) if image.mode == "L" else extrema
    highest = max((pair[1] for pair, band in zip(pairs, image.getbands(), strict=False) if band != "A"), default=0)
    if not encoding.is_cut and 0 < highest < BLACK_LEVELS:
        return f"its values end at {highest} of 255, so that it is dark: value_range=(0, {highest}) makes it brighter"
    if not encoding.is_cut or not 0 < highest < 2 ** (DARK_BITS - 8):
        return ""
    sentence = "its 16-bit colours use at most a quarter of their range, so that it is dark"
    return f"{sentence}: an array with value_range makes it brighter"


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
