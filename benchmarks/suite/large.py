"""A picture at a higher resolution than the model was trained at, from its file to its rollout."""

from __future__ import annotations

from functools import partial

import vitviz
from benchmarks.benchmark import Benchmark, Case, Make, Run, Settings
from benchmarks.models import Models
from benchmarks.shapes import B_14, S_8
from benchmarks.suite.analysis import FORWARD, timm_forward
from vitviz.weights import resources

VITVIZ = "vitviz: analyze and mean rollout"


def contestants(case: Case, settings: Settings) -> dict[str, Make]:
    assert case.resolution is not None
    # timm gets a model for images of this size, vitviz one for smaller images.
    return {
        FORWARD: partial(timm_forward, Models(case.input_shape)),
        VITVIZ: partial(_vitviz, Models(case.shape), case.resolution),
    }


def _vitviz(models: Models, resolution: int) -> Run:
    model, photo = models.vitviz, (resources("assets") / "astronaut.jpg").read_bytes()

    def run() -> object:
        analysis = vitviz.analyze(photo, model, resolution=resolution)
        return analysis, analysis.rollout()

    return run


BENCHMARK = Benchmark(
    "large",
    "Large pictures",
    "From the bytes of a JPEG to the rollout, at a higher resolution than the model was trained at; timm's forward "
    "pass is on a ready tensor of that size.",
    (Case(S_8, 5, memory=True, resolution=480), Case(B_14, 3, memory=True, resolution=1036)),
    contestants,
)
