"""Read folders of torch.distributed.checkpoint, in which tensors are cut into chunks in several files.

Its own reader unpickles the metadata. Here they are read as data, like every other pickle.
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
from vitviz.errors.messages import listing, plain, quote
from vitviz.weights.formats.archives import (
    READABLE,
    FileContent,
    LazyTensor,
    TensorInfo,
    extent,
    lazy_tensor,
    read_bytes,
    read_members,
    refuse,
    state_dicts,
)
from vitviz.weights.formats.opcodes import VALUE, Data
from vitviz.weights.formats.pickled import (
    DTYPES,
    MAX_PICKLE_BYTES,
    PickleReader,
    StoredTensor,
    dtype_name,
    whole_sizes,
)
from vitviz.weights.formats.stack_machine import NonTextKey

METADATA, SHARD = ".metadata", ".distcp"
MAX_FILES, MAX_CHUNKS = 10_000, 200_000
# Limit of the pickle that describes a chunk; torch writes about 200 bytes.
MAX_CHUNK_PICKLE_BYTES = 1024
# Limit of the keys on the path to a tensor.
MAX_NESTING = 32
# The classes in the metadata by their name, also in earlier versions of torch, and the kind that stands for each here.
RECORD_KINDS = {
    f"torch.distributed.checkpoint.{name}": name.rpartition(".")[2]
    for name in (
        *("metadata.Metadata", "metadata.TensorStorageMetadata", "metadata.ChunkStorageMetadata"),
        *("metadata.BytesStorageMetadata", "metadata.TensorProperties", "metadata._MEM_FORMAT_ENCODING"),
        *("metadata.MetadataIndex", "metadata.StorageMeta", "filesystem._StorageInfo"),
    )
} | {
    "torch.distributed._shard.sharded_tensor.metadata.TensorProperties": "TensorProperties",
    "torch.distributed._shard.sharded_tensor.metadata.MEM_FORMAT_ENCODING": "_MEM_FORMAT_ENCODING",
    # The folder to which it was saved.
    **{f"pathlib.{kind}Path": "path" for kind in ("Posix", "PurePosix", "Windows", "PureWindows")},
    **{f"pathlib._local.{kind}Path": "path" for kind in ("Posix", "PurePosix", "Windows", "PureWindows")},
}
INVALID_METADATA_ERRORS = (ValueError, TypeError, LookupError, AttributeError)


@dataclass(frozen=True)
class _Class:
    kind: str


@dataclass(eq=False)
class _Record:
    """An object in the metadata, with its attributes."""

    kind: str
    attributes: object = None


class _Location(NamedTuple):
    """Where a chunk is stored, and the transforms (such as compression) that it was stored through."""

    file: str
    start: int
    size: int
    transforms: object


class _Chunk(NamedTuple):
    """A part of a tensor: its offsets in the tensor, its shape, and where its values are."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    location: _Location


class MetadataReader(PickleReader):
    """Reads the pickle of a folder's metadata."""

    # The metadata of a tensor have its chunks, its path and its locations.
    step_factor = 2

    def name(self, module: object, attribute: object, rest_of_pickle: Callable[[], Data]) -> Any:
        kind = RECORD_KINDS.get(f"{module}.{attribute}")
        return super().name(module, attribute, rest_of_pickle) if kind is None else _Class(kind)

    def call(self, function: object, arguments: object) -> object:
        if isinstance(function, _Class):
            self.count(4)
            return _Record(function.kind)
        return super().call(function, arguments)

    def build(self, value: object, attributes: object) -> None:
        if isinstance(value, _Record):
            value.attributes = attributes


def open_distributed(file: Path, name: str) -> FileContent:
    """List the tensors in a folder of torch.distributed.checkpoint.

    Args:
        file: of its metadata.
        name: of the folder in messages.

    Raises:
        CheckpointError: the metadata are damaged or would run code, a file is missing or shorter than they say, or
            chunks do not add up to their tensors.
    """
    size = file.stat().st_size
    if size > MAX_PICKLE_BYTES:
        refuse(name, f"{METADATA} of {size:,} bytes", f"at most {MAX_PICKLE_BYTES:,}")
    value, _ = MetadataReader(name).read(file.read_bytes())
    try:
        metadata = _fields(value, "Metadata")
        entries, storage_data = _text_dict(metadata["state_dict_metadata"]), _dict(metadata.get("storage_data"))
        paths = metadata.get("planner_data")
        locations = _locations(storage_data)
        records = {key: _fields(entry, "TensorStorageMetadata") for key, entry in entries.items() if _is_tensor(entry)}
        if sum(len(_list(record["chunks"])) for record in records.values()) > MAX_CHUNKS or len(locations) > MAX_CHUNKS:
            refuse(name, f"more than {MAX_CHUNKS:,} chunks of tensors", "a checkpoint")
        sizes = _check_files(file, name, locations)
        tensors = {key: _tensor(name, key, record, locations) for key, record in records.items()}
        leaves = {key: tensors[key][0] if key in tensors else VALUE for key in entries}
        groups, beside = state_dicts(name, _unflatten(leaves, paths if isinstance(paths, dict) else {}))
    except INVALID_METADATA_ERRORS:
        refuse(name, f"{METADATA} that is damaged, or not of torch.distributed.checkpoint", "a folder as it was saved")
    chunks = {id(tensor): (key, tensor_chunks) for key, (tensor, tensor_chunks) in tensors.items()}
    lazy_groups = {
        group: {key: _lazy_tensor(file, name, tensor, *chunks[id(tensor)]) for key, tensor in group_tensors.items()}
        for group, group_tensors in groups.items()
    }
    return FileContent("distributed torch", lazy_groups, beside, file_bytes=size + sum(sizes.values()))


def _fields(value: object, kind: str) -> dict[str, Any]:
    if not isinstance(value, _Record) or value.kind != kind or not isinstance(value.attributes, dict):
        raise ValueError
    return value.attributes


def _dict(value: object) -> dict[object, object]:
    if not isinstance(value, dict):
        raise ValueError
    return value


def _text_dict(value: object) -> dict[str, object]:
    if not all(isinstance(key, str) for key in _dict(value)):
        raise ValueError
    return cast(dict[str, object], value)


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise ValueError
    return value


def _is_tensor(value: object) -> bool:
    """Whether an entry is a tensor; other entries are pickles, which are not read."""
    if not isinstance(value, _Record) or value.kind not in ("TensorStorageMetadata", "BytesStorageMetadata"):
        raise ValueError
    return value.kind == "TensorStorageMetadata"


def _index(key: str, offsets: tuple[int, ...]) -> str:
    # A text, since a file could choose numbers with equal hashes.
    return f"{offsets} {key}"


def _locations(storage_data: Mapping[object, object]) -> dict[str, _Location]:
    """The locations of all chunks by :func:`_index`, and of all other entries."""
    locations: dict[str, _Location] = {}
    for number, (key, value) in enumerate(storage_data.items()):
        if not isinstance(key, NonTextKey):
            raise ValueError
        index, info = _fields(key.value, "MetadataIndex"), _fields(value, "_StorageInfo")
        start, size = whole_sizes((info["offset"], info["length"]))
        if not isinstance(info["relative_path"], str) or not isinstance(index["fqn"], str):
            raise ValueError
        offsets = index.get("offset")
        label = f"other {number}" if offsets is None else _index(index["fqn"], whole_sizes(offsets))
        if label in locations:
            raise ValueError
        locations[label] = _Location(info["relative_path"], start, size, info.get("transform_descriptors"))
    return locations


def _check_files(file: Path, name: str, locations: Mapping[str, _Location]) -> dict[str, int]:
    """The size of every file, after a check that it exists and that chunks neither exceed it nor overlap in it."""
    sizes: dict[str, int] = {}
    ends: dict[str, int] = {}
    for location in sorted(locations.values(), key=lambda location: (location.start, location.size)):
        shard = location.file
        if shard not in sizes:
            if len(sizes) == MAX_FILES:
                refuse(name, f"more than {MAX_FILES:,} files", "a checkpoint")
            if shard in ("", ".", "..") or any(sign in shard for sign in "/\\:") or not shard.isprintable():
                refuse(name, f"it names {quote(shard)}", "files in the folder")
            if not file.with_name(shard).is_file():
                refuse(name, f"it names {quote(shard)}, which is not there", "every file of the checkpoint")
            sizes[shard] = file.with_name(shard).stat().st_size
        end = location.start + location.size
        if end > sizes[shard]:
            problem = f"a chunk up to byte {end:,} of {quote(shard)}, which has {sizes[shard]:,}"
            refuse(name, problem, "files as they were written")
        if location.start < ends.get(shard, 0):
            refuse(name, f"chunks that overlap in {quote(shard)}", "files as they were written")
        ends[shard] = end
    return sizes


def _tensor(
    name: str, key: str, record: Mapping[str, Any], locations: Mapping[str, _Location]
) -> tuple[StoredTensor, list[_Chunk]]:
    """A tensor and its chunks, after a check that they have as many values as it."""
    properties, shape = record["properties"], whole_sizes(record["size"])
    attributes = properties.attributes if properties.kind == "TensorProperties" else None
    # A tuple of fields in order, or a dict of fields by name.
    dtype = dtype_name(attributes[0] if isinstance(attributes, tuple) else _dict(attributes)["dtype"])
    chunks, values = [], 0
    for chunk_record in record["chunks"]:
        fields = _fields(chunk_record, "ChunkStorageMetadata")
        offsets, sizes = whole_sizes(fields["offsets"]), whole_sizes(fields["sizes"])
        if not len(offsets) == len(sizes) == len(shape):
            raise ValueError
        if any(start + length > side for start, length, side in zip(offsets, sizes, shape, strict=True)):
            problem = (
                f"a chunk of {quote(key)} of shape {quote(sizes)} at {quote(offsets)}, beyond its shape {quote(shape)}"
            )
            refuse(name, problem, "chunks of a tensor")
        if 0 in sizes:
            continue
        location = locations.get(_index(key, offsets))
        if location is None:
            refuse(name, f"a chunk of {quote(key)} that is in no file", "every chunk of a tensor")
        if math.prod(sizes) * DTYPES[dtype].itemsize > location.size:
            problem = f"a chunk of {quote(key)} of shape {quote(sizes)} in {location.size:,} bytes"
            refuse(name, problem, "its values in the file")
        chunks.append(_Chunk(offsets, sizes, location))
        values += math.prod(sizes)
    if values != math.prod(shape):
        problem = f"{quote(key)} of shape {quote(shape)}, whose chunks have {values:,} values"
        refuse(name, problem, "chunks that make up the tensor")
    return StoredTensor(shape, dtype), chunks


def _unflatten(leaves: Mapping[str, object], paths: Mapping[object, object]) -> dict[object, object]:
    """The nested dicts, which were flattened when they were saved."""
    top: dict[object, object] = {}
    for key, leaf in leaves.items():
        path = paths.get(key, (key,))
        if not isinstance(path, tuple) or not 0 < len(path) <= MAX_NESTING:
            raise ValueError
        if not all(isinstance(step, str) or type(step) is int for step in path):
            raise ValueError
        *parents, last = map(str, path)
        parent = top
        for step in parents:
            parent = _dict(parent.setdefault(step, {}))
        if last in parent:
            raise ValueError
        parent[last] = leaf
    return top


# The values.


def _lazy_tensor(file: Path, name: str, tensor: StoredTensor, key: str, chunks: list[_Chunk]) -> LazyTensor:
    info = TensorInfo(tensor.shape, tensor.dtype)
    transforms = [chunk.location.transforms for chunk in chunks if chunk.location.transforms]
    if transforms:
        return LazyTensor(info, None, f"stored through {quote(transforms[0])}")
    return LazyTensor(info, partial(_load, file, name, key, info, chunks) if info.dtype in READABLE else None)


def _load(file: Path, name: str, key: str, info: TensorInfo, chunks: list[_Chunk]) -> torch.Tensor:
    if len(chunks) == 1:
        return _load_chunk(file, name, key, info.dtype, chunks[0])
    tensor = torch.empty(info.shape, dtype=DTYPES[info.dtype])
    is_filled = torch.zeros(info.shape, dtype=torch.bool)
    for chunk in chunks:
        region = tuple(slice(start, start + size) for start, size in zip(chunk.offsets, chunk.sizes, strict=True))
        # The chunks have as many values as the tensor, so without overlaps none is missing.
        if is_filled[region].any():
            refuse(name, f"chunks of {quote(key)} that overlap", "chunks that make up the tensor")
        is_filled[region] = True
        tensor[region] = _load_chunk(file, name, key, info.dtype, chunk)
    return tensor


def _load_chunk(file: Path, name: str, key: str, dtype: str, chunk: _Chunk) -> torch.Tensor:
    """The values of a chunk, which is a tensor in a torch.save archive of its own."""
    shard = file.with_name(chunk.location.file)
    label = f"{name}: {plain(shard.name)}"
    members = read_members(shard, label, chunk.location.start, chunk.location.size)
    pickles = [member for member in members if member.rpartition("/")[2] == "data.pkl" and member.count("/") <= 1]
    if (
        len(pickles) != 1
        or members[pickles[0]].size > MAX_CHUNK_PICKLE_BYTES
        or any(m.deflated for m in members.values())
    ):
        refuse(label, f"an archive of {listing(members)} for {quote(key)}", "a tensor as torch saves it")
    top, pickled = pickles[0].removesuffix("data.pkl"), members[pickles[0]]
    if f"{top}byteorder" in members and members[f"{top}byteorder"].head(16) != b"little":
        refuse(label, "numbers of a big-endian machine", "little-endian ones")
    tensor, _ = PickleReader(label).read(read_bytes(shard, pickled.start, pickled.size))
    if not isinstance(tensor, StoredTensor):
        raise CheckpointError(f"{label}: no tensor for {quote(key)}; expected one of shape {quote(chunk.sizes)}")
    spans = {member_name: (member.start, member.size) for member_name, member in members.items()}
    lazy = lazy_tensor(shard, label, key, tensor, lambda storage: spans.get(f"{top}data/{storage.key}"))
    if lazy.info != TensorInfo(chunk.sizes, dtype) or lazy.load is None or extent(tensor) != math.prod(tensor.shape):
        kind = lazy.special or f"{lazy.info.dtype} {quote(lazy.info.shape)}"
        refuse(label, f"a chunk of {quote(key)} that is {kind}", f"a dense one, {dtype} {quote(chunk.sizes)}")
    return lazy.load()
