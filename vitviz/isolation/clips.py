"""Read clips in children of a :class:`~vitviz.isolation.worker.Worker`.

A child's answers are checked here. The results equal those of the library's own functions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from vitviz.errors.kinds import ConfigError, ImageError
from vitviz.images.clip_facts import DEFAULT_LIMITS, ClipFacts, ClipLimits, Frame
from vitviz.isolation.limits import Limits
from vitviz.isolation.opening import GIB, PICTURE_LIMITS, UNLIMITED_SECONDS, UnopenedPicture
from vitviz.isolation.worker import JobConnection, Worker

# A batch of frames has at most this many bytes, or is a single frame.
BATCH_BYTES = 2**24
# Processor time for the next frames, which may be far apart, and for joining a video of hours.
FRAME_SECONDS, JOIN_SECONDS = 60.0, 3600.0
# For clips of limited length: processor time to open one and for each second of it, and elapsed time that it may stay
# open, since a model analyses its frames meanwhile.
BEGIN_SECONDS, DECODING_RATIO, OPEN_SECONDS = 30.0, 4.0, 4 * 3600.0
# A decoder keeps up to 17 reference frames.
MEMORY_BYTES = 3 * GIB // 2
# Overhead of a container beside its packets.
CONTAINER_BYTES = 2**26
SKIP_BATCH_FRAMES = 64


class IsolatedClip:
    """A clip that a child decodes; see :class:`vitviz.images.clips.Clip`.

    Args:
        worker: that started the child.
        job: the child.
        path, name, limits: of the clip.

    Raises:
        ImageError: the child's answer is invalid.
    """

    def __init__(self, worker: Worker, job: JobConnection, path: Path, name: str, limits: ClipLimits) -> None:
        self.name = name
        self._worker, self._job, self._path = worker, job, path
        self.facts = checked_facts(job, job.call("facts"), limits)
        self._count, self._last_ticks = 0, -1

    def skip(self, count: int) -> int:
        """Skip up to ``count`` frames; returns how many were skipped.

        Raises:
            ImageError: as :func:`vitviz.images.clips.open_video`, or the job exceeds a limit.
        """
        total = 0
        while total < count:
            batch = min(SKIP_BATCH_FRAMES, count - total)
            skipped = self._job.call("skip", count=batch).get("skipped")
            if not isinstance(skipped, int) or not 0 <= skipped <= batch:
                raise self._job.answer_error()
            total += skipped
            self._count += skipped
            if skipped < batch:
                break
        return total

    def read(self, count: int) -> list[Frame]:
        """The next ``count`` frames; fewer, then none, at the end.

        Raises:
            ImageError: as :func:`vitviz.images.clips.open_video`, or the job exceeds a limit.
        """
        frames: list[Frame] = []
        nbytes = 3 * self.facts.width * self.facts.height
        while len(frames) < count:
            batch_size = min(count - len(frames), max(1, BATCH_BYTES // nbytes))
            batch = self._read_batch(batch_size, nbytes)
            frames += batch
            if len(batch) < batch_size:
                break
        return frames

    def join(self, parts: Sequence[Path], output: Path) -> None:
        """As :meth:`vitviz.images.clips.OpenClip.join`, in another child.

        Raises:
            ImageError: the sound is damaged, or the job exceeds a limit.
            ConfigError: the file cannot be written.
        """
        paths = [self._path, *parts]
        max_bytes = sum(path.stat().st_size for path in paths) + CONTAINER_BYTES
        limits = Limits(
            MEMORY_BYTES, int(JOIN_SECONDS), UNLIMITED_SECONDS, answer_bytes=max_bytes, answer_seconds=JOIN_SECONDS
        )
        arguments = {
            "parts": [path.absolute() for path in parts],
            "sound": self._path if self.facts.sound else None,
            "output": output.absolute(),
            "name": self.name,
        }
        with self._worker.job("JoinJob", arguments, limits, ImageError, self.name):
            pass

    def _read_batch(self, count: int, nbytes: int) -> list[Frame]:
        answers = self._job.call("read", count=count).get("frames")
        if not isinstance(answers, list) or len(answers) > count:
            raise self._job.answer_error()
        content, frames = self._job.read(len(answers) * nbytes), []
        shape = (len(answers), self.facts.height, self.facts.width, 3)
        levels = np.frombuffer(content, np.uint8).reshape(shape)
        for answer, pixels in zip(answers, levels, strict=True):
            if not isinstance(answer, list) or len(answer) != 2 or not all(isinstance(value, int) for value in answer):
                raise self._job.answer_error()
            index, ticks = answer
            if index != self._count or ticks <= self._last_ticks:
                raise self._job.answer_error()
            self._count, self._last_ticks = self._count + 1, ticks
            frames.append(Frame(index, ticks, Image.fromarray(pixels)))
        return frames


def checked_facts(job: JobConnection, answer: object, limits: ClipLimits) -> ClipFacts:
    """The facts of a clip that a child reports.

    Raises:
        ImageError: they are invalid.
    """
    try:
        if not isinstance(answer, dict):
            raise ValueError
        facts = ClipFacts(**{str(name): value for name, value in answer.items()})
        # Turning a frame upright and making its pixels square never adds pixels.
        if facts.width * facts.height > limits.pixels or not isinstance(facts.sound, str):
            raise ValueError
    except (TypeError, ValueError, ConfigError):
        raise job.answer_error() from None
    return facts


@contextmanager
def open_video(worker: Worker, path: Path, name: str, limits: ClipLimits = DEFAULT_LIMITS) -> Iterator[IsolatedClip]:
    """A clip that a child decodes until the context ends.

    Args:
        worker: that starts the child.
        path, name, limits: as for :func:`vitviz.images.clips.open_video`.

    Raises:
        ImageError: as :func:`vitviz.images.clips.open_video`, or the job exceeds a limit.
        ConfigError: the extra is not installed.
    """
    path = path.absolute()
    cpu, wall = (10**7, UNLIMITED_SECONDS)
    if limits.seconds is not None:
        cpu, wall = math.ceil(BEGIN_SECONDS + DECODING_RATIO * limits.seconds), OPEN_SECONDS
    answer_bytes = max(2 * BATCH_BYTES, 4 * limits.pixels)
    job_limits = Limits(MEMORY_BYTES, cpu, wall, answer_bytes=answer_bytes, answer_seconds=FRAME_SECONDS)
    arguments = {"path": path, "name": name, "limits": limits}
    with worker.job("ClipJob", arguments, job_limits, ImageError, name) as job:
        yield IsolatedClip(worker, job, path, name, limits)


@contextmanager
def unopened_frame(
    worker: Worker, path: Path, name: str, index: int, limits: ClipLimits = DEFAULT_LIMITS
) -> Iterator[UnopenedPicture]:
    """One frame of a clip as a picture; the child runs until the context ends.

    Args:
        worker: that starts the child.
        path, name, limits: as for :func:`vitviz.images.clips.open_video`.
        index: of the frame, counted from 0.

    Raises:
        ImageError: as :func:`vitviz.images.clips.open_video`, or the job exceeds a limit. A missing frame is reported
            when it is decoded.
        ConfigError: the extra is not installed.
    """
    arguments = {"path": path.absolute(), "name": name, "limits": limits, "index": index}
    job_limits = replace(PICTURE_LIMITS, memory_bytes=MEMORY_BYTES, cpu_seconds=int(FRAME_SECONDS))
    with worker.job("FrameJob", arguments, job_limits, ImageError, name) as job:
        pixels = job.call("pixels").get("pixels")
        if not isinstance(pixels, int):
            raise job.answer_error()
        yield UnopenedPicture(pixels, job)
