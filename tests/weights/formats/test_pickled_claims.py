"""A pickle that claims more than there is, or takes time or memory for ever, is refused in one line."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.support.pickles import call, pickle_bytes, storage_of, tensor_of, write_archive, write_series
from tests.support.weight_files import expect_refusal, save_legacy, state
from vitviz.weights.formats import archives, pickled
from vitviz.weights.formats.files import open_weights

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
    "too few arguments": (call(torch._utils._rebuild_tensor_v2, storage_of(4)), "damaged"),
    "a dtype for a storage": (call(torch._utils._rebuild_tensor_v2, storage_of(4, kind=torch.float32)), "damaged"),
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
    with expect_refusal("x.pth", found):
        open_weights(tmp_path / "x.pth")


@pytest.mark.parametrize("key", ["1", "../data.pkl", "", "0\n", None, 0])
def test_a_storage_that_is_not_there_is_refused(tmp_path: Path, key: object) -> None:
    write_archive(tmp_path / "x.pth", {"w": tensor_of(4, key=key)})
    with expect_refusal("x.pth", "claims more than the file holds|damaged"):
        open_weights(tmp_path / "x.pth")
    write_series(tmp_path / "x.pth", {"w": tensor_of(4, key=key)})
    with expect_refusal("x.pth", "damaged"):
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
    with expect_refusal("x.pth", found):
        open_weights(tmp_path / "x.pth")


def test_many_views_of_one_number_are_listed_and_not_read(tmp_path: Path) -> None:
    write_archive(tmp_path / "x.pth", {"w": tensor_of(4), "x": tensor_of(4, (10**6, 10**6), (0, 0))})
    file = open_weights(tmp_path / "x.pth")
    assert file.groups[""]["x"].shape == (10**6, 10**6)
    with expect_refusal("x.pth", "'x' is expanded from fewer values"):
        file.read("", "x")


@pytest.mark.parametrize("write", [write_archive, write_series], ids=["archive", "legacy"])
def test_numbers_of_another_byte_order_are_refused(tmp_path: Path, write: Callable[[Path, object], object]) -> None:
    if write is write_archive:
        write_archive(tmp_path / "x.pth", {"w": tensor_of(4)}, byteorder=b"big")
    else:
        series = [archives.MAGIC, archives.LEGACY_VERSION, {"little_endian": False}, {"w": tensor_of(4)}, ["0"]]
        (tmp_path / "x.pth").write_bytes(b"".join(map(pickle_bytes, series)) + struct.pack(">q4f", 4, 1, 2, 3, 4))
    with expect_refusal("x.pth", "big-endian"):
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


@pytest.mark.slow
@pytest.mark.parametrize("make", TIRING.values(), ids=TIRING)
def test_a_pickle_that_would_take_for_ever_is_refused_soon(
    tmp_path: Path, make: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    # In proportion to the sizes here.
    monkeypatch.setattr(pickled, "MAX_STEPS", 500_000)
    write_archive(tmp_path / "x.pth", make())
    with expect_refusal("x.pth"):
        open_weights(tmp_path / "x.pth")


@pytest.mark.parametrize(
    ("module", "name", "most", "found"),
    [
        (pickled, "MAX_STEPS", 40, "its pickle takes more than 40 steps"),
        (pickled, "MAX_TENSORS", 2, "more than 2 tensors"),
        (archives, "MAX_PICKLE_BYTES", 100, "a pickle of [0-9,]+ bytes; expected at most 100"),
        (archives, "MAX_ENTRIES", 2, "more than 2 entries"),
        (archives, "MAX_TENSORS", 2, "[0-9] members; expected at most 2"),
        (archives, "MAX_DIRECTORY_BYTES", 100, "damaged zip archive"),
    ],
)
def test_an_archive_beyond_the_bounds_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: object, name: str, most: int, found: str
) -> None:
    torch.save(state(), tmp_path / "x.pth")
    assert getattr(module, name) > 10_000
    open_weights(tmp_path / "x.pth")
    monkeypatch.setattr(module, name, most)
    with expect_refusal("x.pth", found):
        open_weights(tmp_path / "x.pth")


def test_a_legacy_pickle_beyond_the_bounds_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_legacy(state(), tmp_path / "x.pth")
    monkeypatch.setattr(archives, "MAX_PICKLE_BYTES", 300)
    with expect_refusal("x.pth", "too long"):
        open_weights(tmp_path / "x.pth")
