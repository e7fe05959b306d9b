"""The public API: endpoints for programs, which share the line, the models and the analyses of the page.

An analysis has an unguessable id: only those who know it can ask for its maps.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from functools import wraps
from inspect import signature
from types import UnionType
from typing import Any, get_type_hints

import gradio as gr
from gradio.components.api_component import Api as Field
from gradio.data_classes import FileData
from gradio.utils import get_function_description
from pydantic import TypeAdapter

from vitviz.analysis.analysis import Analysis
from vitviz.attribution import METHODS, Method
from vitviz.attribution.json_values import fields, number, word
from vitviz.errors.kinds import CheckpointError, MethodError, VitvizError
from vitviz.errors.messages import did_you_mean, quote
from vitviz.images.preprocessing import FITS
from vitviz.ui.facts import method_facts
from vitviz.ui.image_bytes import as_png
from vitviz.ui.models import ModelChoice
from vitviz.ui.normalize import parameters_of
from vitviz.ui.pictures import upload_of
from vitviz.ui.progress_reports import ExpiredError, Report
from vitviz.ui.records import (
    AnalysisRecord,
    MapRecord,
    MapRequest,
    MethodRecord,
    ModelRecord,
    OpenedRecord,
    analysis_record,
    map_record,
    opened_record,
)
from vitviz.ui.server.explorer_files import CANVAS_SIDE
from vitviz.ui.server.line import current_bytes, current_visitor
from vitviz.ui.server.log import INTERNAL_ERROR
from vitviz.ui.server.rule import RequestError, UnderWay
from vitviz.ui.service import AnalysisService
from vitviz.ui.state import MAX_RESOLUTION, PageState
from vitviz.visualization.colormaps import DEFAULT_COLORMAP
from vitviz.visualization.heatmaps import Style
from vitviz.visualization.scales import PERCENTILES
from vitviz.weights import ZOO
from vitviz.weights.hub import is_cached

# One analysis: about a minute of two cores.
MAX_FLOPS = 9e12
# One request, and the values of its maps together.
MAX_MAPS, MAX_VALUES = 256, 2**16


class Api:
    """The endpoints. Their arguments are JSON of any kind until they are checked.

    Args:
        service: models and analyses, shared with the page.
    """

    def __init__(self, service: AnalysisService) -> None:
        self.service = service

    async def models(self) -> list[ModelRecord]:
        """The named models.

        Returns:
            that with which the page opens, then the others by family
        """
        return [
            ModelRecord(
                name=name,
                title=row["title"],
                family=row["family"],
                megabytes_to_download=row["megabytes"],
                known_for=getattr(ZOO.get(name), "known_for", None),
                licence=getattr(ZOO.get(name), "licence", None),
            )
            for name, row in self._models().items()
        ]

    async def open(self, model: str | None = None) -> OpenedRecord:
        """Open a model, which may take a download.

        Args:
            model: a name from /models; null for the model with which the page opens

        Returns:
            the facts of the model
        """
        return opened_record(await self.service.models.open(self._choice(model)))

    async def methods(self) -> list[MethodRecord]:
        """The methods that make maps, with their parameters.

        Returns:
            the methods in the order of the page
        """
        return [MethodRecord(**method_facts(method), source=method.citation) for method in METHODS.values()]

    async def analyze(
        self, image: FileData, model: str | None = None, fit: str | None = None, resolution: int | None = None
    ) -> AnalysisRecord:
        """Run a model on a picture, once. The answer has the id of the analysis for /maps and /overlay.

        Args:
            image: an uploaded picture: JPEG, PNG, WebP, GIF, TIFF, BMP or PPM
            model: a name from /models that is on this server; null for the model with which the page opens
            fit: crop, squash or native: how the picture becomes the model's input; null for the trained one
            resolution: shorter side of the input in pixels, a multiple of the patch; null for the trained one

        Returns:
            the id of the analysis, the model's input and its predictions
        """
        upload, choice = upload_of(image), self._choice(model)
        legal_fit = None if fit is None else word("fit", fit, FITS)
        pixels = None if resolution is None else int(number("resolution", resolution, 1, MAX_RESOLUTION, whole=True))
        named = ZOO.get(choice.source)
        if named is not None and not is_cached(named.repository):
            size = f"{named.megabytes:,.0f} MB"
            raise CheckpointError(f"model {named.name!r}: not on this server yet; /open downloads it ({size})")
        opened = await self.service.models.open(choice)
        uid, analysis = await self.service.analyze(
            opened, upload, legal_fit, pixels, choice=choice, max_flops=MAX_FLOPS
        )
        return analysis_record(uid, analysis, self.service.origins[analysis].size)

    async def maps(self, id: str, maps: list[MapRequest]) -> list[MapRecord]:
        """Maps of an analysis, in the order of the request: all of them, or an error.

        Args:
            id: from /analyze
            maps: a list of objects with a method from /methods, and its parameters if they are not the defaults

        Returns:
            the values of the maps, and their meaning
        """
        # Check all of them before computing the first.
        requests = list(_map_requests(maps, self.service.cached(id), self.service.server_settings.analysis_bytes))
        return [
            map_record(method, (await self.service.heatmap(id, method, arguments))[1]) for method, arguments in requests
        ]

    async def overlay(
        self,
        id: str,
        method: str = "attention",
        parameters: dict[str, Any] | None = None,
        colormap: str = DEFAULT_COLORMAP,
        opacity: float = Style.opacity,
        smooth: bool = Style.smooth,
        grid: bool = Style.grid,
        fade: bool = Style.fade,
        drain: bool = Style.drain,
        low: float | None = Style.low,
        high: float | None = Style.high,
        scale: str | None = None,
        percentiles: list[float] | None = None,
    ) -> FileData:
        """A map in colours over the picture, as a PNG file whose longer side is 900 pixels.

        Args:
            id: from /analyze
            method: name of the method, from /methods
            parameters: its parameters by name; a missing one has its default
            colormap: inferno, viridis, magma, cividis, gray or turbo
            opacity: of the colours over the picture, from 0 to 1
            smooth: whether colours are interpolated between the centres of patches
            grid: whether the borders of the patches are drawn
            fade: whether weak values are faded, so that the picture shows through
            drain: whether the picture is paler and darker, so that only the map has strong colours
            low: value at the lower end of the colours; null for the lowest of the map
            high: value at the upper end of the colours; null for the highest of the map
            scale: linear, robust, log, rank or zero; null to choose one from the values of the map
            percentiles: lower and upper end of a robust scale, from 0 to 100; null for 2 and 98

        Returns:
            the PNG file
        """
        analysis, record = self.service.cached(id), METHODS[word("method", method, METHODS)]
        looks = {
            "colormap": colormap,
            "opacity": opacity,
            "smooth": smooth,
            "grid": grid,
            "fade": fade,
            "drain": drain,
            "low": low,
            "high": high,
            "scale": scale,
            "percentiles": PERCENTILES if percentiles is None else percentiles,
        }
        style = PageState.from_json(looks).style
        arguments = parameters_of(record, parameters, analysis, max_bytes=self.service.server_settings.analysis_bytes)
        # It may be dropped while this waits.
        del analysis
        query, (_, heatmap) = arguments.get("query"), await self.service.heatmap(id, record, arguments)
        name = f"{record.name}.png"

        def draw(report: Report) -> str:
            content = as_png(heatmap.resized(CANVAS_SIDE).overlay(style, query if isinstance(query, tuple) else None))
            return str(self.service.folder.keep(content, name))

        return FileData(path=await self.service.short.run(draw), orig_name=name, mime_type="image/png")

    def _models(self) -> dict[str, dict[str, Any]]:
        """The rows of the menu by the names of the models, the default first."""
        return {row["id"] or self.service.models.start.name: row for row in self.service.models.menu()}

    def _choice(self, name: object) -> ModelChoice:
        """The model of a name.

        Raises:
            CheckpointError: the menu has no model of this name.
        """
        names = list(self._models())
        if name is None or (isinstance(name, str) and name in names):
            return self.service.models.choice(name or "")
        hint = did_you_mean(name, names)
        raise CheckpointError(f"model = {quote(name)}: expected a name that /models lists{hint}")


def _map_requests(maps: object, analysis: Analysis, max_bytes: int) -> Iterator[tuple[Method, dict[str, Any]]]:
    """Method and arguments of each map of a request.

    Raises:
        MethodError: there are too many, or one is not legal.
        LimitError: one would need more memory than an analysis may.
    """
    max_count = min(MAX_MAPS, max(1, MAX_VALUES // analysis.trace.layout.patch_count))
    if not isinstance(maps, list) or not 0 < len(maps) <= max_count:
        text = f"{len(maps):,} maps" if isinstance(maps, list) else quote(maps)
        raise MethodError(f"maps = {text}: expected a list of 1 to {max_count}")
    for index, value in enumerate(maps):
        request = fields(f"maps[{index}]", value, ("method", "parameters"))
        method = METHODS[word(f"maps[{index}].method", request.get("method"), METHODS)]
        field = f"maps[{index}].parameters"
        yield method, parameters_of(method, request.get("parameters"), analysis, field, max_bytes)


def publish(blocks: gr.Blocks, service: AnalysisService) -> None:
    """Add the documented endpoints to an app; call it in the app's context.

    Args:
        blocks: Gradio's app.
        service: models and analyses.
    """
    api = Api(service)
    for endpoint in (api.models, api.open, api.methods, api.analyze, api.maps, api.overlay):
        inputs, answer = _fields(endpoint)
        blocks.default_config.set_event_trigger(
            [],
            answering(endpoint, service.under_way),
            inputs,
            answer,
            preprocess=False,
            postprocess=False,
            api_name=endpoint.__name__,
            concurrency_limit=None,
            # Gradio calls a tool directly; clients use the queue all the same.
            queue=False,
        )
    # No call goes past the queue.
    blocks.queue(api_open=False)


def answering(endpoint: Callable[..., Awaitable[Any]], under_way: UnderWay) -> Callable[..., Awaitable[Any]]:
    """An endpoint that counts among what its visitor has under way, and whose errors are one sentence each.

    An unexpected error goes to the log only.
    """

    @wraps(endpoint)
    async def answer(*arguments: Any, **options: Any) -> Any:
        try:
            async with under_way.request(current_visitor(), current_bytes()):
                return TypeAdapter(Any).dump_python(await endpoint(*arguments, **options), mode="json")
        except (VitvizError, RequestError) as error:
            message = str(error)
        except ExpiredError as error:
            message = f"{error}; ask /analyze for one"
        except Exception:
            logging.getLogger(__name__).exception("/%s", endpoint.__name__)
            message = INTERNAL_ERROR
        raise gr.Error(message, print_exception=False)

    return answer


def _fields(endpoint: Callable[..., Any]) -> tuple[list[Field], Field]:
    """The arguments of an endpoint and its answer, with names, types and descriptions, which ``gr.api`` leaves out."""
    hints = get_type_hints(endpoint)
    _, descriptions, returns = get_function_description(endpoint)
    inputs = [
        Field(
            None if parameter.default is parameter.empty else parameter.default,
            _schema(hints[name]) | {"additional_description": descriptions[name]},
            name,
        )
        for name, parameter in signature(endpoint).parameters.items()
    ]
    return inputs, Field(None, _schema(hints["return"]) | {"description": " ".join(returns)}, "answer")


def _schema(hint: Any) -> dict[str, Any]:
    """The JSON schema of a type hint. Null means a missing field."""
    schema = TypeAdapter(hint.__args__[0] if isinstance(hint, UnionType) else hint).json_schema()
    inlined = _inlined(schema, schema.get("$defs", {}))
    return {name: value for name, value in inlined.items() if name != "description"}


def _inlined(schema: Any, definitions: dict[str, Any]) -> Any:
    """A schema with its definitions in the place of the references, for clients that read only a part of it."""
    if isinstance(schema, list):
        return [_inlined(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    definition = definitions[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else {}
    entries = {**definition, **schema}.items()
    return {name: _inlined(item, definitions) for name, item in entries if name not in ("$ref", "$defs")}
