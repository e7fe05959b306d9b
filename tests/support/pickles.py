"""Pickles that do what no checkpoint should."""

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

from vitviz.weights.formats import archives


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
    series = [archives.MAGIC, archives.LEGACY_VERSION, {"little_endian": True}, value, ["0"]]
    path.write_bytes(b"".join(part if isinstance(part, bytes) else pickled_as(part) for part in series) + storage)


CONTAINERS: dict[str, Callable[[Path, bytes], object]] = {
    "archive": write_archive,
    "legacy": write_series,
    "bare": lambda path, content: path.write_bytes(content),
    "first of the series": lambda path, content: path.write_bytes(pickled_as(archives.MAGIC) + content),
    "last of the series": lambda path, content: path.write_bytes(
        b"".join(map(pickled_as, [archives.MAGIC, archives.LEGACY_VERSION, {}, {"w": tensor_of(4)}])) + content
    ),
}
