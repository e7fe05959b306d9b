"""How pictures are drawn, whatever the user has set for pictures of their own."""

from __future__ import annotations

import base64
import sys
import threading
import unicodedata
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib.style
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager, get_font
from PIL import Image

from vitviz.visualization.saving import VECTOR_DPI

# matplotlib brings this family along.
FAMILY = "DejaVu Sans"
# Each of its signs is a box with the name of a script.
LAST_RESORT = "Last Resort"
# Kinds of vectors, and where they have the date of writing.
DATES = {"svg": "Date", "pdf": "CreationDate"}
# The settings of matplotlib are those of all threads.
_LOCK = threading.RLock()


@contextmanager
def own_settings(text: str = "") -> Iterator[None]:
    """A context with matplotlib's default settings, in which a dollar sign is a dollar sign.

    Args:
        text: what is drawn; where matplotlib's own font lacks a sign, an installed font that has it is used.
    """
    settings = {"text.parse_math": False, "font.family": [FAMILY, *_families(frozenset(text))]}
    # Text stays text, which can be searched and edited; journals take fonts of Type 42; and equal figures make equal
    # files.
    vectors = {"svg.fonttype": "none", "svg.hashsalt": "vitviz", "pdf.fonttype": 42, "ps.fonttype": 42}
    with _LOCK, matplotlib.style.context(["default", settings, vectors]):
        yield


class OwnFigure(Figure):
    """A figure that is written with :func:`own_settings`, by whomever; as vectors, equal figures make equal files.

    A notebook shows it whether or not pyplot is imported.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        FigureCanvasAgg(self)

    def savefig(self, fname: Any, **options: Any) -> None:
        """As ``Figure.savefig``; pictures among vectors have :data:`VECTOR_DPI` if none is given."""
        kind = options.get("format") or Path(str(fname)).suffix[1:].lower()
        own = {"dpi": VECTOR_DPI, "metadata": {DATES[kind]: None}} if kind in DATES else {}
        with own_settings():
            super().savefig(fname, **{**own, **options})

    def png(self, dpi: float | None = None) -> bytes:
        """The figure as the content of a PNG file, in its own resolution by default."""
        content = BytesIO()
        self.savefig(content, format="png", dpi=self.dpi if dpi is None else dpi)
        return content.getvalue()

    _repr_png_ = png

    def show(self, warn: bool = True) -> None:
        """Show the figure below the cell of a notebook, or else in the system's viewer of pictures."""
        # It imports IPython where that is installed, which takes a third of the time of torch.
        from PIL import ImageShow

        shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
        if hasattr(shell, "kernel"):
            shell.display_pub.publish({"image/png": base64.b64encode(self.png()).decode()})
        elif not ImageShow.show(Image.open(BytesIO(self.png()))):
            warnings.warn("no viewer of pictures found; heatmap.save('map.png') writes a file", stacklevel=4)


@cache
def _families(signs: frozenset[str]) -> tuple[str, ...]:
    """Installed families that have any of the signs that :data:`FAMILY` lacks."""
    # The files that matplotlib chooses for upright text of normal weight.
    files = {each.name: each.fname for each in fontManager.ttflist if (each.style, each.weight) == ("normal", 400)}
    drawn = {sign for sign in signs if unicodedata.category(sign)[0] not in "CZ"}
    missing = drawn - _signs(files.pop(FAMILY), drawn)
    others = sorted(files) if missing else []
    return tuple(name for name in others if LAST_RESORT not in name and _signs(files[name], missing))


def _signs(file: str, signs: set[str]) -> set[str]:
    """Those of the signs that matplotlib can draw with a font."""
    found = set()
    try:
        font = get_font(file)
        font.set_size(10, 72)
        for sign in signs:
            if font.get_char_index(ord(sign)):
                font.load_char(ord(sign))
                found.add(sign)
    # A font of coloured pictures, or a damaged file.
    except (RuntimeError, OSError):
        pass
    return found
