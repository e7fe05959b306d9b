"""Image sources: a path, bytes, a PIL image, an array, a tensor, a row of a table."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit
from urllib.request import url2pathname

import numpy as np
import torch
from PIL import Image

from vitviz.errors.arguments import number_or_none, two_or_none
from vitviz.errors.kinds import ConfigError, ImageError
from vitviz.errors.messages import choices, describe, did_you_mean
from vitviz.system.paths import user_path

ImageSource = str | os.PathLike[str] | bytes | BinaryIO | Image.Image | np.ndarray | torch.Tensor
Row = Mapping[str, Any]
"""A row of a table by column, as in data sets of the package datasets."""
ValueRange = tuple[float, float]
"""The values of black and white in an array or a tensor."""

COLUMN = "image"
# The keys of an undecoded image in the package datasets.
ENCODED_KEYS = {"bytes", "path"}
CHANNELS = (1, 3, 4)
# Ends of messages.
CUT = "; numpy.clip(array, low, high) cuts values to a narrower range"
STANDARDISED = "of a batch of the model's standardised input, vitviz.analyze_loader([batch], model)"
NOT_NUMBERS = "NaN among its values; expected numbers, as numpy.nan_to_num(array) gives"


def checked_range(value_range: object) -> ValueRange | None:
    """A range of values as two floats; None for None.

    Raises:
        ConfigError: it is not two finite numbers, the lower one first.
    """
    if value_range is None:
        return None
    ends = two_or_none(number_or_none, value_range)
    if ends is None or ends[0] >= ends[1]:
        raise ConfigError(
            f"value_range = {describe(value_range)}: expected the values of black and white, such as (0, 1), (-1, 1) "
            "or (0, 255)"
        )
    return ends


def as_source(source: Any, name: str) -> Any:
    """The bytes of an open file or a buffer, the array in an object that has one, and any other source unchanged.

    Raises:
        ImageError: it cannot be read, or some of its values are masked.
    """
    if np.ma.is_masked(source):
        raise ImageError(f"{name}: some of its values are masked; expected all of them, as .filled(0) gives")
    if isinstance(source, str | os.PathLike):
        text = os.fspath(source)
        return url2pathname(urlsplit(text).path) if text.startswith("file:") else os.path.expanduser(text)
    if isinstance(source, Image.Image | np.ndarray | torch.Tensor | bytes):
        return source
    try:
        if isinstance(source, bytearray | memoryview):
            return bytes(source)
        if hasattr(source, "read"):
            if source.seekable():
                source.seek(0)
            content = source.read()
            return content if isinstance(content, bytes) else source
        return np.asarray(source) if hasattr(source, "__array__") else source
    # Foreign objects raise anything.
    except Exception as error:
        raise ImageError(
            f"{name}: {describe(source)} cannot be read ({error}); expected a file that is open for reading bytes, or "
            "an object that NumPy can read"
        ) from error


def image_of(source: ImageSource | Row, column: str) -> ImageSource:
    """The image in a row of a table; any other source unchanged.

    Raises:
        ImageError: the row has no such column, or holds no image there.
    """
    # A row of pandas.
    source = source.to_dict() if hasattr(source, "to_dict") else source
    if not isinstance(source, Mapping):
        return source
    if column not in source:
        raise ImageError(
            f"a row {f'with {choices(source)}' if source else 'without columns'}: no column {column!r}; name that of "
            f"the images, as by column={next(iter(source), COLUMN)!r}{did_you_mean(column, source)}"
        )
    value = source[column]
    if not isinstance(value, Mapping):
        return value
    if set(value) != ENCODED_KEYS or (value["bytes"] is None and value["path"] is None):
        raise ImageError(f"column {column!r}: {describe(value)} found; expected an image, its path or its bytes")
    return value["path"] if value["bytes"] is None else value["bytes"]


def check_several(name: str, images: object) -> None:
    """Check that an argument holds several images.

    Raises:
        ConfigError: it is a single one.
    """
    # Iterating over a string, a table row, a file or an array would not give images.
    is_text = isinstance(images, str | bytes | bytearray | memoryview | os.PathLike | Image.Image | Mapping)
    is_array = isinstance(images, np.ndarray | torch.Tensor) and images.ndim < 4
    if is_text or is_array or hasattr(images, "read") or not isinstance(images, Iterable):
        folder = f"; of a folder, {pictures_of(images)}" if isinstance(images, str | os.PathLike) else ""
        raise ConfigError(
            f"{name}: one {type(images).__name__} found; expected several, such as a list of paths{folder}"
        )


def other_call(source: object) -> str:
    """The end of a message about something that is not one picture: the call that takes it, if there is one."""
    first = source[0] if isinstance(source, list | tuple) and source else None
    dimensions, of_first = getattr(source, "ndim", 0), getattr(first, "ndim", 0)
    calls = {
        "of batches of the model's input, vitviz.analyze_loader(loader, model)": hasattr(source, "dataset"),
        STANDARDISED: of_first == 4,
        "of a picture with its class, vitviz.analyze(pair[0], model)": of_first == 3 and isinstance(source, tuple),
        "of several, 'batch channel height width', vitviz.analyze_batch(array.transpose(0, 2, 3, 1), model)": (
            isinstance(source, np.ndarray) and dimensions == 4 and source.shape[1] in CHANNELS
        ),
        f"of several images, vitviz.analyze_batch(images, model); {STANDARDISED}": dimensions == 4,
        "of several images, vitviz.analyze_batch(images, model)": not dimensions and isinstance(source, Iterable),
    }
    return next((f"; {call}" for call, holds in calls.items() if holds), "")


def pictures_of(folder: str | os.PathLike[str]) -> str:
    """The code that lists the pictures in a folder."""
    return f"[each.source for each in vitviz.read_items({os.fspath(folder)!r})]"


def origin(source: ImageSource | Row, column: str, index: int | None) -> Path | int | None:
    """The file of an image if it is known, else its index in the batch."""
    value = source.get(column) if isinstance(source, Mapping) else source
    path = value.get("path") if isinstance(value, Mapping) else value
    path = getattr(path, "filename", None) or None if isinstance(path, Image.Image) else path
    return user_path(path) if isinstance(path, str | os.PathLike) else index


def as_array(tensor: torch.Tensor, name: str) -> np.ndarray:
    """A tensor ``"channel height width"`` or ``"height width"`` as ``"height width channel"`` or ``"height width"``.

    Raises:
        ImageError: it has another shape.
    """
    image = tensor[0] if tensor.ndim == 4 and len(tensor) == 1 else tensor
    if image.ndim == 2 or (image.ndim == 3 and image.shape[0] in CHANNELS):
        try:
            values = image.detach().cpu()
            values = values.float() if values.dtype == torch.bfloat16 else values
            return values.numpy() if image.ndim == 2 else values.permute(1, 2, 0).numpy()
        except (TypeError, RuntimeError, NotImplementedError) as error:
            raise ImageError(f"{name}: no values that NumPy can read ({error}); expected a dense tensor") from error
    hint = (
        "; of 'height width channel', tensor.permute(2, 0, 1) gives that"
        if image.ndim == 3 and image.shape[2] in CHANNELS
        else other_call(tensor)
    )
    raise ImageError(f"{name}: expected 'channel height width' with 1, 3 or 4 channels, or 'height width'{hint}")


def eight_bit(array: np.ndarray, name: str, value_range: ValueRange | None, *, is_tensor: bool = False) -> np.ndarray:
    """An array's values as whole numbers from 0 to 255.

    Args:
        array: of any shape that is not empty.
        name: of the array in error messages.
        value_range: the values of black and white; None for 0 and 255 of uint8, and 0 and 1 of floating point.
        is_tensor: whether the values come from a tensor. Floating-point tensors need a range, since many are
            normalised.

    Raises:
        ImageError: a value is outside of the range, or the range is missing.
    """
    is_float = np.issubdtype(array.dtype, np.floating)
    if array.dtype.kind not in "biuf":
        raise ImageError(f"{name}: {array.dtype.name} values; expected whole numbers or floating point")
    if value_range is None and array.dtype == np.uint8:
        return array
    if value_range is None and not is_float:
        raise ImageError(f"{name}: expected uint8 in [0, 255] or floating point in [0, 1], or {range_of(array)}")
    if value_range is None and is_tensor:
        raise ImageError(f"{name}: nothing says what black and white are; expected {range_of(array)}")
    low, high = value_range or (0.0, 1.0)
    if is_float and np.isnan(array.min()):
        raise ImageError(f"{name}: {NOT_NUMBERS}")
    if not (array.min() >= low and array.max() <= high):
        problem = f"outside of value_range = ({low:g}, {high:g}){CUT}"
        if value_range is None:
            problem = f"expected floating point in [0, 1], or {range_of(array)}"
        raise ImageError(f"{name}: values from {array.min():g} to {array.max():g}; {problem}")
    # A stated range may be narrow and far from zero, where single precision has steps of whole levels.
    dtype = np.float32 if value_range is None else np.float64
    return np.rint(np.subtract(array, low, dtype=dtype) * 255 / (high - low)).astype(np.uint8)


def range_of(array: np.ndarray) -> str:
    """What to state of the values of an array, with the usual range that they lie in."""
    low, high = array.min(), array.max()
    white, black = 1 if high <= 1 else 255 if high <= 255 else high, -1 if low < 0 else 0
    is_usual = (low >= 0 and np.isfinite(high)) or (low >= -1 and high <= 1)
    usual = f", such as value_range=({black}, {white:g})" if is_usual else ""
    return f"value_range, the values of black and white{usual}{f'; {STANDARDISED}' if low < 0 else ''}"
