"""What an analysis costs as the tokens grow."""

from __future__ import annotations

from benchmarks.benchmark import Benchmark, Case
from benchmarks.networks import S_8
from benchmarks.suite import analysis
from benchmarks.suite.analysis import FORWARD, HOOKS, MAX, MEAN

SIDES = {64: 15, 112: 15, 160: 15, 224: 7, 320: 7, 480: 5, 640: 3, 800: 3}
BENCHMARK = Benchmark(
    "tokens",
    "Cost against tokens",
    f"ViT-S/8 on images of {min(SIDES)} to {max(SIDES)} pixels. Beyond 3,601 tokens, all attention weights in single "
    "precision would take more than 4 GiB, for which the hooks are not run.",
    tuple(Case(S_8.at(side), repeats, memory=True) for side, repeats in SIDES.items()),
    {name: analysis.BENCHMARK.contestants[name] for name in (FORWARD, HOOKS, MEAN, MAX)},
)
