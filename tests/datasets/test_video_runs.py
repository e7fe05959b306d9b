"""What ends the making of a video leaves none, and the next run goes on; what cannot be made is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vitviz
from tests.support.clips import UNEVEN, read_frames, write_clip
from tests.support.videos import COUNT, video_request
from vitviz import ConfigError, ImageError, MethodError, Model, QueryError, Style, VitvizError
from vitviz.cli.command import main
from vitviz.datasets.video import VideoSummary, maps, render, render_video
from vitviz.datasets.video.render import COMPUTING, DRAWING, run_folder
from vitviz.images.clips import read_frame
from vitviz.progress import Progress
from vitviz.visualization.heatmaps import Heatmap
from vitviz.visualization.scales import fit

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("_short_segments")]


# What ends a run.


class Ended(Exception):
    pass


def end_at(phase: str, done: int) -> Callable[[str, Progress], None]:
    def report(at: str, state: Progress) -> None:
        if (at, state.done) == (phase, done):
            raise Ended

    return report


def test_a_run_goes_on_where_it_was_ended(
    model: Model, clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request, output = video_request(model), tmp_path / "out.mp4"
    render_video(request, clip, tmp_path / "whole.mp4", batch_size=1)
    computed, drawn = [], []
    map_batch, overlay = maps.map_batch, Heatmap.overlay
    monkeypatch.setattr(maps, "map_batch", lambda each, *a, **k: (computed.extend(each), map_batch(each, *a, **k))[1])
    monkeypatch.setattr(Heatmap, "overlay", lambda self, *a: (drawn.append(1), overlay(self, *a))[1])
    for phase, done, kept_maps, kept_parts in ((COMPUTING, 8, 1, 0), (DRAWING, 12, 3, 2)):
        computed.clear()
        drawn.clear()
        with pytest.raises(Ended):
            render_video(request, clip, output, batch_size=1, report=end_at(phase, done))
        assert not output.exists()
        parts = run_folder(output) / "parts"
        assert len(list(parts.glob("maps-*.npz"))) == kept_maps and len(list(parts.glob("video-*.mp4"))) == kept_parts
        assert not list(parts.glob("*.partial*"))
    assert len(computed) == COUNT - 5
    computed.clear()
    drawn.clear()
    summary = render_video(request, clip, output, batch_size=1)
    assert (summary.skipped, len(computed), len(drawn)) == (COUNT, 0, 3)
    assert not run_folder(output).exists()
    for (one_at, one), (at, picture) in zip(read_frames(tmp_path / "whole.mp4"), read_frames(output), strict=True):
        assert one_at == at and np.array_equal(one, picture)


def test_the_progress_says_what_is_done_and_what_there_is(model: Model, clip: Path, tmp_path: Path) -> None:
    heard: list[tuple[str, int, int]] = []

    def report(phase: str, state: Progress) -> None:
        heard.append((phase, state.done, state.total))

    render_video(video_request(model), clip, tmp_path / "out.mp4", batch_size=2, report=report)
    for phase in (COMPUTING, DRAWING):
        done = [each[1] for each in heard if each[0] == phase]
        assert done == sorted(done) and done[0] == 0 and done[-1] == COUNT and len(done) > 3
    assert {total for _, _, total in heard} == {COUNT}


# One process imports once and forks for every command that it reads. Each has parts as short as here, and waits for its
# end in the middle of the second one.
STANDING = """
import json, os, sys, time
from vitviz.cli.command import main
from vitviz.datasets.video import maps, render
from vitviz.visualization.heatmaps import Heatmap

maps.SEGMENT_FRAMES = render.SEGMENT_FRAMES = 5
overlay, drawn = Heatmap.overlay, []


def stand(self, *given):
    drawn.append(self)
    while len(drawn) > 8:
        print("standing", flush=True)
        time.sleep(60)
    return overlay(self, *given)


Heatmap.overlay = stand
for line in sys.stdin:
    command, errors = json.loads(line)
    pid = os.fork()
    if not pid:
        os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT), 2)
        code = main(command)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    print("pid", pid, flush=True)
    print("ended", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


def _takes_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture(scope="module")
def standing() -> Iterator[subprocess.Popen[str]]:
    # What a shell begins in the background takes no interrupt, and neither would this process.
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", STANDING], cwd=ROOT, preexec_fn=_takes_interrupts, **pipes) as process:
        yield process
        process.kill()


def lines_until(process: subprocess.Popen[str], word: str) -> list[str]:
    """The lines that a process writes, up to one that begins with a word."""
    assert process.stdout is not None
    found: list[str] = []
    while not found or not found[-1].startswith(word):
        found.append(process.stdout.readline())
        assert found[-1], "the process has ended"
    return found


@pytest.mark.long
@pytest.mark.process
@pytest.mark.parametrize("way", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_is_killed_leaves_no_video_and_goes_on(
    model: Model,
    clip: Path,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    standing: subprocess.Popen[str],
    capsys: pytest.CaptureFixture[str],
    way: int,
) -> None:
    vitviz.save_checkpoint(tmp_path / "small.safetensors", model)
    output, written = tmp_path / "out.mp4", tmp_path_factory.mktemp("errors") / "errors.txt"
    command = ["video", str(clip), str(output), "--checkpoint", str(tmp_path / "small.safetensors"), "--batch-size=4"]
    parts = run_folder(output) / "parts"
    assert standing.stdin is not None
    standing.stdin.write(json.dumps([command, str(written)]) + "\n")
    standing.stdin.flush()
    pid = int(lines_until(standing, "pid")[-1].split()[1])
    lines_until(standing, "standing")
    os.kill(pid, way)
    said = "".join(lines_until(standing, "ended"))
    errors = written.read_text()
    assert not output.exists() and len(list(parts.glob("video-*.mp4"))) == 1, errors
    if way == signal.SIGINT:
        assert said.endswith("ended 130\n") and str(run_folder(output)) in said
        assert "vitviz: interrupted; the same command computes what is missing" in errors
    # What a write leaves that is cut off.
    (parts / ".video-000001.partial.mp4").write_bytes(b"half")
    assert main(command) == 0
    said = capsys.readouterr().out
    assert f"{COUNT} frames" in said and f"the maps of {COUNT} there before" in said and "sound: aac, as it was" in said
    assert len(read_frames(output)) == COUNT and not run_folder(output).exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clip.mp4", "out.mp4", "small.safetensors"]


# What is refused.


def test_a_broken_clip_is_one_sentence_and_leaves_nothing(model: Model, tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "clip.mkv", 40)
    content = clip.read_bytes()
    clip.write_bytes(content[: len(content) * 3 // 4])
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ImageError, match=r"clip\.mkv: .*expected a whole clip"):
        render_video(video_request(model), clip, tmp_path / "out.mp4", batch_size=2)
    assert sorted(tmp_path.iterdir()) == before


def test_a_clip_with_too_many_values_is_refused(
    model: Model, clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patches = vitviz.analyze(read_frame(clip), model).rollout().values.numel()
    monkeypatch.setattr(maps, "MAX_VALUES", 10 * patches)
    with pytest.raises(ImageError, match=f"more than 10 frames of {patches} patches each; expected a shorter clip"):
        render_video(video_request(model), clip, tmp_path / "out.mp4", batch_size=2)
    assert not run_folder(tmp_path / "out.mp4").exists()


def test_a_clip_that_changes_between_the_passes_is_refused(
    model: Model, clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = write_clip(tmp_path / "other.mp4", COUNT, times=UNEVEN)
    draw = render._Run.draw

    def swapped(run: Any) -> Any:
        run.source = other
        return draw(run)

    monkeypatch.setattr(render._Run, "draw", swapped)
    with pytest.raises(ImageError, match="has changed while it was read"):
        render_video(video_request(model), clip, tmp_path / "out.mp4")


def test_parts_of_another_request_are_left_alone(model: Model, clip: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.mp4"
    with pytest.raises(Ended):
        render_video(video_request(model), clip, output, batch_size=2, report=end_at(DRAWING, 7))
    there = sorted(run_folder(output).rglob("*"))
    for request, source, words in (
        (video_request(model, "attention"), clip, "'maps'"),
        (video_request(model, style=Style("viridis")), clip, "'style'"),
        (video_request(model, smoothing_seconds=1.0), clip, "'smoothing_seconds'"),
        (video_request(model), write_clip(tmp_path / "other.mp4", 4), "'clip'"),
    ):
        with pytest.raises(ConfigError, match=f"holds the results of another request, with other {words}"):
            render_video(request, source, output)
    assert sorted(run_folder(output).rglob("*")) == there
    next((run_folder(output) / "parts").glob("maps-*")).write_bytes(b"damaged")
    with pytest.raises(ConfigError, match=r"maps-\d+\.npz: damaged .*; remove it to have it again"):
        render_video(video_request(model), clip, output)


def test_a_wrong_request_is_one_sentence_before_any_frame(model: Model, clip: Path, tmp_path: Path) -> None:
    output, scale = tmp_path / "out.mp4", fit(None, [np.arange(4.0)])
    wrong: list[tuple[type[VitvizError], Callable[[], VideoSummary], str]] = [
        (
            ConfigError,
            lambda: render_video(video_request(model), clip, tmp_path / "out.gif"),
            r"ends with '\.mp4' or '\.mkv'",
        ),
        (ConfigError, lambda: render_video(video_request(model), clip, clip), "the clip itself; expected another file"),
        (
            ConfigError,
            lambda: render_video(video_request(model), clip, output, numbers=output),
            "both the video and its",
        ),
        (ConfigError, lambda: render_video(video_request(model), clip, tmp_path / "no" / "out.mp4"), "no such folder"),
        (ImageError, lambda: render_video(video_request(model), tmp_path / "no.mp4", output), "no such file"),
        (ConfigError, lambda: video_request(model, smoothing_seconds=-1), "a number of seconds from 0 to 10"),
        (ConfigError, lambda: video_request(model, longest_side=20), "longest_side = 20: expected 64 to 4096 pixels"),
        (ConfigError, lambda: video_request(model, style=Style(scale=scale)), "its scale was fitted to other maps"),
        (MethodError, lambda: video_request(model, "rolout"), "did you mean 'rollout'"),
        (
            QueryError,
            lambda: render_video(video_request(model, parameters={"query": (9, 9)}), clip, output),
            r"patch \(9, 9\)",
        ),
    ]
    for error, ask, words in wrong:
        with pytest.raises(error, match=words):
            ask()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clip.mp4"]
