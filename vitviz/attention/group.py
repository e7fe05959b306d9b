"""Traces of one shape, whose attention is computed together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch

from vitviz.attention.precision import precise
from vitviz.attention.softmax import CHUNK_BYTES, DEVICE_CHUNK_BYTES, HEAD_FUSIONS, weights_in_chunks
from vitviz.attention.trace import AttentionTrace, Chunks
from vitviz.errors.arguments import word

Fuse = Callable[..., torch.Tensor]


@dataclass(frozen=True, eq=False)
class TraceGroup:
    """Some traces of one layout, shape and type: many small products become few.

    Args:
        traces: at least one; :func:`groups_of` says which go together.
    """

    traces: tuple[AttentionTrace, ...]

    @property
    def heads(self) -> int:
        return self.traces[0].heads

    @property
    def tokens(self) -> int:
        return self.traces[0].layout.token_count

    def weights_in_chunks(self, layer: int, rows: slice = slice(None)) -> Chunks:
        """Attention weights of a few query tokens at a time: which, and their ``"(image head) query key"``.

        They are overwritten when the next are asked for.
        """
        # Keys are kept with one dimension side by side, as the product reads them.
        keys = torch.cat([precise(trace.keys[layer]).transpose(1, 2) for trace in self.traces]).transpose(1, 2)
        queries = torch.cat([precise(trace.queries[layer]) for trace in self.traces])
        known = [trace.known_log_sums[layer] for trace in self.traces if layer in trace.known_log_sums]
        log_sums = torch.cat(known) if len(known) == len(self.traces) else None
        return weights_in_chunks(
            queries, keys, self.traces[0].scale, self._bias(layer), rows, log_sums, _most_bytes(keys)
        )

    def fused_in_chunks(self, layer: int, fusion: str = "mean", rows: slice = slice(None)) -> Chunks:
        """The same with the heads fused: ``"image query key"``.

        Raises:
            MethodError: the fusion is not mean, max or min.
        """
        return self._fused(layer, HEAD_FUSIONS[word("head fusion", fusion, HEAD_FUSIONS)], rows)

    def fused(self, layer: int, fusion: str = "mean") -> torch.Tensor:
        """The same of all query tokens.

        Raises:
            MethodError: as :meth:`fused_in_chunks`.
        """
        return torch.cat([chunk for _, chunk in self.fused_in_chunks(layer, fusion)], 1)

    def _fused(self, layer: int, fuse: Fuse, rows: slice) -> Iterator[tuple[slice, torch.Tensor]]:
        for chosen, weights in self.weights_in_chunks(layer, rows):
            yield chosen, fuse(weights.unflatten(0, (-1, self.heads)), 1)

    def _bias(self, layer: int) -> torch.Tensor | None:
        if self.traces[0].bias is None:
            return None
        each = [trace.bias[layer if len(trace.bias) > 1 else 0] for trace in self.traces if trace.bias is not None]
        return torch.cat([precise(bias).expand(self.heads, -1, -1) for bias in each])


def groups_of(traces: Iterable[AttentionTrace]) -> Iterator[TraceGroup]:
    """Traces in groups of neighbours that go together, in their order.

    A group is as large as leaves the attention of a layer in the processor's cache: one trace where its own fills that.
    """
    found: list[AttentionTrace] = []
    for trace in traces:
        if found and (_kind(trace) != _kind(found[0]) or len(found) == _most_together(trace)):
            yield TraceGroup(tuple(found))
            found = []
        found.append(trace)
    if found:
        yield TraceGroup(tuple(found))


def _kind(trace: AttentionTrace) -> tuple[object, ...]:
    like = trace.queries
    return trace.layout, like.shape, like.dtype, like.device, trace.scale, trace.bias is None, trace.pooled is None


def _most_together(trace: AttentionTrace) -> int:
    return max(1, _most_bytes(trace.keys) // (trace.heads * trace.layout.token_count**2 * trace.dtype.itemsize))


def _most_bytes(like: torch.Tensor) -> int:
    """Of the attention of a group in one layer: every thread's share stays in its processor's cache."""
    return CHUNK_BYTES * torch.get_num_threads() if like.device.type == "cpu" else DEVICE_CHUNK_BYTES
