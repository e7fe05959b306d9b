"""Which of a module's calls of attention are its layers, and which is its pooling."""

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
        windows: sequences that attend apart from each other; 1 for global attention.
        heads, queries, keys: how many.
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
        """How many tokens all windows may have together: of two leading dimensions the second may be the heads."""
        found = {self.windows * self.queries}
        return found | {self.leading[0] * self.heads * self.queries} if len(self.leading) == 2 else found

    def may_hold(self, tokens: int, count: int, extra: int) -> bool:
        """Whether so many tokens may be these others and what fills up windows, where none has a name."""
        return tokens == count if extra else tokens >= count

    @property
    def tokens(self) -> str:
        """Who attends to whom, in words."""
        count = f"{self.queries} tokens"
        if self.queries != self.keys:
            count = f"{self.queries} {'query' if self.queries == 1 else 'queries'} to {self.keys} keys"
        return count if self.windows == 1 else f"{self.windows} windows of {count}"

    def sizes(self, has_heads_first: bool) -> tuple[int, int]:
        """Heads, and features of a query."""
        return self.leading[1] if has_heads_first else self.heads, self.dim

    def pools(self, tokens: int, patches: int) -> bool:
        """Whether one query reads all tokens, or all patches."""
        return self.windows == 1 and self.queries == 1 and self.keys in (tokens, patches)


@dataclass(frozen=True)
class AttentionStructure:
    """The layers among a module's calls, which come first, and its attention pooling.

    Args:
        depth, heads, head_width, tokens: of every layer.
        pooling: the sizes of the call behind the layers in which one learned query reads the tokens; None for none.
    """

    depth: int
    heads: int
    head_width: int
    tokens: int
    pooling: CallShape | None

    @classmethod
    def of(cls, calls: Sequence[CallShape], patches: int, stated_depth: int | None = None) -> AttentionStructure:
        """The layers among all calls, in order.

        Args:
            calls: of one image, at least one.
            patches: of its grid.
            stated_depth: how many layers the module says that it has, where it does.

        Raises:
            ConfigError: they are not one grid of tokens in all layers, and at most one query behind them.
        """
        depth = next((at for at, each in enumerate(calls) if each.queries != each.keys), len(calls))
        behind = calls[depth:]
        kinds = list(dict.fromkeys(each.tokens for each in calls))
        found = f"attention among {several(kinds, 6)}"
        if any(each.windows != 1 for each in calls):
            raise ConfigError(f"{found}: attention inside windows")
        if len({each.queries for each in calls[:depth]}) > 1 or any(each.queries != 1 for each in behind):
            raise ConfigError(f"{found}: hierarchical, several grids in one network")
        if not depth or len(behind) > 1:
            expected = "expected tokens that attend to each other, and at most one query behind them"
            raise ConfigError(f"{found}: class attention in {len(behind)} layers of its own; {expected}")
        first = calls[0]
        for number, each in enumerate(calls[:depth]):
            if (each.heads, each.dim) != (first.heads, first.dim):
                sizes = f"{each.heads} heads of {each.dim} features, layer 0 has {first.heads} of {first.dim}"
                raise ConfigError(f"layer {number} has {sizes}; expected the same in every layer")
        if stated_depth is not None and depth != stated_depth:
            reason = "some use another kernel" if depth < stated_depth else "some layers attend more than once"
            raise ConfigError(f"{depth} calls of attention were seen for {stated_depth} layers: {reason}")
        if first.queries < patches:
            raise ConfigError(f"{found}: fewer than the {patches} patches of the picture; expected a token for each")
        pooling = behind[0] if behind else None
        if pooling is not None and pooling.keys not in (first.queries, patches):
            raise ConfigError(f"{found}: the pooling reads neither all tokens nor all patches")
        return cls(depth, first.heads, first.dim, first.queries, pooling)
