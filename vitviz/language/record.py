"""The attention of a network while it writes: a query for each token and layer, and the keys of its cache."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

from vitviz.attention.precision import precise
from vitviz.attention.softmax import attention_weights
from vitviz.errors.kinds import ConfigError
from vitviz.models.watched.calls import AttentionCall
from vitviz.models.watched.replay import check_call

# The most queries of a call that are read: the last token's, or the heads of a group that share a key, as transformers
# packs them if one token asks.
MAX_QUERIES = 64


@dataclass(frozen=True, eq=False)
class FirstCall:
    """What is kept of a call of the first step, which may be an encoder's.

    Args:
        weights: ``"head query key"``, of the last queries.
        ends: ``"group 2 dim"``, the first and the last key.
    """

    weights: torch.Tensor
    ends: torch.Tensor

    @classmethod
    def of(cls, call: AttentionCall, queries: int) -> FirstCall:
        # Several windows are an encoder's, and may have padding without any weights.
        if len(call.queries) == 1:
            check_call(call)
        ends = call.keys[0].unique_consecutive(dim=0)[:, [0, -1]]
        return cls(call_weights(call)[0, :, -queries:].clone(), ends)


@dataclass(eq=False)
class Layer:
    """The attention of one call of the decoder in each step: self-attention, or attention to an encoder's tokens.

    Args:
        is_cross: whether its keys are an encoder's.
        prompt: number of keys in the first step; 0 as long as that is not known.
    """

    is_cross: bool = False
    prompt: int = 0
    _rows: dict[int, torch.Tensor] = field(default_factory=dict)
    _queries: dict[int, tuple[torch.Tensor, torch.Tensor | None, int]] = field(default_factory=dict)
    """The query ``"head dim"``, the bias and the number of keys of each token whose keys are kept."""
    _keys: torch.Tensor = field(default_factory=lambda: torch.zeros(0))
    """``"group key dim"``, without repetitions for the heads of a group."""
    _groups: torch.Tensor = field(default_factory=lambda: torch.zeros(0))
    _scale: float = 1.0

    def add(self, step: int, call: AttentionCall) -> None:
        """Keep the query of one token, and the keys in place of those of the step before."""
        check_call(call)
        keys, groups = call.keys[0].unique_consecutive(return_inverse=True, dim=0)
        # A sliding window drops the keys of the first tokens.
        if self._queries and not torch.equal(keys[:, 0], self._keys[:, 0]):
            self._rows |= {number: self.weights(number) for number in self._queries}
            self._queries.clear()
        bias = call.bias
        if bias is not None:
            bias = bias.expand(*call.queries.shape[:-1], call.key_count)[0].flatten(0, 1)[:, None]
            bias = bias[:1].clone() if bool((bias == bias[:1]).all()) else bias.clone()
        self._keys, self._groups, self._scale = keys, groups, call.scale
        # Of one token, several queries are heads that share a key.
        self._queries[step] = (call.queries[0].flatten(0, 1).clone(), bias, call.key_count)

    def begin(self, first: FirstCall) -> None:
        """Add the first token, by the call of the first step, if it fits."""
        query, _, count = self._queries[1]
        weights = first.weights
        row = weights[:, -1] if len(weights) == len(query) else weights.flatten(0, 1)
        self.is_cross = count == row.shape[-1] and torch.equal(self._keys[:, [0, -1]], first.ends)
        # The last key of a decoder's step is its last but one in the next.
        if len(row) == len(query) and (self.is_cross or torch.equal(self._keys[:, -2], first.ends[:, 1])):
            self._rows[0], self.prompt = row, row.shape[-1]

    def weights(self, step: int) -> torch.Tensor:
        """The attention with which a token was written, ``"head key"``; what a sliding window has dropped has 0."""
        row = self._rows.get(step)
        if row is None:
            query, bias, count = self._queries[step]
            keys = precise(self._keys[self._groups, :count]).repeat_interleave(len(query) // len(self._groups), 0)
            row = attention_weights(precise(query)[:, None], keys, self._scale, bias)[:, 0]
        return row if self.is_cross else F.pad(row, (self.prompt + step - row.shape[-1], 0))


@dataclass(eq=False)
class Recorder:
    """Sorts the calls of a generation: the decoder's are those that occur again in the second step, in their order.

    Args:
        first_queries: number of queries that are kept of the calls of the first step.
        layers: of the decoder, after two steps or more.
        skipped: number of calls before the decoder's in the first step.
        step: number of tokens that are complete.
    """

    first_queries: int = 1
    layers: list[Layer] = field(default_factory=list)
    skipped: int = 0
    step: int = 0
    _first: list[FirstCall] = field(default_factory=list)
    _place: int = 0

    @property
    def reading(self) -> tuple[Layer, ...]:
        """The layers that read the picture: those that attend to an encoder, or all."""
        return tuple(each for each in self.layers if each.is_cross) or tuple(self.layers)

    def add(self, call: AttentionCall) -> None:
        """Keep what is needed of a call.

        Raises:
            ConfigError: a number differs from what the network computed, or the call is none of the decoder's.
        """
        if self.step == 0:
            self._first.append(FirstCall.of(call, self.first_queries))
            return
        if self._place == len(self.layers):
            self.layers.append(Layer())
        self.layers[self._place].add(self.step, call)
        self._place += 1

    def end_step(self) -> None:
        """Note that the calls of one token are complete.

        Raises:
            ConfigError: they are not those of the step before.
        """
        if self.step == 1:
            self.skipped = len(self._first) - len(self.layers)
            for layer, first in zip(self.layers, self._first[-len(self.layers) :], strict=False):
                layer.begin(first)
            self._first.clear()
        if self._place < len(self.layers) or not all(each.prompt for each in self.layers):
            found = f"{self._place} calls of attention, after {self.skipped + len(self.layers)} in the first"
            raise ConfigError(f"step {self.step} has {found}; expected the decoder's, in each")
        self.step, self._place = self.step + 1, 0


def call_weights(call: AttentionCall) -> torch.Tensor:
    """The weights of a call, ``"window head query key"``."""
    return attention_weights(precise(call.queries), precise(call.keys), call.scale, call.bias)
