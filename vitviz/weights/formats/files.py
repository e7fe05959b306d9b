"""List the tensors of any checkpoint file, and read them one by one. Nothing in a file is ever executed."""

from __future__ import annotations

import json
import math
import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from vitviz.errors.kinds import CheckpointError
from vitviz.errors.messages import listing, plain, quote
from vitviz.weights.formats.archives import (
    EXPECTED,
    FLOATS,
    MAGIC,
    MAX_HEADER_BYTES,
    READABLE,
    FileContent,
    LazyTensor,
    TensorInfo,
    open_legacy,
    open_zip,
    read_bytes,
    refuse,
)
from vitviz.weights.formats.distributed import METADATA, SHARD, open_distributed
from vitviz.weights.formats.foreign import START_BYTES, foreign_file, foreign_format
from vitviz.weights.formats.names import SUFFIXES, WEIGHT_FILE_NAMES, is_weight_file
from vitviz.weights.formats.paths import existing_path
from vitviz.weights.formats.pickled import DTYPES, MAX_DIMENSIONS, MAX_TENSORS, ForbiddenNameError
from vitviz.weights.formats.stand_ins import open_with_stand_ins

__all__ = ["TensorInfo", "WeightFile", "open_weights", "tensors_in_memory"]

MAX_SHARDS = 1000
CHECKPOINT_FOLDER = re.compile(r"checkpoint-(\d{1,12})")

# A safetensors file begins with the length of its header, a number of this many bytes.
LENGTH_BYTES = 8
SAFETENSORS_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "C64": "complex64",
    "BOOL": "bool",
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
}


@dataclass(frozen=True, eq=False)
class WeightFile:
    """The tensors in a checkpoint file, read one by one.

    Attributes:
        name: of the file or folder in messages.
        kind: "safetensors", "sharded safetensors", "torch", "sharded torch", "distributed torch", "npz" or "memory".
        groups: the dicts of tensors by their path: "" at the top, "model", "state_dict.teacher", ….
        beside: the paths of all other entries, such as "optimizer", "epoch" and "args".
        metadata: the texts in the header of a safetensors file.
        skipped: names of classes whose objects in the file were skipped.
        path: of the file, or of the index.
        file_bytes: of the file, or of all files of a sharded checkpoint.
    """

    name: str
    kind: str
    groups: Mapping[str, Mapping[str, TensorInfo]]
    beside: tuple[str, ...]
    metadata: Mapping[str, str]
    path: Path
    file_bytes: int
    _tensors: Mapping[str, Mapping[str, LazyTensor]] = field(repr=False)
    skipped: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """The folder of the file."""
        return self.path.parent

    def without(self, patterns: Sequence[str]) -> tuple[WeightFile, list[str]]:
        """The file without the tensors whose keys match one of the patterns, and these keys.

        Args:
            patterns: of keys, with or without the path of their group: ``"head.*"``, ``"model_ema.*"``.

        Raises:
            CheckpointError: a pattern matches no key, or the patterns match every key.
        """
        places = [(group, key) for group, tensors in self.groups.items() for key in tensors]
        names = {(group, key): f"{group}.{key}".removeprefix(".") for group, key in places}
        excluded: dict[tuple[str, str], None] = {}
        for pattern in patterns:
            matching = [
                place for place, name in names.items() if fnmatchcase(place[1], pattern) or fnmatchcase(name, pattern)
            ]
            if not matching:
                keys = list(names.values())
                similar = get_close_matches(pattern, keys, 3) or keys
                refuse(
                    self.name, f"no key like {quote(pattern)}, which is to be left out", f"one of {listing(similar)}"
                )
            excluded |= dict.fromkeys(matching)
        if len(excluded) == len(names):
            refuse(self.name, f"every key left out by {listing(patterns)}", "patterns that leave a network")
        groups = {
            group: MappingProxyType({key: info for key, info in tensors.items() if (group, key) not in excluded})
            for group, tensors in self.groups.items()
        }
        return replace(self, groups=MappingProxyType(groups)), [names[place] for place in excluded]

    def read(self, group: str, key: str) -> torch.Tensor:
        """Read one tensor from the file.

        Returns:
            A contiguous float32 tensor of the shape in ``groups``, in memory of its own, with finite values.

        Raises:
            CheckpointError: there is no such tensor, it is no dense tensor of plain numbers (for example sparse,
                quantised or complex), it has values that are not finite, or the file changed or cannot be read.
        """
        lazy = self._tensors.get(group, {}).get(key)
        if lazy is None:
            legal = listing(self._tensors.get(group, self._tensors))
            refuse(self.name, f"no tensor {quote(key)} in group {quote(group)}", f"one of {legal}")
        if lazy.load is None or lazy.info.dtype not in READABLE:
            kind = lazy.special or plain(lazy.info.dtype)
            refuse(self.name, f"{quote(key)} is {kind}", f"a dense tensor of {', '.join(FLOATS)} or integers")
        with _read_errors(self.name):
            tensor = lazy.load().to(torch.float32).contiguous()
            if tuple(tensor.shape) != lazy.info.shape:
                raise EOFError
        if not tensor.isfinite().all():
            refuse(self.name, f"values that are not finite in {quote(key)}", "finite ones")
        return tensor


def open_weights(path: str | os.PathLike[str], own: bool = False) -> WeightFile:
    """List the tensors in a checkpoint without reading them. Nothing in the file is ever executed.

    Args:
        path: a safetensors file, a file of ``torch.save`` in its present or its legacy format, an npz file or the index
            of a sharded checkpoint, each recognised by its content; or a folder with one of these, or a folder of
            torch.distributed.checkpoint.
        own: whether it is the user's own, in which objects of other classes are skipped, see
            :mod:`vitviz.weights.formats.stand_ins`; a stranger's file with such objects is refused.

    Raises:
        CheckpointError: there is no such file, it is none of these, it is damaged, it would run code, it claims more
            bytes than it has, or it has no floating-point tensors by name.
    """
    file = existing_path(path, EXPECTED)
    name = plain(os.path.basename(os.path.abspath(path)) or "/")
    with _read_errors(name):
        if file.is_dir():
            file = _find_weights(file, name)
        start = _read_start(file, name)
        if file.name == METADATA:
            content = open_distributed(file, name)
        else:
            content = _open_index(file) if _is_json(file, start) else _open_file(file, start, own)
    groups = {group: {key: lazy.info for key, lazy in tensors.items()} for group, tensors in content.groups.items()}
    if not any(info.dtype in FLOATS for infos in groups.values() for info in infos.values()):
        names = listing([*content.beside, *(key for infos in groups.values() for key in infos)]) or "nothing"
        refuse(name, f"no floating-point tensors by name, only {names}", "a state dict")
    for key, info in (entry for infos in groups.values() for entry in infos.items()):
        # An empty tensor may claim any shape.
        if math.prod(max(length, 1) for length in info.shape) >= 2**63:
            refuse(name, f"{quote(key)} of a shape beyond any memory", "tensors that a model can have")
    return WeightFile(
        name=name,
        kind=content.kind,
        groups=MappingProxyType({group: MappingProxyType(infos) for group, infos in groups.items()}),
        beside=content.beside,
        metadata=MappingProxyType(dict(content.metadata)),
        path=file,
        file_bytes=content.file_bytes,
        _tensors=content.groups,
        skipped=content.skipped,
    )


def tensors_in_memory(name: str, tensors: Mapping[str, torch.Tensor]) -> WeightFile:
    """A :class:`WeightFile` of tensors in memory.

    Args:
        name: of the file in messages.
        tensors: by key; their values are copied when they are read.
    """
    infos = {key: TensorInfo(tuple(tensor.shape), str(tensor.dtype)[6:]) for key, tensor in tensors.items()}
    lazy_tensors = {key: LazyTensor(info, partial(_copy, tensors[key])) for key, info in infos.items()}
    nbytes = sum(tensor.nbytes for tensor in tensors.values())
    groups = MappingProxyType({"": MappingProxyType(infos)})
    return WeightFile(name, "memory", groups, (), MappingProxyType({}), Path(name), nbytes, {"": lazy_tensors})


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().clone()


@contextmanager
def _read_errors(name: str) -> Iterator[None]:
    """Turn errors of the system and of libraries about a file into a :class:`CheckpointError`."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{name}: cannot be read ({error.strerror or type(error).__name__})") from None
    except SafetensorError as error:
        raise CheckpointError(f"{name}: not a safetensors file, or a damaged one ({quote(str(error))})") from None
    except (EOFError, zlib.error):
        raise CheckpointError(f"{name}: damaged, or changed since it was opened") from None


# Which file, and of what kind.


def _find_weights(folder: Path, name: str) -> Path:
    """The only file of weights in a folder, or its index."""
    for file_name in WEIGHT_FILE_NAMES:
        if (folder / file_name).is_file():
            return folder / file_name
    if (folder / METADATA).is_file():
        return folder / METADATA
    files = sorted(file for file in folder.iterdir() if is_weight_file(file) and file.is_file())
    stems = {file.stem for file in files if file.suffix.lower() == ".safetensors"}
    # A safetensors file is preferred to files of the same stem.
    files = [file for file in files if file.suffix.lower() == ".safetensors" or file.stem not in stems]
    if len(files) == 1:
        return files[0]
    if not files:
        # A training run of transformers writes each checkpoint to a folder of its own; the last one counts.
        matches = [(CHECKPOINT_FOLDER.fullmatch(sub.name), sub) for sub in folder.iterdir()]
        numbered = [(int(match[1]), sub) for match, sub in matches if match]
        for _, sub in sorted(numbered, reverse=True):
            if any((sub / file_name).is_file() for file_name in WEIGHT_FILE_NAMES):
                return _find_weights(sub, name)
        if any(file.suffix == SHARD for file in folder.iterdir()):
            refuse(name, f"files {SHARD} without the {METADATA} that is written behind them", "both, of a whole save")
        foreign = foreign_file(folder)
        found = "" if foreign is None else f", only {quote(foreign[0])} ({foreign[1]})"
        refuse(name, f"no weights in this folder{found}", f"{WEIGHT_FILE_NAMES[0]} or one file {', '.join(SUFFIXES)}")
    names = listing(file.name for file in files)
    refuse(name, f"{len(files)} weight files in this folder, {names}", "one, or its own path")


def _read_start(file: Path, name: str) -> bytes:
    """The first bytes of a regular file."""
    if not file.is_file():
        refuse(name, "neither a file nor a folder", EXPECTED)
    with open(file, "rb") as stream:
        return stream.read(START_BYTES)


def _is_safetensors(file: Path, start: bytes) -> bool:
    length = int.from_bytes(start[:8], "little")
    return start[8:9] == b"{" and (length <= file.stat().st_size or start.lstrip()[:1] != b"{")


def _is_json(file: Path, start: bytes) -> bool:
    return start.lstrip()[:1] == b"{" and not _is_safetensors(file, start)


def _open_file(file: Path, start: bytes, own: bool = False) -> FileContent:
    name = plain(file.name)
    with _read_errors(name):
        try:
            content = _open_by_content(file, start, name)
        except ForbiddenNameError as error:
            if not own:
                raise
            content = open_with_stand_ins(file, name, error)
        return replace(content, file_bytes=file.stat().st_size)


def _open_by_content(file: Path, start: bytes, name: str) -> FileContent:
    if file.suffix == SHARD:
        refuse(name, "one file of a distributed checkpoint", f"the path of its folder, with {METADATA}")
    if start.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return open_zip(file, name)
    if _is_safetensors(file, start):
        return _open_safetensors(file, name)
    if start.startswith((b"\x80", b"L%dL" % MAGIC)):
        return open_legacy(file, name)
    kind = foreign_format(name, start) if start else "an empty file"
    if kind is None:
        text = start[:16].decode("ascii", "replace")
        is_text = text.isprintable() and "\ufffd" not in text
        kind = f"it begins with {text!r}" if is_text else f"it begins with the bytes {start[:8].hex(' ')}"
    refuse(name, kind, EXPECTED)


def _json(content: bytes, name: str) -> Any:
    def to_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        entries = dict(pairs)
        if len(entries) < len(pairs):
            refuse(name, "the same key twice in its JSON", "every key once")
        return entries

    try:
        return json.loads(content, object_pairs_hook=to_dict)
    except (ValueError, RecursionError):
        refuse(name, "its JSON cannot be read", "JSON as it was written")


# safetensors, and the index of a sharded checkpoint.


def _open_safetensors(file: Path, name: str) -> FileContent:
    with open(file, "rb") as stream:
        length = int.from_bytes(stream.read(LENGTH_BYTES), "little")
        if length > MAX_HEADER_BYTES:
            refuse(name, f"a header of {length:,} bytes", f"at most {MAX_HEADER_BYTES:,}")
        header = stream.read(length)
    with safe_open(file, framework="pt") as tensor_file:
        keys = list(tensor_file.keys())
        if len(keys) > MAX_TENSORS:
            refuse(name, f"{len(keys):,} tensors", f"at most {MAX_TENSORS:,}")
        slices = {key: tensor_file.get_slice(key) for key in keys}
        shapes = {key: (tuple(tensor.get_shape()), tensor.get_dtype()) for key, tensor in slices.items()}
        metadata = tensor_file.metadata() or {}
    for key, (shape, _) in shapes.items():
        if len(shape) > MAX_DIMENSIONS:
            refuse(name, f"{quote(key)} of {len(shape):,} dimensions", f"at most {MAX_DIMENSIONS}")
    # _json refuses duplicate keys, of which the library takes the last.
    entries = _json(header, name)
    tensors = {}
    for key, (shape, dtype) in shapes.items():
        info = TensorInfo(shape, SAFETENSORS_DTYPES.get(dtype, dtype.lower()))
        start, end = entries[key]["data_offsets"]
        load = partial(_load_safetensors, file, LENGTH_BYTES + length + start, end - start, info)
        tensors[key] = LazyTensor(info, load if info.dtype in READABLE else None)
    return FileContent("safetensors", {"": tensors}, metadata=metadata)


def _load_safetensors(file: Path, start: int, size: int, info: TensorInfo) -> torch.Tensor:
    # The library would read the whole header for every tensor.
    dtype = DTYPES[info.dtype]
    if math.prod(info.shape) * dtype.itemsize != size:
        raise EOFError
    content = read_bytes(file, start, size)
    return torch.frombuffer(content, dtype=dtype).reshape(info.shape) if size else torch.empty(info.shape, dtype=dtype)


def _open_index(file: Path) -> FileContent:
    name = plain(file.name)
    if file.stat().st_size > MAX_HEADER_BYTES:
        refuse(name, f"JSON of {file.stat().st_size:,} bytes", f"at most {MAX_HEADER_BYTES:,}")
    index = _json(file.read_bytes(), name)
    shards = index.get("weight_map")
    if not isinstance(shards, dict) or not shards or not all(isinstance(shard, str) for shard in shards.values()):
        refuse(name, "JSON without a weight_map of file names", f"{EXPECTED}, or the index of a sharded checkpoint")
    keys: dict[str, set[str]] = {}
    for key, shard in shards.items():
        keys.setdefault(shard, set()).add(key)
    if len(shards) > MAX_TENSORS or len(keys) > MAX_SHARDS:
        refuse(name, f"{len(shards):,} tensors in {len(keys):,} files", f"at most {MAX_TENSORS:,} in {MAX_SHARDS}")
    tensors: dict[str, LazyTensor] = {}
    beside: dict[str, None] = {}
    metadata: dict[str, str] = {}
    kinds, size = set(), 0
    for shard, expected in keys.items():
        if shard in ("", ".", "..") or any(sign in shard for sign in "/\\:") or not shard.isprintable():
            refuse(name, f"it names {quote(shard)}", "files beside it")
        if not file.with_name(shard).is_file():
            refuse(name, f"it names {quote(shard)}, which is not there", "every file of the checkpoint beside it")
        content = _open_file(file.with_name(shard), _read_start(file.with_name(shard), plain(shard)))
        shard_tensors = content.groups.get("", {})
        if content.kind not in ("safetensors", "torch") or content.groups.keys() - {""}:
            refuse(plain(shard), f"{content.kind} with groups {listing(content.groups)}", "a state dict at its top")
        missing, unexpected = expected - shard_tensors.keys(), shard_tensors.keys() - expected
        for verb, wrong in (("lacks", missing), ("has, beyond it,", unexpected)):
            if wrong:
                refuse(plain(shard), f"it {verb} {listing(sorted(wrong))}", f"the tensors that {name} names")
        tensors |= shard_tensors
        beside |= dict.fromkeys(content.beside)
        metadata |= content.metadata
        kinds.add(content.kind)
        size += content.file_bytes
    if len(kinds) > 1:
        refuse(name, f"files of {' and '.join(sorted(kinds))}", "one kind")
    return FileContent(f"sharded {kinds.pop()}", {"": tensors}, tuple(beside), metadata, size)
