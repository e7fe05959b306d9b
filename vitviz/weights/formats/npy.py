"""The header of an array as NumPy writes it, read without Python's parser, in time that is linear in its length."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitviz.weights.formats.pickled import MAX_DIMENSIONS

MAGIC = b"\x93NUMPY"
MAX_HEAD = 2**14
# Bytes of the number that says how long a header is, by the version of the format.
LENGTHS: dict[tuple[int, ...], int] = {(1, 0): 2, (2, 0): 4}
HEADER = re.compile(
    r"\{\s*'descr'\s*:\s*(?:'(?P<kind>[^'\\]{1,40})'|(?P<fields>\[.*\]))\s*,"
    r"\s*'fortran_order'\s*:\s*(?P<fortran>True|False)\s*,"
    r"\s*'shape'\s*:\s*\((?P<shape>[\dL, ]*)\)\s*(?:,\s*)?\}\s*",
    re.ASCII,
)
LENGTH = re.compile(r"\d{1,19}L?", re.ASCII)
# Objects are code; of an array of records, one field may be.
OBJECTS = re.compile(r"'[|<>=]?O\d*'")


@dataclass(frozen=True)
class ArrayHeader:
    """What a header says.

    Attributes:
        shape: of the array.
        fortran: whether columns come first.
        dtype: None of an array of records.
        has_objects: whether its values, or some of them, are Python objects.
        start: where the values begin.
    """

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any] | None
    has_objects: bool
    start: int


def read_npy_header(head: bytes | bytearray) -> ArrayHeader:
    """What the header of an array says.

    Args:
        head: the first bytes of the file, of which the header is a part.

    Raises:
        ValueError, TypeError: they are no header, or a damaged one.
    """
    width = LENGTHS.get(tuple(head[6:8]), 0) if head.startswith(MAGIC) else 0
    start = 8 + width
    end = start + int.from_bytes(head[8:start], "little")
    found = HEADER.fullmatch(str(head[start:end], "latin-1"))
    if not width or end > len(head) or found is None:
        raise ValueError
    lengths = [length for part in found["shape"].split(",") if (length := part.strip())]
    if len(lengths) > MAX_DIMENSIONS or not all(map(LENGTH.fullmatch, lengths)):
        raise ValueError
    if len(lengths) == 1 and "," not in found["shape"]:
        # A number in parentheses, and no tuple.
        raise ValueError
    described = found["fields"] or f"'{found['kind']}'"
    return ArrayHeader(
        shape=tuple(int(length.rstrip("L")) for length in lengths),
        fortran=found["fortran"] == "True",
        dtype=np.dtype(found["kind"]) if found["kind"] else None,
        has_objects=bool(OBJECTS.search(described)),
        start=end,
    )
