"""States that are legal for their models and pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf, lcm
from typing import Any

from vitviz.analysis.analysis import Analysis
from vitviz.analysis.costs import NUMBER_BYTES, cost_of
from vitviz.attention.layout import Query
from vitviz.attribution import METHODS, Method
from vitviz.attribution.parameters import ClassTarget, Parameter, values_of
from vitviz.attribution.requests import MAX_INDEX, Bounds, canonical_token
from vitviz.attribution.rollout import discard_bytes
from vitviz.errors.kinds import LimitError, MethodError, VitvizError
from vitviz.evaluation.probes import PROBES
from vitviz.ui.pictures import Upload, picture_name, upload_of
from vitviz.ui.state import MAX_VIEWS, PAIRED_LAYOUTS, TOKEN_METHOD, PageState, View
from vitviz.weights import Model


def normalize(state: PageState, analyses: Sequence[Analysis | None] = ()) -> tuple[PageState, list[str]]:
    """The legal state, and a sentence for each value that was changed.

    Args:
        state: of a page or a link.
        analyses: of each view; a view without one stays as it is.
    """
    notes: list[str] = []
    views = []
    for view, analysis in zip(state.views, [*analyses, *[None] * MAX_VIEWS], strict=False):
        legal, changes = (view, []) if analysis is None else normalize_view(view, analysis)
        views.append(legal)
        notes += changes
    if state.layout in PAIRED_LAYOUTS and len(views) == 1:
        views *= 2
    if state.layout == "alike" and len({(view.model, view.step) for view in views}) > 1:
        notes.append("What is alike: expected two pictures by one model. Their maps are shown side by side.")
        state = replace(state, layout="two")
    last = min((analysis.trace.layers for analysis in analyses if analysis is not None), default=MAX_INDEX) - 1
    if state.alike_layer is not None and state.alike_layer > last:
        notes.append(f"What is alike: layer {state.alike_layer}: expected at most {last}. The best layer is shown.")
        state = replace(state, alike_layer=None)
    low, high = state.low, state.high
    if low is not None and high is not None and low > high:
        notes.append(f"low = {low:g} and high = {high:g}: expected the lower one first. Each map has its own ends.")
        state = replace(state, low=None, high=None)
    return replace(state, views=tuple(views)), list(dict.fromkeys(notes))


def normalize_view(view: View, analysis: Analysis) -> tuple[View, list[str]]:
    """The legal view, and a sentence for each value that was changed."""
    model, layout = analysis.model, analysis.trace.layout
    view, notes = normalize_input(view, model)
    method, reason = METHODS[view.method], refusal(METHODS[view.method], model)
    if reason is not None:
        replacement = METHODS[TOKEN_METHOD]
        notes.append(f"{method.title}: {reason}. Shown instead: {replacement.title.lower()}.")
        method = replacement
    target = view.parameters.get("target") if reason is None else None
    bounds = bounds_of(analysis)
    parameters = _parameters(method.parameters, view.parameters, bounds, target, notes)
    pins: list[Query] = []
    for pin in view.pins:
        with suppress(VitvizError):
            pins.append(canonical_token("pin", pin, layout))
    depth, heads = model.network.config.depth, model.network.config.heads
    heads_off = [pair for pair in view.heads_off if pair[0] < depth and pair[1] < heads]
    patches_off = [pair for pair in view.patches_off if pair[0] < layout.grid_height and pair[1] < layout.grid_width]
    alike = [pair for pair in (view.alike,) if pair and pair[0] < layout.grid_height and pair[1] < layout.grid_width]
    if len(patches_off) == layout.patch_count or model.network.why_no_hiding:
        patches_off = []
    for kind, before, after in (
        ("pins", view.pins, pins),
        ("heads switched off", view.heads_off, heads_off),
        ("patches switched off", view.patches_off, patches_off),
        ("squares to compare with", (view.alike,) if view.alike else (), alike),
    ):
        if len(before) != len(after):
            notes.append(f"Left out of the {kind}: {len(before) - len(after)}, which this model and picture lack.")
    # A probe asks about the patch in the middle by default.
    middle = replace(bounds, default_query=(layout.grid_height // 2, layout.grid_width // 2))
    return (
        replace(
            view,
            method=method.name,
            parameters=parameters,
            pins=tuple(dict.fromkeys(pins)),
            heads_off=tuple(heads_off),
            patches_off=tuple(patches_off),
            alike=next(iter(alike), None),
            probe_parameters=_parameters(PROBES[view.probe].parameters, view.probe_parameters, middle, None, notes),
        ),
        notes,
    )


def _parameters(
    records: Sequence[Parameter], values: Mapping[str, Any], bounds: Bounds, target: Any, notes: list[str]
) -> dict[str, Any]:
    """The legal values in canonical form that are no defaults; a note for each one that is not legal."""
    parameters = {}
    for record in records:
        if record.name not in values:
            continue
        try:
            value = record.kind.canonical(values[record.name], bounds, record.title)
        except VitvizError as error:
            has_default = not isinstance(record.kind, ClassTarget) or bool(bounds.labels)
            notes.append(f"{sentence(error)}{' The default is shown.' * has_default}")
            continue
        if value != record.default_for(bounds, target):
            parameters[record.name] = value
    return parameters


def normalize_input(view: View, model: Model) -> tuple[View, list[str]]:
    """The view with a training step, fit and resolution of the model, and a sentence for each change."""
    notes: list[str] = []
    step, resolution = view.step, view.resolution
    fit = None if view.fit == model.preprocessing.fit else view.fit
    if step is not None:
        steps = () if model.snapshots is None else model.snapshots.steps
        if step not in steps:
            notes.append(f"{model.name} has no snapshot of training step {step:,}: the last state is shown.")
        if step not in steps[:-1]:
            step = None
    if isinstance(resolution, int):
        try:
            config = model.network.config
            same = model.preprocessing.at(resolution, config.patch_height, config.patch_width) == model.preprocessing
            resolution = None if same else resolution
        except VitvizError as error:
            notes.append(
                f"Resolution {resolution}: {str(error).removeprefix(f'resolution = {resolution}: ')}. "
                "The trained resolution is used."
            )
            resolution = None
    return replace(view, step=step, fit=fit, resolution=resolution), notes


def refusal(method: Method, model: Model) -> str | None:
    """Why a model cannot have a map, without a full stop; None if it can, for any kind of target."""
    return method.refusal(model.network.config, has_target=True)


def bounds_of(analysis: Analysis) -> Bounds:
    """What a model and a picture have."""
    model, layout = analysis.model, analysis.trace.layout
    config = model.network.config
    return Bounds(
        config.depth,
        config.heads,
        config.classes,
        layout,
        # A model that pools by attention starts from a learned query, which is no token.
        None if pools_by_attention(model) else layout.default_query,
        model.labels,
        model.reads_text,
        model.name,
        _other_picture,
    )


def pools_by_attention(model: Model) -> bool:
    """Whether a learned query reads the model's output."""
    return model.network.config.pooling == "attention"


def _other_picture(field: str, value: object) -> str | Upload:
    """The other picture that a target names: ``example:NAME``, ``picture:ID``, or an upload."""
    if isinstance(value, dict):
        return upload_of(value, field)
    return picture_name(field, value, ", or a file that was uploaded here")


def parameters_of(
    method: Method, parameters: object, analysis: Analysis, field: str = "parameters", max_bytes: float = inf
) -> dict[str, Any]:
    """All arguments of a method; a missing or null one gets its default.

    Args:
        method: to which they belong.
        parameters: an object with a field for each, or null.
        analysis: to compute the map of.
        field: the name of the object in messages.
        max_bytes: the most memory of the analysis and its map.

    Raises:
        MethodError: a parameter is unknown or not legal, or the model cannot serve the method.
        LimitError: the picture has too many tokens for a discard ratio.
    """
    reason = refusal(method, analysis.model)
    if reason is not None:
        raise MethodError(f"{method.name}: {reason}")
    defaults = {parameter.name: parameter.default for parameter in method.parameters}
    arguments = defaults | values_of(method.parameters, parameters, bounds_of(analysis), field)
    if arguments.get("discard_ratio") and max_bytes < inf:
        cost = cost_of(analysis.model.network.config, analysis.trace.layout)
        nbytes = cost.nbytes + discard_bytes(cost.tokens, NUMBER_BYTES)
        if nbytes > max_bytes:
            raise LimitError(
                f"{field}.discard_ratio = {arguments['discard_ratio']:g}: of {cost.tokens:,} tokens, this needs about "
                f"{nbytes:,} bytes; expected at most {max_bytes:,}, by a lower resolution, or 0"
            )
    return arguments


def sentence(error: VitvizError) -> str:
    """An error's message with a full stop."""
    text = str(error)
    return text if text.endswith((".", "!", "?")) else f"{text}."


def resolution_step(model: Model) -> int:
    """The pixels of which every resolution is a multiple."""
    config = model.network.config
    return lcm(config.patch_height, config.patch_width)
