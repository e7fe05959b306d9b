"""Large tensors without the cost of their first touch.

Memory that is fresh from the operating system is cleared page by page when it is first written, which can take as long
as computing what is written there. So large blocks are asked for in huge pages, and used again. What the C library has
left between the activations of a large input is given back now and then, since it comes to half as much again.
"""

from __future__ import annotations

import ctypes
import math
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from vitviz.attention.precision import precise
from vitviz.errors.kinds import LimitError

BLOCK_BYTES = 2 * 2**20
IDLE_BYTES = 256 * 2**20
TOKEN_BLOCK = 256


# What torch and the C++ library say; on a processor, torch has no type of its own for it.
OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "bad_alloc", "out of memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error is a failed allocation."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in OUT_OF_MEMORY)


@contextmanager
def enough_memory(what: str) -> Iterator[None]:
    """Says of what runs out of memory within what it was.

    Raises:
        LimitError: the machine has not the memory for it; what was computed is let go of.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise LimitError(f"{what}: this machine has not enough memory free; choose a smaller resolution") from None


class _Lease(np.ndarray):
    """A block while somebody uses it; the block is given back when the last tensor on it is gone."""


class BlockPool:
    """Free blocks of memory, to be used again. Safe between threads.

    Args:
        idle_bytes: most that is held; the blocks that came back first leave.
    """

    def __init__(self, idle_bytes: int) -> None:
        self.idle_bytes = idle_bytes
        self._idle: dict[int, np.ndarray] = {}
        # Reentrant: the garbage collector may return a block while this thread requests one.
        self._lock = threading.RLock()

    @property
    def nbytes(self) -> int:
        """Bytes in free blocks."""
        with self._lock:
            return sum(block.nbytes for block in list(self._idle.values()))

    def take(self, nbytes: int) -> np.ndarray:
        """A block of at least this many bytes, uninitialised."""
        size = math.ceil(nbytes / BLOCK_BYTES) * BLOCK_BYTES
        with self._lock:
            known = next((known for known, block in list(self._idle.items()) if block.nbytes == size), None)
            block = None if known is None else self._idle.pop(known, None)
            if block is None:
                # NumPy asks Linux for huge pages, where torch does not.
                block = np.empty(size, np.uint8)
        lease = block.view(_Lease)
        weakref.finalize(lease, self._give_back, block).atexit = False
        return lease

    def _give_back(self, block: np.ndarray) -> None:
        with self._lock:
            self._idle[id(block)] = block
            while self.nbytes > self.idle_bytes:
                self._idle.pop(next(iter(self._idle), 0), None)


_pool = BlockPool(IDLE_BYTES)
# Only glibc has malloc_trim; other C libraries do not need it or offer no such call.
_trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None


def empty(shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    """An uninitialised, contiguous tensor on the device and of the type of another; a large one in used memory."""
    nbytes = math.prod(shape) * like.itemsize
    if like.device.type != "cpu" or nbytes < BLOCK_BYTES:
        return like.new_empty(shape)
    return torch.from_numpy(_pool.take(nbytes)[:nbytes]).view(like.dtype).view(shape)


def empty_record(
    shape: tuple[int, int, int, int], like: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """For queries and keys of a shape ``"layer head token dim"``, and logarithms of sums ``"layer head token"``.

    One dimension of all keys lies side by side: so the product of a few queries with all keys is fastest.
    """
    *rows, tokens, dim = shape
    keys = empty((*rows, dim, tokens), like).transpose(-1, -2)
    return empty(shape, like), keys, empty((*rows, tokens), precise(like))


def trim_heap(activation: torch.Tensor, layer: int = 0, depth: int = 1) -> None:
    """Give free memory back to the operating system, if activations are as large as this one and the C library can.

    Of many layers, only after that in the middle and that in the middle of the rest: what is given back has to be
    cleared when it is used again, and the peak is where most of a trace is there.
    """
    if layer not in (depth // 2, 3 * depth // 4):
        return
    if activation.device.type == "cpu" and activation.nbytes >= BLOCK_BYTES and _trim is not None:
        _trim(0)


def beginning(buffer: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """The first numbers of a contiguous buffer, as a contiguous tensor of a smaller shape or the same."""
    return buffer.view(-1)[: math.prod(shape)].view(shape)


def copy_tokens(source: torch.Tensor, into: torch.Tensor) -> None:
    """Copy ``"head token dim"`` into a tensor of the same shape, from and to any strides and to any type.

    A source that has its heads side by side in each token is read once per head. A few tokens at a time its pages stay
    known to the processor.
    """
    for start in range(0, source.shape[1], TOKEN_BLOCK):
        block = slice(start, start + TOKEN_BLOCK)
        into[:, block] = source[:, block]
