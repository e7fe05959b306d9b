"""The parts of a video that is being written: each is encoded by itself, and they can be joined without encoding."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

from PIL import Image

from vitviz.errors.kinds import ConfigError
from vitviz.images.ffmpeg import TICKS_PER_SECOND, pyav

CODEC = "libx264"
# Without B-frames the packets of a part are in the order of its frames, so that parts can be joined. With one thread
# the bytes of a part do not depend on the machine.
CODEC_OPTIONS = {"crf": "18", "preset": "veryfast", "bf": "0", "threads": "1"}
# FFmpeg's numbers of ITU-R BT.709 and of the limited range. They are tagged, since players differ in their defaults.
BT709_COLOURS, LIMITED_RANGE = 1, 1
# Frames a second for the encoder's rate control; every frame keeps its own time.
MIN_RATE, MAX_RATE = 1.0, 240.0


class VideoParts:
    """The files of the parts.

    Args:
        folder: of the files.
        rate: mean number of frames a second.
    """

    def __init__(self, folder: Path, rate: float) -> None:
        self.folder = folder
        self.rate = Fraction(min(max(rate, MIN_RATE), MAX_RATE)).limit_denominator(1001)

    def path(self, part: int, ticks: int) -> Path:
        """The path of a part whose first frame is shown at this time."""
        return self.folder / f"video-{part:06d}-{ticks}.mp4"

    def numbers(self) -> set[int]:
        """The numbers of the parts that are written."""
        return {int(path.name.split("-")[1]) for path in self.paths()}

    def paths(self) -> list[Path]:
        """The paths of the parts that are written, in order."""
        return sorted(self.folder.glob("video-*.mp4"))

    def write(self, part: int, frames: Iterable[tuple[int, Image.Image]]) -> None:
        """Encode a part and write it atomically.

        Args:
            part: its number, counted from 0.
            frames: times in ticks, and images: RGB, all of one size with even sides.

        Raises:
            ConfigError: it cannot be written.
        """
        av, start = pyav(), -1
        partial = self.folder / f".video-{part:06d}.partial.mp4"
        try:
            with av.open(str(partial), "w", format="mp4") as container:
                stream = None
                for ticks, image in frames:
                    if stream is None:
                        start = ticks
                        stream = self._stream(container, image.size)
                    frame = av.VideoFrame.from_image(image).reformat(
                        format="yuv420p", dst_colorspace="ITU709", dst_color_range="MPEG"
                    )
                    frame.pts, frame.time_base = ticks - start, Fraction(1, TICKS_PER_SECOND)
                    container.mux(stream.encode(frame))
                if stream is not None:
                    container.mux(stream.encode(None))
            partial.replace(self.path(part, start))
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(f"{self.folder}: cannot be written ({reason})") from None
        finally:
            partial.unlink(missing_ok=True)

    def _stream(self, container: Any, size: tuple[int, int]) -> Any:
        av = pyav()
        try:
            stream = container.add_stream(CODEC, rate=self.rate)
        except (ValueError, av.FFmpegError):
            raise ConfigError(f"this build of PyAV cannot encode {CODEC}; expected one from PyPI") from None
        stream.width, stream.height = size
        stream.pix_fmt, stream.options = "yuv420p", dict(CODEC_OPTIONS)
        codec = stream.codec_context
        codec.time_base = Fraction(1, TICKS_PER_SECOND)
        codec.colorspace = codec.color_primaries = codec.color_trc = BT709_COLOURS
        codec.color_range = LIMITED_RANGE
        return stream
