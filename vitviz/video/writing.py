"""Write frames as a video, and the sound of a clip beside them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from fractions import Fraction
from heapq import merge
from itertools import chain, takewhile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

from PIL import Image

from vitviz.errors.kinds import ConfigError, ImageError
from vitviz.errors.messages import choices
from vitviz.system.atomic import place_for, put
from vitviz.video.clip_facts import OPEN_OPTIONS, TICKS_PER_SECOND, Clip, Frame, pyav

CODEC, CODEC_OPTIONS = "libx264", {"crf": "18", "preset": "veryfast", "bf": "0"}
# FFmpeg's numbers of ITU-R BT.709 and of the limited range. They are tagged, since players differ in their defaults.
BT709_COLOURS, LIMITED_RANGE = 1, 1
# Frames a second for the encoder's rate control; every frame keeps its own time.
MIN_RATE, MAX_RATE = 1.0, 240.0
# Sound that a container cannot hold is encoded with this codec, with at most so many samples a second.
SOUND_CODEC, MAX_SOUND_RATE = "aac", 48_000
NAMED_LAYOUTS = {1: "mono", 2: "stereo", 3: "3.0", 4: "quad", 5: "5.0", 6: "5.1", 7: "6.1", 8: "7.1"}


@dataclass(frozen=True)
class Container:
    """A file format that videos are written in.

    Args:
        suffix: of its files.
        name: in FFmpeg.
        sound_codecs: that it can hold, by FFmpeg's names.
    """

    suffix: str
    name: str
    sound_codecs: tuple[str, ...]

    def can_hold(self, codec: str) -> bool:
        """Whether sound of this codec is copied into it without encoding."""
        return codec in self.sound_codecs


CONTAINERS = {
    container.suffix: container
    for container in (
        Container(".mp4", "mp4", ("aac", "mp3", "ac3", "eac3", "alac", "opus", "flac")),
        Container(
            ".mkv",
            "matroska",
            (
                *("aac", "mp3", "mp2", "ac3", "eac3", "alac", "opus", "flac", "vorbis", "dts", "truehd", "wavpack"),
                *("pcm_u8", "pcm_s16le", "pcm_s16be", "pcm_s24le", "pcm_s24be", "pcm_s32le", "pcm_f32le"),
            ),
        ),
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


def check_place(path: Path, *others: Path) -> None:
    """Check that a file to write is neither the clip nor the video nor a folder, and that its folder exists.

    Raises:
        ConfigError: it cannot be written.
    """
    is_same = path.exists() and any(each.exists() and path.samefile(each) for each in others)
    if is_same or path.absolute() in map(Path.absolute, others):
        raise ConfigError(f"{path}: the clip or the video itself; expected another file")
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise ConfigError(f"{path}: cannot be written ({'a folder' if path.is_dir() else 'no such folder'})")


@contextmanager
def being_written(output: Path, container: Container) -> Iterator[Path]:
    """A path for a video beside its final one, to which it is moved once it is complete.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        with place_for(output) as place, TemporaryDirectory(prefix=".vitviz-", dir=place) as folder:
            yield Path(folder, f"whole{container.suffix}")
            put(Path(folder, f"whole{container.suffix}"), output)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{output}: cannot be written ({getattr(error, 'strerror', None) or error})") from None


def write_frames(clip: Clip, frames: Iterable[tuple[Frame, Image.Image]], whole: Path) -> None:
    """Write drawn frames, as :func:`encode` takes them, with the sound of their clip."""
    pictures = whole.with_name("pictures.mp4")
    clip.add_sound(pictures, encode(pictures, frames, clip.facts.rate), whole)


def encode(output: Path, frames: Iterable[tuple[Frame, Image.Image]], rate: float) -> int:
    """Encode frames as an MP4 file whose first frame is at 0; returns the ticks of the first.

    Args:
        output: the file to write.
        frames: those of the clip, whose times are kept, each with its drawing: RGB, all of one size with even sides.
        rate: mean number of frames a second.
    """
    av, start, stream = pyav(), 0, None
    with av.open(str(output), "w", format="mp4") as container:
        for frame, image in frames:
            if stream is None:
                start, stream = frame.ticks, _video_stream(container, image.size, rate)
            drawn = av.VideoFrame.from_image(image).reformat(
                format="yuv420p", dst_colorspace="ITU709", dst_color_range="MPEG"
            )
            times = frame.ticks - start, frame.duration, Fraction(1, TICKS_PER_SECOND)
            drawn.pts, drawn.duration, drawn.time_base = times
            container.mux(stream.encode(drawn))
        if stream is not None:
            container.mux(stream.encode(None))
    return start


def _video_stream(container: Any, size: tuple[int, int], rate: float) -> Any:
    rounded = Fraction(min(max(rate, MIN_RATE), MAX_RATE)).limit_denominator(1001)
    stream = container.add_stream(CODEC, rate=rounded)
    stream.width, stream.height = size
    stream.pix_fmt, stream.options = "yuv420p", dict(CODEC_OPTIONS)
    codec = stream.codec_context
    codec.time_base = Fraction(1, TICKS_PER_SECOND)
    codec.colorspace = codec.color_primaries = codec.color_trc = BT709_COLOURS
    codec.color_range = LIMITED_RANGE
    # That of the last frame counts: the others end where the next begins.
    codec.flags |= pyav().codec.context.Flags.frame_duration
    return stream


@contextmanager
def sound_files(video: Path, sound: Path | None, output: Path) -> Iterator[list[IO[bytes]]]:
    """The open files that :func:`add_sound` takes.

    Raises:
        OSError: one cannot be opened.
    """
    with ExitStack() as stack:
        sources = [stack.enter_context(open(path, "rb")) for path in (video, sound) if path is not None]
        yield [stack.enter_context(open(output, "wb")), *sources]


def add_sound(
    files: Sequence[IO[bytes]], start: int, container: Container, name: str, seconds: float | None = None
) -> None:
    """Write a video into a file with the sound of a clip, without encoding its pictures again.

    Sound is copied if the container can hold its codec, and encoded as AAC otherwise.

    Args:
        files: the file to write; what :func:`encode` wrote; and perhaps the clip whose first sound track is added.
        start: the ticks of the first frame.
        container: of the file to write.
        name: of the clip in messages.
        seconds: after which the sound is left out; None for all of it.

    Raises:
        ImageError: the sound is damaged.
        ConfigError: the file cannot be written.
    """
    av, (output, video, *sounds) = pyav(), files
    try:
        with (
            # No standard says that MP4 holds MP3 of fewer than 16,000 samples a second.
            av.open(output, "w", format=container.name, options={"strict": "-1"}) as target,
            av.open(video) as pictures,
            av.open(sounds[0], "r", options=OPEN_OPTIONS) if sounds else nullcontext() as source,
        ):
            video_out = target.add_stream_from_template(pictures.streams.video[0])
            audio_out = None if source is None else _sound_stream(target, source.streams.audio[0], container)
            # Writing the header sets the time bases.
            target.start_encoding()
            streams = [_video_packets(pictures, video_out, start)]
            if source is not None:
                packets = _sound_packets(source, audio_out, container, name)
                streams.append(takewhile(lambda item: seconds is None or item[0] < seconds, packets))
            for _, _, packet in merge(*streams, key=lambda item: item[:2]):
                target.mux(packet)
        # A child may be ended as soon as it says that this is done.
        output.flush()
    except (ImageError, ConfigError):
        raise
    except Exception as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise ConfigError(f"the video with the sound of {name}: cannot be written ({reason})") from None


def _sound_stream(target: Any, audio: Any, container: Container) -> Any:
    if container.can_hold(audio.codec_context.codec.canonical_name):
        return target.add_stream_from_template(audio)
    source = audio.codec_context
    stream = target.add_stream(SOUND_CODEC, rate=min(source.rate, MAX_SOUND_RATE))
    # Matroska may state the number of channels without their layout.
    stream.layout = NAMED_LAYOUTS.get(source.layout.nb_channels, source.layout)
    return stream


def _video_packets(source: Any, stream: Any, start: int) -> Iterator[tuple[Fraction, int, Any]]:
    """Seconds, 0 and packet, for :func:`heapq.merge` with the packets of the sound."""
    for packet in source.demux(source.streams.video[0]):
        if packet.dts is not None:
            packet.pts = packet.dts = packet.pts + start
            packet.stream = stream
            yield packet.pts * packet.time_base, 0, packet


def _sound_packets(source: Any, stream: Any, container: Container, name: str) -> Iterator[tuple[Fraction, int, Any]]:
    """Seconds, 1 and packet."""
    start_time, audio = Fraction(source.start_time or 0, pyav().time_base), source.streams.audio[0]
    packets: Iterable[Any] = source.demux(audio)
    if not container.can_hold(audio.codec_context.codec.canonical_name):
        packets = chain.from_iterable(map(stream.encode, chain(source.decode(audio), [None])))
    try:
        for packet in packets:
            if packet.dts is not None and packet.pts is not None:
                shift = round(start_time / packet.time_base)
                packet.pts, packet.dts = packet.pts - shift, packet.dts - shift
                packet.stream = stream
                yield packet.dts * packet.time_base, 1, packet
    except pyav().FFmpegError as error:
        raise ImageError(f"{name}: its sound is damaged ({error.strerror}); expected a whole clip") from None
