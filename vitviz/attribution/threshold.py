"""A layer's fused attention without its lowest entries, which are found exactly and without sorting."""

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
from vitviz.attention.softmax import CHUNK_BYTES
from vitviz.attention.threads import in_threads
from vitviz.attention.trace import AttentionTrace, Chunks

# A matrix up to this size is held in memory; a larger one is computed three times.
HELD_BYTES = 256 * 2**20
# Up to this many entries, a copy of the matrix is sorted; beyond, only the entries near the limit.
COPIED_ENTRIES = 2**19
# Primes: a step that shares a factor with the length of the rows would always meet the same columns.
SAMPLE_STEPS = (61, 59)


@dataclass(frozen=True)
class Threshold:
    """Which entries of a matrix are discarded.

    Args:
        value: all entries below are.
        ties: how many of the entries equal to it are, the first ones in reading order; all where it is None.
    """

    value: float
    ties: int | None = None

    def apply(self, chunks: Chunks, keep_cls_to_cls: bool = False) -> Iterator[tuple[slice, torch.Tensor]]:
        """Chunks ``"query key"`` of the matrix in reading order, with the discarded entries set to zero.

        Args:
            chunks: of the whole matrix.
            keep_cls_to_cls: leave the very first entry as it is.
        """
        left = self.ties
        for rows, chunk in chunks:
            remaining = F.threshold(chunk, self.value, 0.0)
            if left is not None:
                left = self._spare_ties(chunk, remaining, left)
            if keep_cls_to_cls and rows.start == 0:
                remaining[0, 0] = chunk[0, 0]
            yield rows, remaining

    def _spare_ties(self, chunk: torch.Tensor, remaining: torch.Tensor, left: int) -> int:
        """Put back what equals the value in a chunk but for the first ``left``; returns how many of them are left."""
        equal = chunk == self.value
        # Most chunks have no ties, and testing for one is cheaper than locating them.
        if not equal.any():
            return left
        places = equal.flatten().nonzero().squeeze(-1)
        remaining.view(-1)[places[left:]] = self.value
        return max(0, left - len(places))


class Fused(NamedTuple):
    """A layer's fused matrix ``"query key"``, without negative entries, to be had whole or in chunks."""

    tokens: int
    dtype: torch.dtype
    whole: Callable[[], torch.Tensor]
    chunks: Callable[[], Chunks]

    @classmethod
    def of(cls, trace: AttentionTrace, layer: int, fusion: str) -> Fused:
        """The fused attention weights of a layer."""
        return cls(
            trace.layout.token_count,
            trace.dtype,
            lambda: trace.fused(layer, fusion),
            lambda: trace.fused_in_chunks(layer, fusion),
        )


def kept_in_chunks(
    fused: Fused, ratio: float, as_topk: bool = False, keep_cls_to_cls: bool = False, cut: Threshold | None = None
) -> Chunks:
    """A fused matrix in chunks ``"query key"``, its lowest entries set to zero.

    Args:
        fused: of a layer.
        ratio: part of the entries that is discarded, rounded down to a whole number of them; of equal entries at the
            limit the first in reading order.
        as_topk: discard those of equal entries that torch's topk takes, where the matrix is at most
            :data:`HELD_BYTES` large.
        keep_cls_to_cls: keep the first entry, CLS to CLS.
        cut: as :func:`cuts_of_matrices` gives it, where it is known.
    """
    entries = fused.tokens**2
    count = int(entries * ratio)
    if not count:
        return fused.chunks()
    if entries * fused.dtype.itemsize > HELD_BYTES:
        return (cut or cut_of_chunks(fused.chunks, count)).apply(fused.chunks(), keep_cls_to_cls)
    matrix = fused.whole()
    cut = cut or cut_of_matrix(matrix, count)
    if as_topk and cut.ties is not None:
        lowest = matrix.flatten().topk(count, largest=False).indices
        lowest = lowest[lowest != 0] if keep_cls_to_cls else lowest
        matrix, cut = matrix.flatten().index_fill(0, lowest, 0).view_as(matrix), Threshold(0.0)
    return cut.apply(in_chunks(matrix), keep_cls_to_cls)


def discarding_bytes(tokens: int, itemsize: int) -> int:
    """The most bytes that :func:`kept_in_chunks` holds beside chunks: the matrix if it is held, its copy if small."""
    entries = tokens**2
    return entries * itemsize * ((entries * itemsize <= HELD_BYTES) + (entries <= COPIED_ENTRIES))


def cuts_of_matrices(matrices: Sequence[torch.Tensor], ratio: float) -> list[Threshold | None]:
    """The cut at a ratio for each of several matrices ``"query key"`` of one shape; None where nothing is discarded."""
    entries = matrices[0].numel()
    count = int(entries * ratio)
    if not count:
        return [None] * len(matrices)
    # Small matrices are done before another thread starts.
    run = in_threads if entries > COPIED_ENTRIES else map
    return list(run(partial(cut_of_matrix, count=count), matrices))


def in_chunks(matrix: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor]]:
    """A few rows of a matrix ``"query key"`` at a time, so that they stay in the processor's cache."""
    count = max(1, CHUNK_BYTES // (4 * matrix.shape[1] * matrix.itemsize))
    for start in range(0, len(matrix), count):
        yield slice(start, min(start + count, len(matrix))), matrix[start : start + count]


def cut_of_matrix(matrix: torch.Tensor, count: int) -> Threshold:
    """The cut that discards the ``count`` lowest entries, at least one, of a matrix without negative ones."""
    if matrix.device.type != "cpu":
        value = float(matrix.flatten().kthvalue(count).values)
        below, upto = int((matrix < value).sum()), int((matrix <= value).sum())
        return Threshold(value, None if upto == count else count - below)
    if matrix.numel() > COPIED_ENTRIES:
        return cut_of_chunks(lambda: in_chunks(matrix), count)
    # NumPy's selection is vectorised: a fifth of the time of torch's own, a seventieth of that of its topk. It runs in
    # one thread, whose cache the copy is in if the same thread makes it.
    ordered = empty((matrix.numel(),), matrix).numpy()
    np.copyto(ordered, _entries(matrix))
    return _cut_of_array(ordered, count)


def cut_of_chunks(chunks: Callable[[], Chunks], count: int) -> Threshold:
    """The same of a matrix that comes in chunks ``"query key"``, as often as asked: as a rule twice.

    A sample tells two entries between which the limit lies, very likely; so only what lies between them is gathered.
    Where the count shows that it does not, the same is done on the side where it does.
    """
    low, high = _bracket(chunks(), count)
    while True:
        upto, on_chunk = _split(chunks(), low, high)
        if upto < count <= upto + len(on_chunk):
            return _cut_of_array(on_chunk, count - upto)
        if count > upto:
            low, high = high, np.inf
            continue
        below = sum(int(np.count_nonzero(_entries(chunk) < low)) for _, chunk in chunks())
        if count > below:
            return Threshold(float(low), None if count == upto else count - below)
        low, high = -np.inf, low


def _cut_of_array(entries: np.ndarray, count: int) -> Threshold:
    """The cut that discards the ``count`` lowest of some entries, which are put in another order."""
    entries.partition(count - 1)
    value = entries[count - 1]
    if not (entries[count:] == value).any():
        return Threshold(float(value))
    return Threshold(float(value), int(np.count_nonzero(entries[:count] == value)))


def _entries(chunk: torch.Tensor) -> np.ndarray:
    return chunk.flatten().cpu().numpy()


def _bracket(chunks: Chunks, count: int) -> tuple[float, float]:
    """Two entries of a sample between which the ``count``-th lowest of all lies, as a rule."""
    parts: list[np.ndarray] = []
    total = skipped = 0
    for _, chunk in chunks:
        step = SAMPLE_STEPS[chunk.shape[1] % SAMPLE_STEPS[0] == 0]
        entries = _entries(chunk)
        parts.append(entries[skipped::step].copy())
        total += len(entries)
        skipped = (skipped - len(entries)) % step
    sample = np.concatenate(parts)
    share = count / total
    # Three standard deviations: the bound is missed about once in four hundred times.
    spread = 3 * math.sqrt(len(sample) * share * (1 - share)) + 1
    first, last = (int(len(sample) * share + side * spread) for side in (-1, 1))
    first, last = max(first, 0), min(last, len(sample) - 1)
    # Vectorised, where the selection of two entries is not.
    sample.sort()
    return sample[first], sample[last]


def _split(chunks: Chunks, low: float, high: float) -> tuple[int, np.ndarray]:
    """How many entries are at most ``low``, and those between it and ``high``, without either."""
    upto = 0
    parts: list[np.ndarray] = []
    for _, chunk in chunks:
        entries = _entries(chunk)
        above = entries > low
        upto += len(entries) - int(np.count_nonzero(above))
        above &= entries < high
        # Gathering by indices takes half the time of gathering by a mask.
        parts.append(entries[np.flatnonzero(above)])
    return upto, np.concatenate(parts)
