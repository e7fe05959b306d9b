"""The command where people run it: pipes that close, terminals of every encoding, systems without forks."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.example import EXAMPLE, ROOT
from vitviz.cli.command import main
from vitviz.cli.picture_files import find_picture
from vitviz.cli.printing import open_streams


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["cat.jpg"], {"cat.rollout.png"}),
        (["cat.JPG", "other.png"], {"cat.rollout.png", "other.rollout.png"}),
        (["same.jpg", "same.png"], {"same.jpg.rollout.png", "same.png.rollout.png"}),
        (["same.jpg", "same.PNG"], {"same.jpg.rollout.png", "same.PNG.rollout.png"}),
        (["scan.001", "scan.002"], {"scan.001.rollout.png", "scan.002.rollout.png"}),
        (["photo", "photo.v2"], {"photo.rollout.png", "photo.v2.rollout.png"}),
        ([".hidden"], {".hidden.rollout.png"}),
    ],
)
def test_results_of_different_pictures_differ_in_name(names: list[str], expected: set[str], tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).touch()
    # One at a time, as in a loop of the shell.
    pictures = [find_picture(str(tmp_path / name)) for name in names]
    assert {str(picture.result(None, ".rollout.png")) for picture in pictures} == expected


def test_a_terminal_that_lacks_a_sign_gets_a_question_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    content = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(content, encoding="ascii"))
    open_streams()
    print("8 layers × 6 heads … 猫", flush=True)
    assert content.getvalue().decode("ascii").split("\n")[0] == "8 layers ? 6 heads ? ?"


def test_a_reader_that_has_enough_is_no_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert main(["models"]) == 141
        print("more", file=pipe)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("stream", ["stdin", "stdout", "stderr"])
def test_a_closed_stream_takes_nothing(monkeypatch: pytest.MonkeyPatch, stream: str) -> None:
    monkeypatch.setattr(sys, stream, None)
    assert main(["rollout", str(EXAMPLE), "-o", "map.png"]) == 0 and Path("map.png").is_file()
    getattr(sys, stream).close()


def test_a_full_disk_behind_the_standard_output_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["predict", str(EXAMPLE)], ["rollout", str(EXAMPLE), "-o", "/dev/stdout"]):
        with open("/dev/full", "w") as full, monkeypatch.context() as patched:
            patched.setattr(sys, "stdout", full)
            assert main(words) == 2
        assert capsys.readouterr().err.splitlines()[-1] == (
            "vitviz: the standard output cannot be written (No space left on device)"
        )


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_other_names_of_the_standard_output_get_the_file_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(content := io.BytesIO()))
    assert main(["rollout", str(EXAMPLE), "-o", name]) == 0
    assert content.getvalue().startswith(b"\x89PNG") and content.getvalue().endswith(b"IEND\xaeB`\x82")
    assert "Attention rollout" in capsys.readouterr().err


def test_a_pipe_without_an_ending_gets_a_png(capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo("pipe")
    reader = subprocess.Popen(["cat", "pipe"], stdout=subprocess.PIPE)
    assert main(["rollout", str(EXAMPLE), "-o", "pipe"]) == 0
    assert reader.communicate()[0].startswith(b"\x89PNG") and Path("pipe").is_fifo()


@pytest.mark.parametrize("encoding", ["utf-8", "cp1252", "ascii", "utf-16", "shift_jis"])
def test_json_names_every_file_in_every_encoding(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    # The last is a byte that is no text.
    names = ["漢字 é \U0001f600.jpg", os.fsdecode(b"caf\xe9.jpg")]
    for name in names:
        Path(name).write_bytes(EXAMPLE.read_bytes())
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(content := io.BytesIO(), encoding=encoding))
    assert main(["predict", *names, "--json", "--count", "1"]) == 0
    records = [json.loads(line) for line in content.getvalue().decode(encoding).splitlines()]
    assert [record["image"] for record in records] == names


WITHOUT_FORKS = """
import os, sys
sys.modules.update(dict.fromkeys(("fcntl", "resource")))
for name in ("fork", "forkpty", "getuid", "sysconf"):
    delattr(os, name)
from vitviz.cli.command import main
image, folder = sys.argv[1:]
print([main(command) for command in (["rollout", image], ["batch", folder, "out", "--map", "rollout"], ["app"])])
"""


@pytest.mark.process
@pytest.mark.slow
def test_without_forks_the_command_works_and_the_app_says_why_not(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "cat.jpg").write_bytes(EXAMPLE.read_bytes())
    command = [sys.executable, "-c", WITHOUT_FORKS, str(EXAMPLE), str(tmp_path / "pictures")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "[0, 0, 2]", done.stderr
    assert "vitviz: this system cannot fork: the app, and what opens files of others, run on Linux" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_quiet_command_silences_the_bars_of_packages() -> None:
    bar = "from tqdm import tqdm; print(tqdm(disable=False).disable, tqdm().disable)"
    for option, expected in (("--quiet", "False True"), ("--json", "False False")):
        code = f"from vitviz.cli.command import main; main(['models', {option!r}]); {bar}"
        environment = {name: value for name, value in os.environ.items() if name != "TQDM_DISABLE"}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == expected
