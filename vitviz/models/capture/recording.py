"""The queries and keys of a module's calls as a trace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

from vitviz.attention.layout import TokenLayout
from vitviz.attention.memory import copy_tokens, empty_record
from vitviz.attention.precision import precise
from vitviz.attention.softmax import attention_weights
from vitviz.attention.trace import AttentionTrace
from vitviz.errors.kinds import ConfigError
from vitviz.models.capture.calls import AttentionCall
from vitviz.models.capture.order import TokenOrder
from vitviz.models.capture.structure import AttentionStructure, CallShape
from vitviz.models.capture.verification import VerifiedCapture
from vitviz.progress import Progress


@dataclass
class Recording:
    """Copies queries, keys and bias of each layer as it is called.

    Args:
        verified: what the calls are, as they were verified.
        layout: of the tokens.
        dtype: in which queries and keys are kept; at least single precision where it is None.
        report: receives how many layers are done.
    """

    verified: VerifiedCapture
    layout: TokenLayout
    dtype: torch.dtype | None
    report: Callable[[Progress], None] | None
    scale: float = 1.0
    calls: int = 0
    pooled: torch.Tensor | None = None
    biases: list[torch.Tensor | None] = field(default_factory=list)
    records: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None

    @property
    def structure(self) -> AttentionStructure:
        return self.verified.structure

    @property
    def order(self) -> TokenOrder:
        return self.verified.order

    def __call__(self, call: AttentionCall) -> torch.Tensor:
        structure, number = self.structure, self.calls
        self.calls += 1
        if number == structure.depth and structure.pooling == CallShape.of(call):
            self.pooled = pooling_weights(call, self.order)
            return call.output
        layer = CallShape(1, structure.heads, structure.tokens, structure.tokens, structure.head_width)
        if number >= structure.depth or CallShape.of(call) != layer:
            found = f"call {number}: attention among {CallShape.of(call).tokens}"
            raise ConfigError(f"{found}; when it was verified, this module attended otherwise")
        queries, keys = (self.order.sort(part[0].detach(), 1) for part in (call.queries, call.keys))
        if self.records is None:
            like = precise(keys[:0]) if self.dtype is None else keys[:0].to(self.dtype)
            self.records = empty_record((structure.depth, *keys.shape), like)
            self.scale = call.scale
        kept_queries, kept_keys, _ = self.records
        copy_tokens(queries, kept_queries[number])
        copy_tokens(keys, kept_keys[number])
        if call.scale != self.scale:
            # A trace has one scale.
            kept_queries[number] *= call.scale / self.scale
        self.biases.append(sorted_bias(call, self.order))
        if self.report is not None:
            self.report(Progress(number + 1, structure.depth))
        return call.output

    def trace(self, keep_bytes: int) -> AttentionTrace:
        """The trace of the image, once the module is through.

        Raises:
            ConfigError: the module made fewer calls than when it was verified.
        """
        if self.records is None or self.calls < self.structure.depth + (self.structure.pooling is not None):
            expected = f"when it was verified, this module had {self.structure.depth} layers"
            raise ConfigError(f"{self.calls} calls of attention: {expected}")
        queries, keys, _ = self.records
        bias = joint_bias(self.biases)
        return AttentionTrace(
            queries, keys, self.scale, self.layout, bias=bias, keep_bytes=keep_bytes, pooled=self.pooled
        )


def sorted_bias(call: AttentionCall, order: TokenOrder) -> torch.Tensor | None:
    """The bias of a layer, ``"head query key"`` in the order of the layout, of which the head may be 1."""
    bias = call.head_bias()
    return None if bias is None else precise(order.sort(order.sort(bias.detach(), 1), 2))


def joint_bias(biases: list[torch.Tensor | None]) -> torch.Tensor | None:
    """The biases of all layers, ``"layer head query key"``: one layer where they are all the same."""
    first = next((bias for bias in biases if bias is not None), None)
    if first is None:
        return None
    if all(bias is not None and bias.shape == first.shape and torch.equal(bias, first) for bias in biases):
        return first[None].clone()
    heads = max(len(bias) for bias in biases if bias is not None)
    whole = first.new_zeros(len(biases), heads, *first.shape[1:])
    for layer, bias in enumerate(biases):
        if bias is not None:
            whole[layer] = bias
    return whole


def pooling_weights(call: AttentionCall, order: TokenOrder) -> torch.Tensor:
    """What the one query of a pooling attends to, ``"head token"`` in the order of the layout."""
    bias = call.head_bias()
    queries, keys = (precise(part[0].detach()) for part in (call.queries, call.keys))
    weights = attention_weights(queries, keys, call.scale, None if bias is None else precise(bias.detach()))[:, 0]
    if weights.shape[-1] == order.patches:
        # It reads the patches alone.
        return F.pad(weights, (order.extra, 0))
    return order.sort(weights, 1)
