"""Read a clip as upright RGB frames, one after another. Needs the extra ``vitviz[video]``.

Times are in ticks of 1/90,000 second from the beginning of the clip, as in MPEG. Every frame has its own time, so
frames need not be evenly spaced.
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

from vitviz.errors.arguments import integer
from vitviz.errors.kinds import ConfigError, ImageError
from vitviz.errors.messages import legible, quote, several
from vitviz.images.clip_facts import DEFAULT_LIMITS, Clip, ClipFacts, ClipLimits, Frame
from vitviz.images.ffmpeg import DECODERS, OPEN_OPTIONS, TICKS_PER_SECOND, pyav
from vitviz.images.muxing import join

CLIP_SUFFIXES = (".mp4", ".mov", ".m4v", ".3gp", ".mkv", ".webm", ".avi")
EXPECTED = f"expected a clip of these kinds: {', '.join(CLIP_SUFFIXES)}"
# Offset and signature of each container.
SIGNATURES = ((4, b"ftyp"), (4, b"moov"), (4, b"mdat"), (4, b"wide"), (0, b"\x1aE\xdf\xa3"), (8, b"AVI "))
# Still images in the same container as MP4.
STILL_BRANDS = (b"ftypavif", b"ftypavis", b"ftypheic", b"ftypheix", b"ftypmif1", b"ftypmsf1")
MIN_SIDE = 2
# A decoder may wait for some packets, or for the first frame that needs no other; hidden frames take time.
MAX_SILENT_PACKETS = 256
# Frames a second if the header states no rate.
DEFAULT_RATE = Fraction(25)
ROTATIONS = {
    90: Image.Transpose.ROTATE_90,
    180: Image.Transpose.ROTATE_180,
    270: Image.Transpose.ROTATE_270,
}


def is_clip(path: str | os.PathLike[str]) -> bool:
    """Whether the first bytes of a file are the signature of a clip."""
    try:
        with open(path, "rb") as file:
            start = file.read(16)
    except OSError:
        return False
    return (
        any(start.startswith(signature, offset) for offset, signature in SIGNATURES) and start[4:12] not in STILL_BRANDS
    )


def read_frame(path: str | os.PathLike[str], index: int = 0) -> Image.Image:
    """One frame of a clip, RGB and upright.

    Args:
        path: of the clip.
        index: of the frame, counted from 0.

    Raises:
        ImageError: as :func:`open_video`, or it has no such frame.
        ConfigError: the index is negative, or the extra is not installed.
    """
    index = integer("index", index, 0)
    with open_video(path) as clip:
        return frame_at(clip, index).image


def frame_at(clip: Clip, index: int) -> Frame:
    """The frame at an index of a clip that was just opened.

    Raises:
        ImageError: it has no such frame.
    """
    return frame_after(clip, clip.skip(index), index)


def frame_after(clip: Clip, skipped: int, index: int) -> Frame:
    """The frame at an index of a clip of which this many frames were skipped.

    Raises:
        ImageError: it has no such frame.
    """
    frames = clip.read(1) if skipped == index else []
    if not frames:
        raise ImageError(f"{clip.name}: no frame {index:,}; expected 0 to {skipped - 1:,}")
    return frames[0]


class OpenClip:
    """A clip that this process decodes.

    Args:
        path: of its file.
        name: of the clip in messages.
        limits: of its size and length.

    Raises:
        ImageError: as :func:`open_video`.
        ConfigError: the extra is not installed.
    """

    def __init__(self, path: Path, name: str, limits: ClipLimits) -> None:
        self.path, self.name, self.limits = path, name, limits
        self._av = pyav()
        self._file = _open_regular(path, name, limits.nbytes)
        try:
            with self._errors("no clip, or one that is cut short", EXPECTED):
                self._container = self._av.open(
                    # A file object instead of a path, so that its content cannot make FFmpeg open other files or URLs.
                    self._file,
                    "r",
                    options=OPEN_OPTIONS,
                    metadata_errors="replace",
                )
                self._read_header()
        except BaseException:
            self._file.close()
            raise

    def _read_header(self) -> None:
        videos = [stream for stream in self._container.streams.video if not _is_cover(stream)]
        if not videos:
            kinds = sorted({stream.type for stream in self._container.streams})
            contents = f"only {' and '.join(kinds)}" if kinds else "nothing"
            raise ImageError(f"{self.name}: {contents} in it, no moving pictures; {EXPECTED}")
        self._stream = stream = videos[0]
        codec = stream.codec_context
        if codec is None or codec.codec.canonical_name not in DECODERS:
            coding = "unknown" if codec is None else quote(codec.codec.canonical_name)
            raise ImageError(f"{self.name}: its pictures are coded as {coding}; expected {several(DECODERS, 99)}")
        self._check_size(codec.width, codec.height)
        # The decoder checks each frame's own size too; it rounds sides up to whole blocks, hence twice the pixels.
        codec.options = {"max_pixels": str(2 * self.limits.pixels), "err_detect": "careful"}
        # Every thread would hold frames of its own.
        codec.thread_count = 1
        width, height = codec.width, codec.height
        self._aspect = stream.sample_aspect_ratio or Fraction(1)
        self._size = self._square_size(width, height)
        rate = stream.average_rate or stream.guessed_rate or DEFAULT_RATE
        self._rate = rate if rate > 0 else DEFAULT_RATE
        declared = self._container.duration
        seconds = declared / self._av.time_base if declared is not None and declared > 0 else 0.0
        if self.limits.seconds is not None and seconds > self.limits.seconds:
            raise ImageError(f"{self.name}: {seconds:,.1f} seconds; at most {self.limits.seconds:g} are taken")
        frames = max(0, stream.frames) or round(seconds * float(self._rate))
        self._check_count(frames)
        self._start_time = Fraction(self._container.start_time or 0, self._av.time_base)
        audio = self._container.streams.audio
        sound = audio[0].codec_context.codec.canonical_name if audio and audio[0].codec_context is not None else ""
        self._frames, self._count, self._last_ticks = self._decode(), 0, -1
        # The header does not state the rotation; the frames do.
        self._first = self._decode_next()
        self._rotation = 0 if self._first is None else self._rotation_of(self._first[2])
        upright = self._size[::-1] if self._rotation in (90, 270) else self._size
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
        """Skip up to ``count`` frames; returns how many were skipped."""
        skipped = 0
        while skipped < count and self._next_frame() is not None:
            skipped += 1
        return skipped

    def read(self, count: int) -> list[Frame]:
        """The next ``count`` frames; fewer, then none, at the end.

        Raises:
            ImageError: the clip is damaged, cut short or larger than its limits, or its size changes.
        """
        frames: list[Frame] = []
        while len(frames) < count:
            decoded = self._next_frame()
            if decoded is None:
                break
            index, ticks, frame = decoded
            with self._errors(f"frame {index:,} is damaged"):
                frames.append(Frame(index, ticks, self._image(index, frame)))
        return frames

    def join(self, parts: Sequence[Path], output: Path) -> None:
        """Join parts of a video into one file, with the sound of this clip."""
        join(parts, self.path if self.facts.sound else None, output, self.name)

    def _next_frame(self) -> tuple[int, int, Any] | None:
        if self._first is None:
            return self._decode_next()
        first, self._first = self._first, None
        return first

    def _decode_next(self) -> tuple[int, int, Any] | None:
        """Index, ticks and frame of the next frame that is not decoded yet; None at the end."""
        index = self._count
        with self._errors(f"damaged or cut short at frame {index:,}"):
            frame = next(self._frames, None)
        if frame is None:
            self._check_end()
            return None
        self._check_count(index + 1)
        ticks = self._ticks(index, frame)
        if self.limits.seconds is not None and ticks > self.limits.seconds * TICKS_PER_SECOND:
            raise ImageError(f"{self.name}: frame {index:,} comes after more than {self.limits.seconds:g} seconds")
        self._count, self._last_ticks = index + 1, ticks
        return index, ticks, frame

    def _decode(self) -> Generator[Any, None, None]:
        silent = 0
        for packet in self._container.demux(self._stream):
            silent += 1
            if silent > MAX_SILENT_PACKETS:
                raise ImageError(f"{self.name}: {silent:,} packets without a frame to show; expected a whole clip")
            if packet.is_corrupt:
                raise ImageError(f"{self.name}: damaged or cut short at frame {self._count:,}; expected a whole clip")
            for frame in packet.decode():
                if frame.is_corrupt:
                    raise ImageError(f"{self.name}: frame {self._count:,} is damaged; expected a whole clip")
                silent = 0
                yield frame

    def _ticks(self, index: int, frame: Any) -> int:
        """The time of a frame; one without a time follows the previous frame at the clip's rate."""
        if frame.pts is None or not frame.time_base:
            step = max(1, round(TICKS_PER_SECOND / self._rate))
            return self._last_ticks + step if index else 0
        seconds = frame.pts * frame.time_base - self._start_time
        ticks = round(seconds * TICKS_PER_SECOND)
        if ticks <= self._last_ticks or ticks < 0:
            last = self._last_ticks / TICKS_PER_SECOND
            expected = f"a time after that of the frame before, {last:g}" if index else "0 or more"
            raise ImageError(f"{self.name}: frame {index:,} says {float(seconds):g} seconds; expected {expected}")
        return ticks

    def _image(self, index: int, frame: Any) -> Image.Image:
        size = self._square_size(frame.width, frame.height)
        if size != self._size:
            actual, expected = (f"{width}×{height} pixels" for width, height in (size, self._size))
            raise ImageError(f"{self.name}: frame {index:,} has {actual}; expected {expected}, as those before")
        if self._rotation_of(frame) != self._rotation:
            raise ImageError(f"{self.name}: frame {index:,} is turned another way; expected all frames alike")
        # A process with limits may start no threads.
        levels = frame.reformat(width=size[0], height=size[1], format="rgb24", threads=1).to_ndarray()
        image = Image.fromarray(np.ascontiguousarray(levels))
        return image.transpose(ROTATIONS[self._rotation]) if self._rotation else image

    def _rotation_of(self, frame: Any) -> int:
        """Counter-clockwise degrees by which a frame is turned upright."""
        degrees = round(frame.rotation) % 360
        if degrees and degrees not in ROTATIONS:
            raise ImageError(f"{self.name}: turned by {degrees} degrees; expected a multiple of 90")
        return degrees

    def _square_size(self, width: int, height: int) -> tuple[int, int]:
        """Width and height with square pixels; no side grows."""
        if self._aspect == 1:
            return width, height
        scale = float(self._aspect)
        size = (width, round(height / scale)) if scale > 1 else (round(width * scale), height)
        return max(1, size[0]), max(1, size[1])

    def _check_size(self, width: int, height: int) -> None:
        if not width or not height:
            # FFmpeg reports no size beyond some hundred million pixels.
            problem = "frames of no size, or of one far beyond what is taken"
            raise ImageError(f"{self.name}: {problem}; expected at most {self.limits.pixels:,} pixels")
        if min(width, height) < MIN_SIDE:
            raise ImageError(f"{self.name}: frames of {width}×{height} pixels; expected at least {MIN_SIDE}×{MIN_SIDE}")
        if width * height > self.limits.pixels:
            size = f"{width}×{height} pixels"
            raise ImageError(f"{self.name}: frames of {size}; at most {self.limits.pixels:,} pixels are taken")

    def _check_count(self, frames: int) -> None:
        if frames > self.limits.frames:
            raise ImageError(f"{self.name}: {frames:,} frames; at most {self.limits.frames:,} are taken")

    def _check_end(self) -> None:
        """Refuse a clip that is shorter than its header says; FFmpeg does not notice this in some containers."""
        if not self._count:
            raise ImageError(f"{self.name}: not one frame in it; expected a whole clip")
        declared = _declared_seconds(self._stream)
        seconds = self._last_ticks / TICKS_PER_SECOND
        # Two frames of slack, since the last frame's duration is often missing or rounded.
        if declared is not None and seconds + 2.5 / float(self._rate) < declared:
            raise ImageError(f"{self.name}: ends after {seconds:.2f} of {declared:.2f} seconds; expected a whole clip")

    @contextmanager
    def _errors(self, problem: str, expected: str = "expected a whole clip") -> Iterator[None]:
        """Turn FFmpeg's errors into an :class:`ImageError`."""
        try:
            yield
        except (ImageError, ConfigError):
            raise
        except Exception as error:
            if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
                raise ImageError(f"{self.name}: takes more memory than there is; {expected}") from None
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise ImageError(f"{self.name}: {problem} ({reason}); {expected}") from None


def open_video(path: str | os.PathLike[str], name: str | None = None, limits: ClipLimits = DEFAULT_LIMITS) -> OpenClip:
    """Open a clip and decode it in this process.

    For a stranger's file use :func:`vitviz.images.isolated_clips.open_video`, which bounds memory and time.

    Args:
        path: of an MP4, QuickTime, Matroska, WebM or AVI file.
        name: of the clip in messages; None for its path.
        limits: of its size and length.

    Returns:
        The clip, a context manager that closes the file.

    Raises:
        ImageError: there is no such file, it is no clip, has no moving pictures, is larger than its limits, or damaged.
        ConfigError: the extra is not installed.
    """
    path = Path(path)
    return OpenClip(path, legible(name or str(path)), limits)


def _open_regular(path: Path, name: str, max_bytes: int) -> io.FileIO:
    try:
        # Reading a pipe would block, and a device has no end.
        if not stat.S_ISREG(os.stat(path).st_mode):
            kind = "a folder" if path.is_dir() else "a pipe, a socket or a device"
            raise ImageError(f"{name}: {kind}; {EXPECTED}")
        nbytes = os.stat(path).st_size
        if nbytes > max_bytes:
            raise ImageError(f"{name}: {nbytes:,} bytes; at most {max_bytes:,} are taken")
        if not nbytes:
            raise ImageError(f"{name}: an empty file; {EXPECTED}")
        return io.FileIO(path)
    except FileNotFoundError:
        raise ImageError(f"{name}: no such file; {EXPECTED}") from None
    except OSError as error:
        raise ImageError(f"{name}: cannot be read ({error.strerror}); {EXPECTED}") from None


def _is_cover(stream: Any) -> bool:
    """Whether a stream is the cover picture of an audio file."""
    disposition = getattr(stream, "disposition", 0)
    return "attached_pic" in str(getattr(disposition, "name", disposition) or "").lower()


def _declared_seconds(stream: Any) -> float | None:
    """The duration that a Matroska or AVI file states; in other containers FFmpeg itself notices a missing end."""
    text = (stream.metadata or {}).get("DURATION", "")
    fields = text.split(":")
    try:
        if len(fields) == 3:
            hours, minutes, seconds = map(float, fields)
            return 3600 * hours + 60 * minutes + seconds
        if stream.container.format.name == "avi" and stream.frames and stream.average_rate:
            return float(stream.frames / stream.average_rate)
    except (ValueError, OverflowError, ZeroDivisionError):
        pass
    return None
