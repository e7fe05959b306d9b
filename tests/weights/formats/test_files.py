"""Every checkpoint file is listed without being read, and read as what was written."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import vitviz
from tests.support.weight_files import Tensors, W, check_same, expect_refusal, read_all, save_legacy, state, writers
from vitviz import CheckpointError
from vitviz.weights.formats.files import open_weights


@writers
@pytest.mark.parametrize("suffix", [".safetensors", ".pth", ".npz", ""])
def test_a_file_is_known_by_its_content(tmp_path: Path, save: Callable[[Tensors, Path], object], suffix: str) -> None:
    path, tensors = tmp_path / f"vit.b{suffix}", state()
    save(tensors, path)
    file = open_weights(str(path))
    assert (file.name, file.path) == (path.name, path)
    assert file.beside == ()
    assert file.metadata == {}
    assert {key: found.shape for key, found in file.groups[""].items()} == {key: t.shape for key, t in tensors.items()}
    check_same(read_all(file), tensors)


@pytest.mark.parametrize("save", [save_file, torch.save])
def test_opening_reads_no_tensor(tmp_path: Path, save: Callable[[Tensors, Path], object]) -> None:
    save({key: torch.ones(1000) for key in "abcdefgh"}, tmp_path / "large")
    file = open_weights(tmp_path / "large")
    # All are views of one map of the file, so what another program writes there is seen.
    content = (tmp_path / "large").read_bytes()
    with (tmp_path / "large").open("r+b") as stream:
        stream.write(content.replace(np.ones(1000, "f4").tobytes(), np.zeros(1000, "f4").tobytes()))
    assert not any(tensor.any() for tensor in read_all(file).values())


@writers
def test_what_is_read_has_memory_of_its_own(tmp_path: Path, save: Callable[[Tensors, Path], object]) -> None:
    tensors = state()
    save(tensors, tmp_path / "file")
    content = (tmp_path / "file").read_bytes()
    file = open_weights(tmp_path / "file")
    for tensor in read_all(file).values():
        tensor.zero_()
    check_same(read_all(file), tensors)
    assert (tmp_path / "file").read_bytes() == content


@pytest.mark.parametrize("save", [save_file, torch.save, save_legacy])
@pytest.mark.parametrize(
    "dtype", ["float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]
)
def test_every_dtype_comes_back_as_float32_of_the_same_values(
    tmp_path: Path, dtype: str, save: Callable[[Tensors, Path], object]
) -> None:
    tensors = {"w": torch.zeros(2), "x": (torch.rand(3, 5) * 100).to(getattr(torch, dtype))}
    save(tensors, tmp_path / "file")
    file = open_weights(tmp_path / "file")
    assert file.groups[""]["x"].dtype == getattr(torch, dtype)
    check_same(read_all(file), tensors)


def test_texts_in_a_safetensors_header_are_its_metadata(tmp_path: Path) -> None:
    save_file(state(), tmp_path / "file", {"format": "pt", "note": "two\nlines"})
    assert open_weights(tmp_path / "file").metadata == {"format": "pt", "note": "two\nlines"}


# What torch saves beside weights.


def training_checkpoint() -> dict[str, Any]:
    """As the scripts of DeiT, DINO and MAE write them."""
    network = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    optimiser = torch.optim.AdamW(network.parameters())
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, [2, 5])
    network(torch.randn(2, 3)).sum().backward()
    optimiser.step()
    return {
        "model": network.state_dict(),
        "teacher": {"backbone": dict(network.named_parameters()), "momentum": 0.99},
        "optimizer": optimiser.state_dict(),
        "lr_scheduler": schedule.state_dict(),
        "epoch": 3,
        "args": argparse.Namespace(lr=1e-3, betas=(0.9, 0.999), device=torch.device("cpu"), size=torch.Size([2])),
        "best": np.float64(1.5),
        "seen": np.int64(4),
        "random": np.arange(4),
        "names": {"cat", "dog"},
        "raw": b"bytes",
        "none": None,
        "counts": Counter("abca"),
    }


@pytest.mark.parametrize("legacy", [False, True], ids=["archive", "legacy"])
def test_a_training_checkpoint_opens(tmp_path: Path, legacy: bool) -> None:
    checkpoint, path = training_checkpoint(), tmp_path / "checkpoint.pth"
    (save_legacy if legacy else torch.save)(checkpoint, path)
    file = open_weights(path)
    assert file.groups.keys() == {"model", "teacher.backbone"}
    check_same(read_all(file, "model"), checkpoint["model"])
    check_same(read_all(file, "teacher.backbone"), checkpoint["teacher"]["backbone"])
    assert {"teacher.momentum", "optimizer", "lr_scheduler.last_epoch", "epoch", "args", "random"} <= set(file.beside)


def test_tensors_are_those_that_torch_loads(tmp_path: Path) -> None:
    base = torch.randn(6, 8)
    tensors = {
        "base": base,
        "transposed": base.t(),
        "part": base[2:4, 1::3],
        "row": base[5],
        "shared": base,
        "empty": base[:0],
        "expanded": torch.ones(1).expand(3, 5),
        "negated": torch.randn(3, dtype=torch.complex64).conj().imag,
        "overlapping": base.as_strided((3, 4), (2, 1), 5),
        "parameter": torch.nn.Parameter(base[1].clone()),
        "half": base.half().view(2, 24)[1],
        "a\nline": torch.ones(1),
    }
    torch.save(tensors, tmp_path / "file")
    check_same(read_all(open_weights(tmp_path / "file")), torch.load(tmp_path / "file", weights_only=True))
    save_legacy(tensors, tmp_path / "file")
    check_same(read_all(open_weights(tmp_path / "file")), tensors)


def test_a_tensor_with_attributes_is_a_tensor(tmp_path: Path) -> None:
    tensor = torch.nn.Parameter(torch.randn(3))
    tensor.no_decay = True  # type: ignore[attr-defined]
    torch.save({"w": tensor}, tmp_path / "file")
    check_same(read_all(open_weights(tmp_path / "file")), {"w": tensor})


STRUCTURES: dict[str, tuple[dict[Any, Any], set[str], tuple[str, ...]]] = {
    "flat": ({"w": W, "step": 3}, {""}, ("step",)),
    "nested beside tensors": ({"w": W, "inner": {"w": W, "n": 1}}, {"", "inner"}, ("inner.n",)),
    "three deep": ({"a": {"b": {"c": {"w": W}}}}, {"a.b.c"}, ()),
    "numbers as keys": ({"w": W, "state": {0: {"w": W}}}, {""}, ("state",)),
    "some numbers as keys": ({"w": W, "mixed": {"w": W, 0: W}}, {""}, ("mixed",)),
    "an optimiser by name": ({"w": W, "o": {"state": {"w": {"avg": W}}, "param_groups": []}}, {""}, ("o",)),
    "an integer above": ({"step": torch.tensor(1), "model": {"w": W}}, {"model"}, ("step",)),
    "a list of tensors": ({"w": W, "more": [W, W]}, {""}, ("more",)),
    "nothing inside": ({"w": W, "nothing": {}}, {""}, ("nothing",)),
    "tuples as keys": ({"w": W, "pairs": {(1, 2): "x"}}, {""}, ("pairs",)),
    "only integers": ({"w": W, "counts": {"n": torch.tensor(1)}}, {""}, ("counts.n",)),
    "four deep": ({"w": W, "a": {"b": {"c": {"d": {"w": W}}}}}, {""}, ("a.b.c.d",)),
}


@pytest.mark.parametrize(("value", "groups", "beside"), STRUCTURES.values(), ids=STRUCTURES)
def test_groups_are_dicts_of_tensors_by_name(
    tmp_path: Path, value: dict[Any, Any], groups: set[str], beside: tuple[str, ...]
) -> None:
    torch.save(value, tmp_path / "file")
    file = open_weights(tmp_path / "file")
    assert file.groups.keys() == groups
    assert file.beside == beside


@pytest.mark.parametrize("value", [[W], W, torch.nn.Linear(1, 1), {"model": torch.nn.Linear(1, 1)}], ids=type)
def test_what_is_no_dict_of_tensors_is_refused(tmp_path: Path, value: object) -> None:
    torch.save(value, tmp_path / "file.pth")
    with expect_refusal("file.pth", r"a whole pickled model or object .*expected torch\.save\(model\.state_dict\(\)"):
        open_weights(tmp_path / "file.pth")


@pytest.mark.parametrize("value", [{}, {"epoch": 3}, {"n": torch.tensor(1)}, {0: W}], ids=str)
def test_what_has_no_weights_by_name_has_no_groups(tmp_path: Path, value: object) -> None:
    torch.save(value, tmp_path / "file.pth")
    assert open_weights(tmp_path / "file.pth").groups == {}
    with pytest.raises(CheckpointError, match=r"^file\.pth: no layout .*: its keys are no tensors"):
        vitviz.load(tmp_path / "file.pth")


# Reading one tensor.

SPECIAL: dict[str, tuple[Callable[[], torch.Tensor], str]] = {
    "sparse": (lambda: torch.eye(3).to_sparse(), "torch.float32, torch.sparse_coo"),
    "meta": (lambda: torch.zeros(2, device="meta"), "torch.float32, torch.strided, on the device meta"),
    "complex": (lambda: torch.zeros(2, dtype=torch.complex64), "torch.complex64"),
    "float8": (lambda: torch.zeros(3).to(torch.float8_e4m3fn), "torch.float8_e4m3fn"),
}


@pytest.mark.parametrize(("make", "what"), SPECIAL.values(), ids=SPECIAL)
def test_what_is_no_dense_tensor_is_listed_and_refused_by_name(
    tmp_path: Path, make: Callable[[], torch.Tensor], what: str
) -> None:
    tensor = make()
    torch.save({"w": torch.ones(2), "strange": tensor}, tmp_path / "file.pth")
    file = open_weights(tmp_path / "file.pth")
    assert file.groups[""]["strange"].shape == tuple(tensor.shape)
    assert torch.equal(file.read("", "w"), torch.ones(2))
    with expect_refusal("file.pth", f"'strange' is {what}.*; expected a dense tensor"):
        file.read("", "strange")


@writers
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_value_that_is_not_finite_is_refused_by_its_key(
    tmp_path: Path, save: Callable[[Tensors, Path], object], value: float
) -> None:
    save({"good": torch.zeros(3), "bad": torch.tensor([0.0, value])}, tmp_path / "file")
    file = open_weights(tmp_path / "file")
    file.read("", "good")
    with expect_refusal("file", "not finite in 'bad'"):
        file.read("", "bad")


def test_a_value_that_float32_cannot_hold_is_refused(tmp_path: Path) -> None:
    torch.save({"bad": torch.tensor([1e300], dtype=torch.float64)}, tmp_path / "file")
    with expect_refusal("file", "not finite in 'bad'"):
        open_weights(tmp_path / "file").read("", "bad")


# Arrays of NumPy.


def test_arrays_come_back_whatever_their_order(tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((3, 4), "f4")
    halves = torch.randn(2, 3).to(torch.bfloat16)
    arrays: dict[str, Any] = {
        "params/Transformer/encoderblock_0/kernel": values,
        "fortran": np.asfortranarray(values),
        "big-endian": values.astype(">f4"),
        "double": values.astype("f8"),
        "half": values.astype("f2"),
        "integer": np.arange(5),
        "truth": values > 0,
        "scalar": np.float32(3),
        "empty": np.zeros((0, 3), "f4"),
        "bfloat16": halves.view(torch.int16).numpy().view("V2"),
        "bfloat16, fortran": np.asfortranarray(halves.view(torch.int16).numpy().view("V2")),
        "name": np.array("ViT-B_16"),
        "date": np.array("2020-10-22", "datetime64[D]"),
        "record": np.zeros(2, [("a", "i1"), ("b", "i1")]),
    }
    np.savez(tmp_path / "file.npz", **arrays)
    file = open_weights(tmp_path / "file.npz")
    assert file.beside == ("name", "date", "record")
    expected = {key: torch.from_numpy(np.array(arrays[key], "f4")) for key in [*arrays][:9]}
    check_same(read_all(file), {**expected, "bfloat16": halves, "bfloat16, fortran": halves})
