"""A video of the maps of a clip.

The first pass runs the model and keeps the maps, which are small. The second pass fits one scale to all of them and
draws the frames, so that the scale is exact and the model sees every frame once.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from vitviz.analysis.analysis import Analysis
from vitviz.analysis.batches import BatchQueue, map_batch
from vitviz.analysis.encoder import MAX_BYTES, Encoder
from vitviz.attention.token_map import TokenMap
from vitviz.attribution import METHODS
from vitviz.datasets.request import BatchRequest, MapRequest
from vitviz.datasets.rows import blank_result
from vitviz.datasets.work import fitting_batch_size
from vitviz.errors.arguments import integer, number
from vitviz.errors.kinds import ConfigError, ImageError
from vitviz.errors.messages import several
from vitviz.images.image_facts import ImageFacts
from vitviz.images.preprocessing import Fit, PreparedImage
from vitviz.progress import Progress
from vitviz.system.atomic import atomic_write
from vitviz.video.clip_facts import TICKS_PER_SECOND, Clip, Frame
from vitviz.video.clips import open_video
from vitviz.video.writing import SOUND_CODEC, being_written, check_place, container_of, write_frames
from vitviz.visualization.captioned import caption_lines, caption_strip
from vitviz.visualization.heatmaps import FIGURE_SIDE, Heatmap, Style
from vitviz.visualization.scales import FittedScale
from vitviz.weights import Model

MIN_SIDE, MAX_SIDE = 64, 4096
MAX_SMOOTHING_SECONDS = 10.0
# Beyond this distance the weights of the Gaussian are below 1.2 % of its peak, and are left out.
REACH_DEVIATIONS = 3.0
# Bound on the values of all maps, which are in memory together, and on decoded frames that wait for the model.
MAX_VALUES, MAX_QUEUED_BYTES = 2**25, 2**29
# Two threads prepare frames while the model runs.
WORKERS = 2
# Pictures are enlarged to this longer side, and captions are at least this wide, in pixels.
MIN_PICTURE_SIDE = 320
# How many classes a caption names if each frame has its own class.
MAX_CLASSES = 5
COMPUTING, DRAWING = "Maps", "Frames"

ClipOpener = Callable[..., AbstractContextManager[Clip]]
"""Called with the path, and the keyword ``color_profile``."""
Report = Callable[[str, Progress], None]
"""Receives :data:`COMPUTING` or :data:`DRAWING`, and how many frames are done; the total is 0 if it is not known."""


@dataclass(frozen=True)
class VideoRequest:
    """A model, the map of every frame, and how it is drawn.

    Args:
        model: as :func:`vitviz.load` gives it.
        map: the map of every frame; a class-specific method without a target explains each frame's most probable class.
        fit, resolution: as :func:`vitviz.analyze` takes them.
        style: of every frame; its scale is fitted to the maps of all frames together.
        smoothing_seconds: standard deviation of the Gaussian by which maps are averaged over time before they are
            drawn, at most 10; 0 for no averaging.
        longest_side: of the drawn picture in pixels, 64 to 4096; a smaller clip keeps its size.
        caption: whether the colour bar and the caption are below the picture.

    Raises:
        ConfigError: a value is out of range, or the scale is already fitted to other maps.
        MethodError: the model does not support the map.
    """

    model: Model
    map: MapRequest
    fit: Fit | None = None
    resolution: int | None = None
    style: Style = field(default_factory=Style)
    smoothing_seconds: float = 0.0
    longest_side: int = FIGURE_SIDE
    caption: bool = True

    def __post_init__(self) -> None:
        self.to_batch_request()
        if isinstance(self.style.scale, FittedScale):
            raise ConfigError("style: its scale was fitted to other maps; expected the name of a scale, or None")
        number(
            "smoothing_seconds",
            self.smoothing_seconds,
            lambda value: 0 <= value <= MAX_SMOOTHING_SECONDS,
            f"a number of seconds from 0 to {MAX_SMOOTHING_SECONDS:g}",
            ConfigError,
        )
        if not MIN_SIDE <= integer("longest_side", self.longest_side, 1) <= MAX_SIDE:
            raise ConfigError(f"longest_side = {self.longest_side}: expected {MIN_SIDE} to {MAX_SIDE} pixels")

    def to_batch_request(self) -> BatchRequest:
        """The same request for single pictures."""
        return BatchRequest(self.model, (self.map,), (), self.fit, self.resolution)


@dataclass(frozen=True)
class VideoSummary:
    """The result of a run.

    Args:
        frames: number of frames of the video.
        seconds: duration of the run.
        sound: how the clip's sound was written, such as ``"aac, as it was"``; empty if there is none.
        caption: of the whole clip; if each frame has its own class, it counts the frames of each class.
        assumptions: what opening the frames assumed, such as the conversion of their colours; a clip that another
            process decodes does not tell.
    """

    frames: int
    seconds: float
    sound: str
    caption: str
    assumptions: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class ClipMaps:
    """The maps of a clip's frames.

    Args:
        values: ``"frame row column"``, float32.
        ticks: when each frame is shown, in 1/90,000 second.
        descriptions: how each map was made.
        targets: the class of each map if every frame has its own class, else empty strings.
        first: the map of the first frame; all have its quantity, domain and sign.
        assumptions: as :attr:`VideoSummary.assumptions`.
    """

    values: np.ndarray
    ticks: np.ndarray
    descriptions: tuple[str, ...]
    targets: tuple[str, ...]
    first: TokenMap
    assumptions: tuple[str, ...] = ()

    @classmethod
    def of(cls, frames: Sequence[tuple[int, str, TokenMap]]) -> ClipMaps:
        """The maps of consecutive frames, each given as its ticks, target and map."""
        ticks, targets, maps = zip(*frames, strict=True)
        values = np.stack([each.values.detach().float().cpu().numpy() for each in maps])
        return cls(values, np.array(ticks, np.int64), tuple(each.description for each in maps), targets, maps[0])

    def token_map(self, frame: int) -> TokenMap:
        """The map of a frame."""
        return replace(
            self.first, values=torch.from_numpy(self.values[frame]), prefix={}, description=self.descriptions[frame]
        )

    def smoothed(self, seconds: float) -> ClipMaps:
        """The maps averaged over time, weighted by a Gaussian of the distance in time.

        Only maps of the same class are averaged, since a mean over classes explains none of them.

        Args:
            seconds: standard deviation of the Gaussian; 0 for the same maps.
        """
        if not seconds:
            return self
        times, values = self.ticks / TICKS_PER_SECOND, np.empty_like(self.values)
        classes = np.unique(np.array(self.targets), return_inverse=True)[1]
        # Half a tick more, so that frames exactly at the reach count on both sides.
        reach = REACH_DEVIATIONS * seconds + 0.5 / TICKS_PER_SECOND
        for frame, frame_time in enumerate(times):
            near = slice(*np.searchsorted(times, (frame_time - reach, frame_time + reach)))
            weights = np.exp(-0.5 * ((times[near] - frame_time) / seconds) ** 2) * (classes[near] == classes[frame])
            values[frame] = np.tensordot(weights / weights.sum(), self.values[near], 1)
        return replace(self, values=values)


def render_video(
    request: VideoRequest,
    source: Path,
    output: Path,
    *,
    numbers: Path | None = None,
    batch_size: int | None = None,
    max_bytes: int = MAX_BYTES,
    open_video: ClipOpener = open_video,
    report: Report | None = None,
) -> VideoSummary:
    """Write a video of the maps of all frames of a clip, on one scale, with the clip's sound.

    ``output`` is never incomplete.

    Args:
        request: the maps, and how they are drawn.
        source: the clip.
        output: path of the video, ``.mp4`` or ``.mkv``; an existing file is overwritten.
        numbers: NPZ file to write with the maps ``values``, ``"frame row column"``, and the ``seconds`` of each frame;
            these maps are not averaged over time.
        batch_size: most frames that are encoded together; by default as many as the memory allows.
        max_bytes: most that one batch may need, by :func:`vitviz.cost`.
        open_video: opens the clip, by default in this process; for untrusted files, in a process with limits.
        report: see :data:`Report`; an exception that it raises ends the run.

    Raises:
        ImageError: the file is not a clip, is damaged, or has too many frames.
        ConfigError: the output or the numbers cannot be written, or are the clip itself.
        MethodError, QueryError, LimitError: the model does not support the request.
    """
    started, container = time.monotonic(), container_of(output)
    report = report or (lambda phase, state: None)
    check_place(output, source)
    if numbers is not None:
        check_place(numbers, source, output)
    batch = request.to_batch_request()
    opened = partial(open_video, source, color_profile=request.model.preprocessing.color_profile)
    with opened() as clip:
        facts = clip.facts
        # Errors of the request itself are raised before any frame is read.
        blank_result(batch)
        encoder = batch.encoder(max_bytes)
        if batch_size is None:
            queued = MAX_QUEUED_BYTES // (3 * 3 * facts.width * facts.height)
            batch_size = max(1, min(fitting_batch_size(batch, max_bytes), queued))
        maps = _compute(request, encoder, clip, integer("batch_size", batch_size, 1), report)
    painter = FramePainter(request, maps.smoothed(request.smoothing_seconds), encoder)
    with being_written(output, container) as whole, opened() as clip:
        write_frames(clip, _drawn(clip, painter, report), whole)
        if numbers is not None:
            _write_numbers(numbers, maps)
    change = "as it was" if container.can_hold(facts.sound) else f"encoded as {SOUND_CODEC} for {container.suffix}"
    sound, seconds = f"{facts.sound}, {change}" if facts.sound else "", time.monotonic() - started
    return VideoSummary(len(maps.values), seconds, sound, painter.clip_caption(), maps.assumptions)


def _compute(request: VideoRequest, encoder: Encoder, clip: Clip, batch_size: int, report: Report) -> ClipMaps:
    """The maps of all frames of a clip.

    Raises:
        ImageError: the clip is damaged, or the maps of all frames take more than :data:`MAX_VALUES` values.
        LimitError: one frame alone needs too much memory.
        MethodError, QueryError: the model does not support the request.
    """
    method, parameters = request.map.method, request.map.parameters
    own_classes = METHODS[method].class_specific and parameters.get("target") is None
    found, assumptions = list[tuple[int, str, TokenMap]](), dict[str, None]()

    def prepare(frame: Frame, position: int) -> PreparedImage:
        return encoder.prepare(frame.image, frame.index)

    report(COMPUTING, Progress(0, clip.facts.frames))
    batches = BatchQueue(
        encoder, iter(clip.read, None), batch_size, workers=WORKERS, raises=True, prepare=prepare
    ).batches()
    try:
        for results in batches:
            analyses = [each for _, each in results if isinstance(each, Analysis)]
            heatmaps = map_batch(analyses, method, **parameters)
            for (frame, _), analysis, heatmap in zip(results, analyses, heatmaps, strict=True):
                target = analysis.model.labels[int(analysis.logits.argmax())] if own_classes else ""
                found.append((frame.ticks, target, heatmap.token_map))
                assumptions |= dict.fromkeys(analysis.prepared.assumptions)
            patches = found[0][2].values.numel()
            if len(found) * patches > MAX_VALUES:
                raise ImageError(
                    f"{clip.name}: more than {MAX_VALUES // patches:,} frames of {patches:,} patches each; "
                    "expected a shorter clip, or a smaller resolution"
                )
            report(COMPUTING, Progress(len(found), max(clip.facts.frames, len(found)) if clip.facts.frames else 0))
    finally:
        batches.close()
    return replace(ClipMaps.of(found), assumptions=tuple(assumptions))


def _drawn(clip: Clip, painter: FramePainter, report: Report) -> Iterator[tuple[Frame, Image.Image]]:
    ticks = painter.maps.ticks
    report(DRAWING, Progress(0, len(ticks)))
    for index, expected in enumerate(ticks):
        frame = clip.read()
        if frame is None or frame.ticks != expected:
            raise ImageError(f"{clip.name}: has changed while it was read; expected the same clip to the end")
        yield frame, painter.draw(index, frame.image)
        report(DRAWING, Progress(index + 1, len(ticks)))


def _write_numbers(path: Path, maps: ClipMaps) -> None:
    with atomic_write(path) as file:
        np.savez_compressed(
            file,
            values=maps.values,
            seconds=maps.ticks / TICKS_PER_SECOND,
            descriptions=np.array(maps.descriptions),
        )


class FramePainter:
    """Draws frames, each with its map above the colour bar and the caption.

    Args:
        request: the style, the size and whether there is a caption.
        maps: of all frames, already smoothed; the style's scale is fitted to all together.
        encoder: locates the model's input on a frame.
    """

    def __init__(self, request: VideoRequest, maps: ClipMaps, encoder: Encoder) -> None:
        self.request, self.maps, self.encoder, style = request, maps, encoder, request.style
        self.scale = style.fitted([maps.values], maps.first.signed)
        self.style = replace(style, scale=self.scale, low=None, high=None)
        self.beyond = self.scale.beyond(maps.values)
        query = request.map.parameters.get("query")
        self.mark = query if isinstance(query, tuple) else None
        self._prepared: PreparedImage | None = None
        self._strip = lru_cache(maxsize=16)(self._draw_strip)
        # The sentences about the scale and the smoothing.
        scale_note, seconds = self.scale.caption(maps.values), request.smoothing_seconds
        within = ", within the frames of one class" if len(set(maps.targets)) > 1 else ""
        sentences = [
            f"One scale for all {len(maps.values):,} frames{'' if scale_note else ', linear'}.",
            scale_note,
            f"Maps averaged over time by a Gaussian of {seconds:g} s{within}." if seconds else "",
        ]
        self.note = " ".join(filter(None, sentences))

    def clip_caption(self) -> str:
        """The caption of the whole clip: that of frame 0, and how the captions of the frames differ."""
        descriptions, counts = self.maps.descriptions, Counter(self.maps.targets).most_common()
        if len(set(descriptions)) == 1:
            return f"{descriptions[0]}. {self.note}"
        differences = "the captions of the frames differ"
        if len(counts) > 1:
            classes = several([f"{label} in {count:,}" for label, count in counts], MAX_CLASSES)
            differences = f"each is about its own most probable class: {classes} of {len(descriptions):,} frames"
        return f"{descriptions[0]} (frame 0; {differences}). {self.note}"

    def draw(self, frame: int, image: Image.Image) -> Image.Image:
        """A drawn frame, RGB; all frames have the same even width and height.

        Args:
            frame: its number, counted from 0.
            image: the frame of the clip.
        """
        # All frames have one size. Where nobody says what a function makes of each, that is the picture.
        if self._prepared is None or ImageFacts.of(self._prepared.image).is_input:
            self._prepared = self.encoder.prepare(image)
            image = self._prepared.image
        heatmap, longest = Heatmap(self.maps.token_map(frame), image, self._prepared.geometry), max(image.size)
        side = min(max(longest, MIN_PICTURE_SIDE), self.request.longest_side)
        overlay = (heatmap if side == longest else heatmap.resized(side)).overlay(self.style, self.mark)
        if not self.request.caption:
            return padded(overlay, *map(even, overlay.size))
        width = even(max(MIN_PICTURE_SIDE, overlay.width))
        strip = self._strip(self.maps.descriptions[frame], width)
        canvas = padded(overlay, width, even(overlay.height + strip.height))
        canvas.paste(strip, (0, overlay.height))
        return canvas

    def _draw_strip(self, description: str, width: int) -> Image.Image:
        lines = {text: caption_lines(f"{text}. {self.note}", width) for text in {*self.maps.descriptions}}
        # All strips are as high as the one with the longest caption.
        padding = [""] * (max(map(len, lines.values())) - len(lines[description]))
        colours = self.style.colours(self.scale.signed)
        return caption_strip(width, colours, self.scale.ends, self.beyond, [*lines[description], *padding])


def even(side: int) -> int:
    """A side rounded up to an even number, since the codec halves the resolution of colours."""
    return side + side % 2


def padded(image: Image.Image, width: int, height: int) -> Image.Image:
    """An image of this size, with white at its sides and below."""
    canvas = Image.new("RGB", (width, height), "white")
    canvas.paste(image, ((width - image.width) // 2, 0))
    return canvas
