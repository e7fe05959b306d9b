"""What a page computes of a class from its own network's gradients is what the library computes."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load

import vitviz
from tests.support.device import class_maps_on_device
from tests.support.example import EXAMPLE
from tests.support.map_contents import metadata_of
from tests.support.networks import NETWORKS
from tests.support.node import in_node
from tests.ui.explorer.page_driver import SHAPES, made
from tests.ui.explorer.test_device_maps import all_parameters
from vitviz import METHODS, Analysis, MethodError, Model, contrast, margin
from vitviz.errors.kinds import QueryError
from vitviz.ui.packs import map_file

TOLERANCE = 1e-4
# Targets as the page states them, and as the library does.
TARGETS: list[tuple[Any, Any]] = [
    (None, None),
    (2, 2),
    ({"class": 0, "against": 2}, contrast(0, 2)),
    ({"class": 1, "margin": True}, margin(1)),
]
PARAMETERS: dict[str, list[dict[str, Any]]] = {
    "relevance": [
        {},
        {"query": "patches"},
        {"query": (1, 2)},
        {"start_layer": 1},
        {"end_layer": 0, "query": "cls"},
        {"start_layer": 2, "end_layer": 1},
    ],
    "gradient_rollout": [
        {},
        {"query": (0, 0), "residual_weight": 0.2},
        {"residual_weight": 0.0, "discard_ratio": 0.9},
        {"residual_weight": 1.0},
        {"reference": "vit-explain"},
        {"reference": "vit-explain", "discard_ratio": 0.5},
        {"reference": "vit-explain", "residual_weight": 0.3},
        {"start_layer": 1, "end_layer": 1, "query": "patches"},
    ],
    "legrad": [{}, {"start_layer": 1}, {"end_layer": 0}, {"start_layer": 2, "end_layer": 1}],
    "grad_cam": [{}, {"layer": 0}],
    "integrated_gradients": [{}, {"steps": 4}, {"steps": 4, "signed": True}],
    "occlusion": [{}, {"signed": True}],
}


@pytest.mark.parametrize("kind", ["registers", "cifar", "attention pooling", "no CLS"])
def test_maps_are_those_of_the_library_with_all_parameters(kind: str, make_model: Callable[..., Model]) -> None:
    model = make_model(**NETWORKS[kind]) if kind in NETWORKS else made(*SHAPES[kind])
    analysis = vitviz.analyze(EXAMPLE, model)
    cases = [
        (method, given, target)
        for method, many in PARAMETERS.items()
        for number, given in enumerate(many)
        if given.get("query") != "cls" or "cls" in analysis.trace.layout.prefix
        for target in (TARGETS if number == 0 else TARGETS[number % 4 : number % 4 + 1])
    ]
    asked = [
        (method, all_parameters(method, given | {"target": page}, analysis.trace.layers))
        for method, given, (page, _) in cases
    ]
    found = class_maps_on_device(analysis.model, analysis.prepared.pixels, asked)
    for case, answer in zip(cases, found, strict=True):
        assert_same_map(analysis, *case, answer)


def assert_same_map(
    analysis: Analysis, method: str, given: dict[str, Any], target: tuple[Any, Any], answer: dict[str, str]
) -> None:
    case = method, given, target
    try:
        heatmap = analysis.map(method, target=target[1], **given)  # type: ignore[arg-type]
    except (MethodError, QueryError) as error:
        assert "failed" in answer, (case, error)
        return
    assert "file" in answer, (case, answer)
    content = base64.b64decode(answer["file"])
    expected = map_file(analysis, METHODS[method], given, heatmap.token_map)
    values, own = load(expected)["values"], load(content)["values"]
    # Occlusion is a difference of logits, whose rounding is that of their size.
    largest = analysis.logits if method == "occlusion" else values.nan_to_num()
    tolerance = TOLERANCE * float(largest.abs().max())
    torch.testing.assert_close(own, values, rtol=0, atol=tolerance, equal_nan=True, msg=lambda text: f"{case}: {text}")
    assert metadata_of(content) == metadata_of(expected), case


def test_a_class_without_others_has_no_margin(make_model: Callable[..., Model]) -> None:
    model = make_model(classes=1)
    analysis = vitviz.analyze(EXAMPLE, model)
    asked = [
        ("relevance", all_parameters("relevance", {"target": {"class": 0, "margin": True}}, analysis.trace.layers))
    ]
    (answer,) = class_maps_on_device(model, analysis.prepared.pixels, asked)
    assert answer["failed"].endswith("this model has no other class.")
    with pytest.raises(MethodError, match="this model has no other class"):
        analysis.relevance(margin(0))


@pytest.mark.parametrize("count", [1, 2, 5, 32, 128])
def test_the_nodes_of_the_integral_are_those_of_numpy(count: int) -> None:
    nodes, weights = np.polynomial.legendre.leggauss(count)
    found = in_node({"device/class_maps.js": "legendreNodes"}, "(count) => legendreNodes(count)", count)
    ordered = sorted((each["node"], each["weight"]) for each in found)
    assert np.allclose([node for node, _ in ordered], (1 + nodes) / 2, rtol=0, atol=1e-12)
    assert np.allclose([weight for _, weight in ordered], weights / 2, rtol=0, atol=1e-12)
