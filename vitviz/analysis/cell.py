"""An analysis as a notebook shows it: a map, the predictions, and how to see the rest."""

from __future__ import annotations

import base64
from html import escape
from typing import TYPE_CHECKING

from vitviz.attribution import METHODS
from vitviz.errors.kinds import VitvizError
from vitviz.images.encoded import encoded

if TYPE_CHECKING:
    from vitviz.analysis.analysis import Analysis

SIDE_PX, JPEG_QUALITY = 420, 88


def cell_html(analysis: Analysis) -> str:
    """HTML in the colours of the page around it, which loads nothing from elsewhere."""
    layout, trace = analysis.trace.layout, analysis.trace
    size = f"{trace.layers} layers × {trace.heads} heads, {layout.grid_height}×{layout.grid_width} patches"
    picture, caption = _picture(analysis)
    table, count = "<br>", len(analysis.model.labels)
    if analysis.model.gives_probabilities:
        table += f"Of the {count:,} thing{'s' * (count != 1)} it knows:{analysis.predictions(5)._repr_html_()}"
    assumptions = "".join(f"<br>Assumed: {escape(each)}." for each in analysis.prepared.assumptions)
    return (
        '<div style="display:flex;flex-wrap:wrap;gap:16px;font:14px/1.4 system-ui,sans-serif">'
        f'<figure style="margin:0;max-width:{SIDE_PX}px">{picture}<figcaption>{escape(caption)}</figcaption></figure>'
        f"<div><b>{escape(analysis.model.name)}</b><br>{size}{assumptions}"
        f"{table}<code>vitviz.explore(analysis)</code> shows every layer and head.</div></div>"
    )


def _picture(analysis: Analysis) -> tuple[str, str]:
    """An image element and its caption; without a map, an empty text and the reason."""
    try:
        heatmap = analysis.map("rollout")
    except VitvizError as error:
        return "", str(error)
    content = base64.b64encode(encoded(heatmap.resized(SIDE_PX).overlay(), "JPEG", quality=JPEG_QUALITY)).decode()
    attributes = f'alt="{escape(METHODS["rollout"].title)}" style="display:block;max-width:100%"'
    return f'<img src="data:image/jpeg;base64,{content}" {attributes}>', heatmap.caption()
