"""Attention weights that exist already become a trace: the same maps, with gradients, and nothing else is taken."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.attention import LAYOUTS, random_attention
from tests.support.comparison import closeness
from tests.support.traces import trace_of
from vitviz import METHODS, AttentionTrace, TokenMap
from vitviz.attention.layout import Query
from vitviz.attribution import attention, attention_sheet, rollout, rollout_matrix
from vitviz.attribution.batched_rollout import rollouts
from vitviz.errors.kinds import ConfigError, MethodError, VitvizError

close = closeness(tolerance=1e-12)
LAYOUT = LAYOUTS["CLS"]


def given(layers: int = 4, **options: Any) -> tuple[torch.Tensor, AttentionTrace]:
    weights = random_attention(LAYOUT, layers)
    return weights, AttentionTrace.from_weights(weights, **options)


FORMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "tensor": lambda weights: weights,
    "tensor with a batch": lambda weights: weights[:, None],
    "tuple with a batch": lambda weights: tuple(weights[:, None]),
    "list": list,
    "array": lambda weights: weights.numpy(),
    "arrays": lambda weights: [layer.numpy() for layer in weights],
    "arrays that are views": lambda weights: [layer.flip(0).numpy()[::-1] for layer in weights],
    "bytes in the other order": lambda weights: weights.numpy().astype(">f8"),
    "a narrow type first": lambda weights: [torch.eye(weights.shape[-1]).expand_as(weights[0]).bfloat16(), *weights],
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_form_of_the_same_weights_is_the_same_trace(form: Callable[[torch.Tensor], Any]) -> None:
    weights = random_attention(LAYOUT)
    trace = AttentionTrace.from_weights(form(weights))
    assert (trace.layers - 4 in (0, 1), trace.heads, trace.layout) == (True, 3, LAYOUT)
    assert all(torch.equal(trace.weights(layer - 4), weights[layer]) for layer in range(4))
    assert trace.nbytes >= weights.nbytes


PARAMETERS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in ("attention", "attention_mass", "rollout", "attention_flow")),
    ("attention", {"layer": 1, "head": 2, "query": (1, 2), "direction": "column"}),
    ("attention", {"head": "max", "query": "patches", "exclude": [(0, 1), "cls"]}),
    ("attention_mass", {"head": "min", "mass": 0.3}),
    ("rollout", {"head_fusion": "min", "discard_ratio": 0.6, "residual_weight": 0.2, "end_layer": 2}),
    ("rollout", {"head_fusion": "max", "query": "patches", "exclude": "sinks", "start_layer": 1}),
    ("rollout", {"discard_ratio": 0.5, "reference": "vit-explain"}),
    ("attention_flow", {"most_patches": 4, "start_layer": 1}),
]


@pytest.mark.parametrize(("name", "parameters"), PARAMETERS)
def test_the_maps_are_those_of_queries_and_keys(name: str, parameters: dict[str, Any]) -> None:
    weights, trace = given()
    expected = METHODS[name].compute(trace_of(weights, LAYOUT), **parameters)
    found = METHODS[name].compute(trace, **parameters)
    close(found.values, expected.values)
    assert found.description == expected.description


def test_sheets_matrices_and_batches_are_those_of_queries_and_keys() -> None:
    weights, trace = given()
    computed = trace_of(weights, LAYOUT)
    for found, expected in zip(attention_sheet(trace), attention_sheet(computed), strict=True):
        close(found[2].values, expected[2].values)
    close(rollout_matrix(trace), rollout_matrix(computed))
    for each in rollouts([trace, computed, trace]):
        close(each.values, rollout(computed).values)
    close(trace.rows("cls"), computed.rows("cls"))
    close(trace.columns("cls"), computed.columns("cls"))
    close(trace.log_sums(1), torch.zeros(3, LAYOUT.token_count, dtype=torch.float64))
    close(rollout(pickle.loads(pickle.dumps(trace))).values, rollout(computed).values)


def maps_with(**parameters: Any) -> Callable[[AttentionTrace], TokenMap]:
    return lambda trace: rollout(trace, **parameters)


def rows_of(query: Query, direction: str, head: int | str) -> Callable[[AttentionTrace], TokenMap]:
    return lambda trace: attention(trace, 0, head, query, direction)


@pytest.mark.parametrize(
    "method",
    [
        maps_with(),
        maps_with(head_fusion="max", discard_ratio=0.5),
        maps_with(head_fusion="min", residual_weight=0.0, query="patches"),
        maps_with(discard_ratio=0.5, reference="vit-explain"),
        maps_with(exclude=[(0, 1)]),
        rows_of("patches", "row", "mean"),
        rows_of((0, 1), "column", "max"),
    ],
)
def test_maps_have_the_gradient_of_their_values(method: Callable[[AttentionTrace], TokenMap]) -> None:
    weights = (2 * torch.randn(2, 2, 5, 5, dtype=torch.float64)).softmax(-1).requires_grad_()
    assert torch.autograd.gradcheck(lambda given: method(AttentionTrace.from_weights(given)).values, (weights,))


def test_entries_that_tie_with_the_lowest_keep_their_gradient() -> None:
    weights = torch.full((1, 1, 5, 5), 0.2, dtype=torch.float64).requires_grad_()
    values = rollout(AttentionTrace.from_weights(weights), discard_ratio=0.1, residual_weight=0.0).values
    (gradient,) = torch.autograd.grad(values.flatten() @ torch.arange(4.0, dtype=torch.float64), weights)
    # The first two of 25 equal entries are discarded; the rest of the first row is divided by its sum.
    close(values.flatten()[1:], torch.full((3,), 1 / 3, dtype=torch.float64))
    assert gradient[0, 0, 0, :2].tolist() == [0, 0] and gradient[0, 0, 0, 2:].any()


def test_prefix_and_grid_give_the_layout() -> None:
    oblong = torch.full((1, 2, 14, 14), 1 / 14)
    layout = AttentionTrace.from_weights(oblong, prefix=2, grid=(3, 4)).layout
    assert (layout.prefix, layout.grid_height, layout.grid_width) == (("cls", "register 1"), 3, 4)
    assert AttentionTrace.from_weights(torch.full((1, 2, 9, 9), 1 / 9), prefix=0).layout.default_query == "patches"
    assert AttentionTrace.from_weights(oblong, prefix=["cls", "distilled"], grid=(3, 4)).layout.prefix[1] == "distilled"
    assert AttentionTrace.from_weights(oblong, prefix=2, grid=(1, 12)).layout.grid_height == 1


EVEN = torch.full((2, 3, 10, 10), 0.1)
WRONG: list[tuple[Any, dict[str, Any], str]] = [
    (
        torch.full((1, 2, 14, 14), 1 / 14),
        {"prefix": 2},
        r"14 tokens, 2 of them .*: 12 patches .*; expected prefix= the",
    ),
    (
        EVEN,
        {"grid": (2, 4)},
        r"grid = \(2, 4\): 10 tokens, 1 of them .*, leave 9 patches; .* or grid=\(rows, columns\)",
    ),
    (EVEN, {"grid": 3}, r"grid = 3: expected \(rows, columns\)"),
    (EVEN, {"prefix": 10}, "10 tokens, 10 of them prefix tokens: 0 patches form no square; expected prefix= the"),
    (EVEN, {"prefix": -1}, "prefix = -1: expected a list of names, .*, or their number"),
    (EVEN[..., :9], {}, r"attentions\[0\] of shape \(3, 10, 9\): .* as many queries as keys"),
    (EVEN[0], {}, r"attentions of shape \(3, 10, 10\): expected 'layer head query key'"),
    (EVEN[:, None].expand(2, 4, 3, 10, 10), {}, r"attentions\[0\] of shape .*: 4 images; .* \[layer\[index.*windows"),
    ([EVEN[0], EVEN[1, :2]], {}, r"attentions\[0\] of shape \(3, 10, 10\), attentions\[1\] of \(2, 10, 10\)"),
    ((), {}, r"attentions: no layer found; .*set_attn_implementation\('eager'\)"),
    (EVEN, {"prefx": 3}, r"AttentionTrace\.from_weights has no parameter 'prefx': .*; did you mean 'prefix'\?"),
    ((None, None), {}, r"attentions\[0\]: None found; .*set_attn_implementation\('eager'\)"),
    (None, {}, "attentions: None found; expected a tensor of each layer.*'eager'"),
    ([EVEN[0].to_sparse()], {}, r"attentions\[0\]: sparse_coo Tensor .* found; expected a dense tensor of floats"),
    ([EVEN[0, :1, :2, :2].to("meta")], {}, r"attentions\[0\]: meta Tensor .* found; expected a dense tensor of floats"),
    ([EVEN[0].to(torch.float8_e4m3fn)], {}, r"attentions\[0\]: a tensor of torch.float8_e4m3fn found"),
    (EVEN.numpy().astype(np.longdouble), {}, r"attentions\[0\]: ndarray .* found; expected a dense tensor of floats"),
    ([EVEN[0].int()], {}, r"attentions\[0\]: a tensor of torch.int32 found; expected a dense tensor of floats"),
    (EVEN * 0.9, {}, r"attentions\[0\]: the rows sum to 0.9 up to 0.9; .* after the softmax, before any dropout"),
    (EVEN - 0.2 * torch.eye(10), {}, r"attentions\[0\]: the lowest value is -0.1"),
    ([EVEN[0], EVEN[1] * torch.nan], {}, r"attentions\[1\]: the values are not all finite"),
    (np.zeros((2, 3)), {}, r"attentions of shape \(2, 3\)"),
]


@pytest.mark.parametrize(("attentions", "options", "message"), WRONG)
def test_what_is_no_attention_of_one_image_is_refused(attentions: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^.*{message}"):
        AttentionTrace.from_weights(attentions, **options)


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("rollout", {"exclude": "outliers"}, "norms: this trace has no token norms"),
        ("pooling_attention", {}, "does not pool by attention"),
        ("relevance", {}, "gradients: an AttentionTrace found; expected a GradientTrace"),
        ("gradient_rollout", {}, "gradients: an AttentionTrace found; expected a GradientTrace"),
        ("legrad", {}, "inputs: an AttentionTrace found; expected an AttributionInput"),
        ("grad_cam", {}, "inputs: an AttentionTrace found; expected an AttributionInput"),
        ("occlusion", {}, "inputs: an AttentionTrace found; expected an AttributionInput"),
        ("integrated_gradients", {}, "inputs: an AttentionTrace found; expected an AttributionInput"),
    ],
)
def test_what_the_trace_lacks_is_refused_by_name(name: str, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(VitvizError, match=message):
        METHODS[name].compute(given()[1], **parameters)


@pytest.mark.parametrize("name", ["attention", "attention_mass", "rollout", "attention_flow", "pooling_attention"])
def test_weights_in_place_of_a_trace_are_told_the_way(name: str) -> None:
    with pytest.raises(
        ConfigError,
        match=r"trace: tuple of 2, the first a Tensor of shape \(3, 10, 10\) found; .*\.from_weights\(attentions\)",
    ):
        METHODS[name].compute(tuple(EVEN))


def test_a_row_that_sees_only_what_is_left_out_is_refused() -> None:
    weights = torch.full((1, 1, 5, 5), 0.2, dtype=torch.float64)
    weights[0, 0, 2] = torch.tensor([1.0, 0, 0, 0, 0])
    with pytest.raises(MethodError, match=r"layer 0, head 0: patch \(0, 1\) attends to none but"):
        rollout(AttentionTrace.from_weights(weights), exclude=["cls"])
