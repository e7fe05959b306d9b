"""Measures which token is which patch.

A random half of the picture's patches is changed. In the first layer no tokens have mixed yet, so exactly the tokens of
these patches change their values. A wrong patch size, a transposed grid, another order than reading order, or prefix
tokens elsewhere fail this test.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from einops import repeat

from vitviz.attention.precision import precise
from vitviz.errors.kinds import ConfigError
from vitviz.models.capture.places import TokenPlaces

SEED = 0
# A convolutional stem smears patches over their neighbours. The changes must still correlate with the pattern: by at
# least MIN_CORRELATION, and by MIN_SIGNIFICANCE times the correlation of a random order, which is about 1 / √patches.
MIN_CORRELATION = 0.5
MIN_SIGNIFICANCE = 4.0


@dataclass(frozen=True)
class TokenOrder:
    """The position of the patches in a sequence of tokens.

    Args:
        before, after: number of other tokens before and after the patches.
        patches: number of patches.
    """

    before: int
    after: int
    patches: int

    @property
    def extra(self) -> int:
        return self.before + self.after

    @property
    def places(self) -> TokenPlaces:
        """The places of the tokens in every layer, those that are not patches first."""
        patches = torch.arange(self.before, self.before + self.patches)
        extras = [*range(self.before), *range(self.before + self.patches, self.extra + self.patches)]
        return TokenPlaces(torch.cat([torch.tensor(extras, dtype=torch.long), patches]))

    def sort(self, tokens: torch.Tensor, dim: int) -> torch.Tensor:
        """The module's tokens in the order of a :class:`vitviz.TokenLayout`: those that are not patches first."""
        if not self.after:
            return tokens
        return tokens.index_select(dim, self.places.index.to(tokens.device))

    def unsort(self, tokens: torch.Tensor, dim: int) -> torch.Tensor:
        """Tokens of a layout in the order of the module, the inverse of :meth:`sort`."""
        if not self.after:
            return tokens
        return tokens.index_select(dim, self.places.index.argsort().to(tokens.device))

    def place(self, token: int) -> int:
        """The index of the layout's token in the order of the module."""
        if token < self.before or not self.after:
            return token
        return token + self.patches if token < self.extra else token - self.after


def change_patches(pixels: torch.Tensor, grid: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """A mask of a random half of the patches, ``"grid_height grid_width"``, and the image with noise there.

    Args:
        pixels: ``"1 channel height width"``.
        grid: rows and columns of patches, which divide the image.
    """
    generator = torch.Generator().manual_seed(SEED)
    count = grid[0] * grid[1]
    patch_mask = torch.zeros(count, dtype=torch.bool)
    patch_mask[torch.randperm(count, generator=generator)[: max(1, count // 2)]] = True
    patch_mask = patch_mask.view(grid)
    height, width = pixels.shape[-2] // grid[0], pixels.shape[-1] // grid[1]
    mask = repeat(patch_mask, "row column -> (row height) (column width)", height=height, width=width)
    noise = torch.randn(pixels.shape, generator=generator).to(pixels)
    return patch_mask, torch.where(mask.to(pixels.device), noise, pixels)


def measure_order(before: torch.Tensor, after: torch.Tensor, patch_mask: torch.Tensor) -> TokenOrder:
    """The order of the patches among the tokens of the first layer.

    Args:
        before, after: its queries, keys or values ``"head token dim"`` for an image, and for the same with some
            patches changed.
        patch_mask: the changed patches, ``"grid_height grid_width"``.

    Raises:
        ConfigError: the tokens that changed are not those of these patches.
    """
    change = (precise(after) - precise(before)).abs().amax((0, 2)).cpu()
    pattern, tokens = patch_mask.flatten(), len(change)
    grid = f"a grid of {patch_mask.shape[0]}×{patch_mask.shape[1]}"
    count = len(pattern)
    if tokens < count:
        raise ConfigError(f"{tokens} tokens for {grid}: expected one for each of its {count} patches")
    changed = change > 0
    for start in range(tokens - count + 1):
        inside = changed[start : start + count]
        if torch.equal(inside, pattern) and int(changed.sum()) == int(pattern.sum()):
            return TokenOrder(start, tokens - count - start, count)
    scores = [correlation(change[start : start + count], pattern) for start in range(tokens - count + 1)]
    best = max(range(len(scores)), key=scores.__getitem__)
    # If more tokens change than these, a stem has mixed patches; if one of these does not, the order is another one.
    inside = changed[best : best + count]
    is_mixed = bool(inside[pattern].all()) and int(inside.sum()) > int(pattern.sum())
    if is_mixed and scores[best] >= max(MIN_CORRELATION, MIN_SIGNIFICANCE * count**-0.5):
        return TokenOrder(best, tokens - count - best, count)
    counts = f"{int(changed.sum())} of {tokens} tokens changed with {int(pattern.sum())} patches of {grid}"
    raise ConfigError(f"{counts}, and not those of these patches; expected tokens row by row, one for each patch")


def correlation(change: torch.Tensor, pattern: torch.Tensor) -> float:
    """Pearson's correlation of how much tokens changed with the pattern of those that should have; 0 for none."""
    pair = torch.stack([change.double(), pattern.double()])
    correlation = torch.corrcoef(pair)[0, 1] if len(pattern) > 2 else torch.tensor(0.0)
    return float(correlation.nan_to_num(0.0))
