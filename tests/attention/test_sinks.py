"""Outlier patches and sinks are found by their stated rules, and norms are those of the stream."""

from __future__ import annotations

import pickle
import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.support.networks import every_network
from tests.support.plain import plain
from tests.support.traces import trace_of, weights_of
from vitviz import AttentionTrace, TokenLayout, VisionTransformer
from vitviz.attention.sinks import OutlierRule, outlier_patches, received_attention, sink_patches
from vitviz.errors.kinds import MethodError

LAYOUT = TokenLayout(("cls", "register 1"), 3, 4)


def random_trace(layout: TokenLayout = LAYOUT, layers: int = 3, heads: int = 2) -> AttentionTrace:
    count = layout.token_count
    return trace_of(torch.randn(layers, heads, count, count, dtype=torch.float64).softmax(-1), layout)


def with_norms(norms: list[float], layout: TokenLayout = LAYOUT) -> AttentionTrace:
    """A trace whose patches enter the last layer with these norms; its other norms are much larger."""
    steps = torch.full((4, layout.token_count), 1e6, dtype=torch.float64)
    steps[-2, layout.prefix_count :] = torch.tensor(norms, dtype=torch.float64)
    return replace(random_trace(layout), norms=steps)


@every_network("CLS", "five prefix tokens", "no CLS", "one layer", "rotary, QK-norm, gated MLP", "attention pooling")
def test_the_norms_of_an_encoding_are_those_of_the_stream(
    make_network: Callable[..., VisionTransformer], changes: dict[str, Any]
) -> None:
    network = make_network(**changes)
    pixels = torch.randn(2, 3, 16, 24)
    with torch.no_grad():
        traces = network.encode(pixels).traces
    run, depth = plain(network, pixels), network.config.depth
    # Tokens of the last layer that no pooling reads are not computed.
    known = network.steps(run.layout)[-1][1]
    for step, tokens in enumerate(run.steps):
        count = known if step == depth else run.layout.token_count
        for trace, stream in zip(traces, tokens, strict=True):
            assert trace.norms is not None and trace.norms[step, count:].isnan().all()
            torch.testing.assert_close(trace.norms[step, :count], stream[:count].square().sum(-1).sqrt())


def test_a_pickled_trace_has_its_own_norms_and_not_those_of_the_batch(
    make_network: Callable[..., VisionTransformer],
) -> None:
    with torch.no_grad():
        traces = make_network().encode(torch.randn(8, 3, 16, 24)).traces
    norms = traces[3].norms
    assert norms is not None
    without_norms = replace(traces[3], norms=None)
    assert len(pickle.dumps(traces[3])) - len(pickle.dumps(without_norms)) < norms.nbytes + 1000
    assert traces[3].nbytes - replace(traces[3], norms=None).nbytes == norms.nbytes


@pytest.mark.parametrize(
    ("norms", "outliers"),
    [
        # Twice the median alone is not enough where norms spread widely: ten deviations are 50 here.
        ([5, 5, 5, 10, 10, 10, 15, 15, 15, 20, 20, 21], []),
        ([5, 5, 5, 10, 10, 10, 15, 15, 15, 20, 20, 64], [13]),
        # Ten deviations alone are not enough where norms hardly differ.
        ([10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 19.9], []),
        ([10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 20.1], [13]),
        ([100, 10, 11, 10, 11, 10, 11, 10, 11, 10, 11, 200], [2, 13]),
        # A norm far below is no outlier.
        ([0.1, 10, 11, 10, 11, 10, 11, 10, 11, 10, 11, 10], []),
    ],
)
def test_an_outlier_is_above_twice_the_median_and_ten_deviations(norms: list[float], outliers: list[int]) -> None:
    assert outlier_patches(with_norms(norms)) == outliers
    rule = OutlierRule.of(torch.tensor(norms, dtype=torch.float64))
    # torch takes the lower of the two middle values of an even number.
    median = statistics.median_low(norms)
    deviation = statistics.median_low([abs(norm - median) for norm in norms])
    assert rule.threshold == max(2 * median, median + 10 * deviation)


def test_a_trace_without_norms_has_no_outliers_to_find() -> None:
    with pytest.raises(MethodError, match=r"^norms: this trace has no token norms; vitviz.analyze measures them$"):
        outlier_patches(random_trace())


@pytest.mark.parametrize("first", [0, 2])
def test_received_attention_is_the_mean_over_what_looks(first: int) -> None:
    trace = random_trace()
    found, weights = received_attention(trace, first), weights_of(trace)
    for layer in range(trace.layers):
        for head in range(trace.heads):
            for key in range(14):
                column = [float(weights[layer, head, query, key]) for query in range(first, 14)]
                assert float(found[layer, head, key]) == pytest.approx(statistics.fmean(column), abs=1e-12)
    torch.testing.assert_close(found.sum(-1), torch.ones(3, 2, dtype=torch.float64))


def test_a_sink_gets_ten_even_shares_in_some_layer() -> None:
    layout = TokenLayout(("cls",), 5, 5)
    even = torch.full((3, 2, 26, 26), 1 / 26, dtype=torch.float64)

    def with_share(share: float, layer: int, token: int) -> AttentionTrace:
        weights = even.clone()
        weights[layer] = (1 - share) / 25
        weights[layer, ..., token] = share
        return trace_of(weights, layout)

    assert sink_patches(trace_of(even, layout)) == []
    assert sink_patches(with_share(9.9 / 26, 0, 7)) == []
    assert sink_patches(with_share(10.1 / 26, 0, 7)) == [7]
    assert sink_patches(with_share(10.1 / 26, 2, 25)) == [25]
    # The CLS token is there to be looked at.
    assert sink_patches(with_share(0.9, 1, 0)) == []
    # One head alone is no sink of its layer.
    weights = even.clone()
    weights[1, 0] = (1 - 10.1 / 26) / 25
    weights[1, 0, :, 7] = 10.1 / 26
    assert sink_patches(trace_of(weights, layout)) == []
