"""Which patch every token of a call is, read off pictures whose changed patches spell each place in binary.

:mod:`vitviz.models.capture.order` compares the first layer's tokens with one picture. Behind it, tokens have met each
other, and windows are shifted and cut in ways of their own. So no attention gives anything while these pictures pass
through the module: a token then changes if its own patch does. In picture *n* those patches are changed whose row (or
column) has a 1 as its n-th digit in Gray's code, in which neighbours differ by one digit. A convolution may mix
neighbours: then a second picture has the other patches changed, and a token has the digit of the one that
changes it more, in the sum of several pairs. What is read has to be every patch exactly once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from einops import repeat

from vitviz.attention.precision import precise
from vitviz.models.capture.calls import AttentionCall
from vitviz.models.capture.interception import Interception
from vitviz.models.capture.places import TokenPlaces
from vitviz.models.capture.structure import CallShape

# Where convolutions mix neighbours, so many pictures are tried, and what they change is added up.
PICTURES = 4
# What fills up windows is the same but for rounding, as a part of its largest number.
SAME = 1e-6
Grid = tuple[int, int]
_Parts = tuple[torch.Tensor, torch.Tensor]


@dataclass
class _Silent:
    """Gives the module nothing for attention, and keeps queries and values, or how much they change.

    Args:
        wanted: calls that are looked at.
        first: queries and values of these calls in the first picture; empty for the first picture itself.
    """

    wanted: Mapping[int, CallShape]
    first: dict[int, _Parts]
    number: int = 0
    found: dict[int, _Parts] = field(default_factory=dict)

    def __call__(self, call: AttentionCall) -> torch.Tensor:
        number, self.number = self.number, self.number + 1
        if number in self.wanted and CallShape.of(call) == self.wanted[number]:
            parts = (precise(call.queries.detach()), precise(call.values.detach()))
            if self.first:
                queries, values = (
                    (part - before).square().sum(-1) for part, before in zip(parts, self.first[number], strict=True)
                )
                self.found[number] = (queries, values)
            else:
                self.found[number] = parts
        return torch.zeros_like(call.output)


def coded_places(
    run: Callable[[torch.Tensor], torch.Tensor],
    pixels: torch.Tensor,
    grid: Grid,
    shapes: list[CallShape],
    extra: int,
) -> dict[int, TokenPlaces]:
    """Where the tokens lie in the calls of a module whose tokens are one grid of patches, by the call's number.

    Args:
        run: its forward pass.
        pixels: ``"1 channel height width"``.
        grid: rows and columns of patches.
        shapes: of all its calls.
        extra: how many tokens of the grid's layers are no patches.

    Returns:
        A call is missing if its tokens are not these patches, each once, with so many others, or with what fills up
        windows that reach beyond the picture: tokens that are all the same, and no patch.
    """
    count = grid[0] * grid[1] + extra
    wanted = {
        at: each
        for at, each in enumerate(shapes)
        if each.queries == each.keys and any(each.may_hold(tokens, count, extra) for tokens in each.token_counts)
    }
    if not wanted:
        return {}
    patterns = _patterns(grid)
    first = _observed(run, pixels, wanted, {})

    def changes(pictures: list[torch.Tensor], seed: int) -> list[dict[int, _Parts]]:
        return [_observed(run, _repainted(pixels, picture, seed), wanted, first) for picture in pictures]

    everywhere, *ones = changes([torch.ones(grid, dtype=torch.bool), *patterns], 0)
    found = _all_places(wanted, grid, extra, first, everywhere, ones, None)
    zeros: list[dict[int, _Parts]] = []
    for seed in range(PICTURES):
        if len(found) == len(wanted):
            break
        more = (changes([~pattern for pattern in patterns], seed), changes(patterns, seed) if seed else ones)
        zeros, ones = more if not seed else (_sums(zeros, more[0]), _sums(ones, more[1]))
        found = _all_places(wanted, grid, extra, first, everywhere, ones, zeros) | found
    return found


def _sums(some: list[dict[int, _Parts]], others: list[dict[int, _Parts]]) -> list[dict[int, _Parts]]:
    return [
        {number: (one[number][0] + two[number][0], one[number][1] + two[number][1]) for number in one if number in two}
        for one, two in zip(some, others, strict=True)
    ]


def _observed(
    run: Callable[[torch.Tensor], torch.Tensor],
    pixels: torch.Tensor,
    wanted: Mapping[int, CallShape],
    first: dict[int, _Parts],
) -> dict[int, _Parts]:
    silent = _Silent(wanted, first)
    with Interception(silent):
        run(pixels)
    return silent.found


def _patterns(grid: Grid) -> list[torch.Tensor]:
    """Which patches are changed, ``"row column"``: first for each digit of their row, then of their column."""
    rows, columns = (torch.arange(side) ^ (torch.arange(side) >> 1) for side in grid)
    by_row = [(rows >> digit & 1).bool()[:, None].expand(grid) for digit in range(_digits(grid[0]))]
    return by_row + [(columns >> digit & 1).bool()[None].expand(grid) for digit in range(_digits(grid[1]))]


def _digits(side: int) -> int:
    return (side - 1).bit_length()


def _repainted(pixels: torch.Tensor, chosen: torch.Tensor, seed: int) -> torch.Tensor:
    """The image with the middle of some patches changed, which convolutions mix with other patches the least."""
    height, width = (side // count for side, count in zip(pixels.shape[-2:], chosen.shape, strict=True))
    middle = _middle(height)[:, None] & _middle(width)
    mask = repeat(chosen, "row column -> (row height) (column width)", height=height, width=width)
    mask = mask & middle.repeat(*chosen.shape)
    noise = torch.randn(pixels.shape, generator=torch.Generator().manual_seed(seed + 1)).to(pixels)
    return torch.where(mask.to(pixels.device), noise, pixels)


def _middle(side: int) -> torch.Tensor:
    """The middle half of so many pixels."""
    places = torch.arange(side)
    return (places >= side // 4) & (places < side - side // 4)


def _all_places(
    wanted: Mapping[int, CallShape],
    grid: Grid,
    extra: int,
    first: dict[int, _Parts],
    everywhere: dict[int, _Parts],
    ones: list[dict[int, _Parts]],
    zeros: list[dict[int, _Parts]] | None,
) -> dict[int, TokenPlaces]:
    found = {}
    for number, shape in wanted.items():
        if any(number not in each for each in (everywhere, *ones, *(zeros or ()))):
            continue
        for has_heads_first in (False, True) if len(shape.leading) == 2 else (False,):
            queries, keys = (
                _index(
                    _by_token(everywhere[number][part], has_heads_first),
                    [_by_token(each[number][part], has_heads_first) for each in ones],
                    None if zeros is None else [_by_token(each[number][part], has_heads_first) for each in zeros],
                    grid,
                    extra,
                )
                for part in (0, 1)
            )
            # Where queries and keys are other patches, it is no attention among the patches of one grid.
            if queries is None or keys is None or not torch.equal(queries, keys):
                continue
            windows = shape.windows if not has_heads_first else shape.leading[0] * shape.heads
            places = TokenPlaces(queries, windows, has_heads_first)
            if not extra:
                total = len(_by_token(everywhere[number][1], has_heads_first))
                places = replace(places, pads=_others(queries, total))
            if not len(places.pads) or _is_filling(places, first[number][1]):
                found[number] = places
                break
    return found


def _others(index: torch.Tensor, total: int) -> torch.Tensor:
    """Places of the tokens that are no patches."""
    is_patch = torch.zeros(total, dtype=torch.bool)
    is_patch[index] = True
    return (~is_patch).nonzero().flatten()


def _is_filling(places: TokenPlaces, values: torch.Tensor) -> bool:
    """Whether tokens that are no patches fill up windows: several, all the same, and not beside the patches alone."""
    heads = 1 if places.has_heads_first else values.ndim - 3
    own = values.movedim(heads, -2).flatten(0, -3).flatten(1)[places.pads.to(values.device)]
    is_same = bool((own - own[:1]).abs().max() <= SAME * own.abs().max())
    is_between = int(places.index.sort().values.diff().max()) > 1
    return len(own) > 1 and is_same and (places.windows > 1 or is_between)


def _by_token(change: torch.Tensor, has_heads_first: bool) -> torch.Tensor:
    """``"… head token"`` as ``"token"``, window after window, the sum of all heads."""
    heads = 1 if has_heads_first else change.ndim - 2
    return change.sum(heads).flatten().cpu()


def _index(
    everywhere: torch.Tensor, ones: list[torch.Tensor], zeros: list[torch.Tensor] | None, grid: Grid, extra: int
) -> torch.Tensor | None:
    """Each token's place, those that are no patches first; None where they are not every patch once."""
    is_patch = everywhere > 0
    count = grid[0] * grid[1]
    # Without names, what is no patch may fill up windows.
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
    others = (~is_patch).nonzero().flatten() if extra else torch.empty(0, dtype=torch.long)
    return torch.cat([others, is_patch.nonzero().flatten()[order]])
