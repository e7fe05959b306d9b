"""Read the central directory of a zip archive in time linear in its size.

``zipfile`` takes time quadratic in the length of the extra fields of a member.
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
MAX_COMMENT_BYTES = 2**16
UTF_8_FLAG = 0x800
# Stands for a number that is stored in the zip64 extra field.
IN_ZIP64_FIELD = 2**32 - 1


class DirectoryError(ValueError):
    """A directory is damaged, or is not where the end record says."""


@dataclass(frozen=True)
class Entry:
    """A member in the directory.

    Attributes:
        name: decoded.
        flags, method: of its compression.
        checksum: CRC-32 of its content.
        stored_size, size: bytes in the archive, and bytes of its content.
        offset: of its local header.
    """

    name: str
    flags: int
    method: int
    checksum: int
    stored_size: int
    size: int
    offset: int


class _Window(io.RawIOBase):
    """A range of a file, as a file of its own."""

    def __init__(self, file: BinaryIO, offset: int, size: int) -> None:
        self._file, self._offset, self._size, self._position = file, offset, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._position = max(0, offset + (0, self._position, self._size)[whence])
        return self._position

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        count = max(0, min(len(buffer), self._size - self._position))
        self._file.seek(self._offset + self._position)
        content = self._file.read(count)
        buffer[: len(content)] = content
        self._position += len(content)
        return len(content)

    def close(self) -> None:
        self._file.close()
        super().close()


def open_window(file: Path, offset: int = 0, size: int | None = None) -> BinaryIO:
    """Open ``size`` bytes of a file from an offset; the whole file without a size."""
    stream = file.open("rb")
    return stream if size is None else io.BufferedReader(_Window(stream, offset, size))


def read_directory(stream: BinaryIO, max_bytes: int) -> tuple[list[Entry], int]:
    """The members of an archive, and the offset of its directory.

    Args:
        stream: the file.
        max_bytes: limit of the directory.

    Raises:
        DirectoryError, struct.error, UnicodeDecodeError: the directory is damaged or too large.
    """
    file_size = stream.seek(0, 2)
    tail_offset = max(0, file_size - END.size - MAX_COMMENT_BYTES)
    stream.seek(tail_offset)
    tail = stream.read()
    position = tail.rfind(b"PK\x05\x06")
    if position < 0:
        raise DirectoryError
    _, disk, first_disk, disk_count, count, size, offset, comment = END.unpack_from(tail, position)
    if disk or first_disk or disk_count != count or position + END.size + comment != len(tail):
        raise DirectoryError
    end = tail_offset + position
    if end >= LOCATOR.size + END_64.size:
        stream.seek(end - LOCATOR.size - END_64.size)
        records = stream.read(LOCATOR.size + END_64.size)
        signature, disk, end_64_offset, disks = LOCATOR.unpack_from(records, END_64.size)
        if signature == b"PK\x06\x07":
            end -= len(records)
            signature, *_, disk_count, count, size, offset = END_64.unpack_from(records, 0)
            if signature != b"PK\x06\x06" or disk or disks != 1 or end_64_offset != end or disk_count != count:
                raise DirectoryError
    if offset + size != end or size > max_bytes:
        raise DirectoryError
    stream.seek(offset)
    return _entries(stream.read(size), count), offset


def content_offset(stream: BinaryIO, entry: Entry) -> int:
    """The offset of a member's content, behind its local header with a name and an extra field.

    Raises:
        DirectoryError, struct.error: there is no local header.
    """
    stream.seek(entry.offset)
    signature, name, extra = LOCAL.unpack(stream.read(LOCAL.size))
    if signature != b"PK\x03\x04":
        raise DirectoryError
    return entry.offset + LOCAL.size + name + extra


def _entries(directory: bytes, count: int) -> list[Entry]:
    entries, position = [], 0
    while position < len(directory):
        signature, *fields = ENTRY.unpack_from(directory, position)
        _, _, flags, method, _, _, checksum, stored_size, size, *lengths, _, _, _, offset = fields
        name_length, extra_length, comment_length = lengths
        start = position + ENTRY.size
        extra = start + name_length
        position = extra + extra_length + comment_length
        if signature != b"PK\x01\x02" or position > len(directory):
            raise DirectoryError
        name = directory[start:extra].decode("utf-8" if flags & UTF_8_FLAG else "cp437")
        if "\0" in name:
            raise DirectoryError
        extra_field = directory[extra : extra + extra_length]
        size, stored_size, offset = _resolve_zip64((size, stored_size, offset), extra_field)
        entries.append(Entry(name, flags, method, checksum, stored_size, size, offset))
    if len(entries) != count:
        raise DirectoryError
    return entries


def _resolve_zip64(numbers: tuple[int, ...], extra: bytes) -> list[int]:
    """The numbers, with those that are stored in the zip64 extra field replaced by their values there."""
    if IN_ZIP64_FIELD not in numbers:
        return list(numbers)
    position = 0
    while position + FIELD.size <= len(extra):
        kind, length = FIELD.unpack_from(extra, position)
        position += FIELD.size
        if kind == 1:
            offsets = iter(range(position, position + length - NUMBER_64.size + 1, NUMBER_64.size))
            return [
                NUMBER_64.unpack_from(extra, next(offsets, len(extra)))[0] if number == IN_ZIP64_FIELD else number
                for number in numbers
            ]
        position += length
    raise DirectoryError
