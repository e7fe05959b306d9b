"""Models by name: listed, downloaded, or answered with near ones."""

from __future__ import annotations

import gc
import json
import re
import shutil
import sys
from pathlib import Path

import pytest
from huggingface_hub.utils import enable_progress_bars  # type: ignore[attr-defined]

from tests.hub_server import HubServer, counts_bytes
from tests.support.commands import Capture, write_timm
from vitviz import analyze, load
from vitviz.cli.command import main
from vitviz.cli.printing import STREAMS, bar
from vitviz.weights import BUNDLED, ZOO, NamedModel

# Names.


def test_models_lists_every_name_under_its_family(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    there = {model.repository for number, model in enumerate(ZOO.values()) if number % 3 == 0}
    monkeypatch.setattr("vitviz.cli.checkpoints.is_cached", there.__contains__)
    assert main(["models"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert all(len(line) <= 100 and line == line.rstrip() for line in shown.out.splitlines())
    sections = {text.partition("\n")[0]: text for text in re.split(r"(?m)^(?=\S)", shown.out) if text.strip()}
    assert list(sections) == [*dict.fromkeys(model.family for model in ZOO.values()), "Bundled"]
    for name, model in ZOO.items():
        cost = "downloaded" if model.repository in there else f"{model.megabytes:,.0f} MB to download"
        entry = f"{model.title}, {model.input_size} pixels, {model.licence}, {cost}"
        assert re.search(rf"^  {name} {{2,}}{re.escape(entry)}\n +hf:{model.repository}$", sections[model.family], re.M)
        assert model.known_for in " ".join(sections[model.family].split())
    assert re.search(rf"^  {BUNDLED[0]} {{2,}}", sections["Bundled"], re.M)


@pytest.fixture
def server(server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HubServer:
    """A hub with the checkpoint ``small-one``."""
    (tmp_path / "made").mkdir()
    made = {"architecture": "vit_small_patch8_224", "num_classes": 2, "model_args": {"num_heads": 4, "img_size": 32}}
    files = {"config.json": json.dumps(made).encode()}
    server.add("someone/small", {**files, "model.safetensors": write_timm(tmp_path / "made").read_bytes()})
    entry = NamedModel("small-one", "Z", "ViT", "someone/small", 2.0, "mit", 32, "Small.")
    monkeypatch.setitem(ZOO, "small-one", entry)
    return server


@counts_bytes
def test_a_terminal_alone_shows_the_bar_of_a_download(
    server: HubServer, photo: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    # Other tests switch them off in this process.
    enable_progress_bars()
    output = photo.with_name("map.png")
    arguments = ["attention", str(photo), "--checkpoint", "small-one", "-o", str(output)]
    assert main(arguments) == 0
    first = capsys.readouterr()
    heatmap = analyze(photo, load("small-one")).attention()
    assert first.out == f"{heatmap.caption()}\nwritten to {output}\n"
    assert "100%" in first.err
    # A bar of the client ends with its last reference.
    gc.collect()
    capsys.readouterr()
    assert main(arguments) == 0
    again = capsys.readouterr()
    assert (again.out, again.err) == (first.out, ""), "nothing is downloaded twice"
    shutil.rmtree(photo.parent / "home")
    monkeypatch.setattr(STREAMS, "quiet", STREAMS.quiet)
    assert main([*arguments, "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_bars_are_not_for_files_dumb_terminals_and_the_quiet(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setenv("TERM", "xterm")
    assert bar(total=1).disable
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with bar(total=1) as shown:
        assert not shown.disable
    monkeypatch.setattr(STREAMS, "quiet", True)
    assert bar(total=1).disable
    monkeypatch.setattr(STREAMS, "quiet", False)
    monkeypatch.setenv("TERM", "dumb")
    assert bar(total=1).disable


def test_a_download_that_fails_ends_with_one_line(server: HubServer, photo: Path, capsys: Capture) -> None:
    server.fault(404, "GET model.safetensors")
    assert main(["inspect", "small-one"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines()[-1].startswith("vitviz: someone/small: ")
    assert "Traceback" not in captured.err
