"""The far look: the patch that gives most of its attention to one compact place far from it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from einops import rearrange
from torch.nn import functional as F

from vitviz.attention.layout import TokenLayout
from vitviz.attention.precision import plain_torch, precise
from vitviz.attention.trace import AttentionTrace
from vitviz.errors.attributes import AttributeAdvice

# Of the picture's height and width.
FAR = 1 / 3
PLACE_PATCHES = 3
# Of the picture's own contrast: a patch of less counts for less, since heads look by position where nothing is.
PLAIN_CONTRAST = 0.5
# On larger grids, only some rows and columns of patches are queries.
MAX_QUERIES = 400


@dataclass(frozen=True)
class FarLook(AttributeAdvice):
    """One patch that looks far away, in one layer and head.

    Args:
        layer, head: counted from 0.
        query: row and column of the patch that asks.
        place: row and column of the centre of the 3 × 3 patches that answer.
        share: of the patch's attention that these patches receive, in [0, 1]; all tokens together receive 1.
        excess: ``share``, less what half of the patches give to the same place, in [0, 1]. A sink has a large share
            and no excess.

    >>> look = analysis.far_look()
    >>> look.layer, look.head, look.query, look.place, round(look.share, 2)
    (6, 5, (6, 10), (5, 5), 0.83)
    """

    layer: int
    head: int
    query: tuple[int, int]
    place: tuple[int, int]
    share: float
    excess: float

    def __str__(self) -> str:
        return (
            f"Patch {self.query} gives {self.share:.0%} of its attention to the 3 × 3 patches around {self.place}, far "
            f"from it, in layer {self.layer}, head {self.head}."
        )


@plain_torch()
def far_look(trace: AttentionTrace, pixels: torch.Tensor) -> FarLook | None:
    """The patch that gives the largest share of its attention to 3 × 3 patches at least a third of the picture away.

    The share counts less what half of the patches give to the same place, and less where the picture is plain around
    the patch or the place. The measure is vitviz's own.

    Args:
        trace: of one image.
        pixels: the input of the network, ``"1 channel height width"``.

    Returns:
        The first of all layers and heads; None for a grid in which no place is far enough.
    """
    layout = trace.layout
    height, width, first = layout.grid_height, layout.grid_width, layout.prefix_count
    step = math.ceil(math.sqrt(layout.patch_count / MAX_QUERIES))
    queries = torch.arange(layout.patch_count).view(height, width)[step // 2 :: step, step // 2 :: step].flatten()
    places = torch.cartesian_prod(*(torch.arange(count).float() / count for count in (height, width)))
    importance = contrast(pixels, layout)
    # "key query", zero where the key is near.
    importance = importance[:, None] * importance[queries] * (torch.cdist(places, places[queries]) >= FAR)
    best: FarLook | None = None
    highest = 0.0
    starts = range(first + step // 2 * width, layout.token_count, step * width)
    blocks = [slice(start, start + width) for start in starts] if step > 1 else [slice(first, None)]
    for layer in range(trace.layers):
        # Copies of every step-th row from the first query on, since the next chunk overwrites one.
        chunks = [
            rearrange(
                weights[:, (block.start + step // 2 - rows.start) % step :: step, first:],
                "head query key -> key head query",
            ).clone(memory_format=torch.contiguous_format)
            for block in blocks
            for rows, weights in trace.weights_in_chunks(layer, block)
        ]
        # With heads and queries as channels that lie side by side, torch adds places up in a seventh of the time.
        channels = precise(torch.cat(chunks, 2).cpu()).view(1, height, width, -1).movedim(3, 1)
        sums = F.avg_pool2d(channels, PLACE_PATCHES, 1, PLACE_PATCHES // 2, divisor_override=1)
        shares = rearrange(sums, "1 (head query) row column -> (row column) head query", head=trace.heads)
        # "key head", at least what is left after the median, which takes longer.
        bounds = (shares * importance[:, None]).amax(2)
        for head in bounds.amax(0).argsort(descending=True).tolist():
            keys = (bounds[:, head] > highest).nonzero().flatten()
            if not len(keys):
                break
            found = shares[keys, head]
            excess = found - found.median(1, keepdim=True).values
            # Of equal ones, the first query's.
            score, index = (excess * importance[keys]).T.flatten().max(0)
            if score > highest:
                highest = float(score)
                query, place = divmod(int(index), len(keys))
                share, more = float(found[place, query]), float(excess[place, query])
                ends = divmod(int(queries[query]), width), divmod(int(keys[place]), width)
                best = FarLook(layer, head, *ends, share, more)
    return best


def contrast(pixels: torch.Tensor, layout: TokenLayout) -> torch.Tensor:
    """How much the picture varies around each patch, ``"patch"``, in [0, 1]: 1 for half of its own contrast or more."""
    pixels = pixels.cpu().double()
    means = F.adaptive_avg_pool2d(torch.cat([pixels, pixels.square()]), (layout.grid_height, layout.grid_width))
    mean, square = F.avg_pool2d(means, PLACE_PATCHES, 1, PLACE_PATCHES // 2, count_include_pad=False)
    deviation = (square - mean.square()).clamp(min=0).mean(0).sqrt()
    whole = pixels.var((2, 3), correction=0).mean().sqrt()
    return (deviation / (PLAIN_CONTRAST * whole)).nan_to_num(1.0).clamp(max=1).flatten().float()
