"""Many pictures, in batches of eight."""

from __future__ import annotations

import io
from functools import partial

import torch

import vitviz
from benchmarks.benchmark import Benchmark, Case, Make, Run, Settings
from benchmarks.models import Models
from benchmarks.shapes import B_16
from vitviz.weights import resources

BATCH = 8
VITVIZ = "vitviz.analyze_batch, from JPEGs in memory"
PHOTOS = ("astronaut", "chelsea", "coffee", "rocket")


def contestants(case: Case, settings: Settings) -> dict[str, Make]:
    models = Models(case.shape, settings.folder)
    return {
        "timm forward pass, on ready tensors": partial(_timm, models, case.images),
        VITVIZ: partial(_vitviz, models, case.images),
    }


def _timm(models: Models, images: int) -> Run:
    batches = models.pixels.repeat(images, 1, 1, 1).split(BATCH)
    return torch.inference_mode()(lambda: [models.timm(batch) for batch in batches])


def _vitviz(models: Models, images: int) -> Run:
    model, jpegs = models.vitviz, [_jpeg(number) for number in range(images)]

    def run() -> None:
        for _ in vitviz.analyze_batch(jpegs, model, batch_size=BATCH):
            pass

    return run


def _jpeg(number: int) -> bytes:
    """A JPEG of one of the photographs, cropped differently for each number."""
    image = vitviz.open_image(resources("assets") / f"{PHOTOS[number % len(PHOTOS)]}.jpg")
    image = image.crop((number, number, image.width, image.height))
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=90)
    return stream.getvalue()


BENCHMARK = Benchmark(
    "batch",
    "Many images",
    f"Per image, in batches of {BATCH}; vitviz opens and prepares the pictures in this time too.",
    (Case(B_16, 7, images=32),),
    contestants,
)
