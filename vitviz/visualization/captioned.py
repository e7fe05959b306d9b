"""A picture as a figure that says what it shows: its colour bar below it, and a caption below that."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
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
    lines = textwrap.wrap(caption, CAPTION_CHARS)
    width, height = WIDTH_INCHES, WIDTH_INCHES * picture.height / picture.width
    if height > MAX_PICTURE_INCHES:
        width, height = width * MAX_PICTURE_INCHES / height, MAX_PICTURE_INCHES
    below = _inches_below(len(lines))
    figure = _empty(WIDTH_INCHES, height + below, DPI)
    total = height + below
    box = ((WIDTH_INCHES - width) / 2 / WIDTH_INCHES, below / total, width / WIDTH_INCHES, height / total)
    axes = figure.add_axes(box)
    axes.imshow(picture, aspect="auto", interpolation="antialiased")
    axes.axis("off")
    _draw_below(figure, below, colours, ends, beyond, lines)
    return figure


def caption_lines(caption: str, width: int) -> list[str]:
    """A caption as the lines that :func:`caption_strip` writes at a width in pixels."""
    return textwrap.wrap(caption, max(1, int(CAPTION_CHARS * _inches(width) / WIDTH_INCHES)))


def caption_strip(
    width: int, colours: np.ndarray, ends: tuple[float, float], beyond: tuple[int, int], lines: Sequence[str]
) -> Image.Image:
    """What stands below the picture of :func:`captioned`, alone: for many pictures that have it in common.

    Args:
        width: in pixels.
        colours, ends, beyond: as :func:`captioned` takes them.
        lines: of the caption.

    Returns:
        RGB, as wide as that, and as high as its lines need.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    inches, below = _inches(width), _inches_below(len(lines))
    figure = _empty(inches, below, width / inches)
    _draw_below(figure, below, colours, ends, beyond, lines)
    canvas = figure.canvas
    assert isinstance(canvas, FigureCanvasAgg)
    canvas.draw()
    drawn = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    strip = Image.new("RGB", (width, drawn.height), "white")
    strip.paste(drawn)
    return strip


def _inches(width: int) -> float:
    """Of a strip so many pixels wide: letters are never smaller than in a figure."""
    return min(WIDTH_INCHES, width / DPI)


def _inches_below(lines: int) -> float:
    return 3 * GAP_INCHES + BAR_INCHES + LINE_INCHES * (1 + lines)


def _empty(width: float, height: float, dpi: float) -> Figure:
    # Imported here, so that computing maps does not wait for matplotlib.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure((width, height), dpi=dpi, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def _draw_below(
    figure: Figure,
    below: float,
    colours: np.ndarray,
    ends: tuple[float, float],
    beyond: tuple[int, int],
    lines: Sequence[str],
) -> None:
    """The colour bar, its ends and the caption, into the lowest inches of a figure."""
    width, total = figure.get_size_inches()
    bar = figure.add_axes(
        (
            GAP_INCHES / width,
            (below - GAP_INCHES - BAR_INCHES) / total,
            (width - 2 * GAP_INCHES) / width,
            BAR_INCHES / total,
        )
    )
    bar.imshow(np.asarray(colours)[None].round().astype(np.uint8), aspect="auto")
    bar.axis("off")
    numbers = below - GAP_INCHES - BAR_INCHES - LINE_INCHES
    (low, high), (is_below, is_above) = ends, beyond
    sides = (
        (GAP_INCHES, "left", "◄ " * bool(is_below) + f"{low:.3g}"),
        (width - GAP_INCHES, "right", f"{high:.3g}" + " ►" * bool(is_above)),
    )
    for x, side, text in sides:
        figure.text(x / width, (numbers + 0.04) / total, text, ha=side, va="bottom", fontsize=FONT_SIZE)
    for number, line in enumerate(lines):
        y = numbers - GAP_INCHES - LINE_INCHES * number
        figure.text(GAP_INCHES / width, y / total, line, va="top", fontsize=FONT_SIZE, color="#374151")


def png(figure: Figure) -> bytes:
    """A figure as the content of a PNG file, as large as it says it is."""
    content = BytesIO()
    figure.savefig(content, format="png", dpi=figure.dpi)
    return content.getvalue()
