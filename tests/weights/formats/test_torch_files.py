"""Files of torch.save: foreign objects are skipped and named, and nothing is run."""

from __future__ import annotations

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
from tests.support.pickles import Payload, tensor_of, write_archive, write_series
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
both = pytest.mark.parametrize("save", [torch.save, save_legacy], ids=["archive", "legacy"])


class ConfigDict(dict[str, Any]):
    """A dict of another class, as libraries of configurations have."""


class Names(list[str]):
    """A list of another class."""


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
    "Names": lambda: Names("ab"),
}


@both
@pytest.mark.parametrize("name", OBJECTS)
def test_an_object_is_skipped_and_named(tmp_path: Path, name: str, save: Callable[..., None]) -> None:
    if save is save_legacy and ("Linear" in name or "partial" in name):
        pytest.skip("torch reads no module classes in old files")
    state, path = timm_state(), tmp_path / "last.ckpt"
    hyper_parameters = {"value": OBJECTS[name](), "deeper": [{"again": OBJECTS[name]()}]}
    save({"state_dict": state, "hyper_parameters": hyper_parameters, "epoch": 3}, path)
    check_same(read_all(open_weights(path), "state_dict"), state)
    model = vitviz.load(path, **FACTS)
    (skipped,) = (text for text in model.assumptions if text.startswith("skipped objects"))
    assert name in skipped


class Evaluated(Payload):
    """A payload in a name that torch's reader does not block."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return eval, (f"__import__('os').mkdir({str(self.path)!r})",)


@both
@pytest.mark.parametrize(("payload", "is_blocked"), [(Payload, True), (Evaluated, False)])
def test_a_payload_is_not_run(
    tmp_path: Path, payload: type[Payload], is_blocked: bool, save: Callable[..., None]
) -> None:
    path, executed = tmp_path / "last.ckpt", tmp_path / "executed"
    save({"state_dict": timm_state(), "hyper_parameters": {"value": payload(executed)}}, path)
    if is_blocked:
        with expect_refusal(
            "last.ckpt", r"its pickle names '(posix|nt)\.mkdir', by which unpickling could run any program, and torch"
        ):
            open_weights(path)
    else:
        assert open_weights(path).skipped == ("builtins.eval",)
    assert not executed.exists()
    torch.load(path, weights_only=False)
    assert executed.is_dir(), "the payload is one that a careless loader executes"


@pytest.mark.parametrize("value", [np.ones(10, np.float32), pathlib.Path("/data")], ids=["an array", "a path"])
@pytest.mark.parametrize("key", ["head.bias", "blocks.1.attn.qkv.bias"])
def test_an_object_in_place_of_a_tensor_is_refused(tmp_path: Path, key: str, value: object) -> None:
    torch.save({"state_dict": {**timm_state(), key: value}, "epoch": 3}, tmp_path / "last.ckpt")
    with pytest.raises(CheckpointError, match=f"'state_dict.{key}' is no tensor"):
        vitviz.load(tmp_path / "last.ckpt", **FACTS)


def test_a_whole_model_is_refused(tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(2, 2), tmp_path / "model.pth")
    with expect_refusal("model.pth", r"a whole pickled model .*Linear.*torch\.save\(model\.state_dict\(\)"):
        open_weights(tmp_path / "model.pth")


@both
@pytest.mark.parametrize("protocol", [0, 4, 5])
def test_another_protocol_is_refused_with_the_line_that_writes_the_file_anew(
    tmp_path: Path, protocol: int, save: Callable[..., None]
) -> None:
    save({"w": torch.ones(2), "name": "x" * 300}, tmp_path / "old.pth", pickle_protocol=protocol)
    line = re.escape("torch.save(torch.load('old.pth', weights_only=False), 'new.pth')")
    with expect_refusal("old.pth", line if protocol else ""):
        open_weights(tmp_path / "old.pth")


def rewritten(path: Path, method: int = zipfile.ZIP_STORED, **replaced: bytes) -> None:
    """Write an archive of torch anew, with another compression or other members."""
    content = io.BytesIO(path.read_bytes())
    with zipfile.ZipFile(content) as old, zipfile.ZipFile(path, "w", method) as new:
        for name in old.namelist():
            new.writestr(name, replaced.get(name.rpartition("/")[2], old.read(name)))


def test_numbers_that_torch_would_misread_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.pth"
    torch.save({"w": torch.ones(1000)}, path)
    rewritten(path)
    assert torch.equal(open_weights(path).read("", "w"), torch.ones(1000))
    rewritten(path, byteorder=b"big")
    with expect_refusal("x.pth", "numbers of a big-endian machine"):
        open_weights(path)
    torch.save({"w": torch.ones(1000)}, path)
    rewritten(path, zipfile.ZIP_DEFLATED)
    with expect_refusal("x.pth", "its members are compressed"):
        open_weights(path)


def test_a_program_is_refused_with_the_line_that_keeps_its_weights(tmp_path: Path) -> None:
    write_archive(tmp_path / "program.pt", {}, **{"constants.pkl": b"", "code/x.py": b""})
    with expect_refusal("program.pt", r"a program \(TorchScript\).*torch\.jit\.load\('program\.pt'\)"):
        open_weights(tmp_path / "program.pt")


def test_folders_of_other_packages_are_refused_with_the_line_that_makes_a_file(tmp_path: Path) -> None:
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / ".metadata").write_bytes(b"x")
    (tmp_path / "saved" / "__0_0.distcp").write_bytes(b"x")
    for path in (tmp_path / "saved", tmp_path / "saved" / "__0_0.distcp"):
        with expect_refusal(path.name if path.is_dir() else "saved", r"dcp_to_torch_save\('saved', 'weights\.pth'\)"):
            open_weights(path)
    (tmp_path / "lora").mkdir()
    (tmp_path / "lora" / "adapter_config.json").write_text("{}")
    torch.save({"a": torch.ones(1)}, tmp_path / "lora" / "adapter_model.bin")
    with expect_refusal("adapter_model.bin", r"peft\.PeftModel\.from_pretrained\(base, 'lora'\)\.merge_and_unload\(\)"):
        open_weights(tmp_path / "lora")


CLAIMS: dict[str, object] = {
    "more than the file holds": tensor_of(10**6, (10**6,)),
    "more than any memory": tensor_of(2**50, (2**50,)),
    "a storage that is not there": tensor_of(4, key="9"),
    "a shape of texts": tensor_of(4, ("4",)),
    "a negative stride": tensor_of(4, (4,), (-1,)),
}


@pytest.mark.parametrize("write", [write_archive, write_series])
@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
def test_a_tensor_that_claims_too_much_is_one_of_our_errors(
    tmp_path: Path, claim: object, write: Callable[..., None]
) -> None:
    write(tmp_path / "x.pth", {"w": tensor_of(4), "x": claim})
    with expect_refusal("x.pth"):
        open_weights(tmp_path / "x.pth").read("", "x")
