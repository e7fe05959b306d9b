"""The patch of each token of a call, found by changing patches in a binary code of their places.

In later layers, tokens have mixed, and the module may have shifted and cut windows. So attention returns zeros while
the coded pictures pass through the module: a token then changes only if its own patch does. Picture *n* changes the
patches whose row (or column) has a 1 as its n-th digit in Gray code, in which neighbours differ by one digit. A
convolution may mix neighbours. Then a second picture changes the other patches, and a token takes the digit of the
picture that changes it more, summed over several pairs. The decoded places must be all patches, each exactly once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from einops import repeat

from vitviz.models.watched.calls import AttentionCall
from vitviz.models.watched.digests import call_digests, token_changes
from vitviz.models.watched.local import local_hooks
from vitviz.models.watched.replay import Replay
from vitviz.models.watched.structure import CallShape
from vitviz.models.watched.token_places import TokenPlaces

# The most pairs of pictures over which changes are summed, if convolutions mix neighbours.
MAX_PAIRS = 4
# The most by which tokens that are no patches may change, relative to the largest change of a token.
MAX_ROUNDING = 0.1
Grid = tuple[int, int]


def decode_places(
    replay: Replay,
    pixels: torch.Tensor,
    grid: Grid,
    shapes: Mapping[int, CallShape],
    extra: int,
) -> dict[int, TokenPlaces]:
    """The token places of all calls that attend among one grid of patches, by number of the call.

    Args:
        replay: of the module.
        pixels: ``"1 channel height width"``.
        grid: rows and columns of patches.
        shapes: shapes of all calls that are no part of another one, by number.
        extra: number of tokens in the grid's layers that are not patches.

    Returns:
        Without the calls whose tokens are not exactly these patches, each once, and ``extra`` other tokens. Instead of
        the latter, there may be tokens between the patches, such as padding of windows that reach beyond the picture.
    """
    calls = {
        number: shape
        for number, shape in shapes.items()
        if shape.queries == shape.keys and shape.windows * shape.queries in _totals(grid, shape.queries, extra)
    }
    if not calls:
        return {}
    reference, masks, places = _read(replay, pixels, calls), _masks(grid), dict[int, TokenPlaces]()
    # How much tokens change in queries, keys and values with the patches of each mask, "3 mask token".
    sums: dict[int, Any] = dict.fromkeys(calls, 0)
    for seed in range(MAX_PAIRS):
        for sign in (1, -1):
            found = [_read(replay, repaint(pixels, mask if sign > 0 else ~mask, seed), calls) for mask in masks]
            for number, before in reference.items():
                sums[number] += sign * torch.stack([token_changes(before, each[number]) for each in found], 1)
            # The very first pictures tell all if nothing mixes patches; else both of each pair do.
            if seed and sign > 0:
                continue
            # Other tokens change by rounding where all features are quantised by one scale.
            rounding = MAX_ROUNDING if extra and sign < 0 else 0.0
            for number in calls.keys() - places.keys():
                place = _places(calls[number], grid, extra, sums[number], rounding)
                if place is not None:
                    places[number] = place
            if len(places) == len(calls):
                return places
    return places


def _totals(grid: Grid, window: int, extra: int) -> set[int]:
    """Possible numbers of a layer's tokens: of the grid, or of windows that reach beyond it if there are no others."""
    sides = [] if extra else [side for side in range(1, window + 1) if window % side == 0]
    padded = {-(-grid[0] // side) * -(-grid[1] // (window // side)) * window for side in sides}
    return {grid[0] * grid[1] + extra} | padded


def _read(replay: Replay, pixels: torch.Tensor, calls: Collection[int]) -> dict[int, torch.Tensor]:
    """Digests of what calls read while attention returns zeros, by number of the call."""
    found: dict[int, torch.Tensor] = {}

    def on_call(call: AttentionCall) -> torch.Tensor:
        if call.number in calls:
            found[call.number] = call_digests(call)
        return torch.zeros_like(call.output)

    replay(pixels, on_call, local_hooks(replay.program), replay.steps_of(*calls))
    return found


def _masks(grid: Grid) -> list[torch.Tensor]:
    """Masks of the patches to change, ``"row column"``: all; then for each digit of the row, then of the column."""
    rows, columns = (torch.arange(side) ^ (torch.arange(side) >> 1) for side in grid)
    by_row = [(rows >> digit & 1).bool()[:, None].expand(grid) for digit in range(_digits(grid[0]))]
    by_column = [(columns >> digit & 1).bool()[None].expand(grid) for digit in range(_digits(grid[1]))]
    return [torch.ones(grid, dtype=torch.bool), *by_row, *by_column]


def _digits(side: int) -> int:
    return (side - 1).bit_length()


def repaint(pixels: torch.Tensor, patch_mask: torch.Tensor, seed: int) -> torch.Tensor:
    """The image with noise in masked patches: for seed 0 in their middle, where convolutions mix in others the least.

    A convolution with steps may read a corner alone, which other seeds repaint, too.
    """
    height, width = (side // count for side, count in zip(pixels.shape[-2:], patch_mask.shape, strict=True))
    middle = _middle(height)[:, None] & _middle(width)
    mask = repeat(patch_mask, "row column -> (row height) (column width)", height=height, width=width)
    mask = mask if seed else mask & middle.repeat(*patch_mask.shape)
    noise = torch.randn(pixels.shape, generator=torch.Generator().manual_seed(seed + 1)).to(pixels)
    return torch.where(mask.to(pixels.device), noise, pixels)


def _middle(side: int) -> torch.Tensor:
    """A mask of the middle half of ``side`` pixels."""
    pixels = torch.arange(side)
    return (pixels >= side // 4) & (pixels < side - side // 4)


def _places(shape: CallShape, grid: Grid, extra: int, changes: torch.Tensor, rounding: float) -> TokenPlaces | None:
    """The places of a call's tokens; None if they are not every patch once.

    Args:
        shape: of the call.
        grid, extra: as in :func:`decode_places`.
        changes: ``"3 mask token"``, how much more tokens change with the patches of a mask than with the others.
        rounding: the most by which tokens that are no patches change, relative to the largest change.
    """
    index, *others = (_index(each, grid, extra, rounding) for each in changes)
    # If queries and keys are different patches, the call is not attention among the patches of one grid.
    if index is None or any(other is None or not torch.equal(index, other) for other in others):
        return None
    # If the module has no extra tokens, tokens that are not patches may pad windows: several, and among the patches.
    pads = set(range(shape.windows * shape.queries)) - set(index.tolist())
    is_between = shape.windows > 1 or bool((index.sort().values.diff() > 1).any())
    if len(pads) == 1 or (pads and not is_between):
        return None
    return TokenPlaces(index, shape.windows, torch.tensor(sorted(pads), dtype=torch.long))


def _index(changes: torch.Tensor, grid: Grid, extra: int, rounding: float) -> torch.Tensor | None:
    """The place of each token, those that are not patches first; None if they are not every patch once."""
    everywhere, count = changes[0], grid[0] * grid[1]
    is_patch = everywhere > rounding * float(everywhere.max())
    if int(is_patch.sum()) != count or (len(is_patch) != count + extra and extra):
        return None
    place = torch.zeros(len(is_patch), dtype=torch.long)
    for side, code in zip(grid, (changes[1:] > 0).long().split([_digits(side) for side in grid]), strict=True):
        # A binary digit is the parity of the digits of Gray code from it on.
        digits = code.flip(0).cumsum(0).flip(0) % 2
        number = (digits << torch.arange(len(digits))[:, None]).sum(0)
        place = place * side + number
        if int(number[is_patch].max()) >= side:
            return None
    order = place[is_patch].argsort()
    if not torch.equal(place[is_patch][order], torch.arange(count)):
        return None
    extras = (~is_patch).nonzero().flatten() if extra else torch.empty(0, dtype=torch.long)
    return torch.cat([extras, is_patch.nonzero().flatten()[order]])
