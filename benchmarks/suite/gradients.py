"""Relevance of attention for a class, which needs gradients."""

from __future__ import annotations

from functools import partial

from benchmarks.benchmark import Benchmark, Case, Make, Run, Settings
from benchmarks.models import Models
from benchmarks.shapes import B_14
from benchmarks.suite.analysis import FORWARD, timm_forward
from vitviz.attribution import relevance
from vitviz.models.gradients import trace_gradients

RELEVANCE = "vitviz: relevance"
TARGET = 0


def contestants(case: Case, settings: Settings) -> dict[str, Make]:
    models = Models(case.shape)
    return {FORWARD: partial(timm_forward, models), RELEVANCE: partial(_relevance, models)}


def _relevance(models: Models) -> Run:
    network, pixels = models.vitviz.network, models.pixels
    return lambda: relevance(trace_gradients(network, pixels, target=TARGET))


BENCHMARK = Benchmark(
    "gradients",
    "Relevance for a class",
    "TransMM (Chefer et al. 2021) for one class: attention weights times their gradients through all layers, "
    "beside a forward pass.",
    (Case(B_14, 7, memory=True),),
    contestants,
)
