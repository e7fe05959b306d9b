"""The time of a question about an encoded image."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from benchmarks.benchmark import Benchmark, Case, Make, Models, Run
from benchmarks.networks import B_14, B_16
from benchmarks.suite.analysis import FORWARD, timm_forward
from vitviz import AttentionTrace
from vitviz.attribution import rollout

ROWS = "rows of all layers and heads"
MEAN, MAX = "mean rollout", "max rollout, 90% discarded"
CACHED_MEAN, CACHED_MAX = f"{MEAN}, from kept matrices", f"{MAX}, from kept matrices"
CACHE_BYTES = 2**31
REPETITIONS = 8


def _repeated(make: Make, models: Models) -> Run:
    run: Any = make(models)
    return lambda: [run() for _ in range(models.case.images)][-1]


@torch.inference_mode()
def _ask(question: Callable[[AttentionTrace], object], models: Models, keep_bytes: int = 0) -> Run:
    trace = replace(models.vitviz.network.encode(models.pixels).traces[0], keep_bytes=keep_bytes)
    return torch.inference_mode()(partial(question, trace))


_max_rollout = partial(rollout, head_fusion="max", discard_ratio=0.9)
CONTESTANTS: dict[str, Make] = {
    FORWARD: timm_forward,
    ROWS: partial(_ask, lambda trace: trace.rows("cls")),
    "columns of all layers and heads": partial(_ask, lambda trace: trace.columns("cls")),
    MEAN: partial(_ask, rollout),
    MAX: partial(_ask, _max_rollout),
    CACHED_MEAN: partial(_ask, rollout, keep_bytes=CACHE_BYTES),
    CACHED_MAX: partial(_ask, _max_rollout, keep_bytes=CACHE_BYTES),
}
BENCHMARK = Benchmark(
    "interaction",
    "Questions about an encoded image",
    f"{REPETITIONS} times in a row, as a hand that moves over a picture asks, and compared to as many forward passes "
    "of timm in the same run. The very first question, which fills what is kept, does not count.",
    (Case(B_16, 9, images=REPETITIONS), Case(B_14, 5, images=REPETITIONS)),
    {name: partial(_repeated, make) for name, make in CONTESTANTS.items()},
    bars={
        (ROWS, "time"): (0.002, 0.002),
        (MEAN, "time"): (0.04, 0.25),
        (MAX, "time"): (0.06, 0.35),
        (CACHED_MEAN, "time"): (0.001, 0.005),
        (CACHED_MAX, "time"): (0.01, 0.03),
    },
)
