"""The directory at the end of a zip archive, read in time that is linear in its size.

Not through ``zipfile``, to which the fields behind a name cost the square of their length.
"""

from __future__ import annotations

import io
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

END, END_64 = struct.Struct("<4s4H2LH"), struct.Struct("<4sQ2H2L4Q")
LOCATOR = struct.Struct("<4sLQL")
ENTRY = struct.Struct("<4s6H3L5H2L")
LOCAL = struct.Struct("<4s22x2H")
FIELD, NUMBER_64 = struct.Struct("<2H"), struct.Struct("<Q")
MAX_COMMENT = 2**16
UTF_8 = 0x800
# Stands for a number that has its place in a field of 64 bits.
LARGE = 2**32 - 1


class DirectoryError(ValueError):
    """A directory is damaged, or does not stand where the end of the archive says."""


@dataclass(frozen=True)
class Entry:
    """A member as the directory has it.

    Attributes:
        name: decoded.
        flags, method: of its compression.
        checksum: CRC-32 of its content.
        stored, size: bytes in the archive, and of its content.
        offset: where its own header begins.
    """

    name: str
    flags: int
    method: int
    checksum: int
    stored: int
    size: int
    offset: int


class _Window(io.RawIOBase):
    """A part of a file, as if it were a file."""

    def __init__(self, file: BinaryIO, at: int, size: int) -> None:
        self._file, self._at, self._size, self._position = file, at, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._position = max(0, offset + (0, self._position, self._size)[whence])
        return self._position

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        count = max(0, min(len(buffer), self._size - self._position))
        self._file.seek(self._at + self._position)
        content = self._file.read(count)
        buffer[: len(content)] = content
        self._position += len(content)
        return len(content)

    def close(self) -> None:
        self._file.close()
        super().close()


def open_window(file: Path, at: int = 0, size: int | None = None) -> BinaryIO:
    """A part of a file to read: so many bytes from a place on, all of them where nothing else is said."""
    stream = file.open("rb")
    return stream if size is None else io.BufferedReader(_Window(stream, at, size))


def read_directory(stream: BinaryIO, most: int) -> tuple[list[Entry], int]:
    """The members of an archive, and where its directory begins.

    Args:
        stream: the file.
        most: bytes of the directory.

    Raises:
        DirectoryError, struct.error, UnicodeDecodeError: it is damaged, or larger.
    """
    file_size = stream.seek(0, 2)
    tail_at = max(0, file_size - END.size - MAX_COMMENT)
    stream.seek(tail_at)
    tail = stream.read()
    at = tail.rfind(b"PK\x05\x06")
    if at < 0:
        raise DirectoryError
    _, disk, first_disk, count_here, count, size, offset, comment = END.unpack_from(tail, at)
    if disk or first_disk or count_here != count or at + END.size + comment != len(tail):
        raise DirectoryError
    end = tail_at + at
    if end >= LOCATOR.size + END_64.size:
        stream.seek(end - LOCATOR.size - END_64.size)
        ahead = stream.read(LOCATOR.size + END_64.size)
        signature, disk, where, disks = LOCATOR.unpack_from(ahead, END_64.size)
        if signature == b"PK\x06\x07":
            end -= len(ahead)
            signature, *_, count_here, count, size, offset = END_64.unpack_from(ahead, 0)
            if signature != b"PK\x06\x06" or disk or disks != 1 or where != end or count_here != count:
                raise DirectoryError
    if offset + size != end or size > most:
        raise DirectoryError
    stream.seek(offset)
    return _entries(stream.read(size), count), offset


def start_of(stream: BinaryIO, entry: Entry) -> int:
    """Where the content of a member begins; only its own header says how long the names before it are.

    Raises:
        DirectoryError, struct.error: there is no member.
    """
    stream.seek(entry.offset)
    signature, name, extra = LOCAL.unpack(stream.read(LOCAL.size))
    if signature != b"PK\x03\x04":
        raise DirectoryError
    return entry.offset + LOCAL.size + name + extra


def _entries(directory: bytes, count: int) -> list[Entry]:
    entries, at = [], 0
    while at < len(directory):
        signature, *fields = ENTRY.unpack_from(directory, at)
        _, _, flags, method, _, _, checksum, stored, size, name_length, extra_length, comment, _, _, _, offset = fields
        start = at + ENTRY.size
        extra = start + name_length
        at = extra + extra_length + comment
        if signature != b"PK\x01\x02" or at > len(directory):
            raise DirectoryError
        name = directory[start:extra].decode("utf-8" if flags & UTF_8 else "cp437")
        if "\0" in name:
            raise DirectoryError
        size, stored, offset = _large((size, stored, offset), directory[extra : extra + extra_length])
        entries.append(Entry(name, flags, method, checksum, stored, size, offset))
    if len(entries) != count:
        raise DirectoryError
    return entries


def _large(numbers: tuple[int, ...], extra: bytes) -> list[int]:
    """Numbers of 32 bits, or what stands for them in the field of those of 64 bits."""
    if LARGE not in numbers:
        return list(numbers)
    at = 0
    while at + FIELD.size <= len(extra):
        kind, length = FIELD.unpack_from(extra, at)
        at += FIELD.size
        if kind == 1:
            places = iter(range(at, at + length - NUMBER_64.size + 1, NUMBER_64.size))
            return [
                NUMBER_64.unpack_from(extra, next(places, len(extra)))[0] if number == LARGE else number
                for number in numbers
            ]
        at += length
    raise DirectoryError
