"""The attention of a network while it writes: a query for each token and layer, and the keys of its cache."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from vitviz.attention.precision import precise
from vitviz.attention.softmax import attention_weights
from vitviz.errors.kinds import ConfigError
from vitviz.models.watched.calls import AttentionCall
from vitviz.models.watched.replay import TOLERANCES

# The most queries of a call that are read: the last token's, or the heads of a group that share a key, as transformers
# packs them if one token asks.
MAX_QUERIES = 64


@dataclass
class _FirstCall:
    """What is kept of a call of the first step, which may be the encoder's.

    Args:
        weights: ``"head query key"``, of the last queries.
        ranges: ``"head dim"`` twice, the lowest and the highest number of the keys, which tell whether they change.
    """

    weights: torch.Tensor
    ranges: torch.Tensor

    @classmethod
    def of(cls, call: AttentionCall, queries: int) -> _FirstCall:
        # Windows are an encoder's.
        if len(call.queries) > 1:
            return cls(call.queries.new_zeros(0, 1, 0), call.keys.new_zeros(0))
        return cls(checked_weights(call, queries), _ranges(call.keys[0]))

    def row(self, heads: int) -> torch.Tensor | None:
        """The weights of the last token, ``"head key"``; None if they are not of so many heads."""
        count, queries, keys = self.weights.shape
        if count == heads:
            return self.weights[:, -1]
        return self.weights.reshape(heads, keys) if count * queries == heads else None


@dataclass
class Layer:
    """The attention of one call of the decoder in each step: self-attention, or attention to an encoder's tokens.

    Args:
        is_cross: whether its keys are an encoder's.
        prompt: number of keys in the first step.
    """

    is_cross: bool = False
    prompt: int = 0
    _rows: dict[int, torch.Tensor] = field(default_factory=dict)
    _asked: dict[int, tuple[torch.Tensor, torch.Tensor | None, int]] = field(default_factory=dict)
    """The query, the bias and the number of keys of each token whose keys are kept."""
    _keys: torch.Tensor = field(default_factory=lambda: torch.zeros(0, 1, 0))
    _groups: int = 0
    _scale: float = 1.0

    @property
    def heads(self) -> int:
        return len(self._rows[0])

    def add(self, step: int, call: AttentionCall) -> None:
        """Keep the query of one token, and the keys in place of those of the step before."""
        checked_weights(call)
        keys = call.keys[0]
        # For one token, they may be repeated for the heads of a group or not, from step to step.
        self._groups = self._groups or len(keys) // _repeats(keys)
        keys = keys[:: len(keys) // self._groups].clone()
        # A sliding window drops the keys of the first tokens.
        if self._asked and not torch.equal(keys[:, 0], self._keys[:, 0]):
            self._rows |= {number: self.weights(number) for number in self._asked}
            self._asked.clear()
        bias = call.bias
        if bias is not None:
            bias = bias.expand(*call.queries.shape[:-1], call.key_count)[0].flatten(0, 1)[:, None]
            bias = bias[:1].clone() if bool((bias == bias[:1]).all()) else bias.clone()
        self._keys, self._scale = keys, call.scale
        # Of one token, several queries are heads that share a key.
        self._asked[step] = (call.queries[0].flatten(0, 1).clone(), bias, call.key_count)

    def begin(self, first: _FirstCall) -> bool:
        """Add the first token, by the call of the first step; whether it fits."""
        query, _, count = self._asked[1]
        row = first.row(len(query))
        if row is None or len(first.ranges[0]) % len(self._keys):
            return False
        self._rows[0], self.prompt = row, row.shape[-1]
        repeats = len(first.ranges[0]) // len(self._keys)
        before, now = (_ranges(keys).repeat_interleave(repeats, 1) for keys in (self._keys[:, :-1], self._keys))
        self.is_cross = count == self.prompt and torch.equal(now, first.ranges)
        # Another call's keys are not within its range.
        return self.is_cross or bool((before[0] >= first.ranges[0]).all() and (before[1] <= first.ranges[1]).all())

    def weights(self, step: int) -> torch.Tensor:
        """The attention with which a token was written, ``"head key"``."""
        if step in self._rows:
            return self._rows[step]
        query, bias, count = self._asked[step]
        keys = precise(self._keys[:, :count]).repeat_interleave(len(query) // len(self._keys), 0)
        return attention_weights(precise(query)[:, None], keys, self._scale, bias)[:, 0]

    def offset(self, step: int) -> int:
        """Number of the first tokens that a sliding window has dropped."""
        kept = self._rows[step].shape[-1] if step in self._rows else self._asked[step][2]
        return 0 if self.is_cross else max(0, self.prompt + step - kept)


@dataclass
class Recorder:
    """Sorts the calls of a generation: the decoder's are those that occur again in the second step, in their order.

    Args:
        first_queries: number of queries that are kept of the calls of the first step.
        layers: of the decoder, after two steps or more.
        first_calls: number of calls in the first step.
    """

    first_queries: int = 1
    layers: list[Layer] = field(default_factory=list)
    first_calls: int = 0
    _first: list[_FirstCall] = field(default_factory=list)
    _step: int = 0
    _place: int = 0

    def add(self, call: AttentionCall) -> None:
        """Keep what is needed of a call.

        Raises:
            ConfigError: a number differs from what the network computed, or the call is none of the decoder's.
        """
        if self._step == 0:
            self._first.append(_FirstCall.of(call, self.first_queries))
            return
        if self._place == len(self.layers):
            self.layers.append(Layer())
        self.layers[self._place].add(self._step, call)
        self._place += 1

    def end_step(self) -> None:
        """Note that the calls of one token are complete.

        Raises:
            ConfigError: they are not those of the step before.
        """
        count = len(self.layers)
        if self._step == 1:
            self.first_calls = len(self._first)
            pairs = zip(self.layers, self._first[self.first_calls - count :], strict=False)
            if not 0 < count <= self.first_calls or not all([layer.begin(first) for layer, first in pairs]):
                found = f"{count} calls of attention, after {self.first_calls} in the first"
                raise ConfigError(f"its second step has {found}; expected the decoder's, in both")
            self._first.clear()
        if self._place < count or any(not each.prompt for each in self.layers):
            raise ConfigError(f"step {self._step} has {self._place} calls of attention; expected as many as the second")
        self._step, self._place = self._step + 1, 0


def checked_weights(call: AttentionCall, count: int = MAX_QUERIES) -> torch.Tensor:
    """The weights ``"head query key"`` of the last queries of a call of one sequence, compared with its output.

    Raises:
        ConfigError: a number differs.
    """
    bias = call.bias
    bias = None if bias is None else bias.expand(*call.queries.shape[:-1], call.key_count)[0, :, -count:]
    weights = attention_weights(precise(call.queries[0, :, -count:]), precise(call.keys[0]), call.scale, bias)
    expected = precise(call.output[0, :, -count:])
    difference = float((weights @ precise(call.values[0]) - expected).abs().max())
    bound = TOLERANCES.get(call.output.dtype, 1e-5) * max(1.0, float(expected.abs().max()))
    # The negated comparison refuses NaN, too.
    if not difference <= bound:
        raise ConfigError(
            f"call {call.number} of attention: softmax(queries · keys · {call.scale:.4g} + bias) · values differs from "
            f"what the network computed by {difference:.2g}; expected at most {bound:.1g}"
        )
    return weights


def _ranges(keys: torch.Tensor) -> torch.Tensor:
    return torch.stack(keys.aminmax(dim=-2))


def _repeats(keys: torch.Tensor) -> int:
    """How many heads in a row have the same keys ``"head key dim"``, repeated for them."""
    divisors = (count for count in range(len(keys), 0, -1) if len(keys) % count == 0)
    return next(
        count for count in divisors if all(torch.equal(keys[place::count], keys[::count]) for place in range(count))
    )
