"""The explorer of one analysis as one HTML file that works from disk, without a server."""

from __future__ import annotations

import html
import json
from typing import Any, Literal

from vitviz.analysis.analysis import Analysis
from vitviz.errors.arguments import instance
from vitviz.errors.messages import utf8
from vitviz.images.preprocessing import Fit
from vitviz.ui.explorer.opening import opening
from vitviz.ui.explorer.page_source import script, template
from vitviz.ui.facts import analysis_facts, model_facts, settings
from vitviz.ui.image_bytes import as_base64, as_webp
from vitviz.ui.packs import file_names, pack
from vitviz.visualization.templates import fill_template


def whole_page(
    analysis: Analysis,
    title: str = "vitviz",
    *,
    source: str = "",
    name: str = "picture.jpg",
    fit: Fit | Literal[""] = "",
    resolution: int | None = None,
    link: str = "",
) -> str:
    """The explorer with all layers and heads of an analysis inside.

    The file has about 2.7 bytes for each feature of each query and key: 10 MB for a ViT-B/16 at 197 tokens. It also
    contains the maps of the link that the page cannot compute by itself, such as relevance.

    Args:
        analysis: of one image.
        title: of the page, shown to the letter.
        source, name, fit, resolution: the arguments of :func:`vitviz.load` and :func:`vitviz.analyze`, which the page
            shows; by default the bundled model, its own fit and resolution.
        link: the opening state: the part of an address of the app behind ``?``, without model and picture.

    Raises:
        MethodError: the link is not legal for the analysis.
    """
    instance("analysis", analysis, Analysis, "vitviz.analyze(image, model)")
    # A page is UTF-8, and names of files need not be.
    title, source, name = utf8(title), utf8(source), utf8(name)
    address = f"data:image/webp;base64,{as_base64(as_webp(analysis.prepared.image, quality=90))}"
    own_fit = analysis.model.preprocessing.fit
    opened = opening(analysis, link, None if fit == own_fit else fit or None, resolution)
    value = {
        "number": 0,
        "views": [analysis_facts("page", analysis, {"url": address}, view=opened.state.views[0], name=name)],
        "models": {"": model_facts("", source or analysis.model.name, analysis.model)},
    }
    props = {"settings": {**settings(), "legal": "start", "offline": True}, "value": value}
    files = {name: as_base64(pack(analysis.trace, name)) for name in file_names(analysis.trace)}
    layout = analysis.trace.layout
    description = (
        f"{analysis.model.name}: {analysis.trace.layers} layers × {analysis.trace.heads} heads, "
        f"{layout.grid_height}×{layout.grid_width} patches. Made by vitviz."
    )
    values = {
        "title": html.escape(title),
        "about": html.escape(description),
        "style": template("explorer.css"),
        "template": template("explorer.html"),
        "state": _script(opened.state.to_json()),
        "maps": _script({name: as_base64(content) for name, content in opened.maps.items()}),
        "files": _script(files),
        "props": _script(props),
        "script": _script(script()),
    }
    return fill_template(template("page.html"), values)


def _script(value: Any) -> str:
    """The value as JavaScript that cannot end the script element."""
    return json.dumps(value).replace("<", "\\u003c")
