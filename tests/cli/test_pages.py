"""Pages that run the model by themselves, as a file and as a folder."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests.support.commands import Capture
from vitviz import load
from vitviz.cli.command import main
from vitviz.ui.explorer.device_page import device_page


def start_of(page: str) -> dict[str, Any]:
    """What a page begins with."""
    start: dict[str, Any] = json.loads(page.partition('id="start">')[2].partition("</script>")[0])
    return start


def test_a_page_with_its_model_is_one_file(
    photo: Path, checkpoint: Path, working_folder: Path, capsys: Capture
) -> None:
    assert main(["explore", str(photo), "--with-model", "--checkpoint", str(checkpoint)]) == 0
    written = working_folder / f"{photo.stem}.html"
    expected = device_page([load(checkpoint)], photo, name=photo.name, title=photo.name)
    page = written.read_text(encoding="utf-8")
    assert start_of(page) == json.loads(json.dumps(expected.start)) and f"<title>{photo.name}</title>" in page
    assert re.findall(r'id="part-([^"]+)"', page) == list(expected.parts)
    assert capsys.readouterr().out.endswith(f"written to {written.name}\n")


def test_without_a_picture_it_begins_with_an_example(checkpoint: Path, working_folder: Path) -> None:
    assert main(["explore", "--with-model", "--checkpoint", str(checkpoint)]) == 0
    start = start_of((working_folder / f"{checkpoint.stem}.html").read_text(encoding="utf-8"))
    assert start["views"][0]["name"] == "chelsea.jpg" and start["state"]["views"][0]["picture"] == "example:chelsea.jpg"


def test_a_site_has_several_models(checkpoint: Path, tmp_path: Path, working_folder: Path, capsys: Capture) -> None:
    assert main(["site", str(checkpoint), "vitviz-photos", "site"]) == 0
    assert "2 models" in capsys.readouterr().out
    start = start_of((working_folder / "site" / "index.html").read_text(encoding="utf-8"))
    assert [model["title"] for model in start["settings"]["models"]] == [checkpoint.stem, "vitviz-photos"]
    folder = working_folder / "site" / start["device"]["folder"]
    assert {"page.js", "page.css", "model-0.gz", "model-1.gz"} < {path.name for path in folder.iterdir()}
    readme = (working_folder / "site" / "README.md").read_text(encoding="utf-8")
    assert "sdk: static" in readme and f"runs {checkpoint.stem} and vitviz-photos in" in readme
    # What is there is not overwritten.
    assert main(["site", str(checkpoint), "site"]) == 2
    assert "site: not an empty folder; expected a new one" in capsys.readouterr().err
