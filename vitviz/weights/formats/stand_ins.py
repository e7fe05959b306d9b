"""Read a file of torch.save that holds objects of other classes, such as paths and dates among hyper-parameters.

torch's ``weights_only`` reader refuses every name that it does not know. Here each of them gets an inert stand-in, so
that nothing of the file is imported or run. For the user's own files only: a stranger's file could exhaust the memory.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from vitviz.errors.kinds import CheckpointError
from vitviz.errors.messages import plain
from vitviz.weights.formats.archives import MAX_DEPTH, READABLE, FileContent, LazyTensor, TensorInfo, state_dicts
from vitviz.weights.formats.opcodes import VALUE
from vitviz.weights.formats.pickled import ALLOWED, StoredTensor

# Before, a crafted file corrupts memory (CVE-2026-24747).
SAFE_TORCH = "2.10"
# Names of classes that are dicts, whose entries torch adds to dicts of its own alone.
DICTS = re.compile(r"dict|CfgNode|Munch", re.IGNORECASE)


class StandIn:
    """Takes the place of an object and its arguments, and keeps nothing of them."""

    def __new__(cls, *arguments: object) -> Any:
        return super().__new__(cls)

    def __init__(self, *arguments: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        pass


class DictStandIn(StandIn):
    """Makes a dict, which keeps its entries."""

    def __new__(cls, *arguments: object) -> Any:
        return OrderedDict()


@dataclass(frozen=True, eq=False)
class _LoadedTensor(StoredTensor):
    """A tensor that torch has loaded."""

    tensor: torch.Tensor | None = None


def open_with_stand_ins(file: Path, name: str, refusal: CheckpointError) -> FileContent:
    """The tensors of a file of torch.save, with the names of the classes that were skipped.

    Args:
        file: a zip archive.
        name: of the file in messages.
        refusal: why the reader of strangers' files refuses it.

    Raises:
        CheckpointError: ``refusal``, if this reader cannot open it either, or finds no tensors.
    """
    if torch.__version__ < SAFE_TORCH:
        raise refusal
    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(file)
        kinds = {each: DictStandIn if DICTS.search(each) else StandIn for each in names}
        stand_ins: list[Any] = [(type("StandIn", (kind,), {}), each) for each, kind in kinds.items()]
        with torch.serialization.safe_globals(stand_ins):
            value = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    # A file that is not of torch.save's present format, or that calls what stand-ins cannot replace, raises anything.
    except Exception:
        raise refusal from None
    groups, beside = state_dicts(name, _entries(value)) if isinstance(value, dict) else ({}, ())
    if not groups:
        raise refusal
    lazy = {group: {key: _lazy(tensor) for key, tensor in tensors.items()} for group, tensors in groups.items()}
    skipped = tuple(sorted(plain(each) for each in names if each not in ALLOWED))
    return replace(FileContent("torch", lazy, beside), skipped=skipped)


def _entries(entries: dict[Any, Any], depth: int = 0) -> dict[object, object]:
    """The entries as the reader of strangers' files returns them."""
    converted: dict[object, object] = {}
    for key, value in entries.items():
        if isinstance(value, torch.Tensor):
            converted[key] = _stored(value)
        elif isinstance(value, dict) and depth < MAX_DEPTH:
            converted[key] = _entries(value, depth + 1)
        else:
            converted[key] = VALUE
    return converted


def _stored(tensor: torch.Tensor) -> _LoadedTensor:
    is_dense = tensor.layout == torch.strided and not tensor.is_quantized and not tensor.is_meta
    special = "" if is_dense else "sparse, quantised or without values"
    return _LoadedTensor(tuple(tensor.shape), str(tensor.dtype)[6:], special=special, tensor=tensor.detach())


def _lazy(tensor: StoredTensor) -> LazyTensor:
    info = TensorInfo(tensor.shape, tensor.dtype)
    if tensor.special or tensor.dtype not in READABLE:
        return LazyTensor(info, None, tensor.special)
    assert isinstance(tensor, _LoadedTensor) and tensor.tensor is not None, "every tensor here is loaded"
    # A copy, since torch maps the file.
    return LazyTensor(info, partial(torch.clone, tensor.tensor))
