"""Discards the lowest entries of a layer's fused attention, with an exact threshold and without sorting all entries."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from vitviz.attention.memory import empty
from vitviz.attention.precision import precise
from vitviz.attention.softmax import CHUNK_BYTES, HeadFusion
from vitviz.attention.trace import AttentionTrace, Chunks
from vitviz.system.threads import in_threads

# A matrix up to this size is held in memory; a larger one is computed three times.
MAX_HELD_BYTES = 256 * 2**20
# Up to this many entries, a copy of the whole matrix is partitioned; beyond, only the entries near the threshold.
MAX_COPIED_ENTRIES = 2**19
# Primes, since a step that divides the length of the rows would sample the same columns in every row.
SAMPLE_STEPS = (61, 59)


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

    @classmethod
    def of(cls, trace: AttentionTrace, layer: int, fusion: HeadFusion) -> FusedMatrix:
        """The fused attention weights of a layer."""
        return cls(
            trace.layout.token_count,
            precise(trace.keys[:0]),
            lambda: trace.fused(layer, fusion),
            lambda: trace.fused_in_chunks(layer, fusion),
        )


def discard_in_chunks(
    fused: FusedMatrix,
    ratio: float,
    as_topk: bool = False,
    keep_cls_to_cls: bool = False,
    threshold: Threshold | None = None,
) -> Chunks:
    """A fused matrix in chunks ``"query key"``, its lowest entries set to zero.

    Args:
        fused: fused matrix of a layer.
        ratio: share of the entries to discard, rounded down to a whole number; among equal entries, the first in
            reading order.
        as_topk: among equal entries, discard those that torch's topk returns, if the matrix is at most
            :data:`MAX_HELD_BYTES` large.
        keep_cls_to_cls: whether to keep the first entry, CLS to CLS.
        threshold: from :func:`matrix_thresholds`, if known.
    """
    entries = fused.tokens**2
    count = int(entries * ratio)
    if not count:
        return fused.chunks()
    if not fused.like.is_cpu:
        matrix = discard_without_waiting(fused.matrix(), count, as_topk, keep_cls_to_cls)
        return [(slice(0, fused.tokens), matrix)]
    if entries * fused.like.itemsize > MAX_HELD_BYTES:
        return (threshold or chunks_threshold(fused.chunks, count)).apply(fused.chunks(), keep_cls_to_cls)
    matrix = fused.matrix()
    threshold = threshold or matrix_threshold(matrix, count)
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
    entries = tokens**2
    return entries * itemsize * ((entries * itemsize <= MAX_HELD_BYTES) + (entries <= MAX_COPIED_ENTRIES))


def matrix_thresholds(matrices: Sequence[torch.Tensor], ratio: float) -> list[Threshold | None]:
    """The thresholds at a ratio for matrices ``"query key"`` of one shape; None where none is needed.

    That is, if nothing is to be discarded, and on a graphics card.
    """
    entries = matrices[0].numel()
    count = int(entries * ratio)
    if not count or not matrices[0].is_cpu:
        return [None] * len(matrices)
    # Small matrices are finished before another thread has started.
    run = in_threads if entries > MAX_COPIED_ENTRIES else map
    return list(run(partial(matrix_threshold, count=count), matrices))


def in_chunks(matrix: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor]]:
    """A matrix ``"query key"`` in chunks of rows that fit into the processor's cache."""
    count = max(1, CHUNK_BYTES // (4 * matrix.shape[1] * matrix.itemsize))
    for start in range(0, len(matrix), count):
        yield slice(start, min(start + count, len(matrix))), matrix[start : start + count]


def matrix_threshold(matrix: torch.Tensor, count: int) -> Threshold:
    """The threshold that discards the ``count`` lowest entries, at least one, of a matrix without negative entries."""
    if matrix.numel() > MAX_COPIED_ENTRIES:
        return chunks_threshold(lambda: in_chunks(matrix), count)
    # NumPy's vectorised partition takes a fifth of the time of torch's kthvalue, and a seventieth of topk's. It runs in
    # one thread, which also makes the copy, so that the copy is in its cache.
    entries = empty((matrix.numel(),), matrix).numpy()
    np.copyto(entries, _entries(matrix))
    return _array_threshold(entries, count)


def chunks_threshold(chunks: Callable[[], Chunks], count: int) -> Threshold:
    """As :func:`matrix_threshold`, for a matrix in chunks ``"query key"``, which are computed usually twice.

    A sample yields two bounds between which the threshold very likely lies, so only entries between them are gathered.
    If the count shows that it lies outside, the search continues on that side.
    """
    low, high = _bracket(chunks(), count)
    while True:
        upto, entries = _split(chunks(), low, high)
        if upto < count <= upto + len(entries):
            return _array_threshold(entries, count - upto)
        if count > upto:
            low, high = high, np.inf
            continue
        below = sum(int(np.count_nonzero(_entries(chunk) < low)) for _, chunk in chunks())
        if count > below:
            return Threshold(float(low), None if count == upto else count - below)
        low, high = -np.inf, low


def _array_threshold(entries: np.ndarray, count: int) -> Threshold:
    """The threshold that discards the ``count`` lowest of some entries, which it reorders."""
    entries.partition(count - 1)
    value = entries[count - 1]
    if not (entries[count:] == value).any():
        return Threshold(float(value))
    return Threshold(float(value), int(np.count_nonzero(entries[:count] == value)))


def _entries(chunk: torch.Tensor) -> np.ndarray:
    return chunk.detach().flatten().numpy()


def _bracket(chunks: Chunks, count: int) -> tuple[float, float]:
    """Two entries of a sample between which the ``count``-th lowest entry usually lies."""
    samples: list[np.ndarray] = []
    total = skipped = 0
    for _, chunk in chunks:
        step = SAMPLE_STEPS[chunk.shape[1] % SAMPLE_STEPS[0] == 0]
        entries = _entries(chunk)
        samples.append(entries[skipped::step].copy())
        total += len(entries)
        skipped = (skipped - len(entries)) % step
    sample = np.concatenate(samples)
    share = count / total
    # Three standard deviations: the threshold lies outside about once in four hundred times.
    spread = 3 * math.sqrt(len(sample) * share * (1 - share)) + 1
    first, last = (int(len(sample) * share + side * spread) for side in (-1, 1))
    first, last = max(first, 0), min(last, len(sample) - 1)
    # NumPy's sort is vectorised, but not its selection of two entries.
    sample.sort()
    return sample[first], sample[last]


def _split(chunks: Chunks, low: float, high: float) -> tuple[int, np.ndarray]:
    """The number of entries up to ``low``, and the entries between ``low`` and ``high``, both excluded."""
    upto = 0
    inside: list[np.ndarray] = []
    for _, chunk in chunks:
        entries = _entries(chunk)
        above = entries > low
        upto += len(entries) - int(np.count_nonzero(above))
        above &= entries < high
        # Gathering by indices takes half the time of gathering by a mask.
        inside.append(entries[np.flatnonzero(above)])
    return upto, np.concatenate(inside)
