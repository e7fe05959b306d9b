"""A header of safetensors that lies is refused in one line."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.support.weight_files import W, expect_refusal
from vitviz.weights.formats.files import open_weights
from vitviz.weights.formats.tensors import LazyTensor

# safetensors.


def put_together(header: object, data: bytes = bytes(16)) -> bytes:
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(encoded)) + encoded + data


def entry(start: int, end: int, shape: object = (4,), dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


LIBRARY = "not a safetensors file, or a damaged one"
HEADERS: dict[str, tuple[bytes, str]] = {
    "past the end": (put_together({"w": entry(0, 32, (8,))}), LIBRARY),
    "overlapping": (put_together({"w": entry(0, 16), "x": entry(0, 16)}), LIBRARY),
    "a hole": (put_together({"w": entry(0, 16), "x": entry(20, 36)}, bytes(36)), LIBRARY),
    "negative": (put_together({"w": entry(-16, 0)}), LIBRARY),
    "backwards": (put_together({"w": entry(16, 0)}), LIBRARY),
    "another shape": (put_together({"w": entry(0, 16, (5,))}), LIBRARY),
    "a shape beyond any memory": (put_together({"w": entry(0, 16, (2**62, 2**62))}), LIBRARY),
    "an unknown dtype": (put_together({"w": entry(0, 16, dtype="\x1b[31m\n")}), LIBRARY),
    "a list": (put_together(b"[1, 2]  "), "it begins with"),
    "an entry that is a list": (put_together({"w": [1, 2]}), LIBRARY),
    "no JSON": (put_together(b"{" * 200, b""), LIBRARY),
    "nested too deeply": (put_together(b'{"w":' * 10_000), LIBRARY),
    "a header past the end": (struct.pack("<Q", 2**20) + b'{"w": 1}', LIBRARY),
    "a header of 90 MB": (struct.pack("<Q", 90_000_000) + b'{"w": 1}', LIBRARY),
    "a header of 2⁶⁴ bytes": (b"\xff" * 8 + b'{"w": 1}', LIBRARY),
    "cut in the header": (put_together({"w": entry(0, 16)})[:30], LIBRARY),
    "cut in the data": (put_together({"w": entry(0, 16)})[:-1], LIBRARY),
    "a byte too many": (put_together({"w": entry(0, 16)}) + b"\0", LIBRARY),
    "no tensors": (put_together({}, b""), "only nothing"),
    "only integers": (put_together({"w": entry(0, 16, dtype="I32")}), "no floating-point tensors by name, only 'w'"),
}


@pytest.mark.parametrize(("content", "found"), HEADERS.values(), ids=HEADERS)
def test_a_header_that_lies_is_refused(tmp_path: Path, content: bytes, found: str) -> None:
    (tmp_path / "x.safetensors").write_bytes(content)
    with expect_refusal("x.safetensors", found):
        open_weights(tmp_path / "x.safetensors")


def test_a_header_as_the_lying_ones_but_honest_opens(tmp_path: Path) -> None:
    # Long names: one of the lengths begins as JSON does.
    for letters in range(40, 70):
        (tmp_path / "x").write_bytes(put_together({"w" * letters: entry(0, 16, (2, 2))}))
        assert torch.equal(open_weights(tmp_path / "x").read("", "w" * letters), torch.zeros(2, 2))
    lengths = {len(json.dumps({"w" * letters: entry(0, 16, (2, 2))})) for letters in range(40, 70)}
    assert ord("{") in lengths


def test_a_dtype_that_is_not_read_is_refused_by_name(tmp_path: Path) -> None:
    save_file({"w": W, "x": torch.zeros(2).to(torch.float8_e5m2)}, tmp_path / "x.safetensors")
    file = open_weights(tmp_path / "x.safetensors")
    assert file.groups[""]["x"] == LazyTensor((2,), "float8_e5m2")
    with expect_refusal("x.safetensors", "'x' is float8_e5m2"):
        file.read("", "x")
