"""What every format of weights is read as: tensors that are listed first and loaded one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NoReturn

import torch

from vitviz.errors.kinds import CheckpointError

EXPECTED = "safetensors, a file of torch.save or npz"
FLOATS = ("float32", "float16", "bfloat16", "float64")
READABLE = (*FLOATS, "bool", "uint8", "int8", "int16", "int32", "int64")


@dataclass(frozen=True)
class TensorInfo:
    """A tensor's shape, and the name of its dtype without "torch."."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, eq=False)
class LazyTensor:
    """A tensor in a file and the function that loads it.

    ``load`` is None if it is no dense tensor; ``special`` says what it is instead.
    """

    info: TensorInfo
    load: Callable[[], torch.Tensor] | None
    special: str = ""


@dataclass(frozen=True, eq=False)
class FileContent:
    """The tensors of a file by group, and its other entries; see :class:`~vitviz.weights.formats.files.WeightFile`."""

    kind: str
    groups: Mapping[str, Mapping[str, LazyTensor]]
    beside: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    # The size of the file, or of all files of the checkpoint.
    file_bytes: int = 0
    # Names of classes whose objects were skipped.
    skipped: tuple[str, ...] = ()


def refuse(name: str, problem: str, expected: str = "a checkpoint as it was written") -> NoReturn:
    """Raise the error about a file."""
    raise CheckpointError(f"{name}: {problem}; expected {expected}")
