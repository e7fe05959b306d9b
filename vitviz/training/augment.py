"""Random augmentation of a batch of training images."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from einops import rearrange

from vitviz.images.resizing import coarsen
from vitviz.training.config import Augmentation

# A batch loses detail in this many groups, each to a size of its own. One size per image would take a resize per image.
DETAIL_GROUPS = 8
# Weights of red, green and blue in brightness: Recommendation ITU-R BT.601.
BRIGHTNESS = (0.299, 0.587, 0.114)
# Ranges for images that end on a plain ground.
# Side of the view, as a multiple of the image's side.
GROUND_SCALES = (0.7, 1.4)
# Where the image ends, and the width of its fade, in half sides.
GROUND_RADII = (0.6, 1.0)
GROUND_FADES = (0.02, 0.2)
# The outline goes from an ellipse to nearly a rectangle: the exponent of the norm, as a power of 2.
GROUND_EXPONENTS = (1, 3)


def views(
    augmentation: Augmentation,
    images: torch.Tensor,
    size: int,
    random: torch.Generator,
    picture_detail: int | None = None,
) -> torch.Tensor:
    """Randomly cropped, flipped and recoloured images, ``size`` pixels square.

    Input and result are ``"image channel height width"`` in [0, 1]. ``picture_detail`` is the side in pixels to which
    the preprocessing will reduce them before it enlarges them again.
    """
    count = len(images)
    width, height, shift_x, shift_y = _random_crops(augmentation, count, random)
    on_ground = torch.rand(count, generator=random) < augmentation.plain_ground
    if on_ground.any():
        widened = (_wide_views(augmentation, count, random), (width, height, shift_x, shift_y))
        width, height, shift_x, shift_y = (torch.where(on_ground, *pair) for pair in zip(*widened, strict=True))
    signs = 1.0 - 2.0 * (torch.rand(count, generator=random) < 0.5) if augmentation.flip else torch.ones(count)
    zero = torch.zeros(count)
    matrix = rearrange(
        [width * signs, zero, shift_x, zero, height, shift_y], "(row column) image -> image row column", row=2
    )
    # All random numbers come from the CPU, so that every device gets the same crops.
    grid = F.affine_grid(matrix.to(images.device), [count, images.shape[1], size, size], align_corners=False)
    crop_side = (width * images.shape[-1] * height * images.shape[-2]).sqrt()
    resampled = _resample(images, grid, crop_side / size)
    if on_ground.any():
        mask = on_ground.to(images.device)
        resampled[mask] = _fade_to_ground(resampled[mask], grid[mask], random)
    if augmentation.detail < 1 or augmentation.colour_detail < 1:
        resampled = _change_detail(augmentation, resampled, min(picture_detail or size, size), random)
    return _drop_colours(augmentation, _jitter_colours(augmentation, resampled, random), random)


def _random_crops(augmentation: Augmentation, count: int, random: torch.Generator) -> tuple[torch.Tensor, ...]:
    """Width and height of random crops as fractions of the image, and the x and y of their centres in half sides."""
    area = _uniform(count, augmentation.smallest_crop, 1, random).sqrt()
    stretch = _random_stretch(augmentation, count, random)
    width, height = (area * stretch).clamp(max=1), (area / stretch).clamp(max=1)
    # Where one side is clipped to the image, the other grows to keep the smallest area.
    width = torch.maximum(width, augmentation.smallest_crop / height).clamp(max=1)
    height = torch.maximum(height, augmentation.smallest_crop / width)
    # A crop may reach past the edge by a sixteenth of its side; sampling reflects the image there.
    shift_x = _uniform(count, -1, 1, random) * (1 - width + width / 8)
    shift_y = _uniform(count, -1, 1, random) * (1 - height + height / 8)
    return width, height, shift_x, shift_y


def _wide_views(augmentation: Augmentation, count: int, random: torch.Generator) -> tuple[torch.Tensor, ...]:
    """Like :func:`_random_crops`, for views that may be larger than the image; its middle half stays in view."""
    scale = _uniform(count, *GROUND_SCALES, random)
    stretch = _random_stretch(augmentation, count, random)
    width, height = scale * stretch, scale / stretch
    shift_x, shift_y = (_uniform(count, -1, 1, random) * (side - 0.5).clamp(min=0.1) for side in (width, height))
    return width, height, shift_x, shift_y


def _random_stretch(augmentation: Augmentation, count: int, random: torch.Generator) -> torch.Tensor:
    return _uniform(count, -math.log(augmentation.aspect), math.log(augmentation.aspect), random).mul(0.5).exp()


def _fade_to_ground(views: torch.Tensor, grid: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    """Views that fade into a plain colour away from the middle of the image.

    A class that only ever stands on a lawn in training would otherwise be recognised by the lawn.

    Args:
        views: ``"image channel row column"`` in [0, 1].
        grid: the place in the image that each pixel comes from, ``"image row column 2"``; the image spans [-1, 1].
        random: for the colours and outlines.
    """
    count = len(views)

    def uniform(low: float, high: float) -> torch.Tensor:
        return rearrange(_uniform(count, low, high, random), "image -> image 1 1").to(views.device)

    exponent, radius, fade = uniform(*GROUND_EXPONENTS).exp2(), uniform(*GROUND_RADII), uniform(*GROUND_FADES)
    distance = grid.abs().pow(rearrange(exponent, "image 1 1 -> image 1 1 1")).sum(-1).pow(1 / exponent)
    opacity = rearrange(((radius - distance) / fade + 0.5).clamp(0, 1), "image row column -> image 1 row column")
    # Half of the grounds are nearly white, as paper and catalogue pictures are. Half have a tint.
    lightness = torch.where(uniform(0, 1) < 0.5, uniform(0.85, 1), uniform(0, 1))
    tint = torch.randn((count, views.shape[1], 1), generator=random).to(views.device) * 0.1 * (uniform(0, 1) < 0.5)
    ground = rearrange((lightness + tint).clamp(0, 1), "image channel 1 -> image channel 1 1")
    return torch.lerp(ground, views, opacity)


def _resample(images: torch.Tensor, grid: torch.Tensor, reduction: torch.Tensor) -> torch.Tensor:
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
        mask = levels == level
        if level:
            half_size = [math.ceil(side / 2) for side in images.shape[-2:]]
            images = F.interpolate(images, half_size, mode="area")
        mask = mask.to(images.device)
        sampled[mask] = F.grid_sample(images[mask], grid[mask], padding_mode="reflection", align_corners=False)
    return sampled


def _change_detail(augmentation: Augmentation, views: torch.Tensor, side: int, random: torch.Generator) -> torch.Tensor:
    """Square views with randomly less or more detail in brightness and in colour.

    Where classes come from different sources, the sharpness of a picture and of its colours reveals the source and so
    the class. On pictures from elsewhere that cue means nothing.

    ``side`` is that of the finest detail which the network will see, in pixels: fractions are of it, since to reduce
    views to more would change nothing.
    """
    brightness = torch.einsum("ichw,c->ihw", views, views.new_tensor(BRIGHTNESS))
    brightness = rearrange(brightness, "image row column -> image 1 row column")
    components = []
    for values, smallest_share in ((brightness, augmentation.detail), (views - brightness, augmentation.colour_detail)):
        coarse = values.clone()
        for group, share in enumerate(_uniform(DETAIL_GROUPS, smallest_share, 1, random).tolist()):
            group_values = values[group::DETAIL_GROUPS]
            size = [max(1, round(share * side))] * 2
            if len(group_values) and size != list(values.shape[-2:]):
                coarse[group::DETAIL_GROUPS] = coarsen(group_values, size)
        if augmentation.sharpest:
            strength = rearrange(_uniform(len(values), 0, augmentation.sharpest, random), "image -> image 1 1 1")
            coarse = torch.lerp(coarse, values, strength.to(values.device))
        components.append(coarse)
    return (components[0] + components[1]).clamp(0, 1)


def _jitter_colours(augmentation: Augmentation, views: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    brightness, contrast, saturation = (
        rearrange(
            _uniform(len(views), 1 - augmentation.jitter, 1 + augmentation.jitter, random), "image -> image 1 1 1"
        ).to(views.device)
        for _ in range(3)
    )
    grey = views.mean(1, keepdim=True)
    views = grey + (views - grey) * saturation
    middle = views.mean((1, 2, 3), keepdim=True)
    return (middle * brightness + (views - middle) * contrast).clamp(0, 1)


def _drop_colours(augmentation: Augmentation, views: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    """Views of which some are grey and some solarized; none is both."""
    if not augmentation.greyscale and not augmentation.solarize:
        return views
    draw = rearrange(torch.rand(len(views), generator=random), "image -> image 1 1 1").to(views.device)
    brightness = torch.einsum("ichw,c->ihw", views, views.new_tensor(BRIGHTNESS))[:, None]
    views = torch.where(draw < augmentation.greyscale, brightness, views)
    solarized = (draw >= augmentation.greyscale) & (draw < augmentation.greyscale + augmentation.solarize)
    return torch.where(solarized & (views > 0.5), 1 - views, views)


def mix_batch(
    augmentation: Augmentation, images: torch.Tensor, targets: torch.Tensor, random: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mix some batches with their own reverse, by mixup or CutMix.

    The targets, ``"image target"``, are mixed in the same proportion.
    """
    if torch.rand((), generator=random) >= augmentation.mix:
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
