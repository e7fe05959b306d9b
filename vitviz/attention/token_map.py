"""A map over the patch grid that carries its own description."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from vitviz.attention.layout import TokenLayout
from vitviz.attention.precision import precise
from vitviz.caching import cached_property
from vitviz.errors.arguments import named_arguments
from vitviz.errors.kinds import ConfigError


@dataclass(frozen=True, eq=False)
class TokenMap:
    """One value per patch, and one per prefix token.

    Args:
        values: ``"grid_height grid_width"``; kept in the computer's main memory.
        prefix: value of each prefix token by name, such as the attention of the CLS token to itself.
        quantity: what a value is, such as ``"attention weight"``.
        description: how the map was computed, as captions show it; if every patch has the same value, or nothing raises
            the score, it gets a sentence that says so.
        domain: lowest and highest value that the method can produce.
        signed: whether values can be negative in a meaningful way.
        raised: False if the map is about a score that, by its method, nothing raises.

    Raises:
        ConfigError: the values do not form a grid, or are not finite.

    >>> token_map = analysis.rollout().token_map
    >>> token_map.quantity, token_map.values.shape
    ('share of the rollout', torch.Size([14, 14]))
    """

    values: torch.Tensor
    prefix: dict[str, float]
    quantity: str
    description: str
    domain: tuple[float, float] = (0.0, 1.0)
    signed: bool = False
    raised: bool = True

    def __post_init__(self) -> None:
        # A map is small and about to be read: all questions about it cost one wait for a graphics card.
        object.__setattr__(self, "values", precise(self.values).cpu())
        if self.values.ndim != 2:
            raise ConfigError(f"token map of shape {tuple(self.values.shape)}: expected 'grid_height grid_width'")
        if not all(map(math.isfinite, self.range)):
            raise ConfigError(f"{self.description}: the values are not all finite")
        emptiness = self.emptiness
        # A map that is made again from its values and description has the sentence already.
        if not self.description.endswith(emptiness):
            object.__setattr__(self, "description", f"{self.description}. {emptiness}")

    def __repr__(self) -> str:
        low, high = self.range
        rows, columns = self.values.shape
        return f"TokenMap({self.description!r}, {rows}×{columns} patches, {self.quantity} from {low:.3g} to {high:.3g})"

    @classmethod
    @named_arguments(ConfigError)
    def of_tokens(
        cls,
        tokens: torch.Tensor,
        layout: TokenLayout,
        quantity: str,
        description: str,
        domain: tuple[float, float],
        raised: bool = True,
    ) -> TokenMap:
        """A map from one value per token, ``"token"``: patches as the grid, prefix tokens by name."""
        tokens = tokens.cpu()
        prefix = dict(zip(layout.prefix, tokens[: layout.prefix_count].tolist(), strict=True))
        return cls(layout.grid(tokens), prefix, quantity, description, domain, raised=raised)

    @cached_property
    def range(self) -> tuple[float, float]:
        """Lowest and highest value of this map."""
        low, high = self.values.detach().aminmax()
        return float(low), float(high)

    @property
    def strongest(self) -> tuple[int, int]:
        """The patch ``(row, column)`` with the highest value."""
        row, column = divmod(int(self.values.argmax()), self.values.shape[1])
        return row, column

    @property
    def emptiness(self) -> str:
        """What a reader must know about a map that shows no difference between patches, or only where it begins."""
        (low, high), is_flat = self.range, self.values.numel() > 1
        value = f"Every patch is {low:.3g}" if low == high and is_flat else ""
        reason = "" if self.raised else "by this method, nothing raises this score"
        return ": ".join(filter(None, [value, reason])).capitalize()
