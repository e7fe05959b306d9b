"""A clip with the map of every frame, in one call."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vitviz.analysis.encoder import MAX_BYTES, check_order
from vitviz.attribution.methods import MethodName
from vitviz.datasets.request import MapRequest
from vitviz.errors.arguments import named_arguments
from vitviz.errors.kinds import ConfigError
from vitviz.images.preprocessing import Fit
from vitviz.system.paths import user_path
from vitviz.video.render import Report, VideoRequest, VideoSummary, render_video
from vitviz.visualization.heatmaps import FIGURE_SIDE, Style
from vitviz.weights import Model

if TYPE_CHECKING:
    from vitviz.visualization.heatmaps import AnyStyle


@named_arguments(ConfigError)
def film(
    source: str | os.PathLike[str],
    model: Model,
    output: str | os.PathLike[str],
    method: MethodName = "rollout",
    parameters: Mapping[str, Any] | None = None,
    *,
    style: AnyStyle = None,
    fit: Fit | None = None,
    resolution: int | None = None,
    smoothing_seconds: float = 0.0,
    longest_side: int = FIGURE_SIDE,
    caption: bool = True,
    numbers: str | os.PathLike[str] | None = None,
    batch_size: int | None = None,
    max_bytes: int = MAX_BYTES,
    report: Report | None = None,
) -> VideoSummary:
    """Write a video of a clip with the map of every frame, on one scale, with the clip's sound.

    Needs the package av, which the extra ``video`` installs.

    Args:
        source: the clip, of a kind that :func:`vitviz.video.clips.open_video` opens.
        model, fit, resolution: as :func:`vitviz.analyze` takes them.
        output: path of the video, ``.mp4`` or ``.mkv``; an existing file is overwritten.
        method, parameters: the map of every frame, and its parameters by name, as :meth:`vitviz.Analysis.map` takes
            them. A class-specific method without a target explains each frame's most probable class.
        style: of every frame, or the name of a colormap; its scale is fitted to the maps of all frames together.
        smoothing_seconds, longest_side, caption: as of :class:`vitviz.video.render.VideoRequest`.
        numbers, batch_size, max_bytes, report: as :func:`vitviz.video.render.render_video` takes them.

    Returns:
        The number of frames, the duration of the run, the sound and the caption.

    Raises:
        ImageError: there is no such clip, it is damaged, or it has too many frames.
        ConfigError: av is missing, a setting is out of range, or the output cannot be written or is the clip itself.
        MethodError, QueryError, LimitError: the model does not support the map.

    >>> vitviz.film("clip.mp4", model, "rollout.mp4", "rollout", {"discard_ratio": 0.9})  # doctest: +SKIP
    """
    check_order("film", source, model)
    look = (Style.of(style), smoothing_seconds, longest_side, caption)
    return render_video(
        VideoRequest(model, MapRequest(method, parameters or {}), fit, resolution, *look),
        user_path(source),
        user_path(output),
        numbers=None if numbers is None else user_path(numbers),
        batch_size=batch_size,
        max_bytes=max_bytes,
        report=report,
    )
