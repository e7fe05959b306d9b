"""The squares that the command names are those of the library."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from tests.support.example import ROOT
from vitviz import Model, analyze
from vitviz.cli.command import main

pytestmark = pytest.mark.slow
PICTURE = ROOT / "assets/coffee.jpg"


def test_the_command_prints_what_the_library_finds(
    bundled: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flip = analyze(PICTURE, bundled).flip()
    assert main(["flip", str(PICTURE), "-o", str(tmp_path / "maps"), "--quiet"]) == 0
    assert capsys.readouterr().out == f"{flip}\n"
    with Image.open(tmp_path / "maps/coffee.flip.png") as picture:
        assert picture.width >= flip.heatmap.image.width
    output = str(tmp_path / "flip.png")
    assert main(["flip", str(PICTURE), "--json", "--to", "padlock", "--margin", "0.05", "-o", output, "--quiet"]) == 0
    assert (tmp_path / "flip.png").is_file()
    found = json.loads(capsys.readouterr().out)
    assert found["after"]["label"] == "padlock"
    assert (found["before"]["label"], found["random_count"]) == ("soup", None)
    assert found["patches"]
