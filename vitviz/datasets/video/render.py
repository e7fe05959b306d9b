"""A video of the maps of a clip; an interrupted run can be resumed.

The first pass runs the model and stores the maps, which are small. The second pass fits one scale to all of them and
draws the frames. So the scale is exact, interruptions do not change it, and the model sees every frame once.
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
from vitviz.datasets.rows import blank_result
from vitviz.datasets.video.drawing import FramePainter
from vitviz.datasets.video.maps import SEGMENT_FRAMES, ClipMaps, MapSegments, compute_maps
from vitviz.datasets.video.parts import VideoParts
from vitviz.datasets.video.request import VideoRequest
from vitviz.datasets.work import encoder_of, fitting_batch_size
from vitviz.errors.arguments import integer
from vitviz.errors.kinds import ConfigError, ImageError
from vitviz.images.clip_facts import Clip
from vitviz.images.clips import open_video
from vitviz.images.ffmpeg import TICKS_PER_SECOND
from vitviz.images.muxing import SOUND_CODEC, container_of
from vitviz.progress import Progress
from vitviz.system.atomic import atomic_write

COMPUTING, DRAWING = "Maps", "Frames"
PHASES = (COMPUTING, DRAWING)
# Bound on the memory of decoded frames that wait for the model.
MAX_QUEUED_BYTES = 2**29
HASH_CHUNK_BYTES = 2**22

ClipOpener = Callable[[Path], AbstractContextManager[Clip]]
Report = Callable[[str, Progress], None]
"""Receives one of :data:`PHASES` and how many of its frames are done; the total is 0 if it is not known."""


@dataclass(frozen=True)
class VideoSummary:
    """The result of a run.

    Args:
        frames: number of frames of the video.
        skipped: frames that had maps from an earlier run.
        seconds: duration of the run.
        sound: how the clip's sound was written, such as ``"aac, as it was"``; empty if there is none.
        caption: of the whole clip; if each frame has its own class, it counts the frames of each class.
        replaced: whether the video overwrote a file.
    """

    frames: int
    skipped: int
    seconds: float
    sound: str
    caption: str
    replaced: bool


def run_folder(output: Path) -> Path:
    """The folder of a run, which is deleted once the video is complete."""
    return output.with_name(f"{output.name}.parts")


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

    ``output`` is never incomplete: a run stores its progress in :func:`run_folder`, and another run with the same
    request over the same clip computes only what is missing. If the clip is refused, that folder is deleted.

    Args:
        request: the maps, and how they are drawn.
        source: the clip.
        output: path of the video, ``.mp4`` or ``.mkv``; an existing file is overwritten.
        numbers: NPZ file to write with the maps ``values``, ``"frame row column"``, and the ``seconds`` of each frame;
            these maps are not averaged over time.
        batch_size: most frames that are encoded together; by default as many as the memory allows.
        max_bytes: most that one batch may need, by :func:`vitviz.cost`.
        open_video: opens the clip, by default in this process; for untrusted files, in a process with limits.
        report: see :data:`Report`; an exception that it raises ends the run, which can be resumed.

    Raises:
        ImageError: the file is not a clip, is damaged, or has too many frames.
        ConfigError: the output cannot be written or is the clip itself, or its run folder belongs to another request.
        MethodError, QueryError, LimitError: the model does not support the request.
    """
    started = time.monotonic()
    container = container_of(output)
    if numbers is not None and numbers.resolve() == output.resolve():
        raise ConfigError(f"{numbers}: both the video and its numbers; expected two files")
    if output.exists() and source.exists() and os.path.samefile(source, output):
        raise ConfigError(f"{output}: the clip itself; expected another file for the video")
    if not output.absolute().parent.is_dir():
        raise ConfigError(f"{output}: cannot be written (no such folder)")
    with open_video(source) as clip:
        facts = clip.facts
    # Errors of the request itself are raised before any frame is read.
    blank_result(request.to_batch_request())
    folder = RequestFolder(run_folder(output), {**request.to_json(), "clip": _digest(source)}, "video")
    try:
        with folder.locked():
            run = _Run(request, source, folder.parts_folder, open_video, report, facts.rate, max_bytes)
            skipped = run.compute_maps(batch_size)
            painter = run.draw()
            whole_video = folder.path / f"whole{container.suffix}"
            with open_video(source) as clip:
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
    return VideoSummary(len(run.maps), skipped, seconds, sound, painter.clip_caption(), replaced)


class _Run:
    """Both passes over one clip."""

    maps: ClipMaps

    def __init__(
        self,
        request: VideoRequest,
        source: Path,
        folder: Path,
        open_video: ClipOpener,
        report: Report | None,
        rate: float,
        max_bytes: int,
    ) -> None:
        self.request, self.source, self.open_video, self.max_bytes = request, source, open_video, max_bytes
        self.report = report or (lambda phase, state: None)
        self.segments, self.parts = MapSegments(folder), VideoParts(folder, rate)
        self.encoder: Encoder = encoder_of(request.to_batch_request(), max_bytes)

    def compute_maps(self, batch_size: int | None) -> int:
        """Compute the maps; returns how many frames had maps from an earlier run."""
        frames = self.segments.frames()
        if frames is None:
            with self.open_video(self.source) as clip:
                size = self._batch_size(clip) if batch_size is None else integer("batch_size", batch_size, 1)
                skipped = compute_maps(self.request, self.encoder, clip, self.segments, size, self._report_computed)
        else:
            skipped = frames
        self.maps = self.segments.read()
        return skipped

    def draw(self) -> FramePainter:
        """Draw and encode the missing parts."""
        maps = self.maps.smoothed(self.request.smoothing_seconds)
        painter, numbers = FramePainter(self.request, maps, self.encoder), self.parts.numbers()
        count = -(-len(maps) // SEGMENT_FRAMES)
        if numbers >= set(range(count)):
            return painter
        self.report(DRAWING, Progress(min(len(numbers) * SEGMENT_FRAMES, len(maps)), len(maps)))
        with self.open_video(self.source) as clip:
            for part in range(count):
                frames = range(part * SEGMENT_FRAMES, min(len(maps), (part + 1) * SEGMENT_FRAMES))
                if part in numbers:
                    clip.skip(len(frames))
                else:
                    self.parts.write(part, self._draw_frames(clip, painter, frames))
        return painter

    def _draw_frames(self, clip: Clip, painter: FramePainter, frames: range) -> Iterator[tuple[int, Image.Image]]:
        for index in frames:
            read_frames = clip.read(1)
            if not read_frames or read_frames[0].ticks != self.maps.ticks[index]:
                raise ImageError(f"{clip.name}: has changed while it was read; expected the same clip to the end")
            yield read_frames[0].ticks, painter.draw(index, read_frames[0].image)
            self.report(DRAWING, Progress(index + 1, len(self.maps)))

    def _report_computed(self, done: int, total: int) -> None:
        self.report(COMPUTING, Progress(done, total))

    def _batch_size(self, clip: Clip) -> int:
        """The batch size that fits the memory of the model and of the frames that wait for it."""
        queued = MAX_QUEUED_BYTES // (3 * 3 * clip.facts.width * clip.facts.height)
        return max(1, min(fitting_batch_size(self.request.to_batch_request(), self.max_bytes), queued))


def _digest(source: Path) -> str:
    """The SHA-256 of a file, hexadecimal."""
    digest = hashlib.sha256()
    with source.open("rb") as file:
        while content := file.read(HASH_CHUNK_BYTES):
            digest.update(content)
    return digest.hexdigest()


def _write_numbers(path: Path, maps: ClipMaps) -> None:
    with atomic_write(path) as file:
        np.savez_compressed(
            file,
            values=maps.values,
            seconds=maps.ticks / TICKS_PER_SECOND,
            descriptions=np.array(maps.descriptions),
        )
