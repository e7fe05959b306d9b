"""Files of torch.save: foreign objects are skipped and named, and nothing is run."""

from __future__ import annotations

import argparse
import datetime
import functools
import io
import pathlib
import re
import zipfile
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
from tests.support.weight_files import check_same, expect_refusal, read_all, save_legacy
from vitviz.errors.kinds import CheckpointError
from vitviz.weights.formats.files import open_weights

FACTS: dict[str, Any] = {
    "heads": 3,
    "activation": "gelu",
    "norm_epsilon": 1e-6,
    "pooling": "cls",
    "position_rule": "bicubic offset",
}


class ConfigDict(dict[str, Any]):
    """A dict of another class, as libraries of configurations have."""


class Options:
    """Attributes that have the names of a dict's methods."""

    def __init__(self) -> None:
        self.items, self.keys, self.values = [1], None, 3


def history() -> defaultdict[str, list[float]]:
    found: defaultdict[str, list[float]] = defaultdict(list)
    found["loss"].append(0.5)
    return found


OBJECTS: dict[str, Callable[[], object]] = {
    "pathlib": lambda: pathlib.Path("/data"),
    "datetime": lambda: datetime.datetime.now(datetime.timezone.utc),
    "functools.partial": lambda: functools.partial(torch.nn.LayerNorm, eps=1e-6),
    "torch.nn.modules.linear.Linear": lambda: torch.nn.Linear(2, 2),
    "collections.defaultdict": history,
    "ConfigDict": lambda: ConfigDict(folder=pathlib.Path("/data"), values=[1, 2]),
    "Options": Options,
}
# Those that old files may hold, of which torch lists no names.
IN_OLD_FILES: dict[str, Callable[[], object]] = {
    **{name: OBJECTS[name] for name in ("pathlib", "datetime", "collections.defaultdict")},
    "partial": lambda: functools.partial(int, base=2),
    "namespace": lambda: argparse.Namespace(lr=1e-3, out=pathlib.Path("/data")),
    "numpy": lambda: [np.float64(1.5), np.arange(3)],
}


def save_beside(path: Path, save: Callable[..., None], value: Callable[[], object]) -> dict[str, torch.Tensor]:
    state = timm_state()
    save({"state_dict": state, "hyper_parameters": {"value": value(), "deeper": [{"again": value()}]}}, path)
    return state


@pytest.mark.parametrize("name", OBJECTS)
def test_an_object_is_skipped_and_named(tmp_path: Path, name: str) -> None:
    state = save_beside(tmp_path / "last.ckpt", torch.save, OBJECTS[name])
    check_same(read_all(open_weights(tmp_path / "last.ckpt"), "state_dict"), state)
    model = vitviz.load(tmp_path / "last.ckpt", **FACTS)
    (skipped,) = (text for text in model.assumptions if text.startswith("skipped objects"))
    assert name in skipped


@pytest.mark.parametrize("name", IN_OLD_FILES)
def test_what_training_scripts_save_is_skipped_in_old_files(tmp_path: Path, name: str) -> None:
    state = save_beside(tmp_path / "old.pth", save_legacy, IN_OLD_FILES[name])
    check_same(read_all(open_weights(tmp_path / "old.pth"), "state_dict"), state)


def test_nothing_is_registered_for_good(tmp_path: Path) -> None:
    save_beside(tmp_path / "last.ckpt", torch.save, OBJECTS["pathlib"])
    before = set(torch.serialization.get_safe_globals())
    open_weights(tmp_path / "last.ckpt")
    assert set(torch.serialization.get_safe_globals()) == before


class Evaluated(Payload):
    """A payload in a name that torch's reader does not block."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return eval, (f"__import__('os').mkdir({str(self.path)!r})",)


@pytest.mark.parametrize("save", [torch.save, save_legacy], ids=["archive", "legacy"])
@pytest.mark.parametrize(("payload", "name"), [(Payload, r"(posix|nt)\.mkdir"), (Evaluated, "eval")])
def test_a_payload_is_not_run(tmp_path: Path, payload: type[Payload], name: str, save: Callable[..., None]) -> None:
    path, executed = tmp_path / "last.ckpt", tmp_path / "executed"
    save({"state_dict": timm_state(), "hyper_parameters": {"value": payload(executed)}}, path)
    if payload is Evaluated and save is torch.save:
        assert open_weights(path).skipped == ("builtins.eval",)
    else:
        with expect_refusal("last.ckpt", name):
            open_weights(path)
    assert not executed.exists()
    torch.load(path, weights_only=False)
    assert executed.is_dir(), "the payload is one that a careless loader executes"


@pytest.mark.parametrize("value", [np.ones(10, np.float32), pathlib.Path("/data")], ids=["an array", "a path"])
@pytest.mark.parametrize("key", ["head.bias", "blocks.1.attn.qkv.bias"])
def test_an_object_in_place_of_a_tensor_is_refused(tmp_path: Path, key: str, value: object) -> None:
    torch.save({"state_dict": {**timm_state(), key: value}, "epoch": 3}, tmp_path / "last.ckpt")
    with pytest.raises(CheckpointError, match=f"'state_dict.{key}' is no tensor"):
        vitviz.load(tmp_path / "last.ckpt", **FACTS)


@pytest.mark.parametrize("save", [torch.save, save_legacy], ids=["archive", "legacy"])
@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_another_protocol_is_refused_with_the_line_that_writes_the_file_anew(
    tmp_path: Path, save: Callable[..., None]
) -> None:
    save({"w": torch.ones(2), "name": "x" * 300}, tmp_path / "old.pth", pickle_protocol=4)
    line = re.escape("torch.save(torch.load('old.pth', weights_only=False), 'new.pth')")
    with expect_refusal("old.pth", f"Unsupported operand.*{line}"):
        open_weights(tmp_path / "old.pth")


def test_compressed_numbers_are_read_as_they_were(tmp_path: Path) -> None:
    path, tensor = tmp_path / "x.pth", torch.randn(1000)
    torch.save({"w": tensor}, path)
    content = io.BytesIO(path.read_bytes())
    with zipfile.ZipFile(content) as old, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    assert torch.equal(open_weights(path).read("", "w"), tensor)


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_a_program_is_refused(tmp_path: Path) -> None:
    torch.jit.save(torch.jit.trace(torch.nn.Linear(2, 2).eval(), torch.zeros(1, 2)), tmp_path / "program.pt")
    with expect_refusal("program.pt", r"a program \(TorchScript\).*torch\.jit\.load\('program\.pt'\)"):
        open_weights(tmp_path / "program.pt")


def test_layers_that_share_a_tensor_open_as_layers_of_their_own(tmp_path: Path) -> None:
    one = timm_state(depth=1)
    shared = {key.replace(".0.", f".{layer}."): one[key] for layer in range(3) for key in one}
    torch.save(shared, tmp_path / "shared.pth")
    first, *_, last = vitviz.load(tmp_path / "shared.pth", **FACTS).network.layers
    weights = [layer.attention.qkv.weight for layer in (first, last)]
    assert torch.equal(*weights) and weights[0].data_ptr() != weights[1].data_ptr()
