"""The network in the page: the library's numbers, whatever kernels it runs on."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

import vitviz
from tests.support.device import KINDS, Kind, Pass, on_device, prepared_on_device
from tests.support.device_models import check_many, random_model
from tests.support.example import EXAMPLE
from tests.support.modules import OwnViT, load_own
from vitviz import Model, Preprocessing
from vitviz.errors.kinds import ConfigError
from vitviz.features.vectors import token_stream
from vitviz.images.preprocessing import FITS, ROUNDINGS, Fit
from vitviz.images.resizing import BACKENDS
from vitviz.metrics.ablation import switched_off
from vitviz.models.layers import AttentionOutput
from vitviz.ui.explorer.device_file import device_file, device_refusal

TOLERANCE = 1e-4


@dataclass(frozen=True)
class Off:
    """What a pass leaves out: factors of heads, "layer head", 0 for one that is off, and patches in reading order."""

    factors: torch.Tensor
    patches: tuple[int, ...] = ()

    @property
    def options(self) -> dict[str, Any]:
        return {"headFactors": self.factors.flatten().tolist(), "hiddenPatches": list(self.patches)}


def drawn(model: Model, seed: int) -> tuple[torch.Tensor, Off]:
    """Pixels of a model, and what is switched off."""
    draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    config, preprocessing, count = model.network.config, model.preprocessing, model.layout.patch_count
    pixels = torch.randn(1, config.channels, preprocessing.height, preprocessing.width, generator=generator)
    factors = (torch.rand(config.depth, config.heads, generator=generator) < 0.7).float()
    return pixels, Off(factors, tuple(sorted(draw.sample(range(count), draw.randint(0, count - 1)))))


def expected(model: Model, pixels: torch.Tensor, off: Off | None = None) -> dict[str, Any]:
    """What the library has of a pass, by the names of the engine."""
    network = model.own_network("")
    config, layout = network.config, model.layout
    off = off or Off(torch.ones(config.depth, config.heads))
    kept = [token for token in range(layout.token_count) if token - layout.prefix_count not in off.patches]
    attentions: list[AttentionOutput] = []
    pooling: list[AttentionOutput] = []
    with torch.inference_mode():
        tokens, angles = network.embed(pixels)[0][:, kept], network.angles(layout)
        if angles is not None:
            angles = angles[torch.tensor(kept[layout.prefix_count :]) - layout.prefix_count]
        stream = [tokens]
        for layer, mask in zip(network.encoder, off.factors, strict=True):
            stream.append(layer(stream[-1], angles, len(kept), mask, attentions.append))
        logits = network.read(stream[-1], layout, record=pooling.append)[0]
        features = network.read(stream[-1], layout, "features")[0]
        queries, keys = (torch.stack([getattr(each, name)[0] for each in attentions]) for name in ("queries", "keys"))
        scores = queries @ keys.transpose(-1, -2) * network.scale
        pooled = [F.pad(network.pooler.weights(each)[0], (layout.prefix_count, 0)) for each in pooling]
    return {
        "logits": logits,
        "features": features,
        "queries": queries,
        "keys": keys,
        "logSums": scores.logsumexp(-1),
        "tokens": stream[-1][0],
        "norms": torch.linalg.vector_norm(torch.stack(stream)[:, 0], dim=-1),
        "pooled": pooled[0] if pooled else None,
    }


def assert_same(found: dict[str, Any], values: dict[str, Any]) -> None:
    """The engine's numbers are the library's, within 1e-4 of the largest of a kind, or of 1."""
    for name, value in values.items():
        if value is None:
            assert found[name] is None, name
            continue
        result = torch.as_tensor(found[name])
        assert result.shape == (value.flatten().shape if value.ndim else ()), name
        if not value.numel():
            continue
        error = (result - value.reshape(result.shape)).abs().max()
        assert error <= TOLERANCE * max(1.0, float(value.abs().max())), f"{name}: {error}"


@pytest.mark.parametrize("kind", KINDS)
def test_the_bundled_network_has_the_librarys_numbers_also_of_what_is_switched_off(kind: Kind) -> None:
    model = vitviz.load()
    analysis, heads, patches = vitviz.analyze(EXAMPLE, model), [(0, 1), (3, 5), (7, 0)], [(0, 0), (6, 7), (13, 13)]
    factors = torch.ones(8, 6)
    factors[tuple(zip(*heads, strict=True))] = 0
    off, pixels = Off(factors, tuple(row * 14 + column for row, column in patches)), analysis.prepared.pixels
    passes = [Pass(pixels), Pass(pixels, off.options), Pass(pixels, {**off.options, "logitsOnly": True})]
    whole, without, only = on_device(model, passes, kind)
    assert_same(whole, expected(model, pixels))
    assert_same(without, expected(model, pixels, off))
    logits = switched_off(model.network, pixels, heads, patches)
    assert_same(without, {"logits": logits})
    assert_same(only, {"logits": logits, "queries": torch.empty(0)})


def assert_drawn_is_same(seed: int) -> None:
    model = random_model(seed)
    pixels, off = drawn(model, seed)
    layers = 1 + seed % model.network.config.depth
    others = [{**off.options, "logitsOnly": True}, {}, {"layers": layers}]
    passes = [Pass(pixels), Pass(pixels, off.options), *(Pass(pixels, options) for options in others)]
    whole, without, only, again, some = on_device(model, passes, KINDS[seed % len(KINDS)])
    assert_same(whole, expected(model, pixels))
    assert_same(without, expected(model, pixels, off))
    heads = [(int(layer), int(head)) for layer, head in (off.factors == 0).nonzero()]
    logits = switched_off(
        model.network, pixels, heads, [divmod(patch, model.layout.grid_width) for patch in off.patches]
    )
    for each in (without, only):
        assert_same(each, {"logits": logits})
    assert torch.equal(whole["logits"], again["logits"])
    assert_same(some, {"tokens": list(token_stream(model.network, pixels))[layers]})


@pytest.mark.parametrize("seed", range(12))
def test_any_network_has_the_librarys_numbers(seed: int) -> None:
    assert_drawn_is_same(seed)


@pytest.mark.long
def test_many_networks_have_the_librarys_numbers() -> None:
    check_many(500, assert_drawn_is_same)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", ["queries", "values", "mlp"])
def test_numbers_that_overflow_are_refused(kind: Kind, part: str, make_model: Callable[..., Model]) -> None:
    model = make_model(activation="relu")
    layer = model.own_network("").encoder[1]
    if part == "mlp":
        layer.mlp[0].weight[:] = 1e38
    else:
        layer.attention.qkv.weight.view(3, 32, 32)[0 if part == "queries" else 2] = 1e38
    pixels = torch.randn(1, 3, 16, 24)
    assert not model.network(pixels)[0].isfinite().any()
    with pytest.raises(AssertionError, match="numbers leave the range of 32 bits for this picture"):
        on_device(model, [Pass(pixels)], kind)


def test_what_the_page_cannot_run_is_refused_by_name() -> None:
    model = vitviz.load()
    assert device_refusal(model) is None
    # The file of a model is always the same, so that a browser keeps it.
    assert len({device_file(model) for _ in range(4)}) == 1
    other = random_model(1)
    network = other.own_network("")
    network.patch_embedding = nn.Sequential(network.patch_embedding)  # type: ignore[assignment]
    refused = {
        "takes pictures of any shape (fit 'native')": replace(
            model, preprocessing=replace(model.preprocessing, fit="native")
        ),
        "has no network of vitviz's own": load_own(OwnViT()),
        "has other weights than its configuration (patch_embedding.": other,
        "computes in bfloat16, and the page in float32": replace(
            model, network=model.own_network("").set_precision("bfloat16")
        ),
    }
    for reason, each in refused.items():
        assert str(device_refusal(each)).startswith(reason)
        with pytest.raises(ConfigError, match="^" + re.escape(f"{each.name} {reason}")):
            device_file(each)


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
