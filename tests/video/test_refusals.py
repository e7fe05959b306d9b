"""The progress of a run; what ends it leaves no video; what cannot be made is refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import vitviz
from tests.support.clips import UNEVEN, write_clip
from tests.support.videos import COUNT, video_request
from vitviz import ConfigError, ImageError, Model, QueryError, Style, VitvizError
from vitviz.progress import Progress
from vitviz.video import render
from vitviz.video.clips import open_video, read_frame
from vitviz.video.render import COMPUTING, DRAWING, VideoSummary, render_video
from vitviz.visualization.scales import fit

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("phase", [COMPUTING, DRAWING])
def test_a_run_that_is_ended_leaves_nothing(model: Model, clip: Path, tmp_path: Path, phase: str) -> None:
    def report(at: str, state: Progress) -> None:
        if (at, state.done) == (phase, 8):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        render_video(video_request(model), clip, tmp_path / "out.mp4", batch_size=1, report=report)
    assert [path.name for path in tmp_path.iterdir()] == ["clip.mp4"]


def test_the_progress_says_what_is_done_and_what_there_is(model: Model, clip: Path, tmp_path: Path) -> None:
    heard: list[tuple[str, int, int]] = []

    def report(phase: str, state: Progress) -> None:
        heard.append((phase, state.done, state.total))

    render_video(video_request(model), clip, tmp_path / "out.mp4", batch_size=2, report=report)
    for phase in (COMPUTING, DRAWING):
        done = [each[1] for each in heard if each[0] == phase]
        assert done == sorted(done) and done[0] == 0 and done[-1] == COUNT and len(done) > 3
    assert {total for _, _, total in heard} == {COUNT}


# What is refused.


def test_a_clip_with_too_many_values_is_refused(
    model: Model, clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patches = vitviz.analyze(read_frame(clip), model).rollout().values.numel()
    monkeypatch.setattr(render, "MAX_VALUES", 10 * patches)
    with pytest.raises(ImageError, match=f"more than 10 frames of {patches} patches each; expected a shorter clip"):
        render_video(video_request(model), clip, tmp_path / "out.mp4", batch_size=2)
    assert not (tmp_path / "out.mp4").exists()


def test_a_clip_that_changes_between_the_passes_is_refused(model: Model, clip: Path, tmp_path: Path) -> None:
    other = write_clip(tmp_path / "other.mp4", COUNT, times=UNEVEN)
    clips = iter((clip, other))
    with pytest.raises(ImageError, match="has changed while it was read"):
        render_video(
            video_request(model), clip, tmp_path / "out.mp4", open_video=lambda _, **_reading: open_video(next(clips))
        )


def test_a_wrong_request_is_one_sentence_before_any_frame(model: Model, clip: Path, tmp_path: Path) -> None:
    output, scale = tmp_path / "out.mp4", fit(None, [np.arange(4.0)])
    render, far = partial(render_video, video_request(model), clip), video_request(model, parameters={"query": (9, 9)})
    wrong: list[tuple[type[VitvizError], Callable[[], VideoSummary], str]] = [
        (ConfigError, lambda: render(tmp_path / "out.gif"), r"ends with '\.mp4' or '\.mkv'"),
        (ConfigError, lambda: render(clip), "video itself; expected another file"),
        (ConfigError, lambda: render(output, numbers=output), "video itself"),
        (ConfigError, lambda: render(output, numbers=clip), "the clip or the video"),
        (ConfigError, lambda: render(output, numbers=tmp_path), r"cannot be written \(a folder\)"),
        (ConfigError, lambda: render(tmp_path / "no" / "out.mp4"), "no such folder"),
        (ConfigError, lambda: video_request(model, smoothing_seconds=-1), "a number of seconds from 0 to 10"),
        (ConfigError, lambda: video_request(model, longest_side=20), "longest_side = 20: expected 64 to 4096 pixels"),
        (ConfigError, lambda: video_request(model, style=Style(scale=scale)), "its scale was fitted to other maps"),
        (QueryError, lambda: render_video(far, clip, output), r"patch \(9, 9\)"),
    ]
    for error, ask, words in wrong:
        with pytest.raises(error, match=words):
            ask()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clip.mp4"]
