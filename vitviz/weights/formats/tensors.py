"""What every format of weights is read as: tensors that are listed first and loaded one by one."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NoReturn

import torch
from safetensors import SafetensorError

from vitviz.errors.kinds import CheckpointError
from vitviz.errors.messages import listing, plain, quote
from vitviz.weights.formats.class_names import ClassNames

EXPECTED = "safetensors, a file of torch.save or npz"
FLOATS = ("float32", "float16", "bfloat16", "float64")
READABLE = (*FLOATS, "bool", "uint8", "int8", "int16", "int32", "int64")
# Also of the arrays in an archive.
ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, ValueError, NotImplementedError)


@dataclass(frozen=True)
class LazyTensor:
    """A tensor in a file.

    Args:
        shape: of the tensor.
        dtype: its name without "torch.".
        load: reads it; None if it is no dense tensor.
        special: what it is instead.
    """

    shape: tuple[int, ...]
    dtype: str
    load: Callable[[], torch.Tensor] | None = field(default=None, compare=False, repr=False)
    special: str = ""


@dataclass(frozen=True, eq=False)
class WeightFile:
    """The tensors in a checkpoint file, read one by one.

    Args:
        name: of the file or folder in messages.
        kind: "safetensors", "sharded safetensors", "torch", "sharded torch", "npz" or "memory".
        groups: the dicts of tensors by their path: "" at the top, "model", "state_dict.teacher", ….
        path: of the file, or of the index.
        file_bytes: of the file, or of all files of a sharded checkpoint.
        beside: the paths of all other entries, such as "optimizer", "epoch" and "args".
        metadata: the texts in the header of a safetensors file.
        skipped: names of classes whose objects in the file were skipped.
        class_names: the names of classes that the file states, by the path of their entry.
    """

    name: str
    kind: str
    groups: Mapping[str, Mapping[str, LazyTensor]]
    path: Path
    file_bytes: int
    beside: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    skipped: tuple[str, ...] = ()
    class_names: Mapping[str, ClassNames] = field(default_factory=dict)

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
        names = {(group, key): f"{group}.{key}".lstrip(".") for group, keys in self.groups.items() for key in keys}
        excluded: dict[tuple[str, str], None] = {}
        for pattern in patterns:
            matching = [
                place for place, name in names.items() if any(fnmatchcase(n, pattern) for n in (place[1], name))
            ]
            if not matching:
                similar = get_close_matches(pattern, names.values(), 3) or list(names.values())
                problem = f"no key like {quote(pattern)}, which is to be left out"
                refuse(self.name, problem, f"one of {listing(similar)}")
            excluded |= dict.fromkeys(matching)
        if len(excluded) == len(names):
            refuse(self.name, f"every key left out by {listing(patterns)}", "patterns that leave a network")
        groups = {
            group: {key: tensor for key, tensor in tensors.items() if (group, key) not in excluded}
            for group, tensors in self.groups.items()
        }
        return replace(self, groups=groups), [names[place] for place in excluded]

    def read(self, group: str, key: str) -> torch.Tensor:
        """Read one tensor from the file.

        Returns:
            A contiguous float32 tensor of the shape in ``groups``, in memory of its own, with finite values.

        Raises:
            CheckpointError: it is no dense tensor of plain numbers (for example sparse, quantised or complex), it has
                values that are not finite, or the file changed or cannot be read.
        """
        lazy = self.groups[group][key]
        if lazy.load is None or lazy.dtype not in READABLE:
            kind = lazy.special or plain(lazy.dtype)
            refuse(self.name, f"{quote(key)} is {kind}", f"a dense tensor of {', '.join(FLOATS)} or integers")
        with read_errors(self.name):
            tensor = lazy.load().to(torch.float32, copy=True, memory_format=torch.contiguous_format)
        if not tensor.isfinite().all():
            refuse(self.name, f"values that are not finite in {quote(key)}", "finite ones")
        return tensor


def tensors_in_memory(name: str, tensors: Mapping[str, torch.Tensor]) -> WeightFile:
    """A :class:`WeightFile` of tensors in memory.

    Args:
        name: of the file in messages.
        tensors: by key; their values are copied when they are read.
    """
    lazy = {key: lazy_tensor(tensor) for key, tensor in tensors.items()}
    return WeightFile(name, "memory", {"": lazy}, Path(name), sum(tensor.nbytes for tensor in tensors.values()))


def lazy_tensor(tensor: torch.Tensor) -> LazyTensor:
    """A tensor that torch holds, in memory or mapped from a file."""
    special = "sparse" if tensor.layout != torch.strided else "quantised" if tensor.is_quantized else ""
    special = special or "meta" * tensor.is_meta
    load = None if special else tensor.detach().cpu
    return LazyTensor(tuple(tensor.shape), str(tensor.dtype)[6:], load, special)


@contextmanager
def read_errors(name: str) -> Iterator[None]:
    """Turn errors of the system and of libraries about a file into a :class:`CheckpointError`."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{name}: cannot be read ({error.strerror or type(error).__name__})") from None
    except SafetensorError as error:
        raise CheckpointError(f"{name}: not a safetensors file, or a damaged one ({quote(str(error))})") from None
    except ZIP_ERRORS:
        raise CheckpointError(f"{name}: damaged, or changed since it was opened") from None


def refuse(name: str, problem: str, expected: str = "a checkpoint as it was written") -> NoReturn:
    """Raise the error about a file."""
    raise CheckpointError(f"{name}: {problem}; expected {expected}")
