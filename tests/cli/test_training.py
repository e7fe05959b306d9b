"""`vitviz train` and `vitviz evaluate`."""

from __future__ import annotations

import builtins
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.commands import Capture, same_pixels, summary, write_images
from vitviz import analyze, load
from vitviz.cli.command import main
from vitviz.training import loop
from vitviz.training.config import PRESETS, TrainingConfig
from vitviz.training.data import read_image_folder
from vitviz.training.evaluate import evaluate
from vitviz.weights import save_checkpoint
from vitviz.weights.detector import OODDetector

# Evaluation and training.


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


@pytest.mark.slow
def test_evaluate_tells_other_things_and_measures_classes_together(
    checkpoint: Path, tmp_path: Path, capsys: Capture
) -> None:
    colours = {f"class {index}": (50 * index, 255 - 60 * index, 128) for index in range(5)}
    folder = write_images(tmp_path / "images", colours, val=3)
    others = write_images(tmp_path / "others", {"x": (255, 0, 255), "y": (0, 0, 0)}, test=4) / "test"
    command = ["evaluate", str(folder), "--checkpoint", str(checkpoint), "--ood", str(others)]
    assert main([*command, "--class", "class 1", "--class", "class 4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"class 1, class 4 together: top-1 accuracy [\d.]+% \(.*\) of 6 images", lines[5])
    model = load(checkpoint)

    def energies(paths: list[Path]) -> list[float]:
        return [analyze(path, model).energy_score for path in paths]

    known, unknown = energies(sorted((folder / "val").rglob("*.*"))), energies(sorted(others.rglob("*.*")))
    above = sum((one > other) + (one == other) / 2 for one in known for other in unknown) / (len(known) * len(unknown))
    assert lines[7] == f"energy: area under the curve {above:.3f}, test images against 8 others"
    assert [line.partition(":")[0] for line in lines[8:]] == ["highest logit", "highest probability"]

    # With a detector there is one more score, and what the app would say.
    size = model.network.config.heads * model.network.config.head_width
    detector = OODDetector(torch.zeros(size), torch.eye(size), 1.0, 2.0, 0.0)
    scores = {}
    for name, folder_of in (("known", folder / "val"), ("unknown", others)):
        paths = sorted(folder_of.rglob("*.*"))
        scores[name] = [analyze(path, replace(model, ood_detector=detector)).ood_score for path in paths]
    threshold = float(np.mean(sorted(scores["unknown"])[3:5]))
    save_checkpoint(
        tmp_path / "detects.safetensors", replace(model, ood_detector=replace(detector, threshold=threshold))
    )
    assert main([*command[:3], str(tmp_path / "detects.safetensors"), *command[4:]]) == 0
    lines = capsys.readouterr().out.splitlines()
    area = np.mean([(one > other) + (one == other) / 2 for one in scores["known"] for other in scores["unknown"]])
    assert lines[-2] == f"OOD detector: area under the curve {area:.3f}, test images against 8 others"
    below = [np.mean([score < threshold for score in each]) for each in scores.values()]
    found = re.fullmatch(r"called out of distribution: ([\d.]+)% of the test .*, ([\d.]+)% of the others", lines[-1])
    assert found and [float(each) for each in found.groups()] == pytest.approx([100 * each for each in below], abs=0.06)

    (tmp_path / "nothing").mkdir()
    assert main([*command[:-1], str(tmp_path / "nothing")]) == 2
    assert "nothing: no image in it; expected pictures" in capsys.readouterr().err


def test_evaluate_takes_images_of_some_of_the_classes(checkpoint: Path, tmp_path: Path, capsys: Capture) -> None:
    model = load(checkpoint)
    names = {"class 4": (9, 9, 9), "class 1": (200, 30, 90)}
    folder = write_images(tmp_path / "images", names, test=3)
    assert main(["evaluate", str(folder), "--checkpoint", str(checkpoint)]) == 0
    right = {
        name: [analyze(path, model).predictions(1)[0].label == name for path in (folder / "test" / name).iterdir()]
        for name in sorted(names)
    }
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[-3].strip() for line in lines[:2]] == sorted(names)
    assert [line.split("  ")[-2] for line in lines[:2]] == [f"{sum(each) / 3:.1%}" for each in right.values()]
    assert lines[2].startswith(f"top-1 accuracy {sum(map(sum, right.values())) / 6:.2%} ")
    assert len(lines) == 3


def test_what_has_no_accuracy_of_one_label_is_refused(checkpoint: Path, tmp_path: Path, capsys: Capture) -> None:
    folder = write_images(tmp_path / "images", {"class 1": (9, 9, 9)}, test=1)
    model = load(checkpoint)
    twins = replace(model, labels=("class 1", "class 1", *model.labels[2:]))
    several = load(checkpoint)
    several.network.config = replace(several.network.config, probability="sigmoid")
    for other, words in (
        (twins, "has several classes called class 1; expected one of each"),
        (several, "probabilities of its outputs are 'sigmoid'; expected 'softmax', one label of several classes"),
    ):
        save_checkpoint(tmp_path / "other.safetensors", other)
        assert main(["evaluate", str(folder), "--checkpoint", str(tmp_path / "other.safetensors")]) == 2
        assert words in capsys.readouterr().err
    save_checkpoint(
        tmp_path / "native.safetensors", replace(model, preprocessing=replace(model.preprocessing, fit="native"))
    )
    assert main(["evaluate", str(folder), "--checkpoint", str(tmp_path / "native.safetensors")]) == 0
    assert capsys.readouterr().out.startswith("pictures are squashed to one shape")


TINY = ["--image-size", "8", "--patch-size", "2", "--width", "16", "--depth", "1", "--heads", "2", "--batch-size", "8"]
TINY += ["--epochs", "3", "--learning-rate", "0.02", "--no-flip", "--evaluate-every", "1"]


@pytest.mark.slow
def test_a_model_is_trained_evaluated_and_used(colours: Path, photo: Path, capsys: Capture) -> None:
    output = photo.with_name("run")
    terms = "for research"
    assert main(["train", str(colours), str(output), *TINY, "--terms", terms]) == 0
    trained = output / loop.CHECKPOINT
    match = re.search(r"top-1 accuracy ([\d.]+)% of 8 test images\nwritten to (.*)\n$", capsys.readouterr().out)
    assert match is not None
    assert float(match[1]) > 80
    assert match[2] == str(trained)

    assert main(["evaluate", str(colours), "--checkpoint", str(trained)]) == 0
    assert re.search(rf"top-1 accuracy {match[1]}% \(.*\) of 8 images", capsys.readouterr().out)

    picture = photo.with_name("map.png")
    assert main(["attention", str(photo), "--checkpoint", str(trained), "-o", str(picture), "--query", "3,3"]) == 0
    model = load(trained)
    assert model.labels == ("blue", "red") and model.card["terms"] == terms
    assert same_pixels(picture, analyze(photo, model).attention(query=(3, 3)).overlay(mark=(3, 3)))


@pytest.mark.slow
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
    captured = capsys.readouterr().err.splitlines()[-1]
    assert captured == "vitviz: interrupted; the same command continues after the last whole epoch"
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

    def train(images: Path, output: Path, config: TrainingConfig, snapshots: int, terms: str) -> None:
        given.append((images, output, config))
        assert snapshots == (7 if "--snapshots" in arguments else 12)
        raise Stop

    monkeypatch.setattr(loop, "train", train)
    changed = TrainingConfig(
        **{"image_size": 64, "patch_size": 8, "width": 96, "depth": 2, "heads": 3, "mlp_ratio": 2.5},
        **{"register_tokens": 4, "pooling": "mean", "epochs": 7, "batch_size": 8, "learning_rate": 0.1},
        **{"weight_decay": 0.3, "warmup": 0.4, "label_smoothing": 0.5, "low_resolution": 0.7, "smallest_scale": 0.25},
        **{"average_decay": 0.7, "evaluate_every": 3, "seed": 9, "color_profile": "ignore", "smallest_crop": 0.8},
        **{"flip": False, "jitter": 0.9, "mix": 0.25},
    )
    settings = vars(changed)
    # A setting left at its default could be lost unseen.
    assert not settings.items() & vars(TrainingConfig()).items()
    options = []
    for name, value in settings.items():
        flag = name.replace("_", "-")
        options += [f"--no-{flag}"] if value is False else [f"--{flag}", str(value)]
    small = replace(PRESETS["grey"], epochs=3, mix=0.25)
    presets = [(["--preset", name], config) for name, config in PRESETS.items()]
    presets += [
        (["--preset", "grey", "--epochs", "3", "--mix", "0.25"], small),
        (["--preset", "grey", *options], changed),
        (["--snapshots", "7", *options], changed),
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
