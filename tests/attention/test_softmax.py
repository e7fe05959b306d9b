"""Chunks of a few query tokens give the same as all at once, in buffers of bounded size."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F

from tests.support.comparison import closeness
from tests.support.pairs import every_pair
from vitviz.attention import memory, softmax
from vitviz.attention.softmax import HEAD_FUSIONS, attend, fused_in_chunks, weights_in_chunks

close = closeness(any_type=True)

HEADS, TOKENS, DIM, SCALE = 3, 11, 4, 0.7
TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-12}
both_types = pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
with_and_without_bias = pytest.mark.parametrize("biased", [False, True], ids=["no bias", "bias"])
# Limits of a chunk: a number of rows, and further bytes.
CHUNKS = {
    "less than a row": (0, 1),
    "one row": (1, 0),
    "the last chunk smaller": (4, 5),
    "all but one row": (10, 0),
    "all rows": (11, 0),
    "more than all rows": (100, 0),
}


class Operands(NamedTuple):
    queries: torch.Tensor
    keys: torch.Tensor
    bias: torch.Tensor | None

    @property
    def weights(self) -> torch.Tensor:
        """Attention weights in double precision, from the definition."""
        exponentials = (self.scores - self.scores.amax(-1, keepdim=True)).exp()
        return exponentials / exponentials.sum(-1, keepdim=True)

    @property
    def scores(self) -> torch.Tensor:
        scores = torch.einsum("hqd, hkd -> hqk", self.queries.double(), self.keys.double()) * SCALE
        return scores if self.bias is None else scores + self.bias.double()


def random_operands(dtype: torch.dtype, biased: bool) -> Operands:
    """Sharp attention, strided like slices of a projection. The bias is the same for all heads."""
    projected = 2 * torch.randn(TOKENS, 2, HEADS, DIM, dtype=dtype)
    queries, keys = projected.permute(1, 2, 0, 3)
    assert not queries.is_contiguous()
    bias = torch.randn(TOKENS, TOKENS, dtype=dtype).expand(HEADS, -1, -1) if biased else None
    return Operands(queries, keys, bias)


def limit(monkeypatch: pytest.MonkeyPatch, rows: int, more: int, dtype: torch.dtype) -> int:
    """Limit a chunk to ``rows`` rows and ``more`` bytes; returns the limit in bytes."""
    size = rows * HEADS * TOKENS * dtype.itemsize + more
    monkeypatch.setattr(softmax, "CHUNK_BYTES", size)
    return size


@every_pair(
    limits=CHUNKS,
    rows=[slice(None), slice(0, 3), slice(3, 9), slice(10, 11), slice(8, 100), slice(-2, None), slice(5, 5)],
    dtype=list(TOLERANCES),
    biased=[False, True],
    sums_known=[False, True],
)
def test_chunks_are_the_rows_of_the_whole(
    monkeypatch: pytest.MonkeyPatch,
    limits: tuple[int, int],
    rows: slice,
    dtype: torch.dtype,
    biased: bool,
    sums_known: bool,
) -> None:
    limit(monkeypatch, *limits, dtype)
    operands = random_operands(dtype, biased)
    log_sums = operands.scores.logsumexp(-1).to(dtype) if sums_known else None
    given = [tensor for tensor in (*operands, log_sums) if tensor is not None]
    before = [tensor.clone() for tensor in given]
    places, found = [], [torch.empty(HEADS, 0, TOKENS, dtype=dtype)]
    for tokens, weights in weights_in_chunks(*operands[:2], SCALE, operands.bias, rows, log_sums):
        assert weights.dtype == dtype and weights.is_contiguous()
        places.append(range(TOKENS)[tokens])
        found.append(weights.clone())
    assert all(map(torch.equal, given, before)), "the operands changed"
    asked, at_once = range(TOKENS)[rows], max(1, limits[0])
    assert places == [asked[start : start + at_once] for start in range(0, len(asked), at_once)]
    close(torch.cat(found, 1), operands.weights[:, rows], TOLERANCES[dtype])


@both_types
@with_and_without_bias
@pytest.mark.parametrize("sums_known", [False, True], ids=["softmax", "known sums"])
@pytest.mark.parametrize("fusion", HEAD_FUSIONS)
def test_fused_chunks_are_the_fused_whole(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, biased: bool, sums_known: bool, fusion: str
) -> None:
    limit(monkeypatch, 2, 0, dtype)
    operands = random_operands(dtype, biased)
    log_sums = operands.scores.logsumexp(-1).to(dtype) if sums_known else None
    chunks = fused_in_chunks(fusion, *operands[:2], SCALE, operands.bias, slice(3, 9), log_sums)
    found = [chunk for _, chunk in chunks]
    expected = HEAD_FUSIONS[fusion](operands.weights, 0)[3:9]
    close(torch.cat(found), expected, TOLERANCES[dtype])
    assert len(found) == 3


@pytest.mark.parametrize("limits", CHUNKS.values(), ids=CHUNKS)
@both_types
@pytest.mark.parametrize(("sums_known", "count"), [(False, 2), (True, 1)], ids=["softmax", "known sums"])
def test_no_buffer_is_larger_than_a_chunk_may_be(
    monkeypatch: pytest.MonkeyPatch, limits: tuple[int, int], dtype: torch.dtype, sums_known: bool, count: int
) -> None:
    max_bytes = max(limit(monkeypatch, *limits, dtype), HEADS * TOKENS * dtype.itemsize)
    allocated: list[torch.Tensor] = []

    def spy(shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
        allocated.append(memory.empty(shape, like))
        return allocated[-1]

    monkeypatch.setattr(softmax, "empty", spy)
    operands = random_operands(dtype, True)
    log_sums = operands.scores.logsumexp(-1).to(dtype) if sums_known else None
    places = set()
    for _, weights in weights_in_chunks(*operands[:2], SCALE, operands.bias, log_sums=log_sums):
        places.add(weights.data_ptr())
    assert len(allocated) == count
    assert all(buffer.nbytes <= max_bytes for buffer in allocated)
    # The chunks are views of these buffers.
    assert len(places) == 1 and places <= {buffer.data_ptr() for buffer in allocated}


# The fused kernel.

LAYOUTS = {"contiguous": (0, 1, 2, 3), "heads side by side in a token": (0, 2, 1, 3), "tokens first": (2, 0, 1, 3)}
every_layout = pytest.mark.parametrize("order", LAYOUTS.values(), ids=LAYOUTS)


def batch(order: tuple[int, ...], dtype: torch.dtype, dim: int = 8) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values ``"batch head token dim"``, of 2 images, 3 heads, 40 tokens, in an order in memory."""
    shape = (2, 3, 40, dim)
    places = [order.index(axis) for axis in range(4)]
    queries, keys, values = (
        (2 * torch.randn([shape[axis] for axis in order], dtype=dtype)).permute(places) for _ in range(3)
    )
    assert queries.shape == shape
    return queries, keys, values


@every_pair(order=LAYOUTS, dtype=list(TOLERANCES), dim=[1, 8, 33], count=[1, 7, 40])
def test_attention_equals_torchs_to_the_bit_and_returns_its_log_sums(
    order: tuple[int, ...], dtype: torch.dtype, dim: int, count: int
) -> None:
    queries, keys, values = batch(order, dtype, dim)
    queries, scale = queries[:, :, :count], dim**-0.5
    with torch.no_grad():
        output, log_sums = attend(queries, keys, values, scale)
        assert torch.equal(output, F.scaled_dot_product_attention(queries, keys, values, scale=scale))
    assert log_sums is not None and log_sums.dtype == dtype
    scores = torch.einsum("bhqd, bhkd -> bhqk", queries.double(), keys.double()) * scale
    close(log_sums, scores.logsumexp(-1), 1e-5)
    close(output, scores.softmax(-1) @ values.double(), TOLERANCES[dtype])


@every_layout
def test_the_gradients_of_attention_are_torchs(order: tuple[int, ...]) -> None:
    operands = [tensor.detach().requires_grad_() for tensor in batch(order, torch.float64)]
    output, log_sums = attend(operands[0], operands[1], operands[2], SCALE)
    expected = F.scaled_dot_product_attention(operands[0], operands[1], operands[2], scale=SCALE)
    assert torch.equal(output, expected)
    # The log sums carry no graph, so keeping them does not keep the operands.
    assert log_sums is None or not log_sums.requires_grad
    weight = torch.randn_like(output)
    found = torch.autograd.grad((output * weight).sum(), operands)
    for gradient, other in zip(found, torch.autograd.grad((expected * weight).sum(), operands), strict=True):
        torch.testing.assert_close(gradient, other, atol=1e-12, rtol=0)


def test_a_device_without_a_known_kernel_attends_as_torch_does_and_returns_no_log_sums() -> None:
    tensors = [tensor.to("meta") for tensor in batch((0, 1, 2, 3), torch.float32)]
    output, log_sums = attend(*tensors, SCALE)
    assert output.shape == tensors[0].shape and log_sums is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_returns_no_log_sums(dtype: torch.dtype) -> None:
    queries, keys, values = batch((0, 1, 2, 3), torch.float32)
    with torch.no_grad():
        for inputs in ((queries, keys, values), (queries.to(dtype), keys.to(dtype), values.to(dtype))):
            with torch.autocast("cpu", dtype):
                output, log_sums = attend(*inputs, SCALE)
                expected = F.scaled_dot_product_attention(*inputs, scale=SCALE)
            assert log_sums is None
            assert output.dtype == dtype and torch.equal(output, expected)
        inputs = queries.to(dtype), keys.to(dtype), values.to(dtype)
        output, log_sums = attend(*inputs, SCALE)
        assert log_sums is None
        assert output.dtype == dtype and torch.equal(output, F.scaled_dot_product_attention(*inputs, scale=SCALE))
