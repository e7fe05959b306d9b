"""Fills for the patches that are removed from an image."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from einops import rearrange, repeat

Fill = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

# Standard deviation of the blur in longer sides of the image.
BLUR_SIGMA = 1 / 32
NOISE_SIGMA = 0.1
# Rong et al. 2022, section 4: weights of the neighbours at a side and at a corner.
SIDE_WEIGHT, CORNER_WEIGHT = 1 / 6, 1 / 12


def pixel_mask(patches: torch.Tensor, pixels: torch.Tensor) -> torch.Tensor:
    """A mask of patches, ``"grid_height grid_width"``, as a mask of an image's pixels, ``"height width"``."""
    height, width = pixels.shape[-2] // patches.shape[0], pixels.shape[-1] // patches.shape[1]
    return repeat(patches, "row column -> (row height) (column width)", height=height, width=width)


def zeros(pixels: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The image with zeros, which in a normalised image are the mean colour of the training data.

    Args:
        pixels: ``"channel height width"``, normalised.
        mask: ``"height width"``, True for the pixels to fill.
    """
    return pixels.masked_fill(mask, 0)


def blurred(pixels: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The image, blurred by a Gaussian of 1/32 of its longer side, with which Petsiuk et al. 2018 start insertion."""
    return torch.where(mask, blur(pixels), pixels)


def blur(pixels: torch.Tensor) -> torch.Tensor:
    """The image ``"channel height width"``, blurred, and mirrored at its edges."""
    from scipy.ndimage import gaussian_filter

    sigma = BLUR_SIGMA * max(pixels.shape[-2:])
    reach = min(round(3 * sigma), min(pixels.shape[-2:]) - 1)
    blurred = gaussian_filter(pixels.cpu().numpy(), sigma, mode="mirror", radius=reach, axes=(1, 2))
    return torch.from_numpy(blurred).to(pixels)


def imputed(pixels: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The image with each masked pixel as the weighted mean of its eight neighbours, plus a little noise.

    Rong et al. 2022, "A Consistent and Efficient Evaluation Strategy for Attribution Methods", section 4: noisy linear
    imputation. The means depend on each other and solve one sparse linear system. The noise is the same for the same
    pixels.
    """
    from scipy.sparse import diags_array, eye_array, kron
    from scipy.sparse.linalg import splu

    is_masked = mask.flatten().cpu().numpy()
    if not is_masked.any():
        return pixels
    if is_masked.all():
        return torch.zeros_like(pixels)
    height, width = mask.shape
    down, across = (diags_array((1.0, 1.0), offsets=(-1, 1), shape=(side, side)) for side in (height, width))
    sides = kron(down, eye_array(width)) + kron(eye_array(height), across)
    weights = (SIDE_WEIGHT * sides + CORNER_WEIGHT * kron(down, across)).tocsr()[is_masked]
    values = rearrange(pixels.double().cpu(), "channel height width -> (height width) channel").numpy().copy()
    # A pixel times the sum of its weights is the sum of its weighted neighbours.
    system = diags_array(weights.sum(1)) - weights[:, is_masked]
    means = splu(system.tocsc()).solve(weights[:, ~is_masked] @ values[~is_masked])
    values[is_masked] = means + np.random.default_rng(0).normal(0, NOISE_SIGMA, values.shape)[is_masked]
    image = rearrange(torch.from_numpy(values), "(height width) channel -> channel height width", height=height)
    return image.to(pixels)
