"""A video of the maps of a clip, however often the run is interrupted.

Two passes: the first runs the model and keeps the maps, which are small; the second fits one scale to all of them and
draws. So the scale is exact, it is the same whoever interrupts the run, and the model sees every frame once.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from vitviz.analysis.encoder import MAX_BYTES, Encoder
from vitviz.datasets.folder import RequestFolder
from vitviz.datasets.rows import rehearsed
from vitviz.datasets.video.drawing import FramePainter
from vitviz.datasets.video.maps import SEGMENT_FRAMES, ClipMaps, MapSegments, compute_maps
from vitviz.datasets.video.parts import Parts
from vitviz.datasets.video.request import VideoRequest
from vitviz.datasets.work import encoder_of, fitting_batch_size
from vitviz.errors.arguments import integer
from vitviz.errors.kinds import ConfigError, ImageError
from vitviz.images.clip_facts import Clip
from vitviz.images.clips import open_clip
from vitviz.images.ffmpeg import TICKS
from vitviz.images.muxing import SOUND_CODEC, container_of
from vitviz.progress import Progress
from vitviz.weights.formats.atomic import atomic_write

COMPUTING, DRAWING = "Maps", "Frames"
PHASES = (COMPUTING, DRAWING)
# Of frames that wait for the model, in their own size.
MAX_WAITING_BYTES = 2**29
HASHED_BYTES = 2**22

OpenClip = Callable[[Path], AbstractContextManager[Clip]]
Report = Callable[[str, Progress], None]
"""Receives one of :data:`PHASES` and how many frames of it are done; the total is 0 where nobody knows it."""


@dataclass(frozen=True)
class VideoSummary:
    """How a run ended.

    Args:
        frames: of the video.
        kept: frames whose maps were there before.
        seconds: that the run took.
        sound: what became of the clip's sound, such as ``"aac, as it was"``; empty where there is none.
        caption: of the whole clip; where frames have classes of their own, of how many frames each is the class.
        replaced: whether another file stood at the video's name.
    """

    frames: int
    kept: int
    seconds: float
    sound: str
    caption: str
    replaced: bool


def parts_folder(output: Path) -> Path:
    """Where a run keeps what it has, until the video is whole."""
    return output.with_name(f"{output.name}.parts")


def render_video(
    request: VideoRequest,
    source: Path,
    output: Path,
    *,
    numbers: Path | None = None,
    batch_size: int | None = None,
    max_bytes: int = MAX_BYTES,
    opened: OpenClip = open_clip,
    report: Report | None = None,
) -> VideoSummary:
    """Write a video of the maps of all frames of a clip, on one scale, with the clip's sound.

    Whatever ends a run, nothing half-written stands at ``output``: what is done lies in a folder beside it, and a run
    with the same request over the same clip computes only what is missing. A clip that is refused leaves nothing.

    Args:
        request: what is computed, and how it is drawn.
        source: the clip.
        output: of the video, which is overwritten if it is there: ``.mp4`` or ``.mkv``.
        numbers: NPZ file to write with the maps ``values``, ``"frame row column"``, and the ``seconds`` of each frame;
            maps as the model gives them, not averaged over time.
        batch_size: most frames that are encoded together; what the memory allows where it is not given.
        max_bytes: most that one batch may need, as :func:`vitviz.cost` counts.
        opened: opens the clip: here, or, of a stranger's file, in a process with limits.
        report: see :data:`Report`; an exception that it raises ends the run, with all that was done kept.

    Raises:
        ImageError: the clip is none, is damaged, or has too many frames.
        ConfigError: the output cannot be written, is the clip itself, or another request's parts lie beside it.
        MethodError, QueryError, LimitError: the model cannot serve the request.
    """
    started = time.monotonic()
    container = container_of(output)
    if numbers is not None and numbers.resolve() == output.resolve():
        raise ConfigError(f"{numbers}: both the video and its numbers; expected two files")
    if output.exists() and source.exists() and os.path.samefile(source, output):
        raise ConfigError(f"{output}: the clip itself; expected another file for the video")
    if not output.absolute().parent.is_dir():
        raise ConfigError(f"{output}: cannot be written (no such folder)")
    with opened(source) as clip:
        facts = clip.facts
    # What is wrong with the request itself shows before any frame.
    rehearsed(request.of_pictures())
    folder = RequestFolder(parts_folder(output), {**request.to_json(), "clip": _digest(source)}, "video")
    try:
        with folder.locked():
            run = _Run(request, source, folder.parts, opened, report, facts.rate, max_bytes)
            kept = run.compute(batch_size)
            painter = run.draw()
            whole_video = folder.path / f"whole{container.suffix}"
            with opened(source) as clip:
                clip.join(run.parts.paths(), whole_video)
            if numbers is not None:
                _write_numbers(numbers, run.maps)
            replaced = output.exists()
            whole_video.replace(output)
    except ImageError:
        shutil.rmtree(folder.path, ignore_errors=True)
        raise
    except OSError as error:
        raise ConfigError(f"{output}: cannot be written ({error.strerror or error})") from None
    shutil.rmtree(folder.path, ignore_errors=True)
    sound = facts.sound
    if sound:
        sound += ", as it was" if container.can_hold(sound) else f", encoded as {SOUND_CODEC} for {container.suffix}"
    seconds = time.monotonic() - started
    return VideoSummary(len(run.maps), kept, seconds, sound, painter.clip_caption(), replaced)


class _Run:
    """Both passes over one clip."""

    maps: ClipMaps

    def __init__(
        self,
        request: VideoRequest,
        source: Path,
        folder: Path,
        opened: OpenClip,
        report: Report | None,
        rate: float,
        max_bytes: int,
    ) -> None:
        self.request, self.source, self.opened, self.max_bytes = request, source, opened, max_bytes
        self.report = report or (lambda phase, state: None)
        self.segments, self.parts = MapSegments(folder), Parts(folder, rate)
        self.encoder: Encoder = encoder_of(request.of_pictures(), max_bytes)

    def compute(self, batch_size: int | None) -> int:
        """The maps; returns of how many frames they were there before."""
        frames = self.segments.frames()
        if frames is None:
            with self.opened(self.source) as clip:
                size = self._batch_size(clip) if batch_size is None else integer("batch_size", batch_size, 1)
                kept = compute_maps(self.request, self.encoder, clip, self.segments, size, self._computed)
        else:
            kept = frames
        self.maps = self.segments.read()
        return kept

    def draw(self) -> FramePainter:
        """All parts that are missing."""
        maps = self.maps.smoothed(self.request.smoothing_seconds)
        painter, there = FramePainter(self.request, maps, self.encoder), self.parts.numbers()
        count = -(-len(maps) // SEGMENT_FRAMES)
        if there >= set(range(count)):
            return painter
        self.report(DRAWING, Progress(min(len(there) * SEGMENT_FRAMES, len(maps)), len(maps)))
        with self.opened(self.source) as clip:
            for part in range(count):
                frames = range(part * SEGMENT_FRAMES, min(len(maps), (part + 1) * SEGMENT_FRAMES))
                if part in there:
                    clip.skip(len(frames))
                else:
                    self.parts.write(part, self._drawn(clip, painter, frames))
        return painter

    def _drawn(self, clip: Clip, painter: FramePainter, frames: range) -> Iterator[tuple[int, Image.Image]]:
        for index in frames:
            found = clip.read(1)
            if not found or found[0].ticks != self.maps.ticks[index]:
                raise ImageError(f"{clip.name}: has changed while it was read; expected the same clip to the end")
            yield found[0].ticks, painter.draw(index, found[0].image)
            self.report(DRAWING, Progress(index + 1, len(self.maps)))

    def _computed(self, done: int, total: int) -> None:
        self.report(COMPUTING, Progress(done, total))

    def _batch_size(self, clip: Clip) -> int:
        """As many as the model's memory allows, and those that wait for it."""
        waiting = MAX_WAITING_BYTES // (3 * 3 * clip.facts.width * clip.facts.height)
        return max(1, min(fitting_batch_size(self.request.of_pictures(), self.max_bytes), waiting))


def _digest(source: Path) -> str:
    """The SHA-256 of a file, hexadecimal."""
    found = hashlib.sha256()
    with source.open("rb") as file:
        while content := file.read(HASHED_BYTES):
            found.update(content)
    return found.hexdigest()


def _write_numbers(path: Path, maps: ClipMaps) -> None:
    with atomic_write(path) as file:
        np.savez_compressed(
            file,
            values=maps.values,
            seconds=maps.ticks / TICKS,
            descriptions=np.array(maps.descriptions),
        )
