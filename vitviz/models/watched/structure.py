"""The sizes of a module's calls of attention."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CallShape:
    """The sizes of one call.

    Args:
        windows: number of sequences that attend separately; 1 for global attention.
        heads, queries, keys: number of each.
        dim: features of a query.
        has_bias: whether a bias is added to the scores.
    """

    windows: int
    heads: int
    queries: int
    keys: int
    dim: int
    has_bias: bool

    @property
    def tokens(self) -> str:
        """The numbers of queries, keys and windows in words."""
        pairs = f"{self.queries} {'query' if self.queries == 1 else 'queries'} to {self.keys} keys"
        count = f"{self.queries} tokens" if self.queries == self.keys else pairs
        return count if self.windows == 1 else f"{self.windows} windows of {count}"

    def pools(self, tokens: int, patches: int) -> bool:
        """Whether one query reads all tokens, or all patches."""
        return self.windows == 1 and self.queries == 1 and self.keys in (tokens, patches)
