"""Every checkpoint file is listed without being read and read without being executed, or refused in one line."""

from __future__ import annotations

import argparse
import builtins
import copyreg
import io
import json
import math
import os
import pickle
import re
import struct
import time
import tracemalloc
import zipfile
import zlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from vitviz import CheckpointError
from vitviz.weights.formats import archives, files, pickled
from vitviz.weights.formats.files import TensorInfo, WeightFile, open_weights

Tensors = dict[str, torch.Tensor]


@contextmanager
def refused(name: str, *found: str) -> Iterator[None]:
    """What happens inside is refused soon, with one line that names the file and what was found."""
    start = time.process_time()
    with pytest.raises(CheckpointError) as caught:
        yield
    message = str(caught.value)
    assert message.startswith(f"{name}: "), message
    for part in found:
        assert re.search(part, message), f"{part!r} is not in {message!r}"
    assert message.isprintable(), repr(message)
    assert len(message) < 700
    assert time.process_time() - start < 5


def everything(file: WeightFile, group: str = "") -> Tensors:
    return {key: file.read(group, key) for key in file.groups[group]}


def same(found: Tensors, expected: Mapping[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for key, tensor in expected.items():
        assert found[key].dtype == torch.float32
        assert found[key].is_contiguous()
        assert torch.equal(found[key], tensor.detach().float()), key


def state() -> Tensors:
    return {"embed/kernel": torch.randn(4, 3), "blocks.0.bias": torch.randn(7), "scale": torch.tensor(2.5)}


# What is written comes back.


def save_npz(tensors: Tensors, path: Path) -> None:
    with open(path, "wb") as file:
        np.savez(file, **{key: tensor.numpy() for key, tensor in tensors.items()})


def save_npz_compressed(tensors: Tensors, path: Path) -> None:
    with open(path, "wb") as file:
        np.savez_compressed(file, **{key: tensor.numpy() for key, tensor in tensors.items()})


def save_legacy(value: object, path: Path, **options: Any) -> None:
    torch.save(value, path, _use_new_zipfile_serialization=False, **options)


SAVE: dict[str, tuple[str, Callable[[Tensors, Path], object]]] = {
    "safetensors": ("safetensors", save_file),
    "torch": ("torch", torch.save),
    "torch, protocol 1": ("torch", lambda value, path: torch.save(value, path, pickle_protocol=1)),
    "torch, protocol 3": ("torch", lambda value, path: torch.save(value, path, pickle_protocol=3)),
    "torch, protocol 4": ("torch", lambda value, path: torch.save(value, path, pickle_protocol=4)),
    "torch, protocol 5": ("torch", lambda value, path: torch.save(value, path, pickle_protocol=5)),
    "legacy": ("torch", save_legacy),
    "legacy, protocol 1": ("torch", lambda value, path: save_legacy(value, path, pickle_protocol=1)),
    "legacy, protocol 4": ("torch", lambda value, path: save_legacy(value, path, pickle_protocol=4)),
    "npz": ("npz", save_npz),
    "npz, compressed": ("npz", save_npz_compressed),
}
writers = pytest.mark.parametrize(("kind", "save"), SAVE.values(), ids=SAVE)


@writers
@pytest.mark.parametrize("suffix", [".safetensors", ".pth", ".npz", ""])
def test_a_file_is_known_by_its_content(
    tmp_path: Path, kind: str, save: Callable[[Tensors, Path], object], suffix: str
) -> None:
    path, tensors = tmp_path / f"vit.b{suffix}", state()
    save(tensors, path)
    file = open_weights(str(path))
    assert (file.name, file.kind, file.folder) == (path.name, kind, tmp_path)
    assert file.beside == ()
    assert file.metadata == {}
    assert file.groups == {"": {key: TensorInfo(tuple(value.shape), "float32") for key, value in tensors.items()}}
    same(everything(file), tensors)


@writers
def test_opening_reads_no_tensor_and_reading_only_one(
    tmp_path: Path, kind: str, save: Callable[[Tensors, Path], object]
) -> None:
    # Noise, which cannot be compressed.
    generator = np.random.default_rng(0)
    tensors = {key: torch.from_numpy(generator.standard_normal((2**18,), "f4")) for key in "abcdefgh"}
    save(tensors, tmp_path / "large")
    open_weights(tmp_path / "large")
    tracemalloc.start()
    try:
        file = open_weights(tmp_path / "large")
        assert tracemalloc.get_traced_memory()[1] < 2**19
        tracemalloc.reset_peak()
        tensor = file.read("", "b")
        assert tracemalloc.get_traced_memory()[1] < 4 * 2**20
    finally:
        tracemalloc.stop()
    assert torch.equal(tensor, tensors["b"])


@writers
def test_what_is_read_has_memory_of_its_own(tmp_path: Path, kind: str, save: Callable[[Tensors, Path], object]) -> None:
    tensors = state()
    save(tensors, tmp_path / "file")
    content = (tmp_path / "file").read_bytes()
    file = open_weights(tmp_path / "file")
    for tensor in everything(file).values():
        tensor.zero_()
    same(everything(file), tensors)
    assert (tmp_path / "file").read_bytes() == content


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="nothing says what is mapped")
@writers
def test_no_file_stays_mapped(tmp_path: Path, kind: str, save: Callable[[Tensors, Path], object]) -> None:
    save(state(), tmp_path / "a file of weights")
    file = open_weights(tmp_path / "a file of weights")
    tensors = everything(file)
    assert "a file of weights" not in Path("/proc/self/maps").read_text(), "to cut it would end this process"
    assert tensors


@pytest.mark.parametrize("save", [save_file, torch.save, save_legacy])
@pytest.mark.parametrize(
    "dtype",
    ["float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"],
)
def test_every_dtype_comes_back_as_float32_of_the_same_values(
    tmp_path: Path, dtype: str, save: Callable[[Tensors, Path], object]
) -> None:
    tensors = {"w": torch.zeros(2), "x": (torch.rand(3, 5) * 100).to(getattr(torch, dtype))}
    save(tensors, tmp_path / "file")
    file = open_weights(tmp_path / "file")
    assert file.groups[""]["x"] == TensorInfo((3, 5), dtype)
    same(everything(file), tensors)


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
@pytest.mark.parametrize("protocol", [1, 2, 3, 4, 5])
def test_a_training_checkpoint_opens(tmp_path: Path, protocol: int, legacy: bool) -> None:
    checkpoint, path = training_checkpoint(), tmp_path / "checkpoint.pth"
    (save_legacy if legacy else torch.save)(checkpoint, path, pickle_protocol=protocol)
    file = open_weights(path)
    assert file.groups.keys() == {"model", "teacher.backbone"}
    same(everything(file, "model"), checkpoint["model"])
    same(everything(file, "teacher.backbone"), checkpoint["teacher"]["backbone"])
    assert file.groups["model"]["1.num_batches_tracked"] == TensorInfo((), "int64")
    assert file.beside == ("teacher.momentum", *(key for key in checkpoint if key not in ("model", "teacher")))


def test_tensors_are_those_that_torch_loads(tmp_path: Path) -> None:
    base = torch.randn(6, 8)
    tensors = {
        "base": base,
        "transposed": base.t(),
        "part": base[2:4, 1::3],
        "row": base[5],
        "shared": base,
        "empty": base[:0],
        "overlapping": base.as_strided((3, 4), (2, 1), 5),
        "parameter": torch.nn.Parameter(base[1].clone()),
        "half": base.half().view(2, 24)[1],
        "a\nline": torch.ones(1),
    }
    torch.save(tensors, tmp_path / "file")
    same(everything(open_weights(tmp_path / "file")), torch.load(tmp_path / "file", weights_only=True))
    save_legacy(tensors, tmp_path / "file")
    same(everything(open_weights(tmp_path / "file")), tensors)


def test_a_tensor_with_attributes_is_a_tensor(tmp_path: Path) -> None:
    tensor = torch.nn.Parameter(torch.randn(3))
    tensor.no_decay = True  # type: ignore[attr-defined]
    torch.save({"w": tensor}, tmp_path / "file")
    same(everything(open_weights(tmp_path / "file")), {"w": tensor})


W = torch.ones(1)
STRUCTURES: dict[str, tuple[dict[Any, Any], set[str], tuple[str, ...]]] = {
    "flat": ({"w": W, "step": 3}, {""}, ("step",)),
    "nested beside tensors": ({"w": W, "inner": {"w": W, "n": 1}}, {"", "inner"}, ("inner.n",)),
    "three deep": ({"a": {"b": {"c": {"w": W}}}}, {"a.b.c"}, ()),
    "four deep": ({"w": W, "a": {"b": {"c": {"d": {"w": W}}}}}, {""}, ("a",)),
    "numbers as keys": ({"w": W, "state": {0: {"w": W}}}, {""}, ("state",)),
    "some numbers as keys": ({"w": W, "mixed": {"w": W, 0: W}}, {""}, ("mixed",)),
    "an optimiser by name": ({"w": W, "o": {"state": {"w": {"avg": W}}, "param_groups": []}}, {""}, ("o",)),
    "only integers": ({"w": W, "counts": {"n": torch.tensor(1)}}, {""}, ("counts",)),
    "an integer above": ({"step": torch.tensor(1), "model": {"w": W}}, {"model"}, ("step",)),
    "a list of tensors": ({"w": W, "more": [W, W]}, {""}, ("more",)),
    "nothing inside": ({"w": W, "nothing": {}}, {""}, ("nothing",)),
    "tuples as keys": ({"w": W, "pairs": {(1, 2): "x"}}, {""}, ("pairs",)),
}


@pytest.mark.parametrize(("value", "groups", "beside"), STRUCTURES.values(), ids=STRUCTURES)
def test_groups_are_dicts_of_tensors_by_name(
    tmp_path: Path, value: dict[Any, Any], groups: set[str], beside: tuple[str, ...]
) -> None:
    torch.save(value, tmp_path / "file")
    file = open_weights(tmp_path / "file")
    assert file.groups.keys() == groups
    assert file.beside == beside


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ({}, "only nothing"),
        ({"epoch": 3, "name": "x"}, "only 'epoch', 'name'"),
        ({"n": torch.tensor(1)}, "only 'n'"),
        ({0: W}, "only '0'"),
        ([W], "no dict"),
        (W, "no dict"),
        ({"a.b": {"w": W}, "a": {"b": {"w": W}}}, "two groups of tensors called 'a.b'"),
    ],
)
def test_what_has_no_weights_by_name_is_refused(tmp_path: Path, value: object, found: str) -> None:
    torch.save(value, tmp_path / "file.pth")
    with refused("file.pth", found):
        open_weights(tmp_path / "file.pth")


# Reading one tensor.

SPECIAL: dict[str, tuple[Callable[[], torch.Tensor], str]] = {
    "sparse": (lambda: torch.eye(3).to_sparse(), "sparse"),
    "meta": (lambda: torch.zeros(2, device="meta"), "meta"),
    "complex": (lambda: torch.zeros(2, dtype=torch.complex64), "complex64"),
    "expanded": (lambda: torch.ones(1).expand(10**9), "expanded from fewer values"),
    "negated": (lambda: torch.randn(3, dtype=torch.complex64).conj().imag, "lazily negated"),
    "float8": (lambda: torch.zeros(3).to(torch.float8_e4m3fn), "float8_e4m3fn"),
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
    with refused("file.pth", f"'strange' is {what}; expected a dense tensor"):
        file.read("", "strange")


def test_a_quantised_tensor_is_refused_by_name(tmp_path: Path) -> None:
    quantised = call(torch._utils._rebuild_qtensor, stored(8, kind=torch.QInt8Storage), 0, (8,), (1,), (), False, {})
    write_archive(tmp_path / "file.pth", {"w": tensor_of(4), "q": quantised})
    file = open_weights(tmp_path / "file.pth")
    assert file.groups[""]["q"] == TensorInfo((8,), "qint8")
    with refused("file.pth", "'q' is quantised"):
        file.read("", "q")


@writers
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_value_that_is_not_finite_is_refused_by_its_key(
    tmp_path: Path, kind: str, save: Callable[[Tensors, Path], object], value: float
) -> None:
    save({"good": torch.zeros(3), "bad": torch.tensor([0.0, value])}, tmp_path / "file")
    file = open_weights(tmp_path / "file")
    file.read("", "good")
    with refused("file", "not finite in 'bad'"):
        file.read("", "bad")


def test_a_value_that_float32_cannot_hold_is_refused(tmp_path: Path) -> None:
    torch.save({"bad": torch.tensor([1e300], dtype=torch.float64)}, tmp_path / "file")
    with refused("file", "not finite in 'bad'"):
        open_weights(tmp_path / "file").read("", "bad")


@pytest.mark.parametrize(("group", "key"), [("", "b"), ("b", "a"), ("", ""), ("\n", "\x1b[31m")])
def test_a_tensor_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path, group: str, key: str) -> None:
    torch.save({"a": W}, tmp_path / "file")
    with refused("file", "expected one of '" + ("a'" if group == "" else "'")):
        open_weights(tmp_path / "file").read(group, key)


@writers
def test_a_file_that_is_cut_after_it_was_opened_is_refused(
    tmp_path: Path, kind: str, save: Callable[[Tensors, Path], object]
) -> None:
    save({"a": torch.randn(1000)}, tmp_path / "file")
    file = open_weights(tmp_path / "file")
    os.truncate(tmp_path / "file", 1000)
    with refused("file", "damaged"):
        file.read("", "a")
    os.remove(tmp_path / "file")
    with refused("file", "cannot be read .(No such file or directory|FileNotFoundError)"):
        file.read("", "a")


def test_a_file_that_is_another_since_it_was_opened_is_refused(tmp_path: Path) -> None:
    save_file({"a": torch.randn(1000), "b": W}, tmp_path / "file")
    file = open_weights(tmp_path / "file")
    save_file({"a": torch.randn(10, 100)}, tmp_path / "file")
    with refused("file", "damaged, or changed since it was opened"):
        file.read("", "a")
    with refused("file", "damaged"):
        file.read("", "b")


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
    same(everything(file), {**expected, "bfloat16": halves, "bfloat16, fortran": halves})
    assert file.groups[""]["bfloat16"] == TensorInfo((2, 3), "bfloat16")
    assert file.groups[""]["big-endian"] == TensorInfo((3, 4), "float32")
    assert file.groups[""]["double"] == TensorInfo((3, 4), "float64")


def npy(header: str, data: bytes = bytes(16), version: bytes = b"\x01\x00") -> bytes:
    return b"\x93NUMPY" + version + struct.pack("<H", len(header)) + header.encode() + data


def described(shape: str, descr: str = "'<f4'", data: bytes = bytes(16)) -> bytes:
    return npy(f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}\n", data)


ARRAYS: dict[str, tuple[bytes, str]] = {
    "objects": (described("(2,)", "'|O'"), "'x' holds Python objects, which are code"),
    "objects in a record": (described("(1,)", "[('a', '|O'), ('b', '<i8')]"), "'x' holds Python objects"),
    "too large a shape": (described("(5,)"), "'x' has 16 bytes for 'float32' .5,."),
    "too small a shape": (described("(3,)"), "'x' has 16 bytes for 'float32'"),
    "a shape of truths": (described("(True, True, 4)"), "'x' is no NumPy array"),
    "a number as shape": (described("(4)"), "'x' is no NumPy array"),
    "a number of 9,000 digits": (described("(" + "4" * 9000 + ",)"), "'x' is no NumPy array"),
    "an unknown type": (described("(4,)", "'<q9'"), "'x' is no NumPy array"),
    "a shape beyond any memory": (described("(2**62, 2**62)".replace("2**62", str(2**62))), "'x' has 16 bytes"),
    "an empty shape beyond any memory": (described(f"(0, {2**62}, {2**62})", data=b""), "'x' of a shape beyond any"),
    "a negative shape": (described("(-4, -1)"), "'x' is no NumPy array"),
    "a hundred dimensions": (described("(" + "1, " * 100 + "4)"), "'x' is no NumPy array"),
    "a shape of texts": (described("('4',)"), "'x' is no NumPy array"),
    "a call in the header": (described("__import__('os').system('x')"), "'x' is no NumPy array"),
    "a header nested too deeply": (npy("-" * 9000 + "1"), "'x' is no NumPy array"),
    "a header that is too long": (npy(" " * 60_000), "'x' is no NumPy array"),
    "an unknown version": (npy("{}", version=b"\x09\x00"), "'x' is no NumPy array"),
    "no array": (b"text", "'x' is no NumPy array"),
    "empty": (b"", "'x' is no NumPy array"),
}


@pytest.mark.parametrize(("content", "found"), ARRAYS.values(), ids=ARRAYS)
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED], ids=["stored", "deflated"])
def test_an_array_that_lies_is_refused_when_the_file_is_opened(
    tmp_path: Path, content: bytes, found: str, method: int
) -> None:
    with zipfile.ZipFile(tmp_path / "file.npz", "w", method) as archive:
        archive.writestr("w.npy", described("(4,)"))
        archive.writestr("x.npy", content)
    with refused("file.npz", found):
        open_weights(tmp_path / "file.npz")


def test_an_array_as_the_lying_ones_but_honest_opens(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "file.npz", "w") as archive:
        archive.writestr("x.npy", described("(2, 2)"))
    assert torch.equal(open_weights(tmp_path / "file.npz").read("", "x"), torch.zeros(2, 2))


# Nothing is executed.


class Payload:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.mkdir, (str(self.path),)


class Stored:
    """A storage, as a pickle names it."""

    def __init__(self, key: object, elements: object, kind: object) -> None:
        self.identity = ("storage", kind, key, "cpu", elements)


class Call:
    """What unpickles to what a call returns."""

    def __init__(self, function: Callable[..., object], arguments: tuple[object, ...]) -> None:
        self.parts = function, arguments

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.parts


def call(function: Callable[..., object], *arguments: object) -> Call:
    return Call(function, arguments)


def stored(elements: object, key: object = "0", kind: object = torch.FloatStorage) -> Stored:
    return Stored(key, elements, kind)


def tensor_of(elements: object, shape: Any = (4,), strides: Any = (1,), offset: object = 0, key: object = "0") -> Call:
    """A tensor as a pickle claims it."""
    return call(torch._utils._rebuild_tensor_v2, stored(elements, key), offset, shape, strides, False, OrderedDict())


class TorchPickler(pickle.Pickler):
    def persistent_id(self, value: object) -> object:
        return value.identity if isinstance(value, Stored) else None


def pickled_as(value: object, protocol: int = 2) -> bytes:
    stream = io.BytesIO()
    TorchPickler(stream, protocol).dump(value)
    return stream.getvalue()


def write_archive(path: Path, value: object, /, method: int = zipfile.ZIP_STORED, **members: bytes) -> None:
    """An archive as torch.save writes them, with one storage of four numbers."""
    content = value if isinstance(value, bytes) else pickled_as(value)
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("archive/data.pkl", content)
        archive.writestr("archive/data/0", struct.pack("<4f", 1, 2, 3, 4))
        for name, more in members.items():
            archive.writestr(f"archive/{name}", more)


def write_series(path: Path, value: object, /, storage: bytes = struct.pack("<q4f", 4, 1, 2, 3, 4)) -> None:
    """The legacy series of pickles."""
    series = [archives.MAGIC, archives.LEGACY, {"little_endian": True}, value, ["0"]]
    path.write_bytes(b"".join(part if isinstance(part, bytes) else pickled_as(part) for part in series) + storage)


CONTAINERS: dict[str, Callable[[Path, bytes], object]] = {
    "archive": write_archive,
    "legacy": write_series,
    "bare": lambda path, content: path.write_bytes(content),
    "first of the series": lambda path, content: path.write_bytes(pickled_as(archives.MAGIC) + content),
    "last of the series": lambda path, content: path.write_bytes(
        b"".join(map(pickled_as, [archives.MAGIC, archives.LEGACY, {}, {"w": tensor_of(4)}])) + content
    ),
}


@pytest.mark.parametrize("write", CONTAINERS.values(), ids=CONTAINERS)
@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_a_call_is_refused_by_name_and_not_made(
    tmp_path: Path, write: Callable[[Path, bytes], object], protocol: int
) -> None:
    path, executed = tmp_path / "x.pth", tmp_path / "executed"
    content = pickle.dumps({"model": {"w": 1.5}, "extra": [Payload(executed)]}, protocol)
    write(path, content)
    bare = write is CONTAINERS["bare"] and protocol < 2
    with refused(
        "x.pth", "begins with" if bare else r"its pickle calls (posix|nt)\.mkdir, which is code; vitviz opens"
    ):
        open_weights(path)
    assert not executed.exists(), "the file was executed"
    # The payload is one that a careless loader executes.
    pickle.loads(content)
    assert executed.is_dir()


def text(value: str) -> bytes:
    return b"\x8c" + bytes([len(value)]) + value.encode()


SYSTEM = r"calls os\.system, which is code"
OPCODES: dict[str, tuple[bytes, str]] = {
    "GLOBAL": (b"\x80\x02cos\nsystem\n.", SYSTEM),
    "INST": (b"(S'x'\nios\nsystem\n.", SYSTEM),
    "OBJ": (b"(cos\nsystem\nS'x'\no.", SYSTEM),
    "STACK_GLOBAL": (b"\x80\x04" + text("os") + text("system") + b"\x93.", SYSTEM),
    "STACK_GLOBAL from the memo": (
        b"\x80\x04" + text("system") + b"\x94" + text("os") + b"\x94" + b"00" + b"h\x01h\x00\x93.",
        SYSTEM,
    ),
    "STACK_GLOBAL from long texts": (
        b"\x80\x04X\x02\x00\x00\x00os\x8d" + struct.pack("<Q", 6) + b"system\x93.",
        SYSTEM,
    ),
    "STACK_GLOBAL from copies": (b"\x80\x04" + text("os") + b"2" + b"0" + text("system") + b"\x93.", SYSTEM),
    "STACK_GLOBAL of no texts": (b"\x80\x04K\x01K\x02\x93.", "damaged"),
    "a name with dots": (b"\x80\x04" + text("collections") + text("OrderedDict.__init__") + b"\x93.", "calls coll"),
    "a name with a control character": (b"\x80\x04" + text("os\x1b[31m\n") + text("x") + b"\x93.", r"calls 'os\\x1b"),
    "a name of 5,000 letters": (b"\x80\x02c" + b"o" * 5000 + b"\nx\n.", r"calls 'ooo.*\.\.\.ooo"),
    "a module of torch": (b"\x80\x02ctorch.nn.modules.linear\nLinear\n.", r"whole pickled model .*Linear"),
    "an extension": (b"\x80\x02\x82\x01.", "damaged"),
    "an id as text": (b"P0\n.", "damaged"),
    "a buffer outside": (b"\x80\x05\x97.", "damaged"),
    "a call of a dict": (b"\x80\x02})R.", "damaged"),
    "a call of a text": (b"\x80\x02X\x06\x00\x00\x00system)R.", "damaged"),
    "an item of a list": (b"\x80\x02]K\x00K\x01s.", "damaged"),
    "an item of a tensor": (pickled_as(tensor_of(4))[:-1] + b"K\x00K\x01s.", "damaged"),
    "an addition to a dict": (b"\x80\x02}K\x01a.", "damaged"),
    "an item without a value": (b"\x80\x02}(K\x01u.", "damaged"),
    "nothing": (b"\x80\x02.", "damaged"),
    "no end": (b"\x80\x02}", "damaged"),
    "an open mark": (b"\x80\x02}(.", "damaged"),
    "a mark that is not there": (b"\x80\x02t.", "damaged"),
    "a memo that is not there": (b"\x80\x02h\x07.", "damaged"),
    "an unknown opcode": (b"\x80\x02\xff.", "damaged"),
    "a text longer than the file": (b"\x80\x04\x8d" + struct.pack("<Q", 2**40) + b"x.", "damaged"),
    "a number of a million digits": (b"\x80\x02L" + b"9" * 10**6 + b"L\n.", "damaged"),
    "a number of a million bytes": (b"\x80\x02\x8b" + struct.pack("<i", 10**6) + b"\x01" * 10**6 + b".", "damaged"),
}


@pytest.mark.parametrize("write", [write_archive, write_series], ids=["archive", "legacy"])
@pytest.mark.parametrize(("content", "found"), OPCODES.values(), ids=OPCODES)
def test_a_pickle_that_is_crafted_is_refused(
    tmp_path: Path, write: Callable[[Path, object], object], content: bytes, found: str
) -> None:
    write(tmp_path / "x.pth", content)
    with refused("x.pth", found):
        open_weights(tmp_path / "x.pth")


DANGEROUS = """
    builtins.eval builtins.exec builtins.getattr builtins.__import__ builtins.open builtins.map __builtin__.apply
    os.system nt.system posix.system subprocess.Popen importlib.import_module runpy._run_code types.CodeType
    functools.partial operator.attrgetter pickle.loads webbrowser.open ctypes.CDLL collections.namedtuple
    torch.load torch.hub.load torch.jit.load torch.serialization.load torch.storage._load_from_bytes torch.utils.data
    torch._utils._rebuild_wrapper_subclass torch._utils._import_dotted_name torch.package.importer
    numpy.load numpy.core.multiarray.fromfile numpy.f2py.crackfortran.getlincoef numpy.testing.runstring
"""


@pytest.mark.parametrize("name", DANGEROUS.split())
def test_a_dangerous_name_is_refused(tmp_path: Path, name: str) -> None:
    module, _, attribute = name.rpartition(".")
    write_archive(tmp_path / "x.pth", b"\x80\x02c" + f"{module}\n{attribute}\n".encode() + b".")
    called = name.replace("__builtin__", "builtins")
    with refused("x.pth", f"its pickle calls {re.escape(called)}, which is code"):
        open_weights(tmp_path / "x.pth")


def test_an_extension_that_is_registered_is_not_called(tmp_path: Path) -> None:
    copyreg.add_extension("os", "getcwd", 1)
    try:
        write_archive(tmp_path / "x.pth", b"\x80\x02\x82\x01)R.")
        with refused("x.pth", "damaged"):
            open_weights(tmp_path / "x.pth")
    finally:
        copyreg.remove_extension("os", "getcwd", 1)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)


@pytest.mark.parametrize("make", [Net, lambda: torch.nn.Linear(2, 2), lambda: {"model": Net(), "epoch": 1}])
@pytest.mark.parametrize("save", [torch.save, save_legacy])
@pytest.mark.filterwarnings("ignore:Couldn't retrieve source code")
def test_a_whole_model_is_refused_by_its_class(
    tmp_path: Path, make: Callable[[], object], save: Callable[[object, Path], None]
) -> None:
    save(make(), tmp_path / "x.pth")
    with refused("x.pth", r"whole pickled model \(\S+\.(Net|Linear)\), which is code; .* the model's state_dict\(\)"):
        open_weights(tmp_path / "x.pth")


@pytest.mark.parametrize("member", ["constants.pkl", "code/__torch__/clip/model.py"])
def test_a_program_is_refused(tmp_path: Path, member: str) -> None:
    write_archive(tmp_path / "ViT-B-32.pt", {"w": tensor_of(4)}, **{member: b"x"})
    with refused("ViT-B-32.pt", r"a program \(TorchScript\).*; expected the safetensors version"):
        open_weights(tmp_path / "ViT-B-32.pt")


@writers
def test_nothing_that_unpickles_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, save: Callable[[Tensors, Path], object]
) -> None:
    def used(*_: object, **__: object) -> None:
        raise AssertionError

    tensors = state()
    save(tensors, tmp_path / "file")
    for module, name in ((pickle, "Unpickler"), (pickle, "load"), (pickle, "loads"), (torch, "load"), (np, "load")):
        monkeypatch.setattr(module, name, used)
    same(everything(open_weights(tmp_path / "file")), tensors)


# Tensors that claim more than there is.


@pytest.mark.parametrize("write", [write_archive, write_series], ids=["archive", "legacy"])
def test_a_tensor_as_the_lying_ones_but_honest_opens(tmp_path: Path, write: Callable[[Path, object], object]) -> None:
    write(tmp_path / "x.pth", {"w": tensor_of(4, (2, 2), (2, 1))})
    assert open_weights(tmp_path / "x.pth").read("", "w").tolist() == [[1, 2], [3, 4]]


LIES: dict[str, tuple[object, str]] = {
    "a longer storage": (tensor_of(5), "claims more|cut short"),
    "a storage beyond any memory": (tensor_of(2**62), "claims more|cut short"),
    "a larger shape": (tensor_of(4, (5,)), "'x' of shape .5,. claims more than the file holds"),
    "a shape beyond any memory": (tensor_of(4, (2**62, 2**62), (1, 1)), "claims more"),
    "sixty dimensions": (tensor_of(4, (2**62,) * 60, (1,) * 60), "claims more"),
    "a larger stride": (tensor_of(4, (2,), (4,)), "claims more"),
    "a stride beyond any memory": (tensor_of(4, (2,), (2**62,)), "claims more"),
    "an offset": (tensor_of(4, offset=1), "claims more"),
    "a negative offset": (tensor_of(4, offset=-1), "damaged"),
    "a negative stride": (tensor_of(4, (2,), (-1,), 3), "damaged"),
    "a negative shape": (tensor_of(4, (-1,)), "damaged"),
    "a negative storage": (tensor_of(-4), "damaged"),
    "a shape as a list": (tensor_of(4, [4]), "damaged"),
    "a shape of texts": (tensor_of(4, ("4",)), "damaged"),
    "a shape of fractions": (tensor_of(4, (4.0,)), "damaged"),
    "a shape of truth values": (tensor_of(4, (True,)), "damaged"),
    "too few strides": (tensor_of(4, (2, 2)), "damaged"),
    "a thousand dimensions": (tensor_of(4, (1,) * 1000, (1,) * 1000), "damaged"),
    "a text for a storage": (call(torch._utils._rebuild_tensor_v2, "0", 0, (4,), (1,), False, None), "damaged"),
    "too few arguments": (call(torch._utils._rebuild_tensor_v2, stored(4)), "damaged"),
    "a dtype for a storage": (call(torch._utils._rebuild_tensor_v2, stored(4, kind=torch.float32)), "damaged"),
    "an empty tensor beyond any memory": (
        tensor_of(4, (0, 2**62, 2**62), (0, 0, 0)),
        "'x' of a shape beyond any memory",
    ),
    "meta beyond any memory": (
        call(torch._utils._rebuild_meta_tensor_no_storage, torch.float32, (2**62, 2**62), (1, 1), False),
        "'x' of a shape beyond any memory",
    ),
}


@pytest.mark.parametrize("write", [write_archive, write_series], ids=["archive", "legacy"])
@pytest.mark.parametrize(("tensor", "found"), LIES.values(), ids=LIES)
def test_a_tensor_that_claims_more_than_there_is_is_refused(
    tmp_path: Path, write: Callable[[Path, object], object], tensor: object, found: str
) -> None:
    write(tmp_path / "x.pth", {"x": tensor, "w": tensor_of(4)})
    with refused("x.pth", found):
        open_weights(tmp_path / "x.pth")


@pytest.mark.parametrize("key", ["1", "../data.pkl", "", "0\n", None, 0])
def test_a_storage_that_is_not_there_is_refused(tmp_path: Path, key: object) -> None:
    write_archive(tmp_path / "x.pth", {"w": tensor_of(4, key=key)})
    with refused("x.pth", "claims more than the file holds|damaged"):
        open_weights(tmp_path / "x.pth")
    write_series(tmp_path / "x.pth", {"w": tensor_of(4, key=key)})
    with refused("x.pth", "damaged"):
        open_weights(tmp_path / "x.pth")


@pytest.mark.parametrize(
    ("storage", "found"),
    [
        (struct.pack("<q3f", 4, 1, 2, 3), "cut short at"),
        (b"", "cut short at"),
        (struct.pack("<q4f", 3, 1, 2, 3, 4), "a storage of 3 numbers that claims 16 bytes"),
        (struct.pack("<q4f", -4, 1, 2, 3, 4), "that claims 16 bytes"),
        (struct.pack("<q4f", 2**62, 1, 2, 3, 4), "that claims 16 bytes"),
    ],
)
def test_a_legacy_storage_of_another_size_is_refused(tmp_path: Path, storage: bytes, found: str) -> None:
    write_series(tmp_path / "x.pth", {"w": tensor_of(4)}, storage)
    with refused("x.pth", found):
        open_weights(tmp_path / "x.pth")


def test_many_views_of_one_number_are_listed_and_not_read(tmp_path: Path) -> None:
    write_archive(tmp_path / "x.pth", {"w": tensor_of(4), "x": tensor_of(4, (10**6, 10**6), (0, 0))})
    file = open_weights(tmp_path / "x.pth")
    assert file.groups[""]["x"].shape == (10**6, 10**6)
    with refused("x.pth", "'x' is expanded from fewer values"):
        file.read("", "x")


@pytest.mark.parametrize("write", [write_archive, write_series], ids=["archive", "legacy"])
def test_numbers_of_another_byte_order_are_refused(tmp_path: Path, write: Callable[[Path, object], object]) -> None:
    if write is write_archive:
        write_archive(tmp_path / "x.pth", {"w": tensor_of(4)}, byteorder=b"big")
    else:
        series = [archives.MAGIC, archives.LEGACY, {"little_endian": False}, {"w": tensor_of(4)}, ["0"]]
        (tmp_path / "x.pth").write_bytes(b"".join(map(pickled_as, series)) + struct.pack(">q4f", 4, 1, 2, 3, 4))
    with refused("x.pth", "big-endian"):
        open_weights(tmp_path / "x.pth")


# Pickles that take time or memory for ever.


def nested_key() -> bytes:
    """A dict whose key is a tuple of tuples of tuples, to hash which takes 2⁸⁰ steps."""
    return b"\x80\x02})" + b"2\x86" * 80 + b"K\x01s."


def copied(times: int) -> bytes:
    """A list of pairs that is made into a dict many times over."""
    pairs = b"](" + b"K\x01K\x02\x86" * times + b"e\x85q\x00"
    return b"\x80\x02" + pairs + b"ccollections\nOrderedDict\nq\x01" + b"h\x01h\x00R0" * times + b"."


def deep() -> dict[str, object]:
    """A dict of the same dict of the same dict."""
    value: dict[str, object] = {"w": 1.5}
    for _ in range(4):
        value = {f"{key}": value for key in range(300)}
    return value


def long_winded() -> dict[str, object]:
    """A long name above a dict of many dicts, every one of which is then called by it."""
    return {"x" * 2**20: {f"{key}": {"n": 1} for key in range(300)}, "w": tensor_of(4)}


def wordy(times: int) -> bytes:
    """A tensor with a hundred thousand arguments, many times over."""
    storage = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x04tQ"
    arguments = b"(" + storage + b"K\x00K\x04\x85K\x01\x85\x89NN" + b"N" * 10**5 + b"tq\x00"
    return b"\x80\x02" + arguments + b"ctorch._utils\n_rebuild_tensor_v2\nq\x01" + b"h\x01h\x00R0" * times + b"."


TIRING: dict[str, Callable[[], object]] = {
    "a key that takes for ever to hash": nested_key,
    "a list that is copied for ever": lambda: copied(20_000),
    "a dict in a dict in a dict": deep,
    "a long name of many": long_winded,
    "lists nested a hundred thousand times": lambda: b"\x80\x02" + b"]" * 10**5 + b"a" * (10**5 - 1) + b".",
    "arguments that are copied for ever": lambda: wordy(20_000),
}


@pytest.mark.parametrize("make", TIRING.values(), ids=TIRING)
def test_a_pickle_that_would_take_for_ever_is_refused_soon(
    tmp_path: Path, make: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    # In proportion to the sizes here.
    monkeypatch.setattr(pickled, "MAX_STEPS", 500_000)
    write_archive(tmp_path / "x.pth", make())
    with refused("x.pth"):
        open_weights(tmp_path / "x.pth")


@pytest.mark.parametrize(
    ("module", "name", "most", "found"),
    [
        (pickled, "MAX_STEPS", 40, "its pickle takes more than 40 steps"),
        (pickled, "MAX_TENSORS", 2, "more than 2 tensors"),
        (archives, "MAX_PICKLE", 100, "a pickle of [0-9,]+ bytes; expected at most 100"),
        (archives, "MAX_ENTRIES", 2, "more than 2 entries"),
        (archives, "MAX_TENSORS", 2, "[0-9] members; expected at most 2"),
        (archives, "MAX_DIRECTORY", 100, "damaged zip archive"),
    ],
)
def test_an_archive_beyond_the_bounds_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: object, name: str, most: int, found: str
) -> None:
    torch.save(state(), tmp_path / "x.pth")
    assert getattr(module, name) > 10_000
    open_weights(tmp_path / "x.pth")
    monkeypatch.setattr(module, name, most)
    with refused("x.pth", found):
        open_weights(tmp_path / "x.pth")


def test_a_legacy_pickle_beyond_the_bounds_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_legacy(state(), tmp_path / "x.pth")
    monkeypatch.setattr(archives, "MAX_PICKLE", 300)
    with refused("x.pth", "too long"):
        open_weights(tmp_path / "x.pth")


# Zip archives.


def test_a_compressed_archive_of_torch_is_refused(tmp_path: Path) -> None:
    write_archive(tmp_path / "x.pth", {"w": tensor_of(4)}, zipfile.ZIP_DEFLATED)
    with refused("x.pth", "'archive/data.pkl' is compressed; expected members as torch.save stores them"):
        open_weights(tmp_path / "x.pth")


def test_an_array_that_expands_beyond_measure_is_refused(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).standard_normal(2**18, "f4")
    np.savez_compressed(tmp_path / "x.npz", w=noise, bomb=np.zeros(2**20, "f4"))
    with refused("x.npz", "'bomb' expands more than 20-fold"):
        open_weights(tmp_path / "x.npz")
    # What is small may be as even as it likes.
    np.savez_compressed(tmp_path / "x.npz", w=np.zeros(2**16, "f4"))
    assert not open_weights(tmp_path / "x.npz").read("", "w").any()


def test_many_arrays_that_expand_beyond_measure_together_are_refused(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "x.npz", **{f"w{index}": np.zeros(2**17, "f4") for index in range(8)})
    with refused("x.npz", "it expands more than 20-fold"):
        open_weights(tmp_path / "x.npz")


def test_an_array_that_expands_to_less_or_more_than_it_says_is_refused(tmp_path: Path) -> None:
    def squeezed(content: bytes) -> bytes:
        packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
        return packer.compress(content) + packer.flush()

    honest = described("(4,)")
    for content in (honest + bytes(10**7), honest[:-1], honest[:-1] + b"x"):
        with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("w.npy", honest)
            at = archive.getinfo("w.npy").header_offset
        raw = (tmp_path / "x.npz").read_bytes()
        packed, wrong = squeezed(honest), squeezed(content)
        assert packed in raw
        raw = raw.replace(packed, wrong)
        # Both places that say how long the member is, and the one that says where the directory is.
        directory = raw.index(b"PK\x01\x02")
        end = raw.index(b"PK\x05\x06")
        raw = patched(patched(raw, at + 18, "<I", len(wrong)), directory + 20, "<I", len(wrong))
        raw = patched(raw, end + 16, "<I", directory)
        (tmp_path / "x.npz").write_bytes(raw)
        file = open_weights(tmp_path / "x.npz")
        tracemalloc.start()
        with refused("x.npz", "damaged, or changed"):
            file.read("", "w")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2**20


def patched(content: bytes, at: int, form: str, *values: object) -> bytes:
    part = struct.pack(form, *values)
    return content[:at] + part + content[at + len(part) :]


def small_zip(path: Path) -> bytes:
    write_archive(path, {"w": tensor_of(4)})
    open_weights(path)
    return path.read_bytes()


ZIPS: dict[str, Callable[[bytes], bytes]] = {
    "cut in the directory": lambda raw: raw[: raw.index(b"PK\x01\x02") + 20],
    "cut by a byte": lambda raw: raw[:-1],
    "only its first bytes": lambda raw: raw[:10],
    # In an entry of the directory: sizes at 20 and 24, flags at 8, method at 10, where the member stands at 42.
    "overlapping members": lambda raw: patched(raw, raw.rindex(b"PK\x01\x02") + 42, "<I", 0),
    "a member in the directory": lambda raw: patched(raw, raw.rindex(b"PK\x01\x02") + 20, "<II", 200, 200),
    "a member beyond the end": lambda raw: patched(raw, raw.rindex(b"PK\x01\x02") + 20, "<II", 2**31, 2**31),
    "a stored member of two sizes": lambda raw: patched(raw, raw.rindex(b"PK\x01\x02") + 24, "<I", 2**31),
    "a member that is not where it says": lambda raw: patched(raw, raw.rindex(b"PK\x01\x02") + 42, "<I", 5),
    "an encrypted member": lambda raw: patched(raw, raw.rindex(b"PK\x01\x02") + 8, "<H", 1),
    "an unknown compression": lambda raw: patched(raw, raw.rindex(b"PK\x01\x02") + 10, "<H", 93),
    "two members of one name": lambda raw: raw.replace(b"archive/data/0", b"archive/XXXXXX").replace(
        b"archive/data.pkl", b"archive/XXXXXX\0\0"
    ),
    "a directory of 4 GB": lambda raw: patched(raw, raw.index(b"PK\x05\x06") + 12, "<I", 2**32 - 2),
}


@pytest.mark.parametrize("change", ZIPS.values(), ids=ZIPS)
def test_an_archive_that_lies_is_refused(tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    raw = small_zip(tmp_path / "x.pth")
    hostile = change(raw)
    assert hostile != raw
    (tmp_path / "x.pth").write_bytes(hostile)
    with refused("x.pth", "damaged zip archive, or one whose members overlap|encrypted or of an unknown compression"):
        open_weights(tmp_path / "x.pth")


@pytest.mark.parametrize("names", [[], ["readme.txt"], ["a/data.pkl", "b/data.pkl"], ["w.npy", "\x1b[31m.txt"]])
def test_an_archive_of_something_else_is_refused(tmp_path: Path, names: list[str]) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        for name in names:
            archive.writestr(name, b"")
    with refused("x.zip", "a zip archive of " + ("'" if names else "nothing"), "expected safetensors, a file of torch"):
        open_weights(tmp_path / "x.zip")


# safetensors.


def put_together(header: object, data: bytes = bytes(16)) -> bytes:
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(encoded)) + encoded + data


def entry(start: int, end: int, shape: object = (4,), dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


TWICE = b'{"w":{"dtype":"%s","shape":[4],"data_offsets":[0,16]},"%s":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}'
LIBRARY = "not a safetensors file, or a damaged one"
HEADERS: dict[str, tuple[bytes, str]] = {
    "past the end": (put_together({"w": entry(0, 32, (8,))}), LIBRARY),
    "overlapping": (put_together({"w": entry(0, 16), "x": entry(0, 16)}), LIBRARY),
    "a hole": (put_together({"w": entry(0, 16), "x": entry(20, 36)}, bytes(36)), LIBRARY),
    "negative": (put_together({"w": entry(-16, 0)}), LIBRARY),
    "backwards": (put_together({"w": entry(16, 0)}), LIBRARY),
    "another shape": (put_together({"w": entry(0, 16, (5,))}), LIBRARY),
    "a shape beyond any memory": (put_together({"w": entry(0, 16, (2**62, 2**62))}), LIBRARY),
    "an empty shape beyond any memory": (
        put_together({"w": entry(0, 16), "x": entry(16, 16, (0, 2**62, 2**62))}),
        "'x' of a shape beyond any memory",
    ),
    "an unknown dtype": (put_together({"w": entry(0, 16, dtype="\x1b[31m\n")}), LIBRARY),
    "a list": (put_together(b"[1, 2]  "), "it begins with"),
    "an entry that is a list": (put_together({"w": [1, 2]}), LIBRARY),
    "nested too deeply": (put_together(b'{"w":' * 10_000), LIBRARY),
    "a header past the end": (struct.pack("<Q", 2**20) + b'{"w": 1}', LIBRARY),
    "a header of 90 MB": (struct.pack("<Q", 90_000_000) + b'{"w": 1}', "a header of 90,000,000 bytes; expected at"),
    "a header of 2⁶⁴ bytes": (b"\xff" * 8 + b'{"w": 1}', "a header of 18,446,744,073,709,551,615 bytes"),
    "the same key twice": (put_together(TWICE % (b"I32", b"w")), "the same key twice"),
    "the same key twice, escaped": (put_together(TWICE % (b"I32", rb"\u0077")), "the same key twice"),
    "cut in the header": (put_together({"w": entry(0, 16)})[:30], LIBRARY),
    "cut in the data": (put_together({"w": entry(0, 16)})[:-1], LIBRARY),
    "a byte too many": (put_together({"w": entry(0, 16)}) + b"\0", LIBRARY),
    "no tensors": (put_together({}, b""), "only nothing"),
    "only integers": (put_together({"w": entry(0, 16, dtype="I32")}), "no floating-point tensors by name, only 'w'"),
}


@pytest.mark.parametrize(("content", "found"), HEADERS.values(), ids=HEADERS)
def test_a_header_that_lies_is_refused(tmp_path: Path, content: bytes, found: str) -> None:
    (tmp_path / "x.safetensors").write_bytes(content)
    with refused("x.safetensors", found):
        open_weights(tmp_path / "x.safetensors")


def test_a_header_as_the_lying_ones_but_honest_opens(tmp_path: Path) -> None:
    # Long names: one of the lengths begins as JSON does.
    for letters in range(40, 70):
        (tmp_path / "x").write_bytes(put_together({"w" * letters: entry(0, 16, (2, 2))}))
        assert torch.equal(open_weights(tmp_path / "x").read("", "w" * letters), torch.zeros(2, 2))
    lengths = {len(json.dumps({"w" * letters: entry(0, 16, (2, 2))})) for letters in range(40, 70)}
    assert ord("{") in lengths


@pytest.mark.parametrize(
    ("module", "name", "most", "found"),
    [
        (files, "MAX_HEADER", 20, "a header of [0-9,]+ bytes; expected at most 20"),
        (files, "MAX_TENSORS", 2, "3 tensors; expected at most 2"),
    ],
)
def test_a_header_beyond_the_bounds_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: object, name: str, most: int, found: str
) -> None:
    save_file(state(), tmp_path / "x.safetensors")
    open_weights(tmp_path / "x.safetensors")
    monkeypatch.setattr(module, name, most)
    with refused("x.safetensors", found):
        open_weights(tmp_path / "x.safetensors")


def test_a_dtype_that_is_not_read_is_refused_by_name(tmp_path: Path) -> None:
    save_file({"w": W, "x": torch.zeros(2).to(torch.float8_e5m2)}, tmp_path / "x.safetensors")
    file = open_weights(tmp_path / "x.safetensors")
    assert file.groups[""]["x"] == TensorInfo((2,), "float8_e5m2")
    with refused("x.safetensors", "'x' is float8_e5m2"):
        file.read("", "x")


# Folders, and checkpoints in several files.

Save = Callable[[Tensors, Path], object]


def shard(folder: Path, save: Save = save_file, suffix: str = "safetensors") -> tuple[Path, Tensors]:
    """A checkpoint in two files, and its index."""
    tensors = {"a": torch.randn(2), "b": torch.randn(3), "c": torch.randn(4)}
    save({key: tensors[key] for key in "ab"}, folder / f"one.{suffix}")
    save({"c": tensors["c"]}, folder / f"two.{suffix}")
    places = {"a": f"one.{suffix}", "b": f"one.{suffix}", "c": f"two.{suffix}"}
    return write_index(folder / f"model.{suffix}.index.json", places), tensors


def write_index(path: Path, places: object) -> Path:
    path.write_text(json.dumps({"metadata": {"total_size": 36}, "weight_map": places}))
    return path


@pytest.mark.parametrize(
    ("save", "suffix", "kind"),
    [(save_file, "safetensors", "sharded safetensors"), (torch.save, "bin", "sharded torch")],
)
def test_a_checkpoint_in_several_files_is_one(tmp_path: Path, save: Save, suffix: str, kind: str) -> None:
    index, tensors = shard(tmp_path, save, suffix)
    file = open_weights(index)
    assert (file.name, file.kind, file.folder) == (index.name, kind, tmp_path)
    same(everything(file), tensors)


def test_files_may_be_links_to_elsewhere_as_in_a_download_cache(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    index, tensors = shard(tmp_path / "blobs")
    for path in sorted((tmp_path / "blobs").iterdir()):
        (tmp_path / "snapshot" / path.name).symlink_to(path)
    same(everything(open_weights(tmp_path / "snapshot")), tensors)
    file = open_weights(tmp_path / "snapshot" / index.name)
    assert file.folder == tmp_path / "snapshot"


INDEXES: dict[str, tuple[object, str]] = {
    "the folder above": ({"a": "../one.safetensors"}, r"it names '\.\./one\.safetensors'; expected files beside it"),
    "an absolute path": ({"a": "/etc/passwd"}, "it names '/etc/passwd'; expected files beside it"),
    "a folder below": ({"a": "x/one.safetensors"}, "expected files beside it"),
    "a path of Windows": ({"a": "C:\\one.safetensors"}, "expected files beside it"),
    "a drive": ({"a": "C:one.safetensors"}, "expected files beside it"),
    "the folder": ({"a": "."}, "expected files beside it"),
    "the parent": ({"a": ".."}, "expected files beside it"),
    "an empty name": ({"a": ""}, "expected files beside it"),
    "a name with a line": ({"a": "one\n.safetensors"}, r"'one\\n\.safetensors'; expected files beside it"),
    "a name with a zero": ({"a": "one\0"}, "expected files beside it"),
    "half a character": ({"a": "\ud800"}, "expected files beside it"),
    "a missing file": ({"a": "three.safetensors"}, "'three.safetensors', which is not there"),
    "a name of 5,000 letters": ({"a": "x" * 5000}, "File name too long|which is not there"),
    "itself": ({"a": "x.index.json"}, "x.index.json: it begins with"),
    "another index": ({"a": "model.safetensors.index.json"}, "it begins with"),
    "a file of something else": ({"a": "note.txt"}, "note.txt: it begins with"),
    "a pointer": ({"a": "pointer.safetensors"}, "a git-lfs pointer"),
    "an npz": ({"a": "arrays.npz"}, "arrays.npz: npz with groups"),
    "a nested checkpoint": ({"a": "nested.bin"}, "nested.bin: torch with groups 'model'"),
    "a key that is not there": (
        {"a": "one.safetensors", "b": "one.safetensors", "z": "two.safetensors", "c": "two.safetensors"},
        "two.safetensors: it lacks 'z'",
    ),
    "a key too few": ({"a": "one.safetensors", "c": "two.safetensors"}, "one.safetensors: it has, beyond it, 'b'"),
    "a key in the other file": (
        {"a": "one.safetensors", "b": "two.safetensors", "c": "two.safetensors"},
        "one.safetensors: it has, beyond it, 'b'|two.safetensors: it lacks 'b'",
    ),
    "two kinds": ({"a": "one.safetensors", "b": "one.safetensors", "z": "three.bin"}, "safetensors and torch"),
    "no places": ({}, "JSON without a weight_map of file names"),
    "places as a list": (["one.safetensors"], "JSON without a weight_map"),
    "places as numbers": ({"a": 1}, "JSON without a weight_map"),
    "too many files": ({f"{index}": f"{index}" for index in range(5000)}, "5,000 tensors in 5,000 files; expected"),
}


@pytest.mark.parametrize(("places", "found"), INDEXES.values(), ids=INDEXES)
def test_an_index_that_lies_is_refused(tmp_path: Path, places: object, found: str) -> None:
    shard(tmp_path)
    (tmp_path / "note.txt").write_text("only some text")
    (tmp_path / "pointer.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n")
    np.savez(tmp_path / "arrays.npz", a=np.ones(3, "f4"))
    torch.save({"model": {"a": W}}, tmp_path / "nested.bin")
    torch.save({"z": W}, tmp_path / "three.bin")
    index = write_index(tmp_path / "x.index.json", places)
    with pytest.raises(CheckpointError, match=found) as caught:
        open_weights(index)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 700


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b'{"weight_map": {"a": "x", "a": "y"}}', "the same key twice"),
        (b'{"weight_map": ', "its JSON cannot be read"),
        (b'{"a":' * 100_000, "its JSON cannot be read"),
        (b'{"weight_map": {"a": "\xff"}}', "its JSON cannot be read"),
        (b'{"architectures": ["ViTModel"]}', "JSON without a weight_map"),
        (b'        {"architectures": ["ViTModel"]}', "JSON without a weight_map"),
        (b'{"abcd":{"weight_map": 1}}', "JSON without a weight_map"),
        (b'{"a": "' + b"x" * (16 * 2**20) + b'"}', "JSON of 16,777,225 bytes; expected at most 8,388,608"),
    ],
    ids=["twice", "cut", "deep", "not UTF-8", "config", "spaces", "a brace in the ninth place", "large"],
)
def test_json_that_is_no_index_is_refused(tmp_path: Path, content: bytes, found: str) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with refused("config.json", found):
        open_weights(tmp_path / "config.json")


def named(folder: Path, *names: str) -> None:
    """Files that say in a tensor which they are."""
    for number, name in enumerate(names):
        if name.endswith(".index.json"):
            save_file({"w": torch.tensor(float(number))}, folder / f"{number}.shard")
            write_index(folder / name, {"w": f"{number}.shard"})
        elif name.endswith(".safetensors"):
            save_file({"w": torch.tensor(float(number))}, folder / name)
        else:
            torch.save({"w": torch.tensor(float(number))}, folder / name)


@pytest.mark.parametrize(
    "names",
    [
        ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "a.safetensors", "b.pth"),
        ("model.safetensors.index.json", "pytorch_model.bin", "one.safetensors", "two.safetensors"),
        ("open_clip_model.safetensors", "open_clip_pytorch_model.bin", "pytorch_model.bin"),
        ("pytorch_model.bin", "pytorch_model.bin.index.json", "training_args.bin"),
        ("pytorch_model.bin.index.json", "one.bin", "two.bin"),
        ("open_clip_pytorch_model.bin", "more.bin"),
        ("vit.safetensors",),
        ("vit.PTH",),
        ("vit.safetensors", "vit.bin", "vit.pth"),
        ("vit.ckpt", "notes.txt"),
    ],
)
def test_a_folder_opens_by_its_usual_file_or_the_only_one(tmp_path: Path, names: tuple[str, ...]) -> None:
    folder = tmp_path / "vit-base"
    folder.mkdir()
    named(folder, *names)
    (folder / "config.json").write_text("{}")
    file = open_weights(f"{folder}{os.sep}")
    assert file.read("", "w") == 0
    assert (file.name, file.folder) == ("vit-base", folder)


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ((), "no weights in this folder; expected model.safetensors or one file .safetensors, .pth"),
        (("notes.txt",), "no weights in this folder"),
        (("a.pth", "b.pth"), "2 weight files in this folder, 'a.pth', 'b.pth'; expected one, or its own path"),
        (("a.safetensors", "b.pth"), "2 weight files in this folder, 'a.safetensors', 'b.pth'"),
        (("a\n.pth", "b.pth"), r"'a\\n.pth', 'b.pth'"),
        (tuple(f"{index:02}.pth" for index in range(20)), "20 weight files .* '03.pth' and 16 more"),
    ],
)
def test_a_folder_of_none_or_several_is_refused_with_them(tmp_path: Path, names: tuple[str, ...], found: str) -> None:
    for name in names:
        (tmp_path / name).write_bytes(b"")
    with refused(tmp_path.name, found):
        open_weights(tmp_path)


def test_a_damaged_file_in_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    torch.save({"w": W}, tmp_path / "pytorch_model.bin")
    with refused("model.safetensors", "a git-lfs pointer"):
        open_weights(tmp_path)


# What is no checkpoint at all.

FILES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "an empty file; expected safetensors, a file of torch.save or npz"),
    "a byte": (b"x", "it begins with b'x'"),
    "zeros": (bytes(4096), r"it begins with b'\\x00"),
    "text": (b"not a checkpoint, only some text\n" * 20, "it begins with b'not a checkpoint"),
    "a page": (b"\n<!DOCTYPE html><html><head>", "a web page, not the weights"),
    "an old page": (b"<HTML><BODY>404", "a web page, not the weights"),
    "a git-lfs pointer": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 346000000\n",
        "a git-lfs pointer, not the weights",
    ),
    "an image": (b"\x89PNG\r\n\x1a\n" + bytes(100), r"it begins with b'\\x89PNG"),
    "an array": (described("(4,)"), "a single NumPy array"),
    "an archive of zeros": (b"PK\x03\x04" + bytes(100), "damaged zip archive"),
    "a pickle of values": (pickle.dumps({"w": 1.5}), "a pickle that is not of torch.save"),
    "random after a first byte": (b"\x80" + bytes(range(100)), "damaged"),
    "a first byte": (b"\x80", "damaged"),
}


@pytest.mark.parametrize(("content", "found"), FILES.values(), ids=FILES)
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_a_file_that_is_no_checkpoint_is_refused(tmp_path: Path, content: bytes, found: str, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    path.write_bytes(content)
    with refused(path.name, found):
        open_weights(path)


@writers
def test_a_file_that_is_cut_anywhere_is_refused_or_reads_as_it_was(
    tmp_path: Path, kind: str, save: Callable[[Tensors, Path], object]
) -> None:
    tensors = {"w": torch.randn(3), "x": torch.randn(5)}
    save(tensors, tmp_path / "whole")
    content = (tmp_path / "whole").read_bytes()
    for length in range(0, len(content), max(1, len(content) // 50)):
        (tmp_path / "cut").write_bytes(content[:length])
        with refused("cut"):
            open_weights(tmp_path / "cut")


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


@pytest.mark.parametrize("path", ["gone.pth", "no/such/gone.pth", "C:\\models\\gone.pth", "gone\0.pth", "x" * 300])
def test_a_path_to_nothing_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(CheckpointError, match=r"no such file or folder|File name too long") as caught:
        open_weights(tmp_path / path)
    message = str(caught.value)
    assert message.isprintable()
    assert str(tmp_path) not in message
    assert "gone" in message or "xxx" in message


def test_an_empty_path_is_refused() -> None:
    with refused("''", "no such file or folder"):
        open_weights("")


def test_a_name_cannot_reach_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "\x1b[31m\n.pth"
    torch.save({"w": torch.tensor([float("nan")])}, path)
    with refused(r"'\x1b[31m\n.pth'", "not finite"):
        open_weights(path).read("", "w")
    path.write_bytes(b"")
    with refused(r"'\x1b[31m\n.pth'", "empty"):
        open_weights(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
@pytest.mark.parametrize("inside", [False, True])
def test_a_pipe_is_not_opened(tmp_path: Path, inside: bool) -> None:
    os.mkfifo(tmp_path / "model.safetensors")
    path = tmp_path if inside else tmp_path / "model.safetensors"
    with refused(path.name, "no weights in this folder" if inside else "neither a file nor a folder"):
        open_weights(path)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no devices here")
def test_a_device_is_not_opened() -> None:
    with refused("zero", "neither a file nor a folder"):
        open_weights("/dev/zero")


@writers
def test_a_file_that_may_not_be_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, save: Callable[[Tensors, Path], object]
) -> None:
    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(tmp_path))

    save(state(), tmp_path / "file")
    file = open_weights(tmp_path / "file")
    with monkeypatch.context() as patch:
        patch.setattr(builtins, "open", denied)
        with refused("file", r"cannot be read \(Permission denied\)"):
            open_weights(tmp_path / "file")
        if kind != "safetensors":
            with refused("file", r"cannot be read \(Permission denied\)"):
                file.read("", "scale")


def test_the_listing_cannot_be_changed(tmp_path: Path) -> None:
    torch.save({"w": W}, tmp_path / "file")
    file = open_weights(tmp_path / "file")
    for change in (
        lambda: file.groups.update({}),  # type: ignore[attr-defined]
        lambda: file.groups[""].clear(),  # type: ignore[attr-defined]
        lambda: setattr(file, "name", "x"),
    ):
        with pytest.raises(AttributeError):
            change()
