"""Targets beyond one class: scores by formula, maps by autograd on the raw network, and general properties."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from PIL import Image, ImageOps

import vitviz
from tests.support.example import COARSEST, EXAMPLE
from tests.support.makers import MakeModel
from tests.support.networks import NETWORKS
from tests.support.pictures import photo
from tests.support.refusals import check_refusals
from vitviz import Analysis, Model, Target, contrast, likeness, margin
from vitviz.errors.kinds import ConfigError, MethodError, QueryError
from vitviz.evaluation.comparison import compare
from vitviz.evaluation.randomization import cascade
from vitviz.models.targets import ClassDifference

LABELS = ("a", "b", "c", "d", "e")


def analyses(model: Model) -> tuple[Analysis, Analysis]:
    return vitviz.analyze(photo(0, 24, 16), model), vitviz.analyze(photo(1, 24, 16), model)


@pytest.mark.parametrize("changes", [{}, {"classes": 0}, NETWORKS["no CLS"], NETWORKS["attention pooling"]], ids=str)
def test_a_picture_is_as_like_itself_as_can_be(make_model: MakeModel, changes: dict[str, Any]) -> None:
    model = make_model(**changes)
    analysis, other = analyses(model)
    for patch in (None, (1, 2)):
        target = likeness(other, patch)
        self_likeness, other_likeness = (float(each.switched_off(target=target)) for each in (other, analysis))
        assert -1 <= other_likeness <= 1 + 1e-6
        if patch is None:
            assert self_likeness == pytest.approx(1, abs=1e-6)
            assert other_likeness < 0.9999
    # Likeness is symmetric.
    back = float(other.switched_off(target=likeness(analysis)))
    assert back == pytest.approx(float(analysis.switched_off(target=likeness(other))), abs=1e-6)


def test_the_description_of_a_likeness_names_its_picture(make_model: MakeModel, tmp_path: Any) -> None:
    model = make_model(classes=0)
    photo(2).save(tmp_path / "rocket.png")
    file = vitviz.analyze(tmp_path / "rocket.png", model)
    analysis, other = analyses(model)
    assert likeness(file).name == "likeness to rocket.png"
    assert likeness(other).name == "likeness to another picture"
    assert likeness(file, (2, 3)).name == "likeness to patch (2, 3) of rocket.png"
    assert analysis.map("relevance", target=likeness(file)).description.startswith(
        "Relevance for likeness to rocket.png as the CLS token sees it"
    )
    # A score that depends on all patches starts from all of them.
    description = analysis.map("relevance", target=likeness(file, (2, 3))).description
    assert "as the mean patch sees it" in description
    description = analysis.map("gradient_rollout", target=likeness(file, (2, 3))).description
    assert "of likeness to patch (2, 3) of rocket.png for the mean patch" in description


@pytest.mark.slow
def test_measures_and_comparisons_take_targets(coarsest_example: Analysis) -> None:
    model = coarsest_example.model
    mirrored = ImageOps.mirror(Image.open(EXAMPLE))
    other = vitviz.analyze(mirrored, model, resolution=COARSEST)
    target = likeness(other, name="its mirror image")
    correlations = cascade(coarsest_example, ["grad_cam"], target)["grad_cam"]
    assert float(correlations[0]) == pytest.approx(1) != float(correlations[-1])
    maps = {"LeGrad": coarsest_example.map("legrad", target=target)}
    curve = coarsest_example.faithfulness(maps, target, metrics=["deletion"])["deletion"]["LeGrad"]
    # The shares of the whole and of the blank picture.
    torch.testing.assert_close(curve.scores[[0, -1]], torch.tensor([1.0, 0.0]), atol=1e-4, rtol=0)
    found = compare(coarsest_example, target=target, metrics=[])
    assert (found.target_name, type(found.target)) == ("likeness to its mirror image", Target)
    assert {"relevance", "legrad", "occlusion"} <= {each.method for each in found.maps}


def test_nothing_raises_a_likeness_of_one(make_model: MakeModel) -> None:
    _, other = analyses(make_model(classes=0))
    target = likeness(other, name="cat.jpg")
    for method in ("relevance", "gradient_rollout", "grad_cam"):
        with pytest.raises(MethodError, match=r"^likeness to cat\.jpg is 1 already, the highest .* another picture"):
            other.map(method, target=target)
    # The blank image lies below it.
    for method in ("occlusion", "integrated_gradients", "legrad"):
        assert float(other.map(method, target=target).values.max()) > 0
    # Likeness to a patch of the picture itself can rise.
    assert float(other.map("relevance", target=likeness(other, (0, 0))).values.max()) > 0


def test_wrong_likeness_is_refused(make_model: MakeModel) -> None:
    analysis, other = analyses(make_model(classes=0))
    narrow = vitviz.analyze(photo(0), make_model(classes=0, width=16, heads=2))
    patches = {
        r"patch \(4, 0\): this model has": lambda: likeness(other, (4, 0)),
        "token 0 is not a patch": lambda: likeness(other, "cls"),
    }
    check_refusals(QueryError, patches)
    check_refusals(ConfigError, {"other: 'rocket.jpg' found; expected an Analysis": lambda: likeness("rocket.jpg")})
    features = ".*16 features of the other picture, 32 of this one.* the same model"
    check_refusals(MethodError, {features: lambda: analysis.map("relevance", target=likeness(narrow))})


# Classes.


def test_contrast_and_margin_are_differences_of_logits() -> None:
    logits = torch.tensor([0.5, 3.0, -1.0, 2.0])
    labels = ("a", "b", "c", "d")

    def score(choice: ClassDifference) -> float:
        return float(choice.target(logits, labels).score(logits))

    assert score(contrast("a", "c")) == 1.5 == -score(contrast(2, 0))
    assert score(margin()) == 1.0 == score(margin("b"))
    assert score(margin("d")) == -1.0
    # The best other class is that of the scored logits.
    assert float(margin("b").target(logits, labels).score(torch.tensor([4.0, 3.0, 0.0, 0.0]))) == -1
    assert contrast("a", "c").target(logits, labels).name == "class a against class c"
    assert margin("d").target(logits, labels).name == "class d against the best of the others"


def test_wrong_classes_and_models_without_any_are_refused(make_model: MakeModel) -> None:
    analysis, _ = analyses(make_model(classes=0))
    choices = {
        "contrast of class b with itself: expected two classes": lambda: contrast("b", 1),
        "target 'nothing': this model has no such class": lambda: contrast("b", "nothing"),
        "target 5: this model has classes 0 to 4": lambda: contrast(5, 0),
        ".*target 5: this model has classes 0 to 4": lambda: margin(5),
        "second = None: expected a class": lambda: contrast("a", None),
    }
    check_refusals(
        MethodError, {text: lambda make=make: make().target(torch.zeros(5), LABELS) for text, make in choices.items()}
    )
    alone = "margin of class a: this model has no other class"
    check_refusals(MethodError, {alone: lambda: margin().target(torch.zeros(1), ("a",))})
    for target in (contrast(0, 1), margin()):
        calls = {
            "relevance: this model has no classifier": lambda target=target: analysis.map("relevance", target=target),
            ".*this model has no classifier": lambda target=target: analysis.head_effects(target),
        }
        check_refusals(MethodError, calls)


# Every function that takes a target takes these.


def test_equal_contrasts_share_one_computation(make_model: MakeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    analysis, _ = analyses(make_model())
    cached = analysis._inputs
    analysis.map("relevance", target=contrast("class 0", 1))
    inputs = list(cached.values())
    analysis.map("gradient_rollout", target=contrast(0, "class 1"))
    assert list(cached.values()) == inputs
