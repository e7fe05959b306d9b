"""What a clip is, whichever process decodes it: its facts, frames and limits; and PyAV, which reads and writes it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from PIL import Image

from vitviz.errors.arguments import integer, number
from vitviz.errors.extras import optional
from vitviz.errors.kinds import ConfigError

# Ticks are those of MPEG.
TICKS_PER_SECOND = 90_000
# FFmpeg has others that open further files or URLs, or make pictures of text. A stranger's file is read by the first.
DEMUXERS = ("mov", "mp4", "m4a", "3gp", "3g2", "mj2", "matroska", "webm", "avi", "mpegts", "flv")
OWN_DEMUXERS = (*DEMUXERS, "mpeg", "asf", "ogg", "dv", "mxf", "gif", "apng")
STRICT_OPTIONS = {"format_whitelist": ",".join(DEMUXERS), "enable_drefs": "0"}
OPEN_OPTIONS = {**STRICT_OPTIONS, "format_whitelist": ",".join(OWN_DEMUXERS)}


def pyav() -> Any:
    """The package PyAV.

    Raises:
        ConfigError: it is not installed.
    """
    with optional("a clip"):
        import av
    return av


@dataclass(frozen=True)
class ClipLimits:
    """The largest clip that is accepted.

    Args:
        pixels: of a frame.
        nbytes: of the file.
        frames: of the clip.
        seconds: of its duration, after which a longer one is cut; None for any.
    """

    pixels: int = 4096 * 2304
    nbytes: int = 2**36
    frames: int = 1_000_000
    seconds: float | None = None


DEFAULT_LIMITS = ClipLimits()


@dataclass(frozen=True)
class ClipFacts:
    """What the header of a clip states.

    Args:
        width, height: of its frames in pixels, upright and with square pixels.
        rate: mean number of frames a second.
        frames: approximate number of frames; 0 if the header does not state it.
        sound: codec of its first sound track; empty without one.
        is_cut: whether it is the beginning of a longer file.

    Raises:
        ConfigError: one of them is out of range.
    """

    width: int
    height: int
    rate: float
    frames: int
    sound: str
    is_cut: bool = False

    def __post_init__(self) -> None:
        for name, minimum in (("width", 1), ("height", 1), ("frames", 0)):
            integer(name, getattr(self, name), minimum)
        number("rate", self.rate, lambda value: value > 0, "a number above 0", ConfigError)


@dataclass(frozen=True, eq=False)
class Frame:
    """One frame of a clip.

    Args:
        index: in the clip, counted from 0.
        ticks: time in 1/90,000 second.
        image: RGB, upright.
        duration: ticks for which it is shown; 0 if the clip does not say.
    """

    index: int
    ticks: int
    image: Image.Image
    duration: int = 0


class Clip(Protocol):
    """A clip whose frames are read in order, by this process or by one with limits."""

    name: str
    facts: ClipFacts
    is_cut: bool

    def skip(self, count: int) -> int:
        """Skip up to ``count`` frames; returns how many were skipped."""

    def read(self) -> Frame | None:
        """The next frame; None at the end."""

    def add_sound(self, video: Path, start: int, output: Path) -> None:
        """Write a video with this clip's sound, as :func:`vitviz.video.writing.add_sound` does."""


def is_cover(stream: Any) -> bool:
    """Whether a stream is the cover picture of an audio file."""
    return bool(stream.disposition & pyav().stream.Disposition.attached_pic)


def declared_seconds(stream: Any) -> float:
    """The duration that a Matroska or AVI file states; in other containers FFmpeg itself notices a missing end."""
    match = re.fullmatch(r"(\d+):(\d+):(\d+\.?\d*)", (stream.metadata or {}).get("DURATION", ""), re.ASCII)
    if match is not None:
        return 3600 * float(match[1]) + 60 * float(match[2]) + float(match[3])
    is_stated = stream.container.format.name == "avi" and stream.frames and stream.average_rate
    return float(stream.frames / stream.average_rate) if is_stated else 0.0
