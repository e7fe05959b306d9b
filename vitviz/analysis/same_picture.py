"""Whether a map is of the picture of an analysis, for what compares maps with its model."""

from __future__ import annotations

from vitviz.errors.kinds import MethodError
from vitviz.images.preprocessing import PreparedImage
from vitviz.visualization.arithmetic import is_same_picture
from vitviz.visualization.heatmaps import Heatmap


def check_place(prepared: PreparedImage, name: str, heatmap: Heatmap) -> None:
    """Check that a map is of this picture; one on a picture of another size may be on a copy of it.

    Raises:
        MethodError: it is on another picture of this size, or on another part of it than the model's input.
    """
    image, has_this_size = prepared.image, heatmap.image.size == prepared.image.size
    box = prepared.geometry.resized(*image.size).box
    if has_this_size and heatmap.geometry.box != box:
        raise MethodError(
            f"maps: {name!r} is on the part {heatmap.geometry.box} of the picture; "
            f"expected it on the model's input, {box}"
        )
    if has_this_size and not is_same_picture(heatmap.image, image):
        raise MethodError(f"maps: {name!r} is on another picture; expected maps of this analysis")
