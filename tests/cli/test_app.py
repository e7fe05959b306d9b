"""`vitviz app`: where it is launched, and with what."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.support.commands import THREADS, TIMM, Capture, as_options, write_timm
from vitviz import Model
from vitviz.cli.command import main
from vitviz.weights import BUNDLED


@pytest.mark.slow
def test_the_app_is_launched_where_it_is_told(launched: list[tuple[Model, dict[str, object]]], capsys: Capture) -> None:
    assert main(["app"]) == 0
    with socket.create_server(("localhost", 0)) as free:
        port = free.getsockname()[1]
    assert main(["app", "--host", "localhost", "--port", str(port)]) == 0
    assert [options for _, options in launched] == [
        {"server_name": None, "server_port": None},
        {"server_name": "localhost", "server_port": port},
    ]
    assert [model.name for model, _ in launched] == [BUNDLED[0]] * 2
    capsys.readouterr()
    assert main(["app", "nowhere"]) == 2
    assert capsys.readouterr().err.startswith("vitviz: 'nowhere': neither a checkpoint's name")
    assert main(["app", "--port", "70000"]) == 2
    assert capsys.readouterr().err.startswith("vitviz: port 70000: expected 1 to 65535")


@pytest.mark.slow
def test_the_environment_sets_what_the_app_may_take(
    launched: list[tuple[Model, dict[str, object]]], monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("VITVIZ_THREADS", "1")
    monkeypatch.setenv("VITVIZ_UPLOAD_BYTES", "5 MiB")
    assert main(["app"]) == 0
    assert THREADS == [1] and len(launched) == 1
    monkeypatch.setenv("VITVIZ_THREADS", "all")
    assert main(["app"]) == 2
    assert capsys.readouterr().err.startswith("vitviz: VITVIZ_THREADS = 'all': expected a valid integer")


def test_the_app_opens_with_the_checkpoint_that_it_is_told(
    launched: list[tuple[Model, dict[str, object]]], tmp_path: Path, checkpoint: Path
) -> None:
    timm = write_timm(tmp_path)
    assert main(["app", "--checkpoint", str(checkpoint)]) == 0
    assert main(["app", "--checkpoint", str(timm), "--family", "timm", *as_options(TIMM | {"heads": 2})]) == 0
    assert [model.name for model, _ in launched] == ["small", "timm"]
    assert launched[1][0].network.config.heads == 2
    assert main(["app", "--checkpoint", str(tmp_path / "gone")]) == 2
    assert len(launched) == 2
    # The further ones are for its menu.
    assert main(["app", str(checkpoint), "dino_vits16", "hf:a/b"]) == 0
    assert launched[2][0].name == "small" and launched[2][1]["others"] == ["dino_vits16", "hf:a/b"]
