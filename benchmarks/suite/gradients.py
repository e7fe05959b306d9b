"""Relevance of attention for a class, which needs gradients."""

from __future__ import annotations

from functools import partial

from benchmarks.benchmark import Benchmark, Case, Make, Run, Settings
from benchmarks.models import Models
from benchmarks.others import backward, transmm
from benchmarks.shapes import B_14
from benchmarks.suite.analysis import FORWARD, timm_forward

RELEVANCE = "vitviz: relevance"
TARGET = 0


def contestants(case: Case, settings: Settings) -> dict[str, Make]:
    models = Models(case.shape, settings.folder)
    return {
        FORWARD: partial(timm_forward, models),
        "timm forward and backward pass": lambda: partial(backward, models.timm, models.pixels, TARGET),
        "TransMM on timm, weights and gradients kept": lambda: partial(transmm, models.timm, models.pixels, TARGET),
        RELEVANCE: partial(_relevance, models),
    }


def _relevance(models: Models) -> Run:
    from vitviz.attribution import relevance
    from vitviz.models.gradients import trace_gradients

    network, pixels = models.vitviz.network, models.pixels
    return lambda: relevance(trace_gradients(network, pixels, target=TARGET))


BENCHMARK = Benchmark(
    "gradients",
    "Relevance for a class",
    "TransMM (Chefer et al. 2021) for one class: attention weights times their gradients through all layers. All "
    "weights are frozen; the bare backward pass goes down to the patch embedding.",
    (Case(B_14, 7, memory=True),),
    contestants,
)
