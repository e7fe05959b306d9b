"""A command for every method: it writes the picture that the library makes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from tests.support.commands import Capture, command_of, same_pixels
from vitviz import METHODS, Analysis, Model, Style, analyze, contrast, likeness, load, margin
from vitviz.attribution.parameters import Choice, ClassTarget, HeadNumber, LayerNumber, Number, Parameter, Switch, Token
from vitviz.cli.command import main
from vitviz.cli.parsing import parse
from vitviz.models.targets import TargetChoice
from vitviz.ui.explorer.saved_page import whole_page
from vitviz.weights.checkpoint_sources import read_source
from vitviz.weights.overrides import Stated

pytestmark = pytest.mark.slow

# Maps.

ROBUST = ["--percentiles", "5", "90"]
PICTURES: dict[str, tuple[list[str], dict[str, Any], Style, tuple[int, int] | None]] = {
    "attention of a patch": (
        ["attention", "--query", "2,3", "--layer", "-2", "--head", "1"],
        {"query": (2, 3), "layer": -2, "head": 1},
        Style(),
        (2, 3),
    ),
    "attention to a register": (
        ["attention", "--query", "register 1", "--direction", "column", "--head", "max", "--layer", "0"],
        {"query": "register 1", "direction": "column", "head": "max", "layer": 0},
        Style(),
        None,
    ),
    "attention of a token index": (["attention", "--query", "4"], {"query": 4}, Style(), None),
    "rollout in a style": (
        ["rollout", "--colormap", "magma", "--opacity", "0.3", "--smooth", "--grid"],
        {},
        Style("magma", 0.3, smooth=True, grid=True),
        None,
    ),
    "rollout with everything between percentiles": (
        ["rollout", "--head-fusion", "max", "--discard-ratio", "0.5", "--residual-weight", ".25", *ROBUST],
        {"head_fusion": "max", "discard_ratio": 0.5, "residual_weight": 0.25},
        Style(scale="robust", percentiles=(5, 90)),
        None,
    ),
}


@pytest.mark.parametrize(("arguments", "parameters", "style", "mark"), PICTURES.values(), ids=PICTURES)
def test_a_command_writes_the_overlay_of_the_library(
    photo: Path,
    checkpoint: Path,
    capsys: Capture,
    arguments: list[str],
    parameters: dict[str, Any],
    style: Style,
    mark: tuple[int, int] | None,
) -> None:
    output = photo.with_name("map.png")
    assert main([*arguments, str(photo), "--checkpoint", str(checkpoint), "-o", str(output)]) == 0
    heatmap = analyze(photo, load(checkpoint)).map(arguments[0], **parameters)
    assert same_pixels(output, heatmap.overlay(style, mark))
    captured = capsys.readouterr()
    assert captured.out == f"{heatmap.caption(style)}\nwritten to {output}\n"
    assert captured.err == ""


def test_the_explorer_is_one_file_that_knows_how_it_was_made(
    photo: Path, checkpoint: Path, capsys: Capture, working_folder: Path
) -> None:
    options = ["--checkpoint", str(checkpoint), "--fit", "crop", "--resolution", "32"]
    assert main(["explore", str(photo), *options]) == 0
    analysis = analyze(photo, load(checkpoint), "crop", resolution=32)
    sight = {"source": str(checkpoint), "name": photo.name, "fit": "crop", "resolution": 32}
    written = working_folder / f"{photo.stem}.html"
    # The metadata of its maps have no order.
    texts = (written.read_text(encoding="utf-8"), whole_page(analysis, photo.name, **sight))
    found, expected = (re.sub(r'"content": ?"[^"]*"', "", text) for text in texts)
    assert found == expected
    assert capsys.readouterr().out.endswith(f"written to {written.name}\n")
    assert list(working_folder.iterdir()) == [written]
    assert sorted(file.suffix for file in photo.parent.iterdir()) == [".png", ".safetensors"]


@pytest.mark.parametrize("fit", ["crop", "squash", "native"])
def test_the_fit_reaches_the_model(photo: Path, checkpoint: Path, fit: str) -> None:
    Image.new("RGB", (60, 20), "red").save(photo)
    output = photo.with_name("map.png")
    assert main(["attention", str(photo), "--checkpoint", str(checkpoint), "-o", str(output), "--fit", fit]) == 0
    assert same_pixels(output, analyze(photo, load(checkpoint), fit).attention().overlay())


def test_device_and_precision_reach_the_reader(
    photo: Path, launched: list[tuple[Model, dict[str, object]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = []

    def spy(source: str, stated: Stated, **options: Any) -> object:
        given.append((options.get("device"), options.get("precision")))
        return read_source(source, stated, **options)

    monkeypatch.setattr("vitviz.cli.checkpoints.read_source", spy)
    for command in (["attention", str(photo)], ["app"]):
        assert main([*command, "--device", "cpu", "--precision", "bfloat16"]) == 0
        assert main(command) == 0
    assert given == [("cpu", "bfloat16"), ("cpu", "float32")] * 2
    assert launched[0][0].network.precision == torch.bfloat16


@pytest.mark.parametrize("method", ["attention", "integrated_gradients"])
def test_the_bundled_checkpoint_is_the_default_and_the_output_lies_in_the_working_folder(
    photo: Path, bundled: Model, method: str, working_folder: Path
) -> None:
    before = photo.read_bytes()
    # One of them shows the trained resolution; a quarter of its patches are faster.
    resolution = [] if method == "attention" else ["--resolution", "32"]
    assert main([command_of(method), str(photo), *resolution]) == 0
    expected = analyze(photo, bundled, resolution=32 if resolution else None).map(method).overlay()
    assert same_pixels(working_folder / f"my photo.{method}.png", expected)
    assert list(photo.parent.iterdir()) == [photo] and photo.read_bytes() == before


def other_value(parameter: Parameter) -> tuple[str, object]:
    """Another value than the default: as it is typed, and as it should arrive."""
    match parameter.kind:
        case Choice():
            value = next(value for _, value in parameter.kind.options if value not in (None, parameter.default))
            return str(value), value
        case Number():
            middle = (parameter.kind.minimum + parameter.kind.maximum) / 2 + parameter.kind.step
            middle = int(middle) if parameter.kind.whole else middle
            return str(middle), middle
        case LayerNumber():
            return "1", 1
        case HeadNumber():
            return "2", 2
        case Token():
            return "3,2", (3, 2)
        case Switch():
            return "", True


CLASS_SPECIFIC = [method.name for method in METHODS.values() if method.class_specific]


@pytest.mark.parametrize(
    ("method", "target"), [*((method, "Dog") for method in CLASS_SPECIFIC), (CLASS_SPECIFIC[0], "number")]
)
def test_a_map_about_a_class_takes_a_label_or_a_number(
    photo: Path, bundled: Model, capsys: Capture, method: str, target: str
) -> None:
    output = photo.with_name("map.png")
    dog = bundled.labels.index("dog")
    options = ["-o", str(output), "--resolution", "32", "--target", str(dog) if target == "number" else target]
    assert main([command_of(method), str(photo), *options]) == 0
    assert "class dog" in capsys.readouterr().out
    assert same_pixels(output, analyze(photo, bundled, resolution=32).map(method, target=dog).overlay())


EVERY_PARAMETER = [
    (method.name, parameter)
    for method in METHODS.values()
    for parameter in method.parameters
    if not isinstance(parameter.kind, ClassTarget)
]


@pytest.mark.parametrize(("method", "parameter"), EVERY_PARAMETER, ids=lambda part: getattr(part, "name", part))
def test_every_parameter_has_an_option(method: str, parameter: Parameter) -> None:
    words, (typed, arrives) = [command_of(method), "a.png"], other_value(parameter)
    (_, unchanged), (_, changed) = (
        parse(words),
        parse([*words, *filter(None, ["--" + parameter.name.replace("_", "-"), typed])]),
    )
    defaults = {
        part.name: part.default for part in METHODS[method].parameters if not isinstance(part.kind, ClassTarget)
    }
    assert {name: unchanged[name] for name in defaults} == defaults
    assert {name: changed[name] for name in defaults} == {**defaults, parameter.name: arrives} != defaults


@pytest.fixture
def other(tmp_path: Path) -> Path:
    path = tmp_path / "other.png"
    Image.effect_noise((24, 16), 90).convert("RGB").rotate(180).save(path)
    return path


TARGETS: dict[str, tuple[list[str], Callable[[Analysis, Analysis], TargetChoice]]] = {
    "against a class": (["--target", "class 1", "--against", "3"], lambda own, other: contrast(1, 3)),
    "most probable against a class": (["--against", "class 3"], lambda own, other: contrast(None, 3)),
    "margin": (["--margin"], lambda own, other: margin()),
    "margin of a class": (["--margin", "--target", "2"], lambda own, other: margin(2)),
    "like a picture": (["--like", "OTHER"], lambda own, other: likeness(other)),
    "like a patch of a picture": (
        ["--like", "OTHER", "--like-patch", "1, 4"],
        lambda own, other: likeness(other, (1, 4)),
    ),
    "like a patch": (["--like-patch", "1,4"], lambda own, other: likeness(own, (1, 4))),
}


@pytest.mark.parametrize(("arguments", "target"), TARGETS.values(), ids=TARGETS)
def test_a_map_is_about_what_is_typed(
    photo: Path, other: Path, checkpoint: Path, capsys: Capture, arguments: list[str], target: Any, tmp_path: Path
) -> None:
    written = tmp_path / "map.png"
    typed = [str(other) if each == "OTHER" else each for each in arguments]
    assert main(["relevance", str(photo), "--checkpoint", str(checkpoint), *typed, "-o", str(written)]) == 0
    own, another = (analyze(path, load(checkpoint)) for path in (photo, other))
    heatmap = own.map("relevance", target=target(own, another))
    assert same_pixels(written, heatmap.overlay(Style()))
    assert capsys.readouterr().out == f"{heatmap.caption(Style())}\nwritten to {written}\n"
