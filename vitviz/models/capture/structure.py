"""Classifies a module's calls of attention as layers and pooling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vitviz.errors.kinds import ConfigError
from vitviz.errors.messages import several
from vitviz.models.capture.calls import AttentionCall


@dataclass(frozen=True)
class CallShape:
    """The sizes of one call.

    Args:
        windows: number of sequences that attend separately; 1 for global attention.
        heads, queries, keys: number of each.
        dim: features of a query.
        leading: the dimensions before the heads, whose product is the number of windows.
    """

    windows: int
    heads: int
    queries: int
    keys: int
    dim: int
    leading: tuple[int, ...] = (1,)

    @classmethod
    def of(cls, call: AttentionCall) -> CallShape:
        leading = tuple(call.queries.shape[:-3])
        return cls(call.windows, call.heads, call.query_count, call.key_count, call.queries.shape[-1], leading)

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


@dataclass(frozen=True)
class AttentionStructure:
    """The layers of a module, and its attention pooling.

    Args:
        depth: number of layers.
        heads, head_width, tokens: sizes of every layer.
        pooling: sizes of the call after the layers in which one learned query reads the tokens; None for no pooling.
    """

    depth: int
    heads: int
    head_width: int
    tokens: int
    pooling: CallShape | None

    @classmethod
    def of(cls, calls: Sequence[CallShape], patches: int) -> AttentionStructure:
        """The structure of a module that calls its layers first, and then at most a pooling.

        Args:
            calls: shapes of all calls for one image, at least one.
            patches: number of patches in its grid.

        Raises:
            ConfigError: the layers do not share one grid of tokens, or more than a pooling follows them.
        """
        depth = next((number for number, call in enumerate(calls) if call.queries != call.keys), len(calls))
        pooling_calls = calls[depth:]
        kinds = list(dict.fromkeys(call.tokens for call in calls))
        summary = f"attention among {several(kinds, 6)}"
        if any(call.windows != 1 for call in calls):
            raise ConfigError(f"{summary}: attention inside windows")
        if len({call.queries for call in calls[:depth]}) > 1 or any(call.queries != 1 for call in pooling_calls):
            raise ConfigError(f"{summary}: hierarchical, several grids in one network")
        if not depth or len(pooling_calls) > 1:
            expected = "expected tokens that attend to each other, and at most one query behind them"
            raise ConfigError(f"{summary}: class attention in {len(pooling_calls)} layers of its own; {expected}")
        first = calls[0]
        for number, call in enumerate(calls[:depth]):
            if (call.heads, call.dim) != (first.heads, first.dim):
                sizes = f"{call.heads} heads of {call.dim} features, layer 0 has {first.heads} of {first.dim}"
                raise ConfigError(f"layer {number} has {sizes}; expected the same in every layer")
        if first.queries < patches:
            raise ConfigError(f"{summary}: fewer than the {patches} patches of the picture; expected a token for each")
        pooling = pooling_calls[0] if pooling_calls else None
        if pooling is not None and pooling.keys not in (first.queries, patches):
            raise ConfigError(f"{summary}: the pooling reads neither all tokens nor all patches")
        return cls(depth, first.heads, first.dim, first.queries, pooling)
