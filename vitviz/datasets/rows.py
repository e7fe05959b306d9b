"""A picture as a row of a table: the columns of a request, and what stands in them.

The schema is documented in ``docs/scale.md``; what a column means also stands in its metadata.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from vitviz.analysis.analysis import Analysis, map_batch
from vitviz.analysis.encoder import analyze
from vitviz.attribution import METHODS
from vitviz.datasets.arrow import arrow
from vitviz.datasets.readers import Item
from vitviz.datasets.request import PREDICTIONS, BatchRequest
from vitviz.errors.kinds import VitvizError
from vitviz.evaluation.probes import Findings, probe
from vitviz.visualization.heatmaps import Heatmap

# Of the gallery: a column's name and ending, and its pictures' longer side in pixels.
THUMBNAIL, THUMBNAIL_SIDE = "thumbnail", 160


@dataclass(frozen=True, eq=False)
class Found:
    """What was found of one picture.

    Args:
        analysis: of it.
        maps: by the names of their columns.
        probes: in the order of the request.
    """

    analysis: Analysis
    maps: dict[str, Heatmap]
    probes: tuple[Findings, ...]

    @classmethod
    def of(cls, analysis: Analysis, request: BatchRequest) -> Found:
        """Compute what a request asks for.

        Raises:
            VitvizError: something cannot be computed for this picture.
        """
        maps = {each.name: analysis.map(each.method, **each.parameters) for each in request.maps}
        return cls(analysis, maps, tuple(probe(analysis, name) for name in request.probes))


def found_of(analyses: Sequence[Analysis], request: BatchRequest) -> list[Found | VitvizError]:
    """What a request asks for of several pictures, computed together where that takes less time; or why it cannot."""
    try:
        columns = [map_batch(analyses, each.method, **each.parameters) for each in request.maps]
    except VitvizError:
        # One of them has no such map: the others do.
        return [_found_or_error(analysis, request) for analysis in analyses]
    found: list[Found | VitvizError] = []
    for number, analysis in enumerate(analyses):
        maps = {each.name: column[number] for each, column in zip(request.maps, columns, strict=True)}
        try:
            found.append(Found(analysis, maps, tuple(probe(analysis, name) for name in request.probes)))
        except VitvizError as error:
            found.append(error)
    return found


def rehearsed(request: BatchRequest) -> Found:
    """The answer for a blank picture: what is wrong with a request itself shows at once, and not in every row."""
    preprocessing = request.model.preprocessing
    blank = np.full((preprocessing.height, preprocessing.width, 3), 127, np.uint8)
    return Found.of(analyze(blank, request.model, request.fit, resolution=request.resolution), request)


def _found_or_error(analysis: Analysis, request: BatchRequest) -> Found | VitvizError:
    try:
        return Found.of(analysis, request)
    except VitvizError as error:
        return error


def schema(request: BatchRequest, example: Found, about: dict[str, Any], thumbnails: bool = False) -> Any:
    """The columns of a request, by what was found of any picture: an ``pyarrow.Schema``.

    Args:
        request: what was asked.
        example: what was found of a picture.
        about: the request as JSON, which takes a look at every weight.
        thumbnails: whether there are small pictures.
    """
    pa, _ = arrow()
    text, count, numbers = pa.string(), pa.int32(), pa.list_(pa.float32())
    fields = [
        pa.field("path", text, nullable=False, metadata={"meaning": "of the picture in its source"}),
        pa.field("error", text, metadata={"meaning": "why nothing was found; null where something was"}),
        pa.field("sha256", text, metadata={"meaning": "of the picture's file, hexadecimal"}),
        pa.field("width", count, metadata={"meaning": "of the picture, pixels"}),
        pa.field("height", count, metadata={"meaning": "of the picture, pixels"}),
        pa.field("rows", count, metadata={"meaning": "of the patch grid"}),
        pa.field("columns", count, metadata={"meaning": "of the patch grid"}),
    ]
    if request.model.labels:
        best = pa.list_(pa.struct([("label", text), ("probability", pa.float32())]))
        fields += [
            pa.field("predictions", best, metadata={"meaning": f"the {PREDICTIONS} most probable classes, best first"}),
            pa.field("energy_score", pa.float32(), metadata={"meaning": "Liu et al. 2020, equation 4, its negative"}),
        ]
    for asked in request.maps:
        found = example.maps[asked.name].token_map
        facts = {**asked.to_json(), "quantity": found.quantity, "signed": found.signed}
        facts["meaning"] = f"{METHODS[asked.method].title}, row by row of the patch grid"
        fields.append(pa.field(asked.name, numbers, metadata=_strings(facts)))
        fields.append(pa.field(f"{asked.name}.caption", text, metadata={"meaning": "how the map was made"}))
    for findings in example.probes:
        for name, each in findings.measurements.items():
            facts = {"axes": list(each.axes), "quantity": each.quantity, "meaning": "flat, the last axis fastest"}
            column = f"{findings.probe}.{name}"
            fields.append(pa.field(column, pa.list_(_type(each.values)), metadata=_strings(facts)))
            fields.append(pa.field(f"{column}.shape", pa.list_(count), metadata={"meaning": "of its axes"}))
    if thumbnails:
        names = [THUMBNAIL, *(f"{each.name}.{THUMBNAIL}" for each in request.maps[:1])]
        meaning = "JPEG, for the gallery"
        fields += [pa.field(name, pa.binary(), metadata={"meaning": meaning}) for name in names]
    return pa.schema(fields, metadata={"vitviz": json.dumps(about)})


@dataclass(frozen=True)
class Source:
    """What is known of a picture's file once it was opened.

    Args:
        sha256: of its content, hexadecimal; None where it cannot be read.
        width, height: of the picture, in pixels.
    """

    sha256: str | None
    width: int = 0
    height: int = 0


def row(key: str, source: Source, found: Found, thumbnails: bool = False) -> dict[str, Any]:
    """The row of a picture."""
    analysis = found.analysis
    layout = analysis.trace.layout
    cells: dict[str, Any] = {
        "path": key,
        "sha256": source.sha256,
        "width": source.width,
        "height": source.height,
        "rows": layout.grid_height,
        "columns": layout.grid_width,
    }
    if analysis.model.labels:
        best = analysis.predictions(PREDICTIONS)
        cells["predictions"] = [{"label": each.label, "probability": each.probability} for each in best]
        cells["energy_score"] = analysis.energy_score
    for name, heatmap in found.maps.items():
        cells[name] = heatmap.numpy().ravel()
        cells[f"{name}.caption"] = heatmap.description
    for findings in found.probes:
        for name, each in findings.measurements.items():
            cells[f"{findings.probe}.{name}"] = each.values.numpy().ravel()
            cells[f"{findings.probe}.{name}.shape"] = list(each.values.shape)
    if thumbnails:
        prepared = analysis.prepared.resized(THUMBNAIL_SIDE)
        cells[THUMBNAIL] = _jpeg(prepared.image)
        for name, heatmap in list(found.maps.items())[:1]:
            cells[f"{name}.{THUMBNAIL}"] = _jpeg(
                Heatmap(heatmap.token_map, prepared.image, prepared.geometry).overlay()
            )
    return cells


def failed_row(key: str, source: Source, error: Exception) -> dict[str, Any]:
    """The row of a picture that nothing was found of."""
    return {"path": key, "error": str(error), "sha256": source.sha256}


def _jpeg(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=80)
    return stream.getvalue()


def digest(item: Item) -> str | None:
    """The SHA-256 of a picture's file; None where it cannot be read, or is not known."""
    if isinstance(item.source, bytes):
        return hashlib.sha256(item.source).hexdigest()
    if not isinstance(item.source, Path):
        return None
    try:
        return hashlib.sha256(item.source.read_bytes()).hexdigest()
    except OSError:
        return None


def _type(values: torch.Tensor) -> Any:
    pa, _ = arrow()
    if values.dtype == torch.bool:
        return pa.bool_()
    return pa.float32() if values.dtype.is_floating_point else pa.int64()


def _strings(about: dict[str, Any]) -> dict[str, str]:
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in about.items()}
