"""Traces of one shape, whose attention is computed together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch

from vitviz.attention.precision import precise
from vitviz.attention.softmax import DEVICE_CHUNK_BYTES, HEAD_FUSIONS, HeadFusion, weights_in_chunks
from vitviz.attention.trace import AttentionTrace, Chunks
from vitviz.errors.arguments import word

Fuse = Callable[..., torch.Tensor]


@dataclass(frozen=True, eq=False)
class TraceGroup:
    """Traces of one layout, shape and type, stacked so that many small products become few large ones.

    Args:
        traces: at least one; :func:`groups_of` forms the groups.
    """

    traces: tuple[AttentionTrace, ...]

    @property
    def heads(self) -> int:
        return self.traces[0].heads

    @property
    def tokens(self) -> int:
        return self.traces[0].layout.token_count

    def weights_in_chunks(self, layer: int, rows: slice = slice(None)) -> Chunks:
        """The attention weights in chunks of query tokens: each chunk's slice and its ``"(image head) query key"``.

        The next chunk overwrites the weights of the last.
        """
        queries, keys = self._queries[layer].flatten(0, 1), self._keys[layer].flatten(0, 1)
        sums = [trace.known_log_sums[layer] for trace in self.traces if layer in trace.known_log_sums]
        log_sums = torch.cat(sums) if len(sums) == len(self.traces) else None
        scale = self.traces[0].scale
        return weights_in_chunks(queries, keys, scale, self._bias(layer), rows, log_sums)

    def fused_in_chunks(self, layer: int, fusion: HeadFusion = "mean", rows: slice = slice(None)) -> Chunks:
        """As :meth:`weights_in_chunks`, with the heads fused: ``"image query key"``.

        Raises:
            MethodError: the fusion is not mean, max or min.
        """
        return self._fused(layer, HEAD_FUSIONS[word("head fusion", fusion, HEAD_FUSIONS)], rows)

    def fused(self, layer: int, fusion: HeadFusion = "mean") -> torch.Tensor:
        """The fused attention weights of all query tokens, ``"image query key"``.

        Raises:
            MethodError: as :meth:`fused_in_chunks`.
        """
        return torch.cat([chunk for _, chunk in self.fused_in_chunks(layer, fusion)], 1)

    def _fused(self, layer: int, fuse: Fuse, rows: slice) -> Iterator[tuple[slice, torch.Tensor]]:
        for block, weights in self.weights_in_chunks(layer, rows):
            yield block, fuse(weights.unflatten(0, (-1, self.heads)), 1)

    @cached_property
    def _queries(self) -> torch.Tensor:
        """``"layer image head token dim"``."""
        return precise(torch.stack([trace.queries for trace in self.traces], 1))

    @cached_property
    def _keys(self) -> torch.Tensor:
        """``"layer image head token dim"``."""
        return precise(torch.stack([trace.keys for trace in self.traces], 1))

    def _bias(self, layer: int) -> torch.Tensor | None:
        if self.traces[0].bias is None:
            return None
        biases = [trace.bias[layer if len(trace.bias) > 1 else 0] for trace in self.traces if trace.bias is not None]
        return torch.cat([precise(bias).expand(self.heads, -1, -1) for bias in biases])


def groups_of(traces: Iterable[AttentionTrace]) -> Iterator[TraceGroup]:
    """Consecutive traces of one kind as groups, in order.

    A group is as large as possible while the attention of a layer is at most a chunk, and has at least one trace.
    On a processor it has one: large products take as long as the many small ones.
    """
    group: list[AttentionTrace] = []
    for trace in traces:
        if group and (_kind(trace) != _kind(group[0]) or len(group) >= _max_traces(trace)):
            yield TraceGroup(tuple(group))
            group = []
        group.append(trace)
    if group:
        yield TraceGroup(tuple(group))


def _kind(trace: AttentionTrace) -> tuple[object, ...]:
    like = trace.queries
    return trace.layout, like.shape, like.dtype, like.device, trace.scale, trace.bias is None, trace.pooled is None


def _max_traces(trace: AttentionTrace) -> int:
    if trace.stored_weights or not pays(trace):
        return 1
    return DEVICE_CHUNK_BYTES // (trace.heads * trace.layout.token_count**2 * trace.dtype.itemsize)


def pays(trace: AttentionTrace) -> bool:
    return not trace.keys.is_cpu
