"""The lowest entries are those that a full sort finds, however the matrix is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch

from tests.support import traces
from tests.support.attention import without_lowest
from tests.support.pairs import every_pair
from vitviz import AttentionTrace, TokenLayout
from vitviz.attention import softmax
from vitviz.attention.softmax import HEAD_FUSIONS
from vitviz.attention.trace import Chunks
from vitviz.attribution import threshold as discard
from vitviz.attribution.threshold import discard_in_chunks as kept_of_matrix
from vitviz.attribution.threshold import discard_without_waiting, matrix_threshold

Make = Callable[[], torch.Tensor]

TYPES = (torch.float32, torch.float64)


def without_lowest_as_vit_explain(matrix: torch.Tensor, count: int) -> torch.Tensor:
    """The code of vit_rollout.py in jacobgil/vit-explain, for one image."""
    flat = matrix.clone().view(1, -1)
    _, indices = flat.topk(count, -1, False)
    indices = indices[indices != 0]
    flat[0, indices] = 0
    return flat.view(matrix.shape)


def split(matrix: torch.Tensor, rows: int) -> Iterator[tuple[slice, torch.Tensor]]:
    for start in range(0, len(matrix), rows):
        tokens = slice(start, min(start + rows, len(matrix)))
        yield tokens, matrix[tokens]


def joined(chunks: Iterator[tuple[slice, torch.Tensor]], rows: int) -> torch.Tensor:
    """Chunks as one matrix; they must be in reading order and leave nothing out."""
    joined_chunks, start = [], 0
    for tokens, chunk in chunks:
        assert tokens.start == start and len(chunk) == tokens.stop - start
        joined_chunks.append(chunk.clone())
        start = tokens.stop
    assert start == rows
    return torch.cat(joined_chunks)


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


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("rows", [2, 13])
def test_the_threshold_is_that_of_a_full_sort(name: str, dtype: torch.dtype, rows: int) -> None:
    matrix = MATRICES[name]().to(dtype)
    before = matrix.clone()
    for count in counts(matrix.numel()):
        expected = without_lowest(matrix, count)
        threshold = matrix_threshold(matrix, count)
        assert torch.equal(joined(threshold.apply(split(matrix, rows)), len(matrix)), expected)
        assert torch.equal(discard_without_waiting(matrix, count), expected)
        # Fused matrices are cached, so they must not change.
        assert torch.equal(matrix, before)


@pytest.mark.parametrize("count", [1, 1000, 45_000, 89_999, 90_000])
def test_the_threshold_of_many_entries_is_the_last_that_goes(count: int) -> None:
    matrix = torch.rand(300, 300)
    assert matrix_threshold(matrix, count).value == float(matrix.flatten().sort().values[count - 1])


def test_a_graphics_card_discards_from_each_matrix_and_spares_the_first_entry() -> None:
    torch.manual_seed(0)
    matrices = torch.rand(3, 6, 6).round(decimals=1)
    matrices[:, 0, 0] = 0.01
    for count in (1, 18, 35):
        found = discard_without_waiting(matrices, count)
        assert torch.equal(found, torch.stack([without_lowest(matrix, count) for matrix in matrices]))
        spared = discard_without_waiting(matrices, count, as_topk=True, keep_cls_to_cls=True)
        assert (spared[:, 0, 0] == matrices[:, 0, 0]).all()
        assert ((spared == 0).sum((-1, -2)) >= count - 1).all()
    assert torch.equal(discard_without_waiting(matrices, 0), matrices)


# Traces.


def discard_in_chunks(
    trace: AttentionTrace, layer: int, fusion: str, ratio: float, as_vit_explain: bool = False
) -> Chunks:
    return kept_of_matrix(trace.fused(layer, fusion), ratio, as_vit_explain, as_vit_explain)


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


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three query tokens at a time, of a trace as of a matrix."""
    monkeypatch.setattr(softmax, "CHUNK_BYTES", 3 * 3 * TOKENS * 8)
    monkeypatch.setattr(discard, "CHUNK_BYTES", 4 * 3 * TOKENS * 8)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("reference", [without_lowest, without_lowest_as_vit_explain])
@every_pair(make=TRACES, fusion=list(HEAD_FUSIONS), ratio=RATIOS, dtype=TYPES)
def test_the_entries_of_a_layer_that_go_are_those_of_a_full_sort_or_of_topk(
    make: Make, fusion: str, ratio: float, dtype: torch.dtype, reference: Callable[[torch.Tensor, int], torch.Tensor]
) -> None:
    trace, as_vit_explain = trace_of(make().to(dtype)), reference is without_lowest_as_vit_explain
    for layer in range(2):
        matrix = trace.fused(layer, fusion)
        expected = reference(matrix, int(TOKENS**2 * ratio))
        assert torch.equal(joined(discard_in_chunks(trace, layer, fusion, ratio, as_vit_explain), TOKENS), expected)
        # vit-explain spares the first entry.
        assert not as_vit_explain or expected[0, 0] == matrix[0, 0] > 0


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("as_vit_explain", [False, True])
@every_trace
def test_a_matrix_that_is_kept_is_not_changed(make: Make, as_vit_explain: bool) -> None:
    plain = trace_of(make())
    trace = AttentionTrace(plain.queries, plain.keys, 1.0, LAYOUT, keep_bytes=10**6)
    cached = trace.fused(0, "max")
    before = cached.clone()
    found = joined(discard_in_chunks(trace, 0, "max", 0.9, as_vit_explain), TOKENS)
    assert torch.equal(found, joined(discard_in_chunks(plain, 0, "max", 0.9, as_vit_explain), TOKENS))
    assert trace.fused(0, "max") is cached and torch.equal(cached, before)
