"""The public API: endpoints for programs, in the queue of the page, with its models and its analyses.

An analysis is known by an id that nobody can guess: who has it may ask for maps of that picture, nobody else can.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec, get_args, get_type_hints
from weakref import WeakKeyDictionary

import gradio as gr
from gradio.data_classes import FileData, GradioModel, GradioRootModel
from gradio.events import api as publish_function
from gradio.utils import get_function_description, get_upload_folder

from vitviz import __version__
from vitviz.analysis.analysis import Analysis
from vitviz.attribution import METHODS, Method
from vitviz.errors.kinds import CheckpointError, LimitError, MethodError, VitvizError
from vitviz.errors.messages import choices, quote
from vitviz.images.preprocessing import FITS
from vitviz.progress import Progress
from vitviz.ui.arguments import (
    LONGEST_NAME,
    fields,
    method_of,
    number,
    parameters_of,
    scale_of,
    switch,
    upload_of,
    word,
)
from vitviz.ui.files import as_png, keep
from vitviz.ui.inputs import InputSettings
from vitviz.ui.models import DEFAULT_MODEL, ModelChoice
from vitviz.ui.records import (
    AnalysisRecord,
    MapRecords,
    MapRequests,
    MethodRecords,
    ModelRecords,
    OpenedRecord,
    Parameters,
    Percentiles,
    analysis_record,
    map_record,
    method_record,
    model_record,
    opened_record,
)
from vitviz.ui.service import AnalysisService
from vitviz.visualization.heatmaps import COLORMAPS, Heatmap, Style
from vitviz.visualization.scales import PERCENTILES, percentile_pair
from vitviz.weights import BUNDLED, ZOO, is_cached

# Floating-point operations of one analysis: about a minute of two cores.
MOST_FLOPS = 9e12
# In one request, and their values together.
MOST_MAPS, MOST_VALUES = 256, 2**16
# Of the ends of the colours: what single precision holds, with room for their difference.
FURTHEST = 1e30
# Requests that compute nothing.
AT_ONCE = 4
# After which a request for maps that take long ends.
MOST_SECONDS = 60.0
LARGEST_RESOLUTION = 99_999
UNEXPECTED = "The server failed to answer this request; what happened is in its log."

Given = ParamSpec("Given")


def _answering(endpoint: Callable[Given, Any]) -> Callable[Given, Any]:
    """An endpoint whose errors are one sentence each; what nobody expected is in the log only."""

    @wraps(endpoint)
    def answer(*args: Given.args, **options: Given.kwargs) -> Any:
        try:
            return endpoint(*args, **options).model_dump()
        except VitvizError as error:
            raise gr.Error(str(error), print_exception=False) from None
        except Exception:
            logging.getLogger(__name__).exception("/%s", endpoint.__name__)
            raise gr.Error(UNEXPECTED, print_exception=False) from None

    return answer


class Api:
    """The endpoints. What they are told is JSON of any kind until :mod:`vitviz.ui.arguments` has checked it.

    Args:
        service: with the models and analyses of the page.
    """

    def __init__(self, service: AnalysisService) -> None:
        self.service = service

    @_answering
    def models(self) -> ModelRecords:
        """The models that can be asked by name.

        Returns:
            the one with which the page opens first, then the others by family
        """
        return ModelRecords(root=[model_record(name) for name in self._names()])

    @_answering
    def open(self, model: str | None = None) -> OpenedRecord:
        """Make a model ready, which may take a download, and tell what it is.

        Args:
            model: a name from /models; the model with which the page opens where it is null

        Returns:
            what the model is
        """
        return opened_record(self.service.model(self._choice(model)))

    @_answering
    def methods(self) -> MethodRecords:
        """The methods that make maps, with their parameters.

        Returns:
            one after the other, as the page has them
        """
        return MethodRecords(root=list(map(method_record, METHODS.values())))

    @_answering
    def analyze(
        self, image: FileData, model: str | None = None, fit: str | None = None, resolution: int | None = None
    ) -> AnalysisRecord:
        """Run a model on a picture, once. Its answer has the id by which /maps and /overlay know the analysis.

        Args:
            image: an uploaded picture: JPEG, PNG, WebP, GIF, TIFF or BMP
            model: a name from /models that is on this server; the one with which the page opens where it is null
            fit: crop, squash or native: how the picture is brought to the model's input; as trained where it is null
            resolution: shorter side of the input in pixels, a multiple of the patch; as trained where it is null

        Returns:
            the id of the analysis, and what the model saw and says
        """
        upload, choice = upload_of(image), self._choice(model)
        chosen_fit = None if fit is None else word("fit", fit, FITS)
        pixels = (
            None if resolution is None else int(number("resolution", resolution, 1, LARGEST_RESOLUTION, whole=True))
        )
        named = ZOO.get(choice.source)
        if named is not None and not is_cached(named.repository):
            size = f"{named.megabytes:,.0f} MB"
            raise CheckpointError(f"model {named.name!r}: not on this server yet; /open downloads it ({size})")
        used = self.service.model(choice)
        needed, (width, height) = self.service.cost_of(used, upload, chosen_fit, pixels)
        if needed.flops > MOST_FLOPS:
            raise LimitError(
                f"image of {width}×{height} pixels: {needed.tokens:,} tokens take {needed.flops:.1e} operations; "
                f"expected at most {MOST_FLOPS:.1e}, by a lower resolution"
            )
        key, analysis = self.service.analyze(used, upload, InputSettings(chosen_fit, pixels), choice=choice)
        return analysis_record(key, analysis, (width, height))

    @_answering
    def maps(self, id: str, maps: MapRequests) -> MapRecords:
        """Maps of an analysis, in the order in which they are asked for: all of them, or an error.

        Args:
            id: from /analyze
            maps: a list of objects with a method, and parameters where they are not the defaults; /methods tells both

        Returns:
            their values, and what these are
        """
        analysis, clock = self._analysis(id), _Clock()
        # All of them are checked before the first is computed.
        requests = list(_map_requests(maps, analysis))
        return MapRecords(
            root=[map_record(record, self._map(analysis, record, arguments, clock)) for record, arguments in requests]
        )

    @_answering
    def overlay(
        self,
        id: str,
        method: str = "attention",
        parameters: Parameters | None = None,
        colormap: str = Style.colormap,
        opacity: float = Style.opacity,
        smooth: bool = Style.smooth,
        grid: bool = Style.grid,
        fade: bool = Style.fade,
        low: float | None = Style.low,
        high: float | None = Style.high,
        scale: str | None = None,
        percentiles: Percentiles | None = None,
    ) -> FileData:
        """A map in colours over the picture, as a PNG file whose longer side is 900 pixels.

        Args:
            id: from /analyze
            method: name of the method, from /methods
            parameters: its parameters by name; what is left out has its default
            colormap: inferno, viridis, magma, cividis, gray or turbo
            opacity: of the colours over the picture, from 0 to 1
            smooth: whether colours change between the centres of patches, instead of from patch to patch
            grid: whether the borders of the patches are drawn
            fade: whether weak values leave the picture clear
            low: value at the lower end of the colours; the lowest of the map where it is null
            high: value at the upper end of the colours; the highest of the map where it is null
            scale: linear, robust, log, rank or zero; chosen from the values of the map where it is null
            percentiles: two numbers from 0 to 100, between which a robust scale lies; 2 and 98 where it is null

        Returns:
            the PNG file
        """
        analysis, record = self._analysis(id), method_of(method)
        look = {
            "colormap": colormap,
            "opacity": opacity,
            "smooth": smooth,
            "grid": grid,
            "fade": fade,
            "low": low,
            "high": high,
            "scale": scale,
            "percentiles": percentiles,
        }
        style = _style(look)
        arguments = parameters_of(record, parameters, analysis.model, analysis.trace.layout)
        query = arguments.get("query")
        drawn = self._map(analysis, record, arguments, _Clock()).overlay(
            style, query if isinstance(query, tuple) else None
        )
        name = f"{record.name}.png"
        return FileData(path=keep(as_png(drawn), name, get_upload_folder()), orig_name=name, mime_type="image/png")

    def _names(self) -> list[str]:
        """Of the models that the menu offers."""
        start = self.service.start.name
        others = (*BUNDLED, *ZOO) if self.service.server_settings.models != "start" else ()
        return [start, *(name for name in others if name != start)]

    def _choice(self, name: object) -> ModelChoice:
        """The model of a name.

        Raises:
            CheckpointError: the menu offers none of this name.
        """
        names = self._names()
        if name is None or name == names[0]:
            return DEFAULT_MODEL
        if isinstance(name, str) and name in names:
            return ModelChoice(name)
        near = get_close_matches(name[:LONGEST_NAME], names, 3) if isinstance(name, str) else []
        meant = f"did you mean {choices(near)}? " if near else ""
        raise CheckpointError(f"model = {quote(name)}: {meant}expected a name that /models lists")

    def _analysis(self, key: object) -> Analysis:
        found = self.service.cache.get(key) if isinstance(key, str) else None
        if found is None:
            raise MethodError(f"id = {quote(key)}: no analysis of this id, or not kept any more; ask /analyze for one")
        return found

    def _map(self, analysis: Analysis, method: Method, arguments: dict[str, Any], clock: _Clock) -> Heatmap:
        """A map; one that takes long is kept for the page and for the next request, as the page keeps it."""
        clock.check(method)
        return self.service.heatmap(
            analysis, method, arguments, lambda state: clock.check(method, state), lambda: clock.check(method)
        )


def _style(value: Mapping[str, object]) -> Style:
    """How a map is drawn, by the fields of :class:`vitviz.Style`.

    Raises:
        MethodError: one of them is not legal.
    """
    low, high = (
        None if value[end] is None else number(end, value[end], -FURTHEST, FURTHEST) for end in ("low", "high")
    )
    return Style(
        colormap=word("colormap", value["colormap"], COLORMAPS),
        opacity=number("opacity", value["opacity"], 0, 1),
        smooth=switch("smooth", value["smooth"]),
        grid=switch("grid", value["grid"]),
        fade=switch("fade", value["fade"]),
        low=low,
        high=high,
        scale=scale_of("scale", value["scale"]),
        percentiles=PERCENTILES
        if value["percentiles"] is None
        else percentile_pair("percentiles", value["percentiles"]),
    )


def _map_requests(maps: object, analysis: Analysis) -> Iterator[tuple[Method, dict[str, Any]]]:
    """The methods and their arguments that a request for maps stands for.

    Raises:
        MethodError: one of them cannot be.
    """
    most = min(MOST_MAPS, max(1, MOST_VALUES // analysis.trace.layout.patch_count))
    if not isinstance(maps, list) or not 0 < len(maps) <= most:
        found = f"{len(maps):,} maps" if isinstance(maps, list) else quote(maps)
        raise MethodError(f"maps = {found}: expected a list of 1 to {most}")
    for place, each in enumerate(maps):
        given = fields(f"maps[{place}]", each, ("method", "parameters"))
        method = method_of(given.get("method"), f"maps[{place}].method")
        field = f"maps[{place}].parameters"
        yield method, parameters_of(method, given.get("parameters"), analysis.model, analysis.trace.layout, field)


class _Clock:
    """The time that a request may take."""

    def __init__(self) -> None:
        self._end = time.monotonic() + MOST_SECONDS

    def check(self, method: Method, state: Progress | None = None) -> None:
        """End what takes too long.

        Raises:
            LimitError: the time is up.
        """
        if time.monotonic() > self._end:
            reached = "" if state is None else f" at {state.done:,} of {state.total:,} steps"
            raise LimitError(
                f"{method.name}: stopped after {MOST_SECONDS:g} seconds{reached}; expected fewer maps, or parameters "
                "that take less time"
            )


def publish(demo: gr.Blocks, service: AnalysisService) -> None:
    """Give an app its endpoints, which clients find by name and documentation; inside of its context."""
    api = Api(service)
    # What the page waits for, a program waits for, too. Of a queue, the lowest limit that anybody sets is the one.
    queues = {api.open: "open", api.analyze: "long", api.maps: "maps", api.overlay: "maps"}
    for endpoint in (api.models, api.open, api.methods, api.analyze, api.maps, api.overlay):
        queue = queues.get(endpoint, "api")
        limits = (fn.concurrency_limit for fn in demo.fns.values() if fn.concurrency_id == queue)
        limit = max((limit for limit in limits if isinstance(limit, int)), default=AT_ONCE)
        publish_function(endpoint, api_name=endpoint.__name__, concurrency_id=queue, concurrency_limit=limit)
        _document(next(fn for fn in demo.fns.values() if fn.api_name == endpoint.__name__))
    # What may take long has to wait its turn.
    demo.api_open = False
    for fn in demo.fns.values():
        # Gradio leaves the events of its examples to clients that know their number.
        fn.api_visibility = "public" if fn.api_visibility == "public" else "private"
    _SERVICES[demo] = service


def _document(published: Any) -> None:
    """Give the fields of an endpoint the names, types and words of its function, which Gradio leaves out."""
    hints = get_type_hints(published.fn)
    _, descriptions, returned = get_function_description(published.fn)
    for name, part in zip(signature(published.fn).parameters, published.inputs, strict=True):
        part.label, part._api_info = (
            name,
            _schema(hints[name], part._api_info) | {"additional_description": descriptions[name]},
        )
    answer = published.outputs[0]
    answer.label = "answer"
    answer._api_info = _schema(hints["return"], answer._api_info) | {"description": " ".join(returned)}


def _schema(hint: Any, known: dict[str, Any]) -> dict[str, Any]:
    """A type as JSON schema says it, by what Gradio knows of it; null stands for a field that is left out."""
    hint = next((each for each in get_args(hint) if each is not type(None)), hint)
    if not issubclass(hint, GradioModel | GradioRootModel):
        return dict(known.get("oneOf", [known])[-1])
    schema = hint.model_json_schema()
    return {name: part for name, part in _whole(schema, schema.get("$defs", {})).items() if name != "description"}


def _whole(part: Any, kinds: dict[str, Any]) -> Any:
    """A part of a schema with the kinds that it refers to in their places, where whoever gets the part finds them."""
    if isinstance(part, list):
        return [_whole(each, kinds) for each in part]
    if not isinstance(part, dict):
        return part
    kind = kinds[part["$ref"].rpartition("/")[2]] if "$ref" in part else {}
    return {name: _whole(each, kinds) for name, each in {**kind, **part}.items() if name not in ("$ref", "$defs")}


_SERVICES: WeakKeyDictionary[gr.Blocks, AnalysisService] = WeakKeyDictionary()


def health(demo: gr.Blocks) -> dict[str, str]:
    """That an app answers, which version it is, and the model with which it opens."""
    return {"status": "ok", "version": __version__, "model": _SERVICES[demo].start.name}
