"""Anything that makes a network's input of a picture, called in its own way: transforms, processors, functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from einops import rearrange
from PIL import Image

from vitviz.errors.kinds import ConfigError
from vitviz.errors.messages import describe
from vitviz.images.preprocessing import CHANNELS

Transform = Callable[[Image.Image], torch.Tensor]
"""From an RGB picture to a network's input ``"channel height width"``, float32 on the CPU."""

# Entries of a mapping that a transform returns: transformers' processors, and albumentations.
ENTRIES = ("pixel_values", "image")


def as_transform(function: Callable[..., Any], picture: Image.Image) -> Transform:
    """A transform that calls a function in the first way that works for a picture.

    The function is called with a PIL image, with ``image=`` an array of levels as albumentations is, with a tensor of
    levels (uint8), or with a tensor from 0 to 1; tensors are ``"channel height width"``.

    Raises:
        ConfigError: the function fails in every way; or it takes tensors of both kinds, and their results differ.
    """
    failures = []
    # The processor of a model of pictures and texts.
    function = getattr(function, "image_processor", function)
    for way, call in CALLS.items():
        transform = _transform(function, call)
        try:
            transform(picture)
        except Exception as error:  # The function is the user's, and may raise anything.
            if isinstance(error, ConfigError) and way != "a tensor of levels":
                raise
            failures.append(f"with {way}, {type(error).__name__}: {str(error)[:200]}")
            continue
        other = _transform(function, CALLS["a tensor from 0 to 1"])
        if way == "a tensor of levels" and not _agrees(transform, other, picture.size):
            raise ConfigError(
                "it takes tensors of levels from 0 to 255 and of values from 0 to 1, with other results; expected a "
                "function of a PIL image, such as lambda image: transform(torchvision.transforms.ToTensor()(image))"
            )
        return transform
    expected = "a function from a PIL image to a tensor 'channel height width'"
    raise ConfigError(f"it fails: {'; '.join(failures)}; expected {expected}")


def _transform(function: Callable[..., Any], call: Callable[..., Any]) -> Transform:
    # Some functions, such as those that call Image.thumbnail, change the picture.
    return lambda image: _as_pixels(call(function, image.copy()))


def _agrees(transform: Transform, other: Transform, size: tuple[int, int]) -> bool:
    """Whether another transform fails, or gives about the same values for a white picture of this size."""
    white = Image.new("RGB", size, "white")
    expected = transform(white)
    try:
        found = other(white)
    except Exception:  # See as_transform.
        return True
    return found.shape == expected.shape and bool(((found - expected).abs() <= 0.01 * expected.abs()).all())


def _levels(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


CALLS: dict[str, Callable[[Callable[..., Any], Image.Image], Any]] = {
    "a PIL image": lambda function, image: function(image),
    "image=array": lambda function, image: function(image=np.array(image)),
    "a tensor of levels": lambda function, image: function(_levels(image)),
    "a tensor from 0 to 1": lambda function, image: function(_levels(image) / 255),
}
"""Ways to call a function, in the order in which they are tried."""


@torch.no_grad()
def _as_pixels(result: Any) -> torch.Tensor:
    """The input in what a function returns.

    Raises:
        ConfigError: it is no input of one picture.
    """
    if isinstance(result, Mapping):
        entry = next((name for name in ENTRIES if name in result), None)
        value = result if entry is None else result[entry]
        value = _join_patches(value, result["spatial_shapes"]) if "spatial_shapes" in result else value
    else:
        value = result
    while isinstance(value, list | tuple) and len(value) == 1:
        value = value[0]
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(np.ascontiguousarray(value))
        # Arrays of pictures have their channels last.
        value = value.movedim(2, 0) if value.ndim == 3 and value.shape[0] not in CHANNELS else value
    expected = "expected a tensor of floating point, 'channel height width', of 1 or 3 channels"
    if not isinstance(value, torch.Tensor):
        raise ConfigError(f"it returns {describe(value)}; {expected}")
    pixels = value.as_subclass(torch.Tensor)
    pixels = pixels[0] if pixels.ndim == 4 and len(pixels) == 1 else pixels
    if pixels.ndim != 3 or pixels.shape[0] not in CHANNELS or not pixels.is_floating_point() or not pixels.numel():
        kind = str(pixels.dtype).removeprefix("torch.")
        raise ConfigError(f"it returns a tensor of shape {tuple(pixels.shape)} of {kind}; {expected}")
    return pixels.detach().float().cpu().contiguous()


def _join_patches(patches: Any, shapes: Any) -> torch.Tensor:
    """The picture of which NaFlex's processor gives ``"1 patch (row column channel)"`` with the shape of its grid."""
    rows, columns = (int(side) for side in np.asarray(shapes[0]))
    values = torch.as_tensor(np.asarray(patches[0]))[: rows * columns]
    side = round((values.shape[1] / 3) ** 0.5)
    return rearrange(values, "(h w) (p q c) -> c (h p) (w q)", h=rows, w=columns, p=side, q=side)
