"""Archives of NumPy, as JAX's checkpoints are: arrays by name, read without pickles."""

from __future__ import annotations

import zipfile
from functools import partial
from pathlib import Path
from tokenize import TokenError

import numpy as np
import torch

from vitviz.errors.messages import quote
from vitviz.weights.formats.tensors import LazyTensor, WeightFile, refuse

NPY_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def open_npz(file: Path, name: str) -> WeightFile:
    """The arrays of an archive, by their headers.

    Raises:
        CheckpointError: a member is no array, or holds Python objects.
    """
    tensors: dict[str, LazyTensor] = {}
    beside = []
    with zipfile.ZipFile(file) as archive:
        for member in archive.namelist():
            key = member.removesuffix(".npy")
            try:
                with archive.open(member) as stream:
                    version = np.lib.format.read_magic(stream)
                    shape, _, dtype = NPY_HEADERS[version](stream)
            # MemoryError: a header that is nested too deeply.
            except (ValueError, KeyError, MemoryError, SyntaxError, TokenError):
                refuse(name, f"{quote(key)} is no NumPy array, or a damaged one", "arrays as numpy.savez writes them")
            if dtype.hasobject:
                refuse(name, f"{quote(key)} holds Python objects, which are code", "arrays of numbers")
            # JAX writes bfloat16 as two bytes.
            kind = "bfloat16" if dtype == np.dtype("V2") else dtype.name if dtype.kind in "fiubc" else ""
            if kind:
                tensors[key] = LazyTensor(shape, kind, partial(_load_array, file, key))
            else:
                beside.append(key)
    return WeightFile(name, "npz", {"": tensors}, file, file.stat().st_size, tuple(beside))


def _load_array(file: Path, key: str) -> torch.Tensor:
    try:
        with np.load(file, allow_pickle=False) as arrays:
            array = arrays[key]
    # It holds fewer values than its header says, or cannot be unpacked.
    except ValueError:
        raise EOFError from None
    if array.dtype.kind == "V":
        return torch.from_numpy(np.ascontiguousarray(array).view(np.int16).reshape(array.shape)).view(torch.bfloat16)
    return torch.from_numpy(np.array(array, array.dtype.newbyteorder("="), order="C"))
