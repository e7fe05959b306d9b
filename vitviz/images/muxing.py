"""Parts of a video as one file, with the sound of a clip."""

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
from vitviz.images.ffmpeg import READING, TICKS, pyav

# What a container cannot hold is encoded as this.
SOUND_CODEC = "aac"
NAMED_LAYOUTS = {1: "mono", 2: "stereo"}


@dataclass(frozen=True)
class Container:
    """A kind of file that a video is written as.

    Args:
        suffix: of its files.
        name: by which FFmpeg knows it.
        sounds: codecs of sound that it holds; empty for any.
    """

    suffix: str
    name: str
    sounds: tuple[str, ...] = ()

    def keeps(self, sound: str) -> bool:
        """Whether sound of a codec is put into it as it is."""
        return not self.sounds or sound in self.sounds


CONTAINERS = {
    each.suffix: each
    for each in (
        Container(".mp4", "mp4", ("aac", "mp3", "ac3", "eac3", "alac", "opus", "flac")),
        Container(".mkv", "matroska"),
    )
}


def container_of(output: Path) -> Container:
    """The kind of file that a path asks for.

    Raises:
        ConfigError: no video is written as such.
    """
    found = CONTAINERS.get(output.suffix.lower())
    if found is None:
        raise ConfigError(f"{output}: expected a name that ends with {choices(CONTAINERS)}")
    return found


def join(parts: Sequence[Path], sound: Path | None, output: Path, name: str) -> None:
    """Write parts of a video as one file, each after the other, without encoding them again.

    Every part was written with the same settings, and has the ticks of its first frame in its name, behind the last
    hyphen. Sound is kept as it is where the container holds its codec, and is encoded as AAC where not.

    Args:
        parts: the files, in their order.
        sound: the clip whose first sound track goes with it; None for none.
        output: to write; another name may stand for it meanwhile, so its second last suffix says the container.
        name: what messages call the clip.

    Raises:
        ImageError: the sound is damaged.
        ConfigError: the file cannot be written.
    """
    av = pyav()
    container = container_of(output)
    try:
        with av.open(str(output), "w", format=container.name) as written, _opened_sound(sound) as source:
            with av.open(str(parts[0])) as first:
                video = written.add_stream_from_template(first.streams.video[0])
            heard = None if source is None else source.streams.audio[0]
            out = None if heard is None else _sound_stream(written, heard, container)
            # The header settles the time bases.
            written.start_encoding()
            streams = [_video_packets(parts, video)]
            if heard is not None:
                streams.append(_sound_packets(source, heard, out, container, name))
            for _, _, packet in merge(*streams, key=lambda each: each[:2]):
                written.mux(packet)
    except (ImageError, ConfigError):
        raise
    except Exception as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise ConfigError(f"{output.name}: cannot be written ({reason})") from None


@contextmanager
def _opened_sound(path: Path | None) -> Iterator[Any]:
    """The clip whose sound is kept, open; nothing where there is none."""
    if path is None:
        yield None
        return
    with path.open("rb") as file, pyav().open(file, "r", options=READING) as source:
        yield source


def _sound_stream(written: Any, heard: Any, container: Container) -> Any:
    if container.keeps(heard.codec_context.codec.canonical_name):
        return written.add_stream_from_template(heard)
    stream = written.add_stream(SOUND_CODEC, rate=heard.codec_context.rate)
    layout = heard.codec_context.layout
    # Matroska may say how many channels there are, and not which.
    stream.layout = NAMED_LAYOUTS.get(layout.nb_channels, layout)
    return stream


def _video_packets(parts: Sequence[Path], stream: Any) -> Iterator[tuple[Fraction, int, Any]]:
    for part in parts:
        start = int(part.stem.rpartition("-")[2])
        with pyav().open(str(part)) as opened:
            for packet in opened.demux(opened.streams.video[0]):
                if packet.dts is None:
                    continue
                ticks = start + round(packet.pts * packet.time_base * TICKS)
                packet.pts = packet.dts = ticks
                packet.time_base = Fraction(1, TICKS)
                packet.stream = stream
                yield Fraction(ticks, TICKS), 0, packet


def _sound_packets(
    source: Any, heard: Any, stream: Any, container: Container, name: str
) -> Iterator[tuple[Fraction, int, Any]]:
    beginning = Fraction(source.start_time or 0, pyav().time_base)
    keeps = container.keeps(heard.codec_context.codec.canonical_name)
    try:
        if keeps:
            for packet in source.demux(heard):
                if packet.dts is None or packet.pts is None:
                    continue
                shift = round(beginning / packet.time_base)
                packet.pts, packet.dts = packet.pts - shift, packet.dts - shift
                packet.stream = stream
                yield packet.dts * packet.time_base, 1, packet
            return
        for frame in source.decode(heard):
            frame.pts = None if frame.pts is None else frame.pts - round(beginning / frame.time_base)
            for packet in stream.encode(frame):
                yield packet.dts * packet.time_base, 1, packet
        for packet in stream.encode(None):
            yield packet.dts * packet.time_base, 1, packet
    except pyav().FFmpegError as error:
        raise ImageError(f"{name}: its sound is damaged ({error.strerror}); expected a whole clip") from None
