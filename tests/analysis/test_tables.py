"""What a notebook and a terminal show of predictions, models and the table of methods."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from html import unescape

import pytest

from vitviz import METHODS, Model
from vitviz.analysis import Prediction, Predictions


def cells(html: str) -> list[list[str]]:
    """The text of every cell of an HTML table, row by row."""
    rows = re.findall(r"<tr>(.*?)</tr>", html)
    return [[unescape(cell) for cell in re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row)] for row in rows]


def test_predictions_are_rows_of_probability_and_label() -> None:
    predictions = Predictions([Prediction("<b>cat</b>", 0.9231, 3), Prediction("dog", 0.0412, 7)])
    assert repr(predictions) == " 92.3%  <b>cat</b>\n  4.1%  dog"
    assert cells(predictions._repr_html_()) == [["92.3%", "<b>cat</b>"], ["\u20074.1%", "dog"]]
    assert "<b>" not in predictions._repr_html_()
    assert predictions == [Prediction("<b>cat</b>", 0.9231, 3), Prediction("dog", 0.0412, 7)]


def test_a_model_shows_its_network_input_classes_and_what_was_assumed(make_model: Callable[..., Model]) -> None:
    model = replace(make_model(), labels=("<cat>", "dog", "owl", "bat", "fox"), assumptions=("heads 4",))
    table = dict(cells(model._repr_html_()))
    assert table["network"] == "3 layers × 4 heads, width 32"
    assert table["classes"] == "5: <cat>, dog, owl, bat and 1 more"
    assert (table["name"], table["assumed"]) == ("small", "heads 4")
    assert dict(cells(make_model(classes=0)._repr_html_()))["classes"] == "no classifier"


def test_methods_are_a_table_with_their_parameters_and_sources() -> None:
    head, *rows = cells(METHODS._repr_html_())
    assert len(rows) == len(METHODS) and len(head) == len(rows[0])
    for row, line, method in zip(rows, repr(METHODS).splitlines(), METHODS.values(), strict=True):
        assert row[0] == line.split()[0] == method.name and row[-1] == method.citation
        assert all(parameter.name in line and parameter.name in row[2] for parameter in method.parameters)


def test_a_missing_method_is_a_key_error_that_suggests_a_similar_one() -> None:
    assert METHODS.get("gradcam") is None and "gradcam" not in METHODS
    with pytest.raises(KeyError, match="did you mean 'grad_cam'"):
        METHODS["gradcam"]
