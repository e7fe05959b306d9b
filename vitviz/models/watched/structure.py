"""The sizes of a module's calls of attention."""

from __future__ import annotations

from dataclasses import dataclass

from vitviz.models.watched.calls import AttentionCall


@dataclass(frozen=True)
class CallShape:
    """The sizes of one call.

    Args:
        windows: number of sequences that attend separately; 1 for global attention.
        heads, queries, keys: number of each.
        dim: features of a query.
        leading: the dimensions before the heads, whose product is the number of windows.
        has_bias: whether a bias is added to the scores.
    """

    windows: int
    heads: int
    queries: int
    keys: int
    dim: int
    leading: tuple[int, ...]
    has_bias: bool

    @classmethod
    def of(cls, call: AttentionCall) -> CallShape:
        leading = tuple(call.queries.shape[:-3])
        counts = call.windows, call.heads, call.query_count, call.key_count
        return cls(*counts, call.queries.shape[-1], leading, call.bias is not None)

    @property
    def token_counts(self) -> set[int]:
        """Possible numbers of tokens in all windows: of two leading dimensions, the second may be the heads."""
        counts = {self.windows * self.queries}
        return counts | {self.leading[0] * self.heads * self.queries} if len(self.leading) == 2 else counts

    @property
    def tokens(self) -> str:
        """The numbers of queries, keys and windows in words."""
        count = f"{self.queries} tokens"
        if self.queries != self.keys:
            count = f"{self.queries} {'query' if self.queries == 1 else 'queries'} to {self.keys} keys"
        return count if self.windows == 1 else f"{self.windows} windows of {count}"

    def sizes(self, has_heads_first: bool) -> tuple[int, int]:
        """Number of heads, and of features of a query."""
        return self.leading[1] if has_heads_first else self.heads, self.dim

    def pools(self, tokens: int, patches: int) -> bool:
        """Whether one query reads all tokens, or all patches."""
        return self.windows == 1 and self.queries == 1 and self.keys in (tokens, patches)
