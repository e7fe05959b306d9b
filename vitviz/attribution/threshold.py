"""Discards the lowest entries of a layer's fused attention, with an exact threshold and without sorting all entries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from vitviz.attention.memory import empty
from vitviz.attention.softmax import CHUNK_BYTES
from vitviz.attention.trace import Chunks

# A matrix up to this size is held in memory; a larger one is computed three times.
MAX_HELD_BYTES = 256 * 2**20
# Of the numbers in a larger one, which are counted.
DIGIT_BITS = 16


@dataclass(frozen=True)
class Threshold:
    """The threshold up to which entries of a matrix are discarded.

    Args:
        value: all entries below it are discarded.
        ties: number of entries equal to it to discard, the first in reading order; None for all.
    """

    value: float
    ties: int | None = None

    def apply(self, chunks: Chunks, keep_cls_to_cls: bool = False) -> Iterator[tuple[slice, torch.Tensor]]:
        """Chunks ``"query key"`` of the matrix in reading order, with the discarded entries set to zero.

        Args:
            chunks: chunks of the whole matrix.
            keep_cls_to_cls: whether to keep the very first entry.
        """
        ties = self.ties
        for rows, chunk in chunks:
            remaining = F.threshold(chunk, self.value, 0.0)
            if ties is not None:
                ties = self._restore_ties(chunk, remaining, ties)
            if keep_cls_to_cls and rows.start == 0:
                remaining[0, 0] = chunk[0, 0]
            yield rows, remaining

    def _restore_ties(self, chunk: torch.Tensor, remaining: torch.Tensor, ties: int) -> int:
        """Restore all entries equal to the value except the first ``ties``; returns how many are still to discard."""
        equal = chunk == self.value
        # Most chunks have no ties, and a test for any is cheaper than a search.
        if not equal.any():
            return ties
        places = equal.flatten().nonzero().squeeze(-1)
        kept = places[ties:]
        remaining.view(-1)[kept] = chunk.flatten()[kept]
        return max(0, ties - len(places))


class FusedMatrix(NamedTuple):
    """A layer's fused matrix ``"query key"``, without negative entries, computed whole or in chunks on demand.

    ``like`` has its type and device.
    """

    tokens: int
    like: torch.Tensor
    matrix: Callable[[], torch.Tensor]
    chunks: Callable[[], Chunks]


def discard_in_chunks(
    fused: FusedMatrix,
    ratio: float,
    as_topk: bool = False,
    keep_cls_to_cls: bool = False,
) -> Chunks:
    """A fused matrix in chunks ``"query key"``, its lowest entries set to zero.

    Args:
        fused: fused matrix of a layer.
        ratio: share of the entries to discard, rounded down to a whole number; among equal entries, the first in
            reading order.
        as_topk: among equal entries, discard those that torch's topk returns, if the matrix is at most
            :data:`MAX_HELD_BYTES` large.
        keep_cls_to_cls: whether to keep the first entry, CLS to CLS.
    """
    entries = fused.tokens**2
    count = int(entries * ratio)
    if not count:
        return fused.chunks()
    if not fused.like.is_cpu:
        matrix = discard_without_waiting(fused.matrix(), count, as_topk, keep_cls_to_cls)
        return [(slice(0, fused.tokens), matrix)]
    if entries * fused.like.itemsize > MAX_HELD_BYTES:
        return chunks_threshold(fused.chunks, count, fused.like.itemsize).apply(fused.chunks(), keep_cls_to_cls)
    matrix = fused.matrix()
    threshold = matrix_threshold(matrix, count)
    if as_topk and threshold.ties is not None:
        lowest = matrix.flatten().topk(count, largest=False).indices
        lowest = lowest[lowest != 0] if keep_cls_to_cls else lowest
        matrix, threshold = matrix.flatten().index_fill(0, lowest, 0).view_as(matrix), Threshold(0.0)
    return threshold.apply(in_chunks(matrix), keep_cls_to_cls)


def discard_without_waiting(
    matrix: torch.Tensor, count: int, as_topk: bool = False, keep_cls_to_cls: bool = False
) -> torch.Tensor:
    """As :func:`discard_in_chunks`, for whole matrices ``"... query key"``: no number leaves the graphics card.

    It sorts all entries sooner than it answers a question about them.
    """
    entries = matrix.flatten(-2)
    if not count:
        return matrix
    if as_topk:
        remaining = entries.scatter(-1, entries.topk(count, largest=False).indices, 0)
    else:
        value = entries.sort(-1).values[..., count - 1, None]
        equal = entries == value
        ties = count - (entries < value).sum(-1, keepdim=True)
        is_lowest = (entries < value) | (equal & (equal.cumsum(-1) <= ties))
        remaining = entries.masked_fill(is_lowest, 0)
    if keep_cls_to_cls:
        remaining[..., 0] = entries[..., 0]
    return remaining.view_as(matrix)


def discard_bytes(tokens: int, itemsize: int) -> int:
    """The most bytes that :func:`discard_in_chunks` holds in addition to chunks: the matrix, and its copy."""
    nbytes = tokens**2 * itemsize
    return 2 * nbytes if nbytes <= MAX_HELD_BYTES else 0


def in_chunks(matrix: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor]]:
    """A matrix ``"query key"`` in chunks of rows that fit into the processor's cache."""
    count = max(1, CHUNK_BYTES // (4 * matrix.shape[1] * matrix.itemsize))
    for start in range(0, len(matrix), count):
        yield slice(start, min(start + count, len(matrix))), matrix[start : start + count]


def matrix_threshold(matrix: torch.Tensor, count: int) -> Threshold:
    """The threshold that discards the ``count`` lowest entries, at least one, of a matrix without negative entries."""
    # NumPy's vectorised partition takes a fifth of the time of torch's kthvalue, and a seventieth of topk's. It runs in
    # one thread, which also makes the copy, so that the copy is in its cache.
    entries = empty((matrix.numel(),), matrix).numpy()
    np.copyto(entries, _entries(matrix))
    entries.partition(count - 1)
    value = entries[count - 1]
    has_ties = bool((entries[count:] == value).any())
    return Threshold(float(value), int(np.count_nonzero(entries[:count] == value)) if has_ties else None)


def chunks_threshold(chunks: Callable[[], Chunks], count: int, itemsize: int) -> Threshold:
    """As :func:`matrix_threshold`, for a matrix in chunks ``"query key"``, which are computed once for each digit.

    The bits of numbers that are not negative order them. The highest digit of the threshold is that at which a
    histogram of digits reaches the count, and the next one that of the entries that begin with it.
    """
    prefix, shift = 0, 8 * itemsize
    while shift:
        shift -= DIGIT_BITS
        histogram = np.zeros(2**DIGIT_BITS, np.int64)
        for _, chunk in chunks():
            # Of zeros with a sign, too.
            digits = np.abs(_entries(chunk)).view(f"i{itemsize}") >> shift
            histogram += np.bincount(digits[digits >> DIGIT_BITS == prefix] % 2**DIGIT_BITS, minlength=2**DIGIT_BITS)
        below = histogram.cumsum()
        digit = int(np.searchsorted(below, count))
        count -= int(below[digit] - histogram[digit])
        prefix = prefix << DIGIT_BITS | digit
    value = np.array(prefix, f"i{itemsize}").view(f"f{itemsize}")
    return Threshold(float(value), None if count == histogram[digit] else count)


def _entries(chunk: torch.Tensor) -> np.ndarray:
    return chunk.detach().flatten().numpy()
