"""How much memory a run needs at its peak, over what the process held before."""

from __future__ import annotations

import ctypes
import gc
import re
import resource
import sys
from pathlib import Path

import torch
import torch.nn.functional as F

from benchmarks.part import Run

# The tokens, width and hidden width of the products before a measurement, for which libraries make their buffers.
LAYER = (1370, 768, 3072)
STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_bytes(run: Run) -> int:
    """Most bytes that the process held while the run took place and its result was there, less those before it.

    Linux tells the peak since it was last reset; elsewhere it is that of the whole process, so that a run that stays
    below what opening the model needed counts as nothing.
    """
    _settle()
    if not RESET.exists():
        before = _most()
        result = run()
        peak = _most() - before
        del result
        return peak
    before = _held("VmRSS")
    RESET.write_text("5")
    result = run()
    peak = _held("VmHWM") - before
    del result
    return peak


def _settle() -> None:
    """Have what libraries make once and keep, and give back memory that is free but would be used again unseen."""
    heads, (tokens, width, hidden) = 12, LAYER
    with torch.inference_mode():
        parts = torch.ones(1, heads, tokens, width // heads)
        mixed = F.scaled_dot_product_attention(parts, parts, parts).view(tokens, width)
        for count in (tokens, tokens // 2, tokens // 4):
            F.linear(F.gelu(F.linear(mixed[:count], torch.ones(hidden, width))), torch.ones(width, hidden))
        del parts, mixed
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _held(field: str) -> int:
    found = re.search(rf"^{field}:\s+(\d+) kB$", STATUS.read_text(), re.MULTILINE)
    assert found is not None, f"{STATUS} has no {field}"
    return 1024 * int(found[1])


def _most() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
