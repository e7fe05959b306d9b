"""Random views of training images, mixup and CutMix. Every random number comes from the CPU, whatever the device."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from einops import rearrange

from vitviz.training.presets import TrainingConfig

# Largest aspect ratio of a random crop, in either direction.
ASPECT = 4 / 3


def views(config: TrainingConfig, images: torch.Tensor, size: int, random: torch.Generator) -> torch.Tensor:
    """Randomly cropped, flipped and recoloured images, ``size`` pixels square.

    Input and result are ``"image channel height width"`` in [0, 1].
    """
    count = len(images)
    area = _uniform(count, config.smallest_crop, 1, random).sqrt()
    stretch = _uniform(count, -math.log(ASPECT), math.log(ASPECT), random).mul(0.5).exp()
    width, height = (area * stretch).clamp(max=1), (area / stretch).clamp(max=1)
    # Where one side is clipped to the image, the other grows to keep the smallest area.
    width = torch.maximum(width, config.smallest_crop / height).clamp(max=1)
    height = torch.maximum(height, config.smallest_crop / width)
    # A crop may reach past the edge by a sixteenth of its side; sampling reflects the image there.
    shift_x = _uniform(count, -1, 1, random) * (1 - width + width / 8)
    shift_y = _uniform(count, -1, 1, random) * (1 - height + height / 8)
    signs = 1.0 - 2.0 * (torch.rand(count, generator=random) < 0.5) if config.flip else torch.ones(count)
    zero = torch.zeros(count)
    matrix = rearrange(
        [width * signs, zero, shift_x, zero, height, shift_y], "(row column) image -> image row column", row=2
    )
    grid = F.affine_grid(matrix.to(images.device), [count, images.shape[1], size, size], align_corners=False)
    crop_side = (width * images.shape[-1] * height * images.shape[-2]).sqrt()
    return jitter_colours(config.jitter, resample(images, grid, crop_side / size), random)


def resample(images: torch.Tensor, grid: torch.Tensor, reduction: torch.Tensor) -> torch.Tensor:
    """Sample images at the points of a grid, without aliasing where they shrink.

    Args:
        images: ``"image channel height width"``.
        grid: sampling points in [-1, 1], ``"image row column 2"``.
        reduction: image pixels per pixel of the result, ``"image"``. An image that shrinks by more than the square
            root of two is first halved, as often as needed: Williams 1983, "Pyramidal Parametrics".
    """
    levels = reduction.clamp(min=1).log2().round().long()
    sampled = images.new_empty(len(images), images.shape[1], *grid.shape[1:3])
    for level in range(int(levels.max()) + 1):
        mask = (levels == level).to(images.device)
        if level:
            images = F.interpolate(images, [math.ceil(side / 2) for side in images.shape[-2:]], mode="area")
        sampled[mask] = F.grid_sample(images[mask], grid[mask], padding_mode="reflection", align_corners=False)
    return sampled


def jitter_colours(jitter: float, views: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    brightness, contrast, saturation = (
        rearrange(_uniform(len(views), 1 - jitter, 1 + jitter, random), "image -> image 1 1 1").to(views.device)
        for _ in range(3)
    )
    grey = views.mean(1, keepdim=True)
    views = grey + (views - grey) * saturation
    middle = views.mean((1, 2, 3), keepdim=True)
    return (middle * brightness + (views - middle) * contrast).clamp(0, 1)


def mix_batch(
    share: float, images: torch.Tensor, targets: torch.Tensor, random: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mix a share of the batches with their own reverse, by mixup or CutMix.

    The targets, ``"image target"``, are mixed in the same proportion.
    """
    if torch.rand((), generator=random) >= share:
        return images, targets
    share = float(torch.rand((), generator=random))
    if torch.rand((), generator=random) < 0.5:
        images = torch.lerp(images.flip(0), images, share)
    else:
        height, width = images.shape[-2:]
        side = math.sqrt(1 - share)
        rows, columns = round(side * height), round(side * width)
        top = int(torch.randint(height - rows + 1, (), generator=random))
        left = int(torch.randint(width - columns + 1, (), generator=random))
        images = images.clone()
        window = (..., slice(top, top + rows), slice(left, left + columns))
        images[window] = images.flip(0)[window]
        share = 1 - rows * columns / (height * width)
    return images, torch.lerp(targets.flip(0), targets, share)


def _uniform(count: int, low: float, high: float, random: torch.Generator) -> torch.Tensor:
    return torch.rand(count, generator=random) * (high - low) + low
