"""What an analysis costs as the tokens grow."""

from __future__ import annotations

from functools import partial

from benchmarks.benchmark import Benchmark, Case, Make, Settings
from benchmarks.models import Models
from benchmarks.shapes import S_8
from benchmarks.suite.analysis import FORWARD, HOOKS, MAX, MAX_MAP_BYTES, MEAN, analysis, timm_forward, timm_hooks

SIDES = {64: 15, 112: 15, 160: 15, 224: 7, 320: 7, 480: 5, 640: 3, 800: 3}


def contestants(case: Case, settings: Settings) -> dict[str, Make]:
    models = Models(case.shape)
    makes: dict[str, Make] = {FORWARD: partial(timm_forward, models)}
    if case.shape.map_bytes < MAX_MAP_BYTES:
        makes[HOOKS] = partial(timm_hooks, models)
    makes[MEAN] = partial(analysis, models)
    makes[MAX] = partial(analysis, models, head_fusion="max", discard_ratio=0.9)
    return makes


BENCHMARK = Benchmark(
    "tokens",
    "Cost against tokens",
    f"ViT-S/8 on images of {min(SIDES)} to {max(SIDES)} pixels. Beyond 3,601 tokens, all attention weights in single "
    "precision would take more than 4 GiB, for which the hooks are not run.",
    tuple(Case(S_8.at(side), repeats, memory=True) for side, repeats in SIDES.items()),
    contestants,
)
