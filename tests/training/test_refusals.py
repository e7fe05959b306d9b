"""Folders and configurations that cannot be trained are refused at once."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.training import COLOURS, PLAIN, SMALL, write_folder
from vitviz import (
    ConfigError,
    DataError,
)
from vitviz.training import data as data_module
from vitviz.training import loop
from vitviz.training.config import Augmentation, TrainingConfig
from vitviz.training.data import read_image_folder

# Refusals.

FOLDERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no train": (lambda root: shutil.rmtree(root / "train"), r"no folder train/ in it; expected train/CLASS/IMAGE"),
    "no test": (lambda root: shutil.rmtree(root / "test"), r"no folder test/ or val/ or validation/ in it"),
    "no class": (lambda root: [shutil.rmtree(root / "test" / name) for name in COLOURS], "test: no class folder in it"),
    "empty class": (
        lambda root: (root / "train" / "yellow").mkdir(),
        "train: no image in yellow; expected CLASS/IMAGE",
    ),
    "classes differ": (
        lambda root: (root / "test" / "red").rename(root / "test" / "violet"),
        "red only in train; violet only in test; expected the same classes",
    ),
    "class missing": (lambda root: shutil.rmtree(root / "test" / "red"), r"images: red only in train; expected"),
    "no batch": (
        lambda root: shutil.rmtree(root / "train") or write_folder(root, train=3),
        "9 training images are less",
    ),
}


@pytest.mark.parametrize(("damage", "message"), FOLDERS.values(), ids=FOLDERS)
def test_a_folder_that_cannot_be_trained_on_is_refused(
    folder: Path, tmp_path: Path, damage: Callable[[Path], object], message: str
) -> None:
    root = shutil.copytree(folder, tmp_path / "images")
    damage(root)
    with pytest.raises(DataError, match=message):
        loop.train(root, tmp_path / "run", SMALL)
    assert not (tmp_path / "run").exists()


def test_more_images_than_memory_are_refused_before_they_are_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_module, "MAX_IMAGE_BYTES", 36 * 3 * 8 * 8)
    assert len(read_image_folder(folder, "train", PLAIN, 2, 2)) == 36
    monkeypatch.setattr(data_module, "MAX_IMAGE_BYTES", 36 * 3 * 8 * 8 - 1)
    monkeypatch.setattr(data_module, "open_image", None)
    with pytest.raises(DataError, match=r"train: 36 decoded images take .* GiB; at most .* GiB"):
        read_image_folder(folder, "train", PLAIN, 2, 2)


CONFIGS = [
    ({"epochs": 0}, "epochs = 0: expected at least 1"),
    ({"batch_size": 0}, "batch_size = 0"),
    ({"evaluate_every": 0}, "evaluate_every = 0"),
    ({"heads": 5}, "width = 192: expected a multiple of heads = 5"),
    ({"warmup": 1.5}, "warmup = 1.5"),
    ({"cooldown": -0.1}, "cooldown = -0.1"),
    ({"class_balance": 1.1}, "class_balance = 1.1"),
    ({"images_per_epoch": 255}, "images_per_epoch = 255: expected 0 or at least batch_size = 256"),
    ({"label_smoothing": float("nan")}, "label_smoothing = nan"),
    ({"average_decay": 1.1}, "average_decay = 1.1"),
    ({"muon_rate": -1.0}, "muon_rate = -1.0: expected a number of 0 or more"),
    ({"adam_rate": float("inf")}, "adam_rate = inf"),
    ({"weight_decay": float("nan")}, "weight_decay = nan"),
    ({"image_size": 30}, "image of 30×30 pixels .* multiple of the patch"),
    ({"patch_size": 0}, "patch_height = 0"),
    ({"depth": 0}, "depth = 0"),
    ({"mlp_ratio": 0.0}, "mlp_width = 0"),
    ({"register_tokens": -1}, "register_tokens = -1"),
    ({"colour_frequencies": -1}, "colour_frequencies = -1: expected 0 to patch_size = 4"),
    ({"picture_detail": -1}, "picture_detail = -1: expected 0 or more"),
    ({"largest_scale": 0.9}, "largest_scale = 0.9: expected a number of 1 or more"),
    ({"feature_weight": -1.0}, "feature_weight = -1.0: expected a number of 0 or more"),
    ({"colour_frequencies": 5}, "colour_frequencies = 5"),
]


@pytest.mark.parametrize(("changes", "message"), CONFIGS, ids=[next(iter(changes)) for changes, _ in CONFIGS])
def test_a_configuration_out_of_range_is_refused_at_once(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainingConfig(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"smallest_crop": 0.0},
        {"smallest_crop": 1.1},
        {"aspect": 0.9},
        {"jitter": -0.1},
        {"mix": 2.0},
        {"detail": 0.0},
        {"plain_ground": 1.5},
        {"colour_detail": 1.1},
        {"greyscale": 1.1},
        {"solarize": -0.1},
        {"greyscale": 0.6, "solarize": 0.5},
        {"sharpest": -0.1},
        {"sharpest": float("inf")},
    ],
)
def test_an_augmentation_out_of_range_is_refused(changes: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(changes))} = "):
        Augmentation(**changes)


@pytest.mark.parametrize(
    ("image_size", "patch_size", "low"), [(32, 4, 24), (224, 16, 160), (8, 2, 6), (8, 4, 8), (4, 4, 4)]
)
def test_low_resolution_is_a_whole_number_of_patches(image_size: int, patch_size: int, low: int) -> None:
    config = TrainingConfig(image_size=image_size, patch_size=patch_size, epochs=8, low_resolution=0.5)
    assert [config.sides(epoch) for epoch in range(8)] == [(low,)] * 4 + [(image_size,)] * 4


def test_later_epochs_have_several_sides_of_whole_patches() -> None:
    config = TrainingConfig(
        image_size=64, patch_size=4, epochs=4, low_resolution=0.5, low_scale=0.375, smallest_scale=0.5
    )
    assert [config.sides(epoch) for epoch in range(4)] == [(24,)] * 2 + [(32, 48, 64)] * 2
    larger = replace(config, largest_scale=1.5)
    assert [larger.sides(epoch) for epoch in range(4)] == [(24,)] * 2 + [(32, 48, 64, 96)] * 2
