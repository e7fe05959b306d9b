"""Limits of the memory that the network of a file takes.

Layers may share tensors in a file, for example if weights are tied; in memory every layer has its own. A small file may
therefore need any amount, which is computed from the shapes before a tensor is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from traceback import clear_frames

import torch

from vitviz.attention.memory import is_out_of_memory
from vitviz.errors.kinds import LimitError

# The default limit is this size or this multiple of the file's size, whichever is more. Numbers of 16 bits take twice
# their size in memory, those of 8 bits four times.
MAX_BYTES = 2 * 2**30
MAX_EXPANSION = 8
# Limit of layers: each costs time and memory even without tensors.
MAX_DEPTH = 1000


def needed_bytes(network: torch.nn.Module) -> int:
    """Bytes of a network's weights in float32; the network may be on the meta device."""
    return 4 * sum(tensor.numel() for tensor in network.state_dict().values())


def check_bytes(name: str, needed: int, file_bytes: int, max_bytes: int | None) -> None:
    """Refuse a network that takes too much memory.

    Args:
        name: of the file in messages.
        needed: bytes of its network in memory.
        file_bytes: of the file and of others that belong to it.
        max_bytes: the limit; by default :data:`MAX_BYTES`, or :data:`MAX_EXPANSION` times the file's size.

    Raises:
        LimitError: the network needs more.
    """
    allowed = max(MAX_BYTES, MAX_EXPANSION * file_bytes) if max_bytes is None else max_bytes
    if needed > allowed:
        problem = f"{file_bytes:,} bytes in which its network's {needed:,} bytes of memory are shared or compressed"
        if max_bytes is not None:
            problem = f"its network takes {needed:,} bytes of memory"
        raise LimitError(f"{name}: {problem}; at most {allowed:,} are allowed; allow more by max_bytes={needed}")


@contextmanager
def memory_for(name: str, needed: int) -> Iterator[dict[str, torch.Tensor]]:
    """A dict for a network's tensors, which is emptied after an exception.

    Raises:
        LimitError: the machine runs out of memory in the block.
    """
    tensors: dict[str, torch.Tensor] = {}
    try:
        yield tensors
    except Exception as error:
        # The traceback keeps the tensors in its frames alive.
        tensors.clear()
        if not is_out_of_memory(error):
            raise
        clear_frames(error.__traceback__)
        raise LimitError(
            f"{name}: its network takes {needed:,} bytes of memory, and this machine has not enough free; choose a "
            "smaller model"
        ) from None
