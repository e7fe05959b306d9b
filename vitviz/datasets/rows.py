"""The row of a picture in a table: the columns of a request, and their values.

``docs/scale.md`` documents the schema; the metadata of each column states its meaning, too.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from vitviz.analysis.analysis import Analysis
from vitviz.analysis.batches import map_batch
from vitviz.analysis.encoder import analyze
from vitviz.attribution import METHODS
from vitviz.datasets.arrow import arrow
from vitviz.datasets.readers import Item
from vitviz.datasets.request import PREDICTION_COUNT, BatchRequest
from vitviz.datasets.true_classes import true_class
from vitviz.errors.kinds import VitvizError
from vitviz.evaluation.probes import Findings, probe
from vitviz.images.image_facts import ImageFacts
from vitviz.visualization.heatmaps import Heatmap
from vitviz.visualization.regions import Region, region_shares
from vitviz.weights import Model

# The column of thumbnails, also a suffix of map columns; and the longer side of a thumbnail in pixels.
THUMBNAIL, THUMBNAIL_SIDE = "thumbnail", 160
# The suffix of columns with the share of a map inside a region, and the column with the region's area.
INSIDE, INSIDE_AREA = "inside", "inside.area"


@dataclass(frozen=True, eq=False)
class PictureResult:
    """The maps and probes of one picture.

    Args:
        analysis: of the picture.
        maps: by the names of their columns.
        probes: in the order of the request.
    """

    analysis: Analysis
    maps: dict[str, Heatmap]
    probes: tuple[Findings, ...]

    @property
    def box(self) -> tuple[float, float, float, float]:
        """The model's input on the picture, beyond it where it is padded: left, top, right and bottom edge in pixels,
        upright."""
        prepared = self.analysis.prepared
        # A picture that waited in a queue may be smaller than its file.
        facts = ImageFacts.of(prepared.image)
        return facts.on_picture(prepared.geometry.resized(*facts.size).box)


def compute_results(analyses: Sequence[Analysis], request: BatchRequest) -> list[PictureResult | VitvizError]:
    """The result of each picture, or its error. Maps are computed for all pictures together if the method can do it."""
    if analyses and not analyses[0].logits.is_cpu:
        # One wait for a graphics card, not several for each picture.
        logits = torch.stack([analysis.logits for analysis in analyses]).cpu()
        analyses = [replace(analysis, logits=row) for analysis, row in zip(analyses, logits, strict=True)]
    try:
        columns = [map_batch(analyses, each.method, **each.parameters) for each in request.maps]
    except VitvizError as error:
        # Only some of the pictures fail.
        return [error] if len(analyses) == 1 else [compute_results([each], request)[0] for each in analyses]
    results: list[PictureResult | VitvizError] = []
    for index, analysis in enumerate(analyses):
        maps = {each.name: column[index] for each, column in zip(request.maps, columns, strict=True)}
        try:
            results.append(PictureResult(analysis, maps, tuple(probe(analysis, name) for name in request.probes)))
        except VitvizError as error:
            results.append(error)
    return results


def blank_result(request: BatchRequest) -> PictureResult:
    """The result of a blank picture, which raises the errors of the request itself before any row is computed."""
    preprocessing = request.model.preprocessing
    blank = np.full((preprocessing.height, preprocessing.width, 3), 127, np.uint8)
    [result] = compute_results([analyze(blank, request.model, request.fit, resolution=request.resolution)], request)
    if isinstance(result, VitvizError):
        raise result
    return result


def schema(
    request: BatchRequest, example: PictureResult, request_json: dict[str, Any], thumbnails: bool = False
) -> Any:
    """The columns of a request, a ``pyarrow.Schema``.

    Args:
        request: the request.
        example: the result of any picture.
        request_json: the request as JSON, passed in because it hashes every weight.
        thumbnails: whether rows have thumbnails.
    """
    pa, _ = arrow()
    text, count, number, numbers = pa.string(), pa.int32(), pa.float32(), pa.list_(pa.float32())
    predictions = pa.list_(pa.struct([("label", text), ("probability", number)]))
    columns: list[tuple[str, Any, dict[str, Any] | str]] = [
        ("path", text, "path in the source"),
        ("error", text, "why the picture could not be analysed, else null"),
        ("sha256", text, "of the picture's file, hexadecimal"),
        ("width", count, "of the picture, pixels"),
        ("height", count, "of the picture, pixels"),
        ("box", pa.list_(pa.float64()), "left, top, right and bottom edge of the model's input on the picture, pixels"),
        ("rows", count, "of the patch grid"),
        ("columns", count, "of the patch grid"),
        ("assumptions", pa.list_(text), "what opening the picture assumed"),
    ]
    if request.model.gives_probabilities:
        wrong = "whether the most probable class is not the true one; null without a true class"
        columns += [
            ("predictions", predictions, f"the {PREDICTION_COUNT} most probable classes, best first"),
            ("true_class", text, "the class that the picture's folder names, else null"),
            ("is_misclassified", pa.bool_(), wrong),
        ]
    if _has_energy(request.model):
        columns.append(("energy_score", number, "Liu et al. 2020, equation 4, its negative"))
    if request.model.ood_detector is not None:
        unlike = "whether the score is below the detector's threshold; null for an input of few patches"
        columns += [
            ("ood_score", number, "low where the picture is unlike the training images"),
            ("is_out_of_distribution", pa.bool_(), unlike),
        ]
    inside = "share of the map inside the mask or box; NaN for a map of zeros, null without a mask"
    area = "share of the model's input that the mask or box takes: that of an even map"
    for each in request.maps:
        token_map = example.maps[each.name].token_map
        about = {**each.to_json(), "quantity": token_map.quantity, "signed": token_map.signed}
        about["meaning"] = f"{METHODS[each.method].title}, row by row of the patch grid"
        columns += [(each.name, numbers, about), (f"{each.name}.caption", text, "how the map was made")]
        columns += [(f"{each.name}.{INSIDE}", number, inside)] * request.has_regions
    columns += [(INSIDE_AREA, number, area)] * request.has_regions
    for findings in example.probes:
        for name, measurement in findings.measurements.items():
            column, axes = f"{findings.probe}.{name}", list(measurement.axes)
            about = {"axes": axes, "quantity": measurement.quantity, "meaning": "flat, the last axis fastest"}
            columns.append((column, pa.list_(_arrow_type(measurement.values)), about))
            columns.append((f"{column}.shape", pa.list_(count), "size along each axis"))
    small = [THUMBNAIL, *(f"{each.name}.{THUMBNAIL}" for each in request.maps[:1])] if thumbnails else []
    columns += [(name, pa.binary(), "JPEG, for the gallery") for name in small]
    fields = [
        pa.field(
            name,
            kind,
            nullable=name != "path",
            metadata=_strings({"meaning": about} if isinstance(about, str) else about),
        )
        for name, kind, about in columns
    ]
    return pa.schema(fields, metadata={"vitviz": json.dumps(request_json)})


@dataclass(frozen=True)
class FileInfo:
    """The digest and size of a picture's file.

    Args:
        sha256: of its content, hexadecimal; None if it cannot be read or there is no file.
        width, height: of the picture, in pixels.
    """

    sha256: str | None
    width: int = 0
    height: int = 0


def result_row(
    key: str, info: FileInfo, result: PictureResult, request: BatchRequest, thumbnails: bool = False
) -> dict[str, Any]:
    """The row of a picture.

    Raises:
        VitvizError: its mask or box cannot be used.
    """
    analysis = result.analysis
    layout = analysis.trace.layout
    cells: dict[str, Any] = {
        "path": key,
        "sha256": info.sha256,
        "width": info.width,
        "height": info.height,
        "box": list(result.box),
        "rows": layout.grid_height,
        "columns": layout.grid_width,
        "assumptions": list(analysis.prepared.assumptions),
    }
    if analysis.model.gives_probabilities:
        predictions = analysis.predictions(PREDICTION_COUNT)
        cells["predictions"] = [{"label": each.label, "probability": each.probability} for each in predictions]
        cells["true_class"] = truth = true_class(key, request.class_names)
        cells["is_misclassified"] = None if truth is None else predictions[0].label != truth
    if _has_energy(analysis.model):
        cells["energy_score"] = analysis.energy_score
    if analysis.model.ood_detector is not None:
        cells["ood_score"] = analysis.ood_score
        cells["is_out_of_distribution"] = analysis.is_out_of_distribution
    for name, heatmap in result.maps.items():
        cells[name] = heatmap.numpy().ravel()
        cells[f"{name}.caption"] = heatmap.description
    if request.has_regions:
        cells |= _inside(result, request.region_of(key))
    for findings in result.probes:
        for name, each in findings.measurements.items():
            cells[f"{findings.probe}.{name}"] = each.values.numpy().ravel()
            cells[f"{findings.probe}.{name}.shape"] = list(each.values.shape)
    if thumbnails:
        prepared = analysis.prepared.resized(THUMBNAIL_SIDE)
        cells[THUMBNAIL] = _jpeg(prepared.image)
        for name, heatmap in list(result.maps.items())[:1]:
            cells[f"{name}.{THUMBNAIL}"] = _jpeg(
                Heatmap(heatmap.token_map, prepared.image, prepared.geometry).overlay()
            )
    return cells


def _inside(result: PictureResult, region: Region | None) -> dict[str, float | None]:
    """The share of every map inside a picture's region, and the region's area; None without a region."""
    columns = {f"{name}.{INSIDE}": heatmap for name, heatmap in result.maps.items()}
    if region is None:
        return dict.fromkeys([*columns, INSIDE_AREA])
    shares = {name: heatmap.share_inside(region) for name, heatmap in columns.items()}
    prepared, layout = result.analysis.prepared, result.analysis.trace.layout
    cells: dict[str, float | None] = {name: math.nan if share is None else share for name, share in shares.items()}
    grid = layout.grid_height, layout.grid_width
    return {**cells, INSIDE_AREA: float(region_shares(region, prepared.image, prepared.geometry, grid).mean())}


def _has_energy(model: Model) -> bool:
    return bool(model.labels) and model.network.config.probability == "softmax"


def failed_row(key: str, info: FileInfo, error: Exception) -> dict[str, Any]:
    """The row of a picture that could not be analysed."""
    return {"path": key, "error": str(error), "sha256": info.sha256}


def _jpeg(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=80)
    return stream.getvalue()


def file_digest(item: Item) -> str | None:
    """The SHA-256 of a picture's file, hexadecimal; None if it cannot be read or there is no file."""
    if isinstance(item.source, bytes):
        return hashlib.sha256(item.source).hexdigest()
    if not isinstance(item.source, Path):
        return None
    try:
        return hashlib.sha256(item.source.read_bytes()).hexdigest()
    except OSError:
        return None


def _arrow_type(values: torch.Tensor) -> Any:
    pa, _ = arrow()
    if values.dtype == torch.bool:
        return pa.bool_()
    return pa.float32() if values.dtype.is_floating_point else pa.int64()


def _strings(metadata: dict[str, Any]) -> dict[str, str]:
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in metadata.items()}
