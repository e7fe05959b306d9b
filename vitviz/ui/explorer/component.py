"""The explorer as a Gradio component."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import gradio as gr
import numpy as np
from gradio.data_classes import FileData, GradioModel

from vitviz.analysis.analysis import Analysis
from vitviz.attribution import METHODS
from vitviz.errors.kinds import VitvizError
from vitviz.ui.explorer.wire import rolls
from vitviz.ui.files import keep, shown_errors
from vitviz.ui.picture import as_webp
from vitviz.visualization.heatmaps import COLORMAPS, colour_table

HERE = Path(__file__).parent
# The colours of what may be above or below zero, which colours.js knows by this name.
DIFFERENCE = "coolwarm"
# In the order in which they need one another.
SCRIPTS = (
    "packs",
    "attention",
    "colours",
    "canvas",
    "sheet",
    "pins",
    "pane",
    "controls",
    "share",
    "export",
    "address",
    "explorer",
    "strip",
    "actions",
)

Files = Callable[[str, str, str], Path | None]
"""The id of an analysis, the name of a file in :mod:`vitviz.ui.explorer.wire` and a folder to the file there.

None where the analysis is not kept any more; a :class:`vitviz.VitvizError` where it has no such file.
"""


class Facts(GradioModel):
    """What the page knows of an analysis before it asks for its files.

    Attributes:
        uid: the id by which it asks.
        picture: what it draws on.
        width, height: of the picture in pixels.
        pixels: width and height of the picture as it was given, of which there is a file where they are more.
        box: left, top, right and bottom edge of what the model saw, in pixels of the picture.
        rows, columns: of the patch grid.
        prefix: names of the prefix tokens, which come before the patches.
        start: index of the token that is shown first.
        layers, heads: of the model.
        rolls: whether there is a file of rollouts.
        methods: whose maps there are files of, each with its ``name`` and ``title``.
        source, name, fit, resolution: what :func:`vitviz.load` and :func:`vitviz.analyze` were given.
        query: what a link says behind ``?`` to show the same analysis.
    """

    uid: str
    picture: FileData
    width: int
    height: int
    pixels: list[int]
    box: list[float]
    rows: int
    columns: int
    prefix: list[str]
    start: int
    layers: int
    heads: int
    rolls: bool
    methods: list[dict[str, str]]
    source: str
    name: str
    fit: str
    resolution: int | None
    query: str


class ExplorerData(Facts):
    """An analysis, and another to compare it with; where there is none, it is compared with itself."""

    other: Facts | None = None


@dataclass(frozen=True, eq=False)
class Explored:
    """What an explorer shows.

    Args:
        uid: the id by which the page asks for files; hard to guess where they are not for everybody.
        analysis: of one image.
        source: the model as :func:`vitviz.load` takes it; empty for the bundled one.
        name: of the picture's file.
        fit, resolution: as :func:`vitviz.analyze` took them; empty and None for the model's own.
        query: what a link says behind ``?`` to show the same analysis; empty where none can.
        pixels: width and height of the picture as it was given, where it is larger than that of the analysis and the
            page may ask for it.
        methods: names in :data:`vitviz.METHODS` of whose maps there are files.
        other: another one to compare it with; where there is none, it is compared with itself.
    """

    uid: str
    analysis: Analysis
    source: str = ""
    name: str = "picture.jpg"
    fit: str = ""
    resolution: int | None = None
    query: str = ""
    pixels: tuple[int, int] | None = None
    methods: tuple[str, ...] = ()
    other: Explored | None = None


class AttentionExplorer(gr.HTML):
    """Any token's attention in any layer and head, under the mouse.

    Its value is an :class:`Explored`, or None for an empty page. It triggers ``expired`` when the files of its value
    are no longer to be had, and ``pinned`` with the token when one is pinned.

    Args:
        files: what the page asks for.
    """

    data_model = ExplorerData
    # Drawn by the browser code of the class it is made from.
    is_template = True

    def __init__(self, value: Any = None, *, files: Files | None = None, **options: Any) -> None:
        # Of another name than the argument: what has its name, Gradio copies for every page that is opened.
        self._files = files

        # Gradio calls it by the name of the function, with whatever the page sends.
        def file(wanted: Any) -> dict[str, Any]:
            return self.answer(wanted)

        super().__init__(
            value=value,
            html_template=template("explorer.html"),
            css_template=template("explorer.css"),
            js_on_load=script(),
            apply_default_css=False,
            server_functions=[file],
            colours=colours(),
            **options,
        )

    def answer(self, wanted: Any) -> dict[str, Any]:
        """What the page gets for the ``uid`` and ``name`` of a file: where it lies, or why there is none."""
        uid, name = (wanted.get(key) if isinstance(wanted, dict) else None for key in ("uid", "name"))
        if not isinstance(uid, str) or not isinstance(name, str):
            return {"refused": "expected the uid and the name of a file"}
        try:
            path = None if self._files is None else self._files(uid, name, self.GRADIO_CACHE)
            return {"expired": True} if path is None else {"path": str(path)}
        except VitvizError as error:
            return {"refused": str(error)}

    def preprocess(self, payload: Any) -> Any:
        return payload

    # Gradio's own has HTML as its value.
    def postprocess(self, value: Any) -> Any:
        if value is None or isinstance(value, ExplorerData):
            return value
        with shown_errors():
            other = None if value.other is None else Facts(**self._facts(value.other))
            return ExplorerData(**self._facts(value), other=other)

    def _facts(self, explored: Explored) -> dict[str, Any]:
        """The fields of :class:`Facts`; the picture is written into Gradio's cache."""
        path = keep(picture(explored.analysis), "picture.webp", self.GRADIO_CACHE)
        return {"picture": FileData(path=path, mime_type="image/webp"), **facts(explored)}

    def api_info(self) -> dict[str, Any]:
        return ExplorerData.model_json_schema()

    def example_payload(self) -> Any:
        return None

    def example_value(self) -> Any:
        return None


@cache
def template(name: str) -> str:
    """A file beside this one."""
    return (HERE / name).read_text()


@cache
def script() -> str:
    """All of the page's code, one function body."""
    return "\n".join((HERE / "js" / f"{name}.js").read_text() for name in SCRIPTS)


@cache
def colours() -> dict[str, str]:
    """The colour tables, ``"value channel"`` bytes in base64, by name."""
    tables = {name: colour_table(name).round().astype(np.uint8).tobytes() for name in (*COLORMAPS, DIFFERENCE)}
    return {name: base64.b64encode(table).decode() for name, table in tables.items()}


def picture(analysis: Analysis) -> bytes:
    """What the page draws on, WebP."""
    return as_webp(analysis.prepared.image, quality=90)


def facts(explored: Explored) -> dict[str, Any]:
    """The fields of :class:`Facts`, the picture aside."""
    analysis = explored.analysis
    prepared, layout, trace = analysis.prepared, analysis.trace.layout, analysis.trace
    middle = layout.index((layout.grid_height // 2, layout.grid_width // 2))
    return {
        "uid": explored.uid,
        "width": prepared.image.width,
        "height": prepared.image.height,
        "pixels": list(explored.pixels or prepared.image.size),
        "box": [float(edge) for edge in prepared.geometry.box],
        "rows": layout.grid_height,
        "columns": layout.grid_width,
        "prefix": list(layout.prefix),
        "start": 0 if layout.prefix else middle,
        "layers": trace.layers,
        "heads": trace.heads,
        "rolls": rolls(trace),
        "methods": [{"name": name, "title": METHODS[name].title} for name in explored.methods],
        "source": explored.source,
        "name": explored.name,
        "fit": explored.fit or analysis.model.preprocessing.fit,
        "resolution": explored.resolution,
        "query": explored.query,
    }
