"""Read the header of an npy array in time linear in its length, without Python's parser."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitviz.weights.formats.pickled import MAX_DIMENSIONS

MAGIC = b"\x93NUMPY"
MAX_HEADER_BYTES = 2**14
# Width in bytes of the number for the header's length, by version of the format.
LENGTH_BYTES: dict[tuple[int, ...], int] = {(1, 0): 2, (2, 0): 4}
HEADER = re.compile(
    r"\{\s*'descr'\s*:\s*(?:'(?P<kind>[^'\\]{1,40})'|(?P<fields>\[.*\]))\s*,"
    r"\s*'fortran_order'\s*:\s*(?P<fortran>True|False)\s*,"
    r"\s*'shape'\s*:\s*\((?P<shape>[\dL, ]*)\)\s*(?:,\s*)?\}\s*",
    re.ASCII,
)
LENGTH = re.compile(r"\d{1,19}L?", re.ASCII)
# Python objects are pickled code. In an array of records, a single field may hold them.
OBJECTS = re.compile(r"'[|<>=]?O\d*'")


@dataclass(frozen=True)
class ArrayHeader:
    """The fields of a header.

    Attributes:
        shape: of the array.
        fortran: whether the array is column-major.
        dtype: None for an array of records.
        has_objects: whether any values are Python objects.
        start: offset of the values.
    """

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any] | None
    has_objects: bool
    start: int


def read_npy_header(content: bytes | bytearray) -> ArrayHeader:
    """Parse the header of an array.

    Args:
        content: the first bytes of the file, which include the header.

    Raises:
        ValueError, TypeError: there is no header, or it is damaged.
    """
    width = LENGTH_BYTES.get(tuple(content[6:8]), 0) if content.startswith(MAGIC) else 0
    start = 8 + width
    end = start + int.from_bytes(content[8:start], "little")
    header = HEADER.fullmatch(str(content[start:end], "latin-1"))
    if not width or end > len(content) or header is None:
        raise ValueError
    lengths = [length for item in header["shape"].split(",") if (length := item.strip())]
    if len(lengths) > MAX_DIMENSIONS or not all(map(LENGTH.fullmatch, lengths)):
        raise ValueError
    if len(lengths) == 1 and "," not in header["shape"]:
        # A number in parentheses is no tuple.
        raise ValueError
    dtype_text = header["fields"] or f"'{header['kind']}'"
    return ArrayHeader(
        shape=tuple(int(length.rstrip("L")) for length in lengths),
        fortran=header["fortran"] == "True",
        dtype=np.dtype(header["kind"]) if header["kind"] else None,
        has_objects=bool(OBJECTS.search(dtype_text)),
        start=end,
    )
