"""Several maps as one figure for a paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from vitviz.errors.arguments import boolean, instance, integer, named_arguments
from vitviz.errors.kinds import MethodError
from vitviz.errors.messages import describe
from vitviz.visualization.captioned import captioned
from vitviz.visualization.heatmaps import Heatmap

if TYPE_CHECKING:
    from vitviz.visualization.drawing import OwnFigure
    from vitviz.visualization.heatmaps import AnyStyle

MAX_PANELS = 26


@named_arguments(MethodError)
def figure(
    heatmaps: Sequence[Heatmap],
    style: AnyStyle = None,
    *,
    marks: Sequence[tuple[int, int] | None] = (),
    names: Sequence[object] = (),
    columns: int = 3,
    legend: bool = True,
    caption: bool = True,
    title: str = "",
) -> OwnFigure:
    """Maps side by side, with letters, colour bars and captions: what the page's dialog *Figure* makes.

    Its pictures are images, everything else vectors; ``figure(…).savefig("figure.pdf")`` writes it, also as ``.svg``,
    or as ``.png`` with ``dpi=``.

    Args:
        heatmaps: of any pictures and models, up to 26.
        style: style of all of them, or the name of a colormap. A fitted scale gives them the same colours.
        marks: for each map the patch ``(row, column)`` to outline, or None; none if empty.
        names: for each map what stands beside its letter, such as model and layer; nothing if empty.
        columns: panels of a row, at least 1.
        legend: whether they have colour bars.
        caption: whether they have captions.
        title: what stands above all of them, such as a question and its answer; its line breaks are kept.

    Raises:
        MethodError: these are no heatmaps, there are not as many marks or names, or the style is invalid.
        QueryError: a map has no such patch.

    >>> maps = [analysis.attention(layer=layer) for layer in (0, 4, 7)]
    >>> vitviz.figure(maps, names=["layer 0", "layer 4", "layer 7"], caption=False).savefig("figure.pdf")
    """
    is_sequence = isinstance(heatmaps, Sequence) and all(isinstance(each, Heatmap) for each in heatmaps)
    if not is_sequence or not 1 <= len(heatmaps) <= MAX_PANELS:
        raise MethodError(f"heatmaps: {describe(heatmaps)} found; expected a list of 1 to {MAX_PANELS} heatmaps")
    for word, values in (("marks", marks), ("names", names)):
        if len(values) not in (0, len(heatmaps)):
            raise MethodError(f"{word}: {len(values)} for {len(heatmaps)} heatmaps: expected one for each, or none")
    headings = ["" if each is None else str(each) for each in names] or [""] * len(heatmaps)
    texts = zip(heatmaps, list(marks) or [None] * len(heatmaps), headings, strict=True)
    panels = [heatmap.panel(style, mark, heading) for heatmap, mark, heading in texts]
    if not boolean("caption", caption):
        panels = [replace(panel, caption="") for panel in panels]
    return captioned(
        panels,
        integer("columns", columns, 1, MethodError),
        boolean("legend", legend),
        instance("title", title, str, "'a text'"),
    )
