"""Numbers of each architecture of ``docs/checked.md`` and of random configurations, kept as arrays.

They are not computed again: whatever opens these networks has the same ones.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import vitviz
from tests.parity import CASES
from tests.parity.case import Case, answer_of_vitviz
from tests.parity.random_configurations import DRAWN
from tests.parity.random_draws import Draw, silent
from tests.parity.table import by_row
from tests.support.reading import read_any
from vitviz import METHODS, Model
from vitviz.errors.kinds import MethodError

FILE = Path(__file__).parents[1] / "data" / "references.npz"
# Of the attention of each layer, so many rows are kept.
MOST_ROWS = 4
MAPS = ("rollout", "relevance", "legrad")
ROWS = {row: cases[0] for row, cases in by_row(CASES).items()}
# Rows whose picture was enlarged, so that this part of it remained.
CROP = 0.875
CROPPED = {f"transformers {each}" for each in ("DeiT", "I-JEPA", "DINOv2", "DINOv2 with registers")}
# Of a row whose configuration did not state its size.
SIDES = {"timm, registers": 224}


def numbers(model: Model) -> dict[str, np.ndarray]:
    """The output, some rows of the attention of every layer, and the maps of one picture that the model can have."""
    preprocessing = model.preprocessing
    noise = np.random.default_rng(0).integers(0, 256, (preprocessing.height, preprocessing.width, 3), dtype=np.uint8)
    analysis = vitviz.analyze(Image.fromarray(noise), model)
    trace, tokens = analysis.trace, analysis.trace.layout.token_count
    rows = sorted({round(row) for row in np.linspace(0, tokens - 1, MOST_ROWS)})
    found = {"attention": torch.stack([trace.weights(layer)[:, rows] for layer in range(trace.layers)])}
    found["output"] = answer_of_vitviz(model.network, analysis.prepared.pixels)[0][0].detach()
    for method in MAPS:
        try:
            # Without classes, maps are about likeness to the same picture upside down.
            is_alike = METHODS[method].class_specific and not analysis.logits.numel()
            other = {"target": vitviz.likeness(vitviz.analyze(Image.fromarray(noise[::-1]), model))} if is_alike else {}
            found[method] = analysis.map(method, **other).values
        except MethodError:
            found[method] = torch.empty(0)
    return {name: value.numpy().astype(np.float32) for name, value in found.items()}


def numbers_of_row(case: Case) -> dict[str, np.ndarray]:
    """Of an architecture, with weights that a seed makes again."""
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        with silent():
            reference = case.make(Path(folder))
        model = read_any(reference.path, report=lambda _: None, **case.overrides).model
        if case.row in CROPPED:
            model = replace(model, preprocessing=replace(model.preprocessing, crop_fraction=CROP))
        if side := SIDES.get(case.row):
            model = replace(model, preprocessing=replace(model.preprocessing, height=side, width=side))
        return numbers(model)


def numbers_of_draw(package: str, draw: Draw) -> dict[str, np.ndarray]:
    """Of a random configuration."""
    with tempfile.TemporaryDirectory() as folder:
        torch.default_generator.manual_seed(0)
        with silent(), torch.random.fork_rng(devices=[]), torch.inference_mode():
            DRAWN[package].make(draw, Path(folder))
        return numbers(read_any(Path(folder), report=lambda _: None).model)
