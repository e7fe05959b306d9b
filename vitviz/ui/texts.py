"""Small pieces of text and HTML that several parts of the page say."""

from __future__ import annotations

import html
import re

from vitviz.heatmaps import colour_table


def plain(text: str) -> str:
    """Text to the letter in Markdown, whatever a file or a class is called."""
    return re.sub(r"([\\`*_{}\[\]<>#|~])", r"\\\1", text)


def said_plainly(text: str) -> str:
    """One sentence as HTML."""
    return f'<p class="vv-aside">{html.escape(text)}</p>'


def ramp(colormap: str, low: str, high: str, quantity: str) -> str:
    """The colours of a map between its two ends, as HTML."""
    table = colour_table(colormap)[:: 255 // 15].astype(int)
    stops = ", ".join(f"rgb({red} {green} {blue})" for red, green, blue in table)
    return (
        f'<div class="vv-legend"><span>{low}</span>'
        f'<div class="vv-ramp" style="background: linear-gradient(to right, {stops})"></div>'
        f"<span>{high}</span><span>{html.escape(quantity)}</span></div>"
    )
