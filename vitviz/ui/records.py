"""The records that the public API returns, documented for its clients."""

from __future__ import annotations

from math import isfinite
from typing import Any

from pydantic import BaseModel, ConfigDict

from vitviz.analysis.analysis import Analysis
from vitviz.attribution import Method
from vitviz.ui.facts import MAX_PREDICTIONS
from vitviz.visualization.heatmaps import Heatmap
from vitviz.weights import Model


class Record(BaseModel):
    """An answer."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class ModelRecord(Record):
    """A named model."""

    name: str
    """the argument of /analyze and /open"""
    title: str
    """common name of the architecture"""
    family: str
    """its group in the menu"""
    megabytes_to_download: float
    """millions of bytes; 0 if it is on this server"""
    known_for: str | None = None
    """one line about its attention, or null"""
    licence: str | None = None
    """of the weights, or null if unknown"""


class ParameterRecord(Record):
    """A parameter of a method."""

    name: str
    """its field in the parameters of /maps and /overlay"""
    title: str
    """its title on the page"""
    kind: str
    """choice, number, layer, head, token or class"""
    legal: str
    """its legal values, in words"""
    default: str | int | float | None
    """null means the model's own token, or the most probable class"""
    choices: list[str] | None = None
    """the values of a choice; null is legal, too, if it is the default"""
    minimum: float | None = None
    """lowest legal number"""
    maximum: float | None = None
    """highest legal number"""
    whole: bool = False
    """whether only whole numbers are legal"""


class MethodRecord(Record):
    """A method."""

    name: str
    """the argument of /maps and /overlay"""
    title: str
    """its title on the page"""
    about_a_class: bool
    """whether its maps are about a class or a text"""
    parameters: list[ParameterRecord]
    """its parameters"""
    source: str
    """its publication"""
    interpretation: str
    """how to read a map"""


class OpenedRecord(Record):
    """An open model."""

    name: str
    """the argument of /analyze"""
    layers: int
    """number of layers"""
    heads: int
    """number of heads in each layer"""
    input: tuple[int, int]
    """height and width of the trained input in pixels"""
    patch: tuple[int, int]
    """height and width of a patch in pixels"""
    fit: str
    """the fit with which it was trained"""
    labels: list[str]
    """of its classes, in order; empty without a classifier"""


class PredictionRecord(Record):
    """A class and its probability."""

    label: str
    """of the class"""
    index: int
    """of the class, from 0"""
    probability: float
    """in [0, 1]"""


class AnalysisRecord(Record):
    """An analysis of a picture."""

    id: str
    """the argument of /maps and /overlay; it cannot be guessed"""
    model: str
    """name of the model"""
    image: tuple[int, int]
    """width and height of the upright picture in pixels"""
    box: tuple[float, float, float, float]
    """left, top, right and bottom edge of the model's input, in pixels of the picture"""
    grid: tuple[int, int]
    """rows and columns of patches"""
    prefix: list[str]
    """names of the tokens before the patches"""
    layers: int
    """number of layers"""
    heads: int
    """number of heads in each layer"""
    predictions: list[PredictionRecord]
    """the most probable classes, best first; empty without a classifier, and for a regression"""
    assumptions: list[str]
    """what opening the picture assumed, a sentence each"""


class MapRecord(Record):
    """A map over the patches."""

    method: str
    """name of the method"""
    description: str
    """a caption"""
    quantity: str
    """the quantity of the values"""
    values: list[list[float]]
    """a list of rows, one number for each patch"""
    prefix: dict[str, float]
    """values of the tokens before the patches, by name"""
    range: tuple[float, float]
    """lowest and highest value of this map"""
    domain: tuple[float | None, float | None]
    """lowest and highest value that the method can return; null without a bound"""


class MapRequest(Record):
    """A requested map."""

    method: str
    """name of the method, from /methods"""
    parameters: dict[str, Any] | None = None
    """its parameters by name; a missing one has its default"""


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
