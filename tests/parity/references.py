"""What vitviz computes for each architecture of ``docs/checked.md`` and for random configurations, kept as numbers.

``python -m tests.parity.references`` writes them. Whatever opens these networks later has the same ones.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import torch
from hypothesis import HealthCheck, Phase, settings
from PIL import Image

import vitviz
from tests.parity import CASES
from tests.parity.case import Case
from tests.parity.random_configurations import DRAWN
from tests.parity.random_draws import Draw, Drawn, silent
from tests.parity.table import by_row
from tests.support.reading import read_checkpoint
from vitviz import METHODS, Model
from vitviz.errors.kinds import VitvizError

FILE = Path(__file__).parents[1] / "data" / "references.npz"
DRAWS = {"timm": 88, "transformers": 80, "open_clip": 32}
# Of the attention of each layer, so many rows are kept.
MOST_ROWS = 4
MAPS = ("rollout", "relevance", "legrad")
ROWS = {row: cases[0] for row, cases in by_row(CASES).items()}


def numbers(model: Model) -> dict[str, np.ndarray]:
    """The output, some rows of the attention of every layer, and three maps of one picture."""
    preprocessing = model.preprocessing
    noise = np.random.default_rng(0).integers(0, 256, (preprocessing.height, preprocessing.width, 3), dtype=np.uint8)
    analysis = vitviz.analyze(Image.fromarray(noise), model)
    trace, tokens = analysis.trace, analysis.trace.layout.token_count
    rows = sorted({round(row) for row in np.linspace(0, tokens - 1, MOST_ROWS)})
    found = {"attention": torch.stack([trace.weights(layer)[:, rows] for layer in range(trace.layers)])}
    found["output"] = model.network(analysis.prepared.pixels)[0].detach()
    # Without classes, maps are about likeness to the same picture upside down.
    has_classes = analysis.logits.numel() > 0
    target = {} if has_classes else {"target": vitviz.likeness(vitviz.analyze(Image.fromarray(noise[::-1]), model))}
    for method in MAPS:
        try:
            found[method] = analysis.map(method, **(target if METHODS[method].class_specific else {})).values
        except VitvizError as error:
            found[method] = torch.empty(0)
            print(f"{model.name}: {error}")
    return {name: value.numpy().astype(np.float32) for name, value in found.items()}


def numbers_of_row(case: Case) -> dict[str, np.ndarray]:
    """Of an architecture, with weights that a seed makes again."""
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        with silent():
            reference = case.make(Path(folder))
        return numbers(read_checkpoint(reference.path, **case.overrides).model)


def numbers_of_draw(package: str, draw: Draw) -> dict[str, np.ndarray]:
    """Of a random configuration."""
    with tempfile.TemporaryDirectory() as folder:
        torch.default_generator.manual_seed(0)
        with silent(), torch.random.fork_rng(devices=[]), torch.inference_mode():
            DRAWN[package].make(draw, Path(folder))
        return numbers(read_checkpoint(Path(folder)).model)


def draws_of(drawn: Drawn, count: int) -> Iterator[Draw]:
    """Different configurations, the same ones with the same version of hypothesis."""
    found: dict[str, Draw] = {}

    @hypothesis.seed(0)
    @settings(
        max_examples=2 * count, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @hypothesis.given(drawn.strategy)
    def once(draw: Draw) -> None:
        found.setdefault(str(draw), draw)

    once()
    yield from found.values()


def write() -> None:
    """Compute all, and write the file."""
    arrays: dict[str, Any] = {}
    for row, case in ROWS.items():
        arrays |= {f"{row}|{name}": value for name, value in numbers_of_row(case).items()}
    kept: list[dict[str, Any]] = []
    for package, count in DRAWS.items():
        done = 0
        for draw in draws_of(DRAWN[package], count):
            # Not everything that can be drawn is a model, or one that opens.
            try:
                found = numbers_of_draw(package, draw)
            except Exception as error:
                print(f"{package}: {draw}: {type(error).__name__}", flush=True)
                continue
            arrays |= {f"draw {len(kept)}|{name}": value for name, value in found.items()}
            kept.append({"package": package, **asdict(draw)})
            done += 1
            if done == count:
                break
    np.savez_compressed(FILE, draws=np.array(json.dumps(kept)), **arrays)
    print(f"{len(ROWS)} architectures, {len(kept)} draws, {FILE.stat().st_size:,} bytes")


if __name__ == "__main__":
    write()
