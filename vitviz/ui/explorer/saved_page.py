"""The explorer of one analysis as one HTML file that works from disk, without a server."""

from __future__ import annotations

import html
from dataclasses import replace
from typing import Any, Literal

from vitviz.analysis.analysis import Analysis
from vitviz.errors.arguments import instance
from vitviz.errors.messages import utf8
from vitviz.images.preprocessing import Fit
from vitviz.ui.explorer.assets import document_around, json_block, script, style
from vitviz.ui.explorer.saved_state import add_reasons, opening
from vitviz.ui.facts import analysis_facts, model_facts, settings
from vitviz.ui.image_bytes import as_base64, as_webp
from vitviz.ui.packs import FEATURES, features_packs, file_names, pack


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
    contains the maps of the link that the page cannot compute by itself, and why the model says each of its five
    likeliest classes.

    Args:
        analysis: of one image.
        title: of the page, shown to the letter.
        source, name, fit, resolution: the arguments of :func:`vitviz.load` and :func:`vitviz.analyze`, which the page
            shows; by default the bundled model, its own fit and resolution.
        link: the opening state: the part of an address of the app behind ``?``, without model and picture.

    Raises:
        MethodError: the link is not legal for the analysis.
    """
    parts = page_parts(analysis, title, source=source, name=name, fit=fit, resolution=resolution, link=link)
    return f"{parts['before']}{json_block(parts['start'])}{parts['after']}"


def page_parts(
    analysis: Analysis,
    title: str,
    *,
    source: str,
    name: str,
    fit: Fit | Literal[""],
    resolution: int | None,
    link: str = "",
) -> dict[str, Any]:
    """The page of :func:`whole_page` in parts: ``start``, the JSON with which it begins, and the HTML around it."""
    instance("analysis", analysis, Analysis, "vitviz.analyze(image, model)")
    # A page is UTF-8, and names of files need not be.
    title, source, name = utf8(title), utf8(source), utf8(name)
    own_fit = analysis.model.preprocessing.fit
    state, maps = opening(analysis, link, None if fit == own_fit else fit or None, resolution)
    add_reasons(maps, analysis)
    picture = f"data:image/webp;base64,{as_base64(as_webp(analysis.prepared.image, quality=90))}"
    files = {name: as_base64(pack(analysis.trace, name)) for name in file_names(analysis.trace)}
    if state.layout == "alike":
        features = FEATURES if state.alike_layer is None else f"{FEATURES} {state.alike_layer}"
        files[FEATURES] = as_base64(dict(features_packs(analysis, features))[features])
        # One picture, and the features of the chosen layer alone.
        state = replace(state, views=state.views[:1], alike_layer=None)
    start = {
        "settings": {**settings(), "opens_any": False},
        "state": state.to_json(),
        # Whoever wrote the link asks what it names; what the page opens with by itself, nobody asks.
        "questions": [dict(view.parameters) for view in state.views if link],
        "views": [analysis_facts("page", analysis, picture, view=state.views[0], name=name)],
        "models": {"": model_facts("", source or analysis.model.name, analysis.model)},
        "files": files,
        "maps": maps,
    }
    layout = analysis.trace.layout
    about = (
        f"{analysis.model.name}: {analysis.trace.layers} layers × {analysis.trace.heads} heads, "
        f"{layout.grid_height}×{layout.grid_width} patches. Made by vitviz."
    )
    before, after = document_around(
        title=html.escape(title),
        head=f"<style>\n{style()}</style>",
        body="saved",
        heading=f'<h1>{html.escape(title)}</h1>\n<p class="about">{html.escape(about)}</p>',
        script=f'<script type="module">\n{script()}</script>',
    )
    return {"before": before, "start": start, "after": after}
