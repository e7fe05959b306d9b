"""Records a module's calls of attention as traces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from vitviz.attention.layout import TokenLayout
from vitviz.attention.memory import empty_record, trim_heap
from vitviz.attention.precision import precise
from vitviz.attention.softmax import attention_weights
from vitviz.attention.trace import AttentionTrace
from vitviz.models.watched.calls import AttentionCall
from vitviz.models.watched.recorder import Run
from vitviz.models.watched.verification import VerifiedModule
from vitviz.progress import Progress


@dataclass
class Recording:
    """Copies queries, keys and bias of each layer of one picture during the forward pass.

    Args:
        verified: the verified module.
        layout: order of the tokens.
        dtype: stored type of queries and keys; None for their own.
        report: receives the number of recorded layers.
    """

    verified: VerifiedModule
    layout: TokenLayout
    dtype: torch.dtype | None
    report: Callable[[Progress], None] | None
    scale: float = 1.0
    pooled: torch.Tensor | None = None
    biases: list[torch.Tensor | None] = field(default_factory=list)
    value_norms: list[torch.Tensor] = field(default_factory=list)
    norms: list[torch.Tensor] = field(default_factory=list)
    records: tuple[torch.Tensor, torch.Tensor] | None = None
    """Queries and keys of all layers, in one allocation: small blocks between activations would fragment memory."""

    def add(self, call: AttentionCall) -> None:
        if call.number == self.verified.pooling_call:
            self.pooled = pooling_weights(call, self.verified)
        if (layer := self.verified.layer_of(call.number)) is None:
            return
        places = self.verified.places[layer]
        queries, keys = (places.sort(tensor.detach()) for tensor in (call.queries, call.keys))
        if self.records is None:
            like = keys[:0] if self.dtype is None else keys[:0].to(self.dtype)
            shape, self.scale = (len(self.verified.calls), *keys.shape), call.scale
            self.records = empty_record(shape, like)
        all_queries, all_keys = self.records
        # A trace has one scale.
        all_queries[layer].copy_(queries * (call.scale / self.scale))
        all_keys[layer].copy_(keys)
        self.biases.append(places.bias(call))
        self.value_norms.append(precise(places.sort(call.values.detach(), has_pad_values=True)).norm(dim=-1))
        if self.report is not None:
            self.report(Progress(layer + 1, len(self.verified.calls)))

    def trace(self, keep_bytes: int) -> AttentionTrace:
        """The trace of the image, after the forward pass."""
        assert self.records is not None, "there is a layer"
        windows = tuple(places.windows for places in self.verified.places)
        return AttentionTrace(
            *self.records,
            self.scale,
            self.layout,
            bias=joint_bias(self.biases),
            keep_bytes=keep_bytes,
            pooled=self.pooled,
            norms=torch.stack(self.norms) if self.norms else None,
            value_norms=torch.stack(self.value_norms),
            windows=windows if max(windows) > 1 else (),
        )


def watch(
    verified: VerifiedModule,
    run: Run,
    pixels: torch.Tensor,
    layout: TokenLayout,
    dtype: torch.dtype | None = None,
    keep_bytes: int = 0,
    report: Callable[[Progress], None] | None = None,
) -> list[tuple[torch.Tensor, AttentionTrace]]:
    """The module's own output for each of some pictures and its trace, from one pass.

    Args:
        verified: the module, verified on as many pictures, or on two.
        run: its forward pass.
        pixels: ``"picture channel height width"``.
        layout, dtype, report: as in :class:`Recording`.
        keep_bytes: of each trace.

    Raises:
        ChangedPass: an operation differs from those that were verified.
    """
    recordings = [Recording(verified, layout, dtype, report if number == 0 else None) for number in range(len(pixels))]

    def on_call(call: AttentionCall) -> torch.Tensor:
        for recording, own in zip(recordings, call.pictures(len(recordings)), strict=True):
            recording.add(own)
        trim_heap(call.queries, verified.layer_of(call.number) or 0, len(verified.calls))
        return call.output

    def on_tokens(tokens: torch.Tensor) -> None:
        norms = verified.sort(torch.linalg.vector_norm(precise(tokens), dim=-1), 1)
        for recording, own in zip(recordings, norms, strict=True):
            recording.norms.append(own)

    hooks = {} if verified.stream is None else verified.stream.hooks(verified.stream.steps, on_tokens)
    output = verified.replay.follow(run, pixels, on_call, hooks)
    traces = [recording.trace(keep_bytes) for recording in recordings]
    # Of a module that returns tokens, they may stand in one row.
    return list(zip(output.chunk(len(pixels)), traces, strict=True))


def joint_bias(biases: list[torch.Tensor | None]) -> torch.Tensor | None:
    """The biases of all layers, ``"layer head query key"``, with a single layer if they are all equal."""
    first = next((bias for bias in biases if bias is not None), None)
    if first is None:
        return None
    if all(bias is not None and bias.shape == first.shape and torch.equal(bias, first) for bias in biases):
        return first[None].clone()
    shape = (max(len(bias) for bias in biases if bias is not None), *first.shape[1:])
    return torch.stack([(first.new_zeros(1, 1, 1) if bias is None else bias).expand(shape) for bias in biases])


def pooling_weights(call: AttentionCall, verified: VerifiedModule) -> torch.Tensor:
    """The attention of the one query of a pooling, ``"head token"`` in the order of the layout."""
    queries, keys = (precise(tensor[0].detach()) for tensor in (call.queries, call.keys))
    bias = None if call.bias is None else call.bias.detach().to(queries).expand(1, *queries.shape[:-1], len(keys[0]))[0]
    return verified.sort_read(attention_weights(queries, keys, call.scale, bias)[:, 0])
