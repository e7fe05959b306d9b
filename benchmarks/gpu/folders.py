"""Pictures from JPEG to Parquet, beside the forward pass alone."""

from __future__ import annotations

import os
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch
from PIL import Image

import vitviz
from benchmarks.gpu.card import Card, held_to
from benchmarks.gpu.speed import FLOOR, PRECISIONS, floor_run
from benchmarks.networks import B_16, vitviz_model
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
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(workers) as pool:
        folder = Path(name)
        files = photographs(folder, count, workers)
        items = [Item(file.name, file) for file in files]
        for precision in PRECISIONS:
            model = vitviz_model(shape, card.device, precision)
            pixels = torch.randn(BATCH, 3, shape.image, shape.image, device=card.device)
            with torch.inference_mode():
                passes = BATCH / card.turns({FLOOR: floor_run(shape, pixels, precision)[1]})[FLOOR]
            # Opening and bringing to the model's input, without a network.
            prepare = Encoder(model).prepare
            list(pool.map(prepare, files[:workers]))
            decoded = count / card.seconds(lambda prepare=prepare: list(pool.map(prepare, files)))
            for maps in ((), (MapRequest("rollout"),)):
                request, output = BatchRequest(model, maps), folder / "table"
                run = partial(run_batch, request, items, output, batch_size=BATCH, workers=workers)
                run()
                shutil.rmtree(output)
                summary = run()
                shutil.rmtree(output)
                rate = summary.analysed / summary.seconds
                waits = (summary.wait_seconds or 0) / summary.seconds
                card.add(
                    "A folder of photographs, pictures a second",
                    f"{shape.title}, {precision}, {'mean rollout' if maps else 'no map'}",
                    {
                        "JPEG to Parquet": rate,
                        "forward pass alone": passes,
                        f"opening alone, {workers} threads": decoded,
                        "share of the slower stage": held_to(rate / min(passes, decoded), 0.9, is_most=False),
                        "slower stage": "forward pass" if passes < decoded else "opening",
                        "card idle, share of the time": 1 - rate / passes,
                        "waiting for an opened picture, share of the time": waits,
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
