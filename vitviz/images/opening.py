"""Open a file, picture or array as an upright RGB image."""

from __future__ import annotations

import io
import math
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageFile, UnidentifiedImageError

from vitviz.errors.arguments import named_arguments, word
from vitviz.errors.extras import needs
from vitviz.errors.kinds import ConfigError, ImageError
from vitviz.errors.messages import describe, legible
from vitviz.images.code_points import read_code_points
from vitviz.images.colours import COLOR_PROFILES, ColorProfile
from vitviz.images.decoding import PictureFile, allow_reduction, decode, has_frames, heif_formats, open_undecoded
from vitviz.images.image_facts import ImageFacts
from vitviz.images.kinds import (
    COLOR_MAP,
    COMMON_COMPRESSIONS,
    COMPRESSION,
    EXPECTED,
    HEIC,
    MAX_PIXELS,
    START_BYTES,
    TIFF,
    kind_of,
    rare_tiff,
    tiff_problem,
    unread_tiff,
)
from vitviz.images.levels import Encoding, dark_sentence, to_rgb
from vitviz.images.orientation import EXIF_TRANSPOSE, QUARTER_TURNS, browser_orientation, orientation_of
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
# The bits a colour in the header of a JPEG file, if they are more than 8.
JPEG_FRAME, JPEG_HEADER_BYTES = re.compile(rb"(?s)\xff[\xc0-\xc3]\x00.([\x0a\x0c\x10])"), 2**20
CLOSED = (
    "the image is closed, or the file that it is read from; expected one that is used inside its with block, or a copy "
    "that image.copy() made there"
)
SMALLER = (
    "more than PIL.Image.MAX_IMAGE_PIXELS = {:,} allows: raise that for a picture that you trust (None is no limit; in "
    "the command, --max-pixels), or make it smaller, as image.reduce(4) does; tifffile.imread(path, level=2) reads a "
    "smaller level of a slide"
)
SMALLER_HERE = (
    "at most {:,} are opened: save a smaller copy, such as of half the width and height, or save it as JPEG, which is "
    "reduced while it is decoded"
)
# What Pillow says of whole files that it does not decode.
UNSUPPORTED = re.compile(
    r"(?i)unsupported|not .*supported|not available|cannot handle|unknown raw mode|no codec|MAX_TEXT"
)
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

    What it assumed of the picture, a sentence each, is in :attr:`vitviz.PreparedImage.assumptions`.

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
    name = legible(name or _name_of(source))
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
        source, name, value_range, color_profile: as for :func:`open_image`; a path or the bytes of a file.
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
        self._stream = _stream(source, self._name)
        try:
            self._image, self._full_size = _identified(self._stream, self._name, max_pixels)
        except BaseException:
            self._stream.close()
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
        with self._stream:
            return _finished(self._image, self._name, self._full_size, *self._options, stream=self._stream)


def _name_of(source: object) -> str:
    if isinstance(source, Image.Image):
        source = getattr(source, "filename", "") or "the image"
    # An open file or an upload.
    if hasattr(source, "read"):
        source = getattr(source, "name", "the image")
    if isinstance(source, str | os.PathLike) and not os.fspath(source).startswith("data:"):
        return Path(source).name or repr(str(source))
    if isinstance(source, np.ndarray | torch.Tensor):
        kind = "array" if isinstance(source, np.ndarray) else "tensor"
        return f"{kind} of shape {tuple(source.shape)} and type {source.dtype}"
    return "the image"


def _stream(source: object, name: str) -> PictureFile:
    if isinstance(source, bytes):
        return PictureFile(io.BytesIO(source))
    if not isinstance(source, str | os.PathLike):
        expected = "expected a path, bytes, a PIL image, a NumPy array or a tensor"
        hint = "; cv2.imread gives None for a file that it cannot read" if source is None else other_call(source)
        raise ImageError(f"{name}: {describe(source)} found; {expected}{hint}")
    if URL.match(os.fspath(source)):
        raise ImageError(f"{name}: a URL; vitviz does not fetch pictures: save it, and give its path")
    if not os.fspath(source):
        raise ImageError(f"{name}: an empty path; {EXPECTED}")
    try:
        # Reading a pipe would block, and a device has no end.
        if not stat.S_ISREG(os.stat(source).st_mode) and not Path(source).is_dir():
            raise ImageError(f"{name}: a pipe, a socket or a device; {EXPECTED}")
        return PictureFile(io.FileIO(source))
    except FileNotFoundError:
        raise ImageError(f"{name}: {missing(source, f'; {EXPECTED}')}") from None
    except IsADirectoryError:
        raise ImageError(
            f"{name}: a folder; {EXPECTED}; of its pictures, vitviz.analyze_batch({pictures_of(source)}, model)"
        ) from None
    except (OSError, ValueError) as error:
        raise ImageError(f"{name}: cannot be read ({_reason(error)}); {EXPECTED}") from None


def _identified(stream: PictureFile, name: str, max_pixels: int | None) -> tuple[Image.Image, tuple[int, int]]:
    """The image in a file after its header is checked, and its full size; its pixels are not decoded yet."""
    try:
        if problem := tiff_problem(stream, name):
            raise ImageError(f"{name}: {problem}; {EXPECTED}")
        stream.seek(0)
        image = open_undecoded(stream)
        full_size = image.size
        allow_reduction(image)
        if math.prod(image.size) > (max_pixels or 2 * (Image.MAX_IMAGE_PIXELS or math.inf)):
            raise Image.DecompressionBombError(math.prod(image.size))
        _check_sides(image.size, name)
        return image, full_size
    except ImageError:
        raise
    # The second: of a JPEG file.
    except (UnidentifiedImageError, SyntaxError):
        stream.seek(0)
        # peek may return more bytes than requested.
        kind = kind_of(stream.peek(START_BYTES)[:START_BYTES])
        if kind == HEIC:
            way = "damaged, or of a rare kind" if heif_formats() else needs("which", "pillow_heif")
            raise ImageError(f"{name}: {kind}, {way}; {EXPECTED}, so convert it or export it as JPEG") from None
        stream.seek(0)
        if kind.startswith("a JPEG") and (frame := JPEG_FRAME.search(stream.read(JPEG_HEADER_BYTES))):
            kind = f"a JPEG file of {frame[1][0]} bits a colour, which Pillow does not read: save it with 8"
        if kind == TIFF and (rare := rare_tiff(stream)):
            raise ImageError(f"{name}: {rare}") from None
        raise ImageError(f"{name}: {kind}; {EXPECTED}") from None
    except Exception as error:
        raise _refusal(error, name, "image", {}, max_pixels) from error


def _refusal(
    error: Exception, name: str, kind: str, tags: Mapping[int, Any], max_pixels: int | None = None
) -> ImageError:
    """What Pillow's error means: its decoders raise a dozen kinds.

    Args:
        error, name: that it is about.
        kind: of image.
        tags: of a TIFF file.
        max_pixels: as of :class:`UnopenedImage`.
    """
    reason, compression = _reason(error), tags.get(COMPRESSION, 1)
    if isinstance(error, MemoryError):
        return ImageError(f"{name}: opening it takes more memory than there is; expected a picture that takes less")
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        limit = SMALLER.format(Image.MAX_IMAGE_PIXELS) if max_pixels is None else SMALLER_HERE.format(max_pixels)
        return ImageError(f"{name}: {int(re.findall(r'[0-9]+', reason)[0]):,} pixels; {limit}")
    if compression not in COMMON_COMPRESSIONS:
        return ImageError(f"{name}: {unread_tiff(tags)} ({reason})")
    if UNSUPPORTED.search(reason):
        return ImageError(
            f"{name}: Pillow cannot decode this {kind} ({reason}); {EXPECTED} of a common kind: save it as PNG"
        )
    return ImageError(f"{name}: a damaged or cut short {kind} ({reason}); expected a whole image")


def _from_array(
    source: np.ndarray | torch.Tensor, name: str, value_range: ValueRange | None
) -> tuple[Image.Image, ValueRange | None]:
    """An image of an array's levels, and a range for them: None if a narrower one may be meant."""
    array = source if isinstance(source, np.ndarray) else as_array(source, name)
    expected = "expected 'height width' or 'height width channel' with 1, 3 or 4 channels"
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)) or 0 in array.shape:
        is_channels_first = array.ndim == 3 and array.shape[0] in CHANNELS
        hint = "; of 'channel height width', array.transpose(1, 2, 0) gives that" if is_channels_first else ""
        raise ImageError(f"{name}: {expected}{hint or other_call(source)}")
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
    stream: PictureFile | None = None,
) -> Image.Image:
    """A new image: decoded, upright and RGB. With a stream, the given image is closed."""
    _check_sides(image.size, name)
    try:
        if stream is not None and image.info.get("default_image") and getattr(image, "is_animated", False):
            # The first picture of the animation, not the one for programs that show no animations.
            image.seek(1)
        encoding, is_reduced = Encoding.of(image), full_size != image.size
        if encoding.misread:
            raise ImageError(f"{name}: {encoding.misread}")
        upright, is_turned, sentences = _upright(image, stream, encoding)
        assumptions += sentences
        if stream is not None and stream.is_exhausted and ImageFile.LOAD_TRUNCATED_IMAGES:
            assumptions += ("its file is cut short, and Pillow fills the gap: ImageFile.LOAD_TRUNCATED_IMAGES is set",)
        if stream is not None:
            # Frees the pixels; close would close the file, too.
            image._im = None
        rgb, more = to_rgb(upright, name, encoding, value_range, color_profile)
        is_flat = rgb.getcolors(1) is not None
        # Phones store a second exposure or a map of depths behind a photograph, as MPO.
        if (is_flat or image.format != "MPO") and has_frames(image, stream):
            flat = ", which is of one colour, is read: save another" if is_flat else " is read"
            more.append(f"it has several frames or pages, and the first{flat}")
        factor = math.ceil(math.sqrt(math.prod(rgb.size) / MAX_PIXELS))
        rgb = rgb.reduce(factor) if factor > 1 else rgb
    except ImageError:
        raise
    except Exception as error:
        if stream is None and ("closed" in str(error) or isinstance(error, AssertionError | AttributeError)):
            raise ImageError(f"{name}: {CLOSED}") from None
        raise _refusal(error, name, f"{image.format or image.mode} image", getattr(image, "tag_v2", {})) from error
    size = full_size[::-1] if is_turned else full_size
    if (is_reduced and stream is not None) or factor > 1:
        more.append(f"it is reduced from {size[0]}×{size[1]} to {rgb.width}×{rgb.height} pixels")
    # Orientation and transparency are applied; left in the metadata, they would be applied again.
    rgb.info.clear()
    ImageFacts((*assumptions, *more), size, rgb.size).keep(rgb)
    return rgb


def _upright(
    image: Image.Image, stream: PictureFile | None, encoding: Encoding
) -> tuple[Image.Image, bool, tuple[str, ...]]:
    """The image decoded and turned by its orientation, whether its sides are exchanged, and sentences on it.

    A copy, or the same pixels if there is a stream.
    """
    # Before Pillow reads what stands behind the pixels.
    shown = browser_orientation(image)
    read_code_points(image, getattr(image, "fp", None) if stream is None else stream)
    decode(image, stream)
    orientation = orientation_of(image)
    image = _on_screen(image)
    method = EXIF_TRANSPOSE.get(orientation)
    if method is not None:
        upright = image.transpose(method)
    else:
        # The same pixels without the file behind them.
        upright = image._new(image.im) if stream is not None else image.copy()
    if encoding.transparency is not None:
        upright.info["transparency"] = encoding.transparency
    sentences = []
    # Browsers show no TIFF files.
    if method is not None and orientation != shown and image.format != "TIFF":
        sentences += [
            f"it is turned as its metadata say, which browsers do not follow here (orientation {orientation})"
        ]
    if "P" in upright.mode and max(colours := getattr(image, "tag_v2", {}).get(COLOR_MAP, (256,))) < 256:
        # Of 8 bits in place of 16, which Pillow takes for black.
        upright.putpalette(bytes(np.reshape(colours, (3, -1)).T.ravel().tolist()))
    if image.format in BITMAPS and upright.getbands()[-1] == "A" and upright.getextrema()[-1] == (0, 0):
        upright = upright.convert("RGB")
        sentences.append("its alpha is 0 everywhere, and its colours are shown without it, as in browsers")
    return upright, method in QUARTER_TURNS, tuple(sentences)


def _on_screen(image: Image.Image) -> Image.Image:
    """A GIF's first frame on the screen, which is transparent around it; Pillow fills it with some colour."""
    box: Any = getattr(image, "dispose_extent", None)
    if image.format != "GIF" or image.tell() or not box or box == (0, 0, *image.size):
        return image
    screen = Image.new("RGBA", image.size)
    screen.paste(image.crop(box).convert("RGBA"), box)
    return screen


def _reason(error: Exception) -> str:
    """The message of an error, without the path that the system adds."""
    if isinstance(error, OSError) and error.errno:
        return error.strerror or "unreadable"
    return str(error) or type(error).__name__
