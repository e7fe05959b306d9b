"""A new kind of parameter is one class: links, Python, the page's facts, the API and the command follow from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support.page_states import shown
from vitviz import METHODS, Model
from vitviz.attribution.json_values import number
from vitviz.attribution.parameters import Kind, Parameter, pair_of
from vitviz.attribution.requests import Bounds
from vitviz.cli.declarations import commands
from vitviz.errors.kinds import MethodError
from vitviz.errors.messages import quote
from vitviz.ui.facts import method_facts
from vitviz.ui.links import print_link, read_link
from vitviz.ui.normalize import normalize_view, parameters_of
from vitviz.ui.state import PageState, View


class Span(Kind):
    """Two layers, the first and the last of several."""

    control = "span"
    legal = "two layers"

    def read(self, value: object, bounds: Bounds, field: str) -> tuple[int, int]:
        if not isinstance(value, list | tuple) or len(value) != 2:
            raise MethodError(f"{field} = {quote(value)}: expected {self.legal}")
        first, last = (int(number(field, each, 0, bounds.layers - 1, whole=True)) for each in value)
        return first, last

    def parse(self, text: str) -> tuple[int, int]:
        return pair_of(text)


def test_a_new_kind_is_one_class(make_model: Callable[..., Model], monkeypatch: pytest.MonkeyPatch) -> None:
    record = METHODS["attention"]
    added = Parameter("span", "Span", "layers that are shown", Span())
    monkeypatch.setitem(METHODS, "attention", replace(record, parameters=(*record.parameters, added)))
    model, state = make_model(), PageState((View(parameters={"span": (0, 1)}),))

    assert print_link(state, {}) == "?method=attention&p.span=0,1"
    assert read_link("?method=attention&p.span=0,1").state == state
    assert "span = 'perhaps' (expected two whole numbers)" in read_link("?method=attention&p.span=perhaps").notes[0]
    with pytest.raises(MethodError, match=r"^parameters\.span = 1: expected two layers$"):
        View(parameters={"span": 1})
    analysis = shown(model)
    view = View(parameters={"span": (0, 1)})
    assert normalize_view(view, analysis) == (view, [])
    assert parameters_of(METHODS["attention"], {"span": [0, 1]}, analysis)["span"] == (0, 1)
    assert added.kind.python((0, 1), model.labels) == "(0, 1)"
    assert method_facts(METHODS["attention"])["parameters"][-1] == {
        "name": "span", "title": "Span", "help": "layers that are shown", "default": None,
        "kind": "span", "legal": "two layers",
    }  # fmt: skip
    attention = next(command for command in commands() if command.name == "attention")
    assert attention.options["span"] == "--span"
