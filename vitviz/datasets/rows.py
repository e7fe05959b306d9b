"""The row of a picture in a table: the columns of a request, and their values.

``docs/scale.md`` documents the schema; the metadata of each column states its meaning, too.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitviz.analysis.analysis import Analysis
from vitviz.analysis.batches import map_batch
from vitviz.analysis.encoder import analyze
from vitviz.attribution import METHODS
from vitviz.datasets.arrow import arrow
from vitviz.datasets.readers import Item
from vitviz.datasets.request import PREDICTION_COUNT, BatchRequest
from vitviz.datasets.true_classes import true_class
from vitviz.errors.kinds import MethodError, VitvizError
from vitviz.evaluation.probes import Findings, probe
from vitviz.images.encoded import encoded
from vitviz.images.image_facts import ImageFacts
from vitviz.visualization.heatmaps import Heatmap
from vitviz.visualization.regions import Region, region_shares

# The column of thumbnails, also a suffix of map columns; and the longer side of a thumbnail in pixels.
THUMBNAIL, THUMBNAIL_SIDE = "thumbnail", 160
# The suffix of columns with the share of a map inside a region, and the column with the region's area.
INSIDE, INSIDE_AREA = "inside", "inside.area"
# Types of columns are those that pyarrow has a name for, lists of them in brackets, and this one.
PREDICTIONS = "predictions"

Column = tuple[str, str, dict[str, Any] | str, Any]
"""Name, type, meaning and value."""


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
    def box(self) -> tuple[float, float, float, float] | None:
        """The model's input on the picture: left, top, right and bottom edge in pixels, upright; None if a function
        makes it, and nobody says where it lies."""
        prepared = self.analysis.prepared
        # A picture that waited in a queue may be smaller than its file.
        facts = ImageFacts.of(prepared.image)
        return None if facts.is_input else prepared.geometry.resized(*facts.size).box


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


@dataclass(frozen=True)
class FileInfo:
    """The digest and size of a picture's file.

    Args:
        sha256: of its content, hexadecimal; None if it cannot be read or there is no file.
        width, height: of the picture, in pixels.
        label: its class, where a table states one.
    """

    sha256: str | None
    width: int = 0
    height: int = 0
    label: str | None = None


def columns_of(
    key: str, info: FileInfo, result: PictureResult, request: BatchRequest, region: Region | None, thumbnails: bool
) -> list[Column]:
    """The columns of a picture's row.

    Raises:
        VitvizError: its mask or box cannot be used.
    """
    analysis = result.analysis
    layout = analysis.trace.layout
    columns: list[Column] = [
        ("path", "string", "path in the source", key),
        ("error", "string", "why the picture could not be analysed, else null", None),
        ("sha256", "string", "of the picture's file, hexadecimal", info.sha256),
        ("width", "int32", "of the picture, pixels", info.width),
        ("height", "int32", "of the picture, pixels", info.height),
        ("box", "[double]", "left, top, right and bottom edge of the model's input on the picture, pixels", result.box),
        ("rows", "int32", "of the patch grid", layout.grid_height),
        ("columns", "int32", "of the patch grid", layout.grid_width),
        ("assumptions", "[string]", "what opening the picture assumed", analysis.prepared.assumptions),
    ]
    if analysis.model.gives_probabilities:
        predictions = analysis.predictions(PREDICTION_COUNT)
        truth = true_class(key, request.class_names, info.label)
        best = [{"label": each.label, "probability": each.probability} for each in predictions]
        is_wrong = None if truth is None else predictions[0].label != truth
        wrong = "whether the most probable class is not the true one; null without a true class"
        columns += [
            ("predictions", PREDICTIONS, f"the {PREDICTION_COUNT} most probable classes, best first", best),
            ("true_class", "string", "the class that the picture's table or folder names, else null", truth),
            ("is_misclassified", "bool", wrong, is_wrong),
        ]
    if analysis.model.labels and analysis.model.network.config.probability == "softmax":
        columns.append(("energy_score", "float", "Liu et al. 2020, equation 4, its negative", analysis.energy_score))
    shares = _inside(result, region) if request.has_regions else {}
    inside = "share of the map inside the mask or box; NaN for a map of zeros, null without a mask"
    for each in request.maps:
        heatmap = result.maps[each.name]
        about = {**each.to_json(), "quantity": heatmap.token_map.quantity, "signed": heatmap.token_map.signed}
        about["meaning"] = f"{METHODS[each.method].title}, row by row of the patch grid"
        columns.append((each.name, "[float]", about, heatmap.numpy().ravel()))
        columns.append((f"{each.name}.caption", "string", "how the map was made", heatmap.description))
        if request.has_regions:
            columns.append((f"{each.name}.{INSIDE}", "float", inside, shares[each.name]))
    if request.has_regions:
        area = "share of the model's input that the mask or box takes: that of an even map"
        columns.append((INSIDE_AREA, "float", area, shares[INSIDE_AREA]))
    if request.features is not None:
        features = analysis.features(request.features.layer, request.features.of)
        vectors = (features.tokens[features.inliers].mean(0) if request.features.mean else features.values).half()
        if not vectors.isfinite().all():
            raise MethodError(f"{features.description}: beyond 65,504, which half precision ends at; try another layer")
        about = {
            "quantity": features.description,
            "meaning": "their mean" if request.features.mean else "flat, the last axis fastest: row, column, feature",
        }
        columns.append(("features", "[halffloat]", {**about, "layer": features.layer}, vectors.numpy().ravel()))
        columns.append(("features.shape", "[int32]", "size along each axis", list(vectors.shape)))
    for findings in result.probes:
        for name, measurement in findings.measurements.items():
            column, values = f"{findings.probe}.{name}", measurement.values
            about = {"axes": list(measurement.axes), "quantity": measurement.quantity}
            about["meaning"] = "flat, the last axis fastest"
            kind = "bool" if values.dtype == torch.bool else "float" if values.is_floating_point() else "int64"
            columns.append((column, f"[{kind}]", about, values.numpy().ravel()))
            columns.append((f"{column}.shape", "[int32]", "size along each axis", list(values.shape)))
    if thumbnails:
        small = analysis.prepared.resized(THUMBNAIL_SIDE)
        overlays = {
            f"{name}.{THUMBNAIL}": Heatmap(heatmap.token_map, small.image, small.geometry).overlay()
            for name, heatmap in list(result.maps.items())[:1]
        }
        for name, image in {THUMBNAIL: small.image, **overlays}.items():
            columns.append((name, "binary", "JPEG, for the gallery", encoded(image, "JPEG", quality=80)))
    return columns


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
    fields = []
    for name, kind, about, _ in columns_of("", FileInfo(None), example, request, None, thumbnails):
        metadata = _strings({"meaning": about} if isinstance(about, str) else about)
        fields.append(pa.field(name, _arrow_type(kind), nullable=name != "path", metadata=metadata))
    return pa.schema(fields, metadata={"vitviz": json.dumps(request_json)})


def row_of(
    key: str,
    info: FileInfo,
    result: PictureResult | VitvizError,
    request: BatchRequest,
    thumbnails: bool = False,
) -> dict[str, Any]:
    """The row of a picture, or that of one that could not be analysed, or whose mask cannot be used."""
    try:
        if isinstance(result, VitvizError):
            raise result
        columns = columns_of(key, info, result, request, request.region_of(key), thumbnails)
        return {name: value for name, _, _, value in columns}
    except VitvizError as error:
        truth = {"true_class": true_class(key, request.class_names, info.label)} if request.class_names else {}
        return {"path": key, "error": str(error), "sha256": info.sha256, **truth}


def _inside(result: PictureResult, region: Region | None) -> dict[str, float | None]:
    """The share of every map inside a picture's region, and the region's area; None without a region."""
    if region is None:
        return dict.fromkeys([*result.maps, INSIDE_AREA])
    shares = {name: heatmap.share_inside(region) for name, heatmap in result.maps.items()}
    prepared, layout = result.analysis.prepared, result.analysis.trace.layout
    cells: dict[str, float | None] = {name: math.nan if share is None else share for name, share in shares.items()}
    grid = layout.grid_height, layout.grid_width
    return {**cells, INSIDE_AREA: float(region_shares(region, prepared.image, prepared.geometry, grid).mean())}


def file_digest(item: Item) -> str | None:
    """The SHA-256 of a picture's file, hexadecimal; None if it cannot be read or there is no file."""
    with suppress(OSError):
        content = item.source.read_bytes() if isinstance(item.source, Path) else item.source
        return hashlib.sha256(content).hexdigest() if isinstance(content, bytes) else None
    return None


def _arrow_type(kind: str) -> Any:
    pa, _ = arrow()
    if kind == PREDICTIONS:
        return pa.list_(pa.struct([("label", pa.string()), ("probability", pa.float32())]))
    return pa.list_(_arrow_type(kind[1:-1])) if kind.startswith("[") else pa.type_for_alias(kind)


def _strings(metadata: dict[str, Any]) -> dict[str, str]:
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in metadata.items()}
