"""A trace computes in chunks of bounded size, and caches fused matrices up to its limit."""

from __future__ import annotations

import pytest
import torch

from tests.support.comparison import closeness
from tests.support.random_traces import random_trace
from tests.support.traces import weights_of
from vitviz import AttentionTrace

close = closeness(tolerance=1e-6)
FUSIONS = {"mean": torch.mean, "max": torch.amax, "min": torch.amin}


# The bytes of one fusion of random_trace: two layers of 11 × 11 in double precision.
FUSION_BYTES = 2 * 11 * 11 * 8


def caching_trace(keep_bytes: int, plain: AttentionTrace | None = None) -> AttentionTrace:
    plain = plain or random_trace()
    return AttentionTrace(plain.queries, plain.keys, plain.scale, plain.layout, keep_bytes=keep_bytes)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("keep_bytes", [0, FUSION_BYTES])
@pytest.mark.parametrize("starts", [1, 4])
@pytest.mark.parametrize("rows", [slice(None), slice(3, 8)], ids=str)
def test_propagation_is_the_product_with_the_mean_matrix(keep_bytes: int, starts: int, rows: slice) -> None:
    plain = random_trace()
    for sums_known in (False, True):
        trace = caching_trace(keep_bytes, plain)
        if sums_known:
            trace.log_sums(1)
        tokens = torch.rand(starts, 11, dtype=torch.float64)
        close(trace.propagate_layer(1, tokens, rows), tokens[:, rows] @ weights_of(plain)[1].mean(0)[rows], 1e-12)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("more", [0, FUSION_BYTES - 1])
def test_as_many_fused_matrices_are_cached_as_fit(count: int, more: int) -> None:
    trace = caching_trace(count * FUSION_BYTES + more)
    found = {fusion: [trace.fused(layer, fusion) for layer in range(2)] for fusion in FUSIONS}
    last = list(FUSIONS)[3 - count :]
    for fusion in last:
        for layer in range(2):
            assert trace.fused(layer, fusion) is found[fusion][layer]
            assert trace.fused(layer - 2, fusion) is found[fusion][layer]
            ((rows, chunk),) = trace.fused_in_chunks(layer, fusion, slice(2, 7))
            assert rows == slice(2, 7)
            assert chunk.data_ptr() == found[fusion][layer][2].data_ptr() and chunk.shape == (5, 11)
    for fusion in [name for name in FUSIONS if name not in last]:
        assert trace.fused(0, fusion) is not found[fusion][0]


def test_the_fusions_used_last_stay() -> None:
    trace = caching_trace(2 * FUSION_BYTES)
    mean, maximum = trace.fused(0, "mean"), trace.fused(0, "max")
    assert trace.fused(0, "mean") is mean
    trace.fused(0, "min")
    assert trace.fused(0, "mean") is mean
    assert trace.fused(0, "max") is not maximum


def storage_bytes(trace: AttentionTrace) -> int:
    """The bytes of all storages that a trace refers to."""
    tensors = [trace.queries, trace.keys, *([] if trace.bias is None else [trace.bias])]
    tensors += trace.known_log_sums.values()
    tensors += [matrix for matrices in trace._cached_fused.values() for matrix in matrices]
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


@pytest.mark.parametrize("keep_bytes", [0, FUSION_BYTES, 2 * FUSION_BYTES + 5, 10**9])
@pytest.mark.parametrize("biased", [False, True])
def test_a_trace_never_holds_more_than_it_says(keep_bytes: int, biased: bool) -> None:
    plain = random_trace()
    bias = torch.randn(2, 1, 11, 11, dtype=torch.float64) if biased else None
    trace = AttentionTrace(plain.queries, plain.keys, 0.5, plain.layout, bias, keep_bytes=keep_bytes)
    limit = trace.nbytes
    assert storage_bytes(trace) < limit
    fusions = [(layer, fusion) for layer in range(2) for fusion in FUSIONS]
    for layer, fusion in [*fusions, *sorted(fusions, key=lambda pair: pair[1])]:
        trace.log_sums(layer)
        trace.fused(layer, fusion)
        assert storage_bytes(trace) <= limit == trace.nbytes
    # In the end it holds exactly that much.
    assert storage_bytes(trace) == limit
