"""The visitors of :mod:`benchmarks.load`: what each brings, and what the library says that they must be shown."""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load as read_tensors

import vitviz
from vitviz import Analysis, Model, VisionTransformer, ViTConfig
from vitviz.weights import save_checkpoint

# What the state calls the model with which the page opens.
START = ""
# How far a product of two factors is off, each rounded to eleven bits; half the step of float16 near zero.
ROUNDING, SMALLEST = 2**-10 + 2**-22, 2**-25
# Different models that visitors bring.
OWN_MODELS = 3
# Rows that each checks of a picture and a model.
ROWS = 1


@dataclass(frozen=True)
class Row:
    """A row of attention as the library computes it.

    Args:
        layer, head, token: which one.
        weights: ``"key"``.
        slack: how far the page's may be off, by the format in which it gets them: ``"key"``.
    """

    layer: int
    head: int
    token: int
    weights: torch.Tensor
    slack: torch.Tensor

    def distance(self, pack: bytes) -> float:
        """How far a layer's file is off, as a part of what it may be."""
        file = read_tensors(pack)
        if self.head >= len(file["queries"]) or file["queries"].shape[1] != len(self.weights):
            return inf
        query, keys = file["queries"][self.head, self.token].double(), file["keys"][self.head].double()
        found = (keys @ query - file["log_sums"][self.head, self.token].double()).exp()
        return float(((found - self.weights).abs() / self.slack).max())


@dataclass(frozen=True)
class Guest:
    """What one visitor brings, and what they must be shown.

    Args:
        name, picture: of the file.
        own: the file of the model.
        shown: rows of the picture by :data:`START` and ``"own"``, the bundled model and the visitor's.
        best: the most probable class and its probability, by model too.
    """

    name: str
    picture: bytes
    own: bytes
    shown: dict[str, list[Row]]
    best: dict[str, tuple[str, float]]


def row_of(analysis: Analysis, layer: int, head: int, token: int) -> Row:
    """A row of an analysis, with the slack that :mod:`vitviz.ui.packs` states."""
    trace = analysis.trace
    weights = trace.row(layer, token)[head].double()
    query, keys = trace.queries[layer, head, token].double().abs() * trace.scale, trace.keys[layer, head].double()
    keys = (keys - keys.mean(0)).abs()
    wrong = ROUNDING * (keys @ query) + SMALLEST * (query.sum() + keys.sum(1))
    return Row(layer, head, token, weights, weights * (wrong.exp() - 1) + 1e-6)


def guests(count: int, seed: int = 0) -> list[Guest]:
    """Visitors, no two with the same picture."""
    start, random_places = vitviz.load(), np.random.default_rng(seed)
    with TemporaryDirectory() as folder:
        files = [Path(folder) / f"own-{number}.safetensors" for number in range(OWN_MODELS)]
        for number, file in enumerate(files):
            save_checkpoint(file, _own_model(start, seed + number))
        own = [(vitviz.load(file), file.read_bytes()) for file in files]
    made = []
    for number in range(count):
        picture, (model, brought) = random_picture(random_places), own[number % OWN_MODELS]
        analyses = {START: vitviz.analyze(picture, start), "own": vitviz.analyze(picture, model)}
        made.append(
            Guest(
                f"guest-{number}.png",
                picture,
                brought,
                {name: _rows(analysis, random_places) for name, analysis in analyses.items()},
                {name: _best(analysis) for name, analysis in analyses.items()},
            )
        )
    return made


def _best(analysis: Analysis) -> tuple[str, float]:
    best = analysis.predictions(1)[0]
    return best.label, best.probability


def _own_model(start: Model, seed: int) -> Model:
    """A small one with random weights."""
    classes = len(start.labels)
    config = ViTConfig(64, 64, 4, 4, width=64, depth=2, heads=2, head_width=32, mlp_width=128, classes=classes)
    network = VisionTransformer(config).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    for parameter in network.parameters():
        parameter.normal_(0, 0.3, generator=generator)
    return Model(f"own-{seed}", network, replace(start.preprocessing, height=64, width=64), start.labels)


def random_picture(generator: np.random.Generator) -> bytes:
    """Soft blots of colour, PNG."""
    blots = generator.integers(0, 256, (6, 8, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(blots).resize((320, 240), Image.Resampling.BICUBIC).save(stream, "PNG")
    return stream.getvalue()


def _rows(analysis: Analysis, generator: np.random.Generator) -> list[Row]:
    """Some of different layers, in any head, of any token."""
    trace = analysis.trace
    layers = generator.permutation(trace.layers)[:ROWS].tolist()
    places = generator.integers(0, (trace.heads, trace.layout.token_count), (ROWS, 2)).tolist()
    return [row_of(analysis, layer, *place) for layer, place in zip(layers, places, strict=False)]
