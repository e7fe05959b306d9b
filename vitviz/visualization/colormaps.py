"""The colours of values: vitviz's colormaps, and any of matplotlib's own as an object."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from vitviz.errors.arguments import word
from vitviz.errors.kinds import MethodError

if TYPE_CHECKING:
    from matplotlib.colors import Colormap

# Perceptually uniform ones first, in which equal steps of the value look equal.
ColormapName = Literal["inferno", "viridis", "magma", "cividis", "gray", "turbo"]
COLORMAPS: tuple[ColormapName, ...] = get_args(ColormapName)
DEFAULT_COLORMAP: ColormapName = "inferno"
MAX_COLOURS = 256
# In place of the default for signed maps, whose zero has a colour of its own.
DIVERGING_COLORMAP = "coolwarm"


def check_colormap(colormap: Any) -> None:
    """Refuse what is neither a name in :data:`COLORMAPS` nor a colormap of matplotlib.

    Raises:
        MethodError: it is neither, or its colours are not opaque.
    """
    if not is_object(colormap):
        also = ", or one of matplotlib's own as an object, such as matplotlib.colormaps['jet']"
        word("colormap", colormap, COLORMAPS, also=also)
    elif (lowest := colormap(np.arange(colormap.N))[:, 3].min()) < 1:
        opaque = "expected opaque colours; Style(opacity=…) and Style(fade=True) let the image through"
        raise MethodError(f"colormap {colormap.name!r}: colours of alpha {lowest:.3g} found; {opaque}")


def is_object(colormap: object) -> bool:
    """Whether this is a colormap of matplotlib's own, as an object."""
    # Whoever has one has imported its module.
    module = sys.modules.get("matplotlib.colors")
    return module is not None and isinstance(colormap, module.Colormap)


def colour_table(colormap: str | Colormap) -> np.ndarray:
    """The colormap's colours, at most 256, ``"value channel"``, float32 in [0, 255]."""
    # Imported here, so that computing maps does not wait for matplotlib.
    import matplotlib

    found = matplotlib.colormaps[colormap] if isinstance(colormap, str) else colormap
    table: np.ndarray = found(np.linspace(0, 1, min(found.N, MAX_COLOURS)))[:, :3] * 255
    return table.astype(np.float32)
