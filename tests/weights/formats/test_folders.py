"""Folders, and checkpoints in several files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
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


@pytest.mark.parametrize(
    ("save", "suffix", "kind"),
    [(save_file, "safetensors", "sharded safetensors"), (torch.save, "bin", "sharded torch")],
)
def test_a_checkpoint_in_several_files_is_one(tmp_path: Path, save: Save, suffix: str, kind: str) -> None:
    index, tensors = shard(tmp_path, save, suffix)
    file = open_weights(index)
    assert (file.name, file.kind, file.folder) == (index.name, kind, tmp_path)
    check_same(read_all(file), tensors)


def test_files_may_be_links_to_elsewhere_as_in_a_download_cache(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    index, tensors = shard(tmp_path / "blobs")
    for path in sorted((tmp_path / "blobs").iterdir()):
        (tmp_path / "snapshot" / path.name).symlink_to(path)
    check_same(read_all(open_weights(tmp_path / "snapshot")), tensors)
    file = open_weights(tmp_path / "snapshot" / index.name)
    assert file.folder == tmp_path / "snapshot"


INDEXES: dict[str, tuple[object, str]] = {
    "the folder above": ({"a": "../one.safetensors"}, r"it names '\.\./one\.safetensors'; expected files beside it"),
    "an absolute path": ({"a": "/etc/passwd"}, "it names '/etc/passwd'; expected files beside it"),
    "a folder below": ({"a": "x/one.safetensors"}, "expected files beside it"),
    "a path of Windows": ({"a": "C:\\one.safetensors"}, "expected files beside it"),
    "a drive": ({"a": "C:one.safetensors"}, "expected files beside it"),
    "the folder": ({"a": "."}, "expected files beside it"),
    "the parent": ({"a": ".."}, "expected files beside it"),
    "an empty name": ({"a": ""}, "expected files beside it"),
    "a name with a line": ({"a": "one\n.safetensors"}, r"'one\\n\.safetensors'; expected files beside it"),
    "a name with a zero": ({"a": "one\0"}, "expected files beside it"),
    "half a character": ({"a": "\ud800"}, "expected files beside it"),
    "a missing file": ({"a": "three.safetensors"}, "'three.safetensors', which is not there"),
    "a name of 5,000 letters": ({"a": "x" * 5000}, "File name too long|which is not there"),
    "itself": ({"a": "x.index.json"}, "x.index.json: it begins with"),
    "another index": ({"a": "model.safetensors.index.json"}, "it begins with"),
    "a file of something else": ({"a": "note.txt"}, "note.txt: it begins with"),
    "a pointer": ({"a": "pointer.safetensors"}, "a git-lfs pointer"),
    "an npz": ({"a": "arrays.npz"}, "arrays.npz: npz with groups"),
    "a nested checkpoint": ({"a": "nested.bin"}, "nested.bin: torch with groups 'model'"),
    "a key that is not there": (
        {"a": "one.safetensors", "b": "one.safetensors", "z": "two.safetensors", "c": "two.safetensors"},
        "two.safetensors: it lacks 'z'",
    ),
    "a key too few": ({"a": "one.safetensors", "c": "two.safetensors"}, "one.safetensors: it has, beyond it, 'b'"),
    "a key in the other file": (
        {"a": "one.safetensors", "b": "two.safetensors", "c": "two.safetensors"},
        "one.safetensors: it has, beyond it, 'b'|two.safetensors: it lacks 'b'",
    ),
    "two kinds": ({"a": "one.safetensors", "b": "one.safetensors", "z": "three.bin"}, "safetensors and torch"),
    "no places": ({}, "JSON without a weight_map of file names"),
    "places as a list": (["one.safetensors"], "JSON without a weight_map"),
    "places as numbers": ({"a": 1}, "JSON without a weight_map"),
    "too many files": ({f"{index}": f"{index}" for index in range(5000)}, "5,000 files; expected at most 1,000"),
}


@pytest.mark.parametrize(("places", "found"), INDEXES.values(), ids=INDEXES)
def test_an_index_that_lies_is_refused(tmp_path: Path, places: object, found: str) -> None:
    shard(tmp_path)
    (tmp_path / "note.txt").write_text("only some text")
    (tmp_path / "pointer.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n")
    np.savez(tmp_path / "arrays.npz", a=np.ones(3, "f4"))
    torch.save({"model": {"a": W}}, tmp_path / "nested.bin")
    torch.save({"z": W}, tmp_path / "three.bin")
    index = write_index(tmp_path / "x.index.json", places)
    with pytest.raises(CheckpointError, match=found) as caught:
        open_weights(index)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 700


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b'{"weight_map": {"a": "x", "a": "y"}}', "its JSON cannot be read"),
        (b'{"weight_map": ', "its JSON cannot be read"),
        (b'{"a":' * 100_000, "its JSON cannot be read"),
        (b'{"weight_map": {"a": "\xff"}}', "its JSON cannot be read"),
        (b'{"architectures": ["ViTModel"]}', "JSON without a weight_map"),
        (b'        {"architectures": ["ViTModel"]}', "JSON without a weight_map"),
        (b'{"abcd":{"weight_map": 1}}', "JSON without a weight_map"),
        (b'{"a": "' + b"x" * (16 * 2**20) + b'"}', "JSON of 16,777,225 bytes; expected at most 8,388,608"),
    ],
    ids=["twice", "cut", "deep", "not UTF-8", "config", "spaces", "a brace in the ninth place", "large"],
)
def test_json_that_is_no_index_is_refused(tmp_path: Path, content: bytes, found: str) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with expect_refusal("config.json", found):
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
    assert (file.name, file.folder) == ("vit-base", folder)


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ((), "no weights in this folder; expected model.safetensors or one file .safetensors, .pth"),
        (("notes.txt",), "no weights in this folder"),
        (("a.pth", "b.pth"), "2 weight files in this folder, 'a.pth', 'b.pth'; expected one, or its own path"),
        (("a.safetensors", "b.pth"), "2 weight files in this folder, 'a.safetensors', 'b.pth'"),
        (("a\n.pth", "b.pth"), r"'a\\n.pth', 'b.pth'"),
        (tuple(f"{index:02}.pth" for index in range(20)), "20 weight files .* '03.pth' and 16 more"),
    ],
)
def test_a_folder_of_none_or_several_is_refused_with_them(tmp_path: Path, names: tuple[str, ...], found: str) -> None:
    for name in names:
        (tmp_path / name).write_bytes(b"")
    with expect_refusal(tmp_path.name, found):
        open_weights(tmp_path)


def test_a_damaged_file_in_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    torch.save({"w": W}, tmp_path / "pytorch_model.bin")
    with expect_refusal("model.safetensors", "a git-lfs pointer"):
        open_weights(tmp_path)
