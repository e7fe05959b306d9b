"""A video of a clip's maps: every frame is what the library says of it, on one scale, whatever ends a run."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from PIL import Image

import vitviz
from tests.support.clips import UNEVEN, read_frames, sound_packets, write_clip
from tests.support.videos import COUNT, read_numbers, video_request
from vitviz import Model, Style, TokenMap
from vitviz.cli.command import main
from vitviz.images.callable_preprocessing import CallablePreprocessing
from vitviz.video import render
from vitviz.video.clip_facts import Frame
from vitviz.video.clips import read_frame
from vitviz.video.render import ClipMaps, FramePainter, render_video
from vitviz.video.writing import CONTAINERS, add_sound, encode, sound_files
from vitviz.visualization.captioned import caption_lines
from vitviz.visualization.scales import fit

pytestmark = pytest.mark.slow


def token_map(description: str, value: float = 1.0) -> TokenMap:
    return TokenMap(torch.full((1, 1), value), {}, "attention weight", description, (0.0, 1.0))


# The numbers.


@pytest.mark.parametrize(
    ("method", "parameters", "changes"),
    [
        ("rollout", {}, {}),
        ("attention", {"layer": 1, "head": "max", "query": (1, 2)}, {"fit": "native"}),
        ("relevance", {}, {"smoothing_seconds": 0.1}),
        ("relevance", {"target": "class 2"}, {"resolution": 24}),
    ],
)
def test_every_frame_s_map_is_what_the_library_says_of_that_frame(
    model: Model, tmp_path: Path, method: str, parameters: dict[str, Any], changes: dict[str, Any]
) -> None:
    clip = write_clip(tmp_path / "clip.mp4", COUNT, times=UNEVEN)
    request = video_request(model, method, parameters=parameters, **changes)
    summary = render_video(request, clip, tmp_path / "out.mp4", numbers=tmp_path / "maps.npz", batch_size=4)
    assert (summary.frames, summary.sound) == (COUNT, "")
    values, seconds = read_numbers(tmp_path / "maps.npz")
    np.testing.assert_allclose(seconds, np.array(UNEVEN[:COUNT]) / 1000, atol=1e-4)
    for index, found in enumerate(values):
        analysis = vitviz.analyze(
            read_frame(clip, index), model, changes.get("fit"), resolution=changes.get("resolution")
        )
        np.testing.assert_allclose(found, analysis.map(method, **parameters).numpy(), rtol=0, atol=1e-5)
    assert len(np.unique(values.round(6).reshape(COUNT, -1), axis=0)) > COUNT // 2


def test_film_hands_all_that_it_is_told_to_the_video(
    model: Model, clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("vitviz.video.film.render_video", lambda *given, **options: (given, options))
    settings: dict[str, Any] = {"fit": "native", "smoothing_seconds": 0.1, "longest_side": 400, "caption": False}
    run: dict[str, Any] = {"batch_size": 4, "max_bytes": 10**9, "report": print}
    numbers = {"numbers": "~/maps.npz"}
    (request, *paths), options = vitviz.film(  # type: ignore[misc]
        str(clip), model, "~/maps.mp4", "rollout", {"discard_ratio": 0.5}, style="viridis", **settings, **run, **numbers
    )
    asked = video_request(model, parameters={"discard_ratio": 0.5}, style=Style("viridis"), **settings)
    assert request == asked and paths == [clip, tmp_path / "maps.mp4"]
    assert options == {**run, "numbers": tmp_path / "maps.npz"}
    with pytest.raises(vitviz.ConfigError, match=r"expected the source first: film\(source, model\)"):
        vitviz.film(model, str(clip), "maps.mp4")  # type: ignore[arg-type]
    with pytest.raises(vitviz.ConfigError, match="b'0101' found; expected the path of a file or folder"):
        vitviz.film(b"0101", model, "maps.mp4")  # type: ignore[arg-type]


def test_frames_are_drawn_on_one_scale_at_their_own_times(model: Model, tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "clip.mkv", COUNT, (360, 200), times=UNEVEN)
    style = Style("viridis", 0.8, scale="robust")
    render_video(video_request(model, style=style), clip, tmp_path / "out.mp4", numbers=tmp_path / "maps.npz")
    values, _ = read_numbers(tmp_path / "maps.npz")
    scale = fit("robust", [values])
    drawn = read_frames(tmp_path / "out.mp4")
    assert [float(at) for at, _ in drawn] == pytest.approx([each / 1000 for each in UNEVEN[:COUNT]], abs=1e-4)
    for index, (_, picture) in enumerate(drawn):
        heatmap = vitviz.analyze(read_frame(clip, index), model).rollout()
        expected = np.asarray(heatmap.overlay(Style("viridis", 0.8, scale=scale)), float)
        # The codec halves the resolution of colours, so borders of patches are left out by the median.
        assert picture.shape[1] == 360 and picture.shape[0] > 200
        assert np.median(np.abs(picture[:200] - expected)) <= 3
    own = vitviz.analyze(read_frame(clip, 0), model).rollout().overlay(Style("viridis", 0.8, scale="robust"))
    assert np.median(np.abs(drawn[0][1][:200] - np.asarray(own, float))) > 3


def test_a_frame_is_shown_as_a_function_makes_it_for_the_model(model: Model, clip: Path, tmp_path: Path) -> None:
    part = CallablePreprocessing(lambda image: torch.from_numpy(np.array(image)[:16, 8:24]).permute(2, 0, 1) / 255)
    own = replace(model, preprocessing=part)
    render_video(video_request(own, style=Style(opacity=0), caption=False), clip, tmp_path / "out.mp4")
    expected = vitviz.analyze(read_frame(clip, 1), own).rollout().resized(320).image
    found = read_frames(tmp_path / "out.mp4")[1][1]
    assert found.shape[1::-1] == expected.size and np.median(np.abs(found - np.asarray(expected, float))) <= 3


def test_a_clip_of_one_frame_is_a_video_of_one(model: Model, tmp_path: Path) -> None:
    clip = tmp_path / "clip.gif"
    Image.new("RGB", (48, 32)).save(clip, save_all=True, duration=700)
    assert render_video(video_request(model), clip, tmp_path / "out.mp4", numbers=tmp_path / "maps.npz").frames == 1
    assert len(read_frames(tmp_path / "out.mp4")) == len(read_numbers(tmp_path / "maps.npz")[0]) == 1
    with av.open(str(tmp_path / "out.mp4")) as written:
        assert written.duration == 700_000


# The caption.


def test_the_caption_says_the_scale_and_the_smoothing(
    model: Model, clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = render_video(video_request(model), clip, tmp_path / "plain.mp4", numbers=tmp_path / "maps.npz").caption
    values, _ = read_numbers(tmp_path / "maps.npz")
    first = vitviz.analyze(read_frame(clip), model).rollout().description
    scale = fit(None, [values])
    assert plain.startswith(f"{first}. One scale for all {COUNT} frames")
    assert scale.caption(values) in plain and "averaged" not in plain
    smooth = video_request(model, smoothing_seconds=0.08, style=Style(scale="linear"))
    drawn: list[np.ndarray] = []
    monkeypatch.setattr(
        render.Heatmap, "overlay", lambda self, *_: (drawn.append(self.numpy()), Image.new("RGB", (320, 214)))[1]
    )
    caption = render_video(smooth, clip, tmp_path / "smooth.mp4").caption
    assert caption == (
        f"{first}. One scale for all {COUNT} frames, linear. Maps averaged over time by a Gaussian of 0.08 s."
    )
    times = np.arange(COUNT) / 25
    for index, found in enumerate(drawn):
        weights = np.exp(-0.5 * ((times - times[index]) / 0.08) ** 2) * (np.abs(times - times[index]) < 0.24 + 1e-9)
        expected = np.tensordot(weights / weights.sum(), values, 1)
        np.testing.assert_allclose(found, expected, atol=1e-6)


COLOURS = [
    (0, 0, 0),
    (255, 255, 255),
    (255, 0, 0),
    (0, 255, 0),
    (0, 0, 255),
    (255, 255, 0),
    (255, 0, 255),
    (9, 200, 90),
]


@pytest.fixture
def coloured(model: Model, tmp_path: Path) -> Path:
    """Frames of several classes."""
    plain = [np.full((32, 48, 3), each, np.uint8) for each in COLOURS]
    # Between their classes.
    logits = [vitviz.analyze(each, model).logits for each in plain]
    model.network.classifier.bias.data -= torch.stack(logits).mean(0)
    return write_clip(tmp_path / "coloured.mp4", frames=plain)


def test_the_caption_of_a_clip_says_how_many_frames_each_class_has(
    model: Model, coloured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = tmp_path / "maps.npz"
    said = render_video(video_request(model, "relevance"), coloured, tmp_path / "out.mp4", numbers=numbers).caption
    analyses = [vitviz.analyze(read_frame(coloured, index), model) for index in range(len(COLOURS))]
    assert np.load(numbers)["descriptions"].tolist() == [each.map("relevance").description for each in analyses]
    # However long each caption is.
    assert len({picture.shape for _, picture in read_frames(tmp_path / "out.mp4")}) == 1
    counts = Counter(each.predictions(1)[0].label for each in analyses)
    assert len(counts) > 1
    classes = ", ".join(f"{label} in {count}" for label, count in counts.most_common())
    assert said.startswith(f"{analyses[0].map('relevance').description} (frame 0; each is about its own most ")
    assert f"most probable class: {classes} of {len(COLOURS)} frames). One scale" in said
    # As many as there is room for, and how many more.
    monkeypatch.setattr(render, "MAX_CLASSES", 1)
    label, count = counts.most_common(1)[0]
    said = render_video(video_request(model, "relevance"), coloured, tmp_path / "out.mp4").caption
    assert f"class: {label} in {count} and {len(counts) - 1} more of {len(COLOURS)} frames)." in said
    # About one class, or about none, there is nothing to tell apart.
    one = render_video(
        video_request(model, "relevance", parameters={"target": "class 2"}), coloured, tmp_path / "out.mp4"
    )
    assert one.caption.startswith("Relevance for class 2") and "frame 0" not in one.caption


def test_maps_about_different_classes_are_never_averaged(
    model: Model, coloured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[np.ndarray] = []
    monkeypatch.setattr(
        render.Heatmap, "overlay", lambda self, *_: (drawn.append(self.numpy()), Image.new("RGB", (320, 214)))[1]
    )
    smooth = video_request(model, "relevance", smoothing_seconds=1.0, style=Style(scale="linear"))
    said = render_video(smooth, coloured, tmp_path / "out.mp4", numbers=tmp_path / "maps.npz").caption
    assert said.endswith("Maps averaged over time by a Gaussian of 1 s, within the frames of one class.")
    values, seconds = read_numbers(tmp_path / "maps.npz")
    analyses = [vitviz.analyze(read_frame(coloured, index), model) for index in range(len(COLOURS))]
    labels = np.array([each.predictions(1)[0].label for each in analyses])
    for index, found in enumerate(drawn):
        weights = np.exp(-0.5 * (seconds - seconds[index]) ** 2) * (labels == labels[index])
        np.testing.assert_allclose(found, np.tensordot(weights / weights.sum(), values, 1), atol=1e-6)


def test_tokens_that_differ_between_frames_are_said_and_averaged(model: Model, clip: Path, tmp_path: Path) -> None:
    maps_of = ClipMaps.of([(0, "", token_map("without 1 sink")), (9000, "", token_map("without 2 sinks", 3.0))])
    means = maps_of.smoothed(10.0).values.ravel()
    np.testing.assert_allclose(means, [2.0, 2.0], atol=0.01)
    said = FramePainter(video_request(model), maps_of, video_request(model).to_batch_request().encoder()).clip_caption()
    assert said.startswith("without 1 sink (frame 0; the captions of the frames differ). One scale for all 2 frames")


def test_a_frame_is_as_large_as_asked_for(model: Model, tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "clip.mp4", 2, (642, 402))
    for changes, size in (
        ({"caption": False}, (642, 402)),
        ({"caption": False, "longest_side": 321}, (322, 202)),
        ({"caption": False, "longest_side": 64}, (64, 40)),
    ):
        render_video(video_request(model, **changes), clip, tmp_path / "out.mp4")
        assert read_frames(tmp_path / "out.mp4")[0][1].shape[1::-1] == size
    render_video(video_request(model, longest_side=64), clip, tmp_path / "out.mp4")
    narrow = read_frames(tmp_path / "out.mp4")[0][1]
    assert narrow.shape[1] == render.MIN_PICTURE_SIDE and narrow.shape[0] % 2 == 0
    # White beside the picture, and letters below it.
    assert narrow[:40, :120].min() > 235 and narrow[60:].min() < 120
    assert max(map(len, caption_lines("word " * 60, 320))) <= 44


# The sound.


def test_sound_is_kept_packet_by_packet(model: Model, clip: Path, tmp_path: Path) -> None:
    for name in ("out.mp4", "out.mkv"):
        summary = render_video(video_request(model), clip, tmp_path / name)
        assert summary.sound == "aac, as it was"
        before, after = sound_packets(clip), sound_packets(tmp_path / name)
        assert [content for content, _ in before] == [content for content, _ in after]
        # Matroska begins at zero, and so later, with the sound that players leave out.
        late = read_frames(tmp_path / name)[0][0] - read_frames(clip)[0][0]
        apart = [abs(float(other - one - late)) for (_, one), (_, other) in zip(before, after, strict=True)]
        # Matroska counts milliseconds.
        assert max(apart) <= (0 if name == "out.mp4" else 0.001)


@pytest.mark.parametrize(("suffix", "rate"), [("mov", 44_100), ("mkv", 192_000)])
def test_sound_that_a_container_cannot_hold_is_encoded_and_said(
    model: Model, tmp_path: Path, suffix: str, rate: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.support.clips.SOUND_RATE", rate)
    clip = write_clip(tmp_path / f"clip.{suffix}", 25, sound="pcm_s16le")
    summary = render_video(video_request(model), clip, tmp_path / "out.mp4")
    assert summary.sound == "pcm_s16le, encoded as aac for .mp4"
    times = [float(at) for _, at in sound_packets(tmp_path / "out.mp4")]
    assert times == sorted(times) and 0.9 < times[-1] < 1.1
    assert render_video(video_request(model), clip, tmp_path / "out.mkv").sound == "pcm_s16le, as it was"
    contents = [b"".join(each for each, _ in sound_packets(path)) for path in (clip, tmp_path / "out.mkv")]
    assert contents[0] == contents[1]
    telephone = write_clip(tmp_path / "telephone.mov", sound="pcm_alaw")
    assert "encoded as aac" in render_video(video_request(model), telephone, tmp_path / "out.mkv").sound
    monkeypatch.setattr("tests.support.clips.SOUND_RATE", 8000)
    voice = write_clip(tmp_path / "voice.avi", sound="libmp3lame")
    assert render_video(video_request(model), voice, tmp_path / "out.mp4").sound == "mp3, as it was"


def test_a_video_is_whole_on_the_disk_before_its_files_are_closed(clip: Path, tmp_path: Path) -> None:
    pictures, output = tmp_path / "pictures.mp4", tmp_path / "out.mp4"
    image = Image.new("RGB", (16, 16))
    start = encode(pictures, [(Frame(index, 1000 * index, image), image) for index in range(COUNT)], 10.0)
    with sound_files(pictures, clip, output) as files:
        add_sound(files, start, CONTAINERS[".mp4"], clip.name)
        assert len(read_frames(output)) == COUNT and len(sound_packets(output)) > 1


def test_the_command_says_what_was_made(
    model: Model, clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vitviz.save_checkpoint(tmp_path / "small.safetensors", model)
    output, numbers = tmp_path / "out.mp4", tmp_path / "maps.npz"
    arguments = ["--checkpoint", str(tmp_path / "small.safetensors"), "--map", "relevance:target=class 2"]
    arguments += ["--numbers", str(numbers), "--smoothing-seconds", "0.1", "--scale", "linear", "--longest-side", "400"]
    assert main(["video", str(clip), str(output), *arguments]) == 0
    said = capsys.readouterr().out
    assert "class 2" in said and "Gaussian of 0.1 s" in said and f"written to {output}\n" in said
    assert f"{COUNT} frames, " in said and "sound: aac, as it was" in said and f"numbers: {numbers}" in said
    expected = vitviz.analyze(read_frame(clip, 7), model).map("relevance", target="class 2")
    np.testing.assert_allclose(read_numbers(numbers)[0][7], expected.numpy(), atol=1e-5)
    assert main(["video", str(tmp_path / "no.mp4"), str(output), *arguments]) == 2
    assert "no.mp4: no such file" in capsys.readouterr().err


def test_the_command_says_what_the_colours_of_a_clip_were_converted_from(
    model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vitviz.save_checkpoint(tmp_path / "small.safetensors", model)
    clip = write_clip(tmp_path / "clip.mp4", 3, colours=(9, 14, 9), matrix=9)
    [sentence] = vitviz.analyze(read_frame(clip), model).prepared.assumptions
    arguments = ["video", str(clip), str(tmp_path / "out.mp4"), "--checkpoint", str(tmp_path / "small.safetensors")]
    assert main(arguments) == 0
    assert "converted to sRGB" in sentence
    assert capsys.readouterr().out.splitlines().count(f"{clip}: assumed: {sentence}") == 1
