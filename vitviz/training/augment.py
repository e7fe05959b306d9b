"""What is done to a batch of training images."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from einops import rearrange

from vitviz.images.resizing import coarsen
from vitviz.training.config import Augmentation

# Of a batch, which are reduced to sizes of their own: every image would take as many steps as there are images.
DETAIL_GROUPS = 8
# Of red, green and blue in brightness: Recommendation ITU-R BT.601.
BRIGHTNESS = (0.299, 0.587, 0.114)
# Of an image that ends on a plain ground: the side of the view as a multiple of its own; where it ends and over how
# much it fades, in half sides; from an ellipse to nearly a rectangle, as powers of 2 in the norm.
GROUND_VIEW = (0.7, 1.4)
GROUND_RADIUS = (0.6, 1.0)
GROUND_FADE = (0.02, 0.2)
GROUND_SHAPE = (1, 3)


def views(augmentation: Augmentation, images: torch.Tensor, size: int, random: torch.Generator) -> torch.Tensor:
    """Random crops, flips and colours: ``"image channel height width"`` in [0, 1] to the same of ``size`` pixels."""
    count = len(images)
    across, down, shift_x, shift_y = _crops(augmentation, count, random)
    grounded = torch.rand(count, generator=random) < augmentation.plain_ground
    if grounded.any():
        wide = (_wide(augmentation, count, random), (across, down, shift_x, shift_y))
        across, down, shift_x, shift_y = (torch.where(grounded, *pair) for pair in zip(*wide, strict=True))
    mirror = 1.0 - 2.0 * (torch.rand(count, generator=random) < 0.5) if augmentation.flip else torch.ones(count)
    zero = torch.zeros(count)
    matrix = rearrange(
        [across * mirror, zero, shift_x, zero, down, shift_y], "(row column) image -> image row column", row=2
    )
    # Drawn on the CPU, so that every device gets the same crops.
    places = F.affine_grid(matrix.to(images.device), [count, images.shape[1], size, size], align_corners=False)
    pixels = (across * images.shape[-1] * down * images.shape[-2]).sqrt()
    sampled = _sampled(images, places, pixels / size)
    if grounded.any():
        chosen = grounded.to(images.device)
        sampled[chosen] = _on_plain_ground(sampled[chosen], places[chosen], random)
    if augmentation.detail < 1 or augmentation.colour_detail < 1:
        sampled = _coarsened(augmentation, sampled, random)
    return _colours(augmentation, sampled, random)


def _crops(augmentation: Augmentation, count: int, random: torch.Generator) -> tuple[torch.Tensor, ...]:
    """Width and height of random crops as parts of the image, and their middles in its half sides."""
    area = _uniform(count, augmentation.smallest_crop, 1, random).sqrt()
    stretch = _stretch(augmentation, count, random)
    across, down = (area * stretch).clamp(max=1), (area / stretch).clamp(max=1)
    # A side that is clipped at the edge lengthens the other.
    across = torch.maximum(across, augmentation.smallest_crop / down).clamp(max=1)
    down = torch.maximum(down, augmentation.smallest_crop / across)
    # A crop may reach over the edge by a sixteenth of its side; what lies there is reflected.
    shift_x = _uniform(count, -1, 1, random) * (1 - across + across / 8)
    shift_y = _uniform(count, -1, 1, random) * (1 - down + down / 8)
    return across, down, shift_x, shift_y


def _wide(augmentation: Augmentation, count: int, random: torch.Generator) -> tuple[torch.Tensor, ...]:
    """The same of views that may be larger than the image; its middle half stays in view."""
    scale = _uniform(count, *GROUND_VIEW, random)
    stretch = _stretch(augmentation, count, random)
    across, down = scale * stretch, scale / stretch
    shift_x, shift_y = (_uniform(count, -1, 1, random) * (side - 0.5).clamp(min=0.1) for side in (across, down))
    return across, down, shift_x, shift_y


def _stretch(augmentation: Augmentation, count: int, random: torch.Generator) -> torch.Tensor:
    return _uniform(count, -math.log(augmentation.aspect), math.log(augmentation.aspect), random).mul(0.5).exp()


def _on_plain_ground(views: torch.Tensor, places: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    """Views that fade into one colour of their own away from the middle of the image.

    What is seen on a lawn in all training images, and never on paper, would be known by the lawn.

    Args:
        views: ``"image channel row column"`` in [0, 1].
        places: where in the image each pixel is from, ``"image row column 2"``; the image is [-1, 1].
        random: for the colours and outlines.
    """
    count = len(views)

    def drawn(low: float, high: float) -> torch.Tensor:
        return rearrange(_uniform(count, low, high, random), "image -> image 1 1").to(views.device)

    power, radius, fade = drawn(*GROUND_SHAPE).exp2(), drawn(*GROUND_RADIUS), drawn(*GROUND_FADE)
    distance = places.abs().pow(rearrange(power, "image 1 1 -> image 1 1 1")).sum(-1).pow(1 / power)
    kept = rearrange(((radius - distance) / fade + 0.5).clamp(0, 1), "image row column -> image 1 row column")
    # Half of all grounds are nearly white, as paper and the pictures of catalogues are; half have a tint.
    light = torch.where(drawn(0, 1) < 0.5, drawn(0.85, 1), drawn(0, 1))
    tint = torch.randn((count, views.shape[1], 1), generator=random).to(views.device) * 0.1 * (drawn(0, 1) < 0.5)
    ground = rearrange((light + tint).clamp(0, 1), "image channel 1 -> image channel 1 1")
    return torch.lerp(ground, views, kept)


def _sampled(images: torch.Tensor, places: torch.Tensor, reduction: torch.Tensor) -> torch.Tensor:
    """Images at places in [-1, 1], ``"image row column 2"``, without aliasing where they are made smaller.

    Args:
        images: ``"image channel height width"``.
        places: where to look.
        reduction: pixels of the image to a pixel of the result, ``"image"``. Who is reduced by more than the square
            root of two is halved beforehand, as often as that takes: Williams 1983, "Pyramidal Parametrics".
    """
    levels = reduction.clamp(min=1).log2().round().long()
    sampled = images.new_empty(len(images), images.shape[1], *places.shape[1:3])
    for level in range(int(levels.max()) + 1):
        chosen = levels == level
        if level:
            half = [math.ceil(side / 2) for side in images.shape[-2:]]
            images = F.interpolate(images, half, mode="area")
        chosen = chosen.to(images.device)
        sampled[chosen] = F.grid_sample(images[chosen], places[chosen], padding_mode="reflection", align_corners=False)
    return sampled


def _coarsened(augmentation: Augmentation, views: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    """Views whose brightness and colours have less detail or more, each by chance.

    Where classes come from different sources, how sharp a picture and its colours are tells the source, and thereby
    the class; of other pictures it tells nothing.
    """
    brightness = torch.einsum("ichw,c->ihw", views, views.new_tensor(BRIGHTNESS))
    brightness = rearrange(brightness, "image row column -> image 1 row column")
    parts = []
    for values, least in ((brightness, augmentation.detail), (views - brightness, augmentation.colour_detail)):
        coarse = values.clone()
        for group, share in enumerate(_uniform(DETAIL_GROUPS, least, 1, random).tolist()):
            chosen = values[group::DETAIL_GROUPS]
            side = [max(1, round(share * each)) for each in values.shape[-2:]]
            if len(chosen) and side != list(values.shape[-2:]):
                coarse[group::DETAIL_GROUPS] = coarsen(chosen, side)
        if augmentation.sharpest:
            strength = rearrange(_uniform(len(values), 0, augmentation.sharpest, random), "image -> image 1 1 1")
            coarse = torch.lerp(coarse, values, strength.to(values.device))
        parts.append(coarse)
    return (parts[0] + parts[1]).clamp(0, 1)


def _colours(augmentation: Augmentation, views: torch.Tensor, random: torch.Generator) -> torch.Tensor:
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


def mix_batch(
    augmentation: Augmentation, images: torch.Tensor, targets: torch.Tensor, random: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Some batches mixed with their own reverse; ``targets`` ``"image class"`` mixed in the same proportion."""
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
