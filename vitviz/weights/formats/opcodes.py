"""Read the opcodes of a pickle and their arguments, in time and memory linear in its size.

``pickletools.genops`` takes three times as long, and decodes numbers and texts of any length.
"""

from __future__ import annotations

import codecs
import mmap
import pickle
import struct
from collections.abc import Callable, Iterator
from typing import Any

Data = bytes | bytearray
Buffer = Data | mmap.mmap
ArgumentReader = Callable[[Buffer, int], tuple[Any, int]]
"""Reads the argument at a position; returns it and the position behind it."""

# Checkpoints have no longer numbers and names. Longer texts and bytes are skipped, since their content is not needed.
MAX_NUMBER_BYTES, MAX_NUMBER_DIGITS = 128, 400
MAX_TEXT_BYTES = 2**20

VALUE = object()
"""Stands for any value that is neither a tensor nor a container."""
# Raised for a pickle that is truncated within an argument, or has invalid bytes.
ERRORS = (ValueError, LookupError, OverflowError, struct.error)


def opcodes(content: Buffer, start: int) -> Iterator[tuple[int, Any, int]]:
    """Yield code, argument and end position of every opcode, from ``start`` to the end of the pickle.

    Raises:
        ValueError, LookupError, OverflowError, struct.error: the pickle is damaged, or has an opcode that torch never
            writes.
    """
    position = start
    while True:
        code = content[position]
        position += 1
        read_argument = ARGUMENT_READERS[code]
        argument = None
        if read_argument is not None:
            argument, position = read_argument(content, position)
        yield code, argument, position
        if code == STOP:
            return


def _byte(content: Buffer, position: int) -> tuple[int, int]:
    return content[position], position + 1


def _fixed(form: str) -> ArgumentReader:
    kind = struct.Struct(form)

    def read(content: Buffer, position: int) -> tuple[Any, int]:
        return kind.unpack_from(content, position)[0], position + kind.size

    return read


def _counted(form: str, decode: Callable[[Data], Any]) -> ArgumentReader:
    kind = struct.Struct(form)

    def read(content: Buffer, position: int) -> tuple[Any, int]:
        start = position + kind.size
        end = start + kind.unpack_from(content, position)[0]
        if not start <= end <= len(content):
            raise ValueError
        return decode(content[start:end]) if end - start <= MAX_TEXT_BYTES else VALUE, end

    return read


def _line(decode: Callable[[Data], Any]) -> ArgumentReader:
    def read(content: Buffer, position: int) -> tuple[Any, int]:
        end = content.find(b"\n", position)
        if end < 0:
            raise ValueError
        return decode(content[position:end]) if end - position <= MAX_TEXT_BYTES else VALUE, end + 1

    return read


def _two_lines(content: Buffer, position: int) -> tuple[tuple[str, str], int]:
    middle = content.find(b"\n", position)
    end = content.find(b"\n", middle + 1)
    if middle < 0 or not middle < end <= position + MAX_TEXT_BYTES:
        raise ValueError
    return (_utf8(content[position:middle]), _utf8(content[middle + 1 : end])), end + 1


def _long(data: Data) -> int:
    if len(data) > MAX_NUMBER_BYTES:
        raise ValueError
    return int.from_bytes(data, "little", signed=True)


def _decimal(data: Data) -> int:
    if len(data) > MAX_NUMBER_DIGITS:
        raise ValueError
    # Protocol 0 writes False and True in this way.
    return data == b"01" if data in (b"00", b"01") else int(data)


def _utf8(data: Data) -> str:
    return str(data, "utf-8", "surrogatepass")


def _quoted(data: Data) -> str:
    if len(data) < 2 or data[:1] not in (b"'", b'"') or data[-1:] != data[:1]:
        raise ValueError
    return codecs.escape_decode(data[1:-1])[0].decode("ascii")


def _unknown(content: Buffer, position: int) -> tuple[Any, int]:
    """Reject extension codes, out-of-band buffers, text ids and bytes that are no opcode."""
    raise ValueError


STOP = pickle.STOP[0]
# By the name of the opcode in the module pickle. None: the opcode has no argument.
READERS: dict[str, ArgumentReader | None] = {
    **dict.fromkeys(("PROTO", "BININT1", "BINGET", "BINPUT"), _byte),
    **dict.fromkeys(("LONG_BINGET", "LONG_BINPUT"), _fixed("<I")),
    **dict.fromkeys(("GET", "PUT", "INT"), _line(_decimal)),
    **dict.fromkeys(("GLOBAL", "INST"), _two_lines),
    "BININT": _fixed("<i"),
    "BININT2": _fixed("<H"),
    "LONG": _line(lambda data: _decimal(data.removesuffix(b"L"))),
    "LONG1": _counted("<B", _long),
    "LONG4": _counted("<i", _long),
    "FLOAT": _line(float),
    "BINFLOAT": _fixed(">d"),
    "STRING": _line(_quoted),
    "BINSTRING": _counted("<i", lambda data: data.decode("latin-1")),
    "SHORT_BINSTRING": _counted("<B", lambda data: data.decode("latin-1")),
    "UNICODE": _line(lambda data: str(data, "raw-unicode-escape")),
    "SHORT_BINUNICODE": _counted("<B", _utf8),
    "BINUNICODE": _counted("<I", _utf8),
    "BINUNICODE8": _counted("<Q", _utf8),
    "SHORT_BINBYTES": _counted("<B", bytes),
    "BINBYTES": _counted("<I", bytes),
    "BINBYTES8": _counted("<Q", bytes),
    "BYTEARRAY8": _counted("<Q", bytes),
    "FRAME": _fixed("<Q"),
    **dict.fromkeys(
        (
            *("MARK", "STOP", "POP", "POP_MARK", "DUP", "NONE", "NEWTRUE", "NEWFALSE", "MEMOIZE"),
            *("EMPTY_LIST", "LIST", "APPEND", "APPENDS", "EMPTY_DICT", "DICT", "SETITEM", "SETITEMS"),
            *("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_SET", "ADDITEMS", "FROZENSET"),
            *("STACK_GLOBAL", "REDUCE", "BUILD", "OBJ", "NEWOBJ", "NEWOBJ_EX", "BINPERSID"),
        )
    ),
}
CODES = {name: getattr(pickle, name)[0] for name in READERS}
ARGUMENT_READERS: list[ArgumentReader | None] = [_unknown] * 256
for _name, _reader in READERS.items():
    ARGUMENT_READERS[CODES[_name]] = _reader
