"""Clips of strangers, decoded in a child; the results equal those of :mod:`vitviz.video.clips`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from PIL import Image

from vitviz.errors.kinds import ConfigError, ImageError
from vitviz.errors.messages import legible
from vitviz.images.colours import ColorProfile
from vitviz.images.isolated_pictures import LIMITS, Ask, OpenPicture, Parts, answers, decoded_by
from vitviz.system.strangers import CLIP_SECONDS
from vitviz.video.clip_facts import DEFAULT_LIMITS, ClipFacts, ClipLimits, Frame, pyav
from vitviz.video.clips import OpenClip, clip_file, frame_after
from vitviz.video.writing import add_sound, container_of, sound_files
from vitviz.worker import Child, Worker

CLIP_LIMITS = replace(LIMITS, cpu_seconds=CLIP_SECONDS)
# Overhead of a container beside its packets.
CONTAINER_BYTES = 2**26
NEXT = "next frame"


def warm_up() -> None:
    """Import what reads clips, in the fork server."""
    with suppress(ConfigError):
        pyav()
        # It imports this where it first opens a clip, when a child opens no more files.
        import_module("av.subtitles.stream")


def read_clip(ask: Ask, file: BinaryIO, name: str, limits: ClipLimits, color_profile: ColorProfile) -> Parts:
    """The facts in the header; then for each count of frames to skip, how many were skipped, and for NEXT the next."""
    with OpenClip(file, name, limits, color_profile, is_trusted=False) as clip:
        yield asdict(clip.facts), b""
        while True:
            if (question := ask()) != NEXT:
                yield {"skipped": clip.skip(question), "is_cut": clip.is_cut}, b""
            elif (frame := clip.read()) is None:
                yield {"ticks": None}, b""
            else:
                yield {"ticks": frame.ticks, "duration": frame.duration}, np.ascontiguousarray(frame.image)


def read_frame(
    ask: Ask, file: BinaryIO, name: str, limits: ClipLimits, color_profile: ColorProfile, index: int
) -> Parts:
    """One frame as :func:`vitviz.images.isolated_pictures.read_picture` reads a picture."""
    with OpenClip(file, name, limits, color_profile, is_trusted=False) as clip:
        yield {"pixels": clip.facts.width * clip.facts.height}, b""
        yield from answers(ask, frame_after(clip, clip.skip(index), index).image)


def write_sound(ask: Ask, *files_and_more: Any) -> Parts:
    """Write a file as :func:`vitviz.video.writing.add_sound` does."""
    *files, start, container, name, seconds = files_and_more
    add_sound(files, start, container, name, seconds)
    yield {}, b""


class IsolatedClip:
    """A clip that a child decodes; see :class:`vitviz.video.clips.Clip`.

    Args:
        worker: that started the child.
        child: that decodes the clip.
        path, name, limits: of the clip.

    Raises:
        ImageError: the child's answer is invalid.
    """

    def __init__(self, worker: Worker, child: Child, path: Path, name: str, limits: ClipLimits) -> None:
        self.name = name
        self._worker, self._child, self._path, self._seconds = worker, child, path, limits.seconds
        try:
            self.facts = ClipFacts(**child.part()[0])
            # Turning a frame upright and making its pixels square never adds pixels.
            if self.facts.width * self.facts.height > limits.pixels or not isinstance(self.facts.sound, str):
                raise ValueError
        except (TypeError, ValueError, ConfigError):
            raise child.answer_error() from None
        self._count, self._last_ticks, self.is_cut = 0, -1, False

    def skip(self, count: int) -> int:
        """Skip up to ``count`` frames; returns how many were skipped.

        Raises:
            ImageError: as :func:`vitviz.video.clips.open_video`, or the child exceeds a limit.
        """
        answer = self._child.part(count)[0]
        skipped, self.is_cut = answer.get("skipped"), answer.get("is_cut") is True
        if not isinstance(skipped, int) or not 0 <= skipped <= count:
            raise self._child.answer_error()
        self._count += skipped
        return skipped

    def read(self) -> Frame | None:
        """The next frame; None at the end.

        Raises:
            ImageError: as :func:`vitviz.video.clips.open_video`, or the child exceeds a limit.
        """
        width, height = self.facts.width, self.facts.height
        facts, content = self._child.part(NEXT, 3 * width * height)
        ticks, duration = facts.get("ticks", -1), facts.get("duration")
        if ticks is None:
            return None
        if (
            not (isinstance(ticks, int) and isinstance(duration, int))
            or (ticks <= self._last_ticks or duration < 0)
            or len(content) != 3 * width * height
        ):
            raise self._child.answer_error()
        self._count, self._last_ticks = self._count + 1, ticks
        image = Image.fromarray(np.frombuffer(content, np.uint8).reshape(height, width, 3))
        return Frame(self._count - 1, ticks, image, duration)

    def add_sound(self, video: Path, start: int, output: Path) -> None:
        """As :meth:`vitviz.video.clips.OpenClip.add_sound`, in another child.

        Raises:
            ImageError: the sound is damaged, or the child exceeds a limit.
            ConfigError: the file cannot be written.
        """
        max_bytes = self._path.stat().st_size + video.stat().st_size + CONTAINER_BYTES
        limits = replace(CLIP_LIMITS, file_bytes=max_bytes)
        arguments = start, container_of(output), self.name, self._seconds
        with (
            sound_files(video, self._path if self.facts.sound else None, output) as files,
            self._worker.child(f"{__name__}:write_sound", files, arguments, limits, ImageError, self.name) as child,
        ):
            child.part()


@contextmanager
def open_video(
    worker: Worker,
    path: Path,
    name: str,
    limits: ClipLimits = DEFAULT_LIMITS,
    color_profile: ColorProfile = "apply",
) -> Iterator[IsolatedClip]:
    """A clip that a child decodes until the context ends.

    Args:
        worker: that starts the child.
        path, name, limits, color_profile: as for :func:`vitviz.video.clips.open_video`.

    Raises:
        ImageError: as :func:`vitviz.video.clips.open_video`, or the child exceeds a limit.
        ConfigError: the extra is not installed.
    """
    reader, arguments = f"{__name__}:read_clip", (legible(name), limits, color_profile)
    with (
        clip_file(path, legible(name), limits) as file,
        worker.child(reader, [file], arguments, CLIP_LIMITS, ImageError, name) as child,
    ):
        yield IsolatedClip(worker, child, path, name, limits)


def open_frame(
    worker: Worker,
    path: Path,
    name: str,
    index: int,
    limits: ClipLimits = DEFAULT_LIMITS,
    color_profile: ColorProfile = "apply",
) -> AbstractContextManager[OpenPicture]:
    """A context with one frame of a clip as a picture.

    Args:
        worker: that starts the child.
        path, name, limits, color_profile: as for :func:`vitviz.video.clips.open_video`.
        index: of the frame, counted from 0.

    Raises:
        ImageError: as :func:`vitviz.video.clips.open_video`, or the child exceeds a limit.
        ConfigError: the extra is not installed.
    """
    reader, arguments = f"{__name__}:read_frame", (legible(name), limits, color_profile, index)
    return decoded_by(worker, reader, clip_file(path, legible(name), limits), arguments, name, CLIP_LIMITS)
