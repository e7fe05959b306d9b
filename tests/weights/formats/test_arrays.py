"""Arrays of NumPy come back whatever their order; those that lie are refused."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.weight_files import check_same, expect_refusal, npy, npy_of_shape, read_all
from vitviz.weights.formats.files import open_weights
from vitviz.weights.formats.tensors import LazyTensor

# Arrays.


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
    assert file.groups[""]["bfloat16"] == LazyTensor((2, 3), "bfloat16")
    assert file.groups[""]["big-endian"] == LazyTensor((3, 4), "float32")
    assert file.groups[""]["double"] == LazyTensor((3, 4), "float64")


# Noticed when its values are read.
LATER = "damaged, or changed|more memory than there is"
ARRAYS: dict[str, tuple[bytes, str]] = {
    "objects": (npy_of_shape("(2,)", "'|O'"), "'x' holds Python objects, which are code"),
    "objects in a record": (npy_of_shape("(1,)", "[('a', '|O'), ('b', '<i8')]"), "'x' holds Python objects"),
    "too large a shape": (npy_of_shape("(5,)"), LATER),
    "a number as shape": (npy_of_shape("(4)"), "'x' is no NumPy array"),
    "a number of 9,000 digits": (npy_of_shape("(" + "4" * 9000 + ",)"), "'x' is no NumPy array"),
    "an unknown type": (npy_of_shape("(4,)", "'<q9'"), "'x' is no NumPy array"),
    "a shape beyond any memory": (npy_of_shape("(2**62, 2**62)".replace("2**62", str(2**62))), LATER),
    "a negative shape": (npy_of_shape("(-4, -1)"), LATER),
    "a shape of texts": (npy_of_shape("('4',)"), "'x' is no NumPy array"),
    "a call in the header": (npy_of_shape("__import__('os').system('x')"), "'x' is no NumPy array"),
    "a header nested too deeply": (npy("-" * 9000 + "1"), "'x' is no NumPy array"),
    "a header that ends early": (npy("{"), "'x' is no NumPy array"),
    "a header of uneven lines": (npy("(\n  1)\n  2\n 3"), "'x' is no NumPy array"),
    "a header that is too long": (npy(" " * 60_000), "'x' is no NumPy array"),
    "an unknown version": (npy("{}", version=b"\x09\x00"), "'x' is no NumPy array"),
    "no array": (b"text", "'x' is no NumPy array"),
    "empty": (b"", "'x' is no NumPy array"),
}


@pytest.mark.parametrize(("content", "found"), ARRAYS.values(), ids=ARRAYS)
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED], ids=["stored", "deflated"])
def test_an_array_that_lies_is_refused(tmp_path: Path, content: bytes, found: str, method: int) -> None:
    with zipfile.ZipFile(tmp_path / "file.npz", "w", method) as archive:
        archive.writestr("w.npy", npy_of_shape("(4,)"))
        archive.writestr("x.npy", content)
    with expect_refusal("file.npz", found):
        file = open_weights(tmp_path / "file.npz")
        assert found is LATER
        file.read("", "x")


def test_an_array_as_the_lying_ones_but_honest_opens(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "file.npz", "w") as archive:
        archive.writestr("x.npy", npy_of_shape("(2, 2)"))
    assert torch.equal(open_weights(tmp_path / "file.npz").read("", "x"), torch.zeros(2, 2))
