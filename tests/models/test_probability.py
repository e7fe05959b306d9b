"""A probability is what the model's own pipeline calls one, wherever vitviz shows one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import vitviz
from tests.support.makers import MakeModel
from tests.support.modules import CLASSES, LABELS, OwnViT, load_own, picture
from vitviz import Analysis, CheckpointError, MethodError
from vitviz.evaluation.probes import PROBES, probe
from vitviz.models.probability import PROBABILITIES
from vitviz.weights.metadata.classes import read_probability

pytestmark = pytest.mark.slow

FORMULAS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "softmax": lambda logits: logits.exp() / logits.exp().sum(),
    "sigmoid": lambda logits: 1 / (1 + (-logits).exp()),
    "identity": lambda logits: logits,
}


@pytest.mark.parametrize("function", FORMULAS)
def test_every_number_about_a_class_is_that_of_the_model(make_model: MakeModel, function: str) -> None:
    analysis = vitviz.analyze(picture(), make_model(probability=function))
    expected = FORMULAS[function](analysis.logits.double())
    best = int(expected.argmax())
    predictions = analysis.predictions(CLASSES)
    chances = [each.probability for each in predictions]
    assert chances == sorted(chances, reverse=True)
    found = {each.label: each.probability for each in predictions}
    assert found == {LABELS[index]: pytest.approx(float(value), abs=1e-6) for index, value in enumerate(expected)}
    whole = pytest.approx(float(expected[2]), abs=1e-6)
    assert float(analysis.switched_off(target=2)) == whole
    assert analysis.head_effects(2).whole == whole
    curve = analysis.faithfulness({"rollout": analysis.rollout()}, 2, metrics=["deletion"])["deletion"]["rollout"]
    assert float(curve.scores[0]) == whole
    lens = probe(analysis, "logit_lens").measurements
    assert lens["probability"].values[-1].tolist() == pytest.approx(expected.tolist(), abs=1e-5)
    assert f"{LABELS[best]}, {float(expected[best]):.0%}" in repr(analysis)
    assert f"{float(expected[best]):.1%}</td>" in analysis._repr_html_()


def test_a_regression_has_scores_and_no_probabilities(make_model: MakeModel) -> None:
    analysis = vitviz.analyze(picture(), make_model(probability="none"))
    config = analysis.model.network.config
    with pytest.raises(MethodError, match="small is a regression, whose outputs are no probabilities"):
        analysis.predictions()
    assert "%" not in repr(analysis) and "<table" not in analysis._repr_html_()
    assert analysis.head_effects(1).whole == pytest.approx(float(analysis.logits[1]), abs=1e-6)
    assert float(analysis.switched_off(target=1)) == pytest.approx(float(analysis.logits[1]), abs=1e-6)
    target = int(analysis.logits.argmax())
    curve = analysis.faithfulness({"rollout": analysis.rollout()}, target, metrics=["deletion"])["deletion"]["rollout"]
    assert curve.scores[0] == pytest.approx(1, abs=1e-5) and curve.scores[-1] == pytest.approx(0, abs=1e-5)
    assert PROBES["logit_lens"].refusal(config) == (
        "this model is a regression, whose outputs are no probabilities, so tokens have no class"
    )


def test_only_logits_of_one_label_have_an_energy(make_model: MakeModel) -> None:
    assert vitviz.analyze(picture(), make_model()).energy_score
    with pytest.raises(MethodError, match="small has no softmax over classes: it has no energy score"):
        _ = vitviz.analyze(picture(), make_model(probability="sigmoid")).energy_score


@pytest.mark.parametrize(
    ("config", "classes", "function", "assumed"),
    [
        ({"model_type": "vit", "problem_type": "multi_label_classification"}, 5, "sigmoid", False),
        ({"model_type": "vit", "problem_type": "single_label_classification"}, 5, "softmax", False),
        ({"model_type": "vit", "problem_type": "single_label_classification"}, 1, "sigmoid", False),
        ({"model_type": "vit", "problem_type": "regression"}, 1, "none", False),
        ({"model_type": "vit", "problem_type": "regression"}, 2, "none", False),
        ({"model_type": "vit", "problem_type": None}, 5, "softmax", False),
        ({"model_type": "vit"}, 1, "sigmoid", False),
        ({"architecture": "vit_base_patch16_224"}, 5, "softmax", False),
        ({}, 1, "sigmoid", True),
    ],
)
def test_a_configuration_says_what_the_pipeline_applies(
    config: dict[str, Any], classes: int, function: str, assumed: bool
) -> None:
    found, source, is_assumed = read_probability(config, classes)
    assert (found, is_assumed) == (function, assumed) and source


def test_an_unknown_problem_type_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"problem_type = 'ranking': expected 'single_label_classification', "):
        read_probability({"problem_type": "ranking"}, 2)


# Modules.


class Around(nn.Module):
    """A network, and a function of its logits."""

    def __init__(self, change: Callable[[torch.Tensor], Any], classes: int = CLASSES) -> None:
        super().__init__()
        self.network, self.change = OwnViT(classes=classes), change
        with torch.no_grad():
            # Raw logits of both signs.
            *_, bias = self.network.classifier.parameters()
            bias.copy_(torch.linspace(-2, 3, classes))
        self.eval()

    def forward(self, pixels: torch.Tensor) -> Any:
        return self.change(self.network(pixels))


def assumption(analysis: Analysis, word: str) -> str:
    return next((each for each in analysis.model.assumptions if each.startswith(word)), "")


ENDS: dict[str, tuple[Callable[[torch.Tensor], Any], str, bool]] = {
    "logits": (lambda logits: logits, "softmax", True),
    "log-softmax": (lambda logits: logits.log_softmax(-1), "softmax", True),
    "softmax": (lambda logits: logits.softmax(-1), "identity", False),
    "sigmoid": (torch.sigmoid, "identity", False),
    "method sigmoid": (lambda logits: logits.sigmoid(), "identity", False),
    "softmax by hand": (lambda logits: logits.exp() / logits.exp().sum(-1, keepdim=True), "identity", False),
    "only positive": (lambda logits: logits.abs(), "softmax", True),
}


@pytest.mark.parametrize("end", ENDS)
def test_outputs_that_are_probabilities_are_noticed(end: str) -> None:
    change, function, assumed = ENDS[end]
    module = Around(change)
    analysis = vitviz.analyze(picture(), load_own(module))
    assert analysis.model.network.config.probability == function
    assert bool(assumption(analysis, f"probability {function}: ")) == assumed
    assert analysis.model.card["probability"].startswith(f"{function} (")
    output = module(analysis.prepared.pixels)[0].detach()
    best = analysis.predictions(1)[0].probability
    assert best == pytest.approx(float(FORMULAS[function](output.double()).max()), abs=1e-6)


@pytest.mark.parametrize("stated", PROBABILITIES)
def test_the_user_says_what_a_probability_is(stated: str) -> None:
    model = load_own(OwnViT(), probability=stated)
    assert model.network.config.probability == stated and model.assumptions == ()


def test_a_single_output_has_a_sigmoid_which_is_assumed() -> None:
    analysis = vitviz.analyze(picture(), load_own(OwnViT(classes=1), labels=["dog"]))
    assert analysis.predictions()[0].probability == pytest.approx(float(analysis.logits.double().sigmoid()), abs=1e-6)
    assert "probability='none' where it is that of a regression" in assumption(analysis, "probability sigmoid")


def test_another_word_for_a_probability_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"probability 'softmaxx': expected .*; did you mean 'softmax'\?"):
        load_own(OwnViT(), probability="softmaxx")


# Several outputs.

SEVERAL: dict[str, tuple[Callable[[torch.Tensor], Any], int | str]] = {
    "a loss first": (lambda logits: (logits.new_zeros(()), logits), 1),
    "features first": (lambda logits: (logits[:, :3], logits), 1),
    "two heads": (lambda logits: (logits, -logits), 0),
    "a list": (lambda logits: [logits, -logits], 0),
    "by name": (lambda logits: {"species": logits, "age": -logits}, "species"),
    "logits by name": (lambda logits: {"age": -logits, "logits": logits}, "logits"),
}


@pytest.mark.parametrize("kind", SEVERAL)
def test_which_of_several_outputs_was_taken_is_an_assumption(kind: str) -> None:
    change, key = SEVERAL[kind]
    module = Around(change)
    analysis = vitviz.analyze(picture(), load_own(module))
    assert torch.equal(module(analysis.prepared.pixels)[key][0], analysis.logits)
    assert assumption(analysis, "output").startswith(f"output {key!r}, one of ")
    other = next(each for each in ([0, 1] if isinstance(key, int) else ["species", "age", "logits"]) if each != key)
    # The way to another one, as the assumption shows it.
    if isinstance(key, int) and kind in ("two heads", "a list"):
        assert f"forward=lambda module, pixels: module(pixels)[{other!r}]" in assumption(analysis, "output")
        chosen = vitviz.analyze(picture(), load_own(module, forward=lambda module, pixels: module(pixels)[other]))
        assert torch.equal(chosen.logits, -analysis.logits) and not assumption(chosen, "output")


def test_one_output_in_a_tuple_is_no_choice() -> None:
    for change in (lambda logits: (logits,), lambda logits: (None, logits), lambda logits: {"scores": logits}):
        analysis = vitviz.analyze(picture(), load_own(Around(change)))
        assert len(analysis.logits) == CLASSES and not assumption(analysis, "output")
