"""Folders of torch.distributed.checkpoint: tensors that are cut into chunks, which stand in several files.

Not by its own reader, which unpickles the metadata. Here it is read as data, as every other pickle is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch

from vitviz.errors.kinds import CheckpointError
from vitviz.errors.messages import listed, plain, shown
from vitviz.weights.formats.archives import (
    READABLE,
    Content,
    Part,
    TensorInfo,
    extent,
    read_bytes,
    read_members,
    refuse,
    state_dicts,
    torch_part,
)
from vitviz.weights.formats.opcodes import VALUE, Data
from vitviz.weights.formats.pickled import (
    DTYPES,
    MAX_PICKLE,
    PickleReader,
    StoredTensor,
    dtype_name,
    whole_sizes,
)
from vitviz.weights.formats.stack_machine import OtherKey

METADATA, SHARD = ".metadata", ".distcp"
MAX_FILES, MAX_CHUNKS = 10_000, 200_000
# Of what describes one chunk; torch writes some 200 bytes.
MAX_CHUNK_PICKLE = 1024
# Names between the top of a checkpoint and a tensor.
MAX_NESTING = 32
# What a part of a folder is of, by the names of the classes; those of its earlier versions stand elsewhere.
RECORDS = {
    f"torch.distributed.checkpoint.{place}": place.rpartition(".")[2]
    for place in (
        *("metadata.Metadata", "metadata.TensorStorageMetadata", "metadata.ChunkStorageMetadata"),
        *("metadata.BytesStorageMetadata", "metadata.TensorProperties", "metadata._MEM_FORMAT_ENCODING"),
        *("metadata.MetadataIndex", "metadata.StorageMeta", "filesystem._StorageInfo"),
    )
} | {
    "torch.distributed._shard.sharded_tensor.metadata.TensorProperties": "TensorProperties",
    "torch.distributed._shard.sharded_tensor.metadata.MEM_FORMAT_ENCODING": "_MEM_FORMAT_ENCODING",
    # Where it was saved.
    **{f"pathlib.{kind}Path": "path" for kind in ("Posix", "PurePosix", "Windows", "PureWindows")},
    **{f"pathlib._local.{kind}Path": "path" for kind in ("Posix", "PurePosix", "Windows", "PureWindows")},
}
NO_METADATA = (ValueError, TypeError, LookupError, AttributeError)


@dataclass(frozen=True)
class _Class:
    kind: str


@dataclass(eq=False)
class _Record:
    """An object of the metadata, with the attributes that the pickle gives it."""

    kind: str
    attributes: object = None


class _Slice(NamedTuple):
    """Where a chunk stands."""

    file: str
    start: int
    size: int
    transforms: object


class _Chunk(NamedTuple):
    """A part of a tensor: where it begins, its shape, and where its values are."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    place: _Slice


class MetadataReader(PickleReader):
    """Reads the pickle of a folder's metadata."""

    # Of a tensor there are its chunks, its path and its places.
    patience = 2

    def name(self, module: object, attribute: object, rest_of_pickle: Callable[[], Data]) -> Any:
        kind = RECORDS.get(f"{module}.{attribute}")
        return super().name(module, attribute, rest_of_pickle) if kind is None else _Class(kind)

    def make(self, function: object, arguments: object) -> object:
        if isinstance(function, _Class):
            self.count(4)
            return _Record(function.kind)
        return super().make(function, arguments)

    def build(self, value: object, attributes: object) -> None:
        if isinstance(value, _Record):
            value.attributes = attributes


def open_distributed(file: Path, name: str) -> Content:
    """See what tensors are in a folder of torch.distributed.checkpoint.

    Args:
        file: its metadata.
        name: what messages call the folder.

    Raises:
        CheckpointError: the metadata are damaged or would run code, a file is missing or shorter than they say, or
            chunks do not make up their tensors.
    """
    size = file.stat().st_size
    if size > MAX_PICKLE:
        refuse(name, f"{METADATA} of {size:,} bytes", f"at most {MAX_PICKLE:,}")
    value, _ = MetadataReader(name).read(file.read_bytes())
    try:
        whole = _fields(value, "Metadata")
        stated, stored = _named(whole["state_dict_metadata"]), _dict(whole.get("storage_data"))
        paths = whole.get("planner_data")
        places = _places(stored)
        tensors = {key: _fields(each, "TensorStorageMetadata") for key, each in stated.items() if _is_tensor(each)}
        if sum(len(_list(tensor["chunks"])) for tensor in tensors.values()) > MAX_CHUNKS or len(places) > MAX_CHUNKS:
            refuse(name, f"more than {MAX_CHUNKS:,} chunks of tensors", "a checkpoint")
        sizes = _check_files(file, name, places)
        found = {key: _tensor(name, key, tensor, places) for key, tensor in tensors.items()}
        leaves = {key: found[key][0] if key in found else VALUE for key in stated}
        groups, beside = state_dicts(name, _nested(leaves, paths if isinstance(paths, dict) else {}))
    except NO_METADATA:
        refuse(name, f"{METADATA} that is damaged, or not of torch.distributed.checkpoint", "a folder as it was saved")
    chunks = {id(tensor): (key, pieces) for key, (tensor, pieces) in found.items()}
    parts = {
        group: {key: _part(file, name, tensor, *chunks[id(tensor)]) for key, tensor in tensors.items()}
        for group, tensors in groups.items()
    }
    return Content("distributed torch", parts, beside, bytes=size + sum(sizes.values()))


def _fields(value: object, kind: str) -> dict[str, Any]:
    if not isinstance(value, _Record) or value.kind != kind or not isinstance(value.attributes, dict):
        raise ValueError
    return value.attributes


def _dict(value: object) -> dict[object, object]:
    if not isinstance(value, dict):
        raise ValueError
    return value


def _named(value: object) -> dict[str, object]:
    if not all(isinstance(key, str) for key in _dict(value)):
        raise ValueError
    return cast(dict[str, object], value)


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise ValueError
    return value


def _is_tensor(value: object) -> bool:
    """Whether an entry is a tensor; anything else is a pickle, which is not looked at."""
    if not isinstance(value, _Record) or value.kind not in ("TensorStorageMetadata", "BytesStorageMetadata"):
        raise ValueError
    return value.kind == "TensorStorageMetadata"


def _index(key: str, offsets: tuple[int, ...]) -> str:
    # A text: the hashes of numbers are the file's choice.
    return f"{offsets} {key}"


def _places(stored: Mapping[object, object]) -> dict[str, _Slice]:
    """Where every chunk stands, and everything that is no tensor."""
    places: dict[str, _Slice] = {}
    for number, (key, value) in enumerate(stored.items()):
        if not isinstance(key, OtherKey):
            raise ValueError
        index, info = _fields(key.value, "MetadataIndex"), _fields(value, "_StorageInfo")
        start, size = whole_sizes((info["offset"], info["length"]))
        if not isinstance(info["relative_path"], str) or not isinstance(index["fqn"], str):
            raise ValueError
        offsets = index.get("offset")
        label = f"other {number}" if offsets is None else _index(index["fqn"], whole_sizes(offsets))
        if label in places:
            raise ValueError
        places[label] = _Slice(info["relative_path"], start, size, info.get("transform_descriptors"))
    return places


def _check_files(file: Path, name: str, places: Mapping[str, _Slice]) -> dict[str, int]:
    """The size of every file: each is there, and its chunks stand in it one behind the other."""
    sizes: dict[str, int] = {}
    ends: dict[str, int] = {}
    for place in sorted(places.values(), key=lambda place: (place.start, place.size)):
        shard = place.file
        if shard not in sizes:
            if len(sizes) == MAX_FILES:
                refuse(name, f"more than {MAX_FILES:,} files", "a checkpoint")
            if shard in ("", ".", "..") or any(sign in shard for sign in "/\\:") or not shard.isprintable():
                refuse(name, f"it names {shown(shard)}", "files in the folder")
            if not file.with_name(shard).is_file():
                refuse(name, f"it names {shown(shard)}, which is not there", "every file of the checkpoint")
            sizes[shard] = file.with_name(shard).stat().st_size
        if place.start + place.size > sizes[shard]:
            found = f"a chunk up to byte {place.start + place.size:,} of {shown(shard)}, which has {sizes[shard]:,}"
            refuse(name, found, "files as they were written")
        if place.start < ends.get(shard, 0):
            refuse(name, f"chunks that overlap in {shown(shard)}", "files as they were written")
        ends[shard] = place.start + place.size
    return sizes


def _tensor(
    name: str, key: str, fields: Mapping[str, Any], places: Mapping[str, _Slice]
) -> tuple[StoredTensor, list[_Chunk]]:
    """A tensor and its chunks, which together have as many values as it."""
    properties, shape = fields["properties"], whole_sizes(fields["size"])
    attributes = properties.attributes if properties.kind == "TensorProperties" else None
    # In the order of its fields, or by their names.
    dtype = dtype_name(attributes[0] if isinstance(attributes, tuple) else _dict(attributes)["dtype"])
    pieces, values = [], 0
    for each in fields["chunks"]:
        chunk = _fields(each, "ChunkStorageMetadata")
        offsets, sizes = whole_sizes(chunk["offsets"]), whole_sizes(chunk["sizes"])
        if not len(offsets) == len(sizes) == len(shape):
            raise ValueError
        if any(start + length > side for start, length, side in zip(offsets, sizes, shape, strict=True)):
            found = (
                f"a chunk of {shown(key)} of shape {shown(sizes)} at {shown(offsets)}, beyond its shape {shown(shape)}"
            )
            refuse(name, found, "chunks of a tensor")
        if 0 in sizes:
            continue
        place = places.get(_index(key, offsets))
        if place is None:
            refuse(name, f"a chunk of {shown(key)} that is in no file", "every chunk of a tensor")
        if math.prod(sizes) * DTYPES[dtype].itemsize > place.size:
            found = f"a chunk of {shown(key)} of shape {shown(sizes)} in {place.size:,} bytes"
            refuse(name, found, "its values in the file")
        pieces.append(_Chunk(offsets, sizes, place))
        values += math.prod(sizes)
    if values != math.prod(shape):
        found = f"{shown(key)} of shape {shown(shape)}, whose chunks have {values:,} values"
        refuse(name, found, "chunks that make up the tensor")
    return StoredTensor(shape, dtype), pieces


def _nested(leaves: Mapping[str, object], paths: Mapping[object, object]) -> dict[object, object]:
    """The dicts that were flattened when they were saved."""
    top: dict[object, object] = {}
    for key, leaf in leaves.items():
        path = paths.get(key, (key,))
        if not isinstance(path, tuple) or not 0 < len(path) <= MAX_NESTING:
            raise ValueError
        if not all(isinstance(step, str) or type(step) is int for step in path):
            raise ValueError
        *outer, last = map(str, path)
        inner = top
        for step in outer:
            inner = _dict(inner.setdefault(step, {}))
        if last in inner:
            raise ValueError
        inner[last] = leaf
    return top


# The values.


def _part(file: Path, name: str, tensor: StoredTensor, key: str, chunks: list[_Chunk]) -> Part:
    info = TensorInfo(tensor.shape, tensor.dtype)
    transforms = [chunk.place.transforms for chunk in chunks if chunk.place.transforms]
    if transforms:
        return Part(info, None, f"stored through {shown(transforms[0])}")
    return Part(info, partial(_load, file, name, key, info, chunks) if info.dtype in READABLE else None)


def _load(file: Path, name: str, key: str, info: TensorInfo, chunks: list[_Chunk]) -> torch.Tensor:
    if len(chunks) == 1:
        return _load_chunk(file, name, key, info.dtype, chunks[0])
    whole = torch.empty(info.shape, dtype=DTYPES[info.dtype])
    filled = torch.zeros(info.shape, dtype=torch.bool)
    for chunk in chunks:
        inside = tuple(slice(start, start + size) for start, size in zip(chunk.offsets, chunk.sizes, strict=True))
        # As many values as the tensor has: where none comes twice, none is missing.
        if filled[inside].any():
            refuse(name, f"chunks of {shown(key)} that overlap", "chunks that make up the tensor")
        filled[inside] = True
        whole[inside] = _load_chunk(file, name, key, info.dtype, chunk)
    return whole


def _load_chunk(file: Path, name: str, key: str, dtype: str, chunk: _Chunk) -> torch.Tensor:
    """One chunk: a tensor of torch.save's in an archive of its own."""
    shard = file.with_name(chunk.place.file)
    where = f"{name}: {plain(shard.name)}"
    members = read_members(shard, where, chunk.place.start, chunk.place.size)
    pickles = [part for part in members if part.rpartition("/")[2] == "data.pkl" and part.count("/") <= 1]
    if len(pickles) != 1 or members[pickles[0]].size > MAX_CHUNK_PICKLE or any(m.deflated for m in members.values()):
        refuse(where, f"an archive of {listed(members)} for {shown(key)}", "a tensor as torch saves it")
    top, pickled = pickles[0].removesuffix("data.pkl"), members[pickles[0]]
    if f"{top}byteorder" in members and members[f"{top}byteorder"].head(16) != b"little":
        refuse(where, "numbers of a big-endian machine", "little-endian ones")
    tensor, _ = PickleReader(where).read(read_bytes(shard, pickled.start, pickled.size))
    if not isinstance(tensor, StoredTensor):
        raise CheckpointError(f"{where}: no tensor for {shown(key)}; expected one of shape {shown(chunk.sizes)}")
    storages = {part: (member.start, member.size) for part, member in members.items()}
    part = torch_part(shard, where, key, tensor, lambda storage: storages.get(f"{top}data/{storage.key}"))
    if part.info != TensorInfo(chunk.sizes, dtype) or part.load is None or extent(tensor) != math.prod(tensor.shape):
        kind = part.special or f"{part.info.dtype} {shown(part.info.shape)}"
        refuse(where, f"a chunk of {shown(key)} that is {kind}", f"a dense one, {dtype} {shown(chunk.sizes)}")
    return part.load()
