"""What a question costs once the image is encoded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from benchmarks.models import Models
from benchmarks.part import Case, Make, Part, Run, Settings
from benchmarks.parts.analysis import FORWARD, timm_forward
from benchmarks.shapes import B_14, B_16
from vitviz import AttentionTrace
from vitviz.attribution import rollout

ROWS = "rows of all layers and heads"
COLUMNS = "columns of all layers and heads"
MEAN, MAX = "mean rollout", "max rollout, 90% discarded"
KEPT_MEAN, KEPT_MAX = f"{MEAN}, from kept matrices", f"{MAX}, from kept matrices"
KEPT_BYTES = 2**31
IN_A_ROW = 8


def contestants(case: Case, settings: Settings) -> dict[str, Make]:
    models = Models(case.shape, settings.folder)
    highest: dict[str, Any] = {"head_fusion": "max", "discard_ratio": 0.9}
    once: dict[str, Make] = {
        FORWARD: partial(timm_forward, models),
        ROWS: partial(_asked, models, lambda trace: trace.rows("cls")),
        COLUMNS: partial(_asked, models, lambda trace: trace.columns("cls")),
        MEAN: partial(_asked, models, rollout),
        MAX: partial(_asked, models, partial(rollout, **highest)),
        KEPT_MEAN: partial(_asked, models, rollout, KEPT_BYTES),
        KEPT_MAX: partial(_asked, models, partial(rollout, **highest), KEPT_BYTES),
    }
    return {name: partial(_in_a_row, make, case.images) for name, make in once.items()}


def _in_a_row(make: Make, count: int) -> Run:
    run = make()
    return lambda: [run() for _ in range(count)][-1]


@torch.inference_mode()
def _asked(models: Models, question: Callable[[AttentionTrace], object], keep_bytes: int = 0) -> Run:
    trace = replace(models.vitviz.network.encode(models.pixels).traces[0], keep_bytes=keep_bytes)
    return torch.inference_mode()(partial(question, trace))


PART = Part(
    "interaction",
    "Questions about an encoded image",
    f"{IN_A_ROW} times in a row, as a hand that moves over a picture asks, and compared to as many forward passes of "
    "timm in the same run. The very first question, which fills what is kept, does not count.",
    (Case(B_16, 9, images=IN_A_ROW), Case(B_14, 5, images=IN_A_ROW)),
    contestants,
)
