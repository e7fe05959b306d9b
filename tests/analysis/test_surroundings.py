"""The numbers are the same, and in single precision, whatever torch's defaults are and under autocast."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load as read

import vitviz
from tests.support.makers import MakeModel
from tests.support.modules import OwnViT, load_own
from vitviz import METHODS, Analysis
from vitviz.evaluation.probes import PROBES, probe
from vitviz.features import layer_scores
from vitviz.ui.packs import layer_pack, rollout_pack

pytestmark = pytest.mark.slow
# Noise, so that no two patches are equal.
PICTURE = Image.fromarray(np.random.default_rng(0).integers(0, 255, (24, 36, 3), dtype=np.uint8))


@contextmanager
def double_by_default() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def elsewhere_by_default() -> AbstractContextManager[Any]:
    return torch.device("meta")


def autocast() -> AbstractContextManager[Any]:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def numbers(analysis: Analysis) -> dict[str, torch.Tensor]:
    """Everything that the library computes from an analysis, by name."""
    config, trace = analysis.model.network.config, analysis.trace
    found: dict[str, torch.Tensor] = {"logits": analysis.logits}
    for name, method in METHODS.items():
        if method.refusal(config) is None:
            heatmap = analysis.map(name)
            assert np.asarray(heatmap).dtype == np.float32, name
            found[name] = heatmap.values
    found["discard"] = analysis.rollout("max", 0.5).values
    found["contrast"] = analysis.map("relevance", target=vitviz.contrast(0, 1)).values
    found["sheet"] = analysis.attention_sheet()[1][2].values
    found["components"] = vitviz.components([analysis], 1).basis.shares
    found["groups"] = vitviz.clusters([analysis], 3, layer=1)[0].colours
    found["likeness"] = analysis.similarity((0, 0), layer=1).values
    assert layer_scores(analysis.model).layers.isfinite().all()
    found |= {f"weights {layer}": trace.weights(layer) for layer in range(trace.layers)}
    found |= {"rows": trace.rows((0, 1)), "column": trace.column(1, (1, 2)), "sums": trace.log_sums(0)}
    found["head_effects"] = analysis.head_effects(1).without
    found["switched_off"] = analysis.switched_off([(0, 1)])
    curves = analysis.faithfulness({"rollout": analysis.rollout()}, 1)
    found |= {metric: curve["rollout"].scores for metric, curve in curves.items()}
    for name, record in PROBES.items():
        if record.refusal(config) is None:
            measurements = probe(analysis, name).measurements
            found |= {f"{name}.{part}": each.values for part, each in measurements.items()}
    found |= {f"pack {name}": tensor for name, tensor in read(layer_pack(trace, 0)).items()}
    found |= {f"rollout {name}": tensor for name, tensor in read(rollout_pack(trace)).items()}
    return found


def same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype, name
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-5, equal_nan=True, msg=name)


ROTARY, POOLED = {"rotary": True, "position_rule": "fixed"}, {"cls_token": False, "pooling": "attention"}


@pytest.mark.parametrize(
    ("around", "inside", "changes"),
    [
        (double_by_default, True, POOLED),
        (double_by_default, False, ROTARY),
        (autocast, True, ROTARY),
        (autocast, False, POOLED),
        (elsewhere_by_default, True, POOLED),
        (elsewhere_by_default, False, {}),
    ],
)
def test_numbers_of_a_network_are_the_same(
    make_model: MakeModel, around: Callable[[], Any], inside: bool, changes: dict[str, Any]
) -> None:
    analysis = vitviz.analyze(PICTURE, make_model(**changes))
    expected = numbers(analysis)
    with around():
        found = numbers(vitviz.analyze(PICTURE, analysis.model) if inside else analysis)
    same(found, expected)


@pytest.mark.parametrize(("around", "inside"), [(double_by_default, True), (autocast, False)])
def test_numbers_of_a_watched_module_are_the_same(around: Callable[[], Any], inside: bool) -> None:
    module = OwnViT()
    analysis = vitviz.analyze(PICTURE, load_own(module))
    expected = numbers(analysis)
    with around():
        found = numbers(vitviz.analyze(PICTURE, load_own(module)) if inside else analysis)
    same(found, expected)
