"""Relevance of attention for a class, which needs gradients."""

from __future__ import annotations

from benchmarks.benchmark import MIB, Benchmark, Case, Models, Run
from benchmarks.networks import B_14
from benchmarks.suite.analysis import FORWARD, timm_forward
from vitviz.attribution import relevance
from vitviz.models.gradients import trace_gradients

RELEVANCE = "vitviz: relevance"


def _relevance(models: Models) -> Run:
    network, pixels = models.vitviz.network, models.pixels
    return lambda: relevance(trace_gradients(network, pixels, target=0))


BENCHMARK = Benchmark(
    "gradients",
    "Relevance for a class",
    "TransMM (Chefer et al. 2021) for one class: attention weights times their gradients through all layers, "
    "beside a forward pass.",
    (Case(B_14, 7, memory=True),),
    {FORWARD: timm_forward, RELEVANCE: _relevance},
    bars={(RELEVANCE, "time"): (2.7,), (RELEVANCE, "memory"): (550 * MIB,)},
)
