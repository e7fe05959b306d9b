"""Folders and configurations that cannot be trained are refused at once."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.training import COLOURS, PLAIN, SMALL, write_folder
from vitviz import ConfigError, DataError
from vitviz.training import data as data_module
from vitviz.training import loop
from vitviz.training.data import read_image_folder
from vitviz.training.presets import PRESETS, TrainingConfig

# Refusals.

FOLDERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no train": (lambda root: shutil.rmtree(root / "train"), r"no folder train/ in it; expected train/CLASS/IMAGE"),
    "no folder": (shutil.rmtree, r"no such folder in .*; expected test/"),
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
    "one class": (lambda root: [shutil.rmtree(each) for each in root.glob("*/[!r]*")], "one class alone, 'red'"),
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
    ({"heads": 5}, "width = 192: expected a multiple of heads = 5"),
    ({"warmup": 1.5}, r"warmup = 1\.5: expected a number from 0 to 1"),
    ({"smallest_crop": 0.0}, r"smallest_crop = 0\.0"),
    ({"label_smoothing": float("nan")}, "label_smoothing = nan"),
    ({"learning_rate": -1.0}, r"learning_rate = -1\.0: expected at least 0"),
    ({"image_size": 30}, "image of 30×30 pixels .* multiple of the patch"),
    ({"patch_size": 0}, "patch_size = 0"),
    ({"mlp_ratio": 0.0}, "mlp_width = 0"),
    ({"register_tokens": -1}, "register_tokens = -1"),
    ({"pooling": "median"}, "pooling"),
]


@pytest.mark.parametrize(("changes", "message"), CONFIGS, ids=[next(iter(changes)) for changes, _ in CONFIGS])
def test_a_configuration_out_of_range_is_refused_at_once(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainingConfig(**changes)


@pytest.mark.parametrize(("image_size", "patch_size", "low"), [(32, 4, 24), (224, 16, 160), (8, 4, 8), (4, 4, 4)])
def test_low_resolution_is_a_whole_number_of_patches(image_size: int, patch_size: int, low: int) -> None:
    config = TrainingConfig(
        image_size=image_size, patch_size=patch_size, epochs=8, low_resolution=0.5, smallest_scale=0.75
    )
    assert [config.sides(epoch) for epoch in range(4)] == [(low,)] * 4
    assert {low, image_size} <= set(config.sides(4))


@pytest.mark.parametrize(("preset", "sides"), [("cifar10", (24, 44, 64)), ("photos", (48, 80, 112)), ("grey", (28,))])
def test_a_preset_ends_with_all_of_its_grids(preset: str, sides: tuple[int, ...]) -> None:
    config = PRESETS[preset]
    assert config.sides(0) == sides[:1] and config.sides(config.epochs) == sides
