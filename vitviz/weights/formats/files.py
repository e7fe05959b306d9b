"""List the tensors of any checkpoint file. Nothing in a file is ever executed.

The readers are those of safetensors, torch and NumPy.
"""

from __future__ import annotations

import json
import os
import textwrap
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open

from vitviz.errors.kinds import CheckpointError
from vitviz.errors.messages import legible, plain, quote
from vitviz.system.paths import user_path
from vitviz.weights.formats.foreign import foreign_format
from vitviz.weights.formats.names import choose_weights
from vitviz.weights.formats.tensors import EXPECTED, WeightFile, refuse
from vitviz.weights.formats.torch_files import open_torch


def open_weights(path: str | os.PathLike[str], name: str | None = None) -> WeightFile:
    """List the tensors in a checkpoint.

    Args:
        path: a safetensors file, a file of ``torch.save`` in its present or its legacy format, an npz file, each
            recognised by its content, or the index of a sharded checkpoint; or a folder with one of these.
        name: in messages; by default that of the file or folder.

    Raises:
        CheckpointError: there is no such file, it is none of these, or it is damaged.
    """
    source, name = user_path(path), name or plain(os.path.basename(os.path.abspath(path)) or "/")
    if source.is_dir():
        names = [f"{file.name}{'/' * file.is_dir()}" for file in source.iterdir()]
        source = source / choose_weights(name, names, ", or its own path")
    return replace(_open(source), name=name)


def _open(file: Path) -> WeightFile:
    """The tensors of a file by its content, or of the files that an index names."""
    name, start = plain(file.name), b""
    try:
        with file.open("rb") as stream:
            start = stream.read(512)
        is_npz = zipfile.is_zipfile(file) and all(each.endswith(".npy") for each in zipfile.ZipFile(file).namelist())
        if kind := foreign_format(name, start):
            refuse(name, kind, EXPECTED)
        if file.suffix == ".json":
            return _open_index(file, name)
        return (_open_safetensors if start[8:9] == b"{" else _open_npz if is_npz else open_torch)(file, name)
    except CheckpointError:
        raise
    # The readers may raise anything.
    except Exception as error:
        is_saved = start[:1] in (b"P", b"\x80")
        # What is wrong is the context of torch's error, which gives advice about its reader.
        begins = f"it begins with {start[:16]!r}" if start else "it is empty"
        found = str(error.__context__ or error) if is_saved or start[8:9] == b"{" else begins
        reason = legible(textwrap.shorten(getattr(error, "strerror", None) or found or type(error).__name__, 200))
        again = f"; if you trust it, torch.save(torch.load({quote(name)}, weights_only=False), 'new.pth') renews it"
        refuse(name, f"cannot be read, or is damaged ({reason})", EXPECTED + again * is_saved)


def _open_safetensors(file: Path, name: str) -> WeightFile:
    opened: Any = safe_open(file, framework="pt")
    tensors, metadata = {key: opened.get_tensor(key) for key in opened.keys()}, opened.metadata() or {}  # noqa: SIM118
    return WeightFile(name, {"": tensors}, file, metadata=metadata)


def _open_npz(file: Path, name: str) -> WeightFile:
    with np.load(file, allow_pickle=False) as archive:
        arrays = {key: np.array(array, array.dtype.newbyteorder("="), order="C") for key, array in archive.items()}
    # JAX writes bfloat16 as two bytes.
    tensors = {
        key: torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        if array.dtype == "V2"
        else torch.from_numpy(array)
        for key, array in arrays.items()
        if array.dtype.kind in "fiub" or array.dtype == "V2"
    }
    return WeightFile(name, {"": tensors}, file, tuple(key for key in arrays if key not in tensors))


def _open_index(file: Path, name: str) -> WeightFile:
    """The tensors of the files that the index of a sharded checkpoint names."""
    places = json.loads(file.read_bytes())["weight_map"]
    shards = [_open(file.with_name(shard)) for shard in sorted(set(places.values()))]
    groups = {"": {key: tensor for shard in shards for key, tensor in shard.groups[""].items()}}
    return replace(shards[0], groups=groups, path=file)
