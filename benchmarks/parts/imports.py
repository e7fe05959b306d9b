"""How long ``import vitviz`` takes, beside ``import torch``, which it needs."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

from benchmarks.part import Case, Make, Part, Run, Settings
from benchmarks.shapes import TI_16

TORCH, VITVIZ = "import torch", "import vitviz"
CASE = "a fresh interpreter"


def contestants(case: Case, settings: Settings) -> dict[str, Make]:
    return {line: partial(_imported, line) for line in (TORCH, VITVIZ)}


def _imported(line: str) -> Run:
    return partial(subprocess.run, [sys.executable, "-c", line], check=True)


PART = Part(
    "imports",
    "The import",
    "One line in a fresh interpreter each, whose files the system has read before.",
    # Of which no network is made.
    (Case(TI_16, 11, variant=CASE),),
    contestants,
)
