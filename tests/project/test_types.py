"""Choices in signatures are those of the registries, so that type checkers catch typos and editors complete names."""

from __future__ import annotations

import inspect
from collections.abc import Collection
from typing import Any, get_args, get_type_hints

import pytest

from vitviz import METHODS, Analysis, load
from vitviz.attention.precision import PRECISIONS, Precision
from vitviz.attention.softmax import HEAD_FUSIONS, HeadFusion
from vitviz.attribution.exclusion import EXCLUSIONS, Exclusion
from vitviz.attribution.methods import Method, MethodName
from vitviz.attribution.parameters import Choice, HeadNumber
from vitviz.metrics.faithfulness import METRICS, MetricName
from vitviz.models.activations import ACTIVATIONS, Activation
from vitviz.models.pooling import POOLINGS, PoolingName
from vitviz.models.positions import POSITION_RULES, PositionRule
from vitviz.models.probability import PROBABILITIES, Probability
from vitviz.visualization.scales import SCALES, ScaleName
from vitviz.weights.metadata.normalisations import NORMALISATIONS, Normalisation
from vitviz.weights.model import ENGINES
from vitviz.weights.overrides import CHOICES

REGISTRIES: dict[str, tuple[Any, Collection[str]]] = {
    "method": (MethodName, METHODS),
    "metric": (MetricName, METRICS),
    "head fusion": (HeadFusion, HEAD_FUSIONS),
    "exclusion": (Exclusion, EXCLUSIONS),
    "scale": (ScaleName, SCALES),
    "precision": (Precision, PRECISIONS),
    "activation": (Activation, ACTIVATIONS),
    "pooling": (PoolingName, POOLINGS),
    "position rule": (PositionRule, POSITION_RULES),
    "probability": (Probability, PROBABILITIES),
    "normalisation": (Normalisation, NORMALISATIONS),
}


@pytest.mark.parametrize("name", REGISTRIES)
def test_a_literal_has_the_names_of_its_registry(name: str) -> None:
    literal, registry = REGISTRIES[name]
    assert get_args(literal) == tuple(registry)


def words_of(annotation: Any) -> set[str]:
    """The words of all literals in an annotation."""
    parts = get_args(annotation)
    return {part for part in parts if isinstance(part, str)}.union(*map(words_of, parts))


def test_the_choices_of_every_parameter_are_in_the_signature_of_map() -> None:
    hints, choices = get_type_hints(Analysis.map), {}
    for method in METHODS.values():
        for parameter in method.parameters:
            if isinstance(parameter.kind, Choice):
                choices[parameter.name] = {value for _, value in parameter.kind.options if value is not None}
            elif isinstance(parameter.kind, HeadNumber):
                choices[parameter.name] = set(HEAD_FUSIONS)
    assert len(choices) == 5
    assert {name: words_of(hints[name]) for name in choices} == choices


def test_the_choices_of_load_are_in_its_signature() -> None:
    hints = get_type_hints(load)
    expected = {**CHOICES, "engine": ENGINES, "precision": tuple(PRECISIONS)}
    assert {name: words_of(hints[name]) for name in expected} == {name: set(words) for name, words in expected.items()}


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_every_method_is_one_of_an_analysis_with_the_parameters_of_its_record(method: Method) -> None:
    computed, hints = list(inspect.signature(method.compute).parameters.values())[1:], get_type_hints(Analysis.map)
    named = inspect.signature(getattr(Analysis, method.name)).parameters
    assert list(named) == ["self", *["target"] * method.class_specific, *(parameter.name for parameter in computed)]
    assert [named[parameter.name].default for parameter in computed] == [parameter.default for parameter in computed]
    defaults = {parameter.name: parameter.default for parameter in method.parameters}
    assert {name: named[name].default for name in defaults} == defaults
    assert set(named) - {"self", "report"} == set(defaults)
    for name, hint in get_type_hints(getattr(Analysis, method.name)).items():
        assert name == "return" or (hint | None) == hints[name], name


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_every_parameter_of_a_named_method_reaches_its_map(method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Analysis, "map", lambda _, *names, **parameters: (names, parameters))
    named = getattr(Analysis, method.name)
    values = {name: object() for name in inspect.signature(named).parameters if name != "self"}
    assert named(object.__new__(Analysis), **values) == ((method.name,), values)
