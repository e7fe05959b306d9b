"""A clip in the colours of what is alike: every frame is what the library draws of it, in one basis."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.clips import UNEVEN, read_frames, sound_packets, write_clip
from tests.support.videos import COUNT
from vitviz import ConfigError, Model, analyze, components
from vitviz.cli.command import main
from vitviz.progress import Progress
from vitviz.video import component_clips as film
from vitviz.video.clips import read_frame

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("most", "used"), [(12, range(COUNT)), (3, range(0, COUNT, 4))])
def test_every_frame_has_the_colours_of_one_basis(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, used: range
) -> None:
    monkeypatch.setattr(film, "BASIS_FRAMES", most)
    clip = write_clip(tmp_path / "clip.mp4", COUNT, times=UNEVEN)
    reports: list[Progress] = []
    options = {"of": "keys", "foreground": True, "opacity": 0.8, "smooth": False, "resolution": 24}
    description = film.film_components(clip, model, tmp_path / "out.mkv", 1, **options, report=reports.append)
    analyses = [analyze(read_frame(clip, frame), model, resolution=24) for frame in range(COUNT)]
    first = components([analyses[frame] for frame in used], 1, of="keys", foreground=True)
    assert description == first.description
    drawn = read_frames(tmp_path / "out.mkv")
    assert [at for at, _ in drawn] == [at for at, _ in read_frames(clip)]
    for (_, found), analysis in zip(drawn, analyses, strict=True):
        [expected] = components(analysis, 1, of="keys", basis=first.basis)
        # Colours have half of the resolution in a video.
        assert np.abs(found.astype(float) - np.asarray(expected.overlay(0.8, False), float)).mean() < 12
    assert [each.done for each in reports] == list(range(1, COUNT + 1))


def test_the_command_keeps_sound(model: Model, clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "alike.mp4"
    command = ["components", str(clip), "-o", str(output), "--layer", "2", "--resolution", "32"]
    assert main([*command, "--max-bytes", "1"]) == 2 and main(command) == 0
    assert "hold " in capsys.readouterr().out and len(read_frames(output)) == COUNT
    assert sound_packets(output) == sound_packets(clip)


def test_a_clip_is_not_written_over_itself(model: Model, clip: Path) -> None:
    with pytest.raises(ConfigError, match="the clip or the video itself; expected another file"):
        film.film_components(clip, model, clip, 0)
