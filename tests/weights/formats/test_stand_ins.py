"""Objects of other classes in the user's own file are skipped and named, never run; a stranger's file is refused."""

from __future__ import annotations

import datetime
import functools
import pathlib
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitviz
from tests.support.checkpoints import timm_state
from tests.support.pickles import Payload
from tests.support.weight_files import check_same, expect_refusal, read_all
from vitviz.errors.kinds import CheckpointError
from vitviz.weights.formats import stand_ins
from vitviz.weights.formats.files import open_weights
from vitviz.weights.read import read_checkpoint

FACTS: dict[str, Any] = {
    "heads": 3,
    "activation": "gelu",
    "norm_epsilon": 1e-6,
    "pooling": "cls",
    "position_rule": "bicubic offset",
}


needs_safe_torch = pytest.mark.skipif(torch.__version__ < stand_ins.SAFE_TORCH, reason="refused whole")


class ConfigDict(dict[str, Any]):
    """A dict of another class, as libraries of configurations have."""


def _history() -> defaultdict[str, list[float]]:
    history: defaultdict[str, list[float]] = defaultdict(list)
    history["loss"].append(0.5)
    return history


OBJECTS: dict[str, Callable[[], object]] = {
    "pathlib": lambda: pathlib.Path("/data"),
    "datetime": lambda: datetime.datetime.now(datetime.timezone.utc),
    "functools.partial": lambda: functools.partial(int, base=2),
    "torch.nn.modules.linear.Linear": lambda: torch.nn.Linear(2, 2),
    "collections.defaultdict": _history,
    "ConfigDict": lambda: ConfigDict(folder=pathlib.Path("/data"), values=[1, 2]),
}


@needs_safe_torch
@pytest.mark.parametrize("name", OBJECTS)
def test_an_object_is_skipped_and_named(tmp_path: Path, name: str) -> None:
    state, path = timm_state(), tmp_path / "last.ckpt"
    hyper_parameters = {"value": OBJECTS[name](), "deeper": [{"again": OBJECTS[name]()}]}
    torch.save({"state_dict": state, "hyper_parameters": hyper_parameters, "epoch": 3}, path)
    file = open_weights(path, own=True)
    check_same(read_all(file, "state_dict"), state)
    model = vitviz.load(path, **FACTS)
    (skipped,) = (text for text in model.assumptions if text.startswith("skipped objects"))
    assert name in skipped
    with expect_refusal("last.ckpt", "is code"):
        open_weights(path)
    with pytest.raises(CheckpointError, match="is code"):
        read_checkpoint(path, **FACTS)


class Evaluated(Payload):
    """A payload in a name that torch's reader does not block."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return eval, (f"__import__('os').mkdir({str(self.path)!r})",)


@needs_safe_torch
@pytest.mark.parametrize(("payload", "is_blocked"), [(Payload, True), (Evaluated, False)])
def test_a_payload_is_not_run(tmp_path: Path, payload: type[Payload], is_blocked: bool) -> None:
    path, executed = tmp_path / "last.ckpt", tmp_path / "executed"
    torch.save({"state_dict": timm_state(), "hyper_parameters": {"value": payload(executed)}}, path)
    if is_blocked:
        with expect_refusal("last.ckpt", "is code"):
            open_weights(path, own=True)
    else:
        assert open_weights(path, own=True).skipped == ("builtins.eval",)
    assert not executed.exists()
    torch.load(path, weights_only=False)
    assert executed.is_dir(), "the payload is one that a careless loader executes"


@needs_safe_torch
@pytest.mark.parametrize("value", [np.ones(10, np.float32), pathlib.Path("/data")], ids=["an array", "a path"])
@pytest.mark.parametrize("key", ["head.bias", "blocks.1.attn.qkv.bias"])
def test_an_object_in_place_of_a_tensor_is_refused(tmp_path: Path, key: str, value: object) -> None:
    torch.save({"state_dict": {**timm_state(), key: value}, "epoch": 3}, tmp_path / "last.ckpt")
    with pytest.raises(CheckpointError, match=f"'state_dict.{key}' is no tensor"):
        vitviz.load(tmp_path / "last.ckpt", **FACTS)


def test_a_whole_model_is_refused(tmp_path: Path) -> None:
    torch.save({"model": torch.nn.Linear(2, 2), "folder": pathlib.Path("/data")}, tmp_path / "last.ckpt")
    with expect_refusal("last.ckpt", "whole pickled model"):
        open_weights(tmp_path / "last.ckpt", own=True)


def test_a_torch_that_a_file_can_corrupt_reads_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save({"state_dict": timm_state(), "folder": pathlib.Path("/data")}, tmp_path / "last.ckpt")
    monkeypatch.setattr(stand_ins, "SAFE_TORCH", "99.0")
    with expect_refusal("last.ckpt", "is code"):
        open_weights(tmp_path / "last.ckpt", own=True)


@needs_safe_torch
def test_what_is_read_has_memory_of_its_own(tmp_path: Path) -> None:
    torch.save({**timm_state(), "folder": pathlib.Path("/data")}, tmp_path / "last.ckpt")
    file = open_weights(tmp_path / "last.ckpt", own=True)
    for tensor in read_all(file).values():
        tensor.zero_()
    check_same(read_all(file), timm_state())
