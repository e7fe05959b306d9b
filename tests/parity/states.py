"""State dicts to be changed and read again: that of a case, and a small one that needs no package."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tests.parity.case import Case
from tests.support.checkpoints import State
from tests.support.reading import read_checkpoint
from vitviz.errors.kinds import CheckpointError
from vitviz.weights.formats.files import open_weights
from vitviz.weights.formats.names import WEIGHT_FILE_NAMES
from vitviz.weights.read import Reading


def save(path: Path, state: Mapping[str, Any]) -> None:
    """A state dict in the format that the name of the file means."""
    if path.suffix == ".safetensors":
        save_file(dict(state), path, {"format": "pt"})
    elif path.suffix == ".npz":
        np.savez(path, **state)
    else:
        torch.save(dict(state), path)


@cache
def made(case: Case) -> tuple[TemporaryDirectory[str], Path]:
    """The checkpoint of a case, written once: the folder, which lives as long as this answer, and the path in it."""
    folder = TemporaryDirectory()
    torch.manual_seed(0)
    return folder, case.make(Path(folder.name)).path.relative_to(folder.name)


class Kept:
    """A copy of the checkpoint of a case on disk.

    Args:
        case: a case with one state dict in one file.
        folder: where to, empty.
    """

    def __init__(self, case: Case, folder: Path) -> None:
        source, path = made(case)
        shutil.copytree(source.name, folder, dirs_exist_ok=True)
        self.path, self.overrides = folder / path, case.overrides
        inside = [self.path / name for name in WEIGHT_FILE_NAMES if (self.path / name).is_file()]
        self.file = inside[0] if inside else self.path
        self.opened = open_weights(self.path)
        self.state = {key: self.opened.read("", key) for key in self.opened.groups[""]}

    def read(self, state: Mapping[str, torch.Tensor], **overrides: Any) -> Reading:
        """What vitviz makes of another state dict in its place."""
        save(self.file, state)
        return read_checkpoint(self.path, **{**self.overrides, **overrides})

    def read_from_memory(self, state: Mapping[str, torch.Tensor]) -> Reading:
        """The same without a file: for hundreds of state dicts, of which the keys and the shapes are in question."""
        held = replace(self.opened, groups={"": state})
        # A function of the same name hides the module from a patch by name in Python 3.10.
        with patch.object(import_module("vitviz.weights.read"), "open_weights", return_value=held):
            return read_checkpoint(self.path, **self.overrides)

    def without(self, *keys: str) -> dict[str, torch.Tensor]:
        return {key: tensor for key, tensor in self.state.items() if key not in keys}


# Of the small state dict that tests.support.checkpoints makes.

WIDTH, HIDDEN = 192, 48

# What state dicts of timm leave open, as the small one has it.
OPEN = {"heads": 3, "activation": "gelu", "norm_epsilon": 1e-6, "pooling": "cls", "position_rule": "bicubic offset"}


def read(content: Any, folder: Path, name: str = "small.pth", **overrides: Any) -> Reading:
    """A checkpoint with these facts, and with those of the small one that are not among them; None leaves one out."""
    torch.save(content, folder / name)
    given = {fact: value for fact, value in {**OPEN, **overrides}.items() if value is not None}
    return read_checkpoint(folder / name, **given)


def refusal(content: Any, folder: Path, name: str = "small.pth", **overrides: Any) -> str:
    """Why a checkpoint is refused, in one short line that names the file."""
    with pytest.raises(CheckpointError) as caught:
        read(content, folder, name, **overrides)
    message = str(caught.value)
    assert message.startswith(f"{name}: ") and "\n" not in message and len(message) < 900
    return message


def facts_of(reading: Reading) -> dict[str, str]:
    return {check.fact: check.value for check in reading.checks}


def prefixed(prefix: str, state: Mapping[str, torch.Tensor]) -> State:
    return {prefix + key: tensor for key, tensor in state.items()}


def answer(reading: Reading) -> torch.Tensor:
    return reading.model.network(torch.ones(1, 3, 32, 32))
