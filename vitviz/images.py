"""From a file, picture or array to an image as it should be looked at."""

from __future__ import annotations

import io
import os
import re
import threading
import warnings
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from vitviz.errors import ImageError

ImageSource = str | os.PathLike[str] | bytes | Image.Image | np.ndarray

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP")
MAX_PIXELS = 64_000_000
MIN_SIDE = 2
EXPECTED = f"expected a {', '.join(FORMATS[:-1])} or {FORMATS[-1]} file"
# What the first bytes of a file that Pillow does not open say that it is; the first pattern that matches counts.
KINDS = {
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
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def open_image(source: ImageSource, name: str | None = None) -> Image.Image:
    """An image as it should be looked at: upright, RGB, 8 bits a channel, alpha composited on white.

    Args:
        source: a path, the bytes of a file, a PIL image, or an array ``"height width"`` or ``"height width channel"``
            with 1, 3 or 4 channels, uint8 in [0, 255] or floating point in [0, 1]. Never changed. JPEG, PNG, WebP, GIF
            (first frame), TIFF and BMP files.
        name: what error messages call it; found from the source where it is not given.

    Returns:
        A new RGB image of at least 2×2 and at most 64 million pixels, without metadata.

    Raises:
        ImageError: there is no such file, it is no image of these formats, it is damaged or truncated, or it has too
            few or too many pixels.
    """
    name = name or _name_of(source)
    with _SILENCED:
        if isinstance(source, Image.Image):
            return _finished(source, name)
        if isinstance(source, np.ndarray):
            return _finished(_from_array(source, name), name)
        with _stream(source, name) as stream:
            return _finished(_identified(stream, name), name)


class _Silenced:
    """Pillow's warnings are off while any thread is inside.

    ``warnings.catch_warnings`` alone restores the wrong filters where the stays of two threads overlap.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._filters = warnings.catch_warnings()
                self._filters.__enter__()
                warnings.filterwarnings("ignore", module=r"PIL\.")
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._filters.__exit__(None, None, None)


_SILENCED = _Silenced()


def _name_of(source: object) -> str:
    if isinstance(source, Image.Image):
        source = getattr(source, "filename", "") or "the image"
    if isinstance(source, str | os.PathLike):
        return Path(source).name or repr(str(source))
    if isinstance(source, np.ndarray):
        return f"array of shape {source.shape} and type {source.dtype}"
    return "the image"


def _stream(source: object, name: str) -> BinaryIO:
    if isinstance(source, bytes):
        return io.BytesIO(source)
    if not isinstance(source, str | os.PathLike):
        found = type(source).__name__
        raise ImageError(f"{name}: {found} found; expected a path, bytes, a PIL image or a NumPy array")
    try:
        return Path(source).open("rb")
    except FileNotFoundError:
        raise ImageError(f"{name}: no such file; {EXPECTED}") from None
    except IsADirectoryError:
        raise ImageError(f"{name}: a directory; {EXPECTED}") from None
    except (OSError, ValueError) as error:
        raise ImageError(f"{name}: cannot be read ({_reason(error)}); {EXPECTED}") from None


def _identified(stream: BinaryIO, name: str) -> Image.Image:
    """The image in a file, its size known, its pixels not yet decoded."""
    try:
        return Image.open(stream, formats=FORMATS)
    except UnidentifiedImageError:
        stream.seek(0)
        raise ImageError(f"{name}: {_kind(stream.read(1024))}; {EXPECTED}") from None
    except Image.DecompressionBombError as error:
        count = re.search(r"\d+", str(error))
        found = f"{int(count[0]):,}" if count else "too many"
        raise ImageError(f"{name}: {found} pixels; at most {MAX_PIXELS:,} are opened") from None
    # Pillow's decoders raise a dozen kinds of error for damaged data.
    except Exception as error:
        raise ImageError(f"{name}: the image is damaged or cut short ({_reason(error)}); {EXPECTED}") from error


def _kind(start: bytes) -> str:
    """What the first bytes of a file say that it is."""
    return next((kind for pattern, kind in KINDS.items() if re.match(pattern, start)), "not an image")


def _from_array(array: np.ndarray, name: str) -> Image.Image:
    expected = "expected 'height width' or 'height width channel' with 1, 3 or 4 channels"
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)) or 0 in array.shape:
        raise ImageError(f"{name}: {expected}")
    _check_size((array.shape[1], array.shape[0]), name)
    if np.issubdtype(array.dtype, np.floating):
        # Not a comparison with the bounds alone: NaN must fail it too.
        if not (array.min() >= 0 and array.max() <= 1):
            raise ImageError(
                f"{name}: values from {array.min():g} to {array.max():g}; floating point must lie in [0, 1]"
            )
        array = np.rint(array.astype(np.float32) * 255).astype(np.uint8)
    if array.dtype != np.uint8:
        raise ImageError(f"{name}: expected uint8 in [0, 255] or floating point in [0, 1]")
    return Image.fromarray(array[..., 0] if array.ndim == 3 and array.shape[2] == 1 else array)


def _check_size(size: tuple[int, int], name: str) -> None:
    width, height = size
    if width * height > MAX_PIXELS:
        raise ImageError(f"{name}: {width}×{height} pixels; at most {MAX_PIXELS:,} are opened")
    if min(size) < MIN_SIDE:
        raise ImageError(f"{name}: {width}×{height} pixels; expected at least {MIN_SIDE}×{MIN_SIDE}")


def _finished(image: Image.Image, name: str) -> Image.Image:
    """A new image: decoded, upright, RGB."""
    _check_size(image.size, name)
    try:
        rgb = _to_rgb(_upright(image), name)
    except ImageError:
        raise
    except Exception as error:
        found = f"{image.format or image.mode} image"
        reason = _reason(error)
        raise ImageError(f"{name}: a damaged or cut short {found} ({reason}); expected a whole image") from error
    # What the metadata says of the turn and the transparent colour has been done; saying it again would do it twice.
    rgb.info.clear()
    return rgb


def _upright(image: Image.Image) -> Image.Image:
    """A decoded copy, turned as its EXIF orientation says."""
    transparency = _transparency(image)
    image.load()
    try:
        orientation = image.getexif().get(ExifTags.Base.Orientation)
    # A damaged EXIF block says nothing about the orientation; the picture itself is whole.
    except Exception:
        orientation = None
    method = UPRIGHT.get(orientation) if isinstance(orientation, int) else None
    upright = image.copy() if method is None else image.transpose(method)
    if transparency is not None:
        upright.info["transparency"] = transparency
    return upright


def _transparency(image: Image.Image) -> int | tuple[int, ...] | None:
    """The transparent colour of a PNG that is not decoded yet, where Pillow leaves it at another depth than the pixels.

    None where Pillow's own is right.
    """
    colour: Any = image.info.get("transparency")
    tiles = getattr(image, "tile", ())
    depth = tiles[0][3] if image.format == "PNG" and colour is not None and tiles else None
    if depth in ("L;2", "L;4"):
        return colour * (85 if depth == "L;2" else 17)
    return tuple(channel >> 8 for channel in colour) if depth == "RGB;16B" else None


def _to_rgb(image: Image.Image, name: str) -> Image.Image:
    if image.mode == "F" or image.mode.startswith("I"):
        return _from_deep_grey(image, name)
    if image.has_transparency_data:
        return _on_white(image)
    return image if image.mode == "RGB" else image.convert("RGB")


def _on_white(image: Image.Image) -> Image.Image:
    # Pillow goes from premultiplied grey to RGBA by this detour only.
    image = image.convert("LA").convert("RGBA") if image.mode == "La" else image.convert("RGBA")
    white = Image.new("RGB", image.size, "white")
    white.paste(image, mask=image)
    return white


def _from_deep_grey(image: Image.Image, name: str) -> Image.Image:
    """16-bit and floating-point greyscale as 8-bit RGB, by their full range and not by the picture's own."""
    values = np.asarray(image, dtype=np.float32)
    low, high = values.min(), values.max()
    full = 1.0 if image.mode == "F" else 65535.0
    if not (low >= 0 and high <= full):
        raise ImageError(f"{name}: greyscale values from {low:g} to {high:g}; expected 0 to {full:g}")
    transparent = image.info.get("transparency")
    if transparent is not None:
        values = np.where(values == transparent, full, values)
    return Image.fromarray(np.rint(values * (255 / full)).astype(np.uint8)).convert("RGB")


def _reason(error: Exception) -> str:
    """An error's own words without the path that the system puts into them."""
    if isinstance(error, OSError) and error.errno:
        return error.strerror or "unreadable"
    return str(error) or type(error).__name__
