"""Memory for large inputs: what runs out of it, tensors that are filled later, and what is given back.

The C library leaves free holes between the activations of a large input; they add half of its size, so they go back to
the system now and then.
"""

from __future__ import annotations

import ctypes
import errno
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from vitviz.errors.kinds import LimitError

# Of an activation whose holes are given back.
LARGE_BYTES = 2 * 2**20

# Messages of torch and the C++ library. On a CPU, torch raises no error type of its own for a failed allocation.
OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "bad_alloc", "out of memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error is a failed allocation."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and any(text in str(error) for text in OUT_OF_MEMORY)


@contextmanager
def enough_memory(task: str, smaller: str = "resolution") -> Iterator[None]:
    """Turns running out of memory into a :class:`vitviz.errors.kinds.LimitError` that names the task.

    Args:
        task: what needs the memory.
        smaller: what the user may choose a smaller one of.

    Raises:
        LimitError: the machine does not have enough free memory.
    """
    try:
        yield
    except (MemoryError, RuntimeError, OSError) as error:
        if not is_out_of_memory(error):
            raise
        raise LimitError(f"{task}: this machine has not enough memory free; choose a smaller {smaller}") from None


# Only glibc has malloc_trim; other C libraries do not need it or offer no such call.
_trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None


# A part of a module may run in inference mode, whose tensors the rest could not write to.
@torch.inference_mode(False)
def empty(shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    """An uninitialised, contiguous tensor with the device and type of ``like``."""
    return like.new_empty(shape)


def empty_record(shape: tuple[int, ...], like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Uninitialised queries and keys, ``"... layer head token dim"``.

    On a processor, keys are stored transposed, with the tokens contiguous: the product of a few queries with all keys
    is then fastest.
    """
    if not like.is_cpu:
        return empty(shape, like), empty(shape, like)
    *rows, tokens, dim = shape
    return empty(shape, like), empty((*rows, dim, tokens), like).transpose(-1, -2)


def release_free_memory() -> None:
    """Return the C library's free memory to the operating system."""
    if _trim is not None:
        _trim(0)


def trim_heap(activation: torch.Tensor, layer: int = 0, depth: int = 1) -> None:
    """Return the C library's free memory to the operating system, if an activation of this size is large.

    This happens after two layers only, at half and three quarters of the depth: returned memory must be cleared before
    it is used again, and the peak comes late, when most of the trace is filled.
    """
    if layer not in (depth // 2, 3 * depth // 4):
        return
    if activation.is_cpu and activation.nbytes >= LARGE_BYTES:
        release_free_memory()


def buffer_view(buffer: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """The start of a contiguous buffer as a contiguous tensor of this shape, which must not be larger."""
    return buffer.view(-1)[: math.prod(shape)].view(shape)


def to_device(tensors: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    """Tensors, joined along their first axis, on a device; on a graphics card without waiting for it."""
    if device.type != "cuda":
        return (tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))).to(device)
    if not all(tensor.is_cpu for tensor in tensors):
        return torch.cat([tensor.to(device) for tensor in tensors])
    shape = (sum(len(tensor) for tensor in tensors), *tensors[0].shape[1:])
    # Only from pinned memory does a copy go on by itself.
    pinned = torch.empty(shape, dtype=tensors[0].dtype, pin_memory=True)
    return torch.cat(list(tensors), out=pinned).to(device, non_blocking=True)


def without_neighbours(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy if it is part of a larger block of memory, all of which would enter a pickle."""
    return tensor.clone() if tensor.untyped_storage().nbytes() > tensor.nbytes else tensor
