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
from vitviz.evaluation.probes import PROBES
from vitviz.ui.inputs import Origin
from vitviz.ui.normalize import resolution_step
from vitviz.ui.pictures import Upload, example_of
from vitviz.ui.state import NATIVE, PageState, View
from vitviz.visualization.scales import PERCENTILES
from vitviz.weights import Model


@dataclass(frozen=True)
class Made:
    """What a view shows, as the lines open it.

    Args:
        analysis: of the view.
        origin: what it was made of.
        source: the model as :func:`vitviz.load` takes it.
        other: the picture that the view's map is about likeness to, where it is another one.
    """

    analysis: Analysis
    origin: Origin
    source: str
    other: Upload | None = None


def as_python(state: PageState, made: list[Made]) -> str:
    """The lines that make the pictures of the maps, and save them under the names of their methods; those of the first
    view's probe, too, where its panel is open.

    A picture and a checkpoint of the visitor's own are called as their files are, and looked for where the lines run.

    Args:
        state: legal for its models.
        made: what its views show.
    """
    views = list(zip(state.views, made, strict=True))[: 1 if state.layout in ("one", "slide") else None]
    texts = any("text" in _target_of(view) for view, _ in views)
    uploads = [each.origin.upload for _, each in views] + [each.other for _, each in views if each.other is not None]
    examples = any(map(example_of, uploads))
    lines = ["import vitviz", "from vitviz import Style"]
    lines += ["from vitviz.images.clips import read_frame"] * any(each.frame is not None for each in uploads)
    lines += ["from vitviz.weights import resources"] * examples
    lines += ["from vitviz.weights.text_tower import open_text_tower"] * texts
    probed = state.panel == "probes" and _has_probe(*views[0])
    lines += ["from vitviz.evaluation.probes import probe"] * probed
    before: list[str] = []
    for index, (view, each) in enumerate(views):
        opened = _opened(each)
        lines += ["", *([] if opened == before else opened), *_map(view, each, state, index)]
        lines += _probe(view) * (probed and index == 0)
        before = opened
    return "\n".join(lines) + "\n"


def _opened(made: Made) -> list[str]:
    """The lines that open the model and analyse the picture."""
    model, choice = made.analysis.model, made.origin.choice
    precision = next(name for name, dtype in PRECISIONS.items() if dtype == model.network.precision)
    facts = {**dict(choice.overrides), **({} if precision == "float32" else {"precision": precision})}
    arguments = ", ".join([_text(made.source), *(f"{name}={_value(fact)}" for name, fact in facts.items())])
    state = [] if choice.step is None else [f"model = vitviz.open_snapshot(model, {choice.step})"]
    # An input of another shape has another shorter side.
    resolution = "" if made.origin.resolution is None else f", resolution={made.origin.resolution}"
    return [
        f"model = vitviz.load({arguments})",
        *state,
        f"analysis = vitviz.analyze({_picture(made.origin.upload)}, model, fit={_text(_fit(made))}{resolution})",
    ]


def _picture(upload: Upload) -> str:
    """A picture as :func:`vitviz.analyze` takes it."""
    if upload.frame is not None:
        return f"read_frame({_text(upload.name)}, {upload.frame})"
    example = example_of(upload)
    return _text(upload.name) if example is None else f'resources("assets") / {_text(example)}'


def _fit(made: Made) -> str:
    return made.origin.settings.fit or made.analysis.model.preprocessing.fit


def _map(view: View, made: Made, state: PageState, index: int) -> list[str]:
    """The lines that make a map and save its picture."""
    method, model = METHODS[view.method], made.analysis.model
    target = _target_of(view)
    written = {
        part.name: _argument(part, value, model)
        for part in method.parameters
        if (value := view.parameters.get(part.name)) is not None and not _is_default(part, value, model)
    }
    arguments = ", ".join([_text(method.name), *(f"{name}={argument}" for name, argument in written.items())])
    query = view.parameters.get("query")
    mark = f", mark={query}" if isinstance(query, tuple) else ""
    look = f"opacity={state.opacity}, smooth={state.smooth}, grid={state.grid}, fade={state.fade}{_scale(state)}"
    name = method.name if index == 0 else f"{method.name}-{index + 1}"
    return [
        *_target_lines(target, made),
        f"heatmap = analysis.map({arguments})",
        f'heatmap.overlay(Style({_text(state.colormap)}, {look}){mark}).save("{name}.png")',
    ]


def _has_probe(view: View, made: Made) -> bool:
    return PROBES[view.probe].refusal(made.analysis.model.network.config) is None


def _probe(view: View) -> list[str]:
    """The lines that look into the model, and print what was found."""
    given = (f"{name}={_value(value)}" for name, value in view.probe_parameters.items())
    arguments = ", ".join(["analysis", _text(view.probe), *given])
    return [f"findings = probe({arguments})", "print(findings.summary)"]


def _scale(state: PageState) -> str:
    """The arguments of a style for the scale, where it is not chosen from the values."""
    name = "" if state.scale is None else f", scale={_text(state.scale)}"
    return name + ("" if state.percentiles == PERCENTILES else f", percentiles={state.percentiles}")


def _target_of(view: View) -> Mapping[str, Any]:
    """A target of several parts; empty where there is none, or a class alone."""
    target = view.parameters.get("target")
    return target if isinstance(target, Mapping) else {}


def _target_lines(target: Mapping[str, Any], made: Made) -> list[str]:
    """The lines before a map that make what its target needs."""
    if "text" in target:
        return [f"text = open_text_tower(model).target({_text(target['text'])})"]
    if made.other is None or "like" not in target:
        return []
    analyzed = f"model, fit={_text(_fit(made))}"
    if made.origin.settings.resolution == NATIVE:
        # As large as the other picture itself.
        step = resolution_step(made.analysis.model)
        return [
            f"other_image = vitviz.open_image({_picture(made.other)})",
            f"resolution = max({step}, min(other_image.size) // {step} * {step})",
            f"other = vitviz.analyze(other_image, {analyzed}, resolution=resolution)",
        ]
    resolution = "" if made.origin.resolution is None else f", resolution={made.origin.resolution}"
    return [f"other = vitviz.analyze({_picture(made.other)}, {analyzed}{resolution})"]


def _target_argument(target: Mapping[str, Any], model: Model) -> str:
    if "text" in target:
        return "text"
    if "like" in target or "patch" in target:
        patch = f", patch={target['patch']}" if "patch" in target else ""
        return f"vitviz.likeness({'other' if 'like' in target else 'analysis'}{patch})"
    first = target.get("class")
    if "margin" in target:
        return f"vitviz.margin({'' if first is None else _class(first, model)})"
    return f"vitviz.contrast({None if first is None else _class(first, model)}, {_class(target['against'], model)})"


def _is_default(parameter: Parameter, value: Any, model: Model) -> bool:
    depth = model.network.config.depth
    return value == (parameter.default % depth if isinstance(parameter, LayerNumber) else parameter.default)


def _argument(parameter: Parameter, argument: Any, model: Model) -> str:
    if isinstance(argument, Mapping):
        return _target_argument(argument, model)
    return _class(argument, model) if isinstance(parameter, ClassTarget) else _value(argument)


def _class(index: int, model: Model) -> str:
    # Of two classes of one name, the library finds neither by it.
    label = model.labels[index]
    return _value(label if model.labels.count(label) == 1 else index)


def _value(argument: Any) -> str:
    return _text(argument) if isinstance(argument, str) else repr(argument)


def _text(value: str) -> str:
    """A string as Python reads it, in double quotes; what cannot be seen, or turns the line round, is escaped."""
    quoted = json.dumps(value, ensure_ascii=False)
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in quoted)
