"""The network in the page: the library's numbers, whatever kernels it runs on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitviz
from tests.support.device import KINDS, Kind, Pass, on_device, prepared_on_device
from tests.support.example import EXAMPLE
from vitviz import Model, Preprocessing
from vitviz.images.preprocessing import FITS, ROUNDINGS, Fit
from vitviz.images.resizing import BACKENDS
from vitviz.models.vit import VisionTransformer

TOLERANCE = 1e-4


def expected(model: Model, pixels: torch.Tensor) -> dict[str, Any]:
    """What the library has of an encoding, as the engine names it."""
    network = model.network
    assert isinstance(network, VisionTransformer)
    with torch.inference_mode():
        encoding = network.encode(pixels)
        *_, tokens = network.stream(pixels)
        features = network.output(pixels, "features")
    trace = encoding.traces[0]
    log_sums = torch.stack([trace.log_sums(layer) for layer in range(trace.layers)])
    return {
        "logits": encoding.logits[0],
        "features": features[0],
        "queries": trace.queries,
        "keys": trace.keys,
        "logSums": log_sums,
        "tokens": tokens[0],
        "norms": torch.linalg.vector_norm(torch.stack([each[0] for each in network.stream(pixels)]), dim=-1),
        "pooled": trace.pooled,
    }


def assert_same(found: dict[str, Any], values: dict[str, Any]) -> None:
    """The engine's numbers are the library's, within 1e-4 of the largest of each kind, or of 1."""
    for name, value in values.items():
        if value is None:
            assert found[name] is None
            continue
        assert found[name].shape == value.flatten().shape, name
        error = (found[name] - value.flatten()).abs().max()
        assert error <= TOLERANCE * max(1.0, float(value.abs().max())), f"{name}: {error}"


@pytest.mark.parametrize("kind", KINDS)
def test_the_bundled_network_has_the_librarys_numbers(kind: Kind) -> None:
    model = vitviz.load()
    pixels = vitviz.analyze(EXAMPLE, model).prepared.pixels
    found = on_device(model, [Pass(pixels)], kind)
    assert_same(found[0], expected(model, pixels))


# The picture.

SIZES = [(90, 61), (57, 130), (31, 33), (64, 64), (1, 7), (3, 200)]
PATCHES = ((8, 8), (7, 5))
OTHER_FITS: dict[str, tuple[Fit | None, ...]] = {"crop": (None, "squash"), "squash": (None, "crop")}


def noise(width: int, height: int, seed: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def settings() -> list[Preprocessing]:
    """Every interpolation of every backend, and every other way to fit a picture."""
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
    many = [
        Preprocessing(48, 48, mean, std, "crop", 0.875, interpolation, backend=backend)
        for backend, interpolations in BACKENDS.items()
        for interpolation in interpolations
    ]
    for fit in FITS[:2]:
        for rounding in ROUNDINGS:
            many += [
                Preprocessing(40, 56, mean, std, fit, 0.9, "bilinear", 0.93, rounding),
                Preprocessing(45, 45, mean, std, fit, 32 / 93, rounding=rounding, detail=20),
                Preprocessing(48, 48, (0.5,), (0.25,), fit, rounding=rounding),
            ]
    return many


def test_a_prepared_picture_is_the_librarys_within_one_level() -> None:
    cases: list[tuple[Image.Image, Preprocessing, tuple[int, int], Fit | None]] = [
        (noise(width, height, seed), preprocessing, PATCHES[seed % 2], fit)
        for preprocessing in settings()
        for seed, (width, height) in enumerate(SIZES)
        for fit in OTHER_FITS[preprocessing.fit]
    ]
    different = 0
    for (image, preprocessing, patch, fit), found in zip(cases, prepared_on_device(cases), strict=True):
        case = (image.size, preprocessing, fit)
        prepared = preprocessing.prepare(image, *patch, fit)
        geometry = prepared.geometry
        assert (found["inputHeight"], found["inputWidth"]) == (geometry.input_height, geometry.input_width), case
        assert found["box"] == list(geometry.box), case
        std = torch.tensor(preprocessing.std)[:, None, None]
        errors = (found["pixels"].view(prepared.pixels[0].shape) - prepared.pixels[0]).abs() * std * 255
        assert errors.max() <= 1.01, (case, errors.max())
        different += bool(errors.max() > 0.01)
    assert different < len(cases) / 10
