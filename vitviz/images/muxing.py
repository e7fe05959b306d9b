"""Join parts of a video into one file, with the sound of a clip."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from heapq import merge
from pathlib import Path
from typing import Any

from vitviz.errors.kinds import ConfigError, ImageError
from vitviz.errors.messages import choices
from vitviz.images.ffmpeg import OPEN_OPTIONS, TICKS_PER_SECOND, pyav

# Sound that a container cannot hold is encoded with this codec.
SOUND_CODEC = "aac"
NAMED_LAYOUTS = {1: "mono", 2: "stereo"}


@dataclass(frozen=True)
class Container:
    """A file format that videos are written in.

    Args:
        suffix: of its files.
        name: in FFmpeg.
        sound_codecs: that it can hold; empty for any.
    """

    suffix: str
    name: str
    sound_codecs: tuple[str, ...] = ()

    def can_hold(self, codec: str) -> bool:
        """Whether sound of this codec is copied into it without encoding."""
        return not self.sound_codecs or codec in self.sound_codecs


CONTAINERS = {
    container.suffix: container
    for container in (
        Container(".mp4", "mp4", ("aac", "mp3", "ac3", "eac3", "alac", "opus", "flac")),
        Container(".mkv", "matroska"),
    )
}


def container_of(output: Path) -> Container:
    """The container that the suffix of a path names.

    Raises:
        ConfigError: there is no container of this suffix.
    """
    container = CONTAINERS.get(output.suffix.lower())
    if container is None:
        raise ConfigError(f"{output}: expected a name that ends with {choices(CONTAINERS)}")
    return container


def join(parts: Sequence[Path], sound: Path | None, output: Path, name: str) -> None:
    """Join parts of a video into one file without encoding them again.

    All parts have the same encoder settings. The name of a part ends with a hyphen and the ticks of its first frame.
    Sound is copied if the container can hold its codec, and encoded as AAC otherwise.

    Args:
        parts: the files, in order.
        sound: the clip whose first sound track is added; None for none.
        output: the file to write; its suffix selects the container.
        name: of the clip in messages.

    Raises:
        ImageError: the sound is damaged.
        ConfigError: the file cannot be written.
    """
    av = pyav()
    container = container_of(output)
    try:
        with av.open(str(output), "w", format=container.name) as target, _open_sound(sound) as source:
            with av.open(str(parts[0])) as first:
                video = target.add_stream_from_template(first.streams.video[0])
            audio = None if source is None else source.streams.audio[0]
            audio_out = None if audio is None else _add_sound_stream(target, audio, container)
            # Writing the header sets the time bases.
            target.start_encoding()
            streams = [_video_packets(parts, video)]
            if audio is not None:
                streams.append(_sound_packets(source, audio, audio_out, container, name))
            for _, _, packet in merge(*streams, key=lambda item: item[:2]):
                target.mux(packet)
    except (ImageError, ConfigError):
        raise
    except Exception as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise ConfigError(f"{output.name}: cannot be written ({reason})") from None


@contextmanager
def _open_sound(path: Path | None) -> Iterator[Any]:
    """The opened clip at ``path``; None without one."""
    if path is None:
        yield None
        return
    with path.open("rb") as file, pyav().open(file, "r", options=OPEN_OPTIONS) as source:
        yield source


def _add_sound_stream(target: Any, audio: Any, container: Container) -> Any:
    if container.can_hold(audio.codec_context.codec.canonical_name):
        return target.add_stream_from_template(audio)
    stream = target.add_stream(SOUND_CODEC, rate=audio.codec_context.rate)
    layout = audio.codec_context.layout
    # Matroska may state the number of channels without their layout.
    stream.layout = NAMED_LAYOUTS.get(layout.nb_channels, layout)
    return stream


def _video_packets(parts: Sequence[Path], stream: Any) -> Iterator[tuple[Fraction, int, Any]]:
    """Seconds, 0 and packet, for :func:`heapq.merge` with the packets of the sound."""
    for part in parts:
        start = int(part.stem.rpartition("-")[2])
        with pyav().open(str(part)) as source:
            for packet in source.demux(source.streams.video[0]):
                if packet.dts is None:
                    continue
                ticks = start + round(packet.pts * packet.time_base * TICKS_PER_SECOND)
                packet.pts = packet.dts = ticks
                packet.time_base = Fraction(1, TICKS_PER_SECOND)
                packet.stream = stream
                yield Fraction(ticks, TICKS_PER_SECOND), 0, packet


def _sound_packets(
    source: Any, audio: Any, stream: Any, container: Container, name: str
) -> Iterator[tuple[Fraction, int, Any]]:
    """Seconds, 1 and packet."""
    start_time = Fraction(source.start_time or 0, pyav().time_base)
    is_copied = container.can_hold(audio.codec_context.codec.canonical_name)
    try:
        if is_copied:
            for packet in source.demux(audio):
                if packet.dts is None or packet.pts is None:
                    continue
                shift = round(start_time / packet.time_base)
                packet.pts, packet.dts = packet.pts - shift, packet.dts - shift
                packet.stream = stream
                yield packet.dts * packet.time_base, 1, packet
            return
        for frame in source.decode(audio):
            frame.pts = None if frame.pts is None else frame.pts - round(start_time / frame.time_base)
            for packet in stream.encode(frame):
                yield packet.dts * packet.time_base, 1, packet
        for packet in stream.encode(None):
            yield packet.dts * packet.time_base, 1, packet
    except pyav().FFmpegError as error:
        raise ImageError(f"{name}: its sound is damaged ({error.strerror}); expected a whole clip") from None
