"""A picture at a higher resolution than the model was trained at, from its file to its rollout."""

from __future__ import annotations

from dataclasses import replace

import vitviz
from benchmarks.benchmark import Benchmark, Case, Models, Run
from benchmarks.networks import B_14, S_8
from benchmarks.suite.analysis import FORWARD, timm_forward
from vitviz.weights import resources

VITVIZ = "vitviz: analyze and mean rollout"
GB = 10**9
TRAINED_SIDES = {shape.patch: shape.image for shape in (S_8, B_14)}


def _vitviz(models: Models) -> Run:
    # timm gets a model for images of this size, vitviz one for smaller images.
    shape = models.case.shape
    trained = shape.at(min(shape.image, TRAINED_SIDES[shape.patch]))
    model = replace(models, case=replace(models.case, shape=trained)).vitviz
    photo = (resources("assets") / "astronaut.jpg").read_bytes()

    def run() -> object:
        analysis = vitviz.analyze(photo, model, resolution=shape.image)
        return analysis, analysis.rollout()

    return run


BENCHMARK = Benchmark(
    "large",
    "Large pictures",
    "From the bytes of a JPEG to the rollout, at a higher resolution than the model was trained at; timm's forward "
    "pass is on a ready tensor of that size.",
    (Case(S_8.at(480), 5, memory=True), Case(B_14.at(1036), 3, memory=True)),
    {FORWARD: timm_forward, VITVIZ: _vitviz},
    bars={(VITVIZ, "memory"): (GB, GB)},
)
