"""Properties that every rollout has."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch

from tests.support.attention import LAYOUTS, random_attention
from tests.support.comparison import closeness
from tests.support.pairs import every_pair
from tests.support.traces import trace_of
from vitviz import TokenLayout
from vitviz.attention.layout import Query
from vitviz.attribution import rollout, rollout_matrix

close = closeness(tolerance=1e-12)
FUSIONS = ("mean", "max", "min")
every_layout = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)


@every_pair(layout=LAYOUTS, fusion=FUSIONS, ratio=[0.0, 0.5, 0.9, 0.99])
def test_rows_sum_to_1_at_every_setting(layout: TokenLayout, fusion: str, ratio: float) -> None:
    trace = trace_of(random_attention(layout), layout)
    for residual, start in product((0.0, 0.25, 1.0), (0, -1)):
        matrix = rollout_matrix(trace, fusion, ratio, residual, start)
        assert (matrix >= 0).all()
        close(matrix.sum(-1), torch.ones(layout.token_count, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("fusion", FUSIONS)
def test_a_token_whose_whole_row_is_discarded_stays_where_it_is(fusion: str, dtype: torch.dtype) -> None:
    layout = TokenLayout(("cls",), 1, 3)
    attention = torch.full((1, 1, 4, 4), 0.25, dtype=dtype)
    attention[0, 0, 2] = torch.tensor([0.1, 0.2, 0.3, 0.4])
    attention[0, 0, 3] = torch.tensor([0.7, 0.15, 0.1, 0.05])
    attention[0, 0, :2] = torch.tensor([0.41, 0.19, 0.21, 0.19])
    matrix = rollout_matrix(trace_of(attention, layout), fusion, 15 / 16, 0.0)
    expected = torch.eye(4, dtype=dtype)
    expected[3] = torch.tensor([1.0, 0, 0, 0])
    close(matrix, expected)


@every_layout
@pytest.mark.parametrize("parameters", [{}, {"discard_ratio": 0.6, "residual_weight": 0.2, "head_fusion": "max"}])
def test_a_tokens_map_is_its_row_of_the_matrix(layout: TokenLayout, parameters: dict[str, Any]) -> None:
    trace = trace_of(random_attention(layout), layout)
    matrix = rollout_matrix(trace, **parameters)
    patches = [(row, column) for row in range(layout.grid_height) for column in range(layout.grid_width)]
    queries: list[Query] = [*layout.prefix, *patches]
    for token, query in enumerate(queries):
        for name in (query, token):
            token_map = rollout(trace, query=name, **parameters)
            close(token_map.values, layout.grid(matrix[token]))
            assert list(token_map.prefix) == list(layout.prefix)
            assert list(token_map.prefix.values()) == pytest.approx(matrix[token, : layout.prefix_count].tolist())


@every_layout
def test_map_and_prefix_values_sum_to_1(layout: TokenLayout) -> None:
    trace = trace_of(random_attention(layout), layout)
    for query in [*layout.prefix, "patches", (1, 1)]:
        token_map = rollout(trace, "min", 0.9, 0.1, query=query)
        assert float(token_map.values.sum()) + sum(token_map.prefix.values()) == pytest.approx(1)
        assert token_map.domain == (0.0, 1.0)


@every_pair(layout=LAYOUTS, fusion=FUSIONS, ratio=[0.0, 0.5, 0.9], residual=[0.0, 0.2, 0.5])
def test_identity_attention_rolls_out_to_the_identity(
    layout: TokenLayout, fusion: str, ratio: float, residual: float
) -> None:
    identity = torch.eye(layout.token_count, dtype=torch.float64).expand(3, 2, -1, -1)
    # Discarding nine tenths would remove entries of the diagonal, too.
    ratio = min(ratio, 1 - 1 / layout.token_count)
    matrix = rollout_matrix(trace_of(identity, layout), fusion, ratio, residual)
    close(matrix, torch.eye(layout.token_count, dtype=torch.float64))


@every_layout
@pytest.mark.parametrize("residual", [0.0, 0.5, 0.75, 1.0])
def test_uniform_attention_has_a_closed_form_and_a_constant_map(layout: TokenLayout, residual: float) -> None:
    tokens, layers = layout.token_count, 3
    trace = trace_of(torch.full((layers, 2, tokens, tokens), 1 / tokens, dtype=torch.float64), layout)
    stays = residual**layers
    expected = stays * torch.eye(tokens) + (1 - stays) / tokens
    close(rollout_matrix(trace, residual_weight=residual), expected.double(), 1e-7)
    for query in [*layout.prefix, "patches"]:
        low, high = rollout(trace, residual_weight=residual, query=query).range
        assert high - low == pytest.approx(0, abs=1e-12)


@every_layout
@pytest.mark.parametrize("fusion", FUSIONS)
def test_the_order_of_the_heads_changes_nothing(layout: TokenLayout, fusion: str) -> None:
    attention = random_attention(layout, heads=5)
    for reference in (None, *(["vit-explain"] if "cls" in layout.prefix else [])):
        before = rollout(trace_of(attention, layout), fusion, 0.5, reference=reference)
        after = rollout(trace_of(attention[:, [3, 1, 4, 0, 2]], layout), fusion, 0.5, reference=reference)
        close(after.values, before.values)
