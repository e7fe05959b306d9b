"""Resize pictures exactly as Pillow does, or as torchvision does with tensors."""

from __future__ import annotations

import math
import platform

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

from vitviz.images.file_kinds import MAX_PIXELS

INTERPOLATIONS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
    "box": Image.Resampling.BOX,
    "hamming": Image.Resampling.HAMMING,
}
"""Interpolations by name, with Pillow's numbers."""

# Earlier versions of torch have no lanczos.
_TENSOR_INTERPOLATIONS = (
    "nearest",
    "bilinear",
    "bicubic",
    *["lanczos"] * hasattr(torch._C._nn, "_upsample_lanczos2d_aa"),
)
BACKENDS = {
    "pillow": tuple(INTERPOLATIONS),
    "torchvision": _TENSOR_INTERPOLATIONS,
    "torchvision float": _TENSOR_INTERPOLATIONS,
}
"""The interpolations of each backend. All but ``"nearest"`` antialias.

``"pillow"`` and ``"torchvision"`` round to 256 levels, each in its own way; ``"torchvision float"`` does not round.
"""

Crop = tuple[int, int, int, int]
"""Left, top, right and lower edge in pixels."""


def resize_and_crop(
    image: Image.Image, width: int, height: int, crop: Crop, interpolation: str, backend: str
) -> torch.Tensor:
    """A picture resized to ``width`` and ``height`` and cropped.

    Args:
        image: of mode RGB or L.
        width, height: of the whole resized picture.
        crop: in pixels of the resized picture.
        interpolation: in :data:`INTERPOLATIONS`.
        backend: in :data:`BACKENDS`; must have this interpolation.

    Returns:
        ``"channel height width"``: uint8 levels from 0 to 255; with ``"torchvision float"`` floats from 0 (black) to 1
        (white), which may overshoot.
    """
    left, top, right, bottom = crop
    # Only the crop, whose levels may differ by rounding: at 224 pixels, of strips a thousand times as long as wide.
    if width * height > MAX_PIXELS:
        return _to_tensor(_resize_crop_only(image, width, height, crop, INTERPOLATIONS[interpolation]), backend)
    if backend == "pillow":
        return _to_tensor(image.resize((width, height), INTERPOLATIONS[interpolation]).crop(crop), backend)
    return _resize(_to_tensor(image, backend), width, height, interpolation)[:, top:bottom, left:right]


def reduce_detail(pixels: torch.Tensor, side: int) -> torch.Tensor:
    """Pictures reduced to the pixels of a square of this side, keeping their aspect ratio, and enlarged again.

    Args:
        pixels: ``"... channel height width"``, floating point.
        side: of a square with as many pixels as the reduced picture. Smaller pictures are unchanged.
    """
    height, width = pixels.shape[-2:]
    scale = side / math.sqrt(height * width)
    if scale >= 1:
        return pixels
    size = [max(1, round(scale * length)) for length in (height, width)]
    return coarsen(pixels.reshape(-1, 1, height, width), size).reshape(pixels.shape)


def coarsen(pixels: torch.Tensor, size: list[int]) -> torch.Tensor:
    """Reduce pictures ``"picture channel height width"`` to a height and width, and enlarge them to their own again."""
    reduced = F.interpolate(pixels, size, mode="bilinear", antialias=True)
    return F.interpolate(reduced, pixels.shape[-2:], mode="bilinear")


def to_image(pixels: torch.Tensor) -> Image.Image:
    """The result of :func:`resize_and_crop` as an image of 256 levels."""
    if pixels.is_floating_point():
        pixels = (pixels * 255).round().clamp(0, 255).to(torch.uint8)
    values = pixels.permute(1, 2, 0).numpy()
    return Image.fromarray(values[:, :, 0] if values.shape[2] == 1 else np.ascontiguousarray(values))


def _to_tensor(image: Image.Image, backend: str) -> torch.Tensor:
    values = np.array(image)
    pixels = torch.from_numpy(values.reshape(image.height, image.width, -1)).permute(2, 0, 1).contiguous()
    return pixels.float() / 255 if backend == "torchvision float" else pixels


def _resize(pixels: torch.Tensor, width: int, height: int, interpolation: str) -> torch.Tensor:
    if pixels.shape[1:] == (height, width):
        return pixels
    if interpolation == "nearest":
        return F.interpolate(pixels[None], (height, width), mode="nearest-exact")[0]
    # torchvision has integer bilinear kernels on some processors only; elsewhere it computes floats and rounds.
    rounds = interpolation == "bilinear" and not pixels.is_floating_point() and not _has_integer_bilinear()
    source = pixels.float() if rounds else pixels
    resized = F.interpolate(source[None], (height, width), mode=interpolation, align_corners=False, antialias=True)[0]
    return resized.round().to(pixels.dtype) if rounds else resized


def _has_integer_bilinear() -> bool:
    return platform.machine() in ("aarch64", "arm64") or torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")


def _resize_crop_only(
    image: Image.Image, width: int, height: int, crop: Crop, resampling: Image.Resampling
) -> Image.Image:
    """Resize only the crop. Rounding may differ, but the cost does not depend on the rest of the picture."""
    left, top, right, bottom = crop
    across, down = image.width / width, image.height / height
    box = (left * across, top * down, min(image.width, right * across), min(image.height, bottom * down))
    return image.resize((right - left, bottom - top), resampling, box=box)
