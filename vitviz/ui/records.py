"""The records that the public API returns, documented for its clients."""

from __future__ import annotations

from math import isfinite
from typing import Any

from gradio.utils import get_function_description
from pydantic import BaseModel, ConfigDict

from vitviz.analysis.analysis import Analysis
from vitviz.attribution import Method
from vitviz.ui.facts import MAX_PREDICTIONS
from vitviz.visualization.heatmaps import Heatmap
from vitviz.weights import Model


def _documented(schema: dict[str, Any], record: type[BaseModel]) -> None:
    """Copy the descriptions of a record and its fields from the docstring into the schema."""
    schema["description"], descriptions, _ = get_function_description(record)
    for name, field in schema.get("properties", {}).items():
        field["description"] = descriptions[name]


class Record(BaseModel):
    """An answer."""

    model_config = ConfigDict(json_schema_extra=_documented)


class ModelRecord(Record):
    """A named model.

    Args:
        name: the argument of /analyze and /open
        title: common name of the architecture
        family: its group in the menu
        megabytes_to_download: millions of bytes; 0 if it is on this server
        known_for: one line about its attention, or null
        licence: of the weights, or null if unknown
    """

    name: str
    title: str
    family: str
    megabytes_to_download: float
    known_for: str | None = None
    licence: str | None = None


class ParameterRecord(Record):
    """A parameter of a method.

    Args:
        name: its field in the parameters of /maps and /overlay
        title: its title on the page
        kind: choice, number, layer, head, token or class
        legal: its legal values, in words
        default: null means the model's own token, or the most probable class
        choices: the values of a choice; null is legal, too, if it is the default
        minimum: lowest legal number
        maximum: highest legal number
        whole: whether only whole numbers are legal
    """

    name: str
    title: str
    kind: str
    legal: str
    default: str | int | float | None
    choices: list[str] | None = None
    minimum: float | None = None
    maximum: float | None = None
    whole: bool = False


class MethodRecord(Record):
    """A method.

    Args:
        name: the argument of /maps and /overlay
        title: its title on the page
        about_a_class: whether its maps are about a class or a text
        parameters: its parameters
        source: its publication
        interpretation: how to read a map
    """

    name: str
    title: str
    about_a_class: bool
    parameters: list[ParameterRecord]
    source: str
    interpretation: str


class OpenedRecord(Record):
    """An open model.

    Args:
        name: the argument of /analyze
        layers: number of layers
        heads: number of heads in each layer
        input: height and width of the trained input in pixels
        patch: height and width of a patch in pixels
        fit: the fit with which it was trained
        labels: of its classes, in order; empty without a classifier
    """

    name: str
    layers: int
    heads: int
    input: tuple[int, int]
    patch: tuple[int, int]
    fit: str
    labels: list[str]


class PredictionRecord(Record):
    """A class and its probability.

    Args:
        label: of the class
        index: of the class, from 0
        probability: in [0, 1]
    """

    label: str
    index: int
    probability: float


class AnalysisRecord(Record):
    """An analysis of a picture.

    Args:
        id: the argument of /maps and /overlay; it cannot be guessed
        model: name of the model
        image: width and height of the upright picture in pixels
        box: left, top, right and bottom edge of the model's input, in pixels of the picture
        grid: rows and columns of patches
        prefix: names of the tokens before the patches
        layers: number of layers
        heads: number of heads in each layer
        predictions: the most probable classes, best first; empty without a classifier, and for a regression
        assumptions: what opening the picture assumed, a sentence each
    """

    id: str
    model: str
    image: tuple[int, int]
    box: tuple[float, float, float, float]
    grid: tuple[int, int]
    prefix: list[str]
    layers: int
    heads: int
    predictions: list[PredictionRecord]
    assumptions: list[str]


class MapRecord(Record):
    """A map over the patches.

    Args:
        method: name of the method
        description: a caption
        quantity: the quantity of the values
        values: a list of rows, one number for each patch
        prefix: values of the tokens before the patches, by name
        range: lowest and highest value of this map
        domain: lowest and highest value that the method can return; null without a bound
    """

    method: str
    description: str
    quantity: str
    values: list[list[float]]
    prefix: dict[str, float]
    range: tuple[float, float]
    domain: tuple[float | None, float | None]


class MapRequest(Record):
    """A requested map.

    Args:
        method: name of the method, from /methods
        parameters: its parameters by name; a missing one has its default
    """

    method: str
    parameters: dict[str, Any] | None = None


def opened_record(model: Model) -> OpenedRecord:
    """A model in memory."""
    config, preprocessing = model.network.config, model.preprocessing
    return OpenedRecord(
        name=model.name,
        layers=config.depth,
        heads=config.heads,
        input=(preprocessing.height, preprocessing.width),
        patch=(config.patch_height, config.patch_width),
        fit=preprocessing.fit,
        labels=list(model.labels),
    )


def analysis_record(uid: str, analysis: Analysis, size: tuple[int, int]) -> AnalysisRecord:
    """An analysis of a picture of this width and height."""
    layout = analysis.trace.layout
    best = analysis.predictions(MAX_PREDICTIONS) if analysis.model.gives_probabilities else []
    # The cached picture is as large as the page shows it.
    left, top, right, bottom = analysis.prepared.geometry.resized(*size).box
    return AnalysisRecord(
        id=uid,
        model=analysis.model.name,
        image=size,
        box=(round(left, 6), round(top, 6), round(right, 6), round(bottom, 6)),
        grid=(layout.grid_height, layout.grid_width),
        prefix=list(layout.prefix),
        layers=analysis.trace.layers,
        heads=analysis.trace.heads,
        predictions=[PredictionRecord(**vars(each)) for each in best],
        assumptions=list(analysis.prepared.assumptions),
    )


def map_record(method: Method, heatmap: Heatmap) -> MapRecord:
    """A map."""
    token_map = heatmap.token_map
    low, high = (end if isfinite(end) else None for end in token_map.domain)
    return MapRecord(
        method=method.name,
        description=token_map.description,
        quantity=token_map.quantity,
        values=token_map.values.tolist(),
        prefix=token_map.prefix,
        range=token_map.range,
        domain=(low, high),
    )
