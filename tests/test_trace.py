"""What is recomputed from queries and keys is what the network computed."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from vitviz import AttentionTrace, TokenLayout, VisionTransformer
from vitviz.errors import ConfigError, MethodError, QueryError
from vitviz.layout import Query
from vitviz.softmax import attention_weights, fuse_heads

Make = Callable[..., VisionTransformer]

NETWORKS: dict[str, dict[str, Any]] = {
    "CLS": {},
    "five prefix tokens": {"register_tokens": 4},
    "no CLS": {"cls_token": False, "pooling": "mean"},
    "one head": {"heads": 1},
    "one layer": {"depth": 1},
    "portrait image, oblong patch": {"image_height": 24, "image_width": 8, "patch_height": 4, "patch_width": 2},
}
every_network = pytest.mark.parametrize("changes", NETWORKS.values(), ids=NETWORKS)


def traced(make_network: Make, changes: dict[str, Any]) -> tuple[torch.Tensor, AttentionTrace]:
    """Attention weights ``"layer head query key"`` of the network itself, and the trace of the same image."""
    network = make_network(**changes)
    pixels = torch.randn(1, 3, network.config.image_height, network.config.image_width)
    _, weights = network(pixels, need_weights=True)
    return torch.stack([layer[0] for layer in weights]), network.encode(pixels).traces[0]


def random_trace(dtype: torch.dtype = torch.float64) -> AttentionTrace:
    """Two layers, three heads, five prefix tokens and a 2×3 grid; sharp attention."""
    layout = TokenLayout(("cls", *(f"register {number}" for number in range(1, 5))), 2, 3)
    queries, keys = torch.randn(2, 2, 3, 11, 4, dtype=dtype) * 3
    return AttentionTrace(queries, keys, 0.5, layout)


def close(found: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-6) -> None:
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=0)


@every_network
def test_matrices_rows_and_columns_are_those_of_the_network(make_network: Make, changes: dict[str, Any]) -> None:
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


@every_network
def test_patches_are_asked_by_row_and_column_and_as_their_mean(make_network: Make, changes: dict[str, Any]) -> None:
    weights, trace = traced(make_network, changes)
    layout = trace.layout
    for row in range(layout.grid_height):
        for column in range(layout.grid_width):
            token = layout.prefix_count + row * layout.grid_width + column
            close(trace.rows((row, column)), weights[:, :, token])
            close(trace.columns((row, column)), weights[..., token])
    close(trace.rows("patches"), weights[:, :, layout.prefix_count :].mean(2))
    close(trace.columns("patches"), weights[..., layout.prefix_count :].mean(-1))


@every_network
def test_prefix_tokens_are_asked_by_name(make_network: Make, changes: dict[str, Any]) -> None:
    weights, trace = traced(make_network, changes)
    for token, name in enumerate(trace.layout.prefix):
        close(trace.rows(name), weights[:, :, token])
        close(trace.columns(name), weights[..., token])


@every_network
def test_heads_are_fused_by_mean_max_and_min(make_network: Make, changes: dict[str, Any]) -> None:
    weights, trace = traced(make_network, changes)
    for layer in range(trace.layers):
        heads = weights[layer]
        close(trace.fused(layer), heads.sum(0) / len(heads))
        close(trace.fused(layer, "mean"), heads.sum(0) / len(heads))
        close(trace.fused(layer, "max"), heads.sort(0).values[-1])
        close(trace.fused(layer, "min"), heads.sort(0).values[0])


@every_network
def test_rows_sum_to_1(make_network: Make, changes: dict[str, Any]) -> None:
    _, trace = traced(make_network, changes)
    for query in [*trace.layout.prefix, "patches", (0, 1), 3]:
        close(trace.rows(query).sum(-1), torch.ones(trace.layers, trace.heads), 1e-5)


def test_a_batch_gives_every_image_its_own_trace(make_network: Make) -> None:
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


def test_a_trace_holds_its_own_image_and_not_the_batch(make_network: Make) -> None:
    trace = make_network().encode(torch.randn(8, 3, 16, 24)).traces[0]
    shape = (3, 4, 25, 8)
    assert trace.queries.shape == trace.keys.shape == shape
    queries, logarithms = 4 * 3 * 4 * 25 * 8, 4 * 3 * 4 * 25
    assert trace.nbytes == 2 * queries + logarithms
    assert trace.queries.untyped_storage().nbytes() == 2 * queries
    assert trace.queries.untyped_storage().data_ptr() == trace.keys.untyped_storage().data_ptr()


# Exactness.


def test_a_trace_in_double_precision_is_exact() -> None:
    trace = random_trace()
    layout = trace.layout
    scores = torch.einsum("lhqd, lhkd -> lhqk", trace.queries, trace.keys) * trace.scale
    exponentials = (scores - scores.amax(-1, keepdim=True)).exp()
    weights = exponentials / exponentials.sum(-1, keepdim=True)
    queries: list[tuple[Query, slice]] = [(token, slice(token, token + 1)) for token in range(layout.token_count)]
    queries += [("register 4", slice(4, 5)), ((1, 0), slice(8, 9)), ("patches", slice(5, 11))]
    for layer in range(2):
        close(trace.weights(layer), weights[layer], 1e-12)
        for query, tokens in queries:
            close(trace.row(layer, query), weights[layer, :, tokens].mean(1), 1e-12)
            close(trace.column(layer, query), weights[layer, :, :, tokens].mean(-1), 1e-12)
        for fusion, function in {"mean": torch.mean, "max": torch.amax, "min": torch.amin}.items():
            close(trace.fused(layer, fusion), function(weights[layer], 0), 1e-12)


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


def test_attention_weights_are_the_softmax_over_keys_of_the_scaled_scores() -> None:
    queries = torch.tensor([[0.0], [1.0]])
    keys = torch.tensor([[0.0], [2.0], [4.0]])
    expected = torch.tensor([[1 / 3, 1 / 3, 1 / 3], torch.softmax(torch.tensor([0.0, 1, 2]), 0).tolist()])
    close(attention_weights(queries, keys, 0.5), expected)


# Numbering and errors.


@pytest.mark.parametrize(("number", "index"), [(0, 0), (1, 1), (-1, 1), (-2, 0)])
def test_layers_are_counted_from_either_end(number: int, index: int) -> None:
    trace = random_trace()
    assert trace.layer_index(number) == index
    assert torch.equal(trace.row(number, "cls"), trace.row(index, "cls"))
    assert torch.equal(trace.column(number, "cls"), trace.column(index, "cls"))
    assert torch.equal(trace.weights(number), trace.weights(index))
    assert torch.equal(trace.fused(number), trace.fused(index))


@pytest.mark.parametrize(("number", "index"), [(0, 0), (2, 2), (-1, 2), (-3, 0)])
def test_heads_are_counted_from_either_end(number: int, index: int) -> None:
    assert random_trace().head_index(number) == index


@pytest.mark.parametrize("layer", [2, -3, 100])
@pytest.mark.parametrize("ask", ["layer_index", "weights", "fused", "row", "column"])
def test_a_layer_that_is_not_there_is_refused(ask: str, layer: int) -> None:
    message = f"layer {layer}: this model has layers 0 to 1 (or -2 to -1 from the end)"
    arguments = (layer, "cls") if ask in ("row", "column") else (layer,)
    with pytest.raises(QueryError, match=f"^{re.escape(message)}$"):
        getattr(random_trace(), ask)(*arguments)


@pytest.mark.parametrize("head", [3, -4])
def test_a_head_that_is_not_there_is_refused(head: int) -> None:
    message = f"head {head}: this model has heads 0 to 2 (or -3 to -1 from the end)"
    with pytest.raises(QueryError, match=f"^{re.escape(message)}$"):
        random_trace().head_index(head)


@pytest.mark.parametrize("query", ["distillation", (2, 0), 11, -1])
@pytest.mark.parametrize("ask", ["rows", "columns"])
def test_a_token_that_is_not_there_is_refused(ask: str, query: Query) -> None:
    with pytest.raises(QueryError, match=r"this model has prefix tokens 'cls', 'register 1'.*to \(1, 2\)"):
        getattr(random_trace(), ask)(query)


@pytest.mark.parametrize("fusion", ["median", "", None, "Mean"])
def test_an_unknown_head_fusion_is_refused_with_the_legal_ones(fusion: Any) -> None:
    message = f"^{re.escape(f'head fusion {fusion!r}')}: expected 'mean', 'max' or 'min'$"
    with pytest.raises(MethodError, match=message):
        random_trace().fused(0, fusion)
    with pytest.raises(MethodError, match=message):
        fuse_heads(torch.zeros(2, 3), fusion)


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
