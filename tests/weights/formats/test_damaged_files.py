"""What is no checkpoint, or a damaged one, is refused in one line that names it."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitviz
from tests.support.weight_files import Tensors, expect_refusal, npy_of_shape, state, writers
from vitviz import CheckpointError, ImageError
from vitviz.weights.formats.files import open_weights

DAMAGED = "cannot be read, or is damaged"
FILES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", rf"{DAMAGED} \(it is empty\); expected safetensors, a file of torch.save or npz"),
    "zeros": (bytes(4096), DAMAGED),
    "text": (b"not a checkpoint, only some text\n" * 20, rf"{DAMAGED} \(it begins with b'not a checkpoint'\)"),
    "an array": (npy_of_shape("(4,)"), "a single NumPy array"),
    "an archive of zeros": (b"PK\x03\x04" + bytes(100), DAMAGED),
    "a pickle of values": (pickle.dumps({"w": 1.5}), DAMAGED),
    "a header of safetensors past the end": (struct.pack("<Q", 2**20) + b'{"w": 1}', DAMAGED),
}


@pytest.mark.parametrize(("content", "found"), FILES.values(), ids=FILES)
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_a_file_that_is_no_checkpoint_is_refused(tmp_path: Path, content: bytes, found: str, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    path.write_bytes(content)
    with expect_refusal(path.name, found):
        open_weights(path)


@pytest.mark.slow
@writers
def test_a_file_that_is_cut_is_refused(tmp_path: Path, save: Callable[[Tensors, Path], object]) -> None:
    save({"w": torch.randn(3), "x": torch.randn(5)}, tmp_path / "whole")
    content = (tmp_path / "whole").read_bytes()
    for length in range(0, len(content), max(1, len(content) // 50)):
        (tmp_path / "cut").write_bytes(content[:length])
        with expect_refusal("cut", DAMAGED):
            open_weights(tmp_path / "cut")


def test_an_archive_with_python_objects_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "file.npz", w=np.ones(2), x=np.array([{}], object))
    with expect_refusal("file.npz", "Object arrays cannot be loaded"):
        open_weights(tmp_path / "file.npz")


def test_a_file_that_may_not_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(tmp_path))

    torch.save(state(), tmp_path / "file")
    monkeypatch.setattr(Path, "open", denied)
    with expect_refusal("file", rf"{DAMAGED} \(Permission denied\)"):
        open_weights(tmp_path / "file")


def test_a_name_cannot_reach_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "\x1b[31m\n.pth"
    torch.save({"w": torch.tensor([float("nan")])}, path)
    with expect_refusal(r"'\x1b[31m\n.pth'", "not finite"):
        open_weights(path).read("", "w")
    path.write_bytes(b"")
    with expect_refusal(r"'\x1b[31m\n.pth'", DAMAGED):
        open_weights(path)


# Whatever is passed as a path.

NO_PATHS = (
    *("x" * 5000, "/" + "x/" * 3000, "a\0b", "\ud800", "\udcff", "   ", "a\nb", "C:\\x" * 2000, "~nobody/x"),
    *("hf:" + "x" * 5000 + "/y", "hf:a\0/b", "hf:", Path("x" * 5000), Path("a\0b"), Path("\ud800")),
    *(b"x", 5, None, []),
)


@pytest.mark.parametrize(
    ("opener", "error"), [(vitviz.load, CheckpointError), (vitviz.open_image, ImageError)], ids=["load", "open_image"]
)
@pytest.mark.parametrize("source", NO_PATHS, ids=lambda source: ascii(source)[:20])
def test_what_names_no_file_is_refused_in_one_line(
    opener: Callable[[Any], object], error: type[Exception], source: object
) -> None:
    if (opener, source) == (vitviz.open_image, b"x"):
        pytest.skip("bytes are a picture")
    with pytest.raises(error) as refusal:
        opener(source)
    message = str(refusal.value)
    assert message.isprintable() and len(message) < 1500
    assert message.encode()
