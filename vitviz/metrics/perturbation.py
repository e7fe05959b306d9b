"""What replaces the patches that are removed from an image."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange, repeat

if TYPE_CHECKING:
    from numpy.typing import NDArray

Fill = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

BLUR = 1 / 32
NOISE = 0.1
# Rong et al. 2022, section 4: what the neighbours at a side and at a corner weigh.
SIDE, CORNER = 1 / 6, 1 / 12


def pixel_mask(patches: torch.Tensor, pixels: torch.Tensor) -> torch.Tensor:
    """``"grid_height grid_width"`` as ``"height width"`` of an image, every patch as large as it is there."""
    height, width = pixels.shape[-2] // patches.shape[0], pixels.shape[-1] // patches.shape[1]
    return repeat(patches, "row column -> (row height) (column width)", height=height, width=width)


def zeros(pixels: torch.Tensor, outside: torch.Tensor) -> torch.Tensor:
    """Zero, which in an image that is normalised is the mean colour of the training data.

    Args:
        pixels: ``"channel height width"``, normalised.
        outside: ``"height width"``, the pixels that are taken out.
    """
    return pixels.masked_fill(outside, 0)


def blurred(pixels: torch.Tensor, outside: torch.Tensor) -> torch.Tensor:
    """The image itself, blurred by a Gaussian of 1/32 of its longer side, as Petsiuk et al. 2018 start insertion."""
    return torch.where(outside, blur(pixels), pixels)


def blur(pixels: torch.Tensor) -> torch.Tensor:
    """``"channel height width"`` blurred; at its edges the image goes on as in a mirror."""
    sigma = BLUR * max(pixels.shape[-2:])
    reach = min(round(3 * sigma), min(pixels.shape[-2:]) - 1)
    offsets = torch.arange(-reach, reach + 1, dtype=pixels.dtype, device=pixels.device)
    kernel = torch.exp(-(offsets**2) / (2 * sigma**2))
    kernel = kernel / kernel.sum()
    found = F.pad(pixels[:, None], (reach,) * 4, mode="reflect")
    found = F.conv2d(F.conv2d(found, kernel.view(1, 1, 1, -1)), kernel.view(1, 1, -1, 1))
    return found[:, 0]


def imputed(pixels: torch.Tensor, outside: torch.Tensor) -> torch.Tensor:
    """Every pixel that is taken out as the weighted mean of its eight neighbours, and a little noise.

    Rong et al. 2022, "A Consistent and Efficient Evaluation Strategy for Attribution Methods", section 4: noisy linear
    imputation. The means depend on each other; they are the solution of one sparse linear system. The noise is the same
    for the same pixels.
    """
    from scipy.sparse import csc_array
    from scipy.sparse.linalg import splu

    mask = outside.cpu().numpy()
    if not mask.any():
        return pixels
    if mask.all():
        return torch.zeros_like(pixels)
    channels = pixels.shape[0]
    known = rearrange(pixels.double().cpu(), "channel height width -> height width channel").numpy()
    number: NDArray[np.intp] = np.full(mask.shape, -1)
    rows, columns = np.nonzero(mask)
    number[mask] = np.arange(len(rows))
    weights, right = np.zeros(len(rows)), np.zeros((len(rows), channels))
    entries: list[tuple[NDArray[np.intp], NDArray[np.intp], float]] = []
    for down in (-1, 0, 1):
        for across in (-1, 0, 1):
            if down == across == 0:
                continue
            weight = CORNER if down and across else SIDE
            row, column = rows + down, columns + across
            inside = (row >= 0) & (row < mask.shape[0]) & (column >= 0) & (column < mask.shape[1])
            own, row, column = np.nonzero(inside)[0], row[inside], column[inside]
            weights[own] += weight
            unknown = mask[row, column]
            entries.append((own[unknown], number[row[unknown], column[unknown]], -weight))
            right[own[~unknown]] += weight * known[row[~unknown], column[~unknown]]
    tails = np.concatenate([own for own, _, _ in entries] + [np.arange(len(rows))])
    heads = np.concatenate([other for _, other, _ in entries] + [np.arange(len(rows))])
    values = np.concatenate([np.full(len(own), weight) for own, _, weight in entries] + [weights])
    solved = splu(csc_array((values, (tails, heads)), shape=(len(rows),) * 2)).solve(right)
    found = known.copy()
    found[mask] = solved + np.random.default_rng(0).normal(0, NOISE, known.shape)[mask]
    image = rearrange(torch.from_numpy(found), "height width channel -> channel height width")
    return image.to(pixels)
