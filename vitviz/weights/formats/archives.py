"""torch.save's archives and its legacy series of pickles, and npz: where every tensor stands in the file.

Archives are not read through a library: their members are found once, checked, and then read straight from the file.
"""

from __future__ import annotations

import math
import mmap
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch

from vitviz.errors.kinds import CheckpointError
from vitviz.errors.messages import listed, shown
from vitviz.weights.formats.npy import MAX_HEAD, read_npy_header
from vitviz.weights.formats.pickled import DTYPES, MAX_PICKLE, MAX_TENSORS, PickleReader, Storage, StoredTensor
from vitviz.weights.formats.zip_directory import DirectoryError, open_window, read_directory, start_of

# The most bytes that a header of safetensors or an index may have, and the directory of an archive.
MAX_HEADER, MAX_DIRECTORY = 8 * 2**20, 8 * 2**20
# How many times larger than in the file a member of an npz may be; what is smaller than the slack may be so anyway.
MAX_EXPANSION = 20
SLACK = 2**20
# How many times the size of a file may lie between the values of its tensors, of all together: of parts of a larger
# tensor everything between them is read, for each part.
MAX_SCATTER = 64

# How the legacy format of torch.save begins: a pickle of this number.
MAGIC = 0x1950A86A20F9469CFC6C
LEGACY = 1001

MAX_ENTRIES = 1_000_000
MAX_LETTERS = 2**24
MAX_DEPTH = 3
# What every optimiser's state has, in which tensors by name are none of a model.
OPTIMISER = {"state", "param_groups"}

EXPECTED = "safetensors, a file of torch.save or npz"

FLOATS = ("float32", "float16", "bfloat16", "float64")
READABLE = (*FLOATS, "bool", "uint8", "int8", "int16", "int32", "int64")


@dataclass(frozen=True)
class TensorInfo:
    """A tensor's shape and its dtype as torch names it, without "torch."."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, eq=False)
class Part:
    """A tensor in a file and how to read it; without that, what it is instead of a dense tensor."""

    info: TensorInfo
    load: Callable[[], torch.Tensor] | None
    special: str = ""


@dataclass(frozen=True, eq=False)
class Content:
    kind: str
    groups: Mapping[str, Mapping[str, Part]]
    beside: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    # The size of the file, or of all files of the checkpoint.
    bytes: int = 0


def refuse(name: str, found: str, expected: str = "a checkpoint as it was written") -> NoReturn:
    raise CheckpointError(f"{name}: {found}; expected {expected}")


# Zip archives: torch.save's, and npz.


@dataclass(frozen=True, eq=False)
class Member:
    """A member of a zip archive: where its bytes stand in the file."""

    file: Path
    start: int
    stored: int
    size: int
    deflated: bool
    checksum: int

    def head(self, most: int) -> bytes | bytearray:
        raw = read_bytes(self.file, self.start, min(self.stored, most))
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(raw, most) if self.deflated else raw

    def content(self) -> bytes | bytearray:
        raw = read_bytes(self.file, self.start, self.stored)
        content = zlib.decompressobj(-zlib.MAX_WBITS).decompress(raw, self.size + 1) if self.deflated else raw
        if len(content) != self.size or zlib.crc32(content) != self.checksum:
            raise EOFError
        return content


def read_bytes(file: Path, start: int, size: int) -> bytearray:
    """So many bytes of a file, which is not mapped: one that is cut while it is mapped ends the process.

    Raises:
        EOFError: there are fewer.
    """
    content = bytearray(size)
    with open(file, "rb") as stream:
        stream.seek(start)
        if stream.readinto(content) < size:
            raise EOFError
    return content


def read_members(file: Path, name: str, at: int = 0, size: int | None = None) -> dict[str, Member]:
    """The members of an archive, which may be a part of a file: so many bytes from a place on.

    Raises:
        CheckpointError: it is damaged, encrypted, or of too many members.
    """
    members: dict[str, Member] = {}
    try:
        with open_window(file, at, size) as stream:
            entries, directory = read_directory(stream, MAX_DIRECTORY)
            if len(entries) > MAX_TENSORS:
                refuse(name, f"{len(entries):,} members", f"at most {MAX_TENSORS:,}")
            end = 0
            for entry in sorted(entries, key=lambda entry: entry.offset):
                start = start_of(stream, entry)
                if entry.offset < end:
                    raise DirectoryError
                end = start + entry.stored
                if entry.flags & 1 or entry.method not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    refuse(name, f"{shown(entry.name)} is encrypted or of an unknown compression", "stored members")
                deflated = entry.method == zipfile.ZIP_DEFLATED
                if entry.name in members or not (deflated or entry.size == entry.stored):
                    raise DirectoryError
                members[entry.name] = Member(file, at + start, entry.stored, entry.size, deflated, entry.checksum)
            if end > directory:
                raise DirectoryError
    except (ValueError, struct.error, OverflowError):
        refuse(name, "a damaged zip archive, or one whose members overlap", EXPECTED)
    return members


def open_zip(file: Path, name: str) -> Content:
    members = read_members(file, name)
    if any(part.endswith("constants.pkl") or "/code/" in f"/{part}" for part in members):
        refuse(name, "a program (TorchScript), not only weights", "the safetensors version of this model")
    pickles = [part for part in members if part.rpartition("/")[2] == "data.pkl" and part.count("/") <= 1]
    if len(pickles) == 1:
        return _open_torch(file, name, members, pickles[0].removesuffix("data.pkl"))
    if members and all(part.endswith(".npy") for part in members):
        return _open_npz(name, members)
    refuse(name, f"a zip archive of {listed(members) or 'nothing'}", EXPECTED)


def _open_npz(name: str, members: Mapping[str, Member]) -> Content:
    file_size = next(iter(members.values())).file.stat().st_size
    if sum(member.size for member in members.values()) > MAX_EXPANSION * file_size + SLACK:
        refuse(name, f"it expands more than {MAX_EXPANSION}-fold", "an archive of weights")
    parts: dict[str, Part] = {}
    beside = []
    for part, member in members.items():
        key = part.removesuffix(".npy")
        if member.size > MAX_EXPANSION * member.stored + SLACK:
            refuse(name, f"{shown(key)} expands more than {MAX_EXPANSION}-fold", "an archive of weights")
        try:
            header = read_npy_header(member.head(MAX_HEAD))
        except (ValueError, TypeError, zlib.error):
            refuse(name, f"{shown(key)} is no NumPy array, or a damaged one", "arrays as numpy.savez writes them")
        shape, dtype = header.shape, header.dtype
        if header.has_objects:
            refuse(name, f"{shown(key)} holds Python objects, which are code", "arrays of numbers")
        if dtype is None:
            beside.append(key)
            continue
        if math.prod(shape) * dtype.itemsize != member.size - header.start:
            found = f"{member.size - header.start:,} bytes for {shown(str(dtype))} {shown(shape)}"
            refuse(name, f"{shown(key)} has {found}", "what its header says")
        if dtype == np.dtype("V2"):
            # How JAX writes it.
            info = TensorInfo(shape, "bfloat16")
        elif dtype.kind in "fiubc":
            info = TensorInfo(shape, dtype.name)
        else:
            beside.append(key)
            continue
        parts[key] = Part(info, partial(_load_array, member, shape, header.fortran, dtype, header.start))
    return Content("npz", {"": parts}, tuple(beside))


def _load_array(
    member: Member, shape: tuple[int, ...], fortran: bool, dtype: np.dtype[Any], offset: int
) -> torch.Tensor:
    order: Any = "F" if fortran else "C"
    array = np.ndarray(shape, dtype, member.content(), offset, order=order)
    if dtype.kind == "V":
        return torch.from_numpy(np.array(array.view(np.int16), order="C")).view(torch.bfloat16)
    return torch.from_numpy(np.array(array, dtype.newbyteorder("="), order="C"))


# torch.save, the archive and the legacy series of pickles.


def _open_torch(file: Path, name: str, members: Mapping[str, Member], top: str) -> Content:
    for part, member in members.items():
        if member.deflated:
            refuse(name, f"{shown(part)} is compressed", "members as torch.save stores them")
    if members[f"{top}data.pkl"].size > MAX_PICKLE:
        refuse(name, f"a pickle of {members[f'{top}data.pkl'].size:,} bytes", f"at most {MAX_PICKLE:,}")
    if f"{top}byteorder" in members and members[f"{top}byteorder"].head(16) != b"little":
        refuse(name, "numbers of a big-endian machine", "little-endian ones")
    pickled = members[f"{top}data.pkl"]
    value, _ = PickleReader(name).read(read_bytes(file, pickled.start, pickled.size))
    places = {part: (member.start, member.size) for part, member in members.items()}
    return _torch_content(file, name, value, lambda storage: places.get(f"{top}data/{storage.key}"))


def open_legacy(file: Path, name: str) -> Content:
    size = file.stat().st_size
    reader = PickleReader(name)
    places: dict[str, tuple[int, int]] = {}
    with (
        open(file, "rb") as stream,
        mmap.mmap(stream.fileno(), min(size, MAX_PICKLE), access=mmap.ACCESS_READ) as mapped,
    ):
        position = 0

        def next_value() -> object:
            nonlocal position
            value, position = reader.read(mapped, position)
            return value

        if next_value() != MAGIC or next_value() != LEGACY:
            refuse(name, "a pickle that is not of torch.save", EXPECTED)
        system, value, keys = (next_value() for _ in range(3))
        if isinstance(system, dict) and system.get("little_endian") is False:
            refuse(name, "numbers of a big-endian machine", "little-endian ones")
        for key in keys if isinstance(keys, list) else ():
            storage = reader.storages.get(key) if isinstance(key, str) else None
            stream.seek(position)
            elements = int.from_bytes(stream.read(8), "little")
            position += 8
            if storage is None or position + storage.bytes > size:
                refuse(name, f"cut short at {size:,} bytes, or damaged")
            if elements * DTYPES[storage.dtype].itemsize != storage.bytes:
                refuse(name, f"a storage of {elements:,} numbers that claims {storage.bytes:,} bytes")
            places[storage.key] = (position, storage.bytes)
            position += storage.bytes
    return _torch_content(file, name, value, lambda storage: places.get(storage.key))


def _torch_content(file: Path, name: str, value: object, place: Callable[[Storage], tuple[int, int] | None]) -> Content:
    if not isinstance(value, dict):
        refuse(name, "what torch saved in it is no dict", "a state dict")
    groups, beside = state_dicts(name, value)
    parts = {
        group: {key: torch_part(file, name, key, tensor, place) for key, tensor in tensors.items()}
        for group, tensors in groups.items()
    }
    _check_scatter(name, file.stat().st_size, groups)
    return Content("torch", parts, beside)


def state_dicts(file: str, entries: dict[object, object]) -> tuple[dict[str, dict[str, StoredTensor]], tuple[str, ...]]:
    """The dicts of tensors in a checkpoint by where they stand, and the names of what is none.

    Args:
        file: what messages call the file.
        entries: the dict that :meth:`PickleReader.read` found.

    Raises:
        CheckpointError: there are too many entries, or two dicts of tensors of the same name.
    """
    groups: dict[str, dict[str, StoredTensor]] = {}
    seen = letters = 0

    def under(path: str, key: str) -> str:
        nonlocal letters
        letters += len(path) + len(key)
        if letters > MAX_LETTERS:
            raise CheckpointError(f"{file}: names of more than {MAX_LETTERS:,} letters; expected a checkpoint")
        return f"{path}.{key}" if path else key

    def walk(path: str, entries: dict[object, object], depth: int) -> list[str] | None:
        """What is beside the groups in it; None where there is no group in it."""
        nonlocal seen
        # The same dict may stand in many places.
        seen += len(entries)
        if seen > MAX_ENTRIES:
            raise CheckpointError(f"{file}: more than {MAX_ENTRIES:,} entries; expected a checkpoint")
        if entries.keys() >= OPTIMISER:
            return None
        tensors: dict[str, StoredTensor] = {}
        others: dict[str, object] = {}
        for key, part in entries.items():
            if not isinstance(key, str):
                return None
            if isinstance(part, StoredTensor):
                tensors[key] = part
            else:
                others[key] = part
        is_group = any(tensor.floating for tensor in tensors.values())
        if is_group and path in groups:
            raise CheckpointError(f"{file}: two groups of tensors called {shown(path)}; expected one")
        if is_group:
            groups[path] = tensors
        beside = [] if is_group else [under(path, key) for key in tensors]
        before = len(groups)
        for key, part in others.items():
            here = under(path, key)
            inside = walk(here, part, depth + 1) if isinstance(part, dict) and depth < MAX_DEPTH else None
            beside += [here] if inside is None else inside
        return beside if is_group or len(groups) > before else None

    beside = walk("", entries, 0)
    return groups, tuple([str(key) for key in entries] if beside is None else beside)


def _check_scatter(name: str, file_size: int, groups: Mapping[str, Mapping[str, StoredTensor]]) -> None:
    """Refuse a file of which all tensors, each with what lies between its values, are far more than the file."""
    between = sum(
        (extent(tensor) - math.prod(tensor.shape)) * DTYPES[tensor.dtype].itemsize
        for tensors in groups.values()
        for tensor in tensors.values()
        if tensor.dtype in READABLE and tensor.storage is not None
    )
    if between > MAX_SCATTER * file_size:
        found = f"tensors between whose values lie {between:,} bytes"
        refuse(name, f"{found}, in a file of {file_size:,}", "tensors that are contiguous, as .contiguous() makes them")


def torch_part(
    file: Path, name: str, key: str, tensor: StoredTensor, place: Callable[[Storage], tuple[int, int] | None]
) -> Part:
    """A tensor of torch.save's, where ``place`` tells start and size of a storage in the file."""
    info = TensorInfo(tensor.shape, tensor.dtype)
    if tensor.special or tensor.dtype not in READABLE or tensor.storage is None:
        return Part(info, None, tensor.special)
    itemsize = DTYPES[tensor.dtype].itemsize
    start, size = place(tensor.storage) or (0, 0)
    if tensor.storage.bytes > size or (tensor.offset + extent(tensor)) * itemsize > tensor.storage.bytes:
        refuse(
            name,
            f"{shown(key)} of shape {shown(tensor.shape)} claims more than the file holds",
            "its values in the file",
        )
    # One number that stands for many costs no file, but memory.
    if math.prod(tensor.shape) * itemsize > tensor.storage.bytes:
        return Part(info, None, "expanded from fewer values")
    return Part(info, partial(_load_strided, file, start + tensor.offset * itemsize, tensor))


def extent(tensor: StoredTensor) -> int:
    """How many elements of its storage a tensor reaches over."""
    if 0 in tensor.shape:
        return 0
    return 1 + sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.strides, strict=True))


def _load_strided(file: Path, start: int, tensor: StoredTensor) -> torch.Tensor:
    dtype = DTYPES[tensor.dtype]
    if 0 in tensor.shape:
        return torch.empty(tensor.shape, dtype=dtype)
    content = read_bytes(file, start, extent(tensor) * dtype.itemsize)
    return torch.frombuffer(content, dtype=dtype).as_strided(tensor.shape, tensor.strides)
