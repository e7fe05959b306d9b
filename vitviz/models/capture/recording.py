"""Records a module's calls of attention as a trace."""

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
from vitviz.models.capture.places import TokenOrder
from vitviz.models.capture.residual import StreamTap
from vitviz.models.capture.structure import CallShape
from vitviz.models.capture.verification import VerifiedCapture
from vitviz.progress import Progress


@dataclass
class Recording:
    """Copies queries, keys and bias of each layer during the forward pass.

    Args:
        verified: the verified capture.
        layout: order of the tokens.
        dtype: stored type of queries and keys; None for their own.
        report: receives the number of recorded layers.
    """

    verified: VerifiedCapture
    layout: TokenLayout
    dtype: torch.dtype | None
    report: Callable[[Progress], None] | None
    scale: float = 1.0
    calls: int = 0
    pooled: torch.Tensor | None = None
    biases: list[torch.Tensor | None] = field(default_factory=list)
    records: tuple[torch.Tensor, torch.Tensor] | None = None
    norms: list[torch.Tensor] = field(default_factory=list)
    log_sums: dict[int, torch.Tensor] = field(default_factory=dict)

    @property
    def order(self) -> TokenOrder:
        return self.verified.order

    def __call__(self, call: AttentionCall) -> torch.Tensor:
        verified, number = self.verified, call.number
        self.calls = number + 1
        if number >= len(verified.shapes) or CallShape.of(call) != verified.shapes[number]:
            shape = f"call {number}: attention among {CallShape.of(call).tokens}"
            raise ConfigError(f"{shape}; when it was verified, this module attended otherwise")
        if verified.is_pooling(number):
            self.pooled = pooling_weights(call, self.order)
        layer = verified.layer_of(number)
        if layer is not None:
            self._record(layer, call)
        return call.output

    def _record(self, layer: int, call: AttentionCall) -> None:
        places = self.verified.places[layer]
        windowed = places.by_window(call)
        queries, keys = (places.sort(tensor.detach()) for tensor in (windowed.queries, windowed.keys))
        if self.records is None:
            like = keys[:0] if self.dtype is None else keys[:0].to(self.dtype)
            self.records = empty_record((len(self.verified.calls), *keys.shape), like)
            self.scale = call.scale
        all_queries, all_keys = self.records
        copy_tokens(queries, all_queries[layer])
        copy_tokens(keys, all_keys[layer])
        if call.scale != self.scale:
            # A trace has one scale.
            all_queries[layer] *= call.scale / self.scale
        self.biases.append(places.bias(windowed))
        # The kernel's log-sums match the trace only if it stores all keys of the call, unrounded and without bias.
        is_unrounded = torch.promote_types(keys.dtype, all_keys.dtype) == all_keys.dtype
        is_exact = self.biases[-1] is None and keys.shape[1] == call.key_count and is_unrounded
        if call.log_sums is not None and is_exact:
            self.log_sums[layer] = places.sort(call.log_sums[..., None])[..., 0].clone()
        if self.report is not None:
            self.report(Progress(layer + 1, len(self.verified.calls)))

    @property
    def tap(self) -> StreamTap | None:
        """Measures the tokens between the layers; None if they cannot be read."""
        return None if self.verified.stream is None else StreamTap(self.verified.stream, self.on_step)

    def on_step(self, step: int, tokens: torch.Tensor) -> torch.Tensor:
        """Record the norms of the tokens between two layers."""
        norms = torch.linalg.vector_norm(precise(tokens[0].detach()), dim=-1)
        self.norms.append(self.order.sort(norms, 0))
        return tokens

    def trace(self, keep_bytes: int) -> AttentionTrace:
        """The trace of the image, after the forward pass.

        Raises:
            ConfigError: the module made fewer calls than when it was verified.
        """
        if self.records is None or self.calls < len(self.verified.shapes):
            expected = f"when it was verified, this module made {len(self.verified.shapes)}"
            raise ConfigError(f"{self.calls} calls of attention: {expected}")
        queries, keys = self.records
        stream = self.verified.stream
        if stream is not None and len(self.norms) != len(stream.ends) + 1:
            raise ConfigError("the module's residual additions differ from those that were verified")
        bias = joint_bias(self.biases)
        windows = self.verified.windows
        return AttentionTrace(
            queries,
            keys,
            self.scale,
            self.layout,
            bias=bias,
            keep_bytes=keep_bytes,
            pooled=self.pooled,
            norms=torch.stack(self.norms) if self.norms else None,
            windows=windows if max(windows) > 1 else (),
            known_log_sums=self.log_sums if bias is None else {},
        )


def joint_bias(biases: list[torch.Tensor | None]) -> torch.Tensor | None:
    """The biases of all layers, ``"layer head query key"``, with a single layer if they are all equal."""
    first = next((bias for bias in biases if bias is not None), None)
    if first is None:
        return None
    if all(bias is not None and bias.shape == first.shape and torch.equal(bias, first) for bias in biases):
        return first[None].clone()
    heads = max(len(bias) for bias in biases if bias is not None)
    joint = first.new_zeros(len(biases), heads, *first.shape[1:])
    for layer, bias in enumerate(biases):
        if bias is not None:
            joint[layer] = bias
    return joint


def pooling_weights(call: AttentionCall, order: TokenOrder) -> torch.Tensor:
    """The attention of the one query of a pooling, ``"head token"`` in the order of the layout."""
    bias = call.head_bias()
    queries, keys = (precise(tensor[0].detach()) for tensor in (call.queries, call.keys))
    weights = attention_weights(queries, keys, call.scale, None if bias is None else precise(bias.detach()))[:, 0]
    if weights.shape[-1] == order.patches:
        # The query reads the patches only.
        return F.pad(weights, (order.extra, 0))
    return order.sort(weights, 1)
