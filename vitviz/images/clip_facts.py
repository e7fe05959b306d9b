"""A clip by its facts, its frames and its limits, whoever decodes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from PIL import Image

from vitviz.errors.arguments import number, whole
from vitviz.errors.kinds import ConfigError
from vitviz.images.ffmpeg import TICKS


@dataclass(frozen=True)
class ClipLimits:
    """What a clip may have before it is refused.

    Args:
        pixels: of a frame.
        nbytes: of the file.
        frames: of the clip.
        seconds: that it lasts; None for any.

    Raises:
        ConfigError: one of them is not above zero.
    """

    pixels: int = 4096 * 2304
    nbytes: int = 2**36
    frames: int = 1_000_000
    seconds: float | None = None

    def __post_init__(self) -> None:
        for name in ("pixels", "nbytes", "frames"):
            whole(name, getattr(self, name), 1)
        if self.seconds is not None:
            number("seconds", self.seconds, lambda value: value > 0, "a number above 0, or None", ConfigError)


NO_LIMITS = ClipLimits()


@dataclass(frozen=True)
class ClipFacts:
    """What the header of a clip says.

    Args:
        width, height: of its frames in pixels, upright and with square pixels.
        rate: mean number of frames a second.
        frames: how many there are, about; 0 where the header does not say.
        sound: codec of its first sound track; empty where there is none.

    Raises:
        ConfigError: one of them is out of range.
    """

    width: int
    height: int
    rate: float
    frames: int
    sound: str

    def __post_init__(self) -> None:
        for name, least in (("width", 1), ("height", 1), ("frames", 0)):
            whole(name, getattr(self, name), least)
        number("rate", self.rate, lambda value: value > 0, "a number above 0", ConfigError)


@dataclass(frozen=True, eq=False)
class Frame:
    """One frame.

    Args:
        index: of it in the clip, counted from 0.
        ticks: when it is shown, in 1/90,000 second.
        image: RGB, upright.
    """

    index: int
    ticks: int
    image: Image.Image

    @property
    def seconds(self) -> float:
        """When it is shown."""
        return self.ticks / TICKS


class Clip(Protocol):
    """A clip whose frames are read in their order; here, or by a process with limits."""

    name: str
    facts: ClipFacts

    def skip(self, count: int) -> int:
        """Pass over so many frames; returns how many there were."""

    def read(self, count: int) -> list[Frame]:
        """The next frames; fewer at the end, and then none."""

    def join(self, parts: Sequence[Path], output: Path) -> None:
        """Write parts of a video as one, with the sound of this clip, as :func:`vitviz.images.muxing.join` does."""
