"""``~`` is the home folder wherever a path is taken."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitviz
from tests.support.example import ASSETS
from vitviz import Model
from vitviz.cli.command import main
from vitviz.datasets import read_atlas

pytestmark = pytest.mark.slow


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder with a photograph, and another working folder."""
    folder, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    for each in (folder, elsewhere):
        each.mkdir()
    shutil.copy(ASSETS / "chelsea.jpg", folder / "cat.jpg")
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.chdir(elsewhere)
    return folder


@pytest.mark.parametrize("kind", [str, Path])
def test_the_library_reads_and_writes_at_home(home: Path, make_model: Callable[..., Model], kind: type) -> None:
    vitviz.save_checkpoint(kind("~/own.safetensors"), make_model())
    model = vitviz.load(kind("~/own.safetensors"))
    analysis = vitviz.analyze(kind("~/cat.jpg"), model)
    assert analysis.source == home / "cat.jpg"
    assert vitviz.cost(kind("~/cat.jpg"), model).tokens == analysis.trace.layout.token_count
    [other] = vitviz.analyze_batch([kind("~/cat.jpg")], model)
    assert other.logits.tolist() == analysis.logits.tolist()
    heatmap = analysis.rollout()
    for name in ("map.png", "map.svg"):
        heatmap.save(kind(f"~/{name}"))
    Image.fromarray(np.full(vitviz.open_image(kind("~/cat.jpg")).size[::-1], 255, np.uint8)).save(home / "mask.png")
    assert heatmap.share_inside(kind("~/mask.png")) == pytest.approx(1)
    vitviz.explore(analysis).save(kind("~/page.html"))
    request = vitviz.BatchRequest(model, (vitviz.MapRequest("rollout"),), ("attention_entropy",))
    assert vitviz.run_batch(request, kind("~"), kind("~/rows")).analysed >= 1
    assert read_atlas(kind("~/rows")).pictures >= 1
    written = {path.name for path in home.iterdir()}
    assert {"own.safetensors", "map.png", "map.svg", "page.html", "rows"} <= written
    assert list(Path().iterdir()) == []


def test_the_command_reads_and_writes_at_home(home: Path) -> None:
    assert main(["rollout", "~/cat.jpg", "--output=~/map.png", "-q"]) == 0
    assert main(["rollout", "~/cat.jpg", "-o", "~/numbers.npz", "-q"]) == 0
    assert main(["explore", "~/cat.jpg", "-o", "~/page.html", "-q"]) == 0
    assert main(["batch", "~/*.jpg", "~/rows", "--map", "rollout", "-q"]) == 0
    assert main(["rollout", "~/cat.jpg", "--checkpoint=~/gone.pth"]) == 2
    assert {"map.png", "numbers.npz", "page.html", "rows"} <= {path.name for path in home.iterdir()}
    assert list(Path().iterdir()) == []


def test_a_file_that_is_not_at_home_is_named_with_its_folder(home: Path) -> None:
    with pytest.raises(vitviz.ImageError) as caught:
        vitviz.open_image("~/Cat.JPG")
    assert str(caught.value) == f"Cat.JPG: no such file in {home}; did you mean 'cat.jpg'?"
