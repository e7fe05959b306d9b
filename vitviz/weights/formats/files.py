"""The tensors of any checkpoint file: what there is, and one of them at a time. Nothing in a file is ever executed."""

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
from vitviz.errors.messages import listed, plain, shown
from vitviz.weights.formats.archives import (
    EXPECTED,
    FLOATS,
    MAGIC,
    MAX_HEADER,
    READABLE,
    Content,
    Part,
    TensorInfo,
    open_legacy,
    open_zip,
    read_bytes,
    refuse,
)
from vitviz.weights.formats.distributed import METADATA, SHARD, open_distributed
from vitviz.weights.formats.paths import existing_path
from vitviz.weights.formats.pickled import DTYPES, MAX_DIMENSIONS, MAX_TENSORS

__all__ = ["TensorInfo", "WeightFile", "open_weights", "tensors_in_memory"]

MAX_SHARDS = 1000
SUFFIXES = (".safetensors", ".pth", ".pt", ".bin", ".ckpt", ".npz")
CHECKPOINT = re.compile(r"checkpoint-(\d{1,12})")
# The usual names in a folder, the first that is there wins.
WEIGHT_FILE_NAMES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "open_clip_model.safetensors",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "open_clip_pytorch_model.bin",
)

# Of the number with which a safetensors file begins, the length of its header.
NUMBER_BYTES = 8
SAFETENSORS = {
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
        name: what the file, or the folder, is called in messages.
        kind: "safetensors", "sharded safetensors", "torch", "sharded torch", "distributed torch", "npz" or "memory".
        groups: the dicts of tensors by where they stand: "" at the top, "model", "state_dict.teacher", ….
        beside: what else is in it by name, such as "optimizer", "epoch" and "args".
        metadata: the texts in the header of a safetensors file.
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
    _parts: Mapping[str, Mapping[str, Part]] = field(repr=False)

    @property
    def folder(self) -> Path:
        """Where the file stands."""
        return self.path.parent

    def without(self, patterns: Sequence[str]) -> tuple[WeightFile, list[str]]:
        """The file without the tensors that have one of these patterns, and their keys.

        Args:
            patterns: of a key, or of a key behind the name of its state dict: ``"head.*"``, ``"model_ema.*"``.

        Raises:
            CheckpointError: no key has a pattern, or every key has one.
        """
        places = [(group, key) for group, tensors in self.groups.items() for key in tensors]
        names = {(group, key): f"{group}.{key}".removeprefix(".") for group, key in places}
        left_out: dict[tuple[str, str], None] = {}
        for pattern in patterns:
            matching = [
                place for place, name in names.items() if fnmatchcase(place[1], pattern) or fnmatchcase(name, pattern)
            ]
            if not matching:
                keys = list(names.values())
                near = get_close_matches(pattern, keys, 3) or keys
                refuse(self.name, f"no key like {shown(pattern)}, which is to be left out", f"one of {listed(near)}")
            left_out |= dict.fromkeys(matching)
        if len(left_out) == len(names):
            refuse(self.name, f"every key left out by {listed(patterns)}", "patterns that leave a network")
        groups = {
            group: MappingProxyType({key: info for key, info in tensors.items() if (group, key) not in left_out})
            for group, tensors in self.groups.items()
        }
        return replace(self, groups=MappingProxyType(groups)), [names[place] for place in left_out]

    def read(self, group: str, key: str) -> torch.Tensor:
        """One tensor, read from the file now.

        Returns:
            A contiguous float32 tensor of the shape in ``groups``, with memory of its own and every value finite.

        Raises:
            CheckpointError: there is no such tensor, it is sparse, quantised, complex or else no dense tensor of plain
                numbers, it has values that are not finite, or the file changed or cannot be read.
        """
        part = self._parts.get(group, {}).get(key)
        if part is None:
            has = listed(self._parts.get(group, self._parts))
            refuse(self.name, f"no tensor {shown(key)} in group {shown(group)}", f"one of {has}")
        if part.load is None or part.info.dtype not in READABLE:
            found = part.special or plain(part.info.dtype)
            refuse(self.name, f"{shown(key)} is {found}", f"a dense tensor of {', '.join(FLOATS)} or integers")
        with _sentences(self.name):
            tensor = part.load().to(torch.float32).contiguous()
            if tuple(tensor.shape) != part.info.shape:
                raise EOFError
        if not tensor.isfinite().all():
            refuse(self.name, f"values that are not finite in {shown(key)}", "finite ones")
        return tensor


def open_weights(path: str | os.PathLike[str]) -> WeightFile:
    """See what tensors are in a checkpoint, without reading them. Nothing in the file is ever executed.

    Args:
        path: a safetensors file, a file of ``torch.save`` in its present or its legacy format, an npz file or the index
            of a sharded checkpoint, each told by its content; or a folder that holds one, or is one of
            torch.distributed.checkpoint.

    Raises:
        CheckpointError: there is no such file, it is none of these, it is damaged, it would run code or claims more
            than it holds, or it has no floating-point tensors by name.
    """
    file = existing_path(path, EXPECTED)
    name = plain(os.path.basename(os.path.abspath(path)) or "/")
    with _sentences(name):
        if file.is_dir():
            file = _in_folder(file, name)
        start = _start(file, name)
        if file.name == METADATA:
            content = open_distributed(file, name)
        else:
            content = _open_index(file) if _is_json(file, start) else _open_file(file, start)
    infos = {group: {key: part.info for key, part in parts.items()} for group, parts in content.groups.items()}
    if not any(info.dtype in FLOATS for parts in infos.values() for info in parts.values()):
        found = listed([*content.beside, *(key for parts in infos.values() for key in parts)]) or "nothing"
        refuse(name, f"no floating-point tensors by name, only {found}", "a state dict")
    for key, info in (entry for parts in infos.values() for entry in parts.items()):
        # An empty tensor may claim any shape.
        if math.prod(max(length, 1) for length in info.shape) >= 2**63:
            refuse(name, f"{shown(key)} of a shape beyond any memory", "tensors that a model can have")
    return WeightFile(
        name=name,
        kind=content.kind,
        groups=MappingProxyType({group: MappingProxyType(parts) for group, parts in infos.items()}),
        beside=content.beside,
        metadata=MappingProxyType(dict(content.metadata)),
        path=file,
        file_bytes=content.bytes,
        _parts=content.groups,
    )


def tensors_in_memory(name: str, tensors: Mapping[str, torch.Tensor]) -> WeightFile:
    """Tensors by name as if they stood in a file.

    Args:
        name: what messages call them.
        tensors: whose values are copied when they are read.
    """
    infos = {key: TensorInfo(tuple(tensor.shape), str(tensor.dtype)[6:]) for key, tensor in tensors.items()}
    parts = {key: Part(info, partial(_copied, tensors[key])) for key, info in infos.items()}
    nbytes = sum(tensor.nbytes for tensor in tensors.values())
    groups = MappingProxyType({"": MappingProxyType(infos)})
    return WeightFile(name, "memory", groups, (), MappingProxyType({}), Path(name), nbytes, {"": parts})


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().clone()


@contextmanager
def _sentences(name: str) -> Iterator[None]:
    """What the system and the libraries say about a file that cannot be read, in one sentence."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{name}: cannot be read ({error.strerror or type(error).__name__})") from None
    except SafetensorError as error:
        raise CheckpointError(f"{name}: not a safetensors file, or a damaged one ({shown(str(error))})") from None
    except (EOFError, zlib.error):
        raise CheckpointError(f"{name}: damaged, or changed since it was opened") from None


# Which file, and of what kind.


def _in_folder(folder: Path, name: str) -> Path:
    for usual in WEIGHT_FILE_NAMES:
        if (folder / usual).is_file():
            return folder / usual
    if (folder / METADATA).is_file():
        return folder / METADATA
    files = sorted(file for file in folder.iterdir() if file.suffix.lower() in SUFFIXES and file.is_file())
    safe = {file.stem for file in files if file.suffix.lower() == ".safetensors"}
    files = [file for file in files if file.suffix.lower() == ".safetensors" or file.stem not in safe]
    if len(files) == 1:
        return files[0]
    if not files:
        # A training run of transformers keeps its states in folders of their own.
        numbered = [(int(match[1]), sub) for sub in folder.iterdir() if (match := CHECKPOINT.fullmatch(sub.name))]
        for _, sub in sorted(numbered, reverse=True):
            if any((sub / usual).is_file() for usual in WEIGHT_FILE_NAMES):
                return _in_folder(sub, name)
        if any(file.suffix == SHARD for file in folder.iterdir()):
            refuse(name, f"files {SHARD} without the {METADATA} that is written behind them", "both, of a whole save")
        refuse(name, "no weights in this folder", f"{WEIGHT_FILE_NAMES[0]} or one file {', '.join(SUFFIXES)}")
    found = listed(file.name for file in files)
    refuse(name, f"{len(files)} weight files in this folder, {found}", "one, or its own path")


def _start(file: Path, name: str) -> bytes:
    """The first bytes of what is an ordinary file."""
    if not file.is_file():
        refuse(name, "neither a file nor a folder", EXPECTED)
    with open(file, "rb") as stream:
        return stream.read(512)


def _is_safetensors(file: Path, start: bytes) -> bool:
    length = int.from_bytes(start[:8], "little")
    return start[8:9] == b"{" and (length <= file.stat().st_size or start.lstrip()[:1] != b"{")


def _is_json(file: Path, start: bytes) -> bool:
    return start.lstrip()[:1] == b"{" and not _is_safetensors(file, start)


def _open_file(file: Path, start: bytes) -> Content:
    name = plain(file.name)
    with _sentences(name):
        return replace(_open_kind(file, start, name), bytes=file.stat().st_size)


def _open_kind(file: Path, start: bytes, name: str) -> Content:
    if file.suffix == SHARD:
        refuse(name, "one file of a distributed checkpoint", f"the path of its folder, with {METADATA}")
    if start.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return open_zip(file, name)
    if _is_safetensors(file, start):
        return _open_safetensors(file, name)
    if start.startswith((b"\x80", b"L%dL" % MAGIC)):
        return open_legacy(file, name)
    beginning = start.lstrip().lower()
    if not start:
        found = "an empty file"
    elif start.startswith(b"version https://git-lfs"):
        found = "a git-lfs pointer, not the weights (`git lfs pull` fetches them)"
    elif beginning.startswith((b"<!doctype", b"<html", b"<?xml")):
        found = "a web page, not the weights"
    elif start.startswith(b"\x93NUMPY"):
        found = "a single NumPy array"
    else:
        text = start[:16].decode("ascii", "replace")
        found = (
            f"it begins with {text!r}"
            if text.isprintable() and "\ufffd" not in text
            else f"it begins with the bytes {start[:8].hex(' ')}"
        )
    refuse(name, found, EXPECTED)


def _json(content: bytes, name: str) -> Any:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            refuse(name, "the same key twice in its JSON", "every key once")
        return found

    try:
        return json.loads(content, object_pairs_hook=once)
    except (ValueError, RecursionError):
        refuse(name, "its JSON cannot be read", "JSON as it was written")


# safetensors, and the index of a sharded checkpoint.


def _open_safetensors(file: Path, name: str) -> Content:
    with open(file, "rb") as stream:
        length = int.from_bytes(stream.read(NUMBER_BYTES), "little")
        if length > MAX_HEADER:
            refuse(name, f"a header of {length:,} bytes", f"at most {MAX_HEADER:,}")
        header = stream.read(length)
    with safe_open(file, framework="pt") as opened:
        keys = list(opened.keys())
        if len(keys) > MAX_TENSORS:
            refuse(name, f"{len(keys):,} tensors", f"at most {MAX_TENSORS:,}")
        slices = {key: opened.get_slice(key) for key in keys}
        kinds = {key: (tuple(piece.get_shape()), piece.get_dtype()) for key, piece in slices.items()}
        metadata = opened.metadata() or {}
    for key, (shape, _) in kinds.items():
        if len(shape) > MAX_DIMENSIONS:
            refuse(name, f"{shown(key)} of {len(shape):,} dimensions", f"at most {MAX_DIMENSIONS}")
    # The library takes the last of two equal keys.
    places = _json(header, name)
    parts = {}
    for key, (shape, stored) in kinds.items():
        info = TensorInfo(shape, SAFETENSORS.get(stored, stored.lower()))
        start, end = places[key]["data_offsets"]
        load = partial(_load_safetensors, file, NUMBER_BYTES + length + start, end - start, info)
        parts[key] = Part(info, load if info.dtype in READABLE else None)
    return Content("safetensors", {"": parts}, metadata=metadata)


def _load_safetensors(file: Path, start: int, size: int, info: TensorInfo) -> torch.Tensor:
    # Not by the library, which would read the whole header for every tensor.
    dtype = DTYPES[info.dtype]
    if math.prod(info.shape) * dtype.itemsize != size:
        raise EOFError
    content = read_bytes(file, start, size)
    return torch.frombuffer(content, dtype=dtype).reshape(info.shape) if size else torch.empty(info.shape, dtype=dtype)


def _open_index(file: Path) -> Content:
    name = plain(file.name)
    if file.stat().st_size > MAX_HEADER:
        refuse(name, f"JSON of {file.stat().st_size:,} bytes", f"at most {MAX_HEADER:,}")
    index = _json(file.read_bytes(), name)
    places = index.get("weight_map")
    if not isinstance(places, dict) or not places or not all(isinstance(shard, str) for shard in places.values()):
        refuse(name, "JSON without a weight_map of file names", f"{EXPECTED}, or the index of a sharded checkpoint")
    keys: dict[str, set[str]] = {}
    for key, shard in places.items():
        keys.setdefault(shard, set()).add(key)
    if len(places) > MAX_TENSORS or len(keys) > MAX_SHARDS:
        refuse(name, f"{len(places):,} tensors in {len(keys):,} files", f"at most {MAX_TENSORS:,} in {MAX_SHARDS}")
    parts: dict[str, Part] = {}
    beside: dict[str, None] = {}
    metadata: dict[str, str] = {}
    kinds, size = set(), 0
    for shard, expected in keys.items():
        if shard in ("", ".", "..") or any(sign in shard for sign in "/\\:") or not shard.isprintable():
            refuse(name, f"it names {shown(shard)}", "files beside it")
        if not file.with_name(shard).is_file():
            refuse(name, f"it names {shown(shard)}, which is not there", "every file of the checkpoint beside it")
        content = _open_file(file.with_name(shard), _start(file.with_name(shard), plain(shard)))
        found = content.groups.get("", {})
        if content.kind not in ("safetensors", "torch") or content.groups.keys() - {""}:
            refuse(plain(shard), f"{content.kind} with groups {listed(content.groups)}", "a state dict at its top")
        for what, wrong in (("lacks", expected - found.keys()), ("has, beyond it,", found.keys() - expected)):
            if wrong:
                refuse(plain(shard), f"it {what} {listed(sorted(wrong))}", f"the tensors that {name} names")
        parts |= found
        beside |= dict.fromkeys(content.beside)
        metadata |= content.metadata
        kinds.add(content.kind)
        size += content.bytes
    if len(kinds) > 1:
        refuse(name, f"files of {' and '.join(sorted(kinds))}", "one kind")
    return Content(f"sharded {kinds.pop()}", {"": parts}, tuple(beside), metadata, size)
