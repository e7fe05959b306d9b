"""Open a clip as upright RGB frames, one after another. Needs the extra ``vitviz[video]``.

Times are counted in ticks of 1/90,000 second from the beginning of the clip, as MPEG does; so frames keep their own
times where these are not evenly spaced.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from PIL import Image

from vitviz.errors.arguments import whole
from vitviz.errors.kinds import ConfigError, ImageError
from vitviz.errors.messages import legible, several, shown
from vitviz.images.clip_facts import NO_LIMITS, Clip, ClipFacts, ClipLimits, Frame
from vitviz.images.ffmpeg import DECODERS, READING, TICKS, pyav
from vitviz.images.muxing import join

CLIP_SUFFIXES = (".mp4", ".mov", ".m4v", ".3gp", ".mkv", ".webm", ".avi")
EXPECTED = f"expected a clip of these kinds: {', '.join(CLIP_SUFFIXES)}"
# The first bytes of these kinds, from a place in the file on.
MAGIC = ((4, b"ftyp"), (4, b"moov"), (4, b"mdat"), (4, b"wide"), (0, b"\x1aE\xdf\xa3"), (8, b"AVI "))
NOT_MOVING = (b"ftypavif", b"ftypavis", b"ftypheic", b"ftypheix", b"ftypmif1", b"ftypmsf1")
MIN_SIDE = 2
# A header that says no rate, and frames that say no time.
DEFAULT_RATE = Fraction(25)
RIGHT_ANGLES = {
    90: Image.Transpose.ROTATE_90,
    180: Image.Transpose.ROTATE_180,
    270: Image.Transpose.ROTATE_270,
}


def is_clip(path: str | os.PathLike[str]) -> bool:
    """Whether the first bytes of a file are those of a clip."""
    try:
        with open(path, "rb") as file:
            start = file.read(16)
    except OSError:
        return False
    return any(start[at : at + len(mark)] == mark for at, mark in MAGIC) and start[4:12] not in NOT_MOVING


def read_frame(path: str | os.PathLike[str], index: int = 0) -> Image.Image:
    """One frame of a clip, RGB and upright.

    Args:
        path: of the clip.
        index: of the frame, counted from 0.

    Raises:
        ImageError: as :func:`open_clip`, or it has no such frame.
        ConfigError: the index is negative, or the extra is not installed.
    """
    index = whole("index", index, 0)
    with open_clip(path) as clip:
        return frame_of(clip, index).image


def frame_of(clip: Clip, index: int) -> Frame:
    """A frame of a clip of which none was read yet.

    Raises:
        ImageError: it has no such frame.
    """
    skipped = clip.skip(index)
    found = clip.read(1) if skipped == index else []
    if not found:
        raise ImageError(f"{clip.name}: no frame {index:,}; expected 0 to {skipped - 1:,}")
    return found[0]


class OpenClip:
    """A clip that this process decodes.

    Args:
        path: of its file.
        name: what messages call it.
        limits: what it may have.

    Raises:
        ImageError: as :func:`open_clip`.
        ConfigError: the extra is not installed.
    """

    def __init__(self, path: Path, name: str, limits: ClipLimits) -> None:
        self.path, self.name, self.limits = path, name, limits
        self._av = pyav()
        self._file = _BoundedFile(_regular_file(path, name, limits.nbytes))
        try:
            with self._errors("no clip, or one that is cut short", EXPECTED):
                self._container = self._av.open(
                    # A file in place of its name: nothing in it can have another file or an address opened.
                    self._file,
                    "r",
                    options=READING,
                    metadata_errors="replace",
                )
                self._begin()
        except BaseException:
            self._file.close()
            raise

    def _begin(self) -> None:
        videos = [each for each in self._container.streams.video if not _is_cover(each)]
        if not videos:
            kinds = sorted({each.type for each in self._container.streams})
            found = f"only {' and '.join(kinds)}" if kinds else "nothing"
            raise ImageError(f"{self.name}: {found} in it, no moving pictures; {EXPECTED}")
        self._stream = stream = videos[0]
        codec = stream.codec_context
        if codec is None or codec.codec.canonical_name not in DECODERS:
            found = "unknown" if codec is None else shown(codec.codec.canonical_name)
            raise ImageError(f"{self.name}: its pictures are coded as {found}; expected {several(DECODERS, 99)}")
        self._check_size(codec.width, codec.height)
        # What a frame says of itself later is held to the same; threads would multiply the memory.
        # Sides are rounded up to whole blocks there.
        codec.options = {"max_pixels": str(2 * self.limits.pixels), "err_detect": "careful"}
        codec.thread_count = 1
        width, height = codec.width, codec.height
        self._aspect = stream.sample_aspect_ratio or Fraction(1)
        self._size = self._square(width, height)
        rate = stream.average_rate or stream.guessed_rate or DEFAULT_RATE
        self._rate = rate if rate > 0 else DEFAULT_RATE
        declared = self._container.duration
        seconds = declared / self._av.time_base if declared is not None and declared > 0 else 0.0
        if self.limits.seconds is not None and seconds > self.limits.seconds:
            raise ImageError(f"{self.name}: {seconds:,.1f} seconds; at most {self.limits.seconds:g} are taken")
        frames = max(0, stream.frames) or round(seconds * float(self._rate))
        self._check_count(frames)
        self._beginning = Fraction(self._container.start_time or 0, self._av.time_base)
        sounds = self._container.streams.audio
        sound = sounds[0].codec_context.codec.canonical_name if sounds and sounds[0].codec_context is not None else ""
        self._frames, self._count, self._last = self._decoded(), 0, -1
        # Only a frame says how it is turned.
        self._first = self._next()
        self._turn = 0 if self._first is None else self._turn_of(self._first[2])
        upright = self._size[::-1] if self._turn in (90, 270) else self._size
        self.facts = ClipFacts(*upright, float(self._rate), frames, sound)

    def __enter__(self) -> OpenClip:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close its file."""
        self._first = None
        self._frames.close()
        self._container.close()
        self._file.close()

    def skip(self, count: int) -> int:
        """Pass over so many frames; returns how many there were."""
        passed = 0
        while passed < count and self._following() is not None:
            passed += 1
        return passed

    def read(self, count: int) -> list[Frame]:
        """The next frames; fewer at the end, and then none.

        Raises:
            ImageError: the clip is damaged, cut short or larger than its limits, or its size changes.
        """
        found: list[Frame] = []
        while len(found) < count:
            following = self._following()
            if following is None:
                break
            index, ticks, frame = following
            with self._errors(f"frame {index:,} is damaged"):
                found.append(Frame(index, ticks, self._image(index, frame)))
        return found

    def join(self, parts: Sequence[Path], output: Path) -> None:
        """Write parts of a video as one, with the sound of this clip."""
        join(parts, self.path if self.facts.sound else None, output, self.name)

    def _following(self) -> tuple[int, int, Any] | None:
        if self._first is None:
            return self._next()
        first, self._first = self._first, None
        return first

    def _next(self) -> tuple[int, int, Any] | None:
        """The next frame that is not decoded yet, with its place and its time; None at the end."""
        index = self._count
        with self._errors(f"damaged or cut short at frame {index:,}"):
            frame = next(self._frames, None)
        if frame is None:
            self._check_end()
            return None
        self._check_count(index + 1)
        ticks = self._ticks(index, frame)
        if self.limits.seconds is not None and ticks > self.limits.seconds * TICKS:
            raise ImageError(f"{self.name}: frame {index:,} comes after more than {self.limits.seconds:g} seconds")
        self._count, self._last = index + 1, ticks
        return index, ticks, frame

    def _decoded(self) -> Generator[Any, None, None]:
        for packet in self._container.demux(self._stream):
            if packet.is_corrupt:
                raise ImageError(f"{self.name}: damaged or cut short at frame {self._count:,}; expected a whole clip")
            for frame in packet.decode():
                if frame.is_corrupt:
                    raise ImageError(f"{self.name}: frame {self._count:,} is damaged; expected a whole clip")
                yield frame

    def _ticks(self, index: int, frame: Any) -> int:
        """When a frame is shown; one that says no time comes at the clip's rate after the one before."""
        if frame.pts is None or not frame.time_base:
            step = max(1, round(TICKS / self._rate))
            return self._last + step if index else 0
        seconds = frame.pts * frame.time_base - self._beginning
        ticks = round(seconds * TICKS)
        if ticks <= self._last or ticks < 0:
            found = f"frame {index:,} says {float(seconds):g} seconds"
            before = f"a time after that of the frame before, {self._last / TICKS:g}" if index else "0 or more"
            raise ImageError(f"{self.name}: {found}; expected {before}")
        return ticks

    def _image(self, index: int, frame: Any) -> Image.Image:
        size = self._square(frame.width, frame.height)
        if size != self._size:
            found, expected = (f"{width}×{height} pixels" for width, height in (size, self._size))
            raise ImageError(f"{self.name}: frame {index:,} has {found}; expected {expected}, as those before")
        if self._turn_of(frame) != self._turn:
            raise ImageError(f"{self.name}: frame {index:,} is turned another way; expected all frames alike")
        levels = frame.reformat(width=size[0], height=size[1], format="rgb24").to_ndarray()
        image = Image.fromarray(np.ascontiguousarray(levels))
        return image.transpose(RIGHT_ANGLES[self._turn]) if self._turn else image

    def _turn_of(self, frame: Any) -> int:
        turn = round(frame.rotation) % 360
        if turn and turn not in RIGHT_ANGLES:
            raise ImageError(f"{self.name}: turned by {turn} degrees; expected a multiple of 90")
        return turn

    def _square(self, width: int, height: int) -> tuple[int, int]:
        """Width and height with square pixels, the longer side as it is."""
        if self._aspect == 1:
            return width, height
        scale = float(self._aspect)
        size = (width, round(height / scale)) if scale > 1 else (round(width * scale), height)
        return max(1, size[0]), max(1, size[1])

    def _check_size(self, width: int, height: int) -> None:
        if not width or not height:
            # FFmpeg itself gives up on some hundred million pixels.
            found = "frames of no size, or of one far beyond what is taken"
            raise ImageError(f"{self.name}: {found}; expected at most {self.limits.pixels:,} pixels")
        if min(width, height) < MIN_SIDE:
            raise ImageError(f"{self.name}: frames of {width}×{height} pixels; expected at least {MIN_SIDE}×{MIN_SIDE}")
        if width * height > self.limits.pixels:
            found = f"frames of {width}×{height} pixels"
            raise ImageError(f"{self.name}: {found}; at most {self.limits.pixels:,} pixels are taken")

    def _check_count(self, frames: int) -> None:
        if frames > self.limits.frames:
            raise ImageError(f"{self.name}: {frames:,} frames; at most {self.limits.frames:,} are taken")

    def _check_end(self) -> None:
        """Refuse a clip that ends before its header says; a container whose reader does not notice."""
        if not self._count:
            raise ImageError(f"{self.name}: not one frame in it; expected a whole clip")
        declared = _declared_seconds(self._stream)
        # Two frames, since the last one's length is often left out or rounded.
        if declared is not None and (self._last / TICKS) + 2.5 / float(self._rate) < declared:
            found = f"ends after {self._last / TICKS:.2f} of {declared:.2f} seconds"
            raise ImageError(f"{self.name}: {found}; expected a whole clip")

    @contextmanager
    def _errors(self, found: str, expected: str = "expected a whole clip") -> Iterator[None]:
        """What FFmpeg says of a file, as one sentence."""
        try:
            yield
        except (ImageError, ConfigError):
            raise
        except Exception as error:
            if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
                raise ImageError(f"{self.name}: takes more memory than there is; {expected}") from None
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise ImageError(f"{self.name}: {found} ({reason}); {expected}") from None


def open_clip(path: str | os.PathLike[str], name: str | None = None, limits: ClipLimits = NO_LIMITS) -> OpenClip:
    """A clip, decoded by this process. Of a stranger's file, :func:`vitviz.isolation.clip` bounds memory and time.

    Args:
        path: of an MP4, QuickTime, Matroska, WebM or AVI file.
        name: what messages call it; the path where it is not given.
        limits: what it may have.

    Returns:
        A context, which closes the file.

    Raises:
        ImageError: there is no such file, it is no clip, has no moving pictures, is larger than its limits, or damaged.
        ConfigError: the extra is not installed.
    """
    path = Path(path)
    return OpenClip(path, legible(name or str(path)), limits)


def _regular_file(path: Path, name: str, most: int) -> io.FileIO:
    try:
        # Reading a pipe would block, and a device has no end.
        if not stat.S_ISREG(os.stat(path).st_mode):
            found = "a folder" if path.is_dir() else "a pipe, a socket or a device"
            raise ImageError(f"{name}: {found}; {EXPECTED}")
        nbytes = os.stat(path).st_size
        if nbytes > most:
            raise ImageError(f"{name}: {nbytes:,} bytes; at most {most:,} are taken")
        if not nbytes:
            raise ImageError(f"{name}: an empty file; {EXPECTED}")
        return io.FileIO(path)
    except FileNotFoundError:
        raise ImageError(f"{name}: no such file; {EXPECTED}") from None
    except OSError as error:
        raise ImageError(f"{name}: cannot be read ({error.strerror}); {EXPECTED}") from None


class _BoundedFile(io.RawIOBase):
    """A file as long as it was when it was opened: one that grows has an end."""

    def __init__(self, file: io.FileIO) -> None:
        self._file, self._size, self._at = file, os.fstat(file.fileno()).st_size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        content = os.pread(self._file.fileno(), min(len(view), max(0, self._size - self._at)), self._at)
        view[: len(content)] = content
        self._at += len(content)
        return len(content)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def close(self) -> None:
        self._file.close()
        super().close()


def _is_cover(stream: Any) -> bool:
    """Whether a stream is the picture on the cover of a sound file."""
    disposition = getattr(stream, "disposition", 0)
    return "attached_pic" in str(getattr(disposition, "name", disposition) or "").lower()


def _declared_seconds(stream: Any) -> float | None:
    """How long a Matroska or AVI file says that its pictures last; the reader of the others notices a cut itself."""
    text = (stream.metadata or {}).get("DURATION", "")
    parts = text.split(":")
    try:
        if len(parts) == 3:
            hours, minutes, seconds = map(float, parts)
            return 3600 * hours + 60 * minutes + seconds
        if stream.container.format.name == "avi" and stream.frames and stream.average_rate:
            return float(stream.frames / stream.average_rate)
    except (ValueError, OverflowError, ZeroDivisionError):
        pass
    return None
