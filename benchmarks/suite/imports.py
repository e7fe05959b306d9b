"""The time of ``import vitviz`` with its functions, compared with ``import torch``, which they need."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

from benchmarks.benchmark import Benchmark, Case, Models, Run
from benchmarks.networks import TI_16

# `import vitviz` alone imports nothing: each public name does on its first use.
TORCH, VITVIZ = "import torch", "from vitviz import *"


def _import(line: str, models: Models) -> Run:
    return partial(subprocess.run, [sys.executable, "-c", line], check=True)


BENCHMARK = Benchmark(
    "imports",
    "The import",
    "One line in a fresh interpreter each, whose files the system has read before.",
    # A case needs a shape; no network is created.
    (Case(TI_16, 11, variant="a fresh interpreter"),),
    {line: partial(_import, line) for line in (TORCH, VITVIZ)},
    bars={(VITVIZ, "time"): (1.15,)},
)
