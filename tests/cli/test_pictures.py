"""Several pictures in one call, the standard streams, numbers and JSON."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.support.commands import Capture
from vitviz import analyze, load
from vitviz.cli.command import main
from vitviz.cli.grammar import stored
from vitviz.cli.picture_files import find_pictures
from vitviz.cli.printing import STREAMS, print_json, spelled
from vitviz.evaluation.probes import probe


@pytest.fixture
def photos(tmp_path: Path, photo: Path) -> Path:
    """A folder with two pictures of one name, at different depths, a note and a damaged picture."""
    folder = tmp_path / "photos"
    (folder / "more").mkdir(parents=True)
    for path in (folder / "cat.png", folder / "more" / "cat.png"):
        path.write_bytes(photo.read_bytes())
    (folder / "notes.txt").write_text("buy film")
    return folder


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> io.BytesIO:
    """The standard input."""
    content = io.BytesIO()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(content))
    return content


def test_results_of_all_pictures_differ_in_name(photos: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for name in ("cat.png", "dog.jpg", "dog.png"):
        (other / name).touch()
    paths = [str(photos), *(str(other / name) for name in ("cat.png", "dog.jpg", "dog.png"))]
    stems = [picture.stem for picture in find_pictures([*paths, "-", paths[1]][:4])]
    first, deeper, second, *dogs = stems
    assert deeper == "more/cat" and dogs == ["dog.jpg", "dog.png"]
    assert first != second and first.startswith("cat.") and second.startswith("cat.")
    # A path that is given twice is one picture.
    assert len(find_pictures([paths[1], paths[1]])) == 1


def test_one_model_serves_all_pictures_and_one_that_fails_is_a_line(
    photos: Path, photo: Path, checkpoint: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vitviz.cli import checkpoints

    loads, read = [], checkpoints.read_source
    monkeypatch.setattr(checkpoints, "read_source", lambda *given, **more: loads.append(1) or read(*given, **more))
    (broken := tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    output = tmp_path / "maps"
    words = ["rollout", str(photos), str(broken), str(photo), "--checkpoint", str(checkpoint), "-o", str(output)]
    assert main(words) == 1
    assert loads == [1]
    written = {path.relative_to(output).as_posix() for path in output.rglob("*.png")}
    assert written == {"cat.rollout.png", "more/cat.rollout.png", "my photo.rollout.png"}
    printed = capsys.readouterr()
    assert f"{photos}: 1 file left out: notes.txt (not a picture)" in printed.out
    [error] = printed.err.splitlines()
    assert error.startswith(f"vitviz: {broken}: ") and "broken.png: broken" not in error
    with Image.open(output / "my photo.rollout.png") as image:
        assert image.tobytes() == analyze(photo, load(checkpoint)).rollout().overlay().tobytes()


def test_a_larger_picture_is_opened_where_the_user_says_so(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 20_000)
    path = tmp_path / "scan.png"
    Image.effect_noise((300, 200), 90).save(path)
    command = ["rollout", str(path), "-o", str(tmp_path / "map.png"), "--checkpoint", str(checkpoint)]
    assert main(command) == 2
    message = capsys.readouterr().err
    assert "60000 pixels) exceeds limit of 40000" in message and "--max-pixels" in message
    assert main([*command, "--max-pixels", "60000"]) == 0


def test_one_picture_may_go_into_a_folder(photo: Path, checkpoint: Path, tmp_path: Path, capsys: Capture) -> None:
    for folder in (str(tmp_path), f"{tmp_path / 'new'}/"):
        assert main(["rollout", str(photo), "--checkpoint", str(checkpoint), "-o", folder, "-q"]) == 0
        assert (Path(folder) / "my photo.rollout.png").is_file()
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("output", ["map.png", "numbers.npz", "-"])
def test_several_pictures_need_a_folder(photos: Path, output: str, capsys: Capture) -> None:
    assert main(["rollout", str(photos), "-o", output]) == 2
    expected = f"vitviz: {output}: one file for several pictures; expected a folder, such as -o maps\n"
    assert capsys.readouterr().err == expected


def test_a_folder_without_pictures_says_what_is_in_it(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "notes.txt").write_text("buy film")
    assert main(["rollout", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"vitviz: {tmp_path}: no picture in it: 1 file left out: notes.txt (not a picture);")
    assert error.count("\n") == 1


def test_a_picture_comes_from_the_standard_input_and_its_map_goes_to_the_standard_output(
    photo: Path, checkpoint: Path, stdin: io.BytesIO, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    stdin.write(photo.read_bytes())
    stdin.seek(0)
    assert main(["rollout", "-", "-o", "-", "--checkpoint", str(checkpoint)]) == 0
    content, notes = capfdbinary.readouterr()
    heatmap = analyze(photo, load(checkpoint)).rollout()
    with Image.open(io.BytesIO(content)) as image:
        assert image.format == "PNG" and image.tobytes() == heatmap.overlay().tobytes()
    assert notes.decode() == f"{heatmap.caption()}\n"


def test_what_is_no_picture_on_the_standard_input_is_called_so(
    checkpoint: Path, stdin: io.BytesIO, capsys: Capture
) -> None:
    assert main(["predict", "-", "--checkpoint", str(checkpoint)]) == 2
    assert capsys.readouterr().err.startswith("vitviz: stdin: an empty file")


def test_the_numbers_of_a_map_are_those_of_the_library(
    photo: Path, checkpoint: Path, tmp_path: Path, capsys: Capture
) -> None:
    file, options = tmp_path / "map.npz", ["--checkpoint", str(checkpoint), "--start-layer", "1"]
    assert main(["rollout", str(photo), *options, "-o", str(file)]) == 0
    assert main(["rollout", str(photo), *options, "--json"]) == 0
    heatmap = analyze(photo, load(checkpoint)).rollout(start_layer=1)
    with np.load(file) as found:
        np.testing.assert_array_equal(found["values"], heatmap.numpy())
        assert tuple(found["box"]) == heatmap.geometry.box
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert np.array_equal(np.array(record["values"], dtype=np.float32), heatmap.numpy())
    assert record["image"] == str(photo) and record["method"] == "rollout" and record["size"] == [30, 20]
    assert not list(Path().iterdir()), "JSON alone writes no picture"


def test_every_record_is_a_line_also_of_those_that_failed(
    photos: Path, checkpoint: Path, tmp_path: Path, capsys: Capture
) -> None:
    (broken := tmp_path / "broken.png").write_bytes(b"")
    assert main(["predict", str(photos), str(broken), "--count", "2", "--json", "--checkpoint", str(checkpoint)]) == 1
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["image"] for record in records] == [*map(str, sorted(photos.rglob("*.png"))), str(broken)]
    expected = analyze(photos / "cat.png", load(checkpoint)).predictions(2)
    assert records[0]["predictions"] == [vars(each) for each in expected]
    assert records[-1]["error"].startswith("an empty file")


def test_probes_are_json_with_every_number(photo: Path, checkpoint: Path, capsys: Capture) -> None:
    assert main(["probe", str(photo), "--checkpoint", str(checkpoint), "--probe", "token_norms", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)["probes"]["token_norms"]
    findings = probe(analyze(photo, load(checkpoint)), "token_norms")
    expected = findings.measurements["norms"].values.numpy()
    found = np.array(record["measurements"]["norms"]["values"], dtype=expected.dtype)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert record["measurements"]["norms"]["axes"] == list(findings.measurements["norms"].axes)


def test_models_are_json(capsys: Capture) -> None:
    assert main(["models", "--json"]) == 0
    records = json.loads(capsys.readouterr().out)
    assert {"name", "repository", "licence", "downloaded"} <= records[0].keys() == records[-1].keys()
    assert records[-1]["name"] == "vitviz-photos"


def test_numbers_that_json_lacks_are_null(capsys: Capture) -> None:
    print_json({"values": [float("nan"), 0.1, [float("inf")]], "name": "猫"})
    assert capsys.readouterr().out == '{"values": [null, 0.1, [null]], "name": "猫"}\n'


SPELLED = {
    "12 heads; pass heads=…, or norm_epsilon=1e-6 (usual)": "12 heads; pass --heads …, or --norm-epsilon 1e-6 (usual)",
    "max_bytes = 1, or allow more by max_bytes": "--max-bytes 1, or allow more by --max-bytes",
    "its white is value_range=(0, 1023)": "its white is --value-range 0 1023",
    "value_range = [255.0, 0.0]: expected": "--value-range 255.0 0.0: expected",
    "pass image_size=(24, 48)": "pass --image-size 24x48",
    "pass probability='none' where": "pass --probability none where",
    "ignore=['head.*', 'a.json:*'] leaves out": "--ignore 'head.*' --ignore 'a.json:*' leaves out",
    "'heads=3', x/heads=3": "'heads=3', x/heads=3",
    "vitviz.load(size=(2, 3), heads=3)": "vitviz.load(size=(2, 3), heads=3)",
    "this module has 12 heads": "this module has 12 heads",
}


@pytest.mark.parametrize(("message", "expected"), SPELLED.items())
def test_parameters_in_messages_are_options(message: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    command = next(command for command in stored() if command.name == "rollout")
    options = {name: (flag, command.separator(name)) for name, flag in command.options.items()}
    monkeypatch.setattr(STREAMS, "options", options)
    assert spelled(message) == expected
