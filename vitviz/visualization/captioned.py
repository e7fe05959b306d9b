"""A picture as a figure that says what it shows: its colour bar below it, and a caption below that."""

from __future__ import annotations

import textwrap
from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH_INCHES, DPI = 6.4, 100
# A very tall picture is drawn narrower instead.
MAX_PICTURE_INCHES = 7.0
BAR_INCHES, LINE_INCHES, GAP_INCHES = 0.14, 0.2, 0.08
CAPTION_CHARS, FONT_SIZE = 88, 9


def captioned(
    picture: Image.Image,
    colours: np.ndarray,
    ends: tuple[float, float],
    beyond: tuple[int, int],
    caption: str,
) -> Figure:
    """A figure of the picture, its colour bar and its caption.

    Args:
        picture: RGB.
        colours: of the bar from its lower to its upper end, ``"value channel"`` in [0, 255].
        ends: the values there.
        beyond: how many values lie below and above; where there are some, the end of the bar has an arrow.
        caption: one paragraph.
    """
    # Imported here, so that computing maps does not wait for matplotlib.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    lines = textwrap.wrap(caption, CAPTION_CHARS)
    width, height = WIDTH_INCHES, WIDTH_INCHES * picture.height / picture.width
    if height > MAX_PICTURE_INCHES:
        width, height = width * MAX_PICTURE_INCHES / height, MAX_PICTURE_INCHES
    below = 3 * GAP_INCHES + BAR_INCHES + LINE_INCHES * (1 + len(lines))
    total = height + below
    figure = Figure((WIDTH_INCHES, total), dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)

    def place(left: float, bottom: float, across: float, up: float) -> tuple[float, float, float, float]:
        return left / WIDTH_INCHES, bottom / total, across / WIDTH_INCHES, up / total

    axes = figure.add_axes(place((WIDTH_INCHES - width) / 2, below, width, height))
    axes.imshow(picture, aspect="auto", interpolation="antialiased")
    axes.axis("off")

    bar = figure.add_axes(place(GAP_INCHES, below - GAP_INCHES - BAR_INCHES, WIDTH_INCHES - 2 * GAP_INCHES, BAR_INCHES))
    bar.imshow(np.asarray(colours)[None].round().astype(np.uint8), aspect="auto")
    bar.axis("off")
    numbers = below - GAP_INCHES - BAR_INCHES - LINE_INCHES
    (low, high), (is_below, is_above) = ends, beyond
    sides = (
        (GAP_INCHES, "left", "◄ " * bool(is_below) + f"{low:.3g}"),
        (WIDTH_INCHES - GAP_INCHES, "right", f"{high:.3g}" + " ►" * bool(is_above)),
    )
    for x, side, text in sides:
        figure.text(x / WIDTH_INCHES, (numbers + 0.04) / total, text, ha=side, va="bottom", fontsize=FONT_SIZE)
    for number, line in enumerate(lines):
        y = numbers - GAP_INCHES - LINE_INCHES * number
        figure.text(GAP_INCHES / WIDTH_INCHES, y / total, line, va="top", fontsize=FONT_SIZE, color="#374151")
    return figure


def png(figure: Figure) -> bytes:
    """A figure as the content of a PNG file, as large as it says it is."""
    content = BytesIO()
    figure.savefig(content, format="png", dpi=figure.dpi)
    return content.getvalue()
