"""The patch of each token of a call, found by changing patches in a binary code of their places.

In later layers, tokens have mixed, and the module may have shifted and cut windows. So attention returns zeros while
the coded pictures pass through the module: a token then changes only if its own patch does. Picture *n* changes the
patches whose row (or column) has a 1 as its n-th digit in Gray code, in which neighbours differ by one digit. A
convolution may mix neighbours. Then a second picture changes the other patches, and a token takes the digit of the
picture that changes it more, summed over several pairs. The decoded places must be all patches, each exactly once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import torch
from einops import repeat

from vitviz.attention.precision import precise
from vitviz.models.watched.calls import AttentionCall
from vitviz.models.watched.local import without_neighbours
from vitviz.models.watched.places import TokenPlaces
from vitviz.models.watched.replay import Replay
from vitviz.models.watched.structure import CallShape

# The most pairs of pictures over which changes are summed, if convolutions mix neighbours.
MAX_PAIRS = 4
# Padding tokens of windows may differ by rounding: relative to their largest number.
PAD_TOLERANCE = 1e-6
# The most by which tokens that are no patches may change, squared and relative to the largest change of a token.
MAX_ROUNDING = 1e-2
Grid = tuple[int, int]
# Queries, keys and values of a call, or how much each of its tokens changed in them.
_Read = tuple[torch.Tensor, ...]


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
        the latter, there may be padding of windows that reach beyond the picture: tokens that are all the same.
    """
    candidates = {
        number: shape
        for number, shape in shapes.items()
        if shape.queries == shape.keys and shape.windows * shape.queries in _totals(grid, shape.queries, extra)
    }
    if not candidates:
        return {}
    patterns = _patterns(grid)
    reference = _records(replay, pixels, candidates, {})

    def changes(masks: list[torch.Tensor], seed: int) -> list[dict[int, _Read]]:
        return [_records(replay, repaint(pixels, mask, seed), candidates, reference) for mask in masks]

    everywhere, *ones = changes([torch.ones(grid, dtype=torch.bool), *patterns], 0)
    places = _all_places(candidates, grid, extra, reference, everywhere, ones, None)
    zeros: list[dict[int, _Read]] = []
    for seed in range(MAX_PAIRS):
        if len(places) == len(candidates):
            break
        pair = (changes([~pattern for pattern in patterns], seed), changes(patterns, seed) if seed else ones)
        zeros, ones = pair if not seed else (_sums(zeros, pair[0]), _sums(ones, pair[1]))
        places = _all_places(candidates, grid, extra, reference, everywhere, ones, zeros) | places
    return places


def _totals(grid: Grid, window: int, extra: int) -> set[int]:
    """Possible numbers of a layer's tokens: of the grid, or of windows that reach beyond it if there are no others."""
    sides = [] if extra else [side for side in range(1, window + 1) if window % side == 0]
    padded = {-(-grid[0] // side) * -(-grid[1] // (window // side)) * window for side in sides}
    return {grid[0] * grid[1] + extra} | padded


def _sums(first: list[dict[int, _Read]], second: list[dict[int, _Read]]) -> list[dict[int, _Read]]:
    return [
        {number: tuple(map(torch.add, one[number], two[number])) for number in one}
        for one, two in zip(first, second, strict=True)
    ]


def _records(
    replay: Replay, pixels: torch.Tensor, calls: Collection[int], reference: dict[int, _Read]
) -> dict[int, _Read]:
    """Queries, keys and values of calls while attention returns zeros.

    With a reference, by how much each token differs, window after window.
    """
    records: dict[int, _Read] = {}

    def on_call(call: AttentionCall) -> torch.Tensor:
        if call.number in calls:
            record: _Read = tuple(precise(each.detach()) for each in (call.queries, call.keys, call.values))
            if reference:
                pairs = zip(record, reference[call.number], strict=True)
                record = tuple((after - before).square().sum((1, 3)).flatten().cpu() for after, before in pairs)
            records[call.number] = record
        return torch.zeros_like(call.output)

    replay(pixels, on_call, without_neighbours, until=calls)
    return records


def _patterns(grid: Grid) -> list[torch.Tensor]:
    """Masks of the patches to change, ``"row column"``: one for each digit of the row, then of the column."""
    rows, columns = (torch.arange(side) ^ (torch.arange(side) >> 1) for side in grid)
    by_row = [(rows >> digit & 1).bool()[:, None].expand(grid) for digit in range(_digits(grid[0]))]
    return by_row + [(columns >> digit & 1).bool()[None].expand(grid) for digit in range(_digits(grid[1]))]


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


def _all_places(
    shapes: Mapping[int, CallShape],
    grid: Grid,
    extra: int,
    reference: dict[int, _Read],
    everywhere: dict[int, _Read],
    ones: list[dict[int, _Read]],
    zeros: list[dict[int, _Read]] | None,
) -> dict[int, TokenPlaces]:
    places_by_call = {}
    for number, shape in shapes.items():
        index, *others = (
            _index(
                everywhere[number][item],
                [change[number][item] for change in ones],
                None if zeros is None else [change[number][item] for change in zeros],
                grid,
                extra,
            )
            for item in range(3)
        )
        # If queries and keys are different patches, the call is not attention among the patches of one grid.
        if index is None or any(other is None or not torch.equal(index, other) for other in others):
            continue
        places = TokenPlaces(index, shape.windows)
        if not extra:
            # The tokens that are not patches.
            pads = set(range(shape.windows * shape.queries)) - set(index.tolist())
            places = replace(places, pads=torch.tensor(sorted(pads), dtype=torch.long))
        if not len(places.pads) or _is_padding(places, reference[number][-1]):
            places_by_call[number] = places
    return places_by_call


def _is_padding(places: TokenPlaces, values: torch.Tensor) -> bool:
    """Whether the tokens that are not patches pad windows: several, all the same, and among the patches."""
    pads = values.movedim(1, -2).flatten(0, 1).flatten(1)[places.pads.to(values.device)]
    is_same = bool((pads - pads[:1]).abs().max() <= PAD_TOLERANCE * pads.abs().max())
    is_between = int(places.index.sort().values.diff().max()) > 1
    return len(pads) > 1 and is_same and (places.windows > 1 or is_between)


def _index(
    everywhere: torch.Tensor, ones: list[torch.Tensor], zeros: list[torch.Tensor] | None, grid: Grid, extra: int
) -> torch.Tensor | None:
    """The place of each token, those that are not patches first; None if they are not every patch once."""
    # Other tokens change by rounding where all features are quantised by one scale.
    is_patch = everywhere > (0 if zeros is None or not extra else MAX_ROUNDING * float(everywhere.max()))
    count = grid[0] * grid[1]
    # If the module has no extra tokens, tokens that are not patches may pad windows.
    if int(is_patch.sum()) != count or (len(is_patch) != count + extra and extra):
        return None
    digits = [one > 0 if zeros is None else one > zero for one, zero in zip(ones, zeros or ones, strict=True)]
    place, digit = torch.zeros(len(is_patch), dtype=torch.long), 0
    for side in grid:
        gray = torch.zeros_like(place)
        for position in range(_digits(side)):
            gray |= digits[digit].long() << position
            digit += 1
        number = gray.clone()
        for shift in range(1, _digits(side)):
            number ^= gray >> shift
        place = place * side + number
        if int(number[is_patch].max()) >= side:
            return None
    order = place[is_patch].argsort()
    if not torch.equal(place[is_patch][order], torch.arange(count)):
        return None
    extras = (~is_patch).nonzero().flatten() if extra else torch.empty(0, dtype=torch.long)
    return torch.cat([extras, is_patch.nonzero().flatten()[order]])
