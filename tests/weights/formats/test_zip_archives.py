"""A zip archive that lies about what is in it is refused in one line."""

from __future__ import annotations

import struct
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support.pickles import tensor_of, write_archive
from tests.support.weight_files import expect_refusal, npy_of_shape
from vitviz.weights.formats.files import open_weights

# Zip archives.


def test_a_compressed_archive_of_torch_is_refused(tmp_path: Path) -> None:
    write_archive(tmp_path / "x.pth", {"w": tensor_of(4)}, zipfile.ZIP_DEFLATED)
    with expect_refusal("x.pth", "'archive/data.pkl' is compressed; expected members as torch.save stores them"):
        open_weights(tmp_path / "x.pth")


def test_an_array_that_expands_beyond_measure_is_refused(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).standard_normal(2**18, "f4")
    np.savez_compressed(tmp_path / "x.npz", w=noise, bomb=np.zeros(2**20, "f4"))
    with expect_refusal("x.npz", "'bomb' expands more than 20-fold"):
        open_weights(tmp_path / "x.npz")
    # What is small may be as even as it likes.
    np.savez_compressed(tmp_path / "x.npz", w=np.zeros(2**16, "f4"))
    assert not open_weights(tmp_path / "x.npz").read("", "w").any()


def test_many_arrays_that_expand_beyond_measure_together_are_refused(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "x.npz", **{f"w{index}": np.zeros(2**17, "f4") for index in range(8)})
    with expect_refusal("x.npz", "it expands more than 20-fold"):
        open_weights(tmp_path / "x.npz")


def test_an_array_that_expands_to_less_or_more_than_it_says_is_refused(tmp_path: Path) -> None:
    def squeezed(content: bytes) -> bytes:
        packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
        return packer.compress(content) + packer.flush()

    honest = npy_of_shape("(4,)")
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
        with expect_refusal("x.npz", "damaged, or changed"):
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
    with expect_refusal(
        "x.pth", "damaged zip archive, or one whose members overlap|encrypted or of an unknown compression"
    ):
        open_weights(tmp_path / "x.pth")


@pytest.mark.parametrize("names", [[], ["readme.txt"], ["a/data.pkl", "b/data.pkl"], ["w.npy", "\x1b[31m.txt"]])
def test_an_archive_of_something_else_is_refused(tmp_path: Path, names: list[str]) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        for name in names:
            archive.writestr(name, b"")
    with expect_refusal(
        "x.zip", "a zip archive of " + ("'" if names else "nothing"), "expected safetensors, a file of torch"
    ):
        open_weights(tmp_path / "x.zip")
