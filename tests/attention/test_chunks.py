"""A trace computes in chunks of bounded size, and keeps fused matrices as far as it may."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
import torch

from tests.support.comparison import closeness
from tests.support.random_traces import random_trace
from tests.support.traces import weights_of
from vitviz import AttentionTrace, VisionTransformer

close = closeness(tolerance=1e-6)
Make = Callable[..., VisionTransformer]
FUSIONS = {"mean": torch.mean, "max": torch.amax, "min": torch.amin}


# Of random_trace in double precision: two layers of 11 by 11.
FUSION_BYTES = 2 * 11 * 11 * 8


def keeping(keep_bytes: int, plain: AttentionTrace | None = None) -> AttentionTrace:
    plain = plain or random_trace()
    return AttentionTrace(plain.queries, plain.keys, plain.scale, plain.layout, keep_bytes=keep_bytes)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("heads", [1, 3])
def test_fused_chunks_may_be_collected(heads: int) -> None:
    """They are no views of the buffer that is written again."""
    plain = random_trace()
    trace = AttentionTrace(plain.queries[:, :heads], plain.keys[:, :heads], plain.scale, plain.layout)
    for fusion, function in FUSIONS.items():
        chunks = list(trace.fused_in_chunks(1, fusion))
        assert len(chunks) > 1
        close(torch.cat([chunk for _, chunk in chunks]), function(weights_of(trace)[1], 0), 1e-12)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("keep_bytes", [0, FUSION_BYTES])
@pytest.mark.parametrize("starts", [1, 4])
@pytest.mark.parametrize("rows", [slice(None), slice(3, 8)], ids=str)
def test_propagation_is_the_product_with_the_mean_matrix(keep_bytes: int, starts: int, rows: slice) -> None:
    plain = random_trace()
    for known in (False, True):
        trace = keeping(keep_bytes, plain)
        if known:
            trace.log_sums(1)
        tokens = torch.rand(starts, 11, dtype=torch.float64)
        close(trace.propagate_layer(1, tokens, rows), tokens[:, rows] @ weights_of(plain)[1].mean(0)[rows], 1e-12)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("keep_bytes", [0, FUSION_BYTES - 1])
def test_nothing_is_kept_where_it_does_not_fit(keep_bytes: int) -> None:
    trace = keeping(keep_bytes)
    assert trace.fused(0) is not trace.fused(0)
    assert len(list(trace.fused_in_chunks(0))) == 6
    assert trace.nbytes == keeping(0).nbytes


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("more", [0, FUSION_BYTES - 1])
def test_as_many_fused_matrices_are_cached_as_fit(count: int, more: int) -> None:
    trace = keeping(count * FUSION_BYTES + more)
    found = {fusion: [trace.fused(layer, fusion) for layer in range(2)] for fusion in FUSIONS}
    last = list(FUSIONS)[3 - count :]
    for fusion in last:
        for layer in range(2):
            assert trace.fused(layer, fusion) is found[fusion][layer]
            assert trace.fused(layer - 2, fusion) is found[fusion][layer]
            ((chosen, chunk),) = trace.fused_in_chunks(layer, fusion, slice(2, 7))
            assert chosen == slice(2, 7)
            assert chunk.data_ptr() == found[fusion][layer][2].data_ptr() and chunk.shape == (5, 11)
    for fusion in [name for name in FUSIONS if name not in last]:
        assert trace.fused(0, fusion) is not found[fusion][0]


def test_the_fusions_used_last_stay() -> None:
    trace = keeping(2 * FUSION_BYTES)
    mean, most = trace.fused(0, "mean"), trace.fused(0, "max")
    assert trace.fused(0, "mean") is mean
    trace.fused(0, "min")
    assert trace.fused(0, "mean") is mean
    assert trace.fused(0, "max") is not most


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("keep_bytes", [FUSION_BYTES, 2 * FUSION_BYTES, 10**9])
def test_answers_are_the_same_whether_matrices_are_kept_or_not(keep_bytes: int) -> None:
    kept = keeping(keep_bytes)
    plain = keeping(0, kept)
    for _ in range(2):
        for layer, fusion in product(range(2), FUSIONS):
            assert torch.equal(kept.fused(layer, fusion), plain.fused(layer, fusion))
            for rows in (slice(None), slice(3, 8), slice(10, 11)):
                found, expected = (
                    torch.cat([chunk for _, chunk in trace.fused_in_chunks(layer, fusion, rows)])
                    for trace in (kept, plain)
                )
                assert torch.equal(found, expected)
        assert torch.equal(kept.rows("patches"), plain.rows("patches"))
    assert torch.equal(kept.columns((1, 2)), plain.columns((1, 2)))


def held_bytes(trace: AttentionTrace) -> int:
    """Of every tensor that a trace refers to, each storage once."""
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
    said = trace.nbytes
    assert held_bytes(trace) < said
    asked = [(layer, fusion) for layer in range(2) for fusion in FUSIONS]
    for layer, fusion in [*asked, *sorted(asked, key=lambda pair: pair[1])]:
        trace.log_sums(layer)
        trace.fused(layer, fusion)
        assert held_bytes(trace) <= said == trace.nbytes
    # And it comes to hold just that.
    assert held_bytes(trace) == said


def test_the_traces_of_a_network_cache_up_to_keep_bytes(make_network: Make) -> None:
    network, pixels = make_network(), torch.randn(2, 3, 16, 24)
    size = 3 * 25 * 25 * 4
    for keep_bytes, kept in [(0, False), (size - 1, False), (size, True)]:
        trace = network.encode(pixels, keep_bytes=keep_bytes).traces[1]
        assert (trace.fused(0) is trace.fused(0)) == kept
