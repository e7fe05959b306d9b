"""How much memory the network of a file may take.

Layers may share tensors in a file, as they do where weights are tied; in memory every layer has its own. So a small
file may ask for any amount, which is computed from shapes before a tensor is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from traceback import clear_frames

import torch

from vitviz.attention.memory import is_out_of_memory
from vitviz.errors.kinds import LimitError

# Without a limit of the caller's: this much, or so many times the file's own size, whichever is more. Numbers of 16
# bits take twice their size, those of 8 bits four times.
MAX_BYTES = 2 * 2**30
MAX_EXPANSION = 8
# A layer costs time and memory before its tensors are there.
MAX_DEPTH = 1000


def needed_bytes(network: torch.nn.Module) -> int:
    """Memory that a network takes with float32 weights; it may be without memory yet."""
    return 4 * sum(tensor.numel() for tensor in network.state_dict().values())


def default_bytes(file_bytes: int) -> int:
    """Memory that the network of a file of this size may take where nobody says it."""
    return max(MAX_BYTES, MAX_EXPANSION * file_bytes)


def check_bytes(name: str, needed: int, file_bytes: int, max_bytes: int | None) -> None:
    """Refuse a network that takes too much memory.

    Args:
        name: what messages call the file.
        needed: bytes of its network in memory.
        file_bytes: of the file itself, and of others that belong to it.
        max_bytes: the most that is allowed; where it is not given, what a file of this size may take.

    Raises:
        LimitError: it takes more.
    """
    allowed = default_bytes(file_bytes) if max_bytes is None else max_bytes
    if needed > allowed:
        found = f"{file_bytes:,} bytes in which its network's {needed:,} bytes of memory are shared or compressed"
        if max_bytes is not None:
            found = f"its network takes {needed:,} bytes of memory"
        raise LimitError(f"{name}: {found}; at most {allowed:,} are allowed; allow more by max_bytes={needed}")


@contextmanager
def memory_for(name: str, needed: int) -> Iterator[dict[str, torch.Tensor]]:
    """A dict for a network's tensors, which is emptied if they are not all made.

    Raises:
        LimitError: the machine has not enough memory for what is made within.
    """
    tensors: dict[str, torch.Tensor] = {}
    try:
        yield tensors
    except Exception as error:
        # The error's traceback would keep the tensors of its frames alive.
        tensors.clear()
        if not is_out_of_memory(error):
            raise
        clear_frames(error.__traceback__)
        raise LimitError(
            f"{name}: its network takes {needed:,} bytes of memory, and this machine has not enough free; choose a "
            "smaller model"
        ) from None
