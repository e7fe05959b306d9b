"""Read a clip as upright RGB frames, one after another.

Times are in ticks from the beginning of the clip. Every frame has its own time, so frames need not be evenly spaced.
"""

from __future__ import annotations

import errno
import os
import shlex
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from fractions import Fraction
from itertools import chain, islice, starmap
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from PIL import Image

from vitviz.errors.arguments import integer, word
from vitviz.errors.kinds import ConfigError, ImageError
from vitviz.errors.messages import legible, quote, several
from vitviz.images.code_points import UNSPECIFIED, CodePoints
from vitviz.images.colours import COLOR_PROFILES, ColorProfile, conversion_of_points
from vitviz.images.file_kinds import start_of
from vitviz.images.image_facts import ImageFacts
from vitviz.images.opening import opened_file
from vitviz.system.paths import user_path
from vitviz.video.clip_facts import (
    DEFAULT_LIMITS,
    OPEN_OPTIONS,
    STRICT_OPTIONS,
    TICKS_PER_SECOND,
    Clip,
    ClipFacts,
    ClipLimits,
    Frame,
    declared_seconds,
    is_cover,
    pyav,
)
from vitviz.video.writing import add_sound, container_of, sound_files

CLIP_SUFFIXES = (".mp4", ".mov", ".m4v", ".3gp", ".mkv", ".webm", ".avi", ".ts", ".mts", ".m2ts", ".flv")
EXPECTED = f"expected a clip of these kinds: {', '.join(CLIP_SUFFIXES)}"
# Of clips of strangers.
DECODERS = ("h264", "hevc", "av1", "vp8", "vp9", "mpeg4", "mpeg2video", "mjpeg", "prores", "ffv1", "rawvideo")
# Offset and signature of each container, and still images in the same container as MP4.
SIGNATURES = (
    *((4, b"ftyp"), (4, b"moov"), (4, b"mdat"), (4, b"wide")),
    *((0, b"\x1aE\xdf\xa3"), (8, b"AVI "), (0, b"FLV\x01")),
)
# The first bytes of the packets of a transport stream, and of one of a camcorder, which numbers them.
PACKETS, SYNC = (slice(0, 565, 188), slice(4, 581, 192)), b"GGGG"
STILL_BRANDS = (b"ftypavif", b"ftypavis", b"ftypheic", b"ftypheix", b"ftypmif1", b"ftypmsf1")
# Some programs give frames that follow each other at once one time, rounded.
SAME_TICKS = TICKS_PER_SECOND // 1000
# A decoder may wait for some packets, or for the first frame that needs no other. Hidden frames take time: a clip has
# few, and at most two packets for a frame, one for each field.
MAX_SILENT_PACKETS, PACKETS_A_FRAME = 256, 2
# Frames a second if the header states no rate.
DEFAULT_RATE = Fraction(25)
# A clip that does not say how its colours are stored is read as by browsers: from so many rows on as HD video, by
# ITU-R BT.709, and below as SD video, by BT.601.
HD_ROWS, HD_MATRIX = 720, "ITU709"
# What turns a stored frame upright, by a, b, c and d of its display matrix: x' = ax + cy, y' = bx + dy. Phones mirror
# the clips of their front cameras by it.
TURNS = {
    (1, 0, 0, 1): None,
    (0, 1, -1, 0): Image.Transpose.ROTATE_270,
    (-1, 0, 0, -1): Image.Transpose.ROTATE_180,
    (0, -1, 1, 0): Image.Transpose.ROTATE_90,
    (-1, 0, 0, 1): Image.Transpose.FLIP_LEFT_RIGHT,
    (1, 0, 0, -1): Image.Transpose.FLIP_TOP_BOTTOM,
    (0, 1, 1, 0): Image.Transpose.TRANSPOSE,
    (0, -1, -1, 0): Image.Transpose.TRANSVERSE,
}
# Decoders that know transparency, which FFmpeg's own ones of these codecs leave out.
ALPHA_DECODERS = {"vp8": "libvpx", "vp9": "libvpx-vp9"}


def is_clip(path: str | os.PathLike[str]) -> bool:
    """Whether the first bytes of a file are the signature of a clip."""
    start = start_of(path)
    return any(start[packets] == SYNC for packets in PACKETS) or (
        start[4:12] not in STILL_BRANDS and any(start.startswith(mark, offset) for offset, mark in SIGNATURES)
    )


def read_frame(path: str | os.PathLike[str], index: int = 0, color_profile: ColorProfile = "apply") -> Image.Image:
    """One frame of a clip, RGB and upright.

    Args:
        path: of the clip.
        index: of the frame, counted from 0.
        color_profile: as :func:`open_video` takes it.

    Raises:
        ImageError: as :func:`open_video`, or it has no such frame.
        ConfigError: the index is negative, the choice is invalid, or the extra is not installed.
    """
    index = integer("index", index, 0)
    with open_video(path, color_profile=color_profile) as clip:
        return frame_after(clip, clip.skip(index), index).image


def frame_after(clip: Clip, skipped: int, index: int) -> Frame:
    """The frame at an index of a clip of which this many frames were skipped.

    Raises:
        ImageError: it has no such frame.
    """
    frame = clip.read() if skipped == index else None
    if frame is None:
        raise ImageError(f"{clip.name}: no frame {index:,}; expected 0 to {skipped - 1:,}")
    return frame


class OpenClip:
    """A clip that this process decodes.

    Args:
        file: open, which it closes.
        name: of the clip in messages.
        limits: of its size and length.
        color_profile: as :func:`open_video` takes it.
        is_trusted: whether any of FFmpeg's decoders may read it, and containers that few clips have.

    Attributes:
        is_cut: whether its end was reached and lies before that of the file, which is longer than the limits.

    Raises:
        ImageError: as :func:`open_video`.
        ConfigError: the extra is not installed.
    """

    def __init__(
        self, file: BinaryIO, name: str, limits: ClipLimits, color_profile: ColorProfile, *, is_trusted: bool
    ) -> None:
        self._file, self.name, self.limits, self.is_cut, self._is_trusted = file, name, limits, False, is_trusted
        self._is_converted = word("color_profile", color_profile, COLOR_PROFILES, ConfigError) == "apply"
        self._container: Any = None
        try:
            # FFmpeg takes an animated WebP for a picture.
            program = "magick {} out.gif" if file.read(12)[8:] == b"WEBP" else "ffmpeg -i {} out.mp4"
            file.seek(0)
            self._av, self._way_out = pyav(), program.format(shlex.quote(name))
            with self._errors("no clip, or one that is cut short", EXPECTED):
                # A file object instead of a path, so that its content cannot make FFmpeg open other files or URLs.
                self._container = self._av.open(
                    self._file, "r", options=OPEN_OPTIONS if is_trusted else STRICT_OPTIONS, metadata_errors="replace"
                )
                self._read_header()
        except BaseException:
            self._file.close()
            raise

    def _read_header(self) -> None:
        streams = self._container.streams
        videos = [video for video in streams.video if not is_cover(video)]
        if not videos:
            contents = f"only {' and '.join(sorted({each.type for each in streams}))}" if len(streams) else "nothing"
            raise self._refusal(f"{contents} in it, no moving pictures", EXPECTED)
        if any(video.metadata.get("title") == "Alpha" for video in videos[1:]):
            raise self._refusal(
                "an animated AVIF whose transparency FFmpeg leaves out",
                f"expected an animated PNG: PIL.Image.open({self.name!r}).save('out.png', save_all=True)",
            )
        # An animated AVIF has a still picture first.
        self._stream = stream = next((video for video in videos if video.frames != 1), videos[0])
        codec, pixels = stream.codec_context, self.limits.pixels
        coding = "unknown" if codec is None else codec.codec.canonical_name
        if codec is None or not (self._is_trusted or coding in DECODERS):
            raise self._refusal(
                f"its pictures are coded as {quote(coding)}",
                f"expected {several(DECODERS, 99)}; to convert it: {self._way_out}",
            )
        width, height = codec.width, codec.height
        # FFmpeg reports no size beyond some hundred million pixels.
        size = f"{width}×{height} pixels" if width and height else "no size, or of one far beyond what is taken"
        if not 0 < width * height <= pixels:
            raise self._refusal(f"frames of {size}", f"at most {pixels:,} pixels are taken")
        # The name of the tag may be in capitals.
        if coding in ALPHA_DECODERS and "1" in map(stream.metadata.get, ("alpha_mode", "ALPHA_MODE")):
            codec = self._av.CodecContext.create(ALPHA_DECODERS[coding], "r")
        self._codec = codec
        # The decoder checks each frame's own size too; it rounds sides up to whole blocks, hence twice the pixels.
        codec.options = {"max_pixels": str(2 * pixels), "err_detect": "careful"}
        # Every thread would hold frames of its own.
        codec.thread_count = 1
        self._aspect = stream.sample_aspect_ratio or Fraction(1)
        self._size = self._square_size(width, height)
        rates = stream.average_rate, stream.guessed_rate, DEFAULT_RATE
        self._rate = next(rate for rate in rates if rate is not None and rate > 0)
        seconds = max(0, self._container.duration or 0) / self._av.time_base
        frames = max(0, stream.frames) or round(seconds * float(self._rate))
        if self.limits.seconds is not None and seconds > self.limits.seconds:
            frames = round(frames * self.limits.seconds / seconds)
        self._check_count(frames)
        self._start_time = Fraction(self._container.start_time or 0, self._av.time_base)
        # An AVI file has the times at which pictures are decoded.
        self._is_timed = self._container.format.name != "avi" or not codec.has_b_frames
        codecs = [audio.codec_context.codec for audio in streams.audio[:1] if audio.codec_context is not None]
        self._decoder = self._decode()
        # The header does not state how it is turned; the frames do.
        first = next(self._decoder, None)
        if first is None:
            raise self._refusal("not one frame in it")
        self._frames, self._turn = chain([first], self._decoder), self._turn_of(first[2])
        upright = self._size if self._turn[0] else self._size[::-1]
        self.facts = ClipFacts(*upright, float(self._rate), frames, codecs[0].canonical_name if codecs else "")

    def __enter__(self) -> OpenClip:
        return self

    def __exit__(self, *_: object) -> None:
        self._decoder.close()
        self._container.close()
        self._file.close()

    def skip(self, count: int) -> int:
        """Skip up to ``count`` frames; returns how many were skipped."""
        return sum(1 for _ in islice(self._frames, count))

    def read(self) -> Frame | None:
        """The next frame; None at the end.

        Raises:
            ImageError: the clip is damaged, cut short or larger than its limits, or its size changes.
        """
        return next(starmap(self._upright, self._frames), None)

    def add_sound(self, video: Path, start: int, output: Path) -> None:
        with sound_files(video, Path(self._file.name) if self.facts.sound else None, output) as files:
            add_sound(files, start, container_of(output), self.name, self.limits.seconds)

    def _decode(self) -> Generator[tuple[int, int, Any], None, None]:
        """Index, ticks and frame of every frame."""
        packets, index, last_ticks, silent, is_whole = self._container.demux(self._stream), 0, -1, 0, False
        while True:
            with self._errors(f"damaged or cut short at frame {index:,}"):
                packet = next(packets, None)
                if packet is None:
                    break
                silent += 1
                if silent > MAX_SILENT_PACKETS:
                    raise self._refusal(f"{silent:,} packets without a frame to show")
                # A part of a stream may begin between two pictures that need no other.
                is_whole = is_whole or packet.is_keyframe
                if not is_whole:
                    continue
                if packet.is_corrupt:
                    raise self._refusal(
                        f"a packet is damaged at frame {index:,}",
                        f"expected a whole clip; for what is left: {self._way_out}",
                    )
                frames = self._codec.decode(packet)
            for frame in frames:
                if frame.is_corrupt:
                    raise self._refusal(f"frame {index:,} is damaged")
                ticks = self._ticks(index, last_ticks, frame)
                if self.limits.seconds is not None and ticks >= self.limits.seconds * TICKS_PER_SECOND:
                    self.is_cut = True
                    return
                self._check_count(index + 1)
                yield index, ticks, frame
                index, last_ticks, silent = index + 1, ticks, max(0, silent - PACKETS_A_FRAME)
        self._check_end(index, last_ticks)

    def _ticks(self, index: int, last_ticks: int, frame: Any) -> int:
        """The time of a frame; one without a time follows the previous frame at the clip's rate."""
        if frame.pts is None or not frame.time_base or not self._is_timed:
            return last_ticks + max(1, round(TICKS_PER_SECOND / self._rate)) if index else 0
        time = frame.pts * frame.time_base
        # What FFmpeg says of the beginning is an estimate, or nothing.
        if not index and (time < self._start_time or self._container.start_time is None):
            self._start_time = time
        ticks = round((time - self._start_time) * TICKS_PER_SECOND)
        if ticks < last_ticks - SAME_TICKS:
            raise self._refusal(
                f"frame {index:,} says {ticks / TICKS_PER_SECOND:g} seconds",
                f"expected a time after that of the frame before, {last_ticks / TICKS_PER_SECOND:g}: {self._way_out}",
            )
        return max(ticks, last_ticks + 1)

    def _upright(self, index: int, ticks: int, frame: Any) -> Frame:
        size = self._square_size(frame.width, frame.height)
        if (size, self._turn_of(frame)) != (self._size, self._turn):
            raise self._refusal(
                "frame {:,} has {}×{} pixels, or is turned another way".format(index, *size),
                "expected {}×{}, as those before".format(*self._size),
            )
        with self._errors(f"frame {index:,} is damaged"):
            is_hd = frame.colorspace == UNSPECIFIED and self._size[1] >= HD_ROWS
            mode = "rgba" if any(each.is_alpha for each in frame.format.components) else "rgb24"
            # A process with limits may start no threads.
            rgb = frame.reformat(*size, mode, src_colorspace=HD_MATRIX if is_hd else None, threads=1)
            image = Image.fromarray(np.ascontiguousarray(rgb.to_ndarray()))
            if mode == "rgba":
                image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
        if self._is_converted:
            image = _in_srgb(image, CodePoints(int(frame.color_primaries), int(frame.color_trc)))
        if (way := TURNS[self._turn]) is not None:
            image = image.transpose(way)
        return Frame(index, ticks, image, round(frame.duration * (frame.time_base or 0) * TICKS_PER_SECOND))

    def _turn_of(self, frame: Any) -> tuple[int, int, int, int]:
        """How a frame is turned upright, as a key of :data:`TURNS`."""
        stated = frame.side_data.get("DISPLAYMATRIX", np.eye(3, dtype=np.int32))
        matrix = np.frombuffer(stated, np.int32).reshape(3, 3)[:2, :2]
        turn = tuple(np.rint(matrix / max(1, np.abs(matrix).max())).astype(int).flatten().tolist())
        if turn not in TURNS:
            raise self._refusal(f"turned by {frame.rotation % 360:.0f} degrees", "expected a multiple of 90")
        return turn

    def _square_size(self, width: int, height: int) -> tuple[int, int]:
        """Width and height with square pixels; no side grows."""
        scale = float(self._aspect)
        size = (width, round(height / scale)) if scale > 1 else (round(width * scale), height)
        return max(1, size[0]), max(1, size[1])

    def _check_count(self, frames: int) -> None:
        if frames > self.limits.frames:
            raise self._refusal(f"{frames:,} frames", f"at most {self.limits.frames:,} are taken")

    def _check_end(self, count: int, last_ticks: int) -> None:
        """Refuse a clip that is shorter than its header says; FFmpeg does not notice this in some containers."""
        declared, seconds = declared_seconds(self._stream), last_ticks / TICKS_PER_SECOND + float(self._start_time)
        # Two frames of slack, since the last frame's duration is often missing or rounded.
        if seconds + 2.5 * max(1 / self._rate, last_ticks / TICKS_PER_SECOND / max(1, count)) < declared:
            raise self._refusal(f"ends after {seconds:.2f} of {declared:.2f} seconds")
        self._file.seek(-1, os.SEEK_END)
        # A GIF file ends with a semicolon, and a picture in it with a zero.
        if self._container.format.name == "gif" and self._file.read() not in (b";", b"\0"):
            raise self._refusal(f"ends in frame {count - 1:,}")

    def _refusal(self, problem: str, expected: str = "expected a whole clip") -> ImageError:
        return ImageError(f"{self.name}: {problem}; {expected}")

    @contextmanager
    def _errors(self, problem: str, expected: str = "expected a whole clip") -> Iterator[None]:
        """Turn FFmpeg's errors into an :class:`ImageError`."""
        try:
            yield
        except (ImageError, ConfigError):
            raise
        except Exception as error:
            if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
                raise self._refusal("takes more memory than there is", expected) from None
            # FFmpeg's answer for a format that is not among the options.
            if self._container is None and isinstance(error, self._av.ArgumentError):
                problem, expected = "a kind of file that is not read", f"{EXPECTED}; to convert it: {self._way_out}"
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise self._refusal(f"{problem} ({reason})", expected) from None


def open_video(
    path: str | os.PathLike[str],
    name: str | None = None,
    limits: ClipLimits = DEFAULT_LIMITS,
    color_profile: ColorProfile = "apply",
) -> OpenClip:
    """Open a clip and decode it in this process.

    For a stranger's file use :func:`vitviz.video.isolated_clips.open_video`, which bounds memory and time.

    Args:
        path: of an MP4, QuickTime, Matroska, WebM or AVI file, a transport stream, or another that FFmpeg reads, such
            as an animated GIF.
        name: of the clip in messages; None for its path.
        limits: of its size and length.
        color_profile: whether stated primaries and transfer functions are converted to sRGB, by default as a picture's.

    Returns:
        The clip, a context manager that closes the file.

    Raises:
        ImageError: there is no such file, it is no clip, has no moving pictures, is larger than its limits, or damaged.
        ConfigError: the extra is not installed.
    """
    path = user_path(path)
    name = legible(name or str(path))
    return OpenClip(clip_file(path, name, limits), name, limits, color_profile, is_trusted=True)


def _in_srgb(image: Image.Image, points: CodePoints) -> Image.Image:
    """A frame in sRGB, with a sentence on its conversion among its facts."""
    conversion, sentence = conversion_of_points(points)
    converted = image if conversion is None else conversion(image)
    ImageFacts((sentence,) * bool(sentence), image.size, image.size).keep(converted)
    return converted


def clip_file(path: Path, name: str, limits: ClipLimits) -> BinaryIO:
    """The open file of a clip. Raises :class:`ImageError`: there is none, or it is larger than the limits."""
    nbytes = os.path.getsize(path) if os.path.isfile(path) else 0
    if nbytes > limits.nbytes:
        raise ImageError(f"{name}: {nbytes:,} bytes; at most {limits.nbytes:,} are taken")
    return opened_file(path, name, EXPECTED)
