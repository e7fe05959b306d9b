"""The maps of a page as lines of Python that make them with the library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from vitviz.analysis.analysis import Analysis
from vitviz.attention.precision import PRECISIONS
from vitviz.attribution import METHODS
from vitviz.attribution.parameters import python_of
from vitviz.evaluation.probes import PROBES
from vitviz.models.probability import why_no_probability
from vitviz.ui.models import Origin, source_of
from vitviz.ui.normalize import bounds_of, resolution_step
from vitviz.ui.pictures import Upload, example_of
from vitviz.ui.state import NATIVE, PageState, View
from vitviz.visualization.heatmaps import Style


@dataclass(frozen=True)
class ViewSource:
    """What the lines of a view open.

    Args:
        analysis: of the view.
        origin: model, picture and settings of the analysis.
        liked: the other picture that the map is about likeness to, or None.
    """

    analysis: Analysis
    origin: Origin
    liked: Upload | None = None


def as_python(state: PageState, sources: list[ViewSource]) -> str:
    """Lines that draw the maps and save them under the names of their methods.

    The lines include what hiding changes, and the first view's probe while its panel is open. They open a visitor's own
    files by name, from the folder where they run.

    Args:
        state: legal for its models.
        sources: of its views.
    """
    views = list(zip(state.views, sources, strict=True))[: 1 if state.layout in ("one", "slide") else None]
    uploads = [upload for _, source in views for upload in (source.origin.upload, source.liked) if upload is not None]
    has_probe = state.panel == "probes" and not PROBES[views[0][0].probe].refusal(
        views[0][1].analysis.model.network.config
    )
    lines = ["import vitviz", "from vitviz import Style"]
    lines += ["from vitviz.video.clips import read_frame"] * any(upload.frame is not None for upload in uploads)
    lines += ["from vitviz.weights import resources"] * any(map(example_of, uploads))
    lines += ["from vitviz.evaluation.probes import probe"] * has_probe
    if state.layout == "alike" and len(views) > 1:
        return "\n".join([*lines, "", *_opening(views[0][1]), *_alike(state, views[1][1])]) + "\n"
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
    arguments = ", ".join(
        [python_of(source_of(choice, model)), *(f"{name}={python_of(value)}" for name, value in options.items())]
    )
    files = ", ".join(Path(file).name for file in choice.files)
    folder = [f"# Where these lines run, there are {files}, and no other weights."] if choice.is_loose else []
    snapshot = [] if choice.step is None else [f"model = vitviz.open_snapshot(model, {choice.step})"]
    return [
        *folder,
        f"model = vitviz.load({arguments})",
        *snapshot,
        f"analysis = vitviz.analyze({_picture(source.origin.upload)}, {_analyze_arguments(source)})",
    ]


def _analyze_arguments(source: ViewSource) -> str:
    """Model, fit and resolution, the one that the picture's shape led to, and how the picture is read."""
    resolution = "" if source.origin.pixels is None else f", resolution={source.origin.pixels}"
    upload, profile = source.origin.upload, source.analysis.model.preprocessing.color_profile
    reading = f", value_range=(0, {upload.white})" * (upload.white is not None)
    reading += f", color_profile={python_of(upload.color_profile)}" * (upload.color_profile != profile)
    return f"model, fit={python_of(source.origin.fit)}{resolution}{reading}"


def _picture(upload: Upload) -> str:
    """A picture as :func:`vitviz.analyze` takes it."""
    if upload.frame is not None:
        profile = f", {python_of(upload.color_profile)}" * (upload.color_profile != "apply")
        return f"read_frame({python_of(upload.name)}, {upload.frame}{profile})"
    example = example_of(upload)
    return python_of(upload.name) if example is None else f'resources("assets") / {python_of(example)}'


def _map(view: View, source: ViewSource, state: PageState, index: int) -> list[str]:
    """The lines that make a map and save its picture."""
    method, model = METHODS[view.method], source.analysis.model
    target = view.parameters.get("target")
    target = target if isinstance(target, Mapping) else {}
    bounds = bounds_of(source.analysis)
    options = {
        parameter.name: parameter.kind.python(value, model.labels)
        for parameter in method.parameters
        if (value := view.parameters.get(parameter.name)) not in (None, parameter.default_for(bounds, target))
    }
    arguments = ", ".join([python_of(method.name), *(f"{name}={argument}" for name, argument in options.items())])
    query = view.parameters.get("query")
    mark = f", mark={query}" if isinstance(query, tuple) else ""
    name = method.name if index == 0 else f"{method.name}-{index + 1}"
    return [
        *_target_lines(target, source),
        f"heatmap = analysis.map({arguments})",
        f'heatmap.overlay({_style(state)}{mark}).save("{name}.png")',
        *_hidden(view, source, options.get("target")),
    ]


def _style(state: PageState) -> str:
    """The style of the page, with what differs from the library's own."""
    names = [each.name for each in fields(Style) if getattr(state.style, each.name) != getattr(Style, each.name)]
    return f"Style({', '.join(f'{name}={python_of(getattr(state.style, name))}' for name in names)})"


def _alike(state: PageState, other: ViewSource) -> list[str]:
    """The lines that draw two pictures in the colours of one basis, and what is like the chosen square in both."""
    layer = "" if state.alike_layer is None else f", layer={state.alike_layer}"
    look, style = f"opacity={state.opacity:g}, smooth={state.smooth}", _style(state)
    lines = [
        f"other = vitviz.analyze({_picture(other.origin.upload)}, {_analyze_arguments(other)})",
        f'vitviz.components([analysis, other]{layer}).save("alike.png", {look})',
    ]
    for view, (name, second) in zip(state.views, (("analysis", "other"), ("other", "analysis")), strict=True):
        lines += [
            f'{name}.similarity({view.alike}{layer}).save("alike-here.png", {style}, mark={view.alike})',
            f'{name}.similarity({view.alike}, other={second}{layer}).save("alike-there.png", {style})',
        ] * (view.alike is not None)
    return lines


def _hidden(view: View, source: ViewSource, target: str | None) -> list[str]:
    """The line that prints what the model says without what is hidden from it, of the target or the likeliest class."""
    hidden = {"heads": [*view.heads_off], "patches": [*view.patches_off]}
    if target is None and why_no_probability(source.analysis.model.network.config) is None:
        target = "analysis.predictions(1)[0].index"
    arguments = [f"{name}={places}" for name, places in hidden.items() if places] + [f"{target=!s}"] * (
        target is not None
    )
    return [f"print(analysis.switched_off({', '.join(arguments)}))"] * any(hidden.values())


def _probe(view: View) -> list[str]:
    """The lines that run a probe and print its summary."""
    options = (f"{name}={python_of(value)}" for name, value in view.probe_parameters.items())
    arguments = ", ".join(["analysis", python_of(view.probe), *options])
    return [f"findings = probe({arguments})", "print(findings.summary)"]


def _target_lines(target: Mapping[str, Any], source: ViewSource) -> list[str]:
    """The lines before a map that prepare its target."""
    if "text" in target:
        return [f"text = model.text({python_of(target['text'])})"]
    if source.liked is None or "like" not in target:
        return []
    if source.origin.resolution == NATIVE:
        # The native resolution is that of the other picture.
        step = resolution_step(source.analysis.model)
        return [
            f"other_image = vitviz.open_image({_picture(source.liked)})",
            f"resolution = max({step}, min(other_image.size) // {step} * {step})",
            f"other = vitviz.analyze(other_image, model, fit={python_of(source.origin.fit)}, resolution=resolution)",
        ]
    return [f"other = vitviz.analyze({_picture(source.liked)}, {_analyze_arguments(source)})"]
