"""The backward pass in the page: the library's gradients and the maps made of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch

import vitviz
from tests.support.device import KINDS, Kind, Pass, on_device
from tests.support.device_models import check_many, random_model
from tests.support.example import EXAMPLE
from vitviz import Model
from vitviz.attribution.grad_cam import grad_cam
from vitviz.attribution.inputs import AttributionInput
from vitviz.attribution.legrad import legrad
from vitviz.models.attention_gradients import attention_gradients
from vitviz.models.gradients import trace_gradients
from vitviz.models.targets import ClassScore, DifferenceScore, LikenessScore, Target

TOLERANCE = 1e-4
ALL = {"products": "positive", "gradCam": True, "pixels": True, "legrad": True}


def expected(model: Model, pixels: torch.Tensor, target: Target) -> dict[str, torch.Tensor | None]:
    network = model.own_network("")
    trace = trace_gradients(network, pixels, target)
    products: dict[str, list[torch.Tensor]] = {"positive": [], "signed": []}
    for layer in range(network.config.depth):
        whole = torch.cat([weights * gradient for _, weights, gradient in trace.in_chunks(layer)], 1)
        products["positive"].append(whole.relu().mean(0))
        products["signed"].append(whole.mean(0))
    inputs = AttributionInput(network, pixels, target)
    cams, legrads = [], []
    for layer in range(network.config.depth):
        cams.append(grad_cam(inputs, layer).values.flatten())
        each = legrad(inputs, layer, layer)
        legrads.append(torch.cat([torch.tensor(list(each.prefix.values())), each.values.flatten()]))
    with torch.inference_mode(False), torch.enable_grad():
        image = pixels.clone().requires_grad_()
        gradient = torch.autograd.grad(target.score(network.output(image, target.reads)[0]), image)[0]
    return {
        "score": torch.tensor(trace.score),
        "positive": torch.stack(products["positive"]),
        "signed": torch.stack(products["signed"]),
        "pooledProducts": trace.pooled,
        "gradCam": torch.stack(cams),
        "legrad": torch.stack(legrads),
        "pixels": gradient[0],
    }


def errors_of(model: Model, pixels: torch.Tensor, target: Target) -> dict[str, float]:
    """How far the library's own gradients in single precision are from those in double precision."""
    double = replace(model, network=deepcopy(model.own_network("")).double())
    exact = expected(double, pixels.double(), target)
    return {
        name: 0.0 if value is None else float((value - exact[name]).abs().max())
        for name, value in expected(model, pixels, target).items()
    }


def assert_same(model: Model, pixels: torch.Tensor, target: Target, found: dict[str, Any], products: str) -> None:
    """The gradients are the library's, within 1e-4 of the largest of a kind, or as exact where terms cancel."""
    prefix, depth = model.layout.prefix_count, model.network.config.depth
    found = {**found, "gradCam": found["gradCam"].view(depth, -1)[:, prefix:], products: found["products"]}
    for name, value in expected(model, pixels, target).items():
        if name in {"positive", "signed"} - {products}:
            continue
        if value is None:
            assert found[name] is None, name
            continue
        error, largest = (torch.as_tensor(found[name]).reshape(value.shape) - value).abs().max(), value.abs().max()
        if error > TOLERANCE * largest:
            own = errors_of(model, pixels, target)[name]
            assert error <= 4 * own, f"{name}: {error} of {largest}, where the library's own error is {own}"


def targets(model: Model, draw: random.Random) -> list[tuple[dict[str, Any], Target]]:
    """Scores as the page states them, each with that of the library."""
    config = model.network.config
    outputs = config.classes or model.own_network("").config.features
    first, second = draw.randrange(outputs), draw.randrange(outputs)
    features = torch.nn.functional.normalize(torch.randn(model.own_network("").config.features), dim=0)
    likeness = Target("likeness", LikenessScore(features, "likeness"), "features", 1.0)
    listed: list[tuple[dict[str, Any], Target]] = [
        ({"index": first}, Target("class", ClassScore(first))),
        ({"features": features.tolist()}, likeness),
    ]
    if outputs > 1:
        listed.append(({"index": first, "margin": True}, Target("margin", DifferenceScore(first, None))))
    if first != second:
        listed.append(({"index": first, "against": second}, Target("contrast", DifferenceScore(first, second))))
    return listed


@pytest.mark.parametrize("kind", KINDS)
def test_the_bundled_network_has_the_librarys_gradients(kind: Kind) -> None:
    model = vitviz.load()
    pixels, target = vitviz.analyze(EXAMPLE, model).prepared.pixels, Target("margin", DifferenceScore(17, None))
    asked = {"target": {"index": 17, "margin": True}, "wants": ALL}
    found = on_device(model, [Pass(pixels, asked)] * 2, kind)
    assert_same(model, pixels, target, found[0], "positive")
    assert torch.equal(found[0]["legrad"], found[-1]["legrad"])


def assert_drawn_is_same(seed: int) -> None:
    model, draw = random_model(seed), random.Random(seed)
    torch.manual_seed(seed)
    preprocessing, channels = model.preprocessing, model.own_network("").config.channels
    pixels = torch.randn(1, channels, preprocessing.height, preprocessing.width)
    cases, products = targets(model, draw), draw.choice(["positive", "signed"])
    passes = [Pass(pixels, {"target": asked, "wants": ALL | {"products": products}}) for asked, _ in cases]
    plain, *found = on_device(model, [Pass(pixels), *passes], draw.choice(KINDS))
    for (_, target), each in zip(cases, found, strict=True):
        assert_same(model, pixels, target, each, products)
        assert torch.equal(each["logits"], plain["logits"])


@pytest.mark.parametrize("seed", range(8))
def test_any_network_has_the_librarys_gradients(seed: int) -> None:
    assert_drawn_is_same(seed)


@pytest.mark.long
def test_many_networks_have_the_librarys_gradients() -> None:
    check_many(200, assert_drawn_is_same)


def assert_keys_are_same(seed: int, kind: Kind) -> None:
    """The gradient as the attention to each patch weakens, while some are hidden, and no trace of them afterwards."""
    model, draw = random_model(seed), random.Random(seed)
    torch.manual_seed(seed)
    network, prefix, count = model.own_network(""), model.layout.prefix_count, model.layout.patch_count
    pixels = torch.randn(1, network.config.channels, model.preprocessing.height, model.preprocessing.width)
    index, hidden = draw.randrange(network.config.classes), sorted(draw.sample(range(count), draw.randrange(count)))
    target = {"target": {"index": index}}
    asked = target | {"wants": {"products": "keys", "hiddenPatches": hidden}}
    whole = Pass(pixels, target | {"wants": ALL})
    first, found, last = on_device(model, [whole, Pass(pixels, asked), whole], kind)
    expected = attention_gradients(network, pixels, hidden, lambda logits: logits[0, index])
    exact = attention_gradients(deepcopy(network).double(), pixels.double(), hidden, lambda logits: logits[0, index])
    gradients = found["products"].view(network.config.depth, -1).sum(0)[prefix:] * network.config.heads
    left = [patch for patch in range(count) if patch not in hidden]
    error, own = ((each - exact[left]).abs().max() for each in (gradients, expected[left]))
    assert error <= TOLERANCE * exact.abs().max() + 4 * own
    assert expected[hidden].count_nonzero() == 0
    assert all(torch.equal(first[name], last[name]) for name in ("logits", "products", "legrad", "pixels"))


CLASSIFIERS = [seed for seed in range(20) if random_model(seed).network.config.classes][:6]


@pytest.mark.parametrize(("seed", "kind"), [*zip(CLASSIFIERS, KINDS * 3, strict=True)])
def test_any_network_has_the_librarys_gradient_as_attention_weakens(seed: int, kind: Kind) -> None:
    assert_keys_are_same(seed, kind)


def test_memory_has_a_limit(make_model: Callable[..., Model]) -> None:
    model = make_model(image_height=80, image_width=80, patch_height=1, patch_width=1, width=8, heads=1)
    asked = {"target": {"index": 0}, "wants": {"products": "signed"}}
    with pytest.raises(
        AssertionError, match="6401 tokens: this map takes 492 MB of memory, and may take 256 MB in the page"
    ):
        on_device(model, [Pass(torch.zeros(1, 3, 80, 80), asked)])
