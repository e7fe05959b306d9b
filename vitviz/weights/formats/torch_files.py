"""Files of ``torch.save``, read by torch's ``weights_only`` reader, which runs nothing of a file.

It refuses every class that it does not know. Here each of them gets an inert stand-in, so that files with paths, dates
and other objects among their hyper-parameters open, and nothing of them is imported.
"""

from __future__ import annotations

import re
import threading
import zipfile
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from vitviz.errors.messages import listing, plain, quote
from vitviz.weights.formats.tensors import WeightFile, refuse

# The keys of an optimiser's state, whose tensors are no weights.
OPTIMISER_KEYS = {"state", "param_groups"}
# Plain values, of which nothing is lost.
PLAIN_NAMES = re.compile(r"numpy\.|argparse\.Namespace|torch\.(?!nn\.)")
# torch keeps its list of known classes for the whole process.
_LOCK = threading.Lock()


class Inert:
    """Stands for an object of a class that torch does not know."""

    def __init__(self, *arguments: object) -> None:
        """Do nothing with the arguments."""

    def __setstate__(self, state: object) -> None:
        self.entries = state if isinstance(state, dict) else {}


class InertDict:
    """Stands for one that may be a kind of dict, and becomes a plain one, since torch fills no others."""

    def __new__(cls, *arguments: object) -> Any:
        return OrderedDict()


# Names in old files, which torch cannot list; those whose state is no dict of attributes, and namespaces, in any file.
STAND_INS: dict[str, type] = {
    **dict.fromkeys(("argparse.Namespace", "functools.partial"), Inert),
    **{f"pathlib.{kind}": Inert for kind in ("Path", "PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath")},
    **{f"pathlib._local.{kind}": Inert for kind in ("Path", "PosixPath", "WindowsPath")},
    **{f"datetime.{kind}": Inert for kind in ("datetime", "date", "time", "timedelta", "timezone")},
    **{f"numpy.{core}.multiarray.{name}": Inert for core in ("core", "_core") for name in ("scalar", "_reconstruct")},
    **dict.fromkeys(("numpy.dtype", "numpy.ndarray", "builtins.int", "builtins.list", "builtins.dict"), Inert),
    **dict.fromkeys(("collections.defaultdict", "easydict.EasyDict", "yacs.config.CfgNode"), InertDict),
}


def open_torch(file: Path, name: str) -> WeightFile:
    """The tensors of a file of ``torch.save``, in its present format, a zip archive, or its legacy one.

    Raises:
        CheckpointError: it is a program, or holds no dict.
    """
    archive = zipfile.ZipFile(file).infolist() if zipfile.is_zipfile(file) else []
    if any(member.filename.endswith("constants.pkl") for member in archive):
        state_dict = f"torch.save(torch.jit.load({quote(name)}).state_dict(), 'weights.pth')"
        refuse(name, "a program (TorchScript), not only weights", state_dict)
    # Compressed members cannot be mapped, and torch takes that suffix for the format.
    mmap = bool(archive) and file.suffix != ".safetensors" and not any(member.compress_type for member in archive)
    with _LOCK, file.open("rb") as stream:
        names = get_unsafe_globals_in_checkpoint(file) if archive else []
        with safe_globals([(kind, each) for each, kind in {**dict.fromkeys(names, InertDict), **STAND_INS}.items()]):
            value = torch.load(file if mmap else stream, "cpu", weights_only=True, mmap=mmap)
    skipped = tuple(sorted(plain(each) for each in names if not PLAIN_NAMES.match(each)))
    leaves = [*_leaves({"": value})]
    groups = {
        path: {key: each for place, key, each in leaves if place == path and isinstance(each, torch.Tensor)}
        for path in dict.fromkeys(path for path, *_ in leaves)
    }
    groups = {path: group for path, group in groups.items() if any(map(torch.is_floating_point, group.values()))}
    if not isinstance(value, dict) or (not groups and any(hasattr(each, "_modules") for *_, each in leaves)):
        refuse(
            name,
            f"a whole pickled model or object ({listing(skipped) or type(value).__name__})",
            "torch.save(model.state_dict(), 'weights.pth')",
        )
    beside = tuple(f"{path}.{key}".lstrip(".") for path, key, _ in leaves if key not in groups.get(path, ()))
    return WeightFile(name, groups, file, beside, {}, skipped, value)


def _leaves(entries: dict[Any, Any], path: str = "", depth: int = 4) -> Iterator[tuple[str, str, Any]]:
    """The entries of dicts in each other, with the path of their dict and their key; an optimiser is one entry."""
    # Attributes of a stand-in may have the names of methods.
    for key, value in dict.items(entries):
        is_named = isinstance(value, dict) and bool(value) and all(isinstance(each, str) for each in value)
        if is_named and depth and not set(value) >= OPTIMISER_KEYS:
            yield from _leaves(value, f"{path}.{key}".lstrip("."), depth - 1)
        else:
            yield path, key, value
