"""The library that reads and writes video, which the extra ``video`` installs, and how much of it is used."""

from __future__ import annotations

from typing import Any

from vitviz.errors.extras import extra

# Times are counted in these parts of a second.
TICKS = 90_000
# What of FFmpeg may read a stranger's file: no list of other files, no address, nothing that draws by itself.
DEMUXERS = ("mov", "mp4", "m4a", "3gp", "3g2", "mj2", "matroska", "webm", "avi")
DECODERS = ("h264", "hevc", "av1", "vp8", "vp9", "mpeg4", "mpeg2video", "mjpeg", "prores", "ffv1", "rawvideo")
READING = {"format_whitelist": ",".join(DEMUXERS), "enable_drefs": "0"}


def pyav() -> Any:
    """PyAV.

    Raises:
        ConfigError: it is not installed.
    """
    with extra("video", "a clip"):
        import av
    return av
