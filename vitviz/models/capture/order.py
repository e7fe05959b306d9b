"""Which token is which patch: measured, not assumed.

A random half of the patches is changed in the picture. In the first layer no token has met another yet, so exactly the
tokens of these patches have other values than before. A wrong patch size, a transposed grid, another order than that of
reading, or prefix tokens in another place cannot pass.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from einops import repeat

from vitviz.attention.precision import precise
from vitviz.errors.kinds import ConfigError
from vitviz.models.capture.places import TokenPlaces

SEED = 0
# A convolutional stem smears patches over their neighbours. What is left of the pattern then correlates with it at
# least this well, and so many times as well as that of another order would by chance, which is about 1 / √patches.
LEAST_CORRELATION = 0.5
LEAST_SIGNIFICANCE = 4.0


@dataclass(frozen=True)
class TokenOrder:
    """Where the patches stand in a sequence of tokens.

    Args:
        before, after: how many tokens that are no patches stand before and after them.
        patches: how many there are.
    """

    before: int
    after: int
    patches: int

    @property
    def extra(self) -> int:
        return self.before + self.after

    @property
    def places(self) -> TokenPlaces:
        """Where the tokens of every layer are: those that are no patches first."""
        patches = torch.arange(self.before, self.before + self.patches)
        others = [*range(self.before), *range(self.before + self.patches, self.extra + self.patches)]
        return TokenPlaces(torch.cat([torch.tensor(others, dtype=torch.long), patches]))

    def sort(self, tokens: torch.Tensor, dim: int) -> torch.Tensor:
        """Tokens of the module in the order of a :class:`vitviz.TokenLayout`: those that are no patches first."""
        if not self.after:
            return tokens
        return tokens.index_select(dim, self.places.index.to(tokens.device))

    def unsort(self, tokens: torch.Tensor, dim: int) -> torch.Tensor:
        """Tokens in the order of a layout in that of the module, which :meth:`sort` undoes."""
        if not self.after:
            return tokens
        return tokens.index_select(dim, self.places.index.argsort().to(tokens.device))

    def place(self, token: int) -> int:
        """Where a token of the layout stands in the module's own order."""
        if token < self.before or not self.after:
            return token
        return token + self.patches if token < self.extra else token - self.after


def changed_patches(pixels: torch.Tensor, grid: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """A random half of an image's patches, ``"grid_height grid_width"``, and the image with other colours there.

    Args:
        pixels: ``"1 channel height width"``.
        grid: rows and columns of patches, which divide the image.
    """
    generator = torch.Generator().manual_seed(SEED)
    count = grid[0] * grid[1]
    chosen = torch.zeros(count, dtype=torch.bool)
    chosen[torch.randperm(count, generator=generator)[: max(1, count // 2)]] = True
    chosen = chosen.view(grid)
    height, width = pixels.shape[-2] // grid[0], pixels.shape[-1] // grid[1]
    mask = repeat(chosen, "row column -> (row height) (column width)", height=height, width=width)
    noise = torch.randn(pixels.shape, generator=generator).to(pixels)
    return chosen, torch.where(mask.to(pixels.device), noise, pixels)


def measured_order(before: torch.Tensor, after: torch.Tensor, chosen: torch.Tensor) -> TokenOrder:
    """Where the patches are among the tokens of the first layer.

    Args:
        before, after: its values ``"head token dim"`` for an image, and for the same with other patches.
        chosen: which patches are others, ``"grid_height grid_width"``.

    Raises:
        ConfigError: the tokens that changed are not those of these patches.
    """
    change = (precise(after) - precise(before)).abs().amax((0, 2)).cpu()
    pattern, tokens = chosen.flatten(), len(change)
    grid = f"a grid of {chosen.shape[0]}×{chosen.shape[1]}"
    count = len(pattern)
    if tokens < count:
        raise ConfigError(f"{tokens} tokens for {grid}: expected one for each of its {count} patches")
    changed = change > 0
    for start in range(tokens - count + 1):
        inside = changed[start : start + count]
        if torch.equal(inside, pattern) and int(changed.sum()) == int(pattern.sum()):
            return TokenOrder(start, tokens - count - start, count)
    scores = [_correlation(change[start : start + count], pattern) for start in range(tokens - count + 1)]
    best = max(range(len(scores)), key=scores.__getitem__)
    # Where all tokens change, a stem has mixed them; where some do not, the order is another one.
    inside = changed[best : best + count]
    is_mixed = bool(inside[pattern].all()) and int(inside.sum()) > int(pattern.sum())
    if is_mixed and scores[best] >= max(LEAST_CORRELATION, LEAST_SIGNIFICANCE * count**-0.5):
        return TokenOrder(best, tokens - count - best, count)
    found = f"{int(changed.sum())} of {tokens} tokens changed with {int(pattern.sum())} patches of {grid}"
    raise ConfigError(f"{found}, and not those of these patches; expected tokens row by row, one for each patch")


def _correlation(change: torch.Tensor, pattern: torch.Tensor) -> float:
    pair = torch.stack([change.double(), pattern.double()])
    found = torch.corrcoef(pair)[0, 1] if len(pattern) > 2 else torch.tensor(0.0)
    return float(found.nan_to_num(0.0))
