"""A trace recomputes from queries and keys what the network computed."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.support.comparison import closeness
from tests.support.example import ASSETS
from tests.support.makers import MakeNetwork
from tests.support.networks import every_network
from tests.support.random_traces import random_trace
from tests.support.refusals import check_refusals
from tests.support.traces import scores_of, weights_of
from vitviz import AttentionTrace, Model, TokenLayout, open_image
from vitviz.attention.layout import Query
from vitviz.attention.softmax import fuse_heads
from vitviz.errors.kinds import ConfigError, MethodError, QueryError

close = closeness(tolerance=1e-6)
FUSIONS = {"mean": torch.mean, "max": torch.amax, "min": torch.amin}
each_network = every_network(
    "CLS", "five prefix tokens", "no CLS", "one head", "one layer", "portrait image, oblong patch"
)


def traced(make_network: MakeNetwork, changes: dict[str, Any]) -> tuple[torch.Tensor, AttentionTrace]:
    """Attention weights ``"layer head query key"`` of the network itself, and the trace of the same image."""
    network = make_network(**changes)
    pixels = torch.randn(1, 3, network.config.image_height, network.config.image_width)
    _, weights = network(pixels, need_weights=True)
    return torch.stack([layer[0] for layer in weights]), network.encode(pixels).traces[0]


@each_network
def test_matrices_rows_and_columns_are_those_of_the_network(make_network: MakeNetwork, changes: dict[str, Any]) -> None:
    weights, trace = traced(make_network, changes)
    assert (trace.layers, trace.heads) == weights.shape[:2]
    for layer in range(trace.layers):
        close(trace.weights(layer), weights[layer])
        for token in range(trace.layout.token_count):
            close(trace.row(layer, token), weights[layer, :, token])
            close(trace.column(layer, token), weights[layer, :, :, token])
    for token in range(trace.layout.token_count):
        close(trace.rows(token), weights[:, :, token])
        close(trace.columns(token), weights[..., token])


def test_a_batch_gives_every_image_its_own_trace(make_network: MakeNetwork) -> None:
    network = make_network(register_tokens=4)
    pixels = torch.randn(3, 3, 16, 24)
    encoding = network.encode(pixels)
    assert len(encoding.traces) == 3
    for image, trace in enumerate(encoding.traces):
        alone = network.encode(pixels[image : image + 1])
        torch.testing.assert_close(encoding.logits[image], alone.logits[0], atol=1e-5, rtol=1e-5)
        for layer in range(3):
            close(trace.weights(layer), alone.traces[0].weights(layer))
    assert not torch.allclose(encoding.traces[0].weights(2), encoding.traces[1].weights(2), atol=1e-3)


def test_a_trace_holds_its_own_image_and_not_the_batch(make_network: MakeNetwork) -> None:
    trace = make_network().encode(torch.randn(8, 3, 16, 24)).traces[0]
    shape = (3, 4, 25, 8)
    assert trace.queries.shape == trace.keys.shape == shape
    queries, logarithms, norms = 4 * 3 * 4 * 25 * 8, 4 * 3 * 4 * 25, 4 * 4 * 25 + 4 * 3 * 4 * 25
    assert trace.nbytes == 2 * queries + logarithms + norms
    assert [tensor.untyped_storage().nbytes() for tensor in (trace.queries, trace.keys)] == [queries, queries]


# Sums of exponentials.


def log_sums_of(trace: AttentionTrace) -> torch.Tensor:
    """``"layer head query"``, in double precision and by definition."""
    return scores_of(trace).exp().sum(-1).log()


@each_network
def test_the_log_sums_of_the_network_are_those_of_the_trace(make_network: MakeNetwork, changes: dict[str, Any]) -> None:
    network = make_network(**changes)
    with torch.no_grad():
        trace = network.encode(torch.randn(1, 3, network.config.image_height, network.config.image_width)).traces[0]
    known = dict(trace.known_log_sums)
    # If only the CLS token is classified, the last layer computes no other row.
    assert set(known) == set(range(trace.layers - (network.config.pooling == "cls")))
    trace.known_log_sums.clear()
    for layer, log_sums in known.items():
        assert log_sums.shape == (trace.heads, trace.layout.token_count)
        close(log_sums, trace.log_sums(layer), 1e-5)
        assert trace.log_sums(layer) is not log_sums


def test_known_sums_are_used() -> None:
    """Halving the sums doubles every weight, which shows that they are used."""
    trace = random_trace()
    expected = 2 * weights_of(trace)[1]
    trace.known_log_sums[1] = log_sums_of(trace)[1] - math.log(2)
    close(trace.row(1, 3), expected[:, 3], 1e-12)
    close(trace.column(1, 3), expected[..., 3], 1e-12)
    close(trace.fused(1, "max"), expected.amax(0), 1e-12)


# Bias.

BIASES = {
    "none": None,
    "one for all": (1, 1),
    "of each layer": (2, 1),
    "of each head": (1, 3),
    "of each layer and head": (2, 3),
}
every_bias = pytest.mark.parametrize("heads", BIASES.values(), ids=BIASES)
known_and_not = pytest.mark.parametrize("known", [False, True], ids=["", "sums known"])


@pytest.mark.usefixtures("small_chunks")
@every_bias
@known_and_not
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("keep_bytes", [0, 10**6], ids=["", "kept"])
def test_every_answer_is_that_of_the_formula_with_its_bias(
    heads: tuple[int, int] | None, known: bool, dtype: torch.dtype, keep_bytes: int
) -> None:
    plain = random_trace(dtype)
    bias = None if heads is None else 3 * torch.randn(*heads, 11, 11, dtype=dtype)
    trace = AttentionTrace(plain.queries, plain.keys, plain.scale, plain.layout, bias, keep_bytes=keep_bytes)
    weights, tolerance = weights_of(trace), {torch.float32: 1e-5, torch.float64: 1e-12}[dtype]
    assert bias is None or (weights - weights_of(plain)).abs().max() > 0.1
    if known:
        for layer in range(2):
            trace.log_sums(layer)
    queries: list[tuple[Query, slice]] = [(token, slice(token, token + 1)) for token in range(11)]
    queries += [("register 4", slice(4, 5)), ((1, 0), slice(8, 9)), ((1, 2), slice(10, 11)), ("patches", slice(5, 11))]
    for query, tokens in queries:
        rows, columns = weights[:, :, tokens].mean(2), weights[..., tokens].mean(-1)
        close(trace.rows(query).double(), rows, tolerance)
        close(trace.columns(query).double(), columns, tolerance)
        for layer in range(2):
            close(trace.row(layer, query).double(), rows[layer], tolerance)
            close(trace.column(layer, query).double(), columns[layer], tolerance)
    for layer in range(2):
        close(trace.weights(layer).double(), weights[layer], tolerance)
        close(trace.log_sums(layer).double(), log_sums_of(trace)[layer], tolerance)
        for fusion, function in FUSIONS.items():
            fused = function(weights[layer], 0)
            close(trace.fused(layer, fusion).double(), fused, tolerance)
            for row_range in (slice(None), slice(4, 9)):
                chunks = [
                    (chunk_rows, chunk.clone()) for chunk_rows, chunk in trace.fused_in_chunks(layer, fusion, row_range)
                ]
                assert [token for chunk_rows, _ in chunks for token in range(11)[chunk_rows]] == list(
                    range(11)[row_range]
                )
                close(torch.cat([chunk for _, chunk in chunks]).double(), fused[row_range], tolerance)


def test_a_bias_of_minus_infinity_hides_a_token() -> None:
    plain = random_trace()
    bias = torch.zeros(1, 1, 11, 11).index_fill(-1, torch.tensor(7), -torch.inf)
    trace = AttentionTrace(plain.queries, plain.keys, plain.scale, plain.layout, bias)
    close(trace.rows(3), weights_of(trace)[:, :, 3], 1e-12)
    assert (trace.rows(3)[..., 7] == 0).all() and (trace.columns(7) == 0).all()
    assert (trace.fused(0, "max")[:, 7] == 0).all()


@pytest.mark.parametrize(
    "shape", [(11, 11), (3, 11, 11), (2, 3, 11, 10), (2, 3, 11, 1), (3, 3, 11, 11), (2, 2, 11, 11), (2, 3, 1, 11, 11)]
)
def test_a_bias_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    plain = random_trace()
    message = f"bias of shape {shape}: expected 'layer head query key', (2, 3, 11, 11); layer and head may be 1"
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        AttentionTrace(plain.queries, plain.keys, 1.0, plain.layout, torch.zeros(shape))


# Exactness.


def check_exact(trace: AttentionTrace) -> None:
    weights, layout = weights_of(trace), trace.layout
    # Which sum a processor's kernel rounds differs: a score has an error of some units in its last place.
    scores = trace.queries.double() @ trace.keys.double().mT * trace.scale
    bound = max(1e-5, 4 * torch.finfo(torch.float32).eps * float(scores.abs().max()))
    sample = [*range(layout.prefix_count + 1), layout.token_count // 2, layout.token_count - 1]
    # First with the log sums of the network, then with those that the trace computes.
    for _ in range(2):
        for token in sample:
            close(trace.rows(token).double(), weights[:, :, token], bound)
            close(trace.columns(token).double(), weights[..., token], bound)
        close(trace.rows("patches").double(), weights[:, :, layout.prefix_count :].mean(2), bound)
        for layer in range(trace.layers):
            close(trace.row(layer, sample[-1]).double(), weights[layer, :, sample[-1]], bound)
            close(trace.weights(layer).double(), weights[layer], bound)
            for fusion, function in FUSIONS.items():
                close(trace.fused(layer, fusion).double(), function(weights[layer], 0), bound)
        trace.known_log_sums.clear()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "side"), [("astronaut.jpg", 32), ("coffee.jpg", 32), ("chelsea.jpg", 96)])
def test_the_attention_of_a_trained_network_to_a_photograph_is_exact(bundled: Model, name: str, side: int) -> None:
    """At its own size, and at one with 577 tokens, whose chunks hold at most half of them."""
    preprocessing = replace(bundled.preprocessing, height=side, width=side)
    pixels = preprocessing.prepare(open_image(ASSETS / name), 4, 4).pixels
    with torch.inference_mode():
        trace = bundled.network.encode(pixels).traces[0]
    # This attention is far from uniform.
    assert weights_of(trace).max() > 0.3
    check_exact(trace)


def test_scores_far_apart_do_not_overflow() -> None:
    layout = TokenLayout(("cls",), 1, 2)
    queries = torch.tensor([[1000.0], [-1000.0], [0.0]])[None, None]
    keys = torch.tensor([[1.0], [0.0], [-1.0]])[None, None]
    trace = AttentionTrace(queries, keys, 1.0, layout)
    expected = torch.tensor([[1.0, 0, 0], [0, 0, 1], [1 / 3, 1 / 3, 1 / 3]])
    close(trace.weights(0)[0], expected)
    for token in range(3):
        close(trace.row(0, token)[0], expected[token])
        close(trace.column(0, token)[0], expected[:, token])


# Numbering and errors.


@pytest.mark.parametrize("layer", [2, -3, 100])
@pytest.mark.parametrize("ask", ["layer_index", "weights", "fused", "row", "column"])
def test_a_missing_layer_is_refused(ask: str, layer: int) -> None:
    message = f"layer {layer}: this model has layers 0 to 1 (or -2 to -1 from the end)"
    arguments = (layer, "cls") if ask in ("row", "column") else (layer,)
    with pytest.raises(QueryError, match=f"^{re.escape(message)}$"):
        getattr(random_trace(), ask)(*arguments)


@pytest.mark.parametrize("fusion", ["median", "", None, "Mean"])
def test_an_unknown_head_fusion_is_refused_with_the_legal_ones(fusion: Any) -> None:
    near = re.escape("; did you mean 'mean'?") if fusion in ("median", "Mean") else ""
    message = f"{re.escape(f'head fusion {fusion!r}')}: expected 'mean', 'max' or 'min'{near}$"
    for call in (lambda: random_trace().fused(0, fusion), lambda: fuse_heads(torch.zeros(2, 3), fusion)):
        check_refusals(MethodError, {message: call})


@pytest.mark.parametrize(
    ("queries", "keys", "message"),
    [
        ((2, 3, 11, 4), (2, 3, 11, 5), r"queries \(2, 3, 11, 4\) and keys \(2, 3, 11, 5\): expected one shape"),
        ((2, 3, 11, 4), (2, 3, 10, 4), "expected one shape, 'layer head token dim'"),
        ((2, 3, 11, 4), (2, 1, 11, 4), "expected one shape, 'layer head token dim'"),
        ((3, 11, 4), (3, 11, 4), r"queries \(3, 11, 4\) and keys \(3, 11, 4\): expected one shape"),
        ((1, 2, 3, 11, 4), (1, 2, 3, 11, 4), "expected one shape, 'layer head token dim'"),
        ((2, 3, 7, 4), (2, 3, 7, 4), "^7 tokens in the trace, 11 in its layout$"),
    ],
)
def test_shapes_that_contradict_each_other_are_refused(
    queries: tuple[int, ...], keys: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        AttentionTrace(torch.zeros(queries), torch.zeros(keys), 1.0, random_trace().layout)
