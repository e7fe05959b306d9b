"""An analysis as a notebook shows it: a map, the predictions, and how to see the rest."""

from __future__ import annotations

import base64
from html import escape
from io import BytesIO
from typing import TYPE_CHECKING

from PIL import Image

from vitviz.attribution import METHODS
from vitviz.errors.kinds import VitvizError

if TYPE_CHECKING:
    from vitviz.analysis.analysis import Analysis

# The card shows the first of these that the model supports.
CARD_METHODS = ("rollout", "attention")
SIDE_PX, JPEG_QUALITY, PREDICTION_COUNT = 420, 88, 5


def card(analysis: Analysis) -> str:
    """HTML in the colours of the page around it, which loads nothing from elsewhere."""
    config, layout, trace = analysis.model.network.config, analysis.trace.layout, analysis.trace
    size = f"{trace.layers} layers × {trace.heads} heads, {layout.grid_height}×{layout.grid_width} patches"
    method = next(name for name in CARD_METHODS if METHODS[name].refusal(config) is None)
    try:
        heatmap = analysis.map(method)
        image_url, caption = _data_url(heatmap.resized(SIDE_PX).overlay()), heatmap.caption()
        picture = f'<img src="{image_url}" alt="{escape(METHODS[method].title)}" style="display:block;max-width:100%">'
    except VitvizError as error:
        picture, caption = "", str(error)
    predictions = analysis.predictions(PREDICTION_COUNT) if analysis.model.labels else []
    rows = "".join(
        f'<tr><td style="text-align:right">{each.probability:.1%}</td>'
        f'<td style="text-align:left">{escape(each.label)}</td></tr>'
        for each in predictions
    )
    return (
        '<div style="display:flex;flex-wrap:wrap;gap:16px;font:14px/1.4 system-ui,sans-serif">'
        f'<figure style="margin:0;max-width:{SIDE_PX}px">{picture}<figcaption>{escape(caption)}</figcaption></figure>'
        f"<div><b>{escape(analysis.model.name)}</b><br>{size}"
        + (f'<table style="margin:8px 0">{rows}</table>' if rows else "<br>")
        + "<code>vitviz.explore(analysis)</code> shows every layer and head.</div></div>"
    )


def _data_url(picture: Image.Image) -> str:
    content = BytesIO()
    picture.save(content, "jpeg", quality=JPEG_QUALITY)
    return f"data:image/jpeg;base64,{base64.b64encode(content.getvalue()).decode()}"
