"""A state with the values that its models and pictures have."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import lcm
from typing import Any

from vitviz.attention.layout import PATCHES, Query, TokenLayout
from vitviz.attribution import METHODS, Method
from vitviz.attribution.methods import ClassTarget, HeadNumber, LayerNumber, Parameter, TokenQuery
from vitviz.errors.kinds import MethodError, VitvizError
from vitviz.errors.messages import quote
from vitviz.evaluation.probes import PROBES
from vitviz.ui.arguments import Bounds, number, parameter_of, target_json, token_of
from vitviz.ui.state import MAX_VIEWS, PAIRED_LAYOUTS, TOKEN_METHOD, PageState, View
from vitviz.weights import Model
from vitviz.weights.text_tower import reads_text


@dataclass(frozen=True)
class ShownView:
    """What a view shows: the model, and the tokens of its picture."""

    model: Model
    layout: TokenLayout


def normalize(state: PageState, shown_views: Sequence[ShownView | None] = ()) -> tuple[PageState, list[str]]:
    """The state with legal values only, and one sentence for every value that was changed.

    Args:
        state: as a page or a link has it.
        shown_views: what each view shows; None, or nothing, where it is not known, whose view stays as it is.
    """
    notes: list[str] = []
    known = [*shown_views, *[None] * MAX_VIEWS]
    views = []
    for view, shown_view in zip(state.views, known, strict=False):
        found, changes = (view, []) if shown_view is None else normalize_view(view, shown_view)
        views.append(found)
        notes += changes
    if state.layout in PAIRED_LAYOUTS and len(views) == 1:
        views *= 2
    return replace(state, views=tuple(views)), list(dict.fromkeys(notes))


def normalize_view(view: View, shown_view: ShownView) -> tuple[View, list[str]]:
    """A view with the values that its model and its picture have, and what was changed."""
    model, layout = shown_view.model, shown_view.layout
    view, notes = normalize_input(view, model)
    method = METHODS[view.method]
    reason = refusal(method, model)
    given = dict(view.parameters)
    if reason is not None:
        other = METHODS[TOKEN_METHOD]
        notes.append(f"{method.title}: {reason}. Shown instead: {other.title.lower()}.")
        given = {name: each for name, each in given.items() if name in [part.name for part in other.parameters]}
        method = other
    parameters = {}
    for part in method.parameters:
        if part.name in given:
            try:
                value = canonical(part, given[part.name], model, layout)
            except VitvizError as error:
                has_default = not isinstance(part, ClassTarget) or bool(model.labels)
                notes.append(f"{error}.{' The default is shown.' * has_default}")
                continue
            if value != _default(part, model, layout, given.get("target")):
                parameters[part.name] = value
    pins = [pin for pin in view.pins if _is_token(pin, layout)]
    depth, heads = model.network.config.depth, model.network.config.heads
    heads_off = [each for each in view.heads_off if each[0] < depth and each[1] < heads]
    patches_off = [each for each in view.patches_off if each[0] < layout.grid_height and each[1] < layout.grid_width]
    if len(patches_off) == layout.patch_count:
        patches_off = []
    for what, before, after in (
        ("pins", view.pins, pins),
        ("heads switched off", view.heads_off, heads_off),
        ("patches switched off", view.patches_off, patches_off),
    ):
        if len(before) != len(after):
            notes.append(f"Of the {what}, {len(before) - len(after)} are left out: this model and picture lack them.")
    pins = [canonical_token("pin", pin, layout) for pin in pins]
    return (
        replace(
            view,
            method=method.name,
            parameters=parameters,
            pins=tuple(dict.fromkeys(pins)),
            heads_off=tuple(heads_off),
            patches_off=tuple(patches_off),
            probe_parameters=_probe_parameters(view, shown_view, notes),
        ),
        notes,
    )


def _probe_parameters(view: View, shown_view: ShownView, notes: list[str]) -> dict[str, Any]:
    """Parameters of a view's probe that the model and the picture have, and that are not the default."""
    layout, found = shown_view.layout, {}
    for part in PROBES[view.probe].parameters:
        if part.name not in view.probe_parameters:
            continue
        try:
            value = canonical(part, view.probe_parameters[part.name], shown_view.model, layout)
        except VitvizError as error:
            notes.append(f"{error}. The default is shown.")
            continue
        middle = (layout.grid_height // 2, layout.grid_width // 2)
        default = middle if isinstance(part, TokenQuery) else _default(part, shown_view.model, layout, None)
        if value != default:
            found[part.name] = value
    return found


def normalize_input(view: View, model: Model) -> tuple[View, list[str]]:
    """Training step, fit and resolution as the model has them, and what was changed."""
    notes: list[str] = []
    step, fit, resolution = view.step, view.fit, view.resolution
    if step is not None:
        steps = () if model.snapshots is None else model.snapshots.steps
        if step not in steps:
            notes.append(f"{model.name} has no snapshot of training step {step:,}: the last state is shown.")
        if step not in steps[:-1]:
            step = None
    if fit == model.preprocessing.fit:
        fit = None
    if isinstance(resolution, int):
        try:
            config = model.network.config
            same = model.preprocessing.at(resolution, config.patch_height, config.patch_width) == model.preprocessing
            resolution = None if same else resolution
        except VitvizError as error:
            notes.append(f"{error}. The trained resolution is used.")
            resolution = None
    return replace(view, step=step, fit=fit, resolution=resolution), notes


def refusal(method: Method, model: Model) -> str | None:
    """Why a model cannot have a map, without a full stop; None where it can, be it about likeness or a text."""
    return method.refusal(model.network.config, has_target=True)


def canonical(parameter: Parameter, value: Any, model: Model, layout: TokenLayout) -> Any:
    """A parameter as a state has it: layers, heads and classes by their index, a token by its name or place.

    Raises:
        VitvizError: the model has no such value.
    """
    if isinstance(parameter, TokenQuery):
        return canonical_token(parameter.title, value, layout)
    if isinstance(parameter, ClassTarget):
        return _canonical_target(parameter, value, model, layout)
    found = parameter_of(parameter, value, Bounds.of(model, layout))
    if isinstance(parameter, LayerNumber):
        return found % model.network.config.depth
    if isinstance(parameter, HeadNumber) and isinstance(found, int):
        return found % model.network.config.heads
    return found


def canonical_token(name: str, value: Any, layout: TokenLayout) -> Query:
    """A token by its name, or a patch by its row and column.

    Raises:
        VitvizError: the picture has no such token.
    """
    found = token_of(name, value, layout)
    if isinstance(found, int):
        return layout.prefix[found] if found < layout.prefix_count else layout.cell(found)
    return found


def _canonical_target(parameter: ClassTarget, value: Any, model: Model, layout: TokenLayout) -> Any:
    if not isinstance(value, Mapping):
        return _canonical_class(parameter, value, model)
    if "text" in value:
        if not reads_text(model):
            raise MethodError(f"{model.name} reads no text")
        return dict(value)
    if "like" in value or "patch" in value:
        return target_json(parameter_of(parameter, value, Bounds.of(model, layout)))
    classes = {name: _canonical_class(parameter, each, model) for name, each in value.items() if name != "margin"}
    return target_json(parameter_of(parameter, {**value, **classes}, Bounds.of(model, layout)))


def _canonical_class(parameter: ClassTarget, value: Any, model: Model) -> int:
    if not model.labels:
        raise MethodError(f"{model.name} has no class {quote(value)}")
    if isinstance(value, str):
        return class_of_label(value, model.labels)
    return int(number(parameter.title, value, 0, len(model.labels) - 1, whole=True))


def class_of_label(label: str, labels: Sequence[str]) -> int:
    """The index of a class by its label, or by label and index where several have it.

    Raises:
        MethodError: there is none, or there are several.
    """
    numbered = re.fullmatch(r"(.+) \((\d{1,6})\)", label)
    if numbered is not None and int(numbered[2]) < len(labels) and labels[int(numbered[2])] == numbered[1]:
        return int(numbered[2])
    found = [index for index, each in enumerate(labels) if each == label]
    if len(found) != 1:
        raise MethodError(f"class {quote(label)}: this model has {len(found) or 'no'} such class; expected its number")
    return found[0]


def _default(parameter: Parameter, model: Model, layout: TokenLayout, target: Any) -> Any:
    match parameter:
        case TokenQuery() if isinstance(target, Mapping) and "patch" in target:
            # Likeness to a patch is read from all patches.
            return PATCHES
        case LayerNumber():
            return parameter.default % model.network.config.depth
        case TokenQuery():
            # Where attention pools, a map may start from what is no token.
            return None if pools_by_attention(model) else layout.default_query
        case _:
            return parameter.default


def resolution_step(model: Model) -> int:
    """What every resolution is a multiple of, in pixels."""
    config = model.network.config
    return lcm(config.patch_height, config.patch_width)


def pools_by_attention(model: Model) -> bool:
    """Whether a model's output is read by a learned query."""
    return model.network.config.pooling == "attention"


def _is_token(value: Query, layout: TokenLayout) -> bool:
    try:
        canonical_token("pin", value, layout)
    except VitvizError:
        return False
    return True
