"""The attention of a network while it writes: a query for each token and layer, and the keys of its cache."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

from vitviz.attention.precision import plain_torch, precise
from vitviz.attention.softmax import attention_weights
from vitviz.errors.kinds import ConfigError
from vitviz.models.watched.calls import AttentionCall
from vitviz.models.watched.replay import check_call

# The most queries of a call that are read: the last token's, or the heads of a group that share a key, as transformers
# packs them if one token asks.
MAX_QUERIES = 64


@dataclass(eq=False)
class Layer:
    """The attention of one call of the decoder in each step: self-attention, or attention to an encoder's tokens.

    Args:
        is_cross: whether its keys are an encoder's.
        prompt: number of keys in the first step; 0 as long as that is not known.
    """

    is_cross: bool = False
    prompt: int = 0
    _first: torch.Tensor = field(default_factory=lambda: torch.zeros(0))
    """``"head key"``, the attention of the first token."""
    _queries: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, int]] = field(default_factory=list)
    """Of each other token, ``"1 head query dim"`` with the scale, the place of each head's keys, the bias, and the
    number of keys. Of one token, several queries are heads that share a key."""
    _keys: torch.Tensor = field(default_factory=lambda: torch.zeros(0))
    """``"group key dim"`` since the second token, without repetitions for the heads of a group."""

    def add(self, call: AttentionCall) -> None:
        """Keep the queries and the key of one token.

        Raises:
            ConfigError: the call or its keys are not what they seem.
        """
        check_call(call)
        keys, groups = call.keys[0].unique_consecutive(return_inverse=True, dim=0)
        self._keys = keys if self.is_cross or not self._queries else torch.cat([self._keys, keys[:, -1:]], 1)
        # A sliding window drops the keys of the first tokens.
        if not torch.equal(self._keys[:, -call.key_count :], keys):
            raise ConfigError(f"attention call {call.number}: its cache changes keys; expected one that only grows")
        bias = None if call.bias is None else call.bias.clone()
        self._queries.append((precise(call.queries) * call.scale, groups, bias, call.key_count))

    def begin(self, rows: torch.Tensor, ends: torch.Tensor) -> None:
        """Add the first token if it fits, by ``"head query key"`` and the first and last keys ``"group 2 dim"``."""
        queries, _, _, count = self._queries[0]
        # As many queries are its heads as in each other step.
        row = rows[:, -(queries[..., 0].numel() // len(rows)) :].flatten(0, 1)
        self.is_cross = count == row.shape[-1] and torch.equal(self._keys[:, [0, -1]], ends)
        # The last key of a decoder's step is its last but one in the next.
        if len(row) == queries[..., 0].numel() and (self.is_cross or torch.equal(self._keys[:, -2], ends[:, 1])):
            self._first, self.prompt = row, row.shape[-1]

    @plain_torch()
    def weights(self, step: int) -> torch.Tensor:
        """The attention with which a token was written, ``"head key"``; what a sliding window has dropped has 0."""
        row = self._first
        if step:
            queries, groups, bias, count = self._queries[step - 1]
            stop = self._keys.shape[1] - (0 if self.is_cross else len(self._queries) - step)
            keys = precise(self._keys[groups, stop - count : stop])
            row = attention_weights(queries, keys, 1.0, bias)[0].flatten(0, 1)
        return row if self.is_cross else F.pad(row, (self.prompt + step - row.shape[-1], 0))


@dataclass(eq=False)
class Recorder:
    """Sorts the calls of a generation: the decoder's are those that occur again in the second step, in their order.

    Args:
        layers: of the decoder, after two steps or more.
        skipped: number of calls before the decoder's in the first step.
        step: number of tokens that are complete.
    """

    layers: list[Layer] = field(default_factory=list)
    skipped: int = 0
    step: int = 0
    _first: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    """Of each call of the first step, which may be an encoder's, what :meth:`Layer.begin` takes."""
    _place: int = 0

    def add(self, call: AttentionCall) -> None:
        """Keep what is needed of a call.

        Raises:
            ConfigError: a number differs from what the network computed, or the call is none of the decoder's.
        """
        if self.step == 0:
            # Several windows are an encoder's, and may have padding without any weights.
            if len(call.queries) == 1:
                check_call(call)
            # The last token's; a few queries with one bias may be heads of its that share a key.
            is_one = call.query_count < MAX_QUERIES and (call.bias is None or call.bias.shape[-2] == 1)
            row = call_weights(call)[0, :, 0 if is_one else -1 :].clone()
            self._first.append((row, call.keys[0].unique_consecutive(dim=0)[:, [0, -1]]))
        else:
            if self._place == len(self.layers):
                self.layers.append(Layer())
            self.layers[self._place].add(call)
            self._place += 1

    def end_step(self) -> None:
        """Note that the calls of one token are complete.

        Raises:
            ConfigError: they are not those of the step before.
        """
        if self.step == 1:
            self.skipped = len(self._first) - len(self.layers)
            for layer, first in zip(self.layers, self._first[-len(self.layers) :], strict=False):
                layer.begin(*first)
            self._first.clear()
        if self._place < len(self.layers) or not all(each.prompt for each in self.layers):
            raise ConfigError(
                f"step {self.step} has {self._place} calls of attention, after {self.skipped + len(self.layers)} in "
                "the first; expected the decoder's, in each"
            )
        self.step, self._place = self.step + 1, 0


def call_weights(call: AttentionCall) -> torch.Tensor:
    """The weights of a call, ``"window head query key"``."""
    return attention_weights(precise(call.queries), precise(call.keys), call.scale, call.bias)
