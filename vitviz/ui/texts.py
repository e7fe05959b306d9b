"""Small pieces of text and HTML that several parts of the page say."""

from __future__ import annotations

import html
import re
import unicodedata
from typing import Any

import gradio as gr

from vitviz.visualization.heatmaps import colour_table

# All that CommonMark, its GitHub flavour and KaTeX read as anything but text begins with or needs one of these.
PUNCTUATION = re.compile(r"([!-/:-@\[-`{-~])")
# Joiners shape letters and emoji.
JOINERS = "\u200c\u200d"


def visible(text: str) -> str:
    """Text in one line, in which characters that turn text around, or that are not seen, are written as escapes."""
    return "".join(map(_visible, " ".join(text.split())))


def _visible(letter: str) -> str:
    hidden = unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Co") and letter not in JOINERS
    return letter.encode("unicode_escape").decode() if hidden else letter


def plain(text: str) -> str:
    """Text to the letter in Markdown, whatever a file, a class, a link or a visitor calls things.

    Every punctuation mark is escaped: so there are no links, not even by a bare address, no entities, formulas, HTML,
    code, tables, lists or headings.
    """
    return PUNCTUATION.sub(r"\\\1", visible(text))


def markdown(value: str | None = None, **options: Any) -> gr.Markdown:
    """A component of the page for Markdown, without formulas, which Gradio looks for behind what :func:`plain` does."""
    return gr.Markdown(value, latex_delimiters=[], sanitize_html=True, **options)


def html_text(text: str) -> str:
    """Text to the letter in HTML."""
    return html.escape(visible(text))


def said_plainly(text: str) -> str:
    """One sentence as HTML."""
    return f'<p class="vv-aside">{html_text(text)}</p>'


def ramp(colormap: str, low: str, high: str, quantity: str) -> str:
    """The colours of a map between its two ends, as HTML."""
    table = colour_table(colormap)[:: 255 // 15].astype(int)
    stops = ", ".join(f"rgb({red} {green} {blue})" for red, green, blue in table)
    return (
        f'<div class="vv-legend"><span>{low}</span>'
        f'<div class="vv-ramp" style="background: linear-gradient(to right, {stops})"></div>'
        f"<span>{high}</span><span>{html_text(quantity)}</span></div>"
    )
