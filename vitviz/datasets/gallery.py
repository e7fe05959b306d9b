"""The results of a batch as one page: small pictures, to be sorted, without a server."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Iterator
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from vitviz.datasets.output import file_name_of, read_rows, request_of
from vitviz.datasets.rows import THUMBNAIL
from vitviz.visualization.templates import fill_template
from vitviz.weights.formats.atomic import atomic_write

GALLERY, EXPLORERS = "gallery.html", "explorers"
# A page of more would take a browser hundreds of megabytes.
MOST_PICTURES = 5000

KEYS: tuple[tuple[str, str, str, bool, str], ...] = (
    ("path", "name", "", False, ""),
    ("label", "prediction", "", False, ""),
    ("confidence", "confidence", "", True, ""),
    ("entropy", "entropy", "nats", True, "attention_entropy.entropy"),
    ("sink_mass", "sink mass", "share", True, "sink_mass.mass"),
)
"""What pictures can be sorted by: a name, a title, a unit, whether the highest come first, and the column of a probe,
of which all layers and heads are averaged."""
GALLERY_PROBES = tuple(column.partition(".")[0] for *_, column in KEYS if column)


def write_gallery(results: Path, most: int = MOST_PICTURES) -> Path:
    """Write the gallery of a batch beside its table; the page needs nothing but itself and the explorers there are.

    Args:
        results: the folder that a batch wrote.
        most: pictures that it holds, the first of the table; the page says how many are left out.

    Returns:
        The path of the page.

    Raises:
        ConfigError: there is no such folder, or it is damaged.
    """
    request = request_of(results)
    maps = [column for column in _columns_of_maps(request)][:1]
    columns = ["path", "error", "predictions", THUMBNAIL, *(f"{name}.{THUMBNAIL}" for name in maps)]
    columns += [column for *_, column in KEYS if column]
    rows = read_rows(results, columns)
    pictures = [_picture(row, maps, results) for row in islice(rows, most)]
    left_out = sum(1 for _ in rows)
    keys = [
        {"name": name, "title": title, "unit": unit, "down": down}
        for name, title, unit, down, _ in KEYS
        if any(picture.get(name) is not None for picture in pictures)
    ]
    failed = sum(picture.get("error") is not None for picture in pictures)
    about = [f"{len(pictures):,} pictures by {request['model']}"]
    about += [f"{left_out:,} more are in the table"] * bool(left_out)
    about += [f"{failed:,} could not be analysed"] * bool(failed)
    measured = [title for name, title, unit, _, _ in KEYS if unit and any(name in picture for picture in pictures)]
    about += [f"{' and '.join(measured)}: means of all layers and heads"] * bool(measured)
    parts = {
        "title": html.escape(f"Gallery of {results.resolve().name}"),
        "about": html.escape("; ".join(about) + ". Made by vitviz."),
        "map": html.escape(maps[0] if maps else ""),
        "pictures": _script(pictures),
        "keys": _script(keys or [{"name": "path", "title": "name", "unit": "", "down": False}]),
        "script": _text("gallery.js"),
        "look": _text("page.css"),
    }
    path = results / GALLERY
    page = fill_template(_text("gallery.html"), parts)
    with atomic_write(path) as file:
        file.write(page.encode())
    return path


def _picture(row: dict[str, Any], maps: list[str], results: Path) -> dict[str, Any]:
    """What the page has to know of a picture."""
    best = (row.get("predictions") or [None])[0]
    found: dict[str, Any] = {
        "path": row["path"],
        "error": row.get("error"),
        "label": best and best["label"],
        "confidence": best and best["probability"],
        "thumbnail": _base64(row.get(THUMBNAIL)),
        "map": _base64(row.get(f"{maps[0]}.{THUMBNAIL}")) if maps else None,
    }
    for name, _, _, _, column in KEYS:
        if column and row.get(column):
            mean = float(np.nanmean(row[column]))
            found[name] = mean if np.isfinite(mean) else None
    explorer = Path(EXPLORERS) / file_name_of(row["path"], "html")
    if (results / explorer).is_file():
        found["explorer"] = quote(explorer.as_posix())
    return {name: value for name, value in found.items() if value is not None}


def _columns_of_maps(request: dict[str, Any]) -> Iterator[str]:
    from vitviz.datasets.request import MapRequest

    for each in request["maps"]:
        yield MapRequest(each["method"], each["parameters"]).name


def _base64(content: bytes | None) -> str | None:
    return None if content is None else base64.b64encode(content).decode()


def _script(value: Any) -> str:
    """As JavaScript that no part of ends the script element."""
    return json.dumps(value).replace("<", "\\u003c")


def _text(name: str) -> str:
    return (files("vitviz.datasets") / name).read_text(encoding="utf-8")
