"""One image, one model, asked anything: the same for every kind of source, and what the network itself computes."""

from __future__ import annotations

import inspect
import pydoc
import re
from typing import Any

import numpy as np
import pytest
import torch

import vitviz
from tests.support.makers import MakeModel
from tests.support.pictures import photo
from vitviz import METHODS, Analysis, Heatmap, LimitError, MethodError, QueryError, analyze
from vitviz.attribution import attention, rollout
from vitviz.attribution.parameters import ClassTarget, HeadNumber, LayerNumber, Parameter, Token

# Sources.


def test_an_analysis_is_not_part_of_any_gradient(make_model: MakeModel) -> None:
    model = make_model()
    model.network.requires_grad_(True)
    analysis = analyze(photo(), model)
    assert not analysis.logits.requires_grad
    assert not analysis.trace.queries.requires_grad


# Predictions.


@pytest.mark.parametrize(("count", "given"), [(0, 0), (1, 1), (3, 3), (5, 5), (100, 5)])
def test_as_many_predictions_come_as_are_asked_for_and_exist(make_model: MakeModel, count: int, given: int) -> None:
    analysis = analyze(photo(), make_model())
    assert analysis.predictions(count) == analysis.predictions(5)[:given]
    assert len(analysis.predictions(count)) == given


def test_a_model_without_a_classifier_refuses_predictions_by_name(make_model: MakeModel) -> None:
    analysis = analyze(photo(), make_model(classes=0))
    assert analysis.logits.numel() == 0
    with pytest.raises(MethodError, match="small has no classifier"):
        analysis.predictions()
    with pytest.raises(MethodError, match="small has no classifier: it has no energy score"):
        _ = analysis.energy_score


def test_the_energy_score_is_the_logarithm_of_the_sum_of_exponentials(make_model: MakeModel) -> None:
    analysis = analyze(photo(), make_model())
    assert analysis.energy_score == pytest.approx(np.log(np.exp(analysis.logits.double().numpy()).sum()), rel=1e-5)


@pytest.mark.parametrize("name", ["is_out_of_distribution", "ood_score"])
def test_what_the_detector_said_is_one_sentence_now(make_model: MakeModel, name: str) -> None:
    with pytest.raises(MethodError, match=f"{name}.* was taken out, because .*; look at analysis.predictions\\(\\)"):
        getattr(analyze(photo(), make_model()), name)


# Maps.


CALLS: list[tuple[str, dict[str, Any]]] = [
    ("attention", {}),
    ("attention", {"layer": 1, "head": 2, "query": (3, 5), "direction": "column"}),
    ("rollout", {}),
    ("rollout", {"head_fusion": "max", "discard_ratio": 0.9, "residual_weight": 0.2, "start_layer": 1}),
    ("rollout", {"query": "patches", "reference": "vit-explain"}),
]


@pytest.mark.parametrize(("method", "parameters"), CALLS)
def test_maps_are_those_of_the_functions(make_model: MakeModel, method: str, parameters: dict[str, Any]) -> None:
    analysis = analyze(photo(), make_model())
    expected = {"attention": attention, "rollout": rollout}[method](analysis.trace, **parameters)
    for found in (analysis.map(method, **parameters), getattr(analysis, method)(**parameters)):
        assert torch.equal(found.values, expected.values)
        assert found.token_map.prefix == expected.prefix
        assert found.description == expected.description
        assert found.image is analysis.prepared.image
        assert found.geometry == analysis.prepared.geometry


ASK_A_PATCH = [name for name, method in METHODS.items() if "query" in [each.name for each in method.parameters]]


@pytest.mark.parametrize("method", ASK_A_PATCH)
def test_every_patch_is_the_strongest_of_its_own_map_where_the_record_says_so(
    make_model: MakeModel, method: str
) -> None:
    analysis = analyze(photo(), make_model())
    grid = [(row, column) for row in range(4) for column in range(6)]
    maps = {patch: analysis.map(method, query=patch).values for patch in grid}
    strongest = [bool(values[patch] == values.max()) for patch, values in maps.items()]
    assert all(strongest) == METHODS[method].begins_with_identity


CLASS_SPECIFIC = [method.name for method in METHODS.values() if method.class_specific]
every_class_specific = pytest.mark.parametrize("method", CLASS_SPECIFIC)


@every_class_specific
def test_a_class_specific_map_is_about_the_most_probable_class_where_none_is_named(
    make_model: MakeModel, method: str
) -> None:
    analysis = analyze(photo(), make_model())
    best = int(analysis.logits.argmax())
    found = analysis.map(method)
    assert f"class {best}" in found.description
    for target in (best, f"class {best}"):
        assert torch.equal(analysis.map(method, target=target).values, found.values)
    assert (analysis.map(method, target=(best + 1) % 5).values - found.values).abs().max() > 1e-5
    with pytest.raises(MethodError, match="target 5: this model has classes 0 to 4"):
        analysis.map(method, target=5)


@every_class_specific
def test_a_model_without_a_classifier_has_no_class_specific_map(make_model: MakeModel, method: str) -> None:
    with pytest.raises(MethodError, match=f"^{method}: this model has no classifier"):
        analyze(photo(), make_model(classes=0)).map(method)


# What a model with layers 0 to 2, heads 0 to 3 and classes 0 to 4 lacks.
LACKING = {LayerNumber: 3, HeadNumber: 4, Token: "register 9", ClassTarget: 5}


@pytest.mark.parametrize(
    ("method", "parameter"),
    [
        pytest.param(method.name, parameter, id=f"{method.name}, {parameter.name}")
        for method in METHODS.values()
        for parameter in method.parameters
        if type(parameter.kind) in LACKING
    ],
)
def test_what_the_model_does_not_have_is_refused_with_what_it_has(
    make_model: MakeModel, method: str, parameter: Parameter
) -> None:
    pooling = METHODS[method].pooling or ("cls",)
    lacking = LACKING[type(parameter.kind)]
    with pytest.raises((MethodError, QueryError), match=f"^.*{lacking}'?: this model has .*"):
        analyze(photo(), make_model(pooling=pooling[0])).map(method, **{parameter.name: lacking})


def test_missing_memory_is_said_with_the_method_and_the_tokens(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Analysis, "_required", fail)
    with pytest.raises(LimitError, match=r"^rollout at 25 tokens: this machine has not enough memory free"):
        analyze(photo(), make_model()).rollout()


# Signatures that an editor can complete.


def test_what_is_not_said_is_the_methods_own_default() -> None:
    """None stands for it, so that no method may have another default where None means something."""
    for method in METHODS.values():
        takes = inspect.signature(method.compute).parameters
        for parameter in method.parameters:
            if parameter.default is None and parameter.name != "target":
                assert takes[parameter.name].default is None


def test_no_public_function_hides_its_parameters() -> None:
    public = [value for name in vitviz.__all__ if callable(value := getattr(vitviz, name))]
    methods = [each for kind in public if inspect.isclass(kind) for name, each in vars(kind).items() if name[0] != "_"]
    functions = [each for each in (*public, *methods) if inspect.isfunction(each)]
    for function in functions:
        kinds = {parameter.kind for parameter in inspect.signature(function).parameters.values()}
        assert inspect.Parameter.VAR_KEYWORD not in kinds, function
    assert len(functions) > 40


@pytest.mark.parametrize("name", METHODS)
def test_help_of_a_method_explains_every_parameter(name: str) -> None:
    method = getattr(Analysis, name)
    text, signature = pydoc.render_doc(method, renderer=pydoc.plaintext), inspect.signature(method)
    explained = re.findall(r"^ +([\w, ]+): ", text.partition("Args:")[2], re.MULTILINE)
    assert {*", ".join(explained).split(", "), "self"} == {*signature.parameters}
    assert f"{name}{signature}" in text


def test_a_notebook_shows_the_rollout_or_why_there_is_none(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    analysis = analyze(photo(), make_model())
    assert 'alt="Attention rollout"' in analysis._repr_html_()

    def refuse(self: Analysis, method: str) -> Heatmap:
        raise MethodError(f"{method}: not of this model")

    monkeypatch.setattr(Analysis, "map", refuse)
    page = analysis._repr_html_()
    assert "rollout: not of this model" in page and "<img" not in page


@pytest.mark.parametrize(
    ("options", "words", "card"),
    [
        ({"classes": 5}, "; of 5 classes: ", "Of the 5 things it knows:"),
        ({"classes": 1, "probability": "sigmoid"}, "; of 1 class: ", "Of the 1 thing it knows:"),
        ({"classes": 2, "probability": "none"}, "", ""),
        ({"classes": 0}, "", ""),
    ],
)
def test_an_answer_says_of_how_many(make_model: MakeModel, options: dict[str, Any], words: str, card: str) -> None:
    analysis = analyze(photo(), make_model(**options))
    shown, page = repr(analysis), analysis._repr_html_()
    assert words in shown and card in page
    if not card:
        assert "patches)" in shown and "classes" not in shown and "it knows" not in page


def test_maps_to_be_scored_are_those_of_the_picture_and_of_the_input(make_model: MakeModel) -> None:
    model, picture = make_model(), photo(0, 40, 20)
    analysis = vitviz.analyze(picture, model, "squash")
    scored = analysis.faithfulness({"own": vitviz.Heatmap.of(analysis.rollout().values, picture)}, metrics=["deletion"])
    assert scored["deletion"].keys() == {"own", "random order"}
    others = {
        r"on the part .* of the picture; expected it on the model's input": vitviz.analyze(picture, model, "crop"),
        "on another picture; expected maps of this analysis": vitviz.analyze(picture.rotate(180), model, "squash"),
    }
    for message, other in others.items():
        with pytest.raises(MethodError, match=f"^maps: 'other' is {message}"):
            analysis.faithfulness({"other": other.rollout()}, metrics=["deletion"])
