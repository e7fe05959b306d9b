"""The lowest entries are those that a full sort finds, however the matrix is computed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch

from tests.support import traces
from tests.support.attention import without_lowest
from tests.support.pairs import every_pair
from vitviz import AttentionTrace, TokenLayout
from vitviz.attention.softmax import HEAD_FUSIONS
from vitviz.attribution.threshold import discard

Make = Callable[[], torch.Tensor]

TYPES = (torch.float32, torch.float64)


def without_lowest_as_vit_explain(matrix: torch.Tensor, count: int) -> torch.Tensor:
    """The code of vit_rollout.py in jacobgil/vit-explain, for one image."""
    flat = matrix.clone().view(1, -1)
    _, indices = flat.topk(count, -1, False)
    indices = indices[indices != 0]
    flat[0, indices] = 0
    return flat.view(matrix.shape)


MATRICES: dict[str, Make] = {
    "random": lambda: torch.rand(13, 13),
    "sharp attention": lambda: (5 * torch.randn(13, 13)).softmax(-1),
    "many ties": lambda: (torch.rand(13, 13) * 8).round() / 8,
    "two values": lambda: torch.rand(13, 13).round() + 0.5,
    "half zeros": lambda: torch.rand(13, 13).sub(0.5).clamp(min=0),
    "rows alike": lambda: torch.rand(1, 13).expand(13, 13).contiguous(),
    "constant": lambda: torch.full((13, 13), 1 / 13),
    "all zeros": lambda: torch.zeros(13, 13),
    "zeros with a sign": lambda: torch.tensor([0.0, -0.0, 1.0])[torch.randint(3, (13, 13))],
    "one entry": lambda: torch.tensor([[0.25]]),
    "neighbouring numbers": lambda: (0x3F000000 + torch.randint(0, 9, (13, 13))).int().view(torch.float32),
    "many magnitudes": lambda: 10 ** (torch.rand(13, 13) * 60 - 44),
}


def counts(entries: int) -> list[int]:
    return sorted(
        {1, max(1, entries // 3), max(1, entries // 2), max(1, int(entries * 0.9)), max(1, entries - 1), entries}
    )


def kept(matrix: torch.Tensor, count: int, *options: bool) -> torch.Tensor:
    """What is left of a matrix, or of several, without this many entries of each."""
    [(rows, remaining)] = discard(matrix, (count + 0.5) / matrix.flatten(-2).shape[-1], *options)
    assert rows == slice(0, matrix.shape[-2])
    return remaining


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_the_entries_that_go_are_those_of_a_full_sort(name: str, dtype: torch.dtype) -> None:
    matrix = MATRICES[name]().to(dtype)
    before = matrix.clone()
    for count in [0, *counts(matrix.numel())]:
        expected = without_lowest(matrix, count) if count else matrix
        assert torch.equal(kept(matrix, count), expected)
        # As on a graphics card.
        assert torch.equal(kept(torch.stack([matrix, matrix]), count), torch.stack([expected, expected]))
        # Fused matrices are cached, so they must not change.
        assert torch.equal(matrix, before)


@pytest.mark.parametrize("count", [1, 1000, 45_000, 89_999, 90_000])
def test_of_many_entries_as_many_go_as_are_asked_for(count: int) -> None:
    matrix = torch.rand(300, 300)
    assert torch.equal(kept(matrix, count), without_lowest(matrix, count))


def test_the_first_entry_of_each_of_several_is_spared() -> None:
    torch.manual_seed(0)
    matrices = torch.rand(3, 6, 6).round(decimals=1)
    matrices[:, 0, 0] = 0.01
    for count in (1, 18, 35):
        spared = kept(matrices, count, True, True)
        assert (spared[:, 0, 0] == matrices[:, 0, 0]).all()
        assert ((spared == 0).sum((-1, -2)) >= count - 1).all()


# Traces.


def of_layer(trace: AttentionTrace, layer: int, fusion: str, ratio: float, as_vit_explain: bool) -> torch.Tensor:
    [(_, remaining)] = discard(trace.fused(layer, fusion), ratio, as_vit_explain, as_vit_explain)
    return remaining


LAYOUT = TokenLayout(("cls", "register 1"), 3, 4)
TOKENS = LAYOUT.token_count
trace_of = partial(traces.trace_of, layout=LAYOUT)


def cls_sees_itself_least() -> torch.Tensor:
    attention = (2 * torch.randn(2, 3, TOKENS, TOKENS)).softmax(-1)
    attention[..., 0, 0] = 1e-4
    return attention


TRACES: dict[str, Make] = {
    "random": lambda: (2 * torch.randn(2, 3, TOKENS, TOKENS)).softmax(-1),
    "CLS sees itself least": cls_sees_itself_least,
    "uniform": lambda: torch.full((2, 3, TOKENS, TOKENS), 1 / TOKENS),
    "few numbers": lambda: torch.randint(1, 4, (2, 1, 1, TOKENS)).float().expand(2, 3, TOKENS, TOKENS),
    "CLS sees least": lambda: torch.tensor([1.0] * 7 + [2.0] * 7).expand(2, 3, TOKENS, TOKENS).contiguous(),
}
every_trace = pytest.mark.parametrize("make", TRACES.values(), ids=TRACES)
RATIOS = (1 / TOKENS**2, 0.3, 0.5, 0.9, 0.999)


@pytest.mark.parametrize("reference", [without_lowest, without_lowest_as_vit_explain])
@every_pair(make=TRACES, fusion=list(HEAD_FUSIONS), ratio=RATIOS, dtype=TYPES)
def test_the_entries_of_a_layer_that_go_are_those_of_a_full_sort_or_of_topk(
    make: Make, fusion: str, ratio: float, dtype: torch.dtype, reference: Callable[[torch.Tensor, int], torch.Tensor]
) -> None:
    trace, as_vit_explain = trace_of(make().to(dtype)), reference is without_lowest_as_vit_explain
    for layer in range(2):
        matrix = trace.fused(layer, fusion)
        expected = reference(matrix, int(TOKENS**2 * ratio))
        assert torch.equal(of_layer(trace, layer, fusion, ratio, as_vit_explain), expected)
        # vit-explain spares the first entry.
        assert not as_vit_explain or expected[0, 0] == matrix[0, 0] > 0


@pytest.mark.parametrize("as_vit_explain", [False, True])
@every_trace
def test_a_matrix_that_is_kept_is_not_changed(make: Make, as_vit_explain: bool) -> None:
    plain = trace_of(make())
    trace = AttentionTrace(plain.queries, plain.keys, 1.0, LAYOUT, keep_bytes=10**6)
    cached = trace.fused(0, "max")
    before = cached.clone()
    found = of_layer(trace, 0, "max", 0.9, as_vit_explain)
    assert torch.equal(found, of_layer(plain, 0, "max", 0.9, as_vit_explain))
    assert trace.fused(0, "max") is cached and torch.equal(cached, before)
