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


def contestants(case: Case, settings: Settings) -> dict[str, Make]:
    models = Models(case.shape, settings.folder)
    highest: dict[str, Any] = {"head_fusion": "max", "discard_ratio": 0.9}
    return {
        FORWARD: partial(timm_forward, models),
        ROWS: partial(_asked, models, lambda trace: trace.rows("cls")),
        COLUMNS: partial(_asked, models, lambda trace: trace.columns("cls")),
        MEAN: partial(_asked, models, rollout),
        MAX: partial(_asked, models, partial(rollout, **highest)),
        KEPT_MEAN: partial(_asked, models, rollout, KEPT_BYTES),
        KEPT_MAX: partial(_asked, models, partial(rollout, **highest), KEPT_BYTES),
    }


@torch.inference_mode()
def _asked(models: Models, question: Callable[[AttentionTrace], object], keep_bytes: int = 0) -> Run:
    trace = replace(models.vitviz.network.encode(models.pixels).traces[0], keep_bytes=keep_bytes)
    return torch.inference_mode()(partial(question, trace))


PART = Part(
    "interaction",
    "Questions about an encoded image",
    "Each after a forward pass of timm in the same run, to which it is compared, so that nothing waits in the "
    "processor's cache. The first question, which fills what is kept, does not count.",
    (Case(B_16, 31), Case(B_14, 15)),
    contestants,
)
