"""A folder of pictures by the loop of ``vitviz batch``, compared with the simplest loop around timm."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image

import vitviz
from benchmarks.benchmark import Benchmark, Case, Make, Run, Settings
from benchmarks.models import Models
from benchmarks.shapes import B_16, TI_16
from vitviz.datasets import BatchRequest, Item, MapRequest, run_batch
from vitviz.weights import resources

BATCH, WORKERS = 32, 2
PHOTOS = ("astronaut", "chelsea", "coffee", "rocket")
WIDTH, HEIGHT = 500, 375
MEAN = "vitviz batch, mean rollout"


def contestants(case: Case, settings: Settings) -> dict[str, Make]:
    models = Models(case.shape, settings.folder)
    return {
        "timm: DataLoader and fused forward pass": partial(_timm, models, case.images),
        "vitviz batch without maps": partial(_vitviz, models, case.images, ()),
        MEAN: partial(_vitviz, models, case.images, (MapRequest("rollout"),)),
    }


def _timm(models: Models, images: int) -> Run:
    from tests.reference_packages import timm

    model, files = models.timm, _files(models.folder, images)
    transform = timm.data.create_transform(models.shape.image, interpolation="bicubic", crop_pct=0.9)

    class Pictures(torch.utils.data.Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return len(files)

        def __getitem__(self, index: int) -> torch.Tensor:
            pixels: Any = transform(Image.open(files[index]).convert("RGB"))
            return pixels

    def run() -> None:
        with torch.inference_mode():
            for pixels in torch.utils.data.DataLoader(Pictures(), BATCH, num_workers=WORKERS):
                model(pixels)

    return run


def _vitviz(models: Models, images: int, maps: tuple[MapRequest, ...]) -> Run:
    request, output = BatchRequest(models.vitviz, maps), models.folder / "results"
    items = [Item(file.name, file) for file in _files(models.folder, images)]

    def run() -> None:
        shutil.rmtree(output, ignore_errors=True)
        run_batch(request, items, output, batch_size=BATCH, workers=WORKERS)

    return run


def _files(folder: Path, images: int) -> list[Path]:
    """Photographs of the average size of ImageNet's, each another crop of a bundled one."""
    photos = folder / "photos"
    photos.mkdir(exist_ok=True)
    files = [photos / f"{number:05d}.jpg" for number in range(images)]
    for number, file in enumerate(files):
        if not file.exists():
            image = vitviz.open_image(resources("assets") / f"{PHOTOS[number % len(PHOTOS)]}.jpg")
            crop = image.crop((number % 90, number % 80, image.width, image.height))
            crop.resize((WIDTH, HEIGHT)).save(file, quality=90)
    return files


BENCHMARK = Benchmark(
    "folder",
    "A folder of pictures",
    f"Per picture, JPEGs of {WIDTH}×{HEIGHT} pixels from disk, {BATCH} at a time, {WORKERS} workers. vitviz writes its "
    "table in this time too, and looks at the request and at every weight before it begins, once in a run.",
    (Case(TI_16, 5, images=128), Case(B_16, 3, images=64)),
    contestants,
    quick_cases=(0, 1),
    paired=True,
)
"""The processor time of the DataLoader's workers counts, since they end with each round."""
