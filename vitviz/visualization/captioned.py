"""Figures of pictures, each with its colour bar and a caption below it."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from vitviz.visualization.drawing import OwnFigure

WIDTH_INCHES, DPI = 6.4, 100
# A taller picture is drawn narrower instead.
MAX_PICTURE_INCHES = 7.0
BAR_INCHES, LINE_INCHES, GAP_INCHES = 0.14, 0.2, 0.08
CAPTION_CHARS, HEADING_CHARS, FONT_SIZE = 88, 74, 9


@dataclass(frozen=True)
class Panel:
    """A picture of a figure, with its colour bar and caption below it.

    Args:
        size: width and height of the picture in pixels.
        draw: draws it into axes of its shape.
        colours: colours of the bar from its lower to its upper end, ``"value channel"`` in [0, 255].
        ends: texts at the ends of the bar.
        caption: one paragraph; none if empty.
        heading: what stands above the picture.
    """

    size: tuple[int, int]
    draw: Callable[[Axes], object]
    colours: np.ndarray
    ends: tuple[str, str]
    caption: str
    heading: str = ""


def captioned(panels: Sequence[Panel], columns: int = 1, legend: bool = True, title: str = "") -> OwnFigure:
    """A figure of panels in rows; several have the letters a, b, c above them.

    Args:
        panels: one or more, each as wide as a figure of one.
        columns: panels of a row.
        legend: whether they have colour bars.
        title: paragraphs above them all.
    """
    # Imported here, so that computing maps does not wait for matplotlib.
    from vitviz.visualization.drawing import OwnFigure, own_settings

    columns = min(columns, len(panels))
    heights = [sum(_panel_inches(panel, legend, len(panels) > 1)) for panel in panels]
    rows = [max(heights[start : start + columns]) for start in range(0, len(panels), columns)]
    lines = [line for each in title.splitlines() for line in textwrap.wrap(each, HEADING_CHARS * columns)]
    top = LINE_INCHES * len(lines) + GAP_INCHES * bool(lines)
    with own_settings(title + "".join(panel.caption + panel.heading for panel in panels)):
        figure = OwnFigure((WIDTH_INCHES * columns, top + sum(rows)), DPI, facecolor="white")
        body: Any = figure
        if lines:
            body = figure.subfigures(2, 1, height_ratios=(top, sum(rows)), squeeze=False)[1, 0]
            x, y = GAP_INCHES / (WIDTH_INCHES * columns), 1 - GAP_INCHES / 2 / (top + sum(rows))
            figure.text(x, y, "\n".join(lines), va="top", fontsize=FONT_SIZE + 1, fontweight="bold")
        is_one = len(panels) == 1
        parts = [body] if is_one else body.subfigures(len(rows), columns, height_ratios=rows, squeeze=False).flat
        for number, (part, panel) in enumerate(zip(parts, panels, strict=False)):
            letter = chr(ord("a") + number) if len(panels) > 1 else ""
            _draw_panel(part, rows[number // columns], panel, letter, legend)
    return figure


def _panel_inches(panel: Panel, legend: bool, has_letter: bool) -> tuple[float, float, float]:
    """The heights of a panel's heading, of its picture, and of what stands below it."""
    height = min(MAX_PICTURE_INCHES, WIDTH_INCHES * panel.size[1] / panel.size[0])
    lines = max(len(textwrap.wrap(panel.heading, HEADING_CHARS)), int(has_letter))
    heading = LINE_INCHES * lines + GAP_INCHES if lines else 0.0
    return heading, height, _strip_inches(len(textwrap.wrap(panel.caption, CAPTION_CHARS)), legend)


def _draw_panel(part: Any, total: float, panel: Panel, letter: str, legend: bool) -> None:
    """Draw a panel into the upper inches of its part of a figure, ``total`` inches high."""
    heading, height, _ = _panel_inches(panel, legend, bool(letter))
    width = height * panel.size[0] / panel.size[1]
    # Panels side by side do not touch.
    inset = 1 - 2 * GAP_INCHES / WIDTH_INCHES if letter else 1.0
    floor = total - heading - height
    left = (WIDTH_INCHES - width * inset) / 2
    box = (
        left / WIDTH_INCHES,
        (floor + height * (1 - inset)) / total,
        width * inset / WIDTH_INCHES,
        height * inset / total,
    )
    words, y = textwrap.fill(panel.heading, HEADING_CHARS), (total - GAP_INCHES / 2) / total
    for x, text, weight in ((GAP_INCHES, letter, "bold"), (GAP_INCHES * (3 if letter else 1), words, "normal")):
        if text:
            part.text(x / WIDTH_INCHES, y, text, va="top", fontsize=FONT_SIZE + 1, fontweight=weight)
    axes = part.add_axes(box)
    panel.draw(axes)
    axes.set_aspect("auto")
    colours, lines = panel.colours if legend else None, textwrap.wrap(panel.caption, CAPTION_CHARS)
    _draw_strip(part, (WIDTH_INCHES, total), floor, colours, panel.ends, lines)


def caption_lines(caption: str, width: int) -> list[str]:
    """The lines of a caption in a :func:`caption_strip` of this width in pixels."""
    return textwrap.wrap(caption, max(1, int(CAPTION_CHARS * _inches(width) / WIDTH_INCHES)))


def caption_strip(
    width: int, colours: np.ndarray, ends: tuple[float, float], beyond: tuple[int, int], lines: Sequence[str]
) -> Image.Image:
    """The colour bar and caption of :func:`captioned` alone, for many pictures that share them.

    Args:
        width: in pixels.
        colours, ends, beyond: as in :func:`captioned`.
        lines: lines of the caption.

    Returns:
        RGB, of this width, and as high as its lines need.
    """
    from vitviz.visualization.drawing import OwnFigure, own_settings

    inches, strip_height = _inches(width), _strip_inches(len(lines))
    with own_settings("".join(lines)):
        figure = OwnFigure((inches, strip_height), width / inches, facecolor="white")
        _draw_strip(figure, (inches, strip_height), strip_height, colours, end_texts(ends, beyond), lines)
    rendered = Image.open(BytesIO(figure.png())).convert("RGB")
    strip = Image.new("RGB", (width, rendered.height), "white")
    strip.paste(rendered)
    return strip


def _inches(width: int) -> float:
    """The width in inches of a strip ``width`` pixels wide, at which letters are never smaller than in a figure."""
    return min(WIDTH_INCHES, width / DPI)


def _strip_inches(lines: int, legend: bool = True) -> float:
    return (GAP_INCHES + BAR_INCHES + LINE_INCHES) * legend + 2 * GAP_INCHES + LINE_INCHES * lines


def _draw_strip(
    figure: Any,
    size: tuple[float, float],
    height: float,
    colours: np.ndarray | None,
    texts: tuple[str, str],
    lines: Sequence[str],
) -> None:
    """Draw colour bar (of colours, or none), the texts at its ends and the caption below a height of a figure.

    The height and the figure's size are in inches.
    """
    width, total = size
    baseline = height
    if colours is not None:
        box = (GAP_INCHES, height - GAP_INCHES - BAR_INCHES, width - 2 * GAP_INCHES, BAR_INCHES)
        draw_bar(figure.add_axes([length / size[side % 2] for side, length in enumerate(box)]), colours)
        baseline -= GAP_INCHES + BAR_INCHES + LINE_INCHES
        places = ((GAP_INCHES, "left"), (width - GAP_INCHES, "right"))
        for (x, side), text in zip(places, texts, strict=True):
            figure.text(x / width, (baseline + 0.04) / total, text, ha=side, va="bottom", fontsize=FONT_SIZE)
    for number, line in enumerate(lines):
        y = baseline - GAP_INCHES - LINE_INCHES * number
        figure.text(GAP_INCHES / width, y / total, line, va="top", fontsize=FONT_SIZE, color="#374151")


def draw_bar(axes: Axes, colours: np.ndarray) -> None:
    """Draw a colour bar, ``"value channel"`` in [0, 255], as vectors that fill the axes."""
    from matplotlib.collections import PolyCollection

    # Each colour reaches to the end and the next one covers it, so that no viewer shows gaps between them.
    count = len(colours)
    parts = [((step, 0), (count, 0), (count, 1), (step, 1)) for step in range(count)]
    axes.add_collection(PolyCollection(parts, facecolors=np.asarray(colours).round() / 255, antialiaseds=False))
    axes.set(xlim=(0, count), ylim=(0, 1))
    axes.axis("off")


def end_texts(ends: tuple[float, float], beyond: tuple[int, int]) -> tuple[str, str]:
    """The values at the ends of a colour bar; an end that values exceed has an arrow."""
    (low, high), (is_below, is_above) = ends, beyond
    # More digits where three would show two ends as one.
    digits = 3 if low == high or f"{low:.3g}" != f"{high:.3g}" else 7
    return "◄ " * bool(is_below) + f"{low:.{digits}g}", f"{high:.{digits}g}" + " ►" * bool(is_above)
