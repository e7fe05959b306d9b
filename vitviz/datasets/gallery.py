"""The results of a batch as one page of thumbnails that can be sorted without a server."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Sequence
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

import numpy as np

from vitviz.datasets.output import file_name, read_request, read_rows
from vitviz.datasets.request import MapRequest
from vitviz.datasets.rows import INSIDE, THUMBNAIL
from vitviz.system.atomic import atomic_write
from vitviz.visualization.templates import fill_template

GALLERY, EXPLORERS = "gallery.html", "explorers"
# A page with more pictures takes hundreds of megabytes in a browser.
MAX_PICTURES = 5000

SortKey: TypeAlias = tuple[str, str, str, bool, str]
KEYS: tuple[SortKey, ...] = (
    ("path", "name", "", False, ""),
    ("label", "prediction", "", False, ""),
    ("confidence", "confidence", "", True, ""),
    ("entropy", "entropy", "nats", True, "attention_entropy.entropy"),
    ("sink_mass", "sink mass", "share", True, "sink_mass.mass"),
)
"""The sort keys of every gallery: name, title, unit, whether the highest come first, and the column of a probe, whose
mean over all layers and heads is the key."""
GALLERY_PROBES = tuple(column.partition(".")[0] for *_, column in KEYS if column)


def write_gallery(results: Path, max_pictures: int = MAX_PICTURES) -> Path:
    """Write the gallery of a batch beside its table; the page is self-contained, and links the explorers in the folder.

    Args:
        results: the folder that a batch wrote.
        max_pictures: how many pictures of the table it shows, the first ones; the page says how many more there are.

    Returns:
        The path of the page.

    Raises:
        ConfigError: there is no such folder, or it is damaged.
    """
    request = read_request(results)
    maps = [MapRequest(**each).name for each in request["maps"][:1]]
    all_keys = (*KEYS, *(("inside", f"{name} inside", "share", True, f"{name}.{INSIDE}") for name in maps))
    columns = ["path", "error", "predictions", "true_class", "is_misclassified", THUMBNAIL]
    more = [*(f"{name}.{THUMBNAIL}" for name in maps), *(column for *_, column in all_keys if column)]
    rows = read_rows(results, columns + more)
    pictures = [_picture(row, maps, all_keys, results) for row in islice(rows, max_pictures)]
    left_out = sum(1 for _ in rows)
    keys = [
        {"name": name, "title": title, "unit": unit, "down": down}
        for name, title, unit, down, _ in all_keys
        if any(picture.get(name) is not None for picture in pictures)
    ]
    failed = sum(picture.get("error") is not None for picture in pictures)
    facts = [f"{len(pictures):,} pictures by {request['model']}"]
    facts += [f"{left_out:,} more are in the table"] * bool(left_out)
    facts += [f"{failed:,} could not be analysed"] * bool(failed)
    measures = [title for name, title, unit, _, _ in KEYS if unit and any(name in picture for picture in pictures)]
    facts += [f"{' and '.join(measures)}: means of all layers and heads"] * bool(measures)
    fields = {
        "title": html.escape(f"Gallery of {results.resolve().name}"),
        "about": html.escape("; ".join(facts) + ". Made by vitviz."),
        "map": html.escape(maps[0] if maps else ""),
        "pictures": _script_json(pictures),
        "keys": _script_json(keys or [{"name": "path", "title": "name", "unit": "", "down": False}]),
        "script": _text("gallery.js"),
        "look": _text("page.css"),
    }
    with atomic_write(results / GALLERY) as file:
        file.write(fill_template(_text("gallery.html"), fields).encode())
    return results / GALLERY


def _picture(row: dict[str, Any], maps: list[str], keys: Sequence[SortKey], results: Path) -> dict[str, Any]:
    """The fields of a picture in the page's data."""
    prediction = (row.get("predictions") or [None])[0]
    fields: dict[str, Any] = {
        "path": row["path"],
        "error": row.get("error"),
        "label": prediction and prediction["label"],
        "confidence": prediction and prediction["probability"],
        "truth": row.get("true_class"),
        "wrong": row.get("is_misclassified") or None,
        "thumbnail": _base64(row.get(THUMBNAIL)),
        "map": _base64(row.get(f"{maps[0]}.{THUMBNAIL}")) if maps else None,
    }
    for name, _, _, _, column in keys:
        if column and row.get(column) is not None:
            mean = float(np.nanmean(row[column]))
            fields[name] = mean if np.isfinite(mean) else None
    explorer = Path(EXPLORERS) / file_name(row["path"], "html")
    if (results / explorer).is_file():
        fields["explorer"] = quote(explorer.as_posix())
    return {name: value for name, value in fields.items() if value is not None}


def _base64(content: bytes | None) -> str | None:
    return None if content is None else base64.b64encode(content).decode()


def _script_json(value: Any) -> str:
    """JSON for a script element; no character sequence in it can end the element."""
    return json.dumps(value).replace("<", "\\u003c")


def _text(name: str) -> str:
    return (files("vitviz.datasets") / name).read_text(encoding="utf-8")
