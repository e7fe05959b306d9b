"""A page that runs the network makes views legal as the app does."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

import vitviz
from tests.support.example import EXAMPLE
from tests.support.networks import NETWORKS
from tests.support.node import in_node
from tests.ui.explorer.page_driver import SHAPES, made
from vitviz import METHODS, Model
from vitviz.attribution.parameters import Choice, ClassTarget, HeadNumber, LayerNumber, Number, Parameter, Switch, Token
from vitviz.ui.explorer.device_page import DEVICE_METHODS, DEVICE_PROBES, device_page
from vitviz.ui.normalize import normalize_view
from vitviz.ui.state import PageState, View

LEGAL = """({ views, settings, facts, model }) => views.map((view) => legalView(view, settings, facts, model))"""
COUNT = 300


def drawn_value(record: Parameter, draw: random.Random) -> Any:
    """A value that the page may have, of this model or of another one."""
    kind = record.kind
    if isinstance(kind, LayerNumber):
        return draw.randrange(5)
    if isinstance(kind, HeadNumber):
        return draw.choice([0, 1, 2, 3, "mean", "max", "min"])
    if isinstance(kind, Token):
        return draw.choice(
            [[0, 0], [2, 3], [5, 5], [6, 6], [2, 8], [9, 2], "patches", "cls", "register 1", "register 5"]
        )
    if isinstance(kind, Number):
        steps = round((kind.maximum - kind.minimum) / kind.step)
        return draw.choice([record.default, kind.minimum + draw.randrange(steps + 1) * kind.step])
    if isinstance(kind, Switch):
        return draw.random() < 0.5
    if isinstance(kind, Choice):
        return draw.choice([value for _, value in kind.options])
    assert isinstance(kind, ClassTarget)
    classes: list[dict[str, Any]] = [{"class": 0}, {"class": 2}, {"class": 7}, {}]
    second: list[dict[str, Any]] = [{"margin": True}, {"against": 1}, {"against": 9}]
    return draw.choice([0, 1, 7, {"text": "a cat"}, {**draw.choice(classes), **draw.choice(second)}])


def as_json(view: View) -> dict[str, Any]:
    return json.loads(json.dumps(PageState((view,)).to_json()["views"][0]))


def drawn_view(draw: random.Random) -> View:
    method, cells = METHODS[draw.choice(DEVICE_METHODS)], [(0, 0), (5, 5), (2, 9), (9, 2)]
    given = [each for each in method.parameters if draw.random() < 0.6]
    return View(
        fit=draw.choice([None, "crop", "squash"]),
        method=method.name,
        parameters={each.name: drawn_value(each, draw) for each in given},
        pins=tuple(draw.sample([(0, 0), (9, 1), "cls", "register 1"], 2)),
        heads_off=tuple(draw.sample([(0, 0), (0, 3), (2, 1), (4, 0)], 2)),
        patches_off=tuple(draw.sample(cells, 2)),
        probe=draw.choice(DEVICE_PROBES),
    )


@pytest.mark.parametrize("kind", ["registers", "cifar", "attention pooling", "no CLS"])
def test_a_view_becomes_legal_as_in_the_app(kind: str, make_model: Callable[..., Model]) -> None:
    model = make_model(**NETWORKS[kind]) if kind in NETWORKS else made(*SHAPES[kind])
    analysis, start, draw = vitviz.analyze(EXAMPLE, model), device_page([model]).start, random.Random(kind)
    views = [drawn_view(draw) for _ in range(COUNT)]
    facts = {"settings": start["settings"], "facts": start["views"][0], "model": start["models"][""]}
    found = in_node({"device/legal_view.js": "legalView"}, LEGAL, {"views": list(map(as_json, views)), **facts})
    for view, legal in zip(views, found, strict=True):
        expected, notes = normalize_view(view, analysis)
        assert legal["view"] == as_json(expected), view
        # Of parameters, the app says in more detail what is wrong.
        assert len(legal["notes"]) == len(notes), (view, legal["notes"], notes)
        assert {note for note in legal["notes"] if not note.endswith("The default is shown.")} <= set(notes)
