"""What is no checkpoint, or a damaged one, is refused in one line that names it."""

from __future__ import annotations

import builtins
import math
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.weight_files import Tensors, expect_refusal, npy_of_shape, state, writers
from vitviz import CheckpointError
from vitviz.weights.formats.files import open_weights

# What is no checkpoint at all.

FILES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "an empty file; expected safetensors, a file of torch.save or npz"),
    "a byte": (b"x", "it begins with 'x'"),
    "zeros": (bytes(4096), "it begins with the bytes 00 00"),
    "text": (b"not a checkpoint, only some text\n" * 20, "it begins with 'not a checkpoint"),
    "a page": (b"\n<!DOCTYPE html><html><head>", "a web page, not the weights"),
    "an old page": (b"<HTML><BODY>404", "a web page, not the weights"),
    "a git-lfs pointer": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 346000000\n",
        "a git-lfs pointer, not the weights",
    ),
    "an image": (b"\x89PNG\r\n\x1a\n" + bytes(100), "it begins with the bytes 89 50 4e 47"),
    "an array": (npy_of_shape("(4,)"), "a single NumPy array"),
    "an archive of zeros": (b"PK\x03\x04" + bytes(100), "damaged, or changed"),
    "a pickle of values": (pickle.dumps({"w": 1.5}), "torch cannot read it|another protocol"),
    "random after a first byte": (b"\x80" + bytes(range(100)), "torch cannot read it|more memory|another protocol"),
    "a first byte": (b"\x80", "torch cannot read it"),
}


@pytest.mark.parametrize(("content", "found"), FILES.values(), ids=FILES)
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_a_file_that_is_no_checkpoint_is_refused(tmp_path: Path, content: bytes, found: str, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    path.write_bytes(content)
    with expect_refusal(path.name, found):
        open_weights(path)


@pytest.mark.slow
@writers
def test_a_file_that_is_cut_anywhere_is_refused_or_reads_as_it_was(
    tmp_path: Path, kind: str, save: Callable[[Tensors, Path], object]
) -> None:
    tensors = {"w": torch.randn(3), "x": torch.randn(5)}
    save(tensors, tmp_path / "whole")
    content = (tmp_path / "whole").read_bytes()
    for length in range(0, len(content), max(1, len(content) // 50)):
        (tmp_path / "cut").write_bytes(content[:length])
        with expect_refusal("cut"):
            open_weights(tmp_path / "cut")


@pytest.mark.slow
@writers
def test_a_file_with_wrong_bytes_is_refused_or_read(
    tmp_path: Path, kind: str, save: Callable[[Tensors, Path], object]
) -> None:
    save({"w": torch.randn(3), "x": torch.randn(5)}, tmp_path / "whole")
    content = (tmp_path / "whole").read_bytes()
    generator = np.random.default_rng(0)
    for _ in range(80):
        wrong = bytearray(content)
        for place in generator.integers(0, len(content), 3):
            wrong[place] = generator.integers(0, 256)
        (tmp_path / "wrong").write_bytes(wrong)
        # Whatever happens is one of ours.
        try:
            file = open_weights(tmp_path / "wrong")
            found = [file.read(group, key) for group, keys in file.groups.items() for key in keys]
        except CheckpointError as error:
            assert str(error).isprintable()
        else:
            assert sum(math.prod(tensor.shape) for tensor in found) < 100


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
@pytest.mark.parametrize(
    ("path", "name", "found"),
    [
        *((path, path, "no such file or folder") for path in ("gone.pth", "C:\\models\\gone.pth")),
        ("no/such/gone.pth", "gone.pth", "no folder 'no' in "),
        ("gone\0.pth", r"'gone\x00.pth'", "no such file or folder"),
        ("x" * 300, "x" * 300, "File name too long|no such file or folder"),
        ("model.safetensors", "model.safetensors", "neither a file nor a folder"),
        ("", "folder", "no weights in this folder"),
        ("/dev/zero", "zero", "neither a file nor a folder"),
    ],
    ids=lambda value: ascii(value)[:20],
)
def test_a_path_that_is_no_file_is_refused(tmp_path: Path, path: str, name: str, found: str) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "folder" / "model.safetensors")
    with expect_refusal(name, found):
        open_weights(tmp_path / "folder" / path)


def test_a_name_cannot_reach_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "\x1b[31m\n.pth"
    torch.save({"w": torch.tensor([float("nan")])}, path)
    with expect_refusal(r"'\x1b[31m\n.pth'", "not finite"):
        open_weights(path).read("", "w")
    path.write_bytes(b"")
    with expect_refusal(r"'\x1b[31m\n.pth'", "empty"):
        open_weights(path)


@writers
def test_a_file_that_may_not_be_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, save: Callable[[Tensors, Path], object]
) -> None:
    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(tmp_path))

    save(state(), tmp_path / "file")
    with monkeypatch.context() as patch:
        patch.setattr(builtins, "open", denied)
        with expect_refusal("file", r"cannot be read \(Permission denied\)"):
            open_weights(tmp_path / "file")
