"""Locate the tensors in npz files and in both formats of torch.save: zip archives and the legacy series of pickles.

No library reads the archives. Their members are listed and checked once, and then read directly from the file.
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
from vitviz.errors.messages import listing, quote
from vitviz.weights.formats.foreign import foreign_zip
from vitviz.weights.formats.npy import MAX_HEADER_BYTES as MAX_NPY_HEADER_BYTES
from vitviz.weights.formats.npy import read_npy_header
from vitviz.weights.formats.pickled import DTYPES, MAX_PICKLE_BYTES, MAX_TENSORS, PickleReader, Storage, StoredTensor
from vitviz.weights.formats.zip_directory import DirectoryError, content_offset, open_window, read_directory

# Limits of a safetensors header or an index, and of the directory of an archive.
MAX_HEADER_BYTES, MAX_DIRECTORY_BYTES = 8 * 2**20, 8 * 2**20
# Limit of the ratio of a member's size to its size in the npz, beyond a slack of bytes.
MAX_EXPANSION = 20
EXPANSION_SLACK_BYTES = 2**20
# Limit of the bytes between the values of all tensors, in multiples of the file's size. Reading a strided view of a
# larger tensor reads everything between its values.
MAX_SCATTER = 64

# The legacy format of torch.save begins with pickles of these two numbers.
MAGIC = 0x1950A86A20F9469CFC6C
LEGACY_VERSION = 1001

MAX_ENTRIES = 1_000_000
MAX_KEY_CHARS = 2**24
MAX_DEPTH = 3
# The keys of an optimiser's state, whose tensors are no weights.
OPTIMISER_KEYS = {"state", "param_groups"}

EXPECTED = "safetensors, a file of torch.save or npz"

FindStorage = Callable[[Storage], tuple[int, int] | None]
"""Returns offset and size of a storage in the file; None if it is not there."""

FLOATS = ("float32", "float16", "bfloat16", "float64")
READABLE = (*FLOATS, "bool", "uint8", "int8", "int16", "int32", "int64")


@dataclass(frozen=True)
class TensorInfo:
    """A tensor's shape, and the name of its dtype without "torch."."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, eq=False)
class LazyTensor:
    """A tensor in a file and the function that loads it.

    ``load`` is None if it is no dense tensor; ``special`` says what it is instead.
    """

    info: TensorInfo
    load: Callable[[], torch.Tensor] | None
    special: str = ""


@dataclass(frozen=True, eq=False)
class FileContent:
    """The tensors of a file by group, and its other entries; see :class:`~vitviz.weights.formats.files.WeightFile`."""

    kind: str
    groups: Mapping[str, Mapping[str, LazyTensor]]
    beside: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    # The size of the file, or of all files of the checkpoint.
    file_bytes: int = 0
    # Names of classes whose objects were skipped.
    skipped: tuple[str, ...] = ()


def refuse(name: str, problem: str, expected: str = "a checkpoint as it was written") -> NoReturn:
    """Raise the error about a file."""
    raise CheckpointError(f"{name}: {problem}; expected {expected}")


# Zip archives: torch.save's, and npz.


@dataclass(frozen=True, eq=False)
class Member:
    """A member of a zip archive, and where its bytes are in the file."""

    file: Path
    start: int
    stored_size: int
    size: int
    deflated: bool
    checksum: int

    def head(self, max_bytes: int) -> bytes | bytearray:
        """The first bytes of its content."""
        raw = read_bytes(self.file, self.start, min(self.stored_size, max_bytes))
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(raw, max_bytes) if self.deflated else raw

    def content(self) -> bytes | bytearray:
        """Its whole content.

        Raises:
            EOFError: its size or checksum is wrong.
        """
        raw = read_bytes(self.file, self.start, self.stored_size)
        content = zlib.decompressobj(-zlib.MAX_WBITS).decompress(raw, self.size + 1) if self.deflated else raw
        if len(content) != self.size or zlib.crc32(content) != self.checksum:
            raise EOFError
        return content


def read_bytes(file: Path, start: int, size: int) -> bytearray:
    """Read bytes of a file without mapping it, since truncating a mapped file kills the process.

    Raises:
        EOFError: the file has fewer.
    """
    content = bytearray(size)
    with open(file, "rb") as stream:
        stream.seek(start)
        if stream.readinto(content) < size:
            raise EOFError
    return content


def read_members(file: Path, name: str, offset: int = 0, size: int | None = None) -> dict[str, Member]:
    """The members of an archive, which is a whole file, or ``size`` bytes of it from an offset.

    Raises:
        CheckpointError: it is damaged or encrypted, or has too many members.
    """
    members: dict[str, Member] = {}
    try:
        with open_window(file, offset, size) as stream:
            entries, directory_offset = read_directory(stream, MAX_DIRECTORY_BYTES)
            if len(entries) > MAX_TENSORS:
                refuse(name, f"{len(entries):,} members", f"at most {MAX_TENSORS:,}")
            end = 0
            for entry in sorted(entries, key=lambda entry: entry.offset):
                start = content_offset(stream, entry)
                if entry.offset < end:
                    raise DirectoryError
                end = start + entry.stored_size
                if entry.flags & 1 or entry.method not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    refuse(name, f"{quote(entry.name)} is encrypted or of an unknown compression", "stored members")
                deflated = entry.method == zipfile.ZIP_DEFLATED
                if entry.name in members or not (deflated or entry.size == entry.stored_size):
                    raise DirectoryError
                members[entry.name] = Member(
                    file, offset + start, entry.stored_size, entry.size, deflated, entry.checksum
                )
            if end > directory_offset:
                raise DirectoryError
    except (ValueError, struct.error, OverflowError):
        refuse(name, "a damaged zip archive, or one whose members overlap", EXPECTED)
    return members


def open_zip(file: Path, name: str) -> FileContent:
    members = read_members(file, name)
    if any(member.endswith("constants.pkl") or "/code/" in f"/{member}" for member in members):
        alone = f"torch.save(torch.jit.load({quote(name)}).state_dict(), 'weights.pth')"
        refuse(name, "a program (TorchScript), not only weights", f"the safetensors version of this model, or {alone}")
    pickles = [member for member in members if member.rpartition("/")[2] == "data.pkl" and member.count("/") <= 1]
    if len(pickles) == 1:
        return _open_torch(file, name, members, pickles[0].removesuffix("data.pkl"))
    if members and all(member.endswith(".npy") for member in members):
        return _open_npz(name, members)
    refuse(name, foreign_zip(members) or f"a zip archive of {listing(members) or 'nothing'}", EXPECTED)


def _open_npz(name: str, members: Mapping[str, Member]) -> FileContent:
    file_size = next(iter(members.values())).file.stat().st_size
    if sum(member.size for member in members.values()) > MAX_EXPANSION * file_size + EXPANSION_SLACK_BYTES:
        refuse(name, f"it expands more than {MAX_EXPANSION}-fold", "an archive of weights")
    tensors: dict[str, LazyTensor] = {}
    beside = []
    for member_name, member in members.items():
        key = member_name.removesuffix(".npy")
        if member.size > MAX_EXPANSION * member.stored_size + EXPANSION_SLACK_BYTES:
            refuse(name, f"{quote(key)} expands more than {MAX_EXPANSION}-fold", "an archive of weights")
        try:
            header = read_npy_header(member.head(MAX_NPY_HEADER_BYTES))
        except (ValueError, TypeError, zlib.error):
            refuse(name, f"{quote(key)} is no NumPy array, or a damaged one", "arrays as numpy.savez writes them")
        shape, dtype = header.shape, header.dtype
        if header.has_objects:
            refuse(name, f"{quote(key)} holds Python objects, which are code", "arrays of numbers")
        if dtype is None:
            beside.append(key)
            continue
        if math.prod(shape) * dtype.itemsize != member.size - header.start:
            values = f"{member.size - header.start:,} bytes for {quote(str(dtype))} {quote(shape)}"
            refuse(name, f"{quote(key)} has {values}", "what its header says")
        if dtype == np.dtype("V2"):
            # JAX writes bfloat16 in this way.
            info = TensorInfo(shape, "bfloat16")
        elif dtype.kind in "fiubc":
            info = TensorInfo(shape, dtype.name)
        else:
            beside.append(key)
            continue
        tensors[key] = LazyTensor(info, partial(_load_array, member, shape, header.fortran, dtype, header.start))
    return FileContent("npz", {"": tensors}, tuple(beside))


def _load_array(
    member: Member, shape: tuple[int, ...], fortran: bool, dtype: np.dtype[Any], offset: int
) -> torch.Tensor:
    order: Any = "F" if fortran else "C"
    array = np.ndarray(shape, dtype, member.content(), offset, order=order)
    if dtype.kind == "V":
        return torch.from_numpy(np.array(array.view(np.int16), order="C")).view(torch.bfloat16)
    return torch.from_numpy(np.array(array, dtype.newbyteorder("="), order="C"))


# Both formats of torch.save.


def _open_torch(file: Path, name: str, members: Mapping[str, Member], top: str) -> FileContent:
    for member_name, member in members.items():
        if member.deflated:
            refuse(name, f"{quote(member_name)} is compressed", "members as torch.save stores them")
    if members[f"{top}data.pkl"].size > MAX_PICKLE_BYTES:
        refuse(name, f"a pickle of {members[f'{top}data.pkl'].size:,} bytes", f"at most {MAX_PICKLE_BYTES:,}")
    if f"{top}byteorder" in members and members[f"{top}byteorder"].head(16) != b"little":
        refuse(name, "numbers of a big-endian machine", "little-endian ones")
    pickled = members[f"{top}data.pkl"]
    value, _ = PickleReader(name).read(read_bytes(file, pickled.start, pickled.size))
    spans = {member_name: (member.start, member.size) for member_name, member in members.items()}
    return _torch_content(file, name, value, lambda storage: spans.get(f"{top}data/{storage.key}"))


def open_legacy(file: Path, name: str) -> FileContent:
    size = file.stat().st_size
    reader = PickleReader(name)
    spans: dict[str, tuple[int, int]] = {}
    with (
        open(file, "rb") as stream,
        mmap.mmap(stream.fileno(), min(size, MAX_PICKLE_BYTES), access=mmap.ACCESS_READ) as mapped,
    ):
        position = 0

        def next_value() -> object:
            nonlocal position
            value, position = reader.read(mapped, position)
            return value

        if next_value() != MAGIC or next_value() != LEGACY_VERSION:
            refuse(name, "a pickle that is not of torch.save", EXPECTED)
        system, value, keys = (next_value() for _ in range(3))
        if isinstance(system, dict) and system.get("little_endian") is False:
            refuse(name, "numbers of a big-endian machine", "little-endian ones")
        for key in keys if isinstance(keys, list) else ():
            storage = reader.storages.get(key) if isinstance(key, str) else None
            stream.seek(position)
            elements = int.from_bytes(stream.read(8), "little")
            position += 8
            if storage is None or position + storage.nbytes > size:
                refuse(name, f"cut short at {size:,} bytes, or damaged")
            if elements * DTYPES[storage.dtype].itemsize != storage.nbytes:
                refuse(name, f"a storage of {elements:,} numbers that claims {storage.nbytes:,} bytes")
            spans[storage.key] = (position, storage.nbytes)
            position += storage.nbytes
    return _torch_content(file, name, value, lambda storage: spans.get(storage.key))


def _torch_content(file: Path, name: str, value: object, find_storage: FindStorage) -> FileContent:
    if not isinstance(value, dict):
        refuse(name, "what torch saved in it is no dict", "a state dict")
    groups, beside = state_dicts(name, value)
    lazy_groups = {
        group: {key: lazy_tensor(file, name, key, tensor, find_storage) for key, tensor in tensors.items()}
        for group, tensors in groups.items()
    }
    _check_scatter(name, file.stat().st_size, groups)
    return FileContent("torch", lazy_groups, beside)


def state_dicts(file: str, entries: dict[object, object]) -> tuple[dict[str, dict[str, StoredTensor]], tuple[str, ...]]:
    """The dicts of tensors in a checkpoint by their path, and the paths of all other entries.

    Args:
        file: name of the file in messages.
        entries: the dict that :meth:`PickleReader.read` returned.

    Raises:
        CheckpointError: there are too many entries, or two dicts of tensors with the same path.
    """
    groups: dict[str, dict[str, StoredTensor]] = {}
    entry_count = key_chars = 0

    def join(path: str, key: str) -> str:
        nonlocal key_chars
        key_chars += len(path) + len(key)
        if key_chars > MAX_KEY_CHARS:
            raise CheckpointError(f"{file}: names of more than {MAX_KEY_CHARS:,} letters; expected a checkpoint")
        return f"{path}.{key}" if path else key

    def walk(path: str, entries: dict[object, object], depth: int) -> list[str] | None:
        """The paths of entries that are not in a group; None if there is no group in ``entries``."""
        nonlocal entry_count
        # The same dict may occur many times.
        entry_count += len(entries)
        if entry_count > MAX_ENTRIES:
            raise CheckpointError(f"{file}: more than {MAX_ENTRIES:,} entries; expected a checkpoint")
        if entries.keys() >= OPTIMISER_KEYS:
            return None
        tensors: dict[str, StoredTensor] = {}
        other_entries: dict[str, object] = {}
        for key, value in entries.items():
            if not isinstance(key, str):
                return None
            if isinstance(value, StoredTensor):
                tensors[key] = value
            else:
                other_entries[key] = value
        is_group = any(tensor.floating for tensor in tensors.values())
        if is_group and path in groups:
            raise CheckpointError(f"{file}: two groups of tensors called {quote(path)}; expected one")
        if is_group:
            groups[path] = tensors
        beside = [] if is_group else [join(path, key) for key in tensors]
        group_count = len(groups)
        for key, value in other_entries.items():
            value_path = join(path, key)
            inside = walk(value_path, value, depth + 1) if isinstance(value, dict) and depth < MAX_DEPTH else None
            beside += [value_path] if inside is None else inside
        return beside if is_group or len(groups) > group_count else None

    beside = walk("", entries, 0)
    return groups, tuple([str(key) for key in entries] if beside is None else beside)


def _check_scatter(name: str, file_size: int, groups: Mapping[str, Mapping[str, StoredTensor]]) -> None:
    """Refuse a file if the bytes between the values of its tensors are far more than the file."""
    scattered_bytes = sum(
        (extent(tensor) - math.prod(tensor.shape)) * DTYPES[tensor.dtype].itemsize
        for tensors in groups.values()
        for tensor in tensors.values()
        if tensor.dtype in READABLE and tensor.storage is not None
    )
    if scattered_bytes > MAX_SCATTER * file_size:
        problem = f"tensors between whose values lie {scattered_bytes:,} bytes"
        refuse(
            name, f"{problem}, in a file of {file_size:,}", "tensors that are contiguous, as .contiguous() makes them"
        )


def lazy_tensor(file: Path, name: str, key: str, tensor: StoredTensor, find_storage: FindStorage) -> LazyTensor:
    """A tensor of torch.save."""
    info = TensorInfo(tensor.shape, tensor.dtype)
    if tensor.special or tensor.dtype not in READABLE or tensor.storage is None:
        return LazyTensor(info, None, tensor.special)
    itemsize = DTYPES[tensor.dtype].itemsize
    start, size = find_storage(tensor.storage) or (0, 0)
    if tensor.storage.nbytes > size or (tensor.offset + extent(tensor)) * itemsize > tensor.storage.nbytes:
        refuse(
            name,
            f"{quote(key)} of shape {quote(tensor.shape)} claims more than the file holds",
            "its values in the file",
        )
    # An expanded tensor may claim any memory without bytes in the file.
    if math.prod(tensor.shape) * itemsize > tensor.storage.nbytes:
        return LazyTensor(info, None, "expanded from fewer values")
    return LazyTensor(info, partial(_load_strided, file, start + tensor.offset * itemsize, tensor))


def extent(tensor: StoredTensor) -> int:
    """Number of elements of its storage from a tensor's first value to its last."""
    if 0 in tensor.shape:
        return 0
    return 1 + sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.strides, strict=True))


def _load_strided(file: Path, start: int, tensor: StoredTensor) -> torch.Tensor:
    dtype = DTYPES[tensor.dtype]
    if 0 in tensor.shape:
        return torch.empty(tensor.shape, dtype=dtype)
    content = read_bytes(file, start, extent(tensor) * dtype.itemsize)
    return torch.frombuffer(content, dtype=dtype).as_strided(tensor.shape, tensor.strides)
