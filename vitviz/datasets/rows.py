"""A picture as a row of a table: the columns of a request, and what stands in them.

The schema is documented in ``docs/scale.md``; what a column means also stands in its metadata.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vitviz.analysis.analysis import Analysis
from vitviz.attribution import METHODS
from vitviz.datasets.arrow import arrow
from vitviz.datasets.readers import Item
from vitviz.datasets.request import PREDICTIONS, BatchRequest
from vitviz.evaluation.probes import Findings, probe
from vitviz.visualization.heatmaps import Heatmap


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


def schema(request: BatchRequest, example: Found) -> Any:
    """The columns of a request, by what was found of any picture: an ``pyarrow.Schema``."""
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
        about = {**asked.to_json(), "quantity": found.quantity, "signed": found.signed}
        about["meaning"] = f"{METHODS[asked.method].title}, row by row of the patch grid"
        fields.append(pa.field(asked.name, numbers, metadata=_strings(about)))
        fields.append(pa.field(f"{asked.name}.caption", text, metadata={"meaning": "how the map was made"}))
    for findings in example.probes:
        for name, each in findings.measurements.items():
            about = {"axes": list(each.axes), "quantity": each.quantity, "meaning": "flat, the last axis fastest"}
            column = f"{findings.probe}.{name}"
            fields.append(pa.field(column, pa.list_(_type(each.values)), metadata=_strings(about)))
            fields.append(pa.field(f"{column}.shape", pa.list_(count), metadata={"meaning": "of its axes"}))
    return pa.schema(fields, metadata={"vitviz": json.dumps(request.to_json())})


def row(item: Item, found: Found) -> dict[str, Any]:
    """The row of a picture."""
    analysis = found.analysis
    width, height = analysis.prepared.image.size
    layout = analysis.trace.layout
    cells: dict[str, Any] = {
        "path": item.key,
        "sha256": digest(item),
        "width": width,
        "height": height,
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
    return cells


def failed_row(item: Item, error: Exception) -> dict[str, Any]:
    """The row of a picture that nothing was found of."""
    return {"path": item.key, "error": str(error), "sha256": digest(item)}


def digest(item: Item) -> str | None:
    """The SHA-256 of a picture's file; None where it cannot be read."""
    if not isinstance(item.source, Path):
        return hashlib.sha256(item.source).hexdigest()
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
