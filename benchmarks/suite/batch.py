"""Many pictures, in batches of eight."""

from __future__ import annotations

from functools import partial

import torch

import vitviz
from benchmarks.benchmark import Benchmark, Case, Make, Run, Settings
from benchmarks.gpu.folders import PHOTOS
from benchmarks.models import Models
from benchmarks.shapes import B_16
from vitviz.weights import resources

BATCH = 8
VITVIZ = "vitviz.analyze_batch, from JPEGs in memory"


def contestants(case: Case, settings: Settings) -> dict[str, Make]:
    models = Models(case.shape)
    return {
        "timm forward pass, on ready tensors": partial(_timm, models, case.images),
        VITVIZ: partial(_vitviz, models, case.images),
    }


def _timm(models: Models, images: int) -> Run:
    batches = models.pixels.repeat(images, 1, 1, 1).split(BATCH)
    return torch.inference_mode()(lambda: [models.timm(batch) for batch in batches])


def _vitviz(models: Models, images: int) -> Run:
    photos = [(resources("assets") / f"{name}.jpg").read_bytes() for name in PHOTOS]
    jpegs = [photos[number % len(photos)] for number in range(images)]
    return lambda: sum(1 for _ in vitviz.analyze_batch(jpegs, models.vitviz, batch_size=BATCH))


BENCHMARK = Benchmark(
    "batch",
    "Many images",
    f"Per image, in batches of {BATCH}; vitviz opens and prepares the pictures in this time too.",
    (Case(B_16, 7, images=32),),
    contestants,
)
