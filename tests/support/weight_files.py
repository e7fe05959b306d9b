"""Checkpoint files in every format, and checks of their content and of refusals."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from vitviz import CheckpointError
from vitviz.weights.formats.tensors import WeightFile

Tensors = dict[str, torch.Tensor]


@contextmanager
def expect_refusal(name: str, *patterns: str) -> Iterator[None]:
    """The body is refused with one line that names the file and matches the patterns."""
    with pytest.raises(CheckpointError) as caught:
        yield
    message = str(caught.value)
    assert message.startswith(f"{name}: "), message
    for pattern in patterns:
        assert re.search(pattern, message), f"{pattern!r} is not in {message!r}"
    assert message.isprintable(), repr(message)
    assert len(message) < 700


def read_all(file: WeightFile, group: str = "") -> Tensors:
    return {key: file.read(group, key) for key in file.groups[group]}


def check_same(found: Tensors, expected: Mapping[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for key, tensor in expected.items():
        assert found[key].dtype == torch.float32
        assert found[key].is_contiguous()
        assert torch.equal(found[key], tensor.detach().float()), key


def state() -> Tensors:
    return {"embed/kernel": torch.randn(4, 3), "blocks.0.bias": torch.randn(7), "scale": torch.tensor(2.5)}


# Functions that write tensors.


def save_npz(tensors: Tensors, path: Path) -> None:
    with open(path, "wb") as file:
        np.savez(file, **{key: tensor.numpy() for key, tensor in tensors.items()})


def save_npz_compressed(tensors: Tensors, path: Path) -> None:
    with open(path, "wb") as file:
        np.savez_compressed(file, **{key: tensor.numpy() for key, tensor in tensors.items()})


def save_legacy(value: object, path: Path, **options: Any) -> None:
    torch.save(value, path, _use_new_zipfile_serialization=False, **options)


SAVE: dict[str, Callable[[Tensors, Path], object]] = {
    "safetensors": save_file,
    "torch": torch.save,
    "legacy": save_legacy,
    "npz": save_npz,
    "npz, compressed": save_npz_compressed,
}
writers = pytest.mark.parametrize("save", SAVE.values(), ids=SAVE)

W = torch.ones(1)


def npy(header: str, data: bytes = bytes(16), version: bytes = b"\x01\x00") -> bytes:
    return b"\x93NUMPY" + version + struct.pack("<H", len(header)) + header.encode() + data


def npy_of_shape(shape: str, descr: str = "'<f4'", data: bytes = bytes(16)) -> bytes:
    return npy(f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}\n", data)
