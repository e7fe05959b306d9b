"""A folder of pictures by the loop of ``vitviz batch``, compared with the simplest loop around timm."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import partial

import torch

from benchmarks.benchmark import Benchmark, Case, Models, Run
from benchmarks.gpu.folders import HEIGHT, WIDTH, photographs
from benchmarks.networks import B_16, TI_16
from vitviz.datasets import BatchRequest, Item, MapRequest, run_batch

BATCH, WORKERS = 32, 2
MEAN = "vitviz batch, mean rollout"


def _timm(models: Models) -> Run:
    from tests.reference_packages import timm

    photographs(models.settings.folder, models.case.images, WORKERS)
    transform = timm.data.create_transform(models.case.shape.image, interpolation="bicubic", crop_pct=0.9)
    pictures = timm.data.ImageDataset(models.settings.folder, transform=transform)
    # Forked even in a process that was spawned, as in a script of its own.
    loader = torch.utils.data.DataLoader(pictures, BATCH, num_workers=WORKERS, multiprocessing_context="fork")
    model = models.timm

    @torch.inference_mode()
    def run() -> None:
        for pixels, _ in loader:
            model(pixels)

    return run


def _vitviz(models: Models, maps: Sequence[MapRequest] = ()) -> Run:
    request, output = BatchRequest(models.vitviz, tuple(maps)), models.settings.folder / "results"
    items = [Item(file.name, file) for file in photographs(models.settings.folder, models.case.images, WORKERS)]

    def run() -> None:
        shutil.rmtree(output, ignore_errors=True)
        run_batch(request, items, output, batch_size=BATCH, workers=WORKERS)

    return run


BENCHMARK = Benchmark(
    "folder",
    "A folder of pictures",
    f"Per picture, JPEGs of {WIDTH}×{HEIGHT} pixels from disk, {BATCH} at a time, {WORKERS} workers. vitviz writes its "
    "table in this time too, and looks at the request and at every weight before it begins, once in a run.",
    # The processor time of the DataLoader's workers counts, since they end with each round.
    (Case(TI_16, 5, images=128), Case(B_16, 3, images=64)),
    {
        "timm: DataLoader and fused forward pass": _timm,
        "vitviz batch without maps": _vitviz,
        MEAN: partial(_vitviz, maps=(MapRequest("rollout"),)),
    },
    bars={(MEAN, "time"): (1.25, 1.15)},
    paired=True,
)
