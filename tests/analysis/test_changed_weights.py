"""An analysis knows the weights that it was made with: another pass through changed ones is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

import vitviz
from tests.support.modules import OwnViT, load_own, picture
from vitviz import Analysis, MethodError, Model, likeness
from vitviz.evaluation.comparison import compare
from vitviz.evaluation.probes import probe

pytestmark = pytest.mark.slow

CHANGED = "weights have changed since this analysis was made; analyse the picture again, or load copy.deepcopy"


def step(module: OwnViT) -> None:
    """As a step of an optimiser."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.01)


def average(module: OwnViT) -> None:
    """As averages of weights are swapped in, which torch does not count as a change."""
    for parameter in module.classifier.parameters():
        parameter.data.mul_(0.9)


def replace(module: OwnViT) -> None:
    module.classifier = torch.nn.Linear(32, 5)
    module.eval()


def prune(module: OwnViT) -> None:
    """As a head is pruned."""
    with torch.no_grad():
        max(module.layers.parameters(), key=torch.Tensor.numel)[:8] = 0


PASSES: dict[str, Callable[[Analysis], Any]] = {
    "relevance": lambda analysis: analysis.map("relevance", target=0),
    "occlusion": lambda analysis: analysis.map("occlusion", target=0),
    "head_effects": lambda analysis: analysis.head_effects(0),
    "switched_off": lambda analysis: analysis.switched_off([(0, 0)]),
    "faithfulness": lambda analysis: analysis.faithfulness({"rollout": analysis.rollout()}, 0),
    "logit_lens": lambda analysis: probe(analysis, "logit_lens"),
    "patch_components": lambda analysis: probe(analysis, "patch_components"),
    "likeness": likeness,
    "compare": compare,
}


@pytest.mark.parametrize("name", PASSES)
def test_another_pass_through_changed_weights_is_refused(name: str) -> None:
    module = OwnViT()
    analysis = vitviz.analyze(picture(), load_own(module))
    step(module)
    with pytest.raises(MethodError, match=CHANGED):
        PASSES[name](analysis)


@pytest.mark.parametrize("change", [step, average, replace, prune])
def test_every_change_is_noticed_and_a_new_analysis_is_of_it(change: Callable[[OwnViT], None]) -> None:
    module = OwnViT()
    model = load_own(module)
    frozen = vitviz.analyze(picture(), load_own(copy.deepcopy(module)))
    early, again = vitviz.analyze(picture(), model), vitviz.analyze(picture(), model)
    expected, rollout = again.map("relevance", target=0).values, early.rollout().values
    change(module)
    with pytest.raises(MethodError, match=CHANGED):
        early.map("relevance", target=0)
    # It needs no other pass.
    assert torch.equal(early.rollout().values, rollout)
    assert torch.equal(frozen.map("relevance", target=0).values, expected)
    late = vitviz.analyze(picture(), model).map("relevance", target=0).values
    assert not torch.allclose(late, expected, rtol=1e-4)


def test_a_network_of_ones_own_that_is_trained_is_noticed(make_model: Callable[..., Model]) -> None:
    model = make_model()
    for parameter in model.network.parameters():
        parameter.requires_grad_(True)
    analysis = vitviz.analyze(picture(), model)
    analysis.map("relevance", target=0)
    with torch.no_grad():
        next(iter(model.network.parameters())).add_(1)
    with pytest.raises(MethodError, match=CHANGED):
        analysis.map("relevance", target=0)
