"""The `vitviz` command: what it writes is what the library computes, and what goes wrong is told in one line."""

from __future__ import annotations

import argparse
import builtins
import json
import re
import runpy
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from tests.hub_server import HubServer
from vitviz import METHODS, Model, Style, TokenMap, analyze, load, save_checkpoint
from vitviz.attention.precision import PRECISIONS
from vitviz.attribution.methods import Choice, ClassTarget, HeadNumber, LayerNumber, Number, Parameter, TokenQuery
from vitviz.cli.command import _parser, main
from vitviz.training import loop
from vitviz.training.config import PRESETS, Augmentation, TrainingConfig
from vitviz.training.data import read_image_folder
from vitviz.training.evaluate import Accuracy, evaluate
from vitviz.ui.explorer import whole_page
from vitviz.ui.knobs import Knobs
from vitviz.weights import BUNDLED, FAMILIES, ZOO, NamedModel, read

MakeModel = Callable[..., Model]
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    path = tmp_path / "my photo.png"
    Image.fromarray(pixels).save(path)
    return path


@pytest.fixture
def checkpoint(make_model: MakeModel, tmp_path: Path) -> Path:
    path = tmp_path / "small.safetensors"
    save_checkpoint(path, make_model(register_tokens=1))
    return path


@pytest.fixture
def checkpoint_for(make_model: MakeModel, tmp_path: Path) -> Callable[[str], Path]:
    """A small checkpoint that a method can serve."""

    def make(method: str) -> Path:
        pooling, path = METHODS[method].pooling, tmp_path / "small.safetensors"
        save_checkpoint(path, make_model(register_tokens=1, **({"pooling": pooling[0]} if pooling else {})))
        return path

    return make


@pytest.fixture(autouse=True)
def working_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the command runs: an empty folder that is not that of the picture."""
    folder = tmp_path_factory.mktemp("working")
    monkeypatch.chdir(folder)
    return folder


def same_pixels(path: Path, expected: Image.Image) -> bool:
    with Image.open(path) as found:
        return found.format == "PNG" and found.mode == expected.mode and found.tobytes() == expected.tobytes()


# Maps.

PICTURES: dict[str, tuple[list[str], dict[str, Any], Style, tuple[int, int] | None]] = {
    "attention": (["attention"], {}, Style(), None),
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
    "attention of all patches": (["attention", "--query", "patches"], {"query": "patches"}, Style(), None),
    "attention of a token index": (["attention", "--query", "4"], {"query": 4}, Style(), None),
    "attention of the last head": (["attention", "--head", "-1"], {"head": -1}, Style(), None),
    "rollout": (["rollout"], {}, Style(), None),
    "rollout with everything": (
        ["rollout", "--head-fusion", "max", "--discard-ratio", "0.5", "--residual-weight", ".25", "--start-layer", "1"],
        {"head_fusion": "max", "discard_ratio": 0.5, "residual_weight": 0.25, "start_layer": 1},
        Style(),
        None,
    ),
    "rollout of vit-explain": (["rollout", "--reference", "vit-explain"], {"reference": "vit-explain"}, Style(), None),
    "coloured": (["rollout", "--colormap", "magma", "--opacity", "0.3"], {}, Style("magma", 0.3), None),
    "smooth": (["rollout", "--smooth"], {}, Style(smooth=True), None),
    "with a grid": (["rollout", "--grid"], {}, Style(grid=True), None),
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
    told = capsys.readouterr()
    assert told.out == f"{heatmap.description}\nwritten to {output}\n"
    assert told.err == ""


def test_the_explorer_is_one_file_that_knows_how_it_was_made(
    photo: Path, checkpoint: Path, capsys: Capture, working_folder: Path
) -> None:
    options = ["--checkpoint", str(checkpoint), "--fit", "crop", "--resolution", "32"]
    assert main(["explore", str(photo), *options]) == 0
    analysis = analyze(photo, load(checkpoint), "crop", resolution=32)
    sight = {"source": str(checkpoint), "name": photo.name, "fit": "crop", "resolution": 32}
    written = working_folder / f"{photo.stem}.html"
    assert written.read_text(encoding="utf-8") == whole_page(analysis, photo.name, **sight)
    assert capsys.readouterr().out.endswith(f"written to {written.name}\n")
    assert list(working_folder.iterdir()) == [written]
    assert sorted(file.suffix for file in photo.parent.iterdir()) == [".png", ".safetensors"]


@pytest.mark.parametrize("fit", ["crop", "squash", "native"])
def test_the_fit_reaches_the_model(photo: Path, checkpoint: Path, fit: str) -> None:
    Image.new("RGB", (60, 20), "red").save(photo)
    output = photo.with_name("map.png")
    assert main(["attention", str(photo), "--checkpoint", str(checkpoint), "-o", str(output), "--fit", fit]) == 0
    assert same_pixels(output, analyze(photo, load(checkpoint), fit).attention().overlay())


@pytest.mark.parametrize("method", METHODS)
def test_the_resolution_reaches_the_model(photo: Path, checkpoint_for: Callable[[str], Path], method: str) -> None:
    output, checkpoint = photo.with_name("map.png"), checkpoint_for(method)
    options = ["--checkpoint", str(checkpoint), "-o", str(output), "--resolution", "32"]
    assert main([command_of(method), str(photo), *options]) == 0
    larger = analyze(photo, load(checkpoint), resolution=32).map(method)
    assert larger.values.shape == (8, 12)
    assert same_pixels(output, larger.overlay())


def test_device_and_precision_reach_the_reader(
    photo: Path, launched: list[tuple[Model, dict[str, object]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = []

    def spy(source: str, **options: Any) -> object:
        given.append((options.get("device"), options.get("precision")))
        return read(source, **options)

    monkeypatch.setattr("vitviz.cli.command.read", spy)
    for command in (["attention", str(photo)], ["app"]):
        assert main([*command, "--device", "cpu", "--precision", "bfloat16"]) == 0
        assert main(command) == 0
    assert given == [("cpu", "bfloat16"), ("cpu", "float32")] * 2
    assert launched[0][0].network.precision == torch.bfloat16


def test_evaluate_computes_where_the_model_is(
    colours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    path, devices = write_transformers(tmp_path), []

    def spy(network: Any, preprocessing: Any, data: Any, device: torch.device) -> Any:
        devices.append((device, network.device))
        return evaluate(network, preprocessing, data, device)

    monkeypatch.setattr("vitviz.training.evaluate.evaluate", spy)
    assert main(["evaluate", str(colours), "--checkpoint", str(path), "--precision", "bfloat16"]) == 0
    assert "of 8 images, cross-entropy" in capsys.readouterr().out
    assert devices == [(torch.device("cpu"), torch.device("cpu"))]


@pytest.mark.parametrize("method", [method.name for method in METHODS.values() if method.pooling is None])
def test_the_bundled_checkpoint_is_the_default_and_the_output_lies_in_the_working_folder(
    photo: Path, bundled: Model, method: str, working_folder: Path
) -> None:
    before = photo.read_bytes()
    resolution = ["--resolution", "32"] if METHODS[method].reports else []
    assert main([command_of(method), str(photo), *resolution]) == 0
    expected = analyze(photo, bundled, resolution=32 if resolution else None).map(method).overlay()
    assert same_pixels(working_folder / f"my photo.{method}.png", expected)
    assert list(photo.parent.iterdir()) == [photo] and photo.read_bytes() == before


def command_of(method: str) -> str:
    return method.replace("_", "-")


def other_value(parameter: Parameter) -> tuple[str, object]:
    """Another value than the default: as it is typed, and as it should arrive."""
    match parameter:
        case Choice():
            value = next(value for _, value in parameter.options if value not in (None, parameter.default))
            return str(value), value
        case Number():
            middle = (parameter.minimum + parameter.maximum) / 2 + parameter.step
            middle = int(middle) if parameter.whole else middle
            return str(middle), middle
        case LayerNumber():
            return "1", 1
        case HeadNumber():
            return "2", 2
        case TokenQuery():
            return "3,2", (3, 2)


CLASS_SPECIFIC = [method.name for method in METHODS.values() if method.class_specific]


@pytest.mark.parametrize("method", CLASS_SPECIFIC)
@pytest.mark.parametrize("target", ["Dog", "5"])
def test_a_map_about_a_class_takes_a_label_or_a_number(
    photo: Path, bundled: Model, capsys: Capture, method: str, target: str
) -> None:
    output = photo.with_name("map.png")
    options = ["-o", str(output), "--resolution", "32", "--target", target]
    assert main([command_of(method), str(photo), *options]) == 0
    assert "class dog" in capsys.readouterr().out
    expected = analyze(photo, bundled, resolution=32).map(method, target=bundled.labels.index("dog"))
    assert same_pixels(output, expected.overlay())


def test_a_class_that_the_model_does_not_know_is_told_in_one_line(photo: Path, capsys: Capture) -> None:
    assert main(["legrad", str(photo), "--target", "unicorn"]) == 2
    assert capsys.readouterr().err.startswith("vitviz: target 'unicorn': this model has no such class")


EVERY_PARAMETER = [
    (method.name, parameter)
    for method in METHODS.values()
    for parameter in method.parameters
    if not isinstance(parameter, ClassTarget)
]


@pytest.mark.parametrize(("method", "parameter"), EVERY_PARAMETER, ids=lambda part: getattr(part, "name", part))
def test_every_parameter_has_an_option_that_reaches_the_function(
    photo: Path,
    checkpoint_for: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    parameter: Parameter,
) -> None:
    calls, checkpoint = [], checkpoint_for(method)

    def compute(trace: object, **parameters: object) -> TokenMap:
        calls.append(parameters)
        return TokenMap(torch.zeros(4, 6), {}, "nothing", "nothing")

    monkeypatch.setitem(METHODS, method, replace(METHODS[method], compute=compute))
    typed, arrives = other_value(parameter)
    flag = "--" + parameter.name.replace("_", "-")
    command = [command_of(method), str(photo), "--checkpoint", str(checkpoint), "-o", str(photo.with_name("map.png"))]
    assert main(command) == 0
    assert main([*command, flag, typed]) == 0
    defaults = {part.name: part.default for part in METHODS[method].parameters if not isinstance(part, ClassTarget)}
    # What is None is left out: it is the default of every function.
    said = [{**defaults}, {**defaults, parameter.name: arrives}]
    assert calls == [{name: value for name, value in each.items() if value is not None} for each in said]
    assert arrives != parameter.default


# What goes wrong.

ERRORS: dict[str, tuple[list[str], str]] = {
    "no image": (["attention", "gone.png"], "gone.png: no such file"),
    "no picture": (["attention", "{checkpoint}"], "small.safetensors: not an image"),
    "no checkpoint": (["rollout", "{photo}", "--checkpoint", "vit-b"], "'vit-b': neither a checkpoint's name nor"),
    "no safetensors": (["rollout", "{photo}", "--checkpoint", "{photo}"], "my photo.png: it begins with"),
    "no such layer": (["attention", "{photo}", "--layer", "99"], "layer 99: this model has layers 0 to"),
    "no such head": (["attention", "{photo}", "--head", "-99"], "head -99: this model has heads 0 to"),
    "no such fusion": (["attention", "{photo}", "--head", "median"], "head 'median': expected a number from 0 to"),
    "no such token": (["attention", "{photo}", "--query", "register 9"], "token 'register 9': this model has prefix"),
    "no such patch": (["rollout", "{photo}", "--query", "99,0"], "patch (99, 0): this model has prefix tokens"),
    "no such index": (["rollout", "{photo}", "--query", "999"], "token 999: this model has prefix tokens"),
    "too much discarded": (["rollout", "{photo}", "--discard-ratio", "1"], "discard_ratio = 1.0: expected a number"),
    "no number": (["rollout", "{photo}", "--residual-weight", "nan"], "residual_weight = nan: expected a number"),
    "too opaque": (["attention", "{photo}", "--opacity", "2"], "opacity = 2.0: expected a number in [0, 1]"),
    "contradiction": (
        ["rollout", "{photo}", "--reference", "vit-explain", "--start-layer", "1"],
        "residual_weight = 0.5 and start_layer = 1: vit-explain knows only",
    ),
    "no such device": (["attention", "{photo}", "--device", "gpu"], "device 'gpu': this machine has none of this name"),
    "no such resolution": (
        ["attention", "{photo}", "--resolution", "30"],
        "resolution = 30: expected a multiple of the patch's 4 pixels: 28 or 32",
    ),
    "too large": (["rollout", "{photo}", "--resolution", "3200"], "input of 3200×3200: 640,005 tokens need"),
    "no memory allowed": (["rollout", "{photo}", "--max-bytes", "1"], "max_bytes = 1; no resolution fits"),
    "no such folder": (["attention", "{photo}", "-o", "gone/map.png"], "gone/map.png: cannot be written"),
    "no such format": (["attention", "{photo}", "-o", "{folder}/map.xyz"], "map.xyz: cannot be written"),
    "output a folder": (["attention", "{photo}", "-o", "{folder}"], "cannot be written"),
    "no folder for a page": (["explore", "{photo}", "-o", "gone/a.html"], "gone/a.html: cannot be written"),
    "page a folder": (["explore", "{photo}", "-o", "{folder}"], "cannot be written"),
    "no fact": (["rollout", "{photo}", "--fact", "heads"], "'heads': expected NAME=VALUE, such as heads=6"),
    "no such fact": (["inspect", "{timm}", "--fact", "hats=3"], "hats = '3': of a checkpoint you can say heads"),
    "no such value": (["inspect", "{timm}", "--fact", "pooling=max"], "pooling = 'max': expected"),
    "no size": (["app", "--fact", "image_size=24x"], "image_size = '24x': expected a number"),
    "no such family": (["inspect", "{timm}", "--family", "resnet"], "family 'resnet': expected 'dinov3'"),
    "another family": (["attention", "{photo}", "--checkpoint", "{timm}", "--family", "clip"], "timm.safetensors: "),
    "facts left open": (["inspect", "{timm}"], "or heads=…, norm_epsilon=… (usually 1e-06)"),
    "facts of vitviz's own": (["inspect", "{checkpoint}", "--fact", "heads=4"], "leave out heads"),
    "nothing to inspect": (["inspect", "{folder}/gone"], "gone': neither a checkpoint's name nor a file or folder"),
    "nothing in it": (["inspect", "{photo}"], "my photo.png: it begins with"),
    "no classifier": (
        ["evaluate", "{folder}", "--checkpoint", "{dino}", "--fact", "heads=3"],
        "dino has no classifier",
    ),
    "nothing to evaluate on": (["evaluate", "{folder}"], "no folder test/ or val/ or validation/ in it"),
    "nothing to train on": (["train", "{folder}", "{folder}/run"], "no folder test/ or val/"),
    "no training possible": (["train", "{folder}", "{folder}/run", "--heads", "5"], "expected a multiple of heads = 5"),
    "no augmentation": (["train", "{folder}", "{folder}/run", "--mix", "3"], "mix = 3.0: expected a number in [0, 1]"),
}


@pytest.mark.parametrize(("arguments", "told"), ERRORS.values(), ids=ERRORS)
def test_an_error_is_one_line_and_leaves_no_file(
    photo: Path, checkpoint: Path, capsys: Capture, arguments: list[str], told: str
) -> None:
    names = {"photo": photo, "checkpoint": checkpoint, "folder": photo.parent}
    names |= {"timm": write_timm(photo.parent), "dino": write_dino(photo.parent)}
    before = sorted(photo.parent.iterdir())
    assert main([argument.format(**names) for argument in arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("vitviz: ")
    assert told in said.err
    assert said.err.count("\n") == 1
    assert said.err.endswith("\n")
    assert sorted(photo.parent.iterdir()) == before


USAGE = [
    ([], "the following arguments are required: COMMAND"),
    (["draw"], "invalid choice: 'draw'"),
    (["attention"], "the following arguments are required: image"),
    (["inspect"], "the following arguments are required: checkpoint"),
    (["inspect", "a.pth", "--fact"], "argument --fact: expected one argument"),
    (["attention", "a.png", "--query", "2,x"], "argument --query: '2,x': expected ROW,COLUMN, both whole numbers"),
    (["attention", "a.png", "--query", "-1,0"], "--query"),
    (["attention", "a.png", "--layer", "last"], "argument --layer: invalid int value: 'last'"),
    (["attention", "a.png", "--direction", "diagonal"], "argument --direction: invalid choice: 'diagonal'"),
    (["rollout", "a.png", "--colormap", "jet"], "argument --colormap: invalid choice: 'jet'"),
    (["rollout", "a.png", "--fit", "pad"], "argument --fit: invalid choice: 'pad'"),
    (["rollout", "a.png", "--resolution", "big"], "argument --resolution: invalid int value: 'big'"),
    (["evaluate", "a", "--precision", "int8"], "argument --precision: invalid choice: 'int8'"),
    (["inspect", "a.pth", "--device", "cpu"], "unrecognized arguments: --device cpu"),
    (["train", "a", "b", "--preset", "imagenet"], "argument --preset: invalid choice: 'imagenet'"),
    (["train", "a", "b", "--epochs", "many"], "argument --epochs: invalid int value: 'many'"),
]


@pytest.mark.parametrize(("arguments", "told"), USAGE, ids=[" ".join(arguments) for arguments, _ in USAGE])
def test_what_is_typed_wrong_is_told_with_the_usage(capsys: Capture, arguments: list[str], told: str) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    usage, *_, error = capsys.readouterr().err.splitlines()
    assert usage.startswith("usage: vitviz")
    assert told in error


@pytest.mark.parametrize("text", ["2,3", "2, 3", " 2 ,3 "])
def test_a_patch_may_be_typed_with_spaces(text: str) -> None:
    assert _parser().parse_args(["attention", "a.png", "--query", text]).query == (2, 3)


def test_the_process_ends_with_the_status(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    script = Path(__file__).parents[2] / "vitviz" / "cli" / "__main__.py"
    monkeypatch.setattr(sys, "argv", ["vitviz", "attention", "gone.png"])
    with pytest.raises(SystemExit) as caught:
        runpy.run_path(str(script), run_name="__main__")
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith("vitviz: gone.png: no such file")


def test_an_interrupt_is_told_without_a_traceback(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("vitviz.cli.command.read", interrupted)
    assert main(["attention", "a.png"]) == 130
    assert capsys.readouterr().err == "\nvitviz: interrupted\n"


# The app.


# In how many the process was told to compute.
THREADS: list[int | None] = []


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Model, dict[str, object]]]:
    """The app as it was started: with which model, and where."""
    started = []

    class Demo:
        def __init__(self, model: Model, knobs: Knobs) -> None:
            self.model, self.knobs = model, knobs

    def serve(demo: Demo, knobs: Knobs, **options: object) -> None:
        if options["server_port"] == 7000:
            raise OSError("Cannot find empty port in range: 7000-7000")
        assert knobs == demo.knobs
        started.append((demo.model, options))

    monkeypatch.setattr("vitviz.ui.build_demo", Demo)
    monkeypatch.setattr("vitviz.ui.serve", serve)
    monkeypatch.setattr("vitviz.ui.hosting.prepare", THREADS.append)
    THREADS.clear()
    return started


def test_the_app_is_launched_where_it_is_told(launched: list[tuple[Model, dict[str, object]]], capsys: Capture) -> None:
    assert main(["app"]) == 0
    assert main(["app", "--host", "0.0.0.0", "--port", "7999"]) == 0
    assert [options for _, options in launched] == [
        {"server_name": None, "server_port": None},
        {"server_name": "0.0.0.0", "server_port": 7999},
    ]
    assert [model.name for model, _ in launched] == [BUNDLED[0]] * 2
    assert main(["app", "--port", "7000"]) == 2
    assert capsys.readouterr().err == "vitviz: Cannot find empty port in range: 7000-7000\n"


def test_the_environment_sets_what_the_app_may_take(
    launched: list[tuple[Model, dict[str, object]]], monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("VITVIZ_THREADS", "1")
    monkeypatch.setenv("VITVIZ_UPLOAD_BYTES", "5 MiB")
    assert main(["app"]) == 0
    assert THREADS == [1] and len(launched) == 1
    monkeypatch.setenv("VITVIZ_THREADS", "all")
    assert main(["app"]) == 2
    assert capsys.readouterr().err == "vitviz: VITVIZ_THREADS = 'all': expected a whole number above 0\n"


def test_the_app_opens_with_the_checkpoint_that_it_is_told(
    launched: list[tuple[Model, dict[str, object]]], tmp_path: Path, checkpoint: Path
) -> None:
    timm = write_timm(tmp_path)
    assert main(["app", "--checkpoint", str(checkpoint)]) == 0
    assert main(["app", "--checkpoint", str(timm), "--family", "timm", *said(TIMM | {"heads": 2})]) == 0
    assert [model.name for model, _ in launched] == ["small", "timm"]
    assert launched[1][0].network.config.heads == 2
    assert main(["app", "--checkpoint", str(tmp_path / "gone")]) == 2
    assert len(launched) == 2


# Checkpoints of others.

TIMM = {"heads": 4, "activation": "gelu", "norm_epsilon": 1e-6, "pooling": "cls"}
DINO = {"heads": 3}


def said(overrides: dict[str, Any]) -> list[str]:
    """Facts as the command takes them."""
    return [word for fact, value in overrides.items() for word in ("--fact", f"{fact}={value}")]


def write_timm(folder: Path, size: tuple[int, int] = (32, 32)) -> Path:
    """A checkpoint in timm's layout with random weights: 16 features an input for 2 classes, patches of 8."""
    path = folder / "timm.safetensors"
    save_file(timm_state(size), path)
    return path


def timm_state(size: tuple[int, int] = (32, 32), width: int = 48) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    shapes: dict[str, nn.Module] = {
        "patch_embed.proj": nn.Conv2d(3, width, 8),
        "norm": nn.LayerNorm(width),
        "head": nn.Linear(width, 2),
    }
    for layer in range(2):
        parts = {"attn.qkv": (width, 3 * width), "attn.proj": (width, width)}
        parts |= {"mlp.fc1": (width, 96), "mlp.fc2": (96, width)}
        shapes |= {f"blocks.{layer}.{name}": nn.Linear(*sides) for name, sides in parts.items()}
        shapes |= {f"blocks.{layer}.norm{number}": nn.LayerNorm(width) for number in (1, 2)}
    state = {f"{name}.{part}": tensor for name, one in shapes.items() for part, tensor in one.state_dict().items()}
    patches = (size[0] // 8) * (size[1] // 8)
    state |= {"cls_token": torch.randn(1, 1, width), "pos_embed": torch.randn(1, patches + 1, width)}
    return {name: tensor + torch.randn_like(tensor) * 0.2 for name, tensor in state.items()}


def write_dino(folder: Path) -> Path:
    """A checkpoint in DINO's own layout, as wide as its smallest."""
    state = {key: tensor for key, tensor in timm_state(width=192).items() if not key.startswith("head.")}
    path = folder / "dino.pth"
    torch.save({"teacher": {f"backbone.{key}": tensor for key, tensor in state.items()}, "epoch": 3}, path)
    return path


def write_transformers(folder: Path) -> Path:
    """A folder with a ViT in the layout of transformers and its configuration."""
    state = timm_state()
    names = {
        "blocks.": "vit.encoder.layer.",
        "norm1": "layernorm_before",
        "norm2": "layernorm_after",
        "attn.proj": "attention.output.dense",
        "mlp.fc1": "intermediate.dense",
        "mlp.fc2": "output.dense",
        "head.": "classifier.",
        "cls_token": "vit.embeddings.cls_token",
        "pos_embed": "vit.embeddings.position_embeddings",
        "patch_embed.proj": "vit.embeddings.patch_embeddings.projection",
    }
    renamed = {}
    for key, tensor in state.items():
        for name, other in names.items():
            key = key.replace(name, other)
        if "attn.qkv" in key:
            for part, third in zip(("query", "key", "value"), tensor.chunk(3), strict=True):
                renamed[key.replace("attn.qkv", f"attention.attention.{part}")] = third.clone()
        else:
            renamed[key.replace("norm.", "vit.layernorm.") if key.startswith("norm.") else key] = tensor
    config = {"model_type": "vit", "hidden_size": 48, "num_attention_heads": 4, "num_hidden_layers": 2}
    config |= {"intermediate_size": 96, "image_size": 32, "patch_size": 8, "id2label": {"0": "blue", "1": "red"}}
    target = folder / "vit-folder"
    target.mkdir()
    save_file(renamed, target / "model.safetensors")
    (target / "config.json").write_text(json.dumps(config))
    return target


WRITERS: dict[str, tuple[Callable[[Path], Path], dict[str, Any]]] = {
    "timm": (write_timm, TIMM),
    "DINO": (write_dino, DINO),
    "transformers": (write_transformers, {}),
}
FOREIGN = pytest.mark.parametrize(("write", "overrides"), WRITERS.values(), ids=WRITERS)


@FOREIGN
def test_inspect_says_everything_and_how_it_is_known(
    write: Callable[[Path], Path], overrides: dict[str, Any], tmp_path: Path, capsys: Capture
) -> None:
    path = write(tmp_path)
    assert main(["inspect", str(path), *said(overrides)]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    check_table(shown.out, read(path, **overrides))


def test_inspect_reads_vitvizs_own_format_too(checkpoint: Path, capsys: Capture) -> None:
    for source in (str(checkpoint), BUNDLED[0]):
        assert main(["inspect", source]) == 0
        check_table(capsys.readouterr().out, read(source))


def check_table(shown: str, reading: Any) -> None:
    """Each line begins every column where the others do; put together again, the cells are the checks."""
    lines = shown.splitlines()
    assert all(len(line) <= 100 and line == line.rstrip() for line in lines)
    assert lines[0] == f"{reading.model.name}: {reading.model.parameters:,} parameters"
    if reading.model.assumptions:
        assert lines.pop() == "What is assumed stands in no file; --fact NAME=VALUE says otherwise."
    assert "has its place, and the right shape." in lines[-1]
    header, *table = lines[2:-2]
    columns = [header.index(title) for title in ("fact", "value", "how it is known")]
    assert columns[0] == 0
    rows: list[list[str]] = []
    for line in table:
        ends = [*columns[1:], len(line)]
        cells = [line[start:end] for start, end in zip(columns, ends, strict=True)]
        assert all(cell == "" or cell[0] != " " for cell in cells if cell.strip()), line
        if cells[0].strip():
            rows.append([cell.strip() for cell in cells])
        else:
            rows[-1] = [f"{before} {cell.strip()}".strip() for before, cell in zip(rows[-1], cells, strict=True)]
    expected = [
        [check.fact, check.value, f"assumed: {check.source}" if check.assumed else check.source]
        for check in reading.checks
        if check.fact != "not needed"
    ]
    assert rows[: len(expected)] == expected
    assert {row[2] for row in rows[len(expected) :]} == set(reading.ignored.values())


def test_keys_that_are_not_needed_are_told_by_their_reason(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "mae.pth"
    state = timm_state() | {f"decoder_blocks.{number}.weight": torch.zeros(2) for number in range(60)}
    torch.save(state, path)
    assert main(["inspect", str(path), *said(TIMM)]) == 0
    shown = capsys.readouterr().out
    assert shown.count("decoder_blocks") == 2
    assert "and 58 more" in " ".join(shown.split())
    assert shown.count("not needed") == 1
    assert "Every other tensor of the file" in shown


def test_a_long_value_goes_on_in_its_own_column(capsys: Capture, tmp_path: Path) -> None:
    folder = write_transformers(tmp_path)
    preprocessor: dict[str, object] = {"image_processor_type": "ViTImageProcessor", "size": 32}
    preprocessor |= {"image_mean": [0.481, 0.458, 0.408], "image_std": [0.269, 0.261, 0.276]}
    (folder / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    assert main(["inspect", str(folder)]) == 0
    shown = capsys.readouterr().out
    check_table(shown, read(folder))
    lines = shown.splitlines()
    at = next(index for index, line in enumerate(lines) if line.startswith("preprocessing"))
    assert lines[at + 1].startswith(" " * lines[2].index("value"))


def test_facts_and_family_reach_the_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    path = write_timm(tmp_path, size=(24, 48))
    assert main(["inspect", str(path), *said(TIMM)]) == 2, "18 patches are no square"
    assert "say image_size=(height, width)" in capsys.readouterr().err
    assert main(["inspect", str(path), *said(TIMM), "--fact", "image_size=24x48", "--family", "timm"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "heads 4 said" in shown
    assert "grid 3×6 patches" in shown
    given = []

    def spy(source: str, **options: object) -> object:
        given.append((source, {name: value for name, value in options.items() if name != "report"}))
        return read(source, **options)

    monkeypatch.setattr("vitviz.cli.command.read", spy)
    typed = ["--family", "timm", *said(TIMM), "--fact", "image_size=24x48", "--fact", "norm_epsilon=1e-5"]
    assert main(["inspect", str(path), *typed, "--fact", "pooling=mean", "--fact", "heads=2"]) == 0
    told = {"family": "timm", **TIMM, "heads": 2, "image_size": (24, 48), "norm_epsilon": 1e-5, "pooling": "mean"}
    assert given == [(str(path), told)]


@FOREIGN
def test_a_method_runs_on_a_checkpoint_of_others(
    write: Callable[[Path], Path], overrides: dict[str, Any], photo: Path, tmp_path: Path, capsys: Capture
) -> None:
    path, output = write(tmp_path), photo.with_name("map.png")
    arguments = [
        "attention",
        str(photo),
        "--checkpoint",
        str(path),
        *said(overrides),
        "-o",
        str(output),
        "--query",
        "1,2",
    ]
    assert main(arguments) == 0
    heatmap = analyze(photo, load(path, **overrides)).attention(query=(1, 2))
    assert same_pixels(output, heatmap.overlay(mark=(1, 2)))
    assert capsys.readouterr().out == f"{heatmap.description}\nwritten to {output}\n"


def summary(found: Accuracy) -> str:
    """The last line of an evaluation."""
    low, high = found.interval()
    return (
        f"top-1 accuracy {found.top1:.2%} ({low:.1%} to {high:.1%}) of {found.images} images, cross-entropy "
        f"{found.loss:.3f}, expected calibration error {found.calibration_error:.1%}"
    )


def test_a_checkpoint_of_others_is_evaluated(colours: Path, tmp_path: Path, capsys: Capture) -> None:
    path = write_transformers(tmp_path)
    model = load(path)
    assert model.labels == ("blue", "red")
    assert main(["evaluate", str(colours), "--checkpoint", str(path)]) == 0
    expected = evaluate(
        model.network, model.preprocessing, read_image_folder(colours, "test", model.preprocessing, 8, 8)
    )
    shown = capsys.readouterr().out.splitlines()
    assert shown[-1] == summary(expected)
    assert main(["evaluate", str(colours), "--checkpoint", str(write_timm(tmp_path)), *said(TIMM)]) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert "images: classes blue, red; timm knows class 0, class 1, in this order" in told


# Names.


def test_models_lists_every_name_under_its_family(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    there = {model.repository for number, model in enumerate(ZOO.values()) if number % 3 == 0}
    assert there
    monkeypatch.setattr("vitviz.cli.command.is_cached", there.__contains__)
    assert main(["models"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    lines = shown.out.splitlines()
    assert all(len(line) <= 100 and line == line.rstrip() for line in lines)
    headings = [line for line in lines if line and not line.startswith(" ")]
    assert headings == [*dict.fromkeys(model.family for model in ZOO.values()), "Bundled"]
    heading, listed = "", {}
    for at, line in enumerate(lines):
        heading = line if line and not line.startswith(" ") else heading
        entry = re.match(r"  (\S+) {2,}(.*)$", line)
        if entry:
            listed[entry[1]] = (heading, entry[2], lines[at + 1].strip() if at + 1 < len(lines) else "")
    assert list(listed) == [*ZOO, BUNDLED[0]]
    for name, model in ZOO.items():
        heading, described, source = listed[name]
        cost = "downloaded" if model.repository in there else f"{model.megabytes:,.0f} MB to download"
        assert heading == model.family
        assert described == f"{model.title}, {model.input_size} pixels, {model.licence}, {cost}"
        assert source == f"hf:{model.repository}"
    said = " ".join(shown.out.split())
    for family, sentence in {(model.family, model.known_for) for model in ZOO.values()}:
        assert sentence in said.split(family, 1)[1]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A hub with the checkpoint ``small-one``."""
    with HubServer() as server:
        server.use(monkeypatch, tmp_path / "home")
        (tmp_path / "made").mkdir()
        files = {"model.safetensors": write_timm(tmp_path / "made").read_bytes()}
        server.add("someone/small", files, lfs=("model.safetensors",))
        entry = NamedModel("small-one", "Z", "ViT", "someone/small", 2.0, "mit", 32, "Small.", overrides=TIMM)
        monkeypatch.setitem(ZOO, "small-one", entry)
        yield server
    huggingface_hub.close_session()


def test_what_models_says_of_the_cache_is_so(
    server: HubServer, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    assert main(["models"]) == 0
    assert re.search(r"small-one +ViT, 32 pixels, mit, 2 MB to download", capsys.readouterr().out)
    load("small-one")
    assert main(["models"]) == 0
    assert re.search(r"small-one +ViT, 32 pixels, mit, downloaded", capsys.readouterr().out)


def test_the_bar_of_a_download_does_not_stand_in_what_is_printed(
    server: HubServer, photo: Path, capsys: Capture
) -> None:
    output = photo.with_name("map.png")
    arguments = ["attention", str(photo), "--checkpoint", "small-one", "-o", str(output)]
    assert main(arguments) == 0
    first = capsys.readouterr()
    heatmap = analyze(photo, load("small-one")).attention()
    assert first.out == f"{heatmap.description}\nwritten to {output}\n"
    assert "someone/small: 100%" in first.err
    assert first.err.endswith("\n"), "what comes next begins on a line of its own"
    assert main(arguments) == 0
    again = capsys.readouterr()
    assert (again.out, again.err) == (first.out, ""), "nothing is downloaded twice"


def test_a_download_that_fails_ends_with_one_line(server: HubServer, photo: Path, capsys: Capture) -> None:
    server.fault(404, "GET model.safetensors")
    assert main(["inspect", "small-one"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines()[-1].startswith("vitviz: someone/small: ")
    assert "Traceback" not in said.err


def test_an_unknown_name_is_answered_with_near_ones(capsys: Capture) -> None:
    assert main(["inspect", "dino_vits61"]) == 2
    assert "did you mean 'dino_vits16'" in capsys.readouterr().err


# Evaluation and training.


def write_images(root: Path, classes: dict[str, tuple[int, int, int]], **counts: int) -> Path:
    random = np.random.default_rng(0)
    for split, count in counts.items():
        for label, colour in classes.items():
            (root / split / label).mkdir(parents=True)
            for number in range(count):
                pixels = np.array(colour) + random.normal(0, 20, (8, 8, 3))
                Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(root / split / label / f"{number}.png")
    return root


def test_evaluate_prints_the_accuracy(checkpoint: Path, tmp_path: Path, capsys: Capture) -> None:
    colours = {f"class {index}": (50 * index, 255 - 60 * index, 128) for index in range(5)}
    folder = write_images(tmp_path / "images", colours, val=3)
    assert main(["evaluate", str(folder), "--checkpoint", str(checkpoint)]) == 0
    model = load(checkpoint)
    expected = evaluate(
        model.network, model.preprocessing, read_image_folder(folder, "test", model.preprocessing, 4, 4)
    )
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[-2] for line in lines[:5]] == [f"{part:.1%}" for part in expected.per_class.values()]
    assert [line.split("  ")[-3].strip() for line in lines[:5]] == list(model.labels)
    ends = ["({:.1%} to {:.1%})".format(*expected.interval(label)) for label in model.labels]
    assert [line.split("  ")[-1] for line in lines[:5]] == ends
    assert lines[5:] == [summary(expected)]
    assert 0 < expected.top1 < 1


def test_evaluate_refuses_images_of_other_classes(checkpoint: Path, tmp_path: Path, capsys: Capture) -> None:
    folder = write_images(tmp_path / "images", {"cat": (1, 2, 3)}, test=1)
    assert main(["evaluate", str(folder), "--checkpoint", str(checkpoint)]) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert "images: classes cat; small knows class 0, class 1, class 2, class 3, class 4" in told


TINY = ["--image-size", "8", "--patch-size", "2", "--width", "16", "--depth", "1", "--heads", "2", "--batch-size", "8"]
TINY += ["--epochs", "3", "--muon-rate", "0.02", "--adam-rate", "0.02", "--no-flip", "--evaluate-every", "1"]


@pytest.fixture
def colours(tmp_path: Path) -> Path:
    return write_images(tmp_path / "images", {"red": (220, 40, 30), "blue": (30, 40, 220)}, train=12, test=4)


def test_a_model_is_trained_evaluated_and_used(colours: Path, photo: Path, capsys: Capture) -> None:
    output = photo.with_name("run")
    assert main(["train", str(colours), str(output), *TINY]) == 0
    trained = output / loop.CHECKPOINT
    told = re.search(r"top-1 accuracy ([\d.]+)% of 8 test images\nwritten to (.*)\n$", capsys.readouterr().out)
    assert told is not None
    assert float(told[1]) > 80
    assert told[2] == str(trained)

    assert main(["evaluate", str(colours), "--checkpoint", str(trained)]) == 0
    assert re.search(rf"top-1 accuracy {told[1]}% \(.*\) of 8 images", capsys.readouterr().out)

    picture = photo.with_name("map.png")
    assert main(["attention", str(photo), "--checkpoint", str(trained), "-o", str(picture), "--query", "3,3"]) == 0
    model = load(trained)
    assert model.labels == ("blue", "red")
    assert same_pixels(picture, analyze(photo, model).attention(query=(3, 3)).overlay(mark=(3, 3)))


def test_an_interrupted_training_says_how_it_continues(
    colours: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["train", str(colours), str(tmp_path / "run"), *TINY]
    average = loop.average_into

    def interrupted(averaged: torch.nn.Module, network: torch.nn.Module, step: int, decay: float) -> None:
        if step == 4:
            raise KeyboardInterrupt
        average(averaged, network, step, decay)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "average_into", interrupted)
        assert main(command) == 130
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == "vitviz: interrupted; the same command continues after the last whole epoch"
    assert torch.load(tmp_path / "run" / loop.STATE, weights_only=True)["epoch"] == 1

    seen = []
    monkeypatch.setattr(loop, "average_into", lambda *arguments: (seen.append(arguments[2]), average(*arguments)))
    assert main(command) == 0
    assert seen == [3, 4, 5, 6, 7, 8]
    assert main([*command, "--seed", "1"]) == 2
    assert "belongs to another run (seed was 0, now 1)" in capsys.readouterr().err


def test_every_setting_of_a_run_has_an_option_that_reaches_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given = []

    class Stop(Exception):
        pass

    def train(images: Path, output: Path, config: TrainingConfig, snapshots: int, resume_from: Path | None) -> None:
        given.append((images, output, config))
        assert snapshots == (7 if "--snapshots" in arguments else 12)
        assert resume_from == (Path("other/compact.pt") if "--resume-from" in arguments else None)
        raise Stop

    monkeypatch.setattr(loop, "train", train)
    changed = TrainingConfig(
        **{"image_size": 64, "patch_size": 8, "width": 96, "depth": 2, "heads": 3, "mlp_ratio": 2.5},
        **{"register_tokens": 4, "epochs": 7, "batch_size": 8, "muon_rate": 0.1, "adam_rate": 0.2},
        **{"weight_decay": 0.3, "warmup": 0.4, "label_smoothing": 0.5, "low_resolution": 0.6, "average_decay": 0.7},
        **{"low_scale": 0.5, "smallest_scale": 0.25, "images_per_epoch": 16, "class_balance": 0.75, "cooldown": 0.5},
        **{"evaluate_every": 3, "seed": 9},
        augmentation=Augmentation(smallest_crop=0.8, aspect=1.5, flip=False, jitter=0.9, mix=0.25),
    )
    settings = {**vars(changed), **vars(changed.augmentation)}
    del settings["augmentation"]
    # A setting left at its default could be lost unseen.
    assert not settings.items() & {**vars(TrainingConfig()), **vars(Augmentation())}.items()
    options = []
    for name, value in settings.items():
        flag = name.replace("_", "-")
        options += [f"--no-{flag}"] if value is False else [f"--{flag}", str(value)]
    small = replace(PRESETS["grey"], epochs=3, augmentation=replace(PRESETS["grey"].augmentation, mix=0.25))
    presets = [(["--preset", name], config) for name, config in PRESETS.items()]
    presets += [
        (["--preset", "grey", "--epochs", "3", "--mix", "0.25"], small),
        (["--preset", "grey", *options], changed),
        (["--snapshots", "7", "--resume-from", "other/compact.pt", *options], changed),
    ]
    for arguments, config in (([], TrainingConfig()), (options, changed), *presets):
        with pytest.raises(Stop):
            main(["train", "images", str(tmp_path), *arguments])
        assert given.pop() == (Path("images"), tmp_path, config)


@pytest.mark.parametrize(("command", "missing"), [("train", "tensorboard")])
def test_a_missing_extra_is_told_with_the_line_that_installs_it(
    command: str, missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    for name, module in list(sys.modules.items()):
        package, _, own = name.rpartition(".")
        if package == "vitviz.training":
            # An import puts a module into its package too: both come back after the test.
            monkeypatch.setattr(sys.modules[package], own, module)
        if name.startswith(("vitviz.training.", "torch.utils.tensorboard", f"{missing}.")) or name == missing:
            monkeypatch.delitem(sys.modules, name)
    imported = builtins.__import__

    def without(name: str, *arguments: Any, **options: Any) -> Any:
        if name.partition(".")[0] == missing:
            raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)
        return imported(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    assert main([command, str(tmp_path), *([str(tmp_path)] if command == "train" else [])]) == 2
    assert capsys.readouterr().err == f"vitviz: this needs {missing}: pip install 'vitviz[train]'\n"


# Help.


def parsers() -> dict[str, argparse.ArgumentParser]:
    """The parser of every command by its name, and the whole one as ``""``."""
    whole = _parser()
    action = next(action for action in whole._actions if isinstance(action, argparse._SubParsersAction))
    return {"": whole, **action.choices}


COMMANDS = list(parsers())


def test_there_is_a_command_for_every_method() -> None:
    assert set(COMMANDS) == {
        "",
        *map(command_of, METHODS),
        "models",
        "inspect",
        "verify",
        "app",
        "explore",
        "evaluate",
        "evaluate-methods",
        "check-methods",
        "describe-heads",
        "train",
    }


@pytest.mark.parametrize(
    "command", [*map(command_of, METHODS), "inspect", "app", "evaluate", "check-methods", "describe-heads"]
)
def test_every_command_that_opens_a_checkpoint_takes_any(command: str) -> None:
    actions = {action.dest: action for action in parsers()[command]._actions}
    assert {"checkpoint", "family", "overrides"} <= actions.keys()
    assert all(family.name in str(actions["family"].help) for family in FAMILIES)
    assert ({"device", "precision"} <= actions.keys()) == (command != "inspect"), "to be looked at, it computes nothing"
    if command != "inspect":
        assert actions["checkpoint"].default == BUNDLED[0]
        assert actions["precision"].choices == PRECISIONS


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_explained(command: str, capsys: Capture) -> None:
    for action in parsers()[command]._actions:
        if not isinstance(action, argparse._SubParsersAction):
            assert action.help, f"{command} {action.dest} has no help"
            assert len(action.help) > 10
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"] if command else ["--help"])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: vitviz {command}".rstrip())
    for action in parsers()[command]._actions:
        assert all(option in shown for option in action.option_strings)


def test_the_list_of_commands_says_what_each_does(capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    whole = parsers()[""]
    action = next(action for action in whole._actions if isinstance(action, argparse._SubParsersAction))
    explained = {part.dest: part.help for part in action._choices_actions}
    assert set(explained) == set(action.choices)
    assert all(f"{name} {text}" in shown for name, text in explained.items())
