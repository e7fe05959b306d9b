"""Writes clips with PyAV, and reads their frames."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

CODECS = dict.fromkeys((".mp4", ".mov", ".mkv", ".ts", ".mts", ".m2ts", ".flv"), "libx264")
CODECS |= {".webm": "libvpx-vp9", ".avi": "mpeg4", ".gif": "gif", ".apng": "apng", ".mpg": "mpeg1video", ".wmv": "wmv2"}
FORMATS = {"mjpeg": "yuvj420p", "gif": "rgb8", "apng": "rgba"}
SOUND_RATE = 44_100
# Times of frames in 1/1000 second; no two intervals are equal.
UNEVEN = tuple(int(40 * index + 9 * (index % 3) + index**2 // 4) for index in range(100))


def moving_frames(count: int, width: int = 48, height: int = 32) -> list[np.ndarray]:
    """Frames ``"height width channel"`` of a soft blob that wanders, which codecs hardly change."""
    rows, columns = np.mgrid[0:height, 0:width]
    frames = []
    for index in range(count):
        x, y = width * (0.2 + 0.6 * index / count), height * (0.5 + 0.3 * np.sin(index / 5))
        blob = np.exp(-((columns - x) ** 2 + (rows - y) ** 2) / (0.03 * width * height))
        channels = [255 * blob, 255 * columns / width, 255 * (1 - blob) * rows / height]
        frames.append(np.stack(channels, -1).astype(np.uint8))
    return frames


def write_clip(
    path: Path,
    count: int = 20,
    size: tuple[int, int] = (48, 32),
    *,
    rate: int = 25,
    codec: str | None = None,
    times: Sequence[int] | None = None,
    sound: str | None = None,
    frames: Sequence[np.ndarray] | None = None,
    aspect: Fraction | None = None,
    options: dict[str, str] | None = None,
    colours: tuple[int, int, int] = (2, 2, 2),
    matrix: int | None = None,
) -> Path:
    """Write a clip.

    Args:
        path: path of the file; its ending decides the container.
        count, size: number of frames, and their width and height.
        rate: frames a second.
        codec: codec of the frames; by default one that suits the container.
        times: times of the frames in 1/1000 second; evenly spaced by default.
        sound: codec of a sound track as long as the frames; none by default.
        frames: in place of :func:`moving_frames`.
        aspect: width of a pixel by its height.
        options: options of the container.
        colours: what the file states of primaries, transfer and matrix, by their numbers in H.273; 2 for nothing.
        matrix: with which the frames are stored; by default PyAV's, BT.601.
    """
    frames = moving_frames(count, *size) if frames is None else frames
    codec = codec or CODECS[path.suffix]
    with av.open(str(path), "w", options=options or {}) as container:
        video = container.add_stream(codec, rate=rate)
        video.width, video.height = frames[0].shape[1], frames[0].shape[0]
        video.pix_fmt = FORMATS.get(codec, "yuv420p")
        if is_clear := frames[0].shape[2] == 4:
            video.pix_fmt, video.options, video.metadata["alpha_mode"] = "yuva420p", {"auto-alt-ref": "0"}, "1"
        if times is not None:
            video.codec_context.time_base = Fraction(1, 1000)
        if aspect is not None:
            video.sample_aspect_ratio = aspect
        context = video.codec_context
        context.color_primaries, context.color_trc, context.colorspace = colours
        audio = None
        if sound is not None:
            audio = container.add_stream(sound, rate=SOUND_RATE)
            audio.layout = "mono"
        for index, levels in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(levels, "rgba" if is_clear else "rgb24")
            if matrix is not None:
                frame = frame.reformat(format="yuv420p", dst_colorspace=matrix)
                frame.colorspace = colours[2]
            frame.pts = index if times is None else times[index]
            frame.time_base = Fraction(1, rate if times is None else 1000)
            container.mux(video.encode(frame))
        container.mux(video.encode(None))
        if audio is not None:
            _write_sound(container, audio, len(frames) / rate)
    return path


def _write_sound(container: av.container.OutputContainer, stream: av.AudioStream, seconds: float) -> None:
    tone = (8000 * np.sin(2 * np.pi * 440 * np.arange(int(SOUND_RATE * seconds)) / SOUND_RATE)).astype(np.int16)
    resampler = av.AudioResampler(stream.codec_context.format, "mono", SOUND_RATE)
    for start in range(0, len(tone) - len(tone) % 1024, 1024):
        frame = av.AudioFrame.from_ndarray(tone[None, start : start + 1024], "s16", "mono")
        frame.rate, frame.pts = SOUND_RATE, start
        for resampled in resampler.resample(frame):
            container.mux(stream.encode(resampled))
    container.mux(stream.encode(None))


def write_sound(path: Path) -> Path:
    """A file with sound alone."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=SOUND_RATE)
        stream.layout = "mono"
        _write_sound(container, stream, 1.0)
    return path


def turn_clip(path: Path, *matrix: float) -> Path:
    """Change a, b, c and d of the display matrix of an MP4 file."""
    content = bytearray(path.read_bytes())
    start = content.index(b"tkhd")
    place = start + 8 + (20 if content[start + 4] == 0 else 32) + 16
    a, b, c, d = (round(each * (1 << 16)) for each in matrix)
    content[place : place + 36] = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    path.write_bytes(content)
    return path


def sound_packets(path: Path) -> list[tuple[bytes, Fraction]]:
    """The packets of the first sound track with their times in seconds."""
    with av.open(str(path)) as container:
        packets = container.demux(container.streams.audio[0])
        return [(bytes(packet), packet.pts * packet.time_base) for packet in packets if packet.pts is not None]


def read_frames(path: Path) -> list[tuple[Fraction, np.ndarray]]:
    """The frames of a video, ``"height width channel"``, and their times in seconds."""
    with av.open(str(path)) as container:
        return [(frame.pts * frame.time_base, frame.to_ndarray(format="rgb24")) for frame in container.decode(video=0)]


def hidden_clip(path: Path, hidden: int, shown: int, size: tuple[int, int] = (64, 48)) -> Path:
    """Write a WebM clip in which so many frames that are never shown come before each that is."""
    write_clip(path, 1, size)
    with av.open(str(path)) as container:
        frame = next(bytes(packet) for packet in container.demux(video=0) if packet.size)
    # The bit that shows a frame (VP9 bitstream specification, section 6.2), of a frame of profile 0.
    packets = ([bytes([frame[0] & ~2]) + frame[1:]] * hidden + [frame]) * shown

    def element(name: str, content: bytes) -> bytes:
        return bytes.fromhex(name) + (2**56 | len(content)).to_bytes(8, "big") + content

    names = {
        "4286": b"\1",
        "42F7": b"\1",
        "42F2": b"\4",
        "42F3": b"\x08",
        "4282": b"webm",
        "4287": b"\2",
        "4285": b"\2",
    }
    head = element("1A45DFA3", b"".join(element(*each) for each in names.items()))
    video = element("E0", b"".join(element(n, s.to_bytes(2, "big")) for n, s in zip(("B0", "BA"), size, strict=True)))
    track = element("D7", b"\1") + element("73C5", b"\1") + element("83", b"\1") + element("86", b"V_VP9") + video
    body = element("1549A966", element("2AD7B1", (10**6).to_bytes(8, "big"))) + element(
        "1654AE6B", element("AE", track)
    )
    for start in range(0, len(packets), 1000):
        blocks = (
            element("A3", b"\x81" + struct.pack(">h", at) + b"\x80" + each)
            for at, each in enumerate(packets[start : start + 1000])
        )
        body += element("1F43B675", element("E7", start.to_bytes(8, "big")) + b"".join(blocks))
    path.write_bytes(head + element("18538067", body))
    return path
