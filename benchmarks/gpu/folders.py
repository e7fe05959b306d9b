"""Pictures from JPEG to Parquet, beside the forward pass alone."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from time import perf_counter

import torch
from PIL import Image

import vitviz
from benchmarks.gpu.card import Card, held_to
from benchmarks.gpu.networks import floor_model, vitviz_model
from benchmarks.shapes import B_16, Shape
from vitviz.analysis.encoder import Encoder
from vitviz.datasets import BatchRequest, Item, MapRequest, run_batch
from vitviz.weights import resources

PHOTOS = ("astronaut", "chelsea", "coffee", "rocket")
# The average size of ImageNet's.
WIDTH, HEIGHT = 500, 375
PICTURES, BATCH = 1536, 32


def measure(card: Card) -> None:
    shape, count = (B_16.stand_in(), 64) if card.small else (B_16, PICTURES)
    workers = os.cpu_count() or 1
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = photographs(folder, count, workers)
        for precision in ("float32", "bfloat16"):
            model = vitviz_model(shape, card.device, precision)
            passes = forward_rate(card, shape, precision)
            decoded = decoding_rate(model, files, workers)
            for maps in ((), (MapRequest("rollout"),)):
                request, output = BatchRequest(model, maps), folder / "table"
                items = [Item(file.name, file) for file in files]
                run = partial(run_batch, request, items, output, batch_size=BATCH, workers=workers)
                run()
                shutil.rmtree(output)
                summary = run()
                shutil.rmtree(output)
                rate = summary.analysed / summary.seconds
                limit = min(passes, decoded)
                card.add(
                    "A folder of photographs, pictures a second",
                    f"{shape.title}, {precision}, {'mean rollout' if maps else 'no map'}",
                    {
                        "JPEG to Parquet": rate,
                        "forward pass alone": passes,
                        f"opening alone, {workers} threads": decoded,
                        "share of the slower stage": held_to(rate / limit, 0.9, is_most=False),
                        "slower stage": "forward pass" if passes < decoded else "opening",
                        "card idle, share of the time": 1 - summary.analysed / passes / summary.seconds,
                        "waiting for an opened picture, share of the time": (summary.wait_seconds or 0)
                        / summary.seconds,
                    },
                )


def photographs(folder: Path, count: int, workers: int) -> list[Path]:
    """Files, each another crop of a bundled photograph."""
    originals = [vitviz.open_image(resources("assets") / f"{name}.jpg") for name in PHOTOS]

    def write(number: int) -> Path:
        image, file = originals[number % len(originals)], folder / f"{number:05d}.jpg"
        crop = image.crop((number % 90, number % 80, image.width, image.height))
        crop.resize((WIDTH, HEIGHT), Image.Resampling.BILINEAR).save(file, quality=90)
        return file

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(write, range(count)))


def forward_rate(card: Card, shape: Shape, precision: str) -> float:
    _, model = floor_model(shape, card.device)
    dtype = getattr(torch, precision)
    model, pixels = model.to(dtype), torch.randn(BATCH, 3, shape.image, shape.image, device=card.device, dtype=dtype)
    with torch.inference_mode():
        return BATCH / card.turns({"forward": partial(model, pixels)})["forward"]


def decoding_rate(model: vitviz.Model, files: Sequence[Path], workers: int) -> float:
    """Pictures a second that are opened and brought to the model's input, without a network."""
    encoder = Encoder(model)
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(encoder.prepare, files[:workers]))
        start = perf_counter()
        list(pool.map(encoder.prepare, files))
        return len(files) / (perf_counter() - start)
