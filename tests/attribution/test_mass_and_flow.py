"""The mass mask and attention flow equal the reference implementations, and follow from their definitions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.refusals import check_refusals
from tests.support.traces import trace_of
from vitviz import AttentionTrace, TokenLayout
from vitviz.attribution import attention, attention_flow, attention_mass
from vitviz.errors.kinds import MethodError
from vitviz.progress import Progress

REFERENCE = np.load(Path(__file__).parents[1] / "data" / "attention_methods.npz")
LAYOUTS = {
    "CLS": TokenLayout(("cls",), 3, 4),
    "five prefix tokens": TokenLayout(("cls", "register 1", "register 2", "register 3", "register 4"), 2, 3),
    "no CLS": TokenLayout((), 4, 3),
    "one patch": TokenLayout(("cls",), 1, 1),
}
every_layout = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)


def random_trace(layout: TokenLayout, layers: int = 3) -> AttentionTrace:
    scores = torch.randn(layers, 2, layout.token_count, layout.token_count, dtype=torch.float64)
    return trace_of((2 * scores).softmax(-1), layout)


def reference_trace() -> AttentionTrace:
    return trace_of(torch.from_numpy(REFERENCE["attention"]), TokenLayout(("cls",), 4, 4))


def tokens_of(token_map: object) -> torch.Tensor:
    assert hasattr(token_map, "prefix") and hasattr(token_map, "values")
    return torch.cat([torch.tensor(list(token_map.prefix.values())).double(), token_map.values.flatten()])


# Mass.


@pytest.mark.parametrize("head", range(3))
def test_dino_s_mask_is_reproduced(head: int) -> None:
    found = attention_mass(reference_trace(), head=head)
    assert np.array_equal(found.values.numpy().astype(bool), REFERENCE["dino_mask_0.6"][head])


@every_layout
@pytest.mark.parametrize("mass", [0.05, 0.3, 0.6, 0.999])
def test_the_mask_is_the_smallest_that_holds_the_mass(layout: TokenLayout, mass: float) -> None:
    trace = random_trace(layout)
    shares = attention(trace, 1, 0).values.flatten()
    shares = shares / shares.sum()
    inside = attention_mass(trace, 1, 0, mass=mass).values.flatten().bool()
    assert shares[inside].sum() >= mass - 1e-12
    assert shares[inside].sum() - shares[inside].min() < mass + 1e-12
    assert not inside.all() or layout.patch_count == 1 or mass > 0.9
    assert shares[inside].min() >= shares[~inside].max() if (~inside).any() else True


# Flow.


def test_the_flow_of_its_authors_code_is_reproduced() -> None:
    found = attention_flow(reference_trace())
    np.testing.assert_allclose(tokens_of(found), REFERENCE["attention_flow_cls"], atol=1e-5, rtol=0)


@every_layout
def test_the_flow_through_one_layer_is_its_row(layout: TokenLayout) -> None:
    trace = random_trace(layout, 1)
    matrix = (trace.fused(0) + torch.eye(layout.token_count)) / 2
    for query in ("patches", 0, layout.token_count - 1):
        tokens = layout.select(query)
        row = matrix[tokens].mean(0)
        if query == "patches":
            # Every patch sends an equal share, limited by the capacity of its edge.
            limit = torch.full_like(matrix[tokens], 1 / layout.patch_count)
            row = torch.minimum(matrix[tokens], limit).sum(0)
            row = row / row.sum()
        torch.testing.assert_close(tokens_of(attention_flow(trace, query=query)), row, atol=1e-6, rtol=0)


@every_layout
def test_flow_is_a_share_and_follows_from_the_start_layer(layout: TokenLayout) -> None:
    trace = random_trace(layout)
    flow = attention_flow(trace)
    assert float(tokens_of(flow).sum()) == pytest.approx(1, abs=1e-6)
    assert flow.values.shape == (layout.grid_height, layout.grid_width)
    above = AttentionTrace(trace.queries[1:], trace.keys[1:], 1.0, layout)
    torch.testing.assert_close(attention_flow(trace, start_layer=1).values, attention_flow(above).values)
    below = AttentionTrace(trace.queries[:2], trace.keys[:2], 1.0, layout)
    torch.testing.assert_close(attention_flow(trace, end_layer=1).values, attention_flow(below).values)
    if layout.token_count > 2:
        assert (attention_flow(trace, start_layer=-1).values - flow.values).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("most_patches", "cells"), [(1, (1, 1)), (4, (2, 2)), (6, (2, 3)), (24, (4, 6)), (100, (4, 6))]
)
def test_many_patches_are_pooled_into_cells(most_patches: int, cells: tuple[int, int]) -> None:
    layout = TokenLayout(("cls", "register 1"), 4, 6)
    trace = random_trace(layout)
    found = attention_flow(trace, most_patches)
    rows, columns = cells
    assert cells[0] * cells[1] <= most_patches
    blocks = found.values.view(rows, 4 // rows, columns, 6 // columns)
    assert torch.equal(blocks, blocks[:, :1, :, :1].expand_as(blocks))
    assert float(tokens_of(found).sum()) == pytest.approx(1, abs=1e-6)
    assert (f"patches in {rows}×{columns} cells" in found.description) == (most_patches < 24)
    if most_patches >= 24:
        torch.testing.assert_close(found.values, attention_flow(trace, 24).values)


@pytest.mark.parametrize(("most_patches", "side"), [(16, 3), (25, 5)])
def test_cells_of_one_size_count_double(most_patches: int, side: int) -> None:
    """Of 6×6 patches, 3×3 cells of 2×2 are better than 4×4 of uneven sizes, but not than 5×5."""
    found = attention_flow(random_trace(TokenLayout(("cls",), 6, 6)), most_patches)
    assert f"patches in {side}×{side} cells" in found.description


def test_pooling_keeps_what_cells_get_from_a_prefix_token() -> None:
    layout = TokenLayout(("cls",), 4, 6)
    trace = random_trace(layout, 1)
    exact, pooled = attention_flow(trace, 24), attention_flow(trace, 6)
    blocks = exact.values.view(2, 2, 3, 2).mean((1, 3), keepdim=True).expand(2, 2, 3, 2).reshape(4, 6)
    torch.testing.assert_close(pooled.values, blocks, atol=1e-6, rtol=0)


def test_progress_is_reported() -> None:
    trace = random_trace(LAYOUTS["CLS"])
    reports: list[Progress] = []
    attention_flow(trace, report=reports.append)
    assert reports == [Progress(done, 13) for done in range(1, 14)]


def test_a_mass_and_a_number_of_patches_that_are_none_are_refused() -> None:
    trace, alone = random_trace(LAYOUTS["no CLS"]), torch.zeros(1, 1, 5, 5, dtype=torch.float64)
    alone[..., 0] = 1
    wrong = {
        "most_patches = 0: expected a whole number of at least 1": lambda: attention_flow(trace, 0),
        ".*no patch gets any of it": lambda: attention_mass(trace_of(alone, TokenLayout(("cls",), 2, 2))),
    }
    for mass in (0.0, -0.1, 1.01):
        message = f"mass = {mass}: expected a number above 0 and at most 1"
        check_refusals(MethodError, {**wrong, message: lambda mass=mass: attention_mass(trace, mass=mass)})
