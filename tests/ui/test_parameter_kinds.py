"""A new kind of parameter is one class: links, Python, the page's facts, the API and the command follow from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest

from vitviz import METHODS, Model
from vitviz.attribution.json_values import switch
from vitviz.attribution.parameters import Parameter
from vitviz.attribution.requests import Bounds
from vitviz.cli.declarations import commands
from vitviz.errors.kinds import MethodError
from vitviz.ui.arguments import parameters_of
from vitviz.ui.facts import method_facts
from vitviz.ui.links import print_link, read_link
from vitviz.ui.normalize import ShownView, normalize_view
from vitviz.ui.records import method_record
from vitviz.ui.state import PageState, View


@dataclass(frozen=True)
class Switch(Parameter):
    """On or off."""

    name: str
    title: str
    help: str
    default: bool = False
    kind: ClassVar[str] = "switch"

    @property
    def legal(self) -> str:
        return "true or false"

    def read(self, value: object, bounds: Bounds, field: str) -> bool:
        return switch(field, value)

    def parse(self, text: str) -> bool:
        if text not in ("true", "false"):
            raise MethodError("expected true or false")
        return text == "true"


def test_a_new_kind_is_one_class(make_model: Callable[..., Model], monkeypatch: pytest.MonkeyPatch) -> None:
    record = METHODS["attention"]
    added = Switch("blink", "Blink", "shows it now and then")
    monkeypatch.setitem(METHODS, "attention", replace(record, parameters=(*record.parameters, added)))
    model, state = make_model(), PageState((View(parameters={"blink": True}),))

    assert print_link(state, {}) == "?method=attention&p.blink=true"
    assert read_link("?method=attention&p.blink=true").state == state
    assert "blink = 'perhaps' (expected true or false)" in read_link("?method=attention&p.blink=perhaps").notes[0]
    with pytest.raises(MethodError, match=r"^parameters\.blink = 1: expected true or false$"):
        View(parameters={"blink": 1})
    layout = model.network.config.layout(8, 8)
    assert normalize_view(View(parameters={"blink": False}), ShownView(model, layout)) == (View(), [])
    assert parameters_of(METHODS["attention"], {"blink": True}, model, layout)["blink"] is True
    assert added.python(True, model.labels) == "True"
    assert method_facts(METHODS["attention"])["parameters"][-1] == {
        "name": "blink", "title": "Blink", "kind": "switch", "help": "shows it now and then", "default": False
    }  # fmt: skip
    assert method_record(METHODS["attention"]).parameters[-1].legal == "true or false"
    attention = next(command for command in commands() if command.name == "attention")
    assert attention.options["blink"] == "--blink"
