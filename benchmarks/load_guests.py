"""The visitors of :mod:`benchmarks.load`: what each uploads, and the library's results that they must be shown."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np
from PIL import Image
from safetensors.torch import load as read_tensors

import vitviz
from tests.support.image_files import encoded
from vitviz import Analysis

# The relative error of a product of two float16 factors, with significands of eleven bits; half of float16's smallest
# step.
HALF_PRECISION_ERROR, HALF_SMALLEST_STEP = 2**-10 + 2**-22, 2**-25
# The resolution of their second analysis, in pixels.
SMALLER = 64


@dataclass(frozen=True)
class Guest:
    """What one visitor uploads, and the results that they must be shown.

    Args:
        name, picture: the name and content of the picture's file.
        analyses: the library's by resolution; None for the model's own.
    """

    name: str
    picture: bytes
    analyses: dict[int | None, Analysis]


def deviation(pack: bytes, analysis: Analysis, layer: int, head: int, token: int) -> float:
    """How far a row of attention in a layer's file is from an analysis's.

    Returns:
        The largest difference of a weight, over what the format explains, as :mod:`vitviz.ui.packs` states it.
    """
    tensors, trace = read_tensors(pack), analysis.trace
    if tensors["queries"].shape[:2] != trace.queries.shape[1:3]:
        return inf
    query, keys = tensors["queries"][head, token].double(), tensors["keys"][head].double()
    found = (keys @ query - tensors["log_sums"][head, token].double()).exp()
    expected = trace.row(layer, token)[head].double()
    query, keys = trace.queries[layer, head, token].double().abs() * trace.scale, trace.keys[layer, head].double()
    keys = (keys - keys.mean(0)).abs()
    score_error = HALF_PRECISION_ERROR * (keys @ query) + HALF_SMALLEST_STEP * (query.sum() + keys.sum(1))
    return float(((found - expected).abs() / (expected * (score_error.exp() - 1) + 1e-6)).max())


def guests(count: int, seed: int = 0) -> list[Guest]:
    """Visitors, each with a different picture."""
    bundled, generator = vitviz.load(), np.random.default_rng(seed)
    visitors = []
    for number in range(count):
        picture = random_picture(generator)
        analyses = {pixels: vitviz.analyze(picture, bundled, resolution=pixels) for pixels in (None, SMALLER)}
        visitors.append(Guest(f"guest-{number}.png", picture, analyses))
    return visitors


def random_picture(generator: np.random.Generator) -> bytes:
    """Soft blots of colour, PNG."""
    blots = Image.fromarray(generator.integers(0, 256, (6, 8, 3), dtype=np.uint8))
    return encoded(blots.resize((320, 240), Image.Resampling.BICUBIC), "PNG")
