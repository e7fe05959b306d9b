"""The parts of a video that is being written: each is encoded by itself, and all fit together."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

from PIL import Image

from vitviz.errors.kinds import ConfigError
from vitviz.images.ffmpeg import TICKS, pyav

CODEC = "libx264"
# Without frames that refer to later ones, the packets of parts follow one another as their frames do. One thread:
# the bytes of a part do not depend on the machine.
OPTIONS = {"crf": "18", "preset": "veryfast", "bf": "0", "threads": "1"}
# ITU-R BT.709, limited range: what players take video without a tag for differs.
BT709, LIMITED = 1, 1
# The encoder plans its bits by the rate; frames keep their own times.
LOWEST_RATE, HIGHEST_RATE = 1.0, 240.0


class Parts:
    """The files of the parts.

    Args:
        folder: where they are.
        rate: mean number of frames a second.
    """

    def __init__(self, folder: Path, rate: float) -> None:
        self.folder = folder
        self.rate = Fraction(min(max(rate, LOWEST_RATE), HIGHEST_RATE)).limit_denominator(1001)

    def path(self, part: int, ticks: int) -> Path:
        """Of a part whose first frame is shown at this time."""
        return self.folder / f"video-{part:06d}-{ticks}.mp4"

    def numbers(self) -> set[int]:
        """Which parts are there."""
        return {int(path.name.split("-")[1]) for path in self.paths()}

    def paths(self) -> list[Path]:
        """Those that are there, in their order."""
        return sorted(self.folder.glob("video-*.mp4"))

    def write(self, part: int, frames: Iterable[tuple[int, Image.Image]]) -> None:
        """Encode a part; it appears whole or not at all.

        Args:
            part: its number, counted from 0.
            frames: the times in ticks, and what is shown: RGB, all of one size, its sides even.

        Raises:
            ConfigError: it cannot be written.
        """
        av, start = pyav(), -1
        partial = self.folder / f".video-{part:06d}.partial.mp4"
        try:
            with av.open(str(partial), "w", format="mp4") as written:
                stream = None
                for ticks, image in frames:
                    if stream is None:
                        start = ticks
                        stream = self._stream(written, image.size)
                    frame = av.VideoFrame.from_image(image).reformat(
                        format="yuv420p", dst_colorspace="ITU709", dst_color_range="MPEG"
                    )
                    frame.pts, frame.time_base = ticks - start, Fraction(1, TICKS)
                    written.mux(stream.encode(frame))
                if stream is not None:
                    written.mux(stream.encode(None))
            partial.replace(self.path(part, start))
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(f"{self.folder}: cannot be written ({reason})") from None
        finally:
            partial.unlink(missing_ok=True)

    def _stream(self, written: Any, size: tuple[int, int]) -> Any:
        av = pyav()
        try:
            stream = written.add_stream(CODEC, rate=self.rate)
        except (ValueError, av.FFmpegError):
            raise ConfigError(f"this build of PyAV cannot encode {CODEC}; expected one from PyPI") from None
        stream.width, stream.height = size
        stream.pix_fmt, stream.options = "yuv420p", dict(OPTIONS)
        codec = stream.codec_context
        codec.time_base = Fraction(1, TICKS)
        codec.colorspace = codec.color_primaries = codec.color_trc = BT709
        codec.color_range = LIMITED
        return stream
