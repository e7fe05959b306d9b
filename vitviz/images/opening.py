"""Open a file, picture or array as an upright RGB image."""

from __future__ import annotations

import io
import os
import re
import stat
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageFile, PngImagePlugin, UnidentifiedImageError

from vitviz.errors.arguments import named_arguments, word
from vitviz.errors.extras import needs
from vitviz.errors.kinds import ConfigError, ImageError
from vitviz.errors.messages import describe, legible
from vitviz.images.code_points import read_code_points
from vitviz.images.colours import COLOR_PROFILES, MAX_PROFILE_BYTES, ColorProfile
from vitviz.images.decoding import PictureFile, allow_reduction, decode, heif_formats, open_undecoded
from vitviz.images.image_facts import ImageFacts
from vitviz.images.kinds import EXPECTED, HEIC, MAX_PIXELS, START_BYTES, TIFF, kind_of, rare_tiff, tiff_problem
from vitviz.images.levels import ARRAY_INSTEAD, Encoding, to_rgb
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
NO_MEMORY = "opening it takes more memory than there is; expected a picture that takes less"


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
        A new RGB image of at least 2×2 and at most 64 million pixels, no side above 100,000. A larger JPEG file is
        reduced by 2, 4 or 8 while it is decoded.

    Raises:
        ImageError: there is no such file, it is no image of these formats, it is damaged or truncated, it has too few
            or too many pixels, or its values are outside of the range.
        ConfigError: the range or the choice of the profile is invalid.

    >>> vitviz.open_image("cat.jpg").size
    (451, 300)
    """
    name = legible(name or _name_of(source))
    value_range = checked_range(value_range)
    word("color_profile", color_profile, COLOR_PROFILES, ConfigError)
    source = as_source(source, name)
    with _SILENCED:
        if isinstance(source, Image.Image):
            facts = ImageFacts.of(source)
            return _finished(source, name, facts.size, value_range, color_profile, facts.assumptions)
        if isinstance(source, np.ndarray | torch.Tensor):
            image = _from_array(source, name, value_range)
            return _finished(image, name, image.size)
    return UnopenedImage(source, name, value_range, color_profile).open()


class UnopenedImage:
    """A picture file whose header is read and whose pixels are not decoded yet.

    Args:
        source, name, value_range, color_profile: as for :func:`open_image`; a path or the bytes of a file.

    Raises:
        ImageError: as :func:`open_image`, as far as the header tells.
    """

    def __init__(
        self,
        source: object,
        name: str | None = None,
        value_range: ValueRange | None = None,
        color_profile: ColorProfile = "apply",
    ) -> None:
        self._name, self._options = legible(name or _name_of(source)), (value_range, color_profile)
        with _SILENCED:
            self._stream = _stream(source, self._name)
            try:
                self._image, self._full_size = _identified(self._stream, self._name)
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
        with _SILENCED, self._stream:
            return _finished(self._image, self._name, self._full_size, *self._options, stream=self._stream)


class _Silenced:
    """Context that turns off Pillow's warnings, and takes larger profiles of PNG files, while any thread is inside.

    ``warnings.catch_warnings`` alone restores the wrong filters when two threads overlap.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0

    def __enter__(self) -> None:
        with self._lock:
            if not self._users:
                self._filters = warnings.catch_warnings()
                self._filters.__enter__()
                warnings.filterwarnings("ignore", module=r"PIL\.")
                self._text_bytes = PngImagePlugin.MAX_TEXT_CHUNK
                PngImagePlugin.MAX_TEXT_CHUNK = max(self._text_bytes, MAX_PROFILE_BYTES)
            self._users += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                self._filters.__exit__(None, None, None)
                PngImagePlugin.MAX_TEXT_CHUNK = self._text_bytes


_SILENCED = _Silenced()


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


def _identified(stream: PictureFile, name: str) -> tuple[Image.Image, tuple[int, int]]:
    """The image in a file after its header is checked, and its full size; its pixels are not decoded yet."""
    try:
        if problem := tiff_problem(stream, name):
            raise ImageError(f"{name}: {problem}; {EXPECTED}")
        stream.seek(0)
        image = open_undecoded(stream)
        full_size = image.size
        allow_reduction(image)
        _check_size(image.size, name)
        return image, full_size
    except ImageError:
        raise
    except UnidentifiedImageError:
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
            raise ImageError(f"{name}: {rare}; {ARRAY_INSTEAD}") from None
        raise ImageError(f"{name}: {kind}; {EXPECTED}") from None
    except Image.DecompressionBombError as error:
        digits = re.search(r"\d+", str(error))
        count = f"{int(digits[0]):,}" if digits else "too many"
        raise ImageError(f"{name}: {count} pixels; at most {MAX_PIXELS:,} are opened") from None
    except MemoryError:
        raise ImageError(f"{name}: {NO_MEMORY}") from None
    # Pillow's decoders raise a dozen kinds of error for damaged data.
    except Exception as error:
        if "MAX_TEXT" in str(error):
            problem = "its texts or its profile are longer than Pillow unpacks"
            raise ImageError(f"{name}: {problem}; expected a file saved without such metadata") from None
        raise ImageError(f"{name}: the image is damaged or cut short ({_reason(error)}); {EXPECTED}") from error


def _from_array(source: np.ndarray | torch.Tensor, name: str, value_range: ValueRange | None) -> Image.Image:
    array = source if isinstance(source, np.ndarray) else as_array(source, name)
    expected = "expected 'height width' or 'height width channel' with 1, 3 or 4 channels"
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)) or 0 in array.shape:
        is_channels_first = array.ndim == 3 and array.shape[0] in CHANNELS
        hint = "; of 'channel height width', array.transpose(1, 2, 0) gives that" if is_channels_first else ""
        raise ImageError(f"{name}: {expected}{hint or other_call(source)}")
    _check_size((array.shape[1], array.shape[0]), name)
    levels = np.ascontiguousarray(eight_bit(array, name, value_range, is_tensor=isinstance(source, torch.Tensor)))
    return Image.fromarray(levels[..., 0] if levels.ndim == 3 and levels.shape[2] == 1 else levels)


def _check_size(size: tuple[int, int], name: str) -> None:
    width, height = size
    if width * height > MAX_PIXELS:
        raise ImageError(f"{name}: {width}×{height} pixels; at most {MAX_PIXELS:,} are opened")
    if min(size) < MIN_SIDE:
        raise ImageError(f"{name}: {width}×{height} pixels; expected at least {MIN_SIDE}×{MIN_SIDE}")
    if max(size) > MAX_SIDE:
        raise ImageError(f"{name}: {width}×{height} pixels; expected at most {MAX_SIDE:,} on either side")


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
    _check_size(image.size, name)
    try:
        if stream is not None and image.info.get("default_image") and getattr(image, "is_animated", False):
            # The first picture of the animation, not the one for programs that show no animations.
            image.seek(1)
        encoding, is_reduced = Encoding.of(image), full_size != image.size
        upright, is_turned, sentence = _upright(image, stream)
        assumptions += (sentence,) * bool(sentence)
        if stream is not None and stream.is_exhausted and ImageFile.LOAD_TRUNCATED_IMAGES:
            assumptions += ("its file is cut short, and Pillow fills the gap: ImageFile.LOAD_TRUNCATED_IMAGES is set",)
        if stream is not None:
            # Frees the pixels; close would close the file, too.
            image._im = None
        rgb, more = to_rgb(upright, name, encoding, value_range, color_profile)
        is_flat = rgb.getcolors(1) is not None
        # Phones store a second exposure or a map of depths behind a photograph, as MPO.
        if (is_flat or image.format != "MPO") and _has_frames(image, stream):
            flat = ", which is of one colour, is read: save another" if is_flat else " is read"
            more.append(f"it has several frames or pages, and the first{flat}")
    except ImageError:
        raise
    except MemoryError:
        raise ImageError(f"{name}: {NO_MEMORY}") from None
    except Exception as error:
        kind, reason = image.format or image.mode, _reason(error)
        raise ImageError(f"{name}: a damaged or cut short {kind} image ({reason}); expected a whole image") from error
    size = full_size[::-1] if is_turned else full_size
    if is_reduced and stream is not None:
        more.append(f"it is reduced from {size[0]}×{size[1]} to {rgb.width}×{rgb.height} pixels while it is decoded")
    # Orientation and transparency are applied; left in the metadata, they would be applied again.
    rgb.info.clear()
    ImageFacts((*assumptions, *more), size, rgb.size).keep(rgb)
    return rgb


def _upright(image: Image.Image, stream: PictureFile | None) -> tuple[Image.Image, bool, str]:
    """The image decoded and turned by its orientation, whether its sides are exchanged, and a sentence on it.

    A copy, or the same pixels if there is a stream.
    """
    transparency = Encoding.of(image).transparency
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
    if transparency is not None:
        upright.info["transparency"] = transparency
    sentence = ""
    # Browsers show no TIFF files.
    if method is not None and orientation != shown and image.format != "TIFF":
        sentence = f"it is turned as its metadata say (orientation {orientation}), which browsers do not follow here"
    return upright, method in QUARTER_TURNS, sentence


def _on_screen(image: Image.Image) -> Image.Image:
    """A GIF's first frame on the screen, which is transparent around it; Pillow fills it with some colour."""
    box: Any = getattr(image, "dispose_extent", None)
    if image.format != "GIF" or image.tell() or not box or box == (0, 0, *image.size):
        return image
    screen = Image.new("RGBA", image.size)
    screen.paste(image.crop(box).convert("RGBA"), box)
    return screen


def _has_frames(image: Image.Image, stream: PictureFile | None) -> bool:
    """Whether an image has further frames or pages, and none but the first was chosen."""
    if stream is not None:
        stream.seek(0)
        image = open_undecoded(stream)
    return bool(getattr(image, "is_animated", False)) and not image.tell()


def _reason(error: Exception) -> str:
    """The message of an error, without the path that the system adds."""
    if isinstance(error, OSError) and error.errno:
        return error.strerror or "unreadable"
    return str(error) or type(error).__name__
