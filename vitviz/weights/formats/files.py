"""List the tensors of any checkpoint file, and read them one by one. Nothing in a file is ever executed."""

from __future__ import annotations

import json
import os
import re
import zipfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from safetensors import safe_open

from vitviz.errors.messages import listing, plain, quote
from vitviz.weights.formats.arrays import open_npz
from vitviz.weights.formats.class_names import ClassNames, names_in_texts
from vitviz.weights.formats.foreign import START_BYTES, UNPACK, foreign_format
from vitviz.weights.formats.names import EXPECTED_NAMES, WEIGHT_FILE_NAMES, is_weight_file, weight_files
from vitviz.weights.formats.paths import existing_path
from vitviz.weights.formats.tensors import (
    EXPECTED,
    FLOATS,
    READABLE,
    LazyTensor,
    WeightFile,
    read_errors,
    refuse,
)
from vitviz.weights.formats.torch_files import open_torch

MAX_HEADER_BYTES, MAX_SHARDS = 8 * 2**20, 1000
# A folder of torch.distributed.checkpoint, and of an adapter of peft.
DISTRIBUTED, ADAPTER = (".metadata", ".distcp"), "adapter_model."
# The first number of the legacy format of torch.save, in protocols 0 and 1.
LEGACY_START = b"L119547037146038801333356L"
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
    with read_errors(name):
        if file.is_dir():
            file = _find_weights(file, name)
        opened = replace(_open(file, name), name=name)
    if not any(tensor.dtype in FLOATS for tensors in opened.groups.values() for tensor in tensors.values()):
        names = listing([*opened.beside, *(key for tensors in opened.groups.values() for key in tensors)]) or "nothing"
        refuse(name, f"no floating-point tensors by name, only {names}", "a state dict")
    return opened


# Which file, and of what kind.


def _find_weights(folder: Path, name: str) -> Path:
    """The only file of weights in a folder, or its index."""
    if (folder / DISTRIBUTED[0]).is_file():
        _refuse_distributed(name)
    files = weight_files([file.name for file in folder.iterdir() if file.is_file()])
    if len(files) == 1:
        return folder / files[0]
    if files:
        refuse(name, f"{len(files)} weight files in this folder, {listing(files)}", "one, or its own path")
    # A training run of transformers writes each checkpoint to a folder of its own; the last one counts.
    matches = [(CHECKPOINT_FOLDER.fullmatch(sub.name), sub) for sub in folder.iterdir()]
    for _, sub in sorted(((int(match[1]), sub) for match, sub in matches if match), reverse=True):
        if any((sub / file_name).is_file() for file_name in WEIGHT_FILE_NAMES):
            return _find_weights(sub, name)
    foreign = ((file, foreign_format(file.name, b"")) for file in sorted(folder.iterdir()))
    found = next((f", only {quote(file.name)} ({kind})" for file, kind in foreign if kind), "")
    refuse(name, f"no weights in this folder{found}", EXPECTED_NAMES)


def _refuse_distributed(name: str) -> NoReturn:
    plain_file = f"torch.distributed.checkpoint.format_utils.dcp_to_torch_save({quote(name)}, 'weights.pth')"
    refuse(name, "a folder of torch.distributed.checkpoint", f"the plain file that {plain_file} writes")


def _open(file: Path, name: str, index: bool = True) -> WeightFile:
    """The tensors of a file by its content, or of the files that an index names, where it may be one."""
    if not file.is_file():
        refuse(name, "neither a file nor a folder", EXPECTED)
    with open(file, "rb") as stream:
        start = stream.read(START_BYTES)
    name, size = plain(file.name), file.stat().st_size
    is_json = start.lstrip()[:1] == b"{"
    is_safetensors = start[8:9] == b"{" and (int.from_bytes(start[:8], "little") <= size or not is_json)
    with read_errors(name):
        if file.suffix == DISTRIBUTED[1]:
            _refuse_distributed(plain(file.parent.name))
        if file.name.startswith(ADAPTER):
            folder = quote(file.parent.name)
            merged = f"peft.PeftModel.from_pretrained(base, {folder}).merge_and_unload().save_pretrained('merged')"
            refuse(name, "a LoRA adapter, not a whole network", f"the folder that {merged} writes, with its base model")
        if is_safetensors:
            return _open_safetensors(file, name)
        if is_json and index:
            return _open_index(file, name)
        if start.startswith((b"PK\x03\x04", b"PK\x05\x06")):
            return _open_zip(file, name)
        if start.startswith((b"\x80", LEGACY_START)):
            return open_torch(file, name, is_zip=False)
        text = start[:16].decode("ascii", "replace")
        is_text = text.isprintable() and "\ufffd" not in text
        beginning = f"it begins with {text!r}" if is_text else f"it begins with the bytes {start[:8].hex(' ')}"
        refuse(name, (foreign_format(name, start) or beginning) if start else "an empty file", EXPECTED)


# safetensors, archives, and the index of a sharded checkpoint.


def _open_safetensors(file: Path, name: str) -> WeightFile:
    # It stays open with its tensors: opening it reads the whole header.
    tensor_file: Any = safe_open(file, framework="pt")
    tensors = {}
    for key in list(tensor_file.keys()):
        part = tensor_file.get_slice(key)
        dtype = SAFETENSORS_DTYPES.get(part.get_dtype(), part.get_dtype().lower())
        load = partial(tensor_file.get_tensor, key) if dtype in READABLE else None
        tensors[key] = LazyTensor(tuple(part.get_shape()), dtype, load)
    metadata = tensor_file.metadata() or {}
    names, size = names_in_texts(metadata), file.stat().st_size
    return WeightFile(name, "safetensors", {"": tensors}, file, size, metadata=metadata, class_names=names)


def _open_zip(file: Path, name: str) -> WeightFile:
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
    if any(member.rpartition("/")[2] == "archive_format" for member in members):
        refuse(name, "a program (torch.export), not only weights", "a file of the original module's state_dict()")
    kind = f"an archive: {UNPACK}" if any(map(is_weight_file, members)) else foreign_format(name, b"")
    refuse(name, kind or f"a zip archive of {listing(members) or 'nothing'}", EXPECTED)


def read_index(file: Path, name: str) -> dict[str, set[str]]:
    """The keys in each file that the index of a sharded checkpoint names. Each is the name of a file beside it.

    Raises:
        CheckpointError: it is no such index, or it names something else.
    """
    size = file.stat().st_size
    if size > MAX_HEADER_BYTES:
        refuse(name, f"JSON of {size:,} bytes", f"at most {MAX_HEADER_BYTES:,}")
    try:
        pairs = json.loads(file.read_bytes(), object_pairs_hook=_entries)
        places = pairs.get("weight_map")
    except (ValueError, RecursionError, AttributeError):
        refuse(name, "its JSON cannot be read", "JSON as it was written, with every key once")
    if not isinstance(places, dict) or not places or not all(isinstance(shard, str) for shard in places.values()):
        refuse(name, "JSON without a weight_map of file names", f"{EXPECTED}, or the index of a sharded checkpoint")
    keys: dict[str, set[str]] = {}
    for key, shard in places.items():
        keys.setdefault(shard, set()).add(key)
    if len(keys) > MAX_SHARDS:
        refuse(name, f"{len(keys):,} files", f"at most {MAX_SHARDS:,}")
    for shard in keys:
        if shard in ("", ".", "..") or any(sign in shard for sign in "/\\:") or not shard.isprintable():
            refuse(name, f"it names {quote(shard)}", "files beside it")
    return keys


def _entries(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        raise ValueError("the same key twice")
    return entries


def _open_index(file: Path, name: str) -> WeightFile:
    tensors: dict[str, LazyTensor] = {}
    beside: dict[str, None] = {}
    metadata: dict[str, str] = {}
    names: dict[str, ClassNames] = {}
    kinds, size = set(), 0
    for shard, expected in read_index(file, name).items():
        if not file.with_name(shard).is_file():
            refuse(name, f"it names {quote(shard)}, which is not there", "every file of the checkpoint beside it")
        opened = _open(file.with_name(shard), shard, index=False)
        shard_tensors = opened.groups.get("", {})
        if opened.kind not in ("safetensors", "torch") or opened.groups.keys() - {""}:
            refuse(plain(shard), f"{opened.kind} with groups {listing(opened.groups)}", "a state dict at its top")
        missing, unexpected = expected - shard_tensors.keys(), shard_tensors.keys() - expected
        for verb, wrong in (("lacks", missing), ("has, beyond it,", unexpected)):
            if wrong:
                refuse(plain(shard), f"it {verb} {listing(sorted(wrong))}", f"the tensors that {name} names")
        tensors |= shard_tensors
        beside |= dict.fromkeys(opened.beside)
        metadata |= opened.metadata
        names |= {
            path: found if names.get(path, found) == found else ClassNames((), "differs from shard to shard")
            for path, found in opened.class_names.items()
        }
        kinds.add(opened.kind)
        size += opened.file_bytes
    if len(kinds) > 1:
        refuse(name, f"files of {' and '.join(sorted(kinds))}", "one kind")
    return WeightFile(name, f"sharded {kinds.pop()}", {"": tensors}, file, size, tuple(beside), metadata, (), names)
