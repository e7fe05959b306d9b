"""Open a file, picture or array as an upright RGB image."""

from __future__ import annotations

import io
import math
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

from vitviz.errors.arguments import instance, named_arguments, word
from vitviz.errors.extras import needs
from vitviz.errors.kinds import ConfigError, ImageError
from vitviz.errors.messages import describe, legible
from vitviz.images.code_points import STATED_BYTES, read_code_points
from vitviz.images.colours import COLOR_PROFILES, ColorProfile
from vitviz.images.decoding import decoded, heif_formats, open_undecoded
from vitviz.images.file_kinds import (
    AS_ARRAY,
    EXPECTED,
    HEIC,
    MAX_PIXELS,
    RAW,
    RAW_SUFFIXES,
    START_BYTES,
    TIFF,
    UNREAD,
    kind_of,
)
from vitviz.images.image_facts import ImageFacts
from vitviz.images.levels import Encoding, dark_sentence, to_rgb
from vitviz.images.sources import (
    CHANNELS,
    ImageSource,
    ValueRange,
    as_array,
    as_source,
    checked_range,
    eight_bit,
    other_call,
    pictures_of,
)
from vitviz.system.paths import missing

MIN_SIDE, MAX_SIDE = 2, 100_000
# A single letter is a drive, not a scheme. One slash is enough, since pathlib.Path drops the other.
URL = re.compile(r"[a-z][a-z0-9+.-]+:/{1,2}[^/]|data:", re.IGNORECASE)
CLOSED = (
    "the image is closed, or the file that it is read from; expected one that is used inside its with block, or a copy "
    "that image.copy() made there"
)
SMALLER = (
    "raise PIL.Image.MAX_IMAGE_PIXELS for a picture that you trust (None is no limit; in the command, --max-pixels) or "
    "make it smaller, as image.reduce(4) does; tifffile.imread(path, level=2) reads a smaller level of a slide"
)
SMALLER_HERE = (
    "at most {:,} are opened: save a smaller copy, such as of half the width and height, or save it as JPEG, which is "
    "reduced while it is decoded"
)
# What Pillow says of a picture above its limit; the second where warnings are errors.
BOMBS = (Image.DecompressionBombError, Image.DecompressionBombWarning)
# Formats whose programs often write an alpha of 0 everywhere.
BITMAPS = ("BMP", "DIB", "TGA", "ICO", "CUR")


@named_arguments(ConfigError)
def open_image(
    source: ImageSource,
    name: str | None = None,
    *,
    value_range: ValueRange | None = None,
    color_profile: ColorProfile = "apply",
) -> Image.Image:
    """An upright RGB image with 8 bits a channel in the colours of sRGB, on white where it is transparent.

    What it assumed of the picture, a sentence each, is in :attr:`vitviz.images.PreparedImage.assumptions`.

    Args:
        source: a path, the bytes of a file, an open file, a PIL image, an array ``"height width"`` or ``"height width
            channel"`` with 1, 3 or 4 channels, uint8 in [0, 255] or floating point in [0, 1], or a tensor ``"channel
            height width"``. Never changed. JPEG, PNG, WebP, GIF (first frame), TIFF, BMP, PPM and AVIF files, and HEIC
            with the extra ``heif``.
        name: of the image in error messages; None to take it from the source.
        value_range: the values of black and white in an array, a tensor, or a greyscale or RGB picture; required for
            floating-point tensors. By default those of uint8, of 16 bits, or 0 and 1 of floating point.
        color_profile: ``"apply"`` converts colours from the picture's profile, or the gamma of a PNG file, to sRGB as
            browsers do; ``"ignore"`` keeps the stored values.

    Returns:
        A new RGB image of at least 2×2 and at most 64 million pixels; larger pictures are reduced, JPEG files while
        they are decoded. No side is above 100,000.

    Raises:
        ImageError: there is no such file, it is no image of these formats, it is damaged or truncated, it has too few
            pixels or more than ``PIL.Image.MAX_IMAGE_PIXELS`` allows, or its values are outside of the range.
        ConfigError: the range or the choice of the profile is invalid.

    >>> vitviz.open_image("cat.jpg").size
    (451, 300)
    """
    name = legible(instance("name", name or _name_of(source), str, "pathlib.Path(path).name"))
    value_range = checked_range(value_range)
    word("color_profile", color_profile, COLOR_PROFILES, ConfigError)
    source = as_source(source, name)
    if isinstance(source, np.ndarray | torch.Tensor):
        source, value_range = _from_array(source, name, value_range)
    if isinstance(source, Image.Image):
        facts = ImageFacts.of(source)
        size = source.size if facts.is_input else facts.size
        return _finished(source, name, size, value_range, color_profile, facts.assumptions)
    return UnopenedImage(source, name, value_range, color_profile).open()


class UnopenedImage:
    """A picture file whose header is read and whose pixels are not decoded yet.

    Args:
        source, name, value_range, color_profile: as for :func:`open_image`; a path, the bytes of a file, or an open
            one, which it closes.
        max_pixels: that it may have, if it is a stranger's; None for Pillow's limit.

    Raises:
        ImageError: as :func:`open_image`, as far as the header tells.
    """

    def __init__(
        self,
        source: object,
        name: str | None = None,
        value_range: ValueRange | None = None,
        color_profile: ColorProfile = "apply",
        max_pixels: int | None = None,
    ) -> None:
        self._name, self._options = legible(name or _name_of(source)), (value_range, color_profile)
        self._file = source if isinstance(source, io.BufferedReader) else opened_file(source, self._name)
        try:
            self._image, self._full_size = _identified(self._file, self._name, max_pixels)
        except BaseException:
            self._file.close()
            raise

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels of what is decoded, before it is turned upright."""
        return self._image.size

    def open(self) -> Image.Image:
        """Decode it as :func:`open_image` does. Can be called once.

        Raises:
            ImageError: as :func:`open_image`.
        """
        with self._file:
            return _finished(self._image, self._name, self._full_size, *self._options, file=self._file)


def _name_of(source: object) -> str:
    if isinstance(source, np.ndarray | torch.Tensor):
        kind = "array" if isinstance(source, np.ndarray) else "tensor"
        return f"{kind} of shape {tuple(source.shape)} and type {source.dtype}"
    # Of a PIL image, of an open file or an upload.
    attribute = "filename" if isinstance(source, Image.Image) else "name" if hasattr(source, "read") else ""
    path: Any = (getattr(source, attribute, None) or None) if attribute else source
    is_path = isinstance(path, str | os.PathLike) and not str(path).startswith("data:")
    return Path(path).name or repr(str(path)) if is_path else "the image"


def opened_file(source: object, name: str, expected: str = EXPECTED) -> BinaryIO:
    """The open file of a path or of bytes; ``expected`` ends the message about what is none.

    Raises:
        ImageError: there is no such file.
    """
    if isinstance(source, bytes):
        return io.BytesIO(source)
    if not isinstance(source, str | os.PathLike):
        hint = "; cv2.imread gives None for a file that it cannot read" if source is None else other_call(source)
        raise ImageError(
            f"{name}: {describe(source)} found; expected a path, bytes, a PIL image, a NumPy array or a tensor{hint}"
        )
    if URL.match(os.fspath(source)):
        raise ImageError(f"{name}: a URL; vitviz does not fetch pictures: save it, and give its path")
    # Reading a pipe would block, and a device has no end.
    is_other = os.path.exists(source) and not (os.path.isfile(source) or os.path.isdir(source))
    if is_other or not os.fspath(source):
        raise ImageError(f"{name}: {'a pipe, a socket or a device' if is_other else 'an empty path'}; {expected}")
    try:
        return open(source, "rb")
    except (OSError, ValueError) as error:
        reason = f"cannot be read ({getattr(error, 'strerror', None) or error}); {expected}"
        if isinstance(error, FileNotFoundError):
            reason = missing(source, f"; {expected}")
        elif isinstance(error, IsADirectoryError):
            reason = f"a folder; {expected}; of its pictures, vitviz.analyze_batch({pictures_of(source)}, model)"
        raise ImageError(f"{name}: {reason}") from None


def _identified(file: BinaryIO, name: str, max_pixels: int | None) -> tuple[Image.Image, tuple[int, int]]:
    """The image in a file after its header is checked, and its full size; its pixels are not decoded yet."""
    try:
        image, full_size = open_undecoded(file)
    except BOMBS as error:
        # Of a stranger's picture, Pillow's limit is not the one that counts.
        end, way = (",", SMALLER) if max_pixels is None else (" exceeds", SMALLER_HERE.format(max_pixels))
        raise ImageError(f"{name}: {str(error).partition(end)[0]}; {way}") from None
    # SyntaxError: of a JPEG file.
    except (UnidentifiedImageError, SyntaxError):
        file.seek(0)
        kind = kind_of(file.read(START_BYTES))
        if kind == HEIC:
            way = "damaged, or of a rare kind" if heif_formats() else needs("which", "pillow_heif")
            raise ImageError(f"{name}: {kind}, {way}; {EXPECTED}, so convert it or export it as JPEG") from None
        kind = RAW if kind == TIFF and name.lower().endswith(RAW_SUFFIXES) else kind
        raise ImageError(f"{name}: {kind}; {EXPECTED}") from None
    except Exception as error:
        raise _refusal(error, name, "image") from error
    if max_pixels is not None and math.prod(image.size) > max_pixels:
        raise ImageError(f"{name}: {math.prod(image.size):,} pixels; {SMALLER_HERE.format(max_pixels)}")
    _check_sides(image.size, name)
    return image, full_size


def _refusal(error: Exception, name: str, kind: str) -> ImageError:
    """What Pillow's error means: its decoders raise a dozen kinds."""
    if isinstance(error, MemoryError):
        return ImageError(f"{name}: opening it takes more memory than there is; expected a picture that takes less")
    if isinstance(error, BOMBS):
        return ImageError(f"{name}: {str(error).partition(',')[0]}; {SMALLER}")
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    if kind == "TIFF":
        return ImageError(f"{name}: a TIFF file cut short, or {UNREAD}: {reason}; {AS_ARRAY}")
    return ImageError(
        f"{name}: Pillow cannot decode this {kind}: damaged or cut short, or of a rare kind ({reason}); expected a "
        "whole one of a common kind: save it as PNG"
    )


def _from_array(
    source: np.ndarray | torch.Tensor, name: str, value_range: ValueRange | None
) -> tuple[Image.Image, ValueRange | None]:
    """An image of an array's levels, and a range for them: None if a narrower one may be meant."""
    array = source if isinstance(source, np.ndarray) else as_array(source, name)
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in CHANNELS) or 0 in array.shape:
        hint = (
            "; of 'channel height width', array.transpose(1, 2, 0) gives that"
            if array.ndim == 3 and array.shape[0] in CHANNELS
            else other_call(source)
        )
        raise ImageError(f"{name}: expected 'height width' or 'height width channel' with 1, 3 or 4 channels{hint}")
    levels = np.ascontiguousarray(eight_bit(array, name, value_range, is_tensor=isinstance(source, torch.Tensor)))
    image = Image.fromarray(levels[..., 0] if levels.ndim == 3 and levels.shape[2] == 1 else levels)
    if value_range is None and array.dtype != np.uint8:
        sentence = dark_sentence(float((array if array.ndim == 2 else array[..., :3]).max()), 1)
        ImageFacts((sentence,) * bool(sentence), image.size, image.size).keep(image)
    return image, None if value_range is None and array.dtype == np.uint8 else (0, 255)


def _check_sides(size: tuple[int, int], name: str) -> None:
    width, height = size
    if min(size) < MIN_SIDE:
        raise ImageError(f"{name}: {width}×{height} pixels; expected at least {MIN_SIDE}×{MIN_SIDE}")
    if max(size) > MAX_SIDE:
        raise ImageError(f"{name}: {width}×{height} pixels; expected at most {MAX_SIDE:,} on either side: crop it")


def _finished(
    image: Image.Image,
    name: str,
    full_size: tuple[int, int],
    value_range: ValueRange | None = None,
    color_profile: ColorProfile = "apply",
    assumptions: tuple[str, ...] = (),
    file: BinaryIO | None = None,
) -> Image.Image:
    """A new image: decoded, upright and RGB. That of a file is changed."""
    _check_sides(image.size, name)
    stored_size, more = image.size, list(assumptions)
    try:
        encoding, is_moving = Encoding.of(image, name), is_animated(image) and not image.tell()
        _read_colours(image, file)
        image = decoded(image, file)
        upright = image
        # The picture itself is intact if its EXIF block is damaged.
        with suppress(Exception):
            if file is None:
                upright = ImageOps.exif_transpose(image)
            else:
                ImageOps.exif_transpose(image, in_place=True)
        if image.format in BITMAPS and upright.getbands()[-1] == "A" and upright.getextrema()[-1] == (0, 0):
            upright = upright.convert("RGB")
            more.append("its alpha is 0 everywhere, and its colours are shown without it, as in browsers")
        rgb, sentences = to_rgb(upright, name, encoding, value_range, color_profile)
    except ImageError:
        raise
    except Exception as error:
        if file is None and ("closed" in str(error) or isinstance(error, AssertionError | AttributeError)):
            raise ImageError(f"{name}: {CLOSED}") from None
        raise _refusal(error, name, image.format or image.mode) from error
    more += sentences
    is_flat = rgb.getcolors(1) is not None
    # Phones store a second exposure or a map of depths behind a photograph, as MPO.
    if is_moving and (is_flat or image.format != "MPO"):
        more.append(
            f"it has several frames or pages, and the first{', which is of one colour,' * is_flat} is read"
            f"{': save another' * is_flat}"
        )
    size = full_size if upright.size == stored_size else full_size[::-1]
    factor = math.ceil(math.sqrt(math.prod(rgb.size) / MAX_PIXELS))
    rgb = rgb.reduce(factor) if factor > 1 else rgb
    more += [f"it is reduced from {size[0]}×{size[1]} to {rgb.width}×{rgb.height} pixels"] * (
        size != rgb.size and (file is not None or factor > 1)
    )
    # Orientation and transparency are applied; left in the metadata, they would be applied again.
    rgb.info.clear()
    ImageFacts(tuple(more), size, rgb.size).keep(rgb)
    return rgb


def is_animated(source: object) -> bool:
    """Whether this is an image that has further frames or pages."""
    # The file behind an image that is decoded may be closed.
    with suppress(ValueError):
        return bool(getattr(source, "is_animated", False))
    return False


def may_change(source: object) -> bool:
    """Whether its owner may change a source later, as to the next frame of a GIF file, or by filling a buffer anew."""
    is_still = isinstance(source, ImageFile.ImageFile) and not is_animated(source)
    return not is_still and not isinstance(source, str | os.PathLike | bytes | Mapping)


def _read_colours(image: Image.Image, file: BinaryIO | None) -> None:
    """Keep the code points of an image that is not decoded."""
    source: Any = file or getattr(image, "fp", None)
    if source is not None and getattr(image, "tile", None):
        place = source.tell()
        source.seek(0)
        read_code_points(image, source.read(STATED_BYTES))
        source.seek(place)
    else:
        read_code_points(image, b"")
