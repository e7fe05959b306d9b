"""The maps of a page as lines of Python that make them with the library."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vitviz.analysis.analysis import Analysis
from vitviz.attention.precision import PRECISIONS
from vitviz.attribution import METHODS
from vitviz.attribution.methods import ClassTarget, LayerNumber, Parameter
from vitviz.ui.pictures import example_of
from vitviz.ui.service import Origin
from vitviz.ui.state import PageState, View
from vitviz.visualization.scales import PERCENTILES
from vitviz.weights import Model


@dataclass(frozen=True)
class Made:
    """What a view shows, as the lines open it.

    Args:
        analysis: of the view.
        origin: what it was made of.
        source: the model as :func:`vitviz.load` takes it.
    """

    analysis: Analysis
    origin: Origin
    source: str


def as_python(state: PageState, made: list[Made]) -> str:
    """The lines that make the pictures of the maps, and save them under the names of their methods.

    A picture and a checkpoint of the visitor's own are called as their files are, and looked for where the lines run.

    Args:
        state: legal for its models.
        made: what its views show.
    """
    views = list(zip(state.views, made, strict=True))[: 1 if state.layout in ("one", "slide") else None]
    texts = any(_text_of(view) is not None for view, _ in views)
    examples = any(example_of(each.origin.upload) for _, each in views)
    lines = ["import vitviz", "from vitviz import Style"]
    lines += ["from vitviz.weights import resources"] * examples
    lines += ["from vitviz.weights.text_tower import open_text_tower"] * texts
    before: list[str] = []
    for index, (view, each) in enumerate(views):
        opened = _opened(each)
        lines += ["", *([] if opened == before else opened), *_map(view, each, state, index)]
        before = opened
    return "\n".join(lines) + "\n"


def _opened(made: Made) -> list[str]:
    """The lines that open the model and analyse the picture."""
    model, choice = made.analysis.model, made.origin.choice
    precision = next(name for name, dtype in PRECISIONS.items() if dtype == model.network.precision)
    facts = {**dict(choice.overrides), **({} if precision == "float32" else {"precision": precision})}
    arguments = ", ".join([_text(made.source), *(f"{name}={_value(fact)}" for name, fact in facts.items())])
    state = [] if choice.step is None else [f"model = vitviz.open_snapshot(model, {choice.step})"]
    example = example_of(made.origin.upload)
    picture = _text(made.origin.upload.name) if example is None else f'resources("assets") / {_text(example)}'
    # An input of another shape has another shorter side.
    resolution = "" if made.origin.resolution is None else f", resolution={made.origin.resolution}"
    fit = made.origin.settings.fit or model.preprocessing.fit
    return [
        f"model = vitviz.load({arguments})",
        *state,
        f"analysis = vitviz.analyze({picture}, model, fit={_text(fit)}{resolution})",
    ]


def _map(view: View, made: Made, state: PageState, index: int) -> list[str]:
    """The lines that make a map and save its picture."""
    method, model = METHODS[view.method], made.analysis.model
    text = _text_of(view)
    written = {
        part.name: "text" if text is not None and part.name == "target" else _argument(part, value, model)
        for part in method.parameters
        if (value := view.parameters.get(part.name)) is not None and not _is_default(part, value, model)
    }
    arguments = ", ".join([_text(method.name), *(f"{name}={argument}" for name, argument in written.items())])
    query = view.parameters.get("query")
    mark = f", mark={query}" if isinstance(query, tuple) else ""
    look = f"opacity={state.opacity}, smooth={state.smooth}, grid={state.grid}, fade={state.fade}{_scale(state)}"
    name = method.name if index == 0 else f"{method.name}-{index + 1}"
    return [
        *([] if text is None else [f"text = open_text_tower(model).target({_text(text)})"]),
        f"heatmap = analysis.map({arguments})",
        f'heatmap.overlay(Style({_text(state.colormap)}, {look}){mark}).save("{name}.png")',
    ]


def _scale(state: PageState) -> str:
    """The arguments of a style for the scale, where it is not chosen from the values."""
    name = "" if state.scale is None else f", scale={_text(state.scale)}"
    return name + ("" if state.percentiles == PERCENTILES else f", percentiles={state.percentiles}")


def _text_of(view: View) -> str | None:
    target = view.parameters.get("target")
    return target["text"] if isinstance(target, Mapping) else None


def _is_default(parameter: Parameter, value: Any, model: Model) -> bool:
    depth = model.network.config.depth
    return value == (parameter.default % depth if isinstance(parameter, LayerNumber) else parameter.default)


def _argument(parameter: Parameter, argument: Any, model: Model) -> str:
    # Of two classes of one name, the library finds neither by it.
    if isinstance(parameter, ClassTarget) and isinstance(argument, int):
        label = model.labels[argument]
        return _value(label if model.labels.count(label) == 1 else argument)
    return _value(argument)


def _value(argument: Any) -> str:
    return _text(argument) if isinstance(argument, str) else repr(argument)


def _text(value: str) -> str:
    """A string as Python reads it, in double quotes; what cannot be seen, or turns the line round, is escaped."""
    quoted = json.dumps(value, ensure_ascii=False)
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in quoted)
