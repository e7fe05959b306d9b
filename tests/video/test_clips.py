"""Clips are opened with their frames upright, or refused in one sentence, in this process and in a limited one."""

from __future__ import annotations

import dataclasses
import random
import resource
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from fractions import Fraction
from functools import cache, partial
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from tests.support.clips import UNEVEN, hidden_clip, moving_frames, turn_clip, write_clip, write_sound
from tests.support.example import ROOT
from vitviz import ConfigError, ImageError
from vitviz.images.code_points import KEY, CodePoints
from vitviz.images.colours import conversion_of
from vitviz.images.image_facts import ImageFacts
from vitviz.video import isolated_clips
from vitviz.video.clip_facts import DEFAULT_LIMITS, TICKS_PER_SECOND, Clip, ClipFacts, ClipLimits, Frame
from vitviz.video.clips import CLIP_SUFFIXES, is_clip, open_video, read_frame
from vitviz.worker import Worker, shared_worker

pytestmark = [pytest.mark.process, pytest.mark.hostile]

Opener = Callable[..., AbstractContextManager[Clip]]
FRAMES = moving_frames(20, 96, 64)
SUFFIXES = tuple(each for each in CLIP_SUFFIXES if each not in (".m4v", ".3gp"))
# They say how long they are; streams just end.
FILES = tuple(each for each in SUFFIXES if each not in (".ts", ".mts", ".m2ts", ".flv"))


@pytest.fixture(scope="module")
def worker() -> Worker:
    """That of the app, which other tests may have started; to start one takes seconds."""
    return shared_worker()


@pytest.fixture(params=["here", "isolated"])
def opener(request: pytest.FixtureRequest, worker: Worker) -> Opener:
    """Opens a clip in this process, or in one with limits."""

    opened = partial(isolated_clips.open_video, worker) if request.param == "isolated" else open_video
    return lambda path, limits=DEFAULT_LIMITS, **reading: opened(path, path.name, limits, **reading)


def open_named(path: Path, limits: ClipLimits = DEFAULT_LIMITS, **reading: Any) -> AbstractContextManager[Clip]:
    """A clip of one's own."""
    return open_video(path, path.name, limits, **reading)


def frames_of(clip: Clip) -> list[Frame]:
    found: list[Frame] = []
    while frame := clip.read():
        found.append(frame)
    return found


def seconds_of(frames: list[Frame]) -> list[float]:
    return [each.ticks / TICKS_PER_SECOND for each in frames]


def refusal(opener: Opener, path: Path, limits: ClipLimits = DEFAULT_LIMITS) -> str:
    """The refusal of a clip: one sentence with its name."""
    with pytest.raises(ImageError) as raised, opener(path, limits) as clip:
        frames_of(clip)
    message = str(raised.value)
    assert message.startswith(f"{path.name}: ") and "\n" not in message and len(message) < 300
    return message


# Frames of clips.


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """Writes clips by content, "moving" or "noise", and by ending, each once."""
    folder = tmp_path_factory.mktemp("written")
    noise = np.random.default_rng(0).integers(0, 255, (40, 32, 48, 3), np.uint8)

    @cache
    def write(content: str, suffix: str) -> Path:
        return write_clip(folder / f"{content}{suffix}", frames=FRAMES if content == "moving" else list(noise))

    return write


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_frames_of_every_kind_of_clip_are_those_that_went_in(
    opener: Opener, written: Callable[[str, str], Path], suffix: str
) -> None:
    path = written("moving", suffix)
    assert is_clip(path)
    with opener(path) as clip:
        assert clip.facts == ClipFacts(96, 64, 25.0, clip.facts.frames, "") and 19 <= clip.facts.frames <= 22
        found = frames_of(clip)
    assert [each.index for each in found] == list(range(20))
    assert seconds_of(found) == pytest.approx([index / 25 for index in range(20)], abs=1e-3)
    for each, levels in zip(found, FRAMES, strict=True):
        assert np.abs(np.asarray(each.image, float) - levels).mean() < 12


def test_frames_keep_uneven_times_and_may_be_passed_over(opener: Opener, tmp_path: Path) -> None:
    path = write_clip(tmp_path / "clip.mkv", 30, times=UNEVEN)
    with opener(path) as clip:
        whole = frames_of(clip)
    assert seconds_of(whole) == pytest.approx([each / 1000 for each in UNEVEN[:30]], abs=1e-5)
    with opener(path) as clip:
        assert clip.skip(11) == 11
        rest = frames_of(clip)
        assert clip.read() is None and clip.skip(5) == 0
    assert [each.index for each in rest] == list(range(11, 30))
    for one, other in zip(whole[11:], rest, strict=True):
        assert one.ticks == other.ticks and np.array_equal(one.image, other.image)


# Two colours of a clip, in whose halves they are.
HALVES = ((200, 60, 40), (30, 160, 220))


def halves(
    opener: Opener, path: Path, rows: int, colours: tuple[int, int, int], matrix: int, color_profile: str = "apply"
) -> list[list[int]]:
    """The colours that a clip of :data:`HALVES` is opened with."""
    frame = np.repeat(np.array([HALVES], np.uint8), 32, 1).repeat(rows, 0)
    write_clip(path, frames=[frame] * 3, colours=colours, matrix=matrix)
    with opener(path, color_profile=color_profile) as clip:
        image = frames_of(clip)[1].image
    return [list(image.getpixel((column, rows // 2))) for column in (16, 48)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rows", "stated", "matrix"), [(64, 2, 5), (720, 2, 1), (64, 1, 1), (720, 6, 5), (64, 9, 9)], ids=str
)
def test_stored_colours_are_read_by_the_matrix_that_a_clip_states_or_its_size_tells(
    opener: Opener, tmp_path: Path, rows: int, stated: int, matrix: int
) -> None:
    found = halves(opener, tmp_path / "clip.mp4", rows, (2, 2, stated), matrix)
    assert np.abs(np.subtract(found, HALVES)).max() <= 8


@pytest.mark.parametrize(("primaries", "transfer"), [(12, 13), (5, 6), (9, 14), (9, 18), (9, 16)])
def test_colours_are_converted_to_srgb_as_those_of_a_picture(
    opener: Opener, tmp_path: Path, primaries: int, transfer: int
) -> None:
    picture = Image.fromarray(np.array([HALVES], np.uint8))
    picture.info[KEY] = CodePoints(primaries, transfer)
    conversion, sentence = conversion_of(picture)
    assert conversion is not None and "converted to sRGB" in sentence
    expected = np.asarray(conversion(picture)).astype(int)[0]
    path = tmp_path / "clip.mp4"
    found = halves(opener, path, 64, (primaries, transfer, 9), 9)
    assert np.abs(found - expected).max() <= 16 and np.abs(expected - HALVES).max() > 20
    assert ImageFacts.of(read_frame(path)).assumptions == (sentence,)
    assert np.abs(np.subtract(halves(opener, path, 64, (primaries, transfer, 9), 9, "ignore"), HALVES)).max() <= 8


def test_a_clip_stands_upright_and_is_mirrored_as_it_says(opener: Opener, tmp_path: Path) -> None:
    path = write_clip(tmp_path / "clip.mp4", 3)
    plain = np.asarray(read_frame(path, 1))
    for a, b, c, d in ((1, 0, 0, -1), (0, 1, 1, 0), (0, 1, -1, 0), *((-1, 0, 0, y) for y in (1, -1)), (0, -1, 1, 0)):
        with opener(turn_clip(path, a, b, c, d)) as clip:
            facts, found = clip.facts, frames_of(clip)[1].image
        # x' = ax + cy, y' = bx + dy
        expected = (plain if a else plain.swapaxes(0, 1))[:: b + d, :: a + c]
        assert (facts.height, facts.width) == expected.shape[:2] and np.array_equal(found, expected)


@pytest.mark.parametrize("codec", ["libvpx", "libvpx-vp9"])
def test_what_is_transparent_is_white(opener: Opener, tmp_path: Path, codec: str) -> None:
    frame = np.dstack([moving_frames(1)[0], np.full((32, 48), 255, np.uint8)])
    frame[:, :24] = 0
    with opener(write_clip(tmp_path / "clip.webm", codec=codec, frames=[frame] * 2)) as clip:
        found = np.asarray(frames_of(clip)[1].image, float)
    assert found[:, :20].min() > 250 and np.abs(found - frame[..., :3])[:, 28:].mean() < 12


def test_oblong_pixels_become_square(opener: Opener, tmp_path: Path) -> None:
    for aspect, size in ((Fraction(4, 3), (48, 24)), (Fraction(1, 2), (24, 32))):
        path = write_clip(tmp_path / "clip.mp4", 3, aspect=aspect)
        with opener(path) as clip:
            assert (clip.facts.width, clip.facts.height) == frames_of(clip)[0].image.size == size


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".webm", ".ts", ".flv"])
@pytest.mark.parametrize("start", [300, 5_000_000])
def test_a_clip_that_begins_later_is_whole(opener: Opener, tmp_path: Path, suffix: str, start: int) -> None:
    times = [start + each for each in (0, 100, 140, 300, 400, 1000)]
    path = write_clip(tmp_path / f"clip{suffix}", 6, rate=10, times=times)
    with opener(path) as clip:
        assert seconds_of(frames_of(clip)) == pytest.approx([0, 0.1, 0.14, 0.3, 0.4, 1.0], abs=1e-3)


def test_frames_of_one_time_follow_each_other_at_once(opener: Opener, tmp_path: Path) -> None:
    path = write_clip(tmp_path / "clip.mkv", 6, codec="libvpx", times=[0, 100, 100, 100, 200, 300])
    with opener(path) as clip:
        found = [each.ticks for each in frames_of(clip)]
    assert found == [0, 9000, 9001, 9002, 18000, 27000]


def test_avi_with_pictures_out_of_order_has_its_rate(opener: Opener, tmp_path: Path) -> None:
    path = write_clip(tmp_path / "clip.avi", frames=FRAMES, codec="libx264")
    with av.open(str(path)) as container:
        # FFmpeg has the times at which they are decoded.
        times = [frame.pts for frame in container.decode(video=0)]
    assert times != sorted(times)
    with opener(path) as clip:
        found = frames_of(clip)
    assert [each.ticks for each in found] == [3600 * index for index in range(20)]
    assert all(np.abs(np.asarray(each.image, float) - FRAMES[each.index]).mean() < 12 for each in found)


def test_a_last_frame_that_stays_long_is_no_missing_end(opener: Opener, tmp_path: Path) -> None:
    path = write_clip(tmp_path / "clip.avi", 6, rate=10, times=[0, 500, 1000, 1500, 2000, 2500])
    with opener(path) as clip:
        assert len(frames_of(clip)) == 6


def test_a_part_of_a_stream_begins_with_its_first_whole_picture(opener: Opener, tmp_path: Path) -> None:
    path = tmp_path / "clip.ts"
    with av.open(str(path), "w") as file:
        stream = file.add_stream("libx264", rate=25, options={"g": "8", "bf": "2"})
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        for levels in FRAMES:
            file.mux(stream.encode(av.VideoFrame.from_ndarray(levels, "rgb24")))
        file.mux(stream.encode(None))
    with av.open(str(path)) as file:
        place = [packet.pos for packet in file.demux(video=0)][3]
    path.write_bytes(path.read_bytes()[place:])
    with opener(path) as clip:
        found = frames_of(clip)
    for each, levels in zip(found, FRAMES[8:], strict=True):
        assert np.abs(np.asarray(each.image, float) - levels).mean() < 4


@pytest.mark.parametrize("suffix", [".gif", ".apng", ".mpg", ".wmv"])
def test_own_clips_may_be_of_further_kinds(worker: Worker, tmp_path: Path, suffix: str) -> None:
    path = write_clip(tmp_path / f"clip{suffix}", frames=FRAMES)
    with open_video(path) as clip:
        found = frames_of(clip)
    assert seconds_of(found) == pytest.approx([index / 25 for index in range(20)], abs=1e-3)
    assert all(np.abs(np.asarray(each.image, float) - FRAMES[each.index]).mean() < 24 for each in found)
    with (
        pytest.raises(ImageError, match=f"clip{suffix}: a kind of file that is not read .*ffmpeg -i clip{suffix} out"),
        isolated_clips.open_video(worker, path, path.name),
    ):
        pass


@pytest.mark.parametrize("suffix", [".gif", ".png", ".avif"])
def test_an_animated_picture_is_read_whole_and_on_white(tmp_path: Path, suffix: str) -> None:
    pictures = [Image.new("RGBA", (64, 64), (40 * index, 90, 60, 255)) for index in range(4)]
    for picture in pictures:
        picture.paste((0, 0, 0, 0 if suffix != ".avif" else 255), (0, 0, 32, 64))
    first, *others = (picture.convert("RGB") if suffix == ".avif" else picture for picture in pictures)
    path = tmp_path / f"loop{suffix}"
    first.save(path, save_all=True, append_images=others, duration=[100, 100, 250, 700], disposal=2)
    with open_video(path) as clip:
        found = frames_of(clip)
    assert seconds_of(found) == pytest.approx([0, 0.1, 0.2, 0.45]) and found[-1].duration == 63_000
    for index, each in enumerate(found):
        assert np.abs(np.subtract(each.image.getpixel((48, 32)), (40 * index, 90, 60))).max() < 12
        assert np.abs(np.subtract(each.image.getpixel((8, 32)), 255 if suffix != ".avif" else 0)).max() < 12
    path.write_bytes(path.read_bytes()[:-100])
    assert "; expected a whole clip" in refusal(open_named, path)


def test_what_is_not_read_is_refused_with_what_converts_it(tmp_path: Path) -> None:
    first, *others = [Image.new("RGBA", (64, 64), (40 * index, 90, 60, 99)) for index in range(4)]
    for name, converted in (
        ("a loop.webp", "; to convert it: magick 'a loop.webp' out.gif"),
        ("loop.avif", "expected an animated PNG: PIL.Image.open('loop.avif').save('out.png', save_all=True)"),
    ):
        first.save(tmp_path / name, save_all=True, append_images=others)
        assert refusal(open_named, tmp_path / name).endswith(converted)


def test_a_missing_frame_is_refused(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "clip.mp4", 3)
    with pytest.raises(ImageError, match=r"no frame 3; expected 0 to 2"):
        read_frame(path, 3)
    with pytest.raises(ConfigError, match="index = -1"):
        read_frame(path, -1)


# Clips that are refused.


@pytest.mark.parametrize("suffix", FILES)
@pytest.mark.parametrize("share", [0.02, 0.6])
def test_a_clip_that_is_cut_short_is_refused(
    opener: Opener, written: Callable[[str, str], Path], tmp_path: Path, suffix: str, share: float
) -> None:
    path, content = tmp_path / f"clip{suffix}", written("noise", suffix).read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    assert "expected a" in refusal(opener, path)


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(4, 8))])
def test_a_damaged_clip_is_refused_or_read_to_its_end(opener: Opener, tmp_path: Path, seed: int) -> None:
    path, rng = tmp_path / "clip.mp4", random.Random(seed)
    write_clip(path, 40, options={"movflags": "faststart"} if seed % 2 else None)
    content = bytearray(path.read_bytes())
    for _ in range(30):
        content[rng.randrange(len(content))] = rng.randrange(256)
    path.write_bytes(content)
    try:
        with opener(path) as clip:
            assert len(frames_of(clip)) <= 40
    except ImageError as error:
        assert str(error).startswith("clip.mp4: ") and "\n" not in str(error)


def test_a_file_that_is_no_clip_is_one_sentence(opener: Opener, tmp_path: Path) -> None:
    write_sound(tmp_path / "sound.mp4")
    (tmp_path / "empty.mp4").write_bytes(b"")
    (tmp_path / "text.mp4").write_text("no clip")
    Image.new("RGB", (9, 9)).save(tmp_path / "picture.mp4", "PNG")
    (tmp_path / "folder.mp4").mkdir()
    turn_clip(write_clip(tmp_path / "askew.mp4", 3), 0.7, 0.7, -0.7, 0.7)
    for name in ("none.mkv", "none.mov"):
        with av.open(str(tmp_path / name), "w") as written:
            stream = written.add_stream("libx264", rate=25)
            stream.width, stream.height, stream.pix_fmt = 48, 32, "yuv420p"
            written.start_encoding()
    for name, words in (
        ("sound.mp4", "only audio in it, no moving pictures"),
        ("empty.mp4", "no clip, or one that is cut short"),
        ("text.mp4", "no clip, or one that is cut short"),
        ("picture.mp4", "a kind of file that is not read"),
        ("folder.mp4", "a folder"),
        ("missing.mp4", "no such file"),
        ("askew.mp4", "turned by 315 degrees; expected a multiple of 90"),
        ("none.mkv", "(End of file)"),
        ("none.mov", "nothing in it, no moving pictures"),
    ):
        assert words in refusal(opener, tmp_path / name), name
    assert "a pipe, a socket or a device" in refusal(opener, Path("/dev/zero"))


def test_a_list_of_other_files_opens_none(opener: Opener, tmp_path: Path) -> None:
    """FFmpeg would open files that list other files and addresses; vitviz does not."""
    write_clip(tmp_path / "own.mp4", 3)
    lists = {
        "concat.mp4": f"ffconcat version 1.0\nfile {tmp_path / 'own.mp4'}\n",
        "hls.mp4": "#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nown.mp4\n#EXT-X-ENDLIST\n",
        "pattern.mp4": "own%d.mp4",
        "sdp.mp4": "v=0\no=- 0 0 IN IP4 127.0.0.1\nm=video 9 RTP/AVP 96\na=rtpmap:96 H264/90000\n",
    }
    for name, text in lists.items():
        (tmp_path / name).write_text(text)
        message = refusal(opener, tmp_path / name)
        assert "a kind of file that is not read" in message or "no clip, or one that is cut short" in message


def test_a_clip_beyond_its_limits_is_refused(opener: Opener, tmp_path: Path) -> None:
    path = write_clip(tmp_path / "clip.mp4", 20)
    for limits, words in (
        (ClipLimits(pixels=1535), "frames of 48×32 pixels; at most 1,535 pixels are taken"),
        (ClipLimits(frames=19), "20 frames; at most 19 are taken"),
        (ClipLimits(nbytes=100), "bytes; at most 100 are taken"),
    ):
        assert words in refusal(opener, path, limits)
    with opener(path, ClipLimits(1536, 10**6, 20, 0.81)) as clip:
        assert len(frames_of(clip)) == 20 and not clip.is_cut
    # A longer one is cut, also if that leaves no more frames than are taken.
    with opener(path, ClipLimits(frames=10, seconds=0.4)) as clip:
        assert clip.facts.frames == 10 and clip.skip(99) == 10 and clip.is_cut
    # A header that says less than there is.
    short = write_clip(tmp_path / "short.avi", 20)
    content = short.read_bytes()
    for mark, at in ((b"avih", 24), (b"strh", 40)):
        start = content.index(mark) + at
        content = content[:start] + struct.pack("<I", 3) + content[start + 4 :]
    short.write_bytes(content)
    assert "frame" in refusal(opener, short, ClipLimits(frames=10))
    with opener(short, ClipLimits(seconds=0.4)) as clip:
        assert clip.skip(99) == 10 and clip.is_cut


def test_frames_of_changing_size_are_refused(opener: Opener, tmp_path: Path) -> None:
    path = write_clip(tmp_path / "clip.avi", 6, (64, 64), codec="mjpeg")
    # The header of the fourth frame.
    content, start = bytearray(path.read_bytes()), 0
    for _ in range(4):
        start = content.index(b"\xff\xc0\x00\x11\x08", start) + 5
    content[start : start + 4] = struct.pack(">HH", 48, 64)
    path.write_bytes(content)
    assert "frame 3" in refusal(opener, path)


def test_times_that_go_back_are_refused(opener: Opener, tmp_path: Path) -> None:
    path = write_clip(tmp_path / "clip.mkv", 6, codec="mjpeg")
    content = bytearray(path.read_bytes())
    # A block of the first track: its number, and its time in two bytes; the sixth at the second's.
    places = [at for at in range(len(content) - 3) if content[at] == 0x81 and content[at + 3] == 0x80]
    times = [struct.unpack(">h", content[at + 1 : at + 3])[0] for at in places]
    last = places[times.index(200)]
    content[last + 1 : last + 3] = struct.pack(">h", 40)
    path.write_bytes(content)
    assert "expected a time after that of the frame before" in refusal(opener, path)


# Time and memory.

PROGRAM = """
import resource, sys
from pathlib import Path
from vitviz.errors.kinds import ImageError
from vitviz.video.clips import open_video
first = None
for name in sys.argv[1:]:
    before = resource.getrusage(resource.RUSAGE_SELF)
    try:
        with open_video(Path(name)) as clip:
            count = 0
            while clip.read():
                count += 1
    except ImageError as error:
        count = str(error)
    after = resource.getrusage(resource.RUSAGE_SELF)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(after.ru_maxrss - before.ru_maxrss, seconds, count)
"""


def growth(*paths: Path) -> list[tuple[int, float, str]]:
    """One process reads the clips in turn. For each: KiB above the previous peak, seconds, and the result."""
    scale = 1024 if sys.platform == "darwin" else 1
    command = [sys.executable, "-c", PROGRAM, *map(str, paths)]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    fields = [line.split(" ", 2) for line in lines]
    return [(int(memory) // scale, float(seconds), result) for memory, seconds, result in fields]


def huge(path: Path, width: int, height: int, codec: str) -> Path:
    """A clip whose headers claim this size, in the container and in the frames."""
    write_clip(path, 4, (64, 64), codec=codec)
    content, start = bytearray(path.read_bytes()), 0
    while (start := content.find(b"\xff\xc0\x00\x11\x08", start)) >= 0:
        content[start + 5 : start + 9] = struct.pack(">HH", height, width)
        start += 5
    header = content.index(b"strf") + 12
    content[header : header + 8] = struct.pack("<ii", width, height)
    path.write_bytes(content)
    return path


@pytest.fixture(scope="module")
def growths(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, float, str]]:
    """The growth for three clips that claim to be huge, for one of 16 frames twice, and for one of 160."""
    folder = tmp_path_factory.mktemp("growths")
    small = write_clip(folder / "small.avi", 4, (64, 64), codec="mjpeg")
    sizes = [("rawvideo", 10_000), ("rawvideo", 30_000), ("mjpeg", 30_000)]
    clips = [huge(folder / f"{codec}{side}.avi", side, side, codec) for codec, side in sizes]
    short, long = (
        write_clip(folder / f"{count}.mkv", frames=moving_frames(2, 320, 240) * (count // 2)) for count in (16, 160)
    )
    return growth(small, *clips, short, short, long)[1:]


def test_a_clip_that_claims_to_be_huge_takes_no_memory(growths: list[tuple[int, float, str]]) -> None:
    found = growths[:3]
    assert "frames of 10000×10000 pixels; at most 9,437,184 pixels are taken" in found[0][2]
    # FFmpeg itself refuses these.
    for _, _, words in found[1:]:
        assert "one far beyond what is taken; at most 9,437,184 pixels" in words
    for memory, seconds, _ in found:
        assert memory < 64 * 1024 and seconds < 2


def test_time_grows_with_the_frames_and_memory_does_not(growths: list[tuple[int, float, str]]) -> None:
    _, (_, short, few), (memory, long, many) = growths[3:]
    assert (few, many) == ("16", "160")
    # Ten times as many frames, which take a hundred times as long if it grows by the square; ticks are of 10 ms.
    assert long < 40 * max(short, 0.01) and memory < 16 * 1024


def test_a_clip_that_takes_too_long_is_ended(worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_clip(tmp_path / "clip.mp4", 24, (960, 720))
    # short: the kernel looks at the timer when its clock ticks, and one of a hundred children meets a tick.
    limits = dataclasses.replace(isolated_clips.CLIP_LIMITS, cpu_seconds=0.001)
    monkeypatch.setattr(isolated_clips, "CLIP_LIMITS", limits)
    started = time.process_time() + sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    with pytest.raises(ImageError, match=r"clip\.mp4: opening it takes more than 0\.001 seconds of a processor"):
        for _ in range(100):
            with isolated_clips.open_video(worker, path, path.name) as clip:
                clip.skip(16)
    assert time.process_time() + sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]) - started < 10


def test_an_invalid_answer_of_a_child_is_not_believed(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_clip(tmp_path / "clip.mp4", 3)
    with isolated_clips.open_video(worker, path, path.name) as clip:
        for *times, size in (("0", 9, 4608), (-5, 9, 4608), (0, -1, 4608), (0, None, 4608), (0, 9, 4607)):
            answer = dict(zip(("ticks", "duration"), times, strict=True))
            monkeypatch.setattr(clip._child, "part", lambda *_, part=(answer, bytes(size)): part)
            with pytest.raises(ImageError, match="gave no answer; expected a whole file"):
                clip.read()
        monkeypatch.setattr(clip._child, "part", lambda _: ({"skipped": 3}, b""))
        with pytest.raises(ImageError, match="gave no answer"):
            clip.skip(1)
    for facts in ({}, {"width": 1}, {"width": 10**5, "height": 10**5, "rate": 1.0, "frames": 1, "sound": ""}):
        monkeypatch.setattr(clip._child, "part", lambda *_, facts=facts: (facts, b""))
        with pytest.raises(ImageError, match="gave no answer"):
            isolated_clips.IsolatedClip(worker, clip._child, path, path.name, DEFAULT_LIMITS)


def test_without_the_extra_the_error_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_clip(tmp_path / "clip.mp4", 3)
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ConfigError, match=r"a clip needs av: pip install 'av>=17'"):
        open_video(path)


@pytest.mark.parametrize(
    ("hidden", "shown", "is_read"), [(1, 300, True), (4, 20, True), (4, 200, False), (300, 2, False)]
)
def test_a_clip_of_hidden_frames_is_refused_before_they_take_time(
    opener: Opener, tmp_path: Path, hidden: int, shown: int, is_read: bool
) -> None:
    path = hidden_clip(tmp_path / "clip.webm", hidden, shown)
    if not is_read:
        assert "257 packets without a frame to show" in refusal(opener, path)
        return
    with opener(path) as clip:
        assert len(frames_of(clip)) == shown
