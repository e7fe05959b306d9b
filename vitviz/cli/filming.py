"""The command ``vitviz video``, which writes a video of the maps of a clip."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitviz.attribution.methods import MethodName
from vitviz.cli.checkpoints import load_with_bar
from vitviz.cli.maps import style_of
from vitviz.cli.printing import check_output, note, reporting, spelled
from vitviz.images.preprocessing import Fit
from vitviz.video.clips import open_video
from vitviz.video.film import film
from vitviz.video.render import COMPUTING, DRAWING, VideoSummary
from vitviz.video.writing import container_of
from vitviz.visualization.colormaps import ColormapName
from vitviz.visualization.scales import ScaleName


def run(
    source: Path,
    output: Path,
    map: tuple[MethodName, dict[str, Any]],
    smoothing_seconds: float,
    longest_side: int,
    caption: bool,
    numbers: Path | None,
    colormap: ColormapName,
    opacity: float,
    smooth: bool,
    grid: bool,
    scale: ScaleName | None,
    percentiles: Sequence[float] | None,
    batch_size: int | None,
    max_bytes: int,
    fit: Fit | None,
    resolution: int | None,
    **load_options: Any,
) -> None:
    """Write the video."""
    style = style_of(scale, percentiles, colormap=colormap, opacity=opacity, smooth=smooth, grid=grid)
    # Check the paths before the model is loaded.
    container_of(output)
    check_output(numbers, source, ".npz")
    with open_video(source):
        pass
    model = load_with_bar(**load_options)
    with reporting(desc=COMPUTING, unit=" frames") as computing, reporting(desc=DRAWING, unit=" frames") as drawing:
        bars = {COMPUTING: computing, DRAWING: drawing}
        summary = film(
            source,
            model,
            output,
            *map,
            style=style,
            fit=fit,
            resolution=resolution,
            smoothing_seconds=smoothing_seconds,
            longest_side=longest_side,
            caption=caption,
            numbers=numbers,
            batch_size=batch_size,
            max_bytes=max_bytes,
            report=lambda phase, state: bars[phase](state),
        )
    for sentence in summary.assumptions:
        note(f"{source}: assumed: {spelled(sentence)}")
    _print(summary, output, numbers)


def _print(summary: VideoSummary, output: Path, numbers: Path | None) -> None:
    sound = f"sound: {summary.sound}" if summary.sound else "no sound in the clip"
    print(f"{summary.caption}\n{summary.frames:,} frames, {summary.frames / summary.seconds:.3g} a second; {sound}")
    print(f"written to {output}")
    if numbers is not None:
        print(f"numbers: {numbers}")
