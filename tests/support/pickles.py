"""Pickles with content that no checkpoint should have."""

from __future__ import annotations

import io
import os
import pickle
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

# The legacy format of torch.save begins with pickles of these two numbers.
MAGIC, LEGACY_VERSION = 0x1950A86A20F9469CFC6C, 1001


class Payload:
    """An object that makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.mkdir, (str(self.path),)


class StorageReference:
    """A reference to a tensor storage in a pickle."""

    def __init__(self, key: object, elements: object, kind: object) -> None:
        self.identity = ("storage", kind, key, "cpu", elements)


class Call:
    """An object that is unpickled as the result of a call."""

    def __init__(self, function: Callable[..., object], arguments: tuple[object, ...]) -> None:
        self.reduced = function, arguments

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.reduced


def call(function: Callable[..., object], *arguments: object) -> Call:
    return Call(function, arguments)


def storage_of(elements: object, key: object = "0", kind: object = torch.FloatStorage) -> StorageReference:
    return StorageReference(key, elements, kind)


def tensor_of(elements: object, shape: Any = (4,), strides: Any = (1,), offset: object = 0, key: object = "0") -> Call:
    """A tensor with any claims about its shape, strides and storage."""
    return call(
        torch._utils._rebuild_tensor_v2, storage_of(elements, key), offset, shape, strides, False, OrderedDict()
    )


class TorchPickler(pickle.Pickler):
    def persistent_id(self, value: object) -> object:
        return value.identity if isinstance(value, StorageReference) else None


def pickle_bytes(value: object, protocol: int = 2) -> bytes:
    stream = io.BytesIO()
    TorchPickler(stream, protocol).dump(value)
    return stream.getvalue()


def write_archive(path: Path, value: object, /, method: int = zipfile.ZIP_STORED, **members: bytes) -> None:
    """Write a ZIP archive like torch.save, with one storage of four numbers."""
    content = value if isinstance(value, bytes) else pickle_bytes(value)
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("archive/data.pkl", content)
        # Without it, torch reads nothing.
        archive.writestr("archive/version", "3\n")
        archive.writestr("archive/data/0", struct.pack("<4f", 1, 2, 3, 4))
        for name, member in members.items():
            archive.writestr(f"archive/{name}", member)


def write_series(path: Path, value: object, /, storage: bytes = struct.pack("<q4f", 4, 1, 2, 3, 4)) -> None:
    """Write a series of pickles in the legacy format of torch.save."""
    series = [MAGIC, LEGACY_VERSION, {"little_endian": True}, value, ["0"]]
    path.write_bytes(b"".join(item if isinstance(item, bytes) else pickle_bytes(item) for item in series) + storage)
