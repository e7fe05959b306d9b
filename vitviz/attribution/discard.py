"""A layer's fused attention without its lowest entries, which are found exactly and without sorting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from vitviz.memory import empty
from vitviz.softmax import CHUNK_BYTES
from vitviz.trace import AttentionTrace, Chunks

# A matrix up to this size is held, with a copy for the selection; a larger one is computed three times instead.
HELD_BYTES = 256 * 2**20
_DIGIT = 16


@dataclass(frozen=True)
class Cut:
    """Which entries of a matrix are discarded.

    Args:
        value: all entries below are.
        ties: how many of the entries equal to it are, the first ones in reading order; all where it is None.
    """

    value: float
    ties: int | None = None

    def apply(self, chunks: Chunks, spare_first: bool = False) -> Iterator[tuple[slice, torch.Tensor]]:
        """Chunks ``"query key"`` of the matrix in reading order, with the discarded entries set to zero.

        Args:
            chunks: of the whole matrix.
            spare_first: leave the very first entry as it is.
        """
        left = self.ties
        for rows, chunk in chunks:
            kept = F.threshold(chunk, self.value, 0.0)
            if left is not None:
                left = self._spare_ties(chunk, kept, left)
            if spare_first and rows.start == 0:
                kept[0, 0] = chunk[0, 0]
            yield rows, kept

    def _spare_ties(self, chunk: torch.Tensor, kept: torch.Tensor, left: int) -> int:
        """Put back what equals the value in a chunk but for the first ``left``; returns how many of them are left."""
        equal = chunk == self.value
        # Most chunks have none, and to ask for that is cheaper than to look for their places.
        if not equal.any():
            return left
        places = equal.flatten().nonzero().squeeze(-1)
        kept.view(-1)[places[left:]] = self.value
        return max(0, left - len(places))


def kept_in_chunks(
    trace: AttentionTrace, layer: int, fusion: str, ratio: float, as_vit_explain: bool = False
) -> Chunks:
    """The fused attention of a layer in chunks ``"query key"``, its lowest entries set to zero.

    Args:
        trace: of one image.
        layer: counted from 0.
        fusion: of the heads.
        ratio: part of the entries that is discarded, rounded down to a whole number of them; of equal entries at the
            limit the first in reading order.
        as_vit_explain: spare the first entry, CLS to CLS; and discard those of equal entries that torch's topk takes,
            where the matrix is at most :data:`HELD_BYTES` large.
    """
    entries = trace.layout.token_count**2
    count = int(entries * ratio)
    if not count:
        return trace.fused_in_chunks(layer, fusion)
    if entries * trace.dtype.itemsize > HELD_BYTES:
        cut = cut_of_chunks(lambda: trace.fused_in_chunks(layer, fusion), count, trace.dtype)
        return cut.apply(trace.fused_in_chunks(layer, fusion), as_vit_explain)
    matrix = trace.fused(layer, fusion)
    cut = cut_of_matrix(matrix, count)
    if as_vit_explain and cut.ties is not None:
        lowest = matrix.flatten().topk(count, largest=False).indices
        matrix, cut = matrix.flatten().index_fill(0, lowest[lowest != 0], 0).view_as(matrix), Cut(0.0)
    return cut.apply(in_chunks(matrix), as_vit_explain)


def in_chunks(matrix: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor]]:
    """A few rows of a matrix ``"query key"`` at a time, so that what is done to them stays in the processor's cache."""
    count = max(1, CHUNK_BYTES // (4 * matrix.shape[1] * matrix.itemsize))
    for start in range(0, len(matrix), count):
        yield slice(start, min(start + count, len(matrix))), matrix[start : start + count]


def cut_of_matrix(matrix: torch.Tensor, count: int) -> Cut:
    """The cut that discards the ``count`` lowest entries, at least one, of a matrix without negative ones."""
    if matrix.device.type != "cpu":
        value = float(matrix.flatten().kthvalue(count).values)
        below, upto = int((matrix < value).sum()), int((matrix <= value).sum())
        return Cut(value, None if upto == count else count - below)
    # NumPy's selection is vectorised: a fifth of the time of torch's own, a seventieth of that of its topk.
    ordered = empty((matrix.numel(),), matrix).copy_(matrix.flatten()).numpy()
    ordered.partition(count - 1)
    value = ordered[count - 1]
    if not (ordered[count:] == value).any():
        return Cut(float(value))
    return Cut(float(value), int(np.count_nonzero(ordered[:count] == value)))


def cut_of_chunks(chunks: Callable[[], Chunks], count: int, dtype: torch.dtype) -> Cut:
    """The same of a matrix that is computed in chunks as often as asked: once for every two bytes of a number.

    Numbers that are not negative are ordered as their bits are. Each pass counts how often the next 16 bits occur.
    """
    integer = {torch.float32: torch.int32, torch.float64: torch.int64}[dtype]
    width, prefix, rank = 8 * dtype.itemsize, 0, count
    for shift in range(width - _DIGIT, -1, -_DIGIT):
        histogram = torch.zeros(2**_DIGIT, dtype=torch.int64)
        for _, chunk in chunks():
            bits = chunk.flatten().view(integer)
            if shift + _DIGIT < width:
                bits = bits[bits >> (shift + _DIGIT) == prefix]
            histogram += torch.bincount((bits >> shift) & (2**_DIGIT - 1), minlength=2**_DIGIT).cpu()
        upto = histogram.cumsum(0)
        digit = int(torch.searchsorted(upto, rank))
        rank -= int(upto[digit] - histogram[digit])
        prefix = prefix << _DIGIT | digit
    value = float(torch.tensor(prefix, dtype=integer).view(dtype))
    return Cut(value, None if rank == int(histogram[digit]) else rank)
