"""The opening state of an explorer that is saved as one file, and the maps in it that need a model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vitviz.analysis.analysis import Analysis
from vitviz.attribution import METHODS
from vitviz.attribution.methods import MethodName
from vitviz.errors.kinds import MethodError
from vitviz.errors.messages import quote
from vitviz.images.preprocessing import Fit
from vitviz.models.targets import ClassDifference
from vitviz.ui.first_view import WHY, opening_view, says_why
from vitviz.ui.image_bytes import as_base64
from vitviz.ui.links import read_link
from vitviz.ui.normalize import normalize, parameters_of
from vitviz.ui.packs import computed_by, map_file
from vitviz.ui.state import PageState, View

MAX_REASONS = 5


def opening(
    analysis: Analysis, link: str, fit: Fit | None, resolution: int | None
) -> tuple[PageState, list[dict[str, Any]]]:
    """The legal state of a link, and the maps in it that the page cannot compute, each once, as the page reads them.

    Args:
        analysis: of one image.
        link: the part of the app's address behind ``?``, with or without it; empty for the app's opening state.
        fit, resolution: of the analysis; None for the model's own.

    Raises:
        MethodError: a part of the link cannot be read, is not legal for the model, or names another model, picture,
            fit or resolution; or it asks for likeness or a text.
    """
    parsed = read_link(link)
    views = []
    for view in parsed.state.views:
        default = replace(view, model="", step=None, picture=View().picture, fit=None, resolution=None)
        if default != view:
            raise MethodError(f"link = {quote(link)}: names a model, picture, fit or resolution; expected none of them")
        if not link:
            default = opening_view(analysis)
        views.append(replace(default, fit=fit, resolution=resolution))
    state, changes = normalize(replace(parsed.state, views=tuple(views)), [analysis] * len(views))
    notes = [*parsed.notes, *changes]
    if notes:
        raise MethodError(f"link = {quote(link)}: the page would not show all of it: {' '.join(notes)}")
    maps: list[dict[str, Any]] = []
    records = [(METHODS[view.method], view.parameters) for view in state.views]
    methods = {method.name for method, given in records if computed_by(method, given, analysis.trace) != "page"}
    for view in state.views:
        if view.method in methods:
            _add_maps(maps, analysis, view.method, _all_parameters(view))
    return state, maps


def add_reasons(maps: list[dict[str, Any]], analysis: Analysis) -> None:
    """Add why the model says what it says, and what speaks for each of its likeliest classes."""
    if says_why(analysis.model):
        best = analysis.predictions(min(MAX_REASONS, len(analysis.model.labels)))
        _add_maps(maps, analysis, WHY, [{}, *({"target": found.index} for found in best)])


def _add_maps(
    maps: list[dict[str, Any]], analysis: Analysis, method: MethodName, all_parameters: list[dict[str, Any]]
) -> None:
    for parameters in all_parameters:
        key = {"method": method, "parameters": parameters}
        if all({**saved, **key} != saved for saved in maps):
            maps.append({**key, "content": as_base64(_map(analysis, method, parameters))})


def _all_parameters(view: View) -> list[dict[str, Any]]:
    """The parameters of a view's map and of its pins' maps; and none, for a method that is chosen in the menu."""
    has_query = any(part.name == "query" for part in METHODS[view.method].parameters)
    pinned = [{**view.parameters, "query": pin} for pin in view.pins if has_query]
    return [dict(view.parameters), *pinned, {}]


def _map(analysis: Analysis, method: MethodName, parameters: dict[str, Any]) -> bytes:
    record = METHODS[method]
    arguments = parameters_of(record, parameters, analysis)
    target = arguments.get("target")
    if target is not None and not isinstance(target, int | str | ClassDifference):
        raise MethodError(f"target = {quote(parameters['target'])}: expected a class; a file holds no other")
    return map_file(analysis, record, arguments, analysis.map(method, **arguments).token_map)
