"""The maps of a page as lines of Python that make them with the library."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vitviz.analysis.analysis import Analysis
from vitviz.attention.precision import PRECISIONS
from vitviz.attribution import METHODS
from vitviz.attribution.parameters import ClassTarget, LayerNumber, Parameter
from vitviz.evaluation.probes import PROBES
from vitviz.ui.inputs import Origin
from vitviz.ui.normalize import resolution_step
from vitviz.ui.pictures import Upload, example_of
from vitviz.ui.state import NATIVE, PageState, View
from vitviz.visualization.scales import PERCENTILES
from vitviz.weights import Model


@dataclass(frozen=True)
class ViewSource:
    """What the lines of a view open.

    Args:
        analysis: of the view.
        origin: model, picture and settings of the analysis.
        model_name: the argument of :func:`vitviz.load`.
        liked: the other picture that the map is about likeness to, or None.
    """

    analysis: Analysis
    origin: Origin
    model_name: str
    liked: Upload | None = None


def as_python(state: PageState, sources: list[ViewSource]) -> str:
    """Lines that draw the maps and save them under the names of their methods.

    The lines include the first view's probe while its panel is open. They open a visitor's own files by name, from the
    folder where they run.

    Args:
        state: legal for its models.
        sources: of its views.
    """
    views = list(zip(state.views, sources, strict=True))[: 1 if state.layout in ("one", "slide") else None]
    has_text = any("text" in _target_of(view) for view, _ in views)
    uploads = [upload for _, source in views for upload in (source.origin.upload, source.liked) if upload is not None]
    has_probe = state.panel == "probes" and _has_probe(*views[0])
    lines = ["import vitviz", "from vitviz import Style"]
    lines += ["from vitviz.images.clips import read_frame"] * any(upload.frame is not None for upload in uploads)
    lines += ["from vitviz.weights import resources"] * any(map(example_of, uploads))
    lines += ["from vitviz.weights.text_tower import open_text_tower"] * has_text
    lines += ["from vitviz.evaluation.probes import probe"] * has_probe
    previous: list[str] = []
    for index, (view, source) in enumerate(views):
        opening = _opening(source)
        lines += ["", *([] if opening == previous else opening), *_map(view, source, state, index)]
        lines += _probe(view) * (has_probe and index == 0)
        previous = opening
    return "\n".join(lines) + "\n"


def _opening(source: ViewSource) -> list[str]:
    """The lines that open the model and analyse the picture."""
    model, choice = source.analysis.model, source.origin.choice
    precision = next(name for name, dtype in PRECISIONS.items() if dtype == model.network.precision)
    options = {**dict(choice.overrides), **({} if precision == "float32" else {"precision": precision})}
    arguments = ", ".join([_text(source.model_name), *(f"{name}={_value(value)}" for name, value in options.items())])
    snapshot = [] if choice.step is None else [f"model = vitviz.open_snapshot(model, {choice.step})"]
    return [
        f"model = vitviz.load({arguments})",
        *snapshot,
        f"analysis = vitviz.analyze({_picture(source.origin.upload)}, {_analyze_arguments(source)})",
    ]


def _analyze_arguments(source: ViewSource) -> str:
    """Model, fit and resolution, the one that the picture's shape led to, and how the picture is read."""
    resolution = "" if source.origin.resolution is None else f", resolution={source.origin.resolution}"
    upload, profile = source.origin.upload, source.analysis.model.preprocessing.color_profile
    reading = f", value_range=(0, {upload.white})" * (upload.white is not None)
    reading += f", color_profile={_text(upload.color_profile)}" * (upload.color_profile != profile)
    return f"model, fit={_text(_fit(source))}{resolution}{reading}"


def _picture(upload: Upload) -> str:
    """A picture as :func:`vitviz.analyze` takes it."""
    if upload.frame is not None:
        return f"read_frame({_text(upload.name)}, {upload.frame})"
    example = example_of(upload)
    return _text(upload.name) if example is None else f'resources("assets") / {_text(example)}'


def _fit(source: ViewSource) -> str:
    return source.origin.settings.fit or source.analysis.model.preprocessing.fit


def _map(view: View, source: ViewSource, state: PageState, index: int) -> list[str]:
    """The lines that make a map and save its picture."""
    method, model = METHODS[view.method], source.analysis.model
    target = _target_of(view)
    options = {
        parameter.name: _argument(parameter, value, model)
        for parameter in method.parameters
        if (value := view.parameters.get(parameter.name)) is not None and not _is_default(parameter, value, model)
    }
    arguments = ", ".join([_text(method.name), *(f"{name}={argument}" for name, argument in options.items())])
    query = view.parameters.get("query")
    mark = f", mark={query}" if isinstance(query, tuple) else ""
    look = f"opacity={state.opacity}, smooth={state.smooth}, grid={state.grid}, fade={state.fade}{_scale(state)}"
    name = method.name if index == 0 else f"{method.name}-{index + 1}"
    return [
        *_target_lines(target, source),
        f"heatmap = analysis.map({arguments})",
        f'heatmap.overlay(Style({_text(state.colormap)}, {look}){mark}).save("{name}.png")',
    ]


def _has_probe(view: View, source: ViewSource) -> bool:
    return PROBES[view.probe].refusal(source.analysis.model.network.config) is None


def _probe(view: View) -> list[str]:
    """The lines that run a probe and print its summary."""
    options = (f"{name}={_value(value)}" for name, value in view.probe_parameters.items())
    arguments = ", ".join(["analysis", _text(view.probe), *options])
    return [f"findings = probe({arguments})", "print(findings.summary)"]


def _scale(state: PageState) -> str:
    """The scale arguments of a style that differ from the defaults."""
    name = "" if state.scale is None else f", scale={_text(state.scale)}"
    return name + ("" if state.percentiles == PERCENTILES else f", percentiles={state.percentiles}")


def _target_of(view: View) -> Mapping[str, Any]:
    """A target object; empty for a single class or no target."""
    target = view.parameters.get("target")
    return target if isinstance(target, Mapping) else {}


def _target_lines(target: Mapping[str, Any], source: ViewSource) -> list[str]:
    """The lines before a map that prepare its target."""
    if "text" in target:
        return [f"text = open_text_tower(model).target({_text(target['text'])})"]
    if source.liked is None or "like" not in target:
        return []
    if source.origin.settings.resolution == NATIVE:
        # The native resolution is that of the other picture.
        step = resolution_step(source.analysis.model)
        return [
            f"other_image = vitviz.open_image({_picture(source.liked)})",
            f"resolution = max({step}, min(other_image.size) // {step} * {step})",
            f"other = vitviz.analyze(other_image, model, fit={_text(_fit(source))}, resolution=resolution)",
        ]
    return [f"other = vitviz.analyze({_picture(source.liked)}, {_analyze_arguments(source)})"]


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
    # The library does not find a class by a label that several have.
    label = model.labels[index]
    return _value(label if model.labels.count(label) == 1 else index)


def _value(argument: Any) -> str:
    return _text(argument) if isinstance(argument, str) else repr(argument)


def _text(value: str) -> str:
    """A Python string in double quotes; invisible characters and those that reorder the line are escaped."""
    quoted = json.dumps(value, ensure_ascii=False)
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in quoted)
