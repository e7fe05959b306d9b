"""Folders, and checkpoints in several files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.support.weight_files import Tensors, W, check_same, expect_refusal, read_all
from vitviz import CheckpointError
from vitviz.weights.formats.files import open_weights

# Folders, and checkpoints in several files.

Save = Callable[[Tensors, Path], object]


def shard(folder: Path, save: Save = save_file, suffix: str = "safetensors") -> tuple[Path, Tensors]:
    """A checkpoint in two files, and its index."""
    tensors = {"a": torch.randn(2), "b": torch.randn(3), "c": torch.randn(4)}
    save({key: tensors[key] for key in "ab"}, folder / f"one.{suffix}")
    save({"c": tensors["c"]}, folder / f"two.{suffix}")
    places = {"a": f"one.{suffix}", "b": f"one.{suffix}", "c": f"two.{suffix}"}
    return write_index(folder / f"model.{suffix}.index.json", places), tensors


def write_index(path: Path, places: object) -> Path:
    path.write_text(json.dumps({"metadata": {"total_size": 36}, "weight_map": places}))
    return path


@pytest.mark.parametrize(("save", "suffix"), [(save_file, "safetensors"), (torch.save, "bin")])
def test_a_checkpoint_in_several_files_is_one(tmp_path: Path, save: Save, suffix: str) -> None:
    index, tensors = shard(tmp_path, save, suffix)
    file = open_weights(index)
    assert (file.name, file.path) == (index.name, index)
    check_same(read_all(file), tensors)


def test_files_may_be_links_to_elsewhere_as_in_a_download_cache(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    index, tensors = shard(tmp_path / "blobs")
    for path in sorted((tmp_path / "blobs").iterdir()):
        (tmp_path / "snapshot" / path.name).symlink_to(path)
    check_same(read_all(open_weights(tmp_path / "snapshot")), tensors)
    assert open_weights(tmp_path / "snapshot" / index.name).path.parent == tmp_path / "snapshot"


INDEXES: dict[str, tuple[object, str]] = {
    "a missing file": ({"a": "three.safetensors"}, r"^three\.safetensors: .*\(No such file or directory\)"),
    "a pointer": ({"a": "pointer.safetensors"}, r"^pointer\.safetensors: a git-lfs pointer"),
    "the folder above": ({"a": "../one.safetensors"}, r"^x\.index\.json: cannot be read"),
    "no places": ({}, r"^x\.index\.json: cannot be read"),
    "places as a list": (["one.safetensors"], r"^x\.index\.json: cannot be read"),
}


@pytest.mark.parametrize(("places", "found"), INDEXES.values(), ids=INDEXES)
def test_an_index_of_files_that_are_not_there_is_refused(tmp_path: Path, places: object, found: str) -> None:
    shard(tmp_path)
    (tmp_path / "pointer.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n")
    with pytest.raises(CheckpointError, match=found):
        open_weights(write_index(tmp_path / "x.index.json", places))


@pytest.mark.parametrize("content", [b'{"weight_map": ', b'{"architectures": ["ViTModel"]}'], ids=["cut", "config"])
def test_json_that_is_no_index_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with expect_refusal("config.json", "cannot be read"):
        open_weights(tmp_path / "config.json")


def named(folder: Path, *names: str) -> None:
    """Files that say in a tensor which they are."""
    for number, name in enumerate(names):
        if name.endswith(".index.json"):
            save_file({"w": torch.tensor(float(number))}, folder / f"{number}.shard")
            write_index(folder / name, {"w": f"{number}.shard"})
        elif name.endswith(".safetensors"):
            save_file({"w": torch.tensor(float(number))}, folder / name)
        else:
            torch.save({"w": torch.tensor(float(number))}, folder / name)


@pytest.mark.parametrize(
    "names",
    [
        ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "a.safetensors", "b.pth"),
        ("model.safetensors.index.json", "pytorch_model.bin", "one.safetensors", "two.safetensors"),
        ("open_clip_model.safetensors", "open_clip_pytorch_model.bin", "pytorch_model.bin"),
        ("pytorch_model.bin", "pytorch_model.bin.index.json", "training_args.bin"),
        ("pytorch_model.bin.index.json", "one.bin", "two.bin"),
        ("open_clip_pytorch_model.bin", "more.bin"),
        ("vit.safetensors",),
        ("vit.PTH",),
        ("vit.safetensors", "vit.bin", "vit.pth"),
        ("vit.ckpt", "notes.txt"),
    ],
)
def test_a_folder_opens_by_its_usual_file_or_the_only_one(tmp_path: Path, names: tuple[str, ...]) -> None:
    folder = tmp_path / "vit-base"
    folder.mkdir()
    named(folder, *names)
    (folder / "config.json").write_text("{}")
    file = open_weights(f"{folder}{os.sep}")
    assert file.read("", "w") == 0
    assert (file.name, file.path.parent) == ("vit-base", folder)


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ((), "no weights; expected model.safetensors or one file .safetensors, .pth"),
        (("notes.txt",), "no weights, only 'notes.txt'; expected"),
        (("checkpoint-5.pth/",), "no weights, only 'checkpoint-5.pth/'; expected"),
        (("a.pth", "b.pth"), "2 files of weights, 'a.pth', 'b.pth'; expected model.safetensors or .*, or its own path"),
        (("a.safetensors", "b.pth"), "2 files of weights, 'a.safetensors', 'b.pth'"),
        (("a\n.pth", "b.pth"), r"'a\\n.pth', 'b.pth'"),
        (tuple(f"{index:02}.pth" for index in range(20)), "20 files of weights, .* '03.pth' and 16 more"),
    ],
)
def test_a_folder_of_none_or_several_is_refused_with_them(tmp_path: Path, names: tuple[str, ...], found: str) -> None:
    for name in names:
        (tmp_path / name).mkdir() if name.endswith("/") else (tmp_path / name).touch()
    with expect_refusal(tmp_path.name, found):
        open_weights(tmp_path)


def test_a_damaged_file_in_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    torch.save({"w": W}, tmp_path / "pytorch_model.bin")
    with expect_refusal("model.safetensors", "a git-lfs pointer"):
        open_weights(tmp_path)


def test_folders_of_other_packages_are_refused_with_the_line_that_makes_a_file(tmp_path: Path) -> None:
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / ".metadata").write_bytes(b"x")
    (tmp_path / "saved" / "__0_0.distcp").write_bytes(b"x")
    for path in (tmp_path / "saved", tmp_path / "saved" / "__0_0.distcp"):
        with expect_refusal(path.name, r"dcp_to_torch_save\(folder, 'weights\.pth'\)"):
            open_weights(path)
    (tmp_path / "lora").mkdir()
    (tmp_path / "lora" / "adapter_config.json").write_text("{}")
    torch.save({"a": torch.ones(1)}, tmp_path / "lora" / "adapter_model.bin")
    with expect_refusal("adapter_model.bin", r"peft\.PeftModel\.from_pretrained\(base, folder\)\.merge_and_unload\(\)"):
        open_weights(tmp_path / "lora")
