"""List the tensors of any checkpoint file, and read them one by one. Nothing in a file is ever executed."""

from __future__ import annotations

import json
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import torch
from safetensors import SafetensorError, safe_open

from vitviz.errors.kinds import CheckpointError
from vitviz.errors.messages import listing, plain, quote
from vitviz.weights.formats.arrays import open_npz
from vitviz.weights.formats.foreign import START_BYTES, foreign_file, foreign_format, foreign_zip
from vitviz.weights.formats.names import SUFFIXES, WEIGHT_FILE_NAMES, is_weight_file
from vitviz.weights.formats.paths import existing_path
from vitviz.weights.formats.tensors import (
    EXPECTED,
    FLOATS,
    READABLE,
    FileContent,
    LazyTensor,
    TensorInfo,
    refuse,
)
from vitviz.weights.formats.torch_files import open_torch

__all__ = ["TensorInfo", "WeightFile", "open_weights", "tensors_in_memory"]

MAX_HEADER_BYTES, MAX_SHARDS = 8 * 2**20, 1000
# A folder of torch.distributed.checkpoint, and of an adapter of peft.
DISTRIBUTED, ADAPTER = (".metadata", ".distcp"), "adapter_model."
# The first number of the legacy format of torch.save, in protocols 0 and 1.
LEGACY_START = b"L119547037146038801333356L"
# Also of the arrays in an archive.
ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, ValueError, NotImplementedError)
CHECKPOINT_FOLDER = re.compile(r"checkpoint-(\d{1,12})")

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
        kind: "safetensors", "sharded safetensors", "torch", "sharded torch", "npz" or "memory".
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
            tensor = lazy.load().to(torch.float32, copy=True, memory_format=torch.contiguous_format)
        if not tensor.isfinite().all():
            refuse(self.name, f"values that are not finite in {quote(key)}", "finite ones")
        return tensor


def open_weights(path: str | os.PathLike[str]) -> WeightFile:
    """List the tensors in a checkpoint without reading them. Nothing in the file is ever executed.

    Args:
        path: a safetensors file, a file of ``torch.save`` in its present or its legacy format, an npz file or the index
            of a sharded checkpoint, each recognised by its content; or a folder with one of these.

    Raises:
        CheckpointError: there is no such file, it is none of these, it is damaged, or it has no floating-point tensors
            by name.
    """
    file = existing_path(path, EXPECTED)
    name = plain(os.path.basename(os.path.abspath(path)) or "/")
    with _read_errors(name):
        if file.is_dir():
            file = _find_weights(file, name)
        start = _read_start(file, name)
        content = _open_index(file) if _is_json(file, start) else _open_file(file, start)
    groups = {group: {key: lazy.info for key, lazy in tensors.items()} for group, tensors in content.groups.items()}
    if not any(info.dtype in FLOATS for infos in groups.values() for info in infos.values()):
        names = listing([*content.beside, *(key for infos in groups.values() for key in infos)]) or "nothing"
        refuse(name, f"no floating-point tensors by name, only {names}", "a state dict")
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
    lazy_tensors = {key: LazyTensor(info, tensors[key].detach().cpu) for key, info in infos.items()}
    nbytes = sum(tensor.nbytes for tensor in tensors.values())
    groups = MappingProxyType({"": MappingProxyType(infos)})
    return WeightFile(name, "memory", groups, (), MappingProxyType({}), Path(name), nbytes, {"": lazy_tensors})


@contextmanager
def _read_errors(name: str) -> Iterator[None]:
    """Turn errors of the system and of libraries about a file into a :class:`CheckpointError`."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{name}: cannot be read ({error.strerror or type(error).__name__})") from None
    except SafetensorError as error:
        raise CheckpointError(f"{name}: not a safetensors file, or a damaged one ({quote(str(error))})") from None
    except ZIP_ERRORS:
        raise CheckpointError(f"{name}: damaged, or changed since it was opened") from None


# Which file, and of what kind.


def _find_weights(folder: Path, name: str) -> Path:
    """The only file of weights in a folder, or its index."""
    for file_name in WEIGHT_FILE_NAMES:
        if (folder / file_name).is_file():
            return folder / file_name
    if (folder / DISTRIBUTED[0]).is_file():
        _refuse_distributed(name)
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


def _refuse_distributed(name: str) -> NoReturn:
    plain_file = f"torch.distributed.checkpoint.format_utils.dcp_to_torch_save({quote(name)}, 'weights.pth')"
    refuse(name, "a folder of torch.distributed.checkpoint", f"the plain file that {plain_file} writes")


def _open_file(file: Path, start: bytes) -> FileContent:
    name = plain(file.name)
    with _read_errors(name):
        return replace(_open_by_content(file, start, name), file_bytes=file.stat().st_size)


def _open_by_content(file: Path, start: bytes, name: str) -> FileContent:
    if file.suffix == DISTRIBUTED[1]:
        _refuse_distributed(plain(file.parent.name))
    if file.name.startswith(ADAPTER):
        folder = quote(file.parent.name)
        merged = f"peft.PeftModel.from_pretrained(base, {folder}).merge_and_unload().save_pretrained('merged')"
        refuse(name, "a LoRA adapter, not a whole network", f"the folder that {merged} writes, with its base model")
    if start.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return _open_zip(file, name)
    if _is_safetensors(file, start):
        return _open_safetensors(file, name)
    if start.startswith((b"\x80", LEGACY_START)):
        return open_torch(file, name, is_zip=False)
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
    # It stays open with its tensors: opening it reads the whole header.
    tensor_file: Any = safe_open(file, framework="pt")
    slices = {key: tensor_file.get_slice(key) for key in list(tensor_file.keys())}
    tensors = {}
    for key, tensor in slices.items():
        dtype = tensor.get_dtype()
        info = TensorInfo(tuple(tensor.get_shape()), SAFETENSORS_DTYPES.get(dtype, dtype.lower()))
        tensors[key] = LazyTensor(info, partial(tensor_file.get_tensor, key) if info.dtype in READABLE else None)
    return FileContent("safetensors", {"": tensors}, metadata=tensor_file.metadata() or {})


def _open_zip(file: Path, name: str) -> FileContent:
    with zipfile.ZipFile(file) as archive:
        members = {member.filename: member for member in archive.infolist()}
        orders = [archive.read(member) for member in members if member.rpartition("/")[2] == "byteorder"]
    if any(member.endswith("constants.pkl") or "/code/" in f"/{member}" for member in members):
        alone = f"torch.save(torch.jit.load({quote(name)}).state_dict(), 'weights.pth')"
        refuse(name, "a program (TorchScript), not only weights", f"the safetensors version of this model, or {alone}")
    if any(member.rpartition("/")[2] == "data.pkl" for member in members):
        # torch would map compressed members as they are.
        if any(member.compress_type != zipfile.ZIP_STORED for member in members.values()):
            refuse(name, "its members are compressed", "members as torch.save stores them")
        if orders and orders != [b"little"]:
            refuse(name, "numbers of a big-endian machine", "little-endian ones")
        return open_torch(file, name, is_zip=True)
    if members and all(member.endswith(".npy") for member in members):
        return open_npz(file, name)
    refuse(name, foreign_zip(members) or f"a zip archive of {listing(members) or 'nothing'}", EXPECTED)


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
    if len(keys) > MAX_SHARDS:
        refuse(name, f"{len(keys):,} files", f"at most {MAX_SHARDS:,}")
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
