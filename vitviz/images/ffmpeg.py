"""PyAV, which reads and writes video and is installed by the extra ``video``, and the parts of FFmpeg that are used."""

from __future__ import annotations

from typing import Any

from vitviz.errors.extras import extra

# All times are in ticks.
TICKS_PER_SECOND = 90_000
# Only these read a stranger's file; FFmpeg has others that open further files or URLs, or generate pictures.
DEMUXERS = ("mov", "mp4", "m4a", "3gp", "3g2", "mj2", "matroska", "webm", "avi")
DECODERS = ("h264", "hevc", "av1", "vp8", "vp9", "mpeg4", "mpeg2video", "mjpeg", "prores", "ffv1", "rawvideo")
OPEN_OPTIONS = {"format_whitelist": ",".join(DEMUXERS), "enable_drefs": "0"}


def pyav() -> Any:
    """The package PyAV.

    Raises:
        ConfigError: it is not installed.
    """
    with extra("video", "a clip"):
        import av
    return av
