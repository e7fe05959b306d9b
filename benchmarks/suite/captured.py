"""A whole analysis of a captured module, by its own forward pass."""

from __future__ import annotations

from functools import partial

from benchmarks.benchmark import Benchmark, Case
from benchmarks.networks import B_14, B_16
from benchmarks.suite.analysis import FORWARD, analysis, timm_forward

CAPTURED = "vitviz, the module captured: trace, CLS rows, mean rollout"
BENCHMARK = Benchmark(
    "captured",
    "A whole analysis of a captured module",
    "Logits, the attention of the CLS token in all layers and heads, and attention rollout of a module of timm, as "
    "ratios to its own fused forward pass. Processor time; every second round goes backwards.",
    (Case(B_16, 15), Case(B_14, 7)),
    {FORWARD: timm_forward, CAPTURED: partial(analysis, engine="module")},
    bars={(CAPTURED, "time"): (1.35, 1.3)},
    paired=True,
)
