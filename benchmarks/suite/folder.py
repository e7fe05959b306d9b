"""A folder of pictures by the loop of ``vitviz batch``, compared with the simplest loop around timm."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from benchmarks.benchmark import Benchmark, Case, Make, Run, Settings
from benchmarks.gpu.folders import HEIGHT, WIDTH, photographs
from benchmarks.models import Models
from benchmarks.shapes import B_16, TI_16
from vitviz.datasets import BatchRequest, Item, MapRequest, run_batch

BATCH, WORKERS = 32, 2
MEAN = "vitviz batch, mean rollout"


def contestants(case: Case, settings: Settings) -> dict[str, Make]:
    models = Models(case.shape)
    return {
        "timm: DataLoader and fused forward pass": partial(_timm, models, case.images, settings.folder),
        "vitviz batch without maps": partial(_vitviz, models, case.images, settings.folder, ()),
        MEAN: partial(_vitviz, models, case.images, settings.folder, (MapRequest("rollout"),)),
    }


def _timm(models: Models, images: int, folder: Path) -> Run:
    from tests.reference_packages import timm

    model, files = models.timm, photographs(folder, images, WORKERS)
    transform = timm.data.create_transform(models.shape.image, interpolation="bicubic", crop_pct=0.9)

    class Pictures(torch.utils.data.Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return len(files)

        def __getitem__(self, index: int) -> torch.Tensor:
            pixels: Any = transform(Image.open(files[index]).convert("RGB"))
            return pixels

    # Forked even in a process that was spawned, as in a script of its own.
    loader = torch.utils.data.DataLoader(Pictures(), BATCH, num_workers=WORKERS, multiprocessing_context="fork")

    def run() -> None:
        with torch.inference_mode():
            for pixels in loader:
                model(pixels)

    return run


def _vitviz(models: Models, images: int, folder: Path, maps: tuple[MapRequest, ...]) -> Run:
    request, output = BatchRequest(models.vitviz, maps), folder / "results"
    items = [Item(file.name, file) for file in photographs(folder, images, WORKERS)]

    def run() -> None:
        shutil.rmtree(output, ignore_errors=True)
        run_batch(request, items, output, batch_size=BATCH, workers=WORKERS)

    return run


BENCHMARK = Benchmark(
    "folder",
    "A folder of pictures",
    f"Per picture, JPEGs of {WIDTH}×{HEIGHT} pixels from disk, {BATCH} at a time, {WORKERS} workers. vitviz writes its "
    "table in this time too, and looks at the request and at every weight before it begins, once in a run.",
    (Case(TI_16, 5, images=128), Case(B_16, 3, images=64)),
    contestants,
    paired=True,
)
"""The processor time of the DataLoader's workers counts, since they end with each round."""
