"""The command ``vitviz video``, which writes a video of the maps of a clip."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

from vitviz.analysis.encoder import MAX_BYTES
from vitviz.cli.batching import AUTO, MAP_GRAMMAR, batch_size_of, map_request
from vitviz.cli.checkpoints import load_with_bar
from vitviz.cli.options import add_checkpoint, add_resolution, add_style
from vitviz.datasets import MapRequest
from vitviz.datasets.video import VideoRequest, VideoSummary, render_video
from vitviz.datasets.video.render import run_folder
from vitviz.images.clip_facts import Clip
from vitviz.images.clips import CLIP_SUFFIXES
from vitviz.images.muxing import CONTAINERS, container_of
from vitviz.images.preprocessing import FITS, Fit
from vitviz.progress import Progress
from vitviz.visualization.colormaps import ColormapName
from vitviz.visualization.heatmaps import FIGURE_SIDE, Style
from vitviz.visualization.scales import ScaleName


def add_video(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``vitviz video``."""
    parser.add_argument("source", type=Path, help=f"the clip: {', '.join(CLIP_SUFFIXES)}")
    output = f"video to write: {' or '.join(CONTAINERS)}; the same command resumes an interrupted run"
    parser.add_argument("output", type=Path, help=output)
    maps = "the map of every frame, such as relevance:target=dog,start_layer=2 (default: rollout)"
    parser.add_argument("--map", type=map_request, default=MapRequest("rollout"), metavar=MAP_GRAMMAR, help=maps)
    smoothing = "average maps over time by a Gaussian of this standard deviation (default: 0, not at all)"
    parser.add_argument("--smoothing-seconds", type=float, default=0.0, metavar="SECONDS", help=smoothing)
    side = "longer side of the picture in the video, at most, in pixels (default: %(default)s)"
    parser.add_argument("--longest-side", type=int, default=FIGURE_SIDE, metavar="PIXELS", help=side)
    parser.add_argument("--no-caption", action="store_true", help="leave out the colour bar and the caption")
    numbers = "NPZ file for the maps of all frames, before any averaging, and their times"
    parser.add_argument("--numbers", type=Path, default=None, metavar="FILE", help=numbers)
    add_style(parser)
    size = "frames that are encoded together, or auto for what the memory allows (default: %(default)s)"
    parser.add_argument("--batch-size", type=batch_size_of, default=AUTO, metavar="auto|COUNT", help=size)
    memory = "the most memory that one batch may need (default: %(default)s)"
    parser.add_argument("--max-bytes", type=int, default=MAX_BYTES, metavar="BYTES", help=memory)
    parser.add_argument(
        "--fit", choices=FITS, default=None, help="how a frame fits the input (default: the checkpoint's own)"
    )
    add_resolution(parser)
    add_checkpoint(parser)
    parser.set_defaults(run=run)


def run(
    source: Path,
    output: Path,
    map: MapRequest,
    smoothing_seconds: float,
    longest_side: int,
    no_caption: bool,
    numbers: Path | None,
    colormap: ColormapName,
    opacity: float,
    smooth: bool,
    grid: bool,
    scale: ScaleName | None,
    percentiles: Sequence[float],
    batch_size: int | str,
    max_bytes: int,
    fit: Fit | None,
    resolution: int | None,
    **load_options: Any,
) -> None:
    """Write the video."""
    low, high = percentiles
    style = Style(colormap, opacity, smooth, grid, scale=scale, percentiles=(low, high))
    # Check the paths before the model is loaded.
    container_of(output)
    with _isolated(source):
        pass
    model = load_with_bar(**load_options)
    request = VideoRequest(model, map, fit, resolution, style, smoothing_seconds, longest_side, not no_caption)
    size = None if batch_size == AUTO else int(batch_size)
    try:
        summary = _with_bars(request, source, output, numbers=numbers, batch_size=size, max_bytes=max_bytes)
    except KeyboardInterrupt:
        print(f"\nthe progress is stored in {run_folder(output)}; delete it to start over")
        raise
    _print(summary, output, numbers)


def _isolated(source: Path) -> AbstractContextManager[Clip]:
    """Open a clip in a process with limits, since the file may be untrusted."""
    from vitviz.isolation import open_video, shared_worker

    return open_video(shared_worker(), source, str(source))


def _with_bars(request: VideoRequest, source: Path, output: Path, **options: Any) -> VideoSummary:
    from tqdm import tqdm

    bars: dict[str, Any] = {}
    with ExitStack() as stack:

        def report(phase: str, state: Progress) -> None:
            if phase not in bars:
                stack.close()
                # Frames of an earlier run do not count for the rate.
                bars[phase] = stack.enter_context(tqdm(desc=phase, unit=" frames", initial=state.done))
            bars[phase].total = state.total or None
            bars[phase].update(state.done - bars[phase].n)

        return render_video(request, source, output, open_video=_isolated, report=report, **options)


def _print(summary: VideoSummary, output: Path, numbers: Path | None) -> None:
    skipped = f", the maps of {summary.skipped:,} there before" if summary.skipped else ""
    sound = f"sound: {summary.sound}" if summary.sound else "no sound in the clip"
    rate = f", {summary.frames / summary.seconds:.3g} a second"
    place = ", in place of the file that was there" if summary.replaced else ""
    print(f"{summary.caption}\n{summary.frames:,} frames{rate}{skipped}; {sound}\nwritten to {output}{place}")
    if numbers is not None:
        print(f"numbers: {numbers}")
