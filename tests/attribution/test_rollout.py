"""Rollout equals the reference implementations and a slow one written from its formula, with their properties."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.attention import LAYOUTS, masked, random_attention, slow_rollout
from tests.support.comparison import closeness
from tests.support.example import ASSETS
from tests.support.pairs import every_pair
from tests.support.traces import trace_of, weights_of
from vitviz import AttentionTrace, Model, TokenLayout, open_image
from vitviz.attention import softmax
from vitviz.attention.layout import Query
from vitviz.attention.softmax import scores_in_chunks
from vitviz.attribution import rollout, rollout_matrix
from vitviz.errors.kinds import MethodError, QueryError

close = closeness(tolerance=1e-12)
REFERENCE = np.load(Path(__file__).parents[1] / "data" / "attention_methods.npz")
FUSIONS = ("mean", "max", "min")
WITH_CLS = {name: layout for name, layout in LAYOUTS.items() if "cls" in layout.prefix}
every_layout_with_cls = pytest.mark.parametrize("layout", WITH_CLS.values(), ids=WITH_CLS)


# The reference implementations.


def reference_trace() -> AttentionTrace:
    return trace_of(torch.from_numpy(REFERENCE["attention"]), TokenLayout(("cls",), 4, 4))


@pytest.mark.parametrize("fusion", FUSIONS)
@pytest.mark.parametrize("ratio", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_vit_explain_is_reproduced(fusion: str, ratio: float, dtype: torch.dtype) -> None:
    trace = reference_trace()
    trace = AttentionTrace(trace.queries.to(dtype), trace.keys.to(dtype), 1.0, trace.layout)
    found = rollout(trace, fusion, ratio, reference="vit-explain").values
    expected = REFERENCE[f"vit_explain_rollout_{fusion}_{ratio}"]
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-5, rtol=0)
    # It differs from the paper's map unless rows sum to 1 before the division.
    paper = rollout(trace, fusion, ratio).values
    assert ((paper / paper.max() - found).abs().max() < 1e-5) == (fusion == "mean" and ratio == 0)


@pytest.mark.parametrize("start", [0, 2])
def test_the_baseline_of_transformer_explainability_is_reproduced(start: int) -> None:
    found = rollout_matrix(reference_trace(), start_layer=start)
    np.testing.assert_allclose(found.numpy(), REFERENCE[f"chefer_rollout_start{start}"], atol=1e-5, rtol=0)


# The formula.


ATTENTION: dict[str, Callable[[TokenLayout], torch.Tensor]] = {
    "random": random_attention,
    "even": lambda layout: torch.full_like(random_attention(layout), 1 / layout.token_count),
    "identity": lambda layout: torch.eye(layout.token_count, dtype=torch.float64).expand(4, 3, -1, -1).contiguous(),
}


@every_pair(
    layout=LAYOUTS, make=ATTENTION, fusion=FUSIONS, ratio=[0.0, 0.37, 0.9, 0.99], exclude=[None, [(1, 0), (0, 1)]]
)
def test_rollout_follows_its_formula(
    layout: TokenLayout,
    make: Callable[[TokenLayout], torch.Tensor],
    fusion: str,
    ratio: float,
    exclude: list[Query] | None,
) -> None:
    attention = make(layout)
    if exclude:
        # Some token would attend to none.
        attention = (attention + 0.01) / (attention + 0.01).sum(-1, keepdim=True)
    weights = masked(attention.numpy(), [layout.index(token) for token in exclude or ()])
    for residual, start, end in [(0.5, 0, 3), (0.0, 0, 3), (0.3, 1, 2), (0.8, 3, 3), (1.0, 0, 3)]:
        parameters: dict[str, Any] = {
            **{"head_fusion": fusion, "discard_ratio": ratio, "residual_weight": residual, "exclude": exclude},
            **{"start_layer": start, "end_layer": end},
        }
        expected = torch.from_numpy(slow_rollout(weights[start : end + 1], fusion, ratio, residual))
        trace = trace_of(attention, layout)
        close(rollout_matrix(trace, **parameters), expected)
        for query in (*layout.prefix, *range(layout.token_count), (1, 1), "patches"):
            row = expected[layout.select(query)].mean(0)
            found = rollout(trace, query=query, **parameters)
            close(found.values, layout.grid(row))
            assert tuple(found.prefix) == layout.prefix
            assert list(found.prefix.values()) == pytest.approx(row[: layout.prefix_count].tolist(), abs=1e-12)
            assert found.domain == (0.0, 1.0)


def test_the_pooling_query_reads_the_last_layer_only() -> None:
    layout = LAYOUTS["no CLS"]
    trace = trace_of(random_attention(layout), layout)
    trace = replace(trace, pooled=torch.full((2, layout.token_count), 1 / layout.token_count))
    with pytest.raises(MethodError, match=r"end_layer = 1: the pooling query, .* reads the last layer, 3; .*'patches'"):
        rollout(trace, end_layer=1)
    assert rollout(trace, query="patches", end_layer=1).values.sum() == pytest.approx(1)


SETTINGS = [("mean", 0.0), ("max", 0.0), ("max", 0.9), ("min", 0.0)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "side", "fusion", "ratio"),
    # For the many tokens of a large picture the slow way takes seconds.
    [
        *((name, 32, *setting) for name in ("astronaut.jpg", "coffee.jpg") for setting in SETTINGS),
        ("chelsea.jpg", 96, "max", 0.9),
    ],
)
def test_the_rollout_of_a_trained_network_is_exact(
    bundled: Model, name: str, side: int, fusion: str, ratio: float
) -> None:
    """Within 1e-5 of double precision, and within 1e-4 of its highest value, for a photograph at two sizes."""
    pixels = replace(bundled.preprocessing, height=side, width=side).prepare(open_image(ASSETS / name), 4, 4).pixels
    with torch.inference_mode():
        trace = bundled.network.encode(pixels).traces[0]
    matrix = torch.from_numpy(slow_rollout(weights_of(trace).numpy(), fusion, ratio))
    for query in ("cls", (3, 3), "patches"):
        expected = matrix[trace.layout.select(query)].mean(0)
        found = rollout(trace, fusion, ratio, query=query)
        tolerance = min(1e-5, 1e-4 * float(expected.max()))
        close(found.values.double(), trace.layout.grid(expected), tolerance)
        assert found.prefix["cls"] == pytest.approx(float(expected[0]), abs=tolerance)


# The last layer, and caching.


@every_pair(layout=LAYOUTS, fusion=FUSIONS, residual=[0.0, 0.5, 1.0], start=[0, 2, -1])
def test_only_the_requested_rows_of_the_last_layer_are_computed(
    monkeypatch: pytest.MonkeyPatch, layout: TokenLayout, fusion: str, residual: float, start: int
) -> None:
    computed: list[slice] = []

    def spy(*arguments: Any, **options: Any) -> Any:
        for rows, scores in scores_in_chunks(*arguments, **options):
            computed.append(rows)
            yield rows, scores

    monkeypatch.setattr(softmax, "scores_in_chunks", spy)
    monkeypatch.setattr(softmax, "CHUNK_BYTES", 2 * 3 * layout.token_count * 8)
    trace = trace_of(random_attention(layout), layout)
    matrix = rollout_matrix(trace, fusion, 0.0, residual, start)
    lower = layout.token_count * (3 - trace.layer_index(start))
    for query in (*layout.prefix, (1, 0), layout.token_count - 1, "patches"):
        computed.clear()
        tokens = layout.select(query)
        found = rollout(trace, fusion, 0.0, residual, start, query)
        close(found.values, layout.grid(matrix[tokens].mean(0)))
        if residual == 1:
            assert not computed
            continue
        assert sum(rows.stop - rows.start for rows in computed) == tokens.stop - tokens.start + lower
        assert (computed[0].start, computed[0].stop - computed[0].start <= 2) == (tokens.start, True)


# vit-explain beyond its own case.


def test_vit_explain_is_refused_for_a_model_without_cls_token() -> None:
    trace = trace_of(random_attention(LAYOUTS["no CLS"]), LAYOUTS["no CLS"])
    with pytest.raises(MethodError, match="no CLS token, which vit-explain takes for granted"):
        rollout(trace, reference="vit-explain")


@every_layout_with_cls
@pytest.mark.parametrize("query", [None, "patches", (1, 1), 0])
def test_vit_explain_is_relative_to_the_highest_patch_for_every_token(layout: TokenLayout, query: Query | None) -> None:
    trace = trace_of(random_attention(layout), layout)
    token_map = rollout(trace, "max", 0.5, query=query, reference="vit-explain")
    assert token_map.range[1] == 1
    assert token_map.values.min() >= 0
    assert token_map.quantity == "share relative to the highest patch"
    assert rollout(trace, query=query).quantity == "share of the rollout"


def test_vit_explain_is_refused_if_no_patch_is_left() -> None:
    layout = TokenLayout(("cls",), 2, 2)
    attention = torch.full((2, 1, 5, 5), 0.01, dtype=torch.float64)
    attention[..., 0] = 0.96
    # The residual of the patches' own rows does not reach the CLS token.
    message = (
        "^Attention rollout for the CLS token, as vit-explain computes it: "
        "no patch is left after discarding 99.9% of every layer$"
    )
    with pytest.raises(MethodError, match=message):
        rollout(trace_of(attention, layout), discard_ratio=0.999, reference="vit-explain")


# Captions and errors.


@pytest.mark.parametrize(
    ("parameters", "description"),
    [
        ({}, "Attention rollout for the CLS token: mean of 3 heads, residual 0.5, layers 0 to 3"),
        (
            {"query": (1, 2), "head_fusion": "min", "residual_weight": 0.25, "start_layer": -2},
            "Attention rollout for patch (1, 2): min of 3 heads, residual 0.25, layers 2 to 3",
        ),
        (
            {"query": "patches", "discard_ratio": 0.9},
            "Attention rollout for the mean patch: mean of 3 heads, residual 0.5, lowest 90% discarded, layers 0 to 3",
        ),
        (
            {"discard_ratio": 0.995},
            "Attention rollout for the CLS token: mean of 3 heads, residual 0.5, lowest 99.5% discarded, layers 0 to 3",
        ),
        (
            {"head_fusion": "max", "reference": "vit-explain"},
            "Attention rollout for the CLS token, as vit-explain computes it: "
            "max of 3 heads, residual 0.5, layers 0 to 3",
        ),
    ],
)
def test_the_description_says_how_the_map_was_made(parameters: dict[str, Any], description: str) -> None:
    trace = trace_of(random_attention(LAYOUTS["CLS"]), LAYOUTS["CLS"])
    assert rollout(trace, **parameters).description == description


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    (
        {"head_fusion": "median"},
        MethodError,
        "head fusion 'median': expected 'mean', 'max' or 'min'; did you mean 'mean'\\?",
    ),
    ({"discard_ratio": 1.0}, MethodError, r"discard_ratio = 1.0: expected a number in \[0, 1\)"),
    ({"discard_ratio": -0.1}, MethodError, r"discard_ratio = -0.1: expected a number in \[0, 1\)"),
    ({"discard_ratio": math.nan}, MethodError, r"discard_ratio = nan: expected a number in \[0, 1\)"),
    ({"residual_weight": 1.1}, MethodError, r"residual_weight = 1.1: expected a number in \[0, 1\]"),
    ({"residual_weight": -0.1}, MethodError, r"residual_weight = -0.1: expected a number in \[0, 1\]"),
    ({"residual_weight": math.nan}, MethodError, r"residual_weight = nan: expected a number in \[0, 1\]"),
    ({"start_layer": 4}, QueryError, r"layer 4: this model has layers 0 to 3 \(or -4 to -1 from the end\)"),
    ({"start_layer": -5}, QueryError, r"layer -5: this model has layers 0 to 3 \(or -4 to -1 from the end\)"),
    ({"end_layer": 4}, QueryError, r"layer 4: this model has layers 0 to 3 \(or -4 to -1 from the end\)"),
    (
        {"start_layer": 2, "end_layer": -3},
        QueryError,
        "end_layer 1: below the start layer, 2; expected a layer from 2 to 3",
    ),
]


@pytest.mark.parametrize(("parameters", "error", "message"), WRONG)
@pytest.mark.parametrize("function", [rollout, rollout_matrix])
def test_a_parameter_out_of_range_is_refused_with_the_range(
    function: Any, parameters: dict[str, Any], error: type[Exception], message: str
) -> None:
    trace = trace_of(random_attention(LAYOUTS["CLS"]), LAYOUTS["CLS"])
    with pytest.raises(error, match=f"^{message}$"):
        function(trace, **parameters)


@pytest.mark.parametrize(
    ("parameters", "error", "message"),
    [
        ({"reference": "vit_explain"}, MethodError, "reference 'vit_explain': expected 'vit-explain', or None for the"),
        (
            {"reference": "vit-explain", "residual_weight": 0.4},
            MethodError,
            "residual_weight = 0.4 and start_layer = 0: vit-explain knows only 0.5 and 0",
        ),
        (
            {"reference": "vit-explain", "start_layer": -1},
            MethodError,
            "residual_weight = 0.5 and start_layer = 3: vit-explain knows only 0.5 and 0",
        ),
        (
            {"reference": "vit-explain", "end_layer": 2},
            MethodError,
            "end_layer = 2: vit-explain knows only the last layer, -1",
        ),
    ],
)
def test_an_unknown_token_or_reference_is_refused(
    parameters: dict[str, Any], error: type[Exception], message: str
) -> None:
    trace = trace_of(random_attention(LAYOUTS["CLS"]), LAYOUTS["CLS"])
    with pytest.raises(error, match=f"^{message}"):
        rollout(trace, **parameters)
