"""The time of a question about an encoded image."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from benchmarks.benchmark import Benchmark, Case, Make, Run, Settings
from benchmarks.models import Models
from benchmarks.shapes import B_14, B_16
from benchmarks.suite.analysis import FORWARD, timm_forward
from vitviz import AttentionTrace
from vitviz.attribution import rollout

ROWS = "rows of all layers and heads"
COLUMNS = "columns of all layers and heads"
MEAN, MAX = "mean rollout", "max rollout, 90% discarded"
CACHED_MEAN, CACHED_MAX = f"{MEAN}, from kept matrices", f"{MAX}, from kept matrices"
CACHE_BYTES = 2**31
REPETITIONS = 8


def contestants(case: Case, settings: Settings) -> dict[str, Make]:
    models = Models(case.shape)
    highest: dict[str, Any] = {"head_fusion": "max", "discard_ratio": 0.9}
    makes: dict[str, Make] = {
        FORWARD: partial(timm_forward, models),
        ROWS: partial(_ask, models, lambda trace: trace.rows("cls")),
        COLUMNS: partial(_ask, models, lambda trace: trace.columns("cls")),
        MEAN: partial(_ask, models, rollout),
        MAX: partial(_ask, models, partial(rollout, **highest)),
        CACHED_MEAN: partial(_ask, models, rollout, CACHE_BYTES),
        CACHED_MAX: partial(_ask, models, partial(rollout, **highest), CACHE_BYTES),
    }
    return {name: partial(_repeat, make, case.images) for name, make in makes.items()}


def _repeat(make: Make, count: int) -> Run:
    run = make()
    return lambda: [run() for _ in range(count)][-1]


@torch.inference_mode()
def _ask(models: Models, question: Callable[[AttentionTrace], object], keep_bytes: int = 0) -> Run:
    trace = replace(models.vitviz.network.encode(models.pixels).traces[0], keep_bytes=keep_bytes)
    return torch.inference_mode()(partial(question, trace))


BENCHMARK = Benchmark(
    "interaction",
    "Questions about an encoded image",
    f"{REPETITIONS} times in a row, as a hand that moves over a picture asks, and compared to as many forward passes "
    "of timm in the same run. The very first question, which fills what is kept, does not count.",
    (Case(B_16, 9, images=REPETITIONS), Case(B_14, 5, images=REPETITIONS)),
    contestants,
)
