"""An answer as a notebook shows it: its words, and on the picture the map of the one under the pointer."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from PIL import Image

from vitviz.errors.number_text import percent
from vitviz.images.encoded import encoded
from vitviz.visualization.heatmaps import Heatmap, Style

if TYPE_CHECKING:
    from vitviz.language.answers import Answer

# Each word has a picture of its own.
MAX_WORDS, SIDE_PX, JPEG_QUALITY = 64, 420, 85
STYLE = """<style>
.vitviz-words {position: relative; display: inline-block; font: 15px/1.9 system-ui, sans-serif}
.vitviz-words img {display: block; border-radius: 8px}
.vitviz-words p {margin: 10px 0 0; max-width: 420px}
.vitviz-words span {padding: 3px 5px; border-radius: 5px; cursor: default; outline: none; transition: background .12s}
.vitviz-words span:hover, .vitviz-words span:focus {background: #b5179e; color: white}
.vitviz-words span img {position: absolute; left: 0; top: 0; opacity: 0; pointer-events: none; transition: opacity .12s}
.vitviz-words span:hover img, .vitviz-words span:focus img {opacity: 1}
.vitviz-words span:hover img {z-index: 1}
</style>"""


def cell_html(answer: Answer) -> str:
    """HTML that loads nothing from elsewhere and needs no script; the maps of all words have one scale."""
    words = answer.words[:MAX_WORDS]
    maps = [answer.attention(word).resized(SIDE_PX) for word in words]
    style = one_scale(maps)
    spans = [
        f'<span tabindex="0" title="{percent(word.probability)} probable. {escape(heatmap.description)}">'
        f"{escape(word.text)}{_img(heatmap.overlay(style))}</span>"
        for word, heatmap in zip(words, maps, strict=True)
    ]
    spans += ["…"] * (len(words) < len(answer.words))
    picture = _img(maps[0].image if maps else answer.prompt.pictures[0])
    return f'{STYLE}<div class="vitviz-words">{picture}<p>{" ".join(spans)}</p></div>'


def one_scale(maps: Sequence[Heatmap]) -> Style:
    """The default style, with the same colours for equal values of all maps."""
    return Style(scale=Style().fitted([each.values for each in maps], maps[0].token_map.signed) if maps else None)


def _img(picture: Image.Image) -> str:
    content = base64.b64encode(encoded(picture, "JPEG", quality=JPEG_QUALITY)).decode()
    return f'<img src="data:image/jpeg;base64,{content}" alt="">'
