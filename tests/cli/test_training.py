"""`vitviz train` and `vitviz evaluate`."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.commands import Capture, summary, write_images
from vitviz import analyze, load
from vitviz.cli.command import main
from vitviz.training import loop
from vitviz.training.data import read_image_folder
from vitviz.training.evaluate import evaluate
from vitviz.training.presets import PRESETS, TrainingConfig
from vitviz.weights import save_checkpoint

# Evaluation and training.


@pytest.mark.slow
def test_evaluate_prints_accuracies(checkpoint: Path, tmp_path: Path, capsys: Capture) -> None:
    names = ["class 0", "class 1", "class 4"]
    colours = {name: (50 * number, 255 - 120 * number, 128) for number, name in enumerate(names)}
    folder = write_images(tmp_path / "images", colours, val=3)
    others = write_images(tmp_path / "others", {"x": (255, 0, 255), "y": (200, 180, 40)}, test=4)
    model = load(checkpoint)
    known = [analyze(path, model) for path in sorted((folder / "val").rglob("*.*"))]
    options = ["--checkpoint", str(checkpoint), "--class", "class 1", "--class", "class 4"]
    assert main(["evaluate", str(folder), *options]) == 0
    *rows, joint, whole = capsys.readouterr().out.splitlines()

    images = read_image_folder(folder, "test", model.preprocessing, 4, 4).with_labels(model.labels)
    found = evaluate(model.network, model.preprocessing, images)
    right = [each.predictions(1)[0].label == names[number // 3] for number, each in enumerate(known)]
    shares = {name: sum(right[3 * number :][:3]) / 3 for number, name in enumerate(names)}
    assert found.per_class == shares and 0 < found.top1 < 1
    ends = {name: "({:.1%} to {:.1%})".format(*found.interval(name)) for name in names}
    assert rows == [f"{name:>16}  {shares[name]:.1%}  {ends[name]}" for name in names]
    both = "({:.1%} to {:.1%})".format(*found.interval(*names[1:]))
    assert joint == f"class 1, class 4 together: top-1 accuracy {sum(right[3:]) / 6:.2%} {both} of 6 images"
    assert whole == summary(found)

    assert main(["evaluate", str(others), *options]) == 2
    assert f"others: unknown classes x, y; {model.name} knows class 0" in capsys.readouterr().err


def test_evaluate_computes_where_the_model_is(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, devices = write_images(tmp_path / "images", {"Class_1": (9, 9, 9)}, test=1), []

    def spy(network: Any, preprocessing: Any, images: Any, device: torch.device) -> torch.Tensor:
        devices.append((device, network.device, network.precision))
        return torch.zeros(1, 5)

    monkeypatch.setattr("vitviz.training.evaluate.logits_of", spy)
    assert main(["evaluate", str(folder), "--checkpoint", str(checkpoint), "--precision", "bfloat16"]) == 0
    assert devices == [(torch.device("cpu"), torch.device("cpu"), torch.bfloat16)]


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
def test_a_model_is_trained_and_opens(colours: Path, tmp_path: Path, capsys: Capture) -> None:
    output, terms = tmp_path / "run", "for research"
    assert main(["train", str(colours), str(output), *TINY, "--terms", terms]) == 0
    trained = output / loop.CHECKPOINT
    match = re.search(r"top-1 accuracy ([\d.]+)% of 8 test images\nwritten to (.*)\n$", capsys.readouterr().out)
    assert match is not None
    assert float(match[1]) > 80
    assert match[2] == str(trained)

    model = load(trained)
    assert model.labels == ("blue", "red") and model.card["terms"] == terms


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


def test_a_missing_extra_is_told_with_the_line_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    for name, module in list(sys.modules.items()):
        package, _, own = name.rpartition(".")
        if package == "vitviz.training":
            # An import puts a module into its package too: both come back after the test.
            monkeypatch.setattr(sys.modules[package], own, module)
        if name.startswith(("vitviz.training.", "torch.utils.tensorboard")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    assert main(["train", str(tmp_path), str(tmp_path)]) == 2
    assert capsys.readouterr().err == "vitviz: this needs tensorboard: pip install 'tensorboard>=2.21'\n"
