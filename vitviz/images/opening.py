"""Open a file, picture or array as an upright RGB image."""

from __future__ import annotations

import io
import os
import re
import stat
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import ExifTags, Image, UnidentifiedImageError

from vitviz.errors.kinds import ImageError
from vitviz.errors.messages import describe, legible
from vitviz.images.limits import PIXEL_BYTES, BudgetedReader, check_exif, check_header, check_memory, check_pixels
from vitviz.images.sources import ImageSource, ValueRange, as_array, eight_bit

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP")
FILE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".tif", ".tiff", ".bmp")
MAX_PIXELS = 64_000_000
MIN_SIDE, MAX_SIDE = 2, 100_000
# Converting in strips avoids a third copy of the picture in memory.
STRIP_PIXELS = 2**18
# A single letter is a drive, not a scheme. One slash is enough, since pathlib.Path drops the other.
URL = re.compile(r"[a-z][a-z0-9+.-]+:/{1,2}[^/]|data:", re.IGNORECASE)
EXPECTED = f"expected a {', '.join(FORMATS[:-1])} or {FORMATS[-1]} file"
# What a file that Pillow cannot open is, by its first bytes; the first match counts.
OTHER_KINDS = {
    rb"\s*$": "an empty file",
    rb"(?i)(\xef\xbb\xbf)?\s*<(!doctype html|html|head|body)": "an HTML page",
    rb"(?is)(\xef\xbb\xbf)?\s*<(.*<)?svg": "an SVG drawing, which has no pixels",
    rb"(?s).{4}ftyp(hei|hev|mif1|msf1)": "a HEIC photo",
    rb"(?s).{4}ftypavi[fs]": "an AVIF image",
    rb"(?s).{4}ftyp|\x1aE\xdf\xa3|RIFF.{4}AVI ": "a video",
    rb"%PDF": "a PDF document",
    rb"PK\x03\x04": "a ZIP archive",
    rb"\xff\xd8": "a JPEG file with a damaged header",
    rb"\x89PNG": "a PNG file with a damaged header",
    rb"(?s)RIFF.{4}WEBP": "a WEBP file with a damaged header",
    rb"GIF8": "a GIF file with a damaged header",
    rb"BM": "a BMP file with a damaged header",
    rb"II[*+]\x00|MM\x00[*+]": "a TIFF file with a damaged header or of a rare kind",
    rb"[\t\n\r\x20-\x7e]+$": "a text file",
}
EXIF_TRANSPOSE = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def open_image(source: ImageSource, name: str | None = None, *, value_range: ValueRange | None = None) -> Image.Image:
    """An upright RGB image with 8 bits a channel, composited on white where it is transparent.

    Args:
        source: a path, the bytes of a file, a PIL image, an array ``"height width"`` or ``"height width channel"``
            with 1, 3 or 4 channels, uint8 in [0, 255] or floating point in [0, 1], or a tensor ``"channel height
            width"``. Never changed. JPEG, PNG, WebP, GIF (first frame), TIFF and BMP files.
        name: of the image in error messages; None to take it from the source.
        value_range: the values of black and white in an array or a tensor; required for floating-point tensors.

    Returns:
        A new RGB image of at least 2×2 and at most 64 million pixels, no side above 100,000, without metadata.

    Raises:
        ImageError: there is no such file, it is no image of these formats, it is damaged or truncated, it has too few
            or too many pixels, or it would take more than seconds or half a gigabyte to open.
    """
    name = legible(name or _name_of(source))
    with _SILENCED:
        if isinstance(source, Image.Image):
            return _finished(source, name)
        if isinstance(source, np.ndarray | torch.Tensor):
            return _finished(_from_array(source, name, value_range), name)
        with _stream(source, name) as stream:
            return _finished(_identified(stream, name), name, is_ours=True)


class UnopenedImage:
    """A picture file whose header is read and whose pixels are not decoded yet.

    Args:
        path, name: as for :func:`open_image`.

    Raises:
        ImageError: as :func:`open_image`, as far as the header tells.
    """

    def __init__(self, path: str | os.PathLike[str], name: str | None = None) -> None:
        self._name = legible(name or _name_of(path))
        with _SILENCED:
            self._stream = _stream(path, self._name)
            self._image = _identified(self._stream, self._name)

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels, before it is turned upright."""
        return self._image.size

    def open(self) -> Image.Image:
        """Decode it as :func:`open_image` does. Can be called once.

        Raises:
            ImageError: as :func:`open_image`.
        """
        with _SILENCED, self._stream:
            return _finished(self._image, self._name, is_ours=True)


class _Silenced:
    """Context that turns off Pillow's warnings while any thread is inside.

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
            self._users += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                self._filters.__exit__(None, None, None)


_SILENCED = _Silenced()


def _name_of(source: object) -> str:
    if isinstance(source, Image.Image):
        source = getattr(source, "filename", "") or "the image"
    if isinstance(source, str | os.PathLike) and not os.fspath(source).startswith("data:"):
        return Path(source).name or repr(str(source))
    if isinstance(source, np.ndarray | torch.Tensor):
        kind = "array" if isinstance(source, np.ndarray) else "tensor"
        return f"{kind} of shape {tuple(source.shape)} and type {source.dtype}"
    return "the image"


def _stream(source: object, name: str) -> BudgetedReader:
    if isinstance(source, bytes):
        return BudgetedReader(io.BytesIO(source), name)
    if not isinstance(source, str | os.PathLike):
        expected = "expected a path, bytes, a PIL image, a NumPy array or a tensor"
        hint = "; of several images, analyze_batch takes a list" * isinstance(source, list | tuple)
        raise ImageError(f"{name}: {describe(source)} found; {expected}{hint}")
    if URL.match(os.fspath(source)):
        raise ImageError(f"{name}: a URL; vitviz does not fetch pictures: save it, and give its path")
    if not os.fspath(source):
        raise ImageError(f"{name}: an empty path; {EXPECTED}")
    try:
        # Reading a pipe would block, and a device has no end.
        if not stat.S_ISREG(os.stat(source).st_mode) and not Path(source).is_dir():
            raise ImageError(f"{name}: a pipe, a socket or a device; {EXPECTED}")
        return BudgetedReader(io.FileIO(source), name)
    except FileNotFoundError:
        raise ImageError(f"{name}: no such file; {EXPECTED}") from None
    except IsADirectoryError:
        raise ImageError(f"{name}: a directory; {EXPECTED}") from None
    except (OSError, ValueError) as error:
        raise ImageError(f"{name}: cannot be read ({_reason(error)}); {EXPECTED}") from None


def _identified(stream: BudgetedReader, name: str) -> Image.Image:
    """The image in a file after its header is checked; its pixels are not decoded yet."""
    try:
        check_header(stream)
        image = Image.open(stream, formats=FORMATS)
        _check_size(image.size, name)
        check_pixels(image, stream)
        return image
    except ImageError:
        raise
    except UnidentifiedImageError:
        stream.seek(0)
        # peek may return more bytes than requested.
        raise ImageError(f"{name}: {_kind(stream.peek(1024)[:1024])}; {EXPECTED}") from None
    except Image.DecompressionBombError as error:
        digits = re.search(r"\d+", str(error))
        count = f"{int(digits[0]):,}" if digits else "too many"
        raise ImageError(f"{name}: {count} pixels; at most {MAX_PIXELS:,} are opened") from None
    # Pillow's decoders raise a dozen kinds of error for damaged data.
    except Exception as error:
        raise ImageError(f"{name}: the image is damaged or cut short ({_reason(error)}); {EXPECTED}") from error


def _kind(start: bytes) -> str:
    """The kind of a file by its first bytes."""
    return next((kind for pattern, kind in OTHER_KINDS.items() if re.match(pattern, start)), "not an image")


def _from_array(source: np.ndarray | torch.Tensor, name: str, value_range: ValueRange | None) -> Image.Image:
    array = source if isinstance(source, np.ndarray) else as_array(source, name)
    expected = "expected 'height width' or 'height width channel' with 1, 3 or 4 channels"
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)) or 0 in array.shape:
        raise ImageError(f"{name}: {expected}")
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


def _finished(image: Image.Image, name: str, is_ours: bool = False) -> Image.Image:
    """A new image: decoded, upright and RGB. If ``is_ours``, the given image is closed."""
    _check_size(image.size, name)
    try:
        upright = _upright(image, name, is_ours)
        if is_ours:
            image.close()
        rgb = _to_rgb(upright, name)
    except ImageError:
        raise
    except Exception as error:
        kind, reason = image.format or image.mode, _reason(error)
        raise ImageError(f"{name}: a damaged or cut short {kind} image ({reason}); expected a whole image") from error
    # Orientation and transparency are applied; left in the metadata, they would be applied again.
    rgb.info.clear()
    return rgb


def _upright(image: Image.Image, name: str, is_ours: bool) -> Image.Image:
    """The image decoded and turned by its EXIF orientation: a copy, or the same pixels if ``is_ours``."""
    transparency = _transparency(image)
    image.load()
    method = EXIF_TRANSPOSE.get(_orientation(image, name))
    if method is not None:
        if is_ours:
            check_memory(image, name, PIXEL_BYTES.get(image.mode, 4) * image.width * image.height)
        upright = image.transpose(method)
    else:
        # The same pixels without the file behind them.
        upright = image._new(image.im) if is_ours else image.copy()
    if transparency is not None:
        upright.info["transparency"] = transparency
    return upright


def _orientation(image: Image.Image, name: str) -> int:
    try:
        check_exif(_exif(image), name)
        orientation = image.getexif().get(ExifTags.Base.Orientation)
    except ImageError:
        raise
    # The picture itself is intact even if its EXIF block is damaged.
    except Exception:
        orientation = None
    return orientation if isinstance(orientation, int) else 1


def _exif(image: Image.Image) -> bytes:
    """The EXIF block; ImageMagick writes it into a PNG as hexadecimal digits below three lines."""
    if "exif" in image.info:
        return image.info["exif"]
    return bytes.fromhex("".join(image.info.get("Raw profile type exif", "").split("\n", 3)[3:]))


def _transparency(image: Image.Image) -> int | tuple[int, ...] | None:
    """The transparent colour of a PNG that is not decoded yet, scaled to the depth of the pixels.

    None if Pillow scales it correctly itself.
    """
    colour: Any = image.info.get("transparency")
    tiles = getattr(image, "tile", ())
    depth = tiles[0][3] if image.format == "PNG" and colour is not None and tiles else None
    if depth in ("L;2", "L;4"):
        return colour * (85 if depth == "L;2" else 17)
    return tuple(channel >> 8 for channel in colour) if depth == "RGB;16B" else None


def _to_rgb(image: Image.Image, name: str) -> Image.Image:
    if image.mode == "RGB" and not image.has_transparency_data:
        return image
    is_deep = image.mode == "F" or image.mode.startswith("I")
    if is_deep:
        _check_range(image, name)
    convert = _from_deep_grey if is_deep else _on_white if image.has_transparency_data else _opaque
    rgb = Image.new("RGB", image.size)
    for box, strip in _strips(image):
        rgb.paste(convert(strip), box)
    return rgb


def _strips(image: Image.Image) -> Iterator[tuple[tuple[int, int, int, int], Image.Image]]:
    rows = max(1, STRIP_PIXELS // image.width)
    for top in range(0, image.height, rows):
        box = (0, top, image.width, min(top + rows, image.height))
        yield box, image.crop(box)


def _opaque(image: Image.Image) -> Image.Image:
    return image.convert("RGB")


def _on_white(image: Image.Image) -> Image.Image:
    # Pillow converts premultiplied grey to RGBA only through LA.
    image = image.convert("LA").convert("RGBA") if image.mode == "La" else image.convert("RGBA")
    white = Image.new("RGB", image.size, "white")
    white.paste(image, mask=image)
    return white


def _full_range(image: Image.Image) -> float:
    return 1.0 if image.mode == "F" else 65535.0


def _check_range(image: Image.Image, name: str) -> None:
    bounds = [(values.min(), values.max()) for values in (np.asarray(strip) for _, strip in _strips(image))]
    # Python's min and max may hide NaN.
    low, high = np.min(bounds), np.max(bounds)
    full = _full_range(image)
    if not (low >= 0 and high <= full):
        raise ImageError(f"{name}: greyscale values from {low:g} to {high:g}; expected 0 to {full:g}")


def _from_deep_grey(image: Image.Image) -> Image.Image:
    """16-bit or floating-point greyscale as 8-bit RGB, scaled by the full range of the mode, not of the picture."""
    values, full = np.asarray(image, dtype=np.float32), _full_range(image)
    transparent = image.info.get("transparency")
    if transparent is not None:
        values = np.where(values == transparent, full, values)
    return Image.fromarray(np.rint(values * (255 / full)).astype(np.uint8)).convert("RGB")


def _reason(error: Exception) -> str:
    """The message of an error, without the path that the system adds."""
    if isinstance(error, OSError) and error.errno:
        return error.strerror or "unreadable"
    return str(error) or type(error).__name__
