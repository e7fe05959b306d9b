"""Figures of a picture with its colour bar and a caption below it."""

from __future__ import annotations

import base64
import sys
import textwrap
import warnings
from collections.abc import Callable, Sequence
from io import BytesIO
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH_INCHES, DPI = 6.4, 100
# A taller picture is drawn narrower instead.
MAX_PICTURE_INCHES = 7.0
BAR_INCHES, LINE_INCHES, GAP_INCHES = 0.14, 0.2, 0.08
CAPTION_CHARS, FONT_SIZE = 88, 9


def captioned(
    size: tuple[int, int],
    draw: Callable[[Axes], None],
    colours: np.ndarray,
    ends: tuple[float, float],
    beyond: tuple[int, int],
    caption: str,
) -> Figure:
    """A figure of a picture with its colour bar and caption.

    Args:
        size: width and height of the picture in pixels.
        draw: draws it into axes of its shape.
        colours: colours of the bar from its lower to its upper end, ``"value channel"`` in [0, 255].
        ends: values at the ends of the bar.
        beyond: number of values below and above the ends; an end that values exceed has an arrow.
        caption: one paragraph.
    """
    # Imported here, so that computing maps does not wait for matplotlib.
    from vitviz.visualization.drawing import own_settings

    lines = textwrap.wrap(caption, CAPTION_CHARS)
    width, height = WIDTH_INCHES, WIDTH_INCHES * size[1] / size[0]
    if height > MAX_PICTURE_INCHES:
        width, height = width * MAX_PICTURE_INCHES / height, MAX_PICTURE_INCHES
    strip_height = _strip_inches(len(lines))
    total = height + strip_height
    box = ((WIDTH_INCHES - width) / 2 / WIDTH_INCHES, strip_height / total, width / WIDTH_INCHES, height / total)
    with own_settings(caption):
        figure = _empty_figure(WIDTH_INCHES, total, DPI)
        axes = figure.add_axes(box)
        draw(axes)
        axes.set_aspect("auto")
        _draw_strip(figure, strip_height, colours, ends, beyond, lines)
    return figure


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
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    from vitviz.visualization.drawing import own_settings

    inches, strip_height = _inches(width), _strip_inches(len(lines))
    with own_settings("".join(lines)):
        figure = _empty_figure(inches, strip_height, width / inches)
        _draw_strip(figure, strip_height, colours, ends, beyond, lines)
        canvas = figure.canvas
        assert isinstance(canvas, FigureCanvasAgg)
        canvas.draw()
    rendered = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    strip = Image.new("RGB", (width, rendered.height), "white")
    strip.paste(rendered)
    return strip


def _inches(width: int) -> float:
    """The width in inches of a strip ``width`` pixels wide, at which letters are never smaller than in a figure."""
    return min(WIDTH_INCHES, width / DPI)


def _strip_inches(lines: int) -> float:
    return 3 * GAP_INCHES + BAR_INCHES + LINE_INCHES * (1 + lines)


def _empty_figure(width: float, height: float, dpi: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure((width, height), dpi=dpi, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def _draw_strip(
    figure: Figure,
    height: float,
    colours: np.ndarray,
    ends: tuple[float, float],
    beyond: tuple[int, int],
    lines: Sequence[str],
) -> None:
    """Draw colour bar, its ends and caption into the lowest inches of a figure."""
    width, total = figure.get_size_inches()
    bar = figure.add_axes(
        (
            GAP_INCHES / width,
            (height - GAP_INCHES - BAR_INCHES) / total,
            (width - 2 * GAP_INCHES) / width,
            BAR_INCHES / total,
        )
    )
    draw_bar(bar, colours)
    baseline = height - GAP_INCHES - BAR_INCHES - LINE_INCHES
    places = ((GAP_INCHES, "left"), (width - GAP_INCHES, "right"))
    for (x, side), text in zip(places, end_texts(ends, beyond), strict=True):
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
    return "◄ " * bool(is_below) + f"{low:.3g}", f"{high:.3g}" + " ►" * bool(is_above)


def png(figure: Figure) -> bytes:
    """A figure as the content of a PNG file, in its own size and resolution."""
    from vitviz.visualization.drawing import save_figure

    content = BytesIO()
    save_figure(figure, content, format="png", dpi=figure.dpi)
    return content.getvalue()


def save_vectors(figure: Figure, file: IO[bytes], kind: str) -> None:
    """Write a figure as ``"svg"`` or ``"pdf"``; equal figures make equal files."""
    from vitviz.visualization.drawing import save_figure

    save_figure(figure, file, format=kind, metadata={"Date" if kind == "svg" else "CreationDate": None})


def show_png(content: bytes) -> None:
    """Show a picture below the cell of a notebook, or else in the system's viewer of pictures."""
    # It imports IPython where that is installed, which takes a third of the time of torch.
    from PIL import ImageShow

    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if hasattr(shell, "kernel"):
        shell.display_pub.publish({"image/png": base64.b64encode(content).decode()})
    elif not ImageShow.show(Image.open(BytesIO(content))):
        warnings.warn("no viewer of pictures found; heatmap.save('map.png') writes a file", stacklevel=4)
