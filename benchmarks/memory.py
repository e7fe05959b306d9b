"""Peak memory of a run, above what the process held before it."""

from __future__ import annotations

import ctypes
import gc
import re
from pathlib import Path

import torch
import torch.nn.functional as F

from benchmarks.benchmark import Run

# Tokens, width and hidden width of matrix products that make libraries allocate their buffers before a measurement.
LAYER = (1370, 768, 3072)
STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_bytes(run: Run) -> int:
    """Peak bytes of the process during the run, with its result alive, less those before the run.

    Linux alone can reset the peak.
    """
    _settle()
    before = _held("VmRSS")
    RESET.write_text("5")
    result = run()
    peak = _held("VmHWM") - before
    del result
    return peak


def _settle() -> None:
    """Make libraries allocate their buffers, and return free memory, whose reuse would not be measured."""
    heads, (tokens, width, hidden) = 12, LAYER
    with torch.inference_mode():
        heads_tensor = torch.ones(1, heads, tokens, width // heads)
        context = F.scaled_dot_product_attention(heads_tensor, heads_tensor, heads_tensor).view(tokens, width)
        for count in (tokens, tokens // 2, tokens // 4):
            F.linear(F.gelu(F.linear(context[:count], torch.ones(hidden, width))), torch.ones(width, hidden))
        del heads_tensor, context
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _held(field: str) -> int:
    match = re.search(rf"^{field}:\s+(\d+) kB$", STATUS.read_text(), re.MULTILINE)
    assert match is not None, f"{STATUS} has no {field}"
    return 1024 * int(match[1])
