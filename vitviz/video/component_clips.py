"""A clip in the colours of what is alike in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from PIL import Image

from vitviz.analysis.encoder import MAX_BYTES, Encoder
from vitviz.features import Kind, components
from vitviz.images.colours import ColorProfile
from vitviz.images.preprocessing import Fit
from vitviz.progress import Progress
from vitviz.video.clip_facts import Clip, Frame
from vitviz.video.clips import open_video
from vitviz.video.render import even, padded
from vitviz.video.writing import being_written, check_place, container_of, write_frames
from vitviz.visualization.heatmaps import FIGURE_SIDE
from vitviz.weights import Model

# Frames that the basis is made of, evenly spaced, at least and less than twice as many; fewer in a shorter clip.
BASIS_FRAMES = 12


def film_components(
    source: Path,
    model: Model,
    output: Path,
    layer: int | None = None,
    *,
    of: Kind = "tokens",
    foreground: bool = False,
    opacity: float = 1.0,
    smooth: bool = True,
    fit: Fit | None = None,
    resolution: int | None = None,
    color_profile: ColorProfile | None = None,
    max_bytes: int = MAX_BYTES,
    report: Callable[[Progress], None] | None = None,
) -> str:
    """Write a video of a clip whose frames have the colours of one basis, with the clip's sound.

    Args:
        source: the clip, of a kind that :func:`vitviz.video.clips.open_video` opens.
        model, fit, resolution, color_profile, max_bytes: as :func:`vitviz.analyze` takes them.
        output: path of the video, ``.mp4`` or ``.mkv``; an existing file is overwritten.
        layer, of, foreground: as :func:`vitviz.components` takes them, for evenly spaced frames.
        opacity, smooth: as :meth:`vitviz.features.ColourMap.overlay` takes them.
        report: receives how many frames are drawn; an exception that it raises ends the run.

    Returns:
        The description of the colours.

    Raises:
        ImageError: there is no such clip, it is damaged, or it has too many frames.
        ConfigError: av is missing, or the output cannot be written or is the clip itself.
        MethodError, QueryError, LimitError: as :func:`vitviz.components`.
    """
    container, encoder = container_of(output), Encoder(model, fit, resolution, max_bytes=max_bytes)
    check_place(output, source)
    opened = partial(open_video, source, color_profile=color_profile or model.preprocessing.color_profile)
    frames, step = list[Image.Image](), 1
    with opened() as clip:
        for number, frame in enumerate(iter(clip.read, None)):
            if number % step == 0:
                frames.append(frame.image)
            if len(frames) == 2 * BASIS_FRAMES:
                frames, step = frames[::2], 2 * step
    analyses = [encoder.encode([encoder.prepare(image)])[0] for image in frames]
    first = components(analyses, layer, of=of, foreground=foreground)

    def drawn(clip: Clip) -> Iterator[tuple[Frame, Image.Image]]:
        for number, frame in enumerate(iter(clip.read, None)):
            side = min(FIGURE_SIDE, max(frame.image.size))
            [analysis] = encoder.encode([encoder.prepare(frame.image).resized(side)])
            [colours] = components(analysis, first[0].layer, of=of, basis=first.basis)
            overlay = colours.overlay(opacity, smooth)
            yield frame, padded(overlay, *map(even, overlay.size))
            if report is not None:
                report(Progress(number + 1, clip.facts.frames))

    with being_written(output, container) as whole, opened() as clip:
        write_frames(clip, drawn(clip), whole)
    return first.description
