"""Traces of one shape, whose attention is computed together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch

from vitviz.attention.softmax import DEVICE_CHUNK_BYTES
from vitviz.attention.trace import AttentionTrace


def joined(traces: Sequence[AttentionTrace]) -> AttentionTrace:
    """Traces of one group as one, so that many small products become few large ones; its heads are ``"(image head)"``.

    It has the attention of the traces and nothing else, such as norms.
    """
    first, biases = traces[0], [trace.bias for trace in traces if trace.bias is not None]
    queries = torch.stack([trace.queries for trace in traces], 1).flatten(1, 2)
    keys = torch.stack([trace.keys for trace in traces], 1).flatten(1, 2)
    bias = torch.cat([each.expand(-1, first.heads, -1, -1) for each in biases], 1) if biases else None
    sums = {
        layer: torch.cat([trace.known_log_sums[layer] for trace in traces])
        for layer in range(first.layers)
        if all(layer in trace.known_log_sums for trace in traces)
    }
    return AttentionTrace(queries, keys, first.scale, first.layout, bias, sums)


def groups_of(traces: Iterable[AttentionTrace]) -> Iterator[list[AttentionTrace]]:
    """Consecutive traces of one kind as groups, in order.

    A group is as large as possible while the attention of a layer is at most a chunk, and has at least one trace.
    On a processor it has one: large products take as long as the many small ones.
    """
    group: list[AttentionTrace] = []
    for trace in traces:
        if group and (_kind(trace) != _kind(group[0]) or len(group) >= _max_traces(trace)):
            yield group
            group = []
        group.append(trace)
    if group:
        yield group


def _kind(trace: AttentionTrace) -> tuple[object, ...]:
    like, bias = trace.queries, None if trace.bias is None else len(trace.bias)
    return trace.layout, like.shape, like.dtype, like.device, trace.scale, bias, trace.pooled is None


def _max_traces(trace: AttentionTrace) -> int:
    if trace.stored_weights or not pays(trace):
        return 1
    return DEVICE_CHUNK_BYTES // (trace.heads * trace.layout.token_count**2 * trace.dtype.itemsize)


def pays(trace: AttentionTrace) -> bool:
    return not trace.keys.is_cpu
