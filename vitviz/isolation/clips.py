"""Clips, decoded by a :class:`~vitviz.isolation.worker.Worker`.

What a child answers is checked here, and then is what the library itself would have made.
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
from vitviz.images.clip_facts import NO_LIMITS, ClipFacts, ClipLimits, Frame
from vitviz.isolation.limits import Limits
from vitviz.isolation.opening import ALWAYS, GIB, PICTURE, UnopenedPicture
from vitviz.isolation.worker import Conversation, Worker

# Frames are handed over in pieces of so many bytes, or one by one.
PIECE_BYTES = 2**24
# Of a processor: for the next frames, which may be far apart, and for writing a video of hours.
FRAME_SECONDS, JOIN_SECONDS = 60.0, 3600.0
# Where a clip has to be short: processor time to begin and for a second of it, and how long it may stay open, since a
# model may look at its frames meanwhile.
BEGIN_SECONDS, DECODING_RATIO, OPEN_SECONDS = 30.0, 4.0, 4 * 3600.0
# A decoder keeps up to seventeen frames that others refer to.
MEMORY_BYTES = 3 * GIB // 2
# What a container adds to the packets that are put into it.
CONTAINER_BYTES = 2**26
SKIPPED_AT_ONCE = 64


class IsolatedClip:
    """A clip that a child decodes; see :class:`vitviz.images.clips.Clip`.

    Args:
        worker: that started the child.
        job: the child.
        path, name: of the clip.

    Raises:
        ImageError: what the child answers is impossible.
    """

    def __init__(self, worker: Worker, job: Conversation, path: Path, name: str, limits: ClipLimits) -> None:
        self.name = name
        self._worker, self._job, self._path = worker, job, path
        self.facts = checked_facts(job, job.ask("facts"), limits)
        self._count, self._last = 0, -1

    def skip(self, count: int) -> int:
        """Pass over so many frames; returns how many there were.

        Raises:
            ImageError: as :func:`vitviz.images.clips.open_clip`, or it takes more than it may.
        """
        passed = 0
        while passed < count:
            piece = min(SKIPPED_AT_ONCE, count - passed)
            skipped = self._job.ask("skip", count=piece).get("skipped")
            if not isinstance(skipped, int) or not 0 <= skipped <= piece:
                raise self._job.broken()
            passed += skipped
            self._count += skipped
            if skipped < piece:
                break
        return passed

    def read(self, count: int) -> list[Frame]:
        """The next frames; fewer at the end, and then none.

        Raises:
            ImageError: as :func:`vitviz.images.clips.open_clip`, or it takes more than it may.
        """
        found: list[Frame] = []
        nbytes = 3 * self.facts.width * self.facts.height
        while len(found) < count:
            piece = min(count - len(found), max(1, PIECE_BYTES // nbytes))
            frames = self._piece(piece, nbytes)
            found += frames
            if len(frames) < piece:
                break
        return found

    def join(self, parts: Sequence[Path], output: Path) -> None:
        """As :meth:`vitviz.images.clips.OpenClip.join`, in a child of its own.

        Raises:
            ImageError: the sound is damaged, or it takes more than it may.
            ConfigError: the file cannot be written.
        """
        paths = [self._path, *parts]
        most = sum(path.stat().st_size for path in paths) + CONTAINER_BYTES
        limits = Limits(MEMORY_BYTES, int(JOIN_SECONDS), ALWAYS, answer_bytes=most, answer_seconds=JOIN_SECONDS)
        arguments = {
            "parts": [path.absolute() for path in parts],
            "sound": self._path if self.facts.sound else None,
            "output": output.absolute(),
            "name": self.name,
        }
        with self._worker.job("JoinJob", arguments, limits, ImageError, self.name):
            pass

    def _piece(self, count: int, nbytes: int) -> list[Frame]:
        answers = self._job.ask("read", count=count).get("frames")
        if not isinstance(answers, list) or len(answers) > count:
            raise self._job.broken()
        content, frames = self._job.read(len(answers) * nbytes), []
        shape = (len(answers), self.facts.height, self.facts.width, 3)
        levels = np.frombuffer(content, np.uint8).reshape(shape)
        for answer, each in zip(answers, levels, strict=True):
            if not isinstance(answer, list) or len(answer) != 2 or not all(isinstance(part, int) for part in answer):
                raise self._job.broken()
            index, ticks = answer
            if index != self._count or ticks <= self._last:
                raise self._job.broken()
            self._count, self._last = self._count + 1, ticks
            frames.append(Frame(index, ticks, Image.fromarray(each)))
        return frames


def checked_facts(job: Conversation, answer: object, limits: ClipLimits) -> ClipFacts:
    """What a child says of a clip.

    Raises:
        ImageError: it is impossible.
    """
    try:
        if not isinstance(answer, dict):
            raise ValueError
        facts = ClipFacts(**{str(name): value for name, value in answer.items()})
        # Turned upright and with square pixels, a frame has no more pixels than it had.
        if facts.width * facts.height > limits.pixels or not isinstance(facts.sound, str):
            raise ValueError
    except (TypeError, ValueError, ConfigError):
        raise job.broken() from None
    return facts


@contextmanager
def clip(worker: Worker, path: Path, name: str, limits: ClipLimits = NO_LIMITS) -> Iterator[IsolatedClip]:
    """A clip, as long as the context lasts.

    Args:
        worker: that decodes it.
        path, name, limits: as :func:`vitviz.images.clips.open_clip` takes them.

    Raises:
        ImageError: as that, or it takes more than it may.
        ConfigError: the extra is not installed.
    """
    path = path.absolute()
    cpu, wall = (10**7, ALWAYS)
    if limits.seconds is not None:
        cpu, wall = math.ceil(BEGIN_SECONDS + DECODING_RATIO * limits.seconds), OPEN_SECONDS
    answer_bytes = max(2 * PIECE_BYTES, 4 * limits.pixels)
    taken = Limits(MEMORY_BYTES, cpu, wall, answer_bytes=answer_bytes, answer_seconds=FRAME_SECONDS)
    arguments = {"path": path, "name": name, "limits": limits}
    with worker.job("ClipJob", arguments, taken, ImageError, name) as job:
        yield IsolatedClip(worker, job, path, name, limits)


@contextmanager
def unopened_frame(
    worker: Worker, path: Path, name: str, index: int, limits: ClipLimits = NO_LIMITS
) -> Iterator[UnopenedPicture]:
    """One frame of a clip as a picture, as long as the context lasts.

    Args:
        worker: that decodes it.
        path, name, limits: as :func:`vitviz.images.clips.open_clip` takes them.
        index: of the frame, counted from 0.

    Raises:
        ImageError: as that, or it takes more than it may; that there is no such frame, when it is decoded.
        ConfigError: the extra is not installed.
    """
    arguments = {"path": path.absolute(), "name": name, "limits": limits, "index": index}
    taken = replace(PICTURE, memory_bytes=MEMORY_BYTES, cpu_seconds=int(FRAME_SECONDS))
    with worker.job("FrameJob", arguments, taken, ImageError, name) as job:
        pixels = job.ask("pixels").get("pixels")
        if not isinstance(pixels, int):
            raise job.broken()
        yield UnopenedPicture(pixels, job)
