"""The images of a folder and their batches."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from unicodedata import normalize

import numpy as np
import pytest
import torch
from einops import rearrange, repeat
from PIL import Image

from tests.support.colour_profiles import gamma_profile
from tests.support.training import PLAIN, grey_images, write_folder
from vitviz import ImageError, Preprocessing
from vitviz.images.colours import SRGB_CHROMATICITIES
from vitviz.training.data import read_image_folder, training_batches
from vitviz.training.presets import TrainingConfig

# The images and their batches.


@pytest.mark.parametrize(
    ("preprocessing", "mode"), [(PLAIN, "RGB"), (Preprocessing(8, 8, (0.5,), (0.5,), "native"), "L")]
)
def test_a_folder_is_read_in_the_order_of_classes_and_names(
    folder: Path, preprocessing: Preprocessing, mode: str
) -> None:
    data = read_image_folder(folder, "test", preprocessing, 2, 2)
    assert data.labels == ("blue", "green", "red")
    assert data.targets.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert data.images.dtype == torch.uint8 and data.images.shape == (12, len(mode), 8, 8)
    for index, path in enumerate(sorted((folder / "test").rglob("*.png"))):
        expected = np.asarray(Image.open(path).convert(mode)).reshape(8, 8, -1)
        np.testing.assert_array_equal(rearrange(data.images[index], "channel ... -> ... channel"), expected)


@pytest.mark.parametrize("name", ["val", "validation"])
def test_val_serves_as_test(folder: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(folder / "test", tmp_path / name)
    data = read_image_folder(tmp_path, "test", PLAIN, 2, 2)
    assert torch.equal(data.images, read_image_folder(folder, "test", PLAIN, 2, 2).images)


def test_hidden_files_and_other_files_are_no_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_folder(tmp_path, train=2)
    (tmp_path / "train" / ".cache").mkdir()
    (tmp_path / "train" / "notes.txt").write_text("no class")
    for name in ("._0.png", "Thumbs.db", "notes.txt"):
        (tmp_path / "train" / "red" / name).write_bytes(b"no image")
    (tmp_path / "train" / "red" / "0.png").rename(tmp_path / "train" / "red" / "no ending")
    assert read_image_folder(tmp_path, "train", PLAIN, 2, 2).targets.tolist() == [0, 0, 1, 1, 2, 2]
    assert (
        "train: 3 files left out: red/._0.png (hidden); notes.txt, red/notes.txt (not a picture)"
        in capsys.readouterr().out
    )


def test_colours_follow_a_profile_unless_stored_values_are_kept(tmp_path: Path) -> None:
    write_folder(tmp_path, train=2)
    plain = read_image_folder(tmp_path, "train", PLAIN, 2, 2)
    for path in (tmp_path / "train").rglob("*.png"):
        Image.open(path).save(path, icc_profile=gamma_profile(1.0, SRGB_CHROMATICITIES))
    assert read_image_folder(tmp_path, "train", PLAIN, 2, 2, "ignore").images.equal(plain.images)
    assert not read_image_folder(tmp_path, "train", PLAIN, 2, 2).images.equal(plain.images)


def test_an_image_that_cannot_be_opened_is_named_with_its_folder(tmp_path: Path) -> None:
    write_folder(tmp_path, train=2)
    (tmp_path / "train" / "red" / "1.png").write_bytes(b"no image")
    with pytest.raises(ImageError, match=re.escape(str(Path("train", "red", "1.png")))):
        read_image_folder(tmp_path, "train", PLAIN, 2, 2)


FOUR = TrainingConfig(image_size=8, batch_size=4, label_smoothing=0.3, low_resolution=0)


def batches(seed: int, config: TrainingConfig, count: int = 10) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return list(training_batches(grey_images(count), PLAIN, replace(config, seed=seed), 0))


@pytest.mark.parametrize(("count", "seen"), [(10, 8), (12, 12)])
def test_an_epoch_sees_an_image_at_most_once_and_whole_batches_only(count: int, seen: int) -> None:
    drawn_batches = batches(0, replace(FOUR, jitter=0, mix=0), count)
    assert {len(pixels) for pixels, _ in drawn_batches} == {4}
    pixels, targets = (torch.cat(tensors) for tensors in zip(*drawn_batches, strict=True))
    indices = (pixels * 25.5 - 1).mean((1, 2, 3)).round().long()
    torch.testing.assert_close(pixels, repeat((indices + 1) / 25.5, "image -> image 3 8 8"))
    assert len(indices) == len(set(indices.tolist())) == seen
    assert indices.tolist() != sorted(indices.tolist())
    expected = torch.full((seen, 3), 0.1)
    expected[range(seen), indices % 3] = 0.8
    torch.testing.assert_close(targets, expected)


def test_an_epoch_follows_from_its_seed() -> None:
    torch.manual_seed(1)
    first = batches(7, FOUR)
    torch.manual_seed(2)
    second, other = batches(7, FOUR), batches(8, FOUR)
    assert all(torch.equal(a, b) and torch.equal(c, d) for (a, c), (b, d) in zip(first, second, strict=True))
    assert not torch.equal(first[0][0], other[0][0])


def test_pixels_are_standardised_after_the_augmentation() -> None:
    standard = replace(PLAIN, mean=(0.5, 0.4, 0.3), std=(0.5, 0.25, 0.2))
    plain, _ = next(training_batches(grey_images(4), PLAIN, FOUR, 0))
    pixels, _ = next(training_batches(grey_images(4), standard, FOUR, 0))
    mean, std = (torch.tensor(values)[:, None, None] for values in (standard.mean, standard.std))
    torch.testing.assert_close(pixels * std + mean, plain)


@pytest.mark.skipif(os.name != "posix", reason="links need a privilege")
def test_class_folders_may_be_links_and_have_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, name in enumerate(("store/deep/a.png", "set/test/dog/b.png")):
        (tmp_path / name).parent.mkdir(parents=True)
        Image.new("RGB", (4, 4), (number, 0, 0)).save(tmp_path / name)
    (tmp_path / "set" / "test" / "cat").symlink_to(tmp_path / "store")
    (tmp_path / "set" / "test" / "cow").symlink_to(tmp_path / "gone")
    (tmp_path / "set" / "test" / "me").symlink_to(".")
    Image.new("RGB", (4, 4)).save(tmp_path / "set" / "test" / "loose.png")
    data = read_image_folder(tmp_path / "set", "test", PLAIN, 2, 2)
    printed = capsys.readouterr().out
    reasons = (
        "me (a link to a folder that leads to it)",
        "cow (a link to nothing)",
        "loose.png (in no folder of a class)",
    )
    assert "test: 3 files left out: " in printed and all(reason in printed for reason in reasons)
    assert data.labels == ("cat", "dog") and data.targets.tolist() == [0, 1]
    assert data.images[:, 0, 0, 0].tolist() == [0, 1]


def test_a_class_may_have_its_letters_composed_in_two_ways(tmp_path: Path) -> None:
    for number, form in enumerate(("NFC", "NFD")):
        folder = tmp_path / "test" / normalize(form, "é")
        folder.mkdir(parents=True)
        Image.new("RGB", (4, 4)).save(folder / f"{number}.png")
    data = read_image_folder(tmp_path, "test", PLAIN, 2, 2)
    assert data.labels == (normalize("NFC", "é"),) and data.targets.tolist() == [0, 0]
