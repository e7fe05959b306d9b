"""A whole analysis of a captured module, by its own forward pass."""

from __future__ import annotations

from functools import partial

import torch

import vitviz
from benchmarks.benchmark import Benchmark, Case, Make, Run, Settings
from benchmarks.models import Models
from benchmarks.shapes import B_14, B_16
from benchmarks.suite.analysis import FORWARD, timm_forward
from vitviz.attribution import rollout

CAPTURED = "vitviz, the module captured: trace, CLS rows, mean rollout"


def contestants(case: Case, settings: Settings) -> dict[str, Make]:
    models = Models(case.shape, settings.folder)
    return {FORWARD: partial(timm_forward, models), CAPTURED: partial(captured, models)}


def captured(models: Models) -> Run:
    """Logits, trace, the rows of all layers and heads, and a mean rollout."""
    labels = tuple(map(str, range(models.shape.classes)))
    model = vitviz.load(models.timm, engine="module", normalisation="imagenet", labels=labels)
    pixels = models.pixels

    @torch.inference_mode()
    def run() -> object:
        encoding = model.network.encode(pixels)
        trace = encoding.traces[0]
        return encoding, trace.rows("cls"), rollout(trace)

    return run


BENCHMARK = Benchmark(
    "captured",
    "A whole analysis of a captured module",
    "Logits, the attention of the CLS token in all layers and heads, and attention rollout of a module of timm, as "
    "ratios to its own fused forward pass. Processor time; every second round goes backwards.",
    (Case(B_16, 15), Case(B_14, 7)),
    contestants,
    paired=True,
)
