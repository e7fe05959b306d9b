"""Files of ``torch.save``, read by torch's ``weights_only`` reader, which runs nothing of a file.

It refuses every name that it does not know. Here each of them gets an inert stand-in, so that files with paths, dates
and other objects among their hyper-parameters open, and nothing of them is imported.
"""

from __future__ import annotations

import pickle
import re
import struct
import threading
import warnings
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from vitviz.errors.messages import plain, quote
from vitviz.weights.formats.class_names import Namespace, find_class_names
from vitviz.weights.formats.tensors import EXPECTED, WeightFile, lazy_tensor, refuse

MAX_STAND_INS, MAX_DEPTH = 500, 3
# The keys of an optimiser's state, whose tensors are no weights.
OPTIMISER_KEYS = {"state", "param_groups"}
# What torch's reader says: of a name that it does not know, or blocks, of a foreign kind of dict or list, of opcodes.
BLOCKED_NAME = re.compile(r"unsupported GLOBAL (\S+) whose module \S+ is blocked")
UNKNOWN_NAME = re.compile(r"GLOBAL (\S+) was not an allowed global")
FOREIGN_CONTAINER = re.compile(r"Can only (\w+).*but got <class '.*(inert_\d+)'>")
UNKNOWN_OPCODE = "Unsupported operand"
READER_ERRORS = (
    *(pickle.UnpicklingError, EOFError, RuntimeError, ValueError, LookupError, TypeError, AttributeError, MemoryError),
    *(OverflowError, AssertionError, struct.error),
)
# Plain values, of which nothing is lost.
PLAIN_NAMES = re.compile(r"numpy\.|argparse\.Namespace|torch\.(?!nn\.)")
# Stand-ins are registered for the whole process.
_LOCK = threading.Lock()


class Inert:
    """Stands for an object of a class that torch does not know, keeps nothing of it and does nothing."""

    kind: type = object

    def __new__(cls, *arguments: object) -> Any:
        # torch fills plain dicts and lists only, so a foreign kind of them becomes a plain one.
        return object.__new__(cls) if cls.kind is object else cls.kind()

    def __init__(self, *arguments: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        pass


class InertNamespace(Inert, Namespace):
    """Stands for the arguments of a program, and keeps them."""

    def __setstate__(self, state: object) -> None:
        self.entries = state if isinstance(state, dict) else {}


def open_torch(file: Path, name: str, is_zip: bool) -> WeightFile:
    """The tensors of a file of ``torch.save``, in its present format, a zip archive, or its legacy one.

    Raises:
        CheckpointError: torch's reader refuses it, or it holds no dict.
    """
    value, names = _load(file, name, is_zip)
    skipped = tuple(sorted(plain(each) for each in names if not PLAIN_NAMES.match(each)))
    if not isinstance(value, dict):
        kind = f"a whole pickled model or object ({skipped[0]})" if skipped else "what torch saved in it is no dict"
        refuse(name, kind, "torch.save(model.state_dict(), 'weights.pth')")
    groups, beside = state_dicts(name, value)
    lazy = {group: {key: lazy_tensor(tensor) for key, tensor in tensors.items()} for group, tensors in groups.items()}
    size, class_names = file.stat().st_size, find_class_names(value)
    return WeightFile(name, "torch", lazy, file, size, beside, skipped=skipped, class_names=class_names)


def _load(file: Path, name: str, is_zip: bool) -> tuple[Any, list[str]]:
    """What a file holds, and the names that stand-ins took the place of."""
    stand_ins: dict[str, Any] = {}
    missing: list[str] = []
    problem = ""
    while len(stand_ins) <= MAX_STAND_INS:
        for each in missing:
            base = InertNamespace if each == "argparse.Namespace" else Inert
            stand_ins[each] = type(f"inert_{len(stand_ins)}", (base,), {})
        try:
            with _LOCK, warnings.catch_warnings(), safe_globals([(found, each) for each, found in stand_ins.items()]):
                # Of another protocol of pickles, which an error says where it matters.
                warnings.simplefilter("ignore")
                if is_zip and file.suffix != ".safetensors":
                    return torch.load(file, "cpu", weights_only=True, mmap=True), list(stand_ins)
                # torch would take this suffix for the format.
                with file.open("rb") as stream:
                    return torch.load(stream, "cpu", weights_only=True), list(stand_ins)
        except READER_ERRORS as error:
            if isinstance(error, MemoryError) or "memory" in str(error).lower():
                refuse(name, "it claims more memory than there is", EXPECTED)
            problem = str(error).split("WeightsUnpickler error: ")[-1].split("\n\nCheck the doc")[0].strip()
        unknown, container = UNKNOWN_NAME.search(problem), FOREIGN_CONTAINER.search(problem)
        # torch names one at a time, and those of builtins without their module; of a zip archive it can list all.
        missing = [unknown[1] if "." in unknown[1] else f"builtins.{unknown[1]}"] if unknown else []
        if missing and is_zip and not stand_ins:
            with suppress(*READER_ERRORS):
                missing = get_unsafe_globals_in_checkpoint(file)
        filled = [each for each in stand_ins.values() if container and each.__name__ == container[2]]
        if set(missing) & set(stand_ins) or not (missing or [each for each in filled if each.kind is object]):
            break
        for each in filled:
            each.kind = OrderedDict if container and "SETITEM" in container[1] else list
    if blocked := BLOCKED_NAME.search(problem):
        problem = (
            f"its pickle names {quote(blocked[1])}, by which unpickling could run any program, and torch blocks it"
        )
        refuse(name, problem, EXPECTED)
    if UNKNOWN_OPCODE in problem:
        again = f"torch.save(torch.load({quote(name)}, weights_only=False), 'new.pth')"
        refuse(name, "a pickle of another protocol than torch.save writes", f"{again}, for a file that you trust")
    refuse(name, f"torch cannot read it ({quote(problem or 'it is cut short')})", EXPECTED)


def state_dicts(name: str, entries: dict[Any, Any]) -> tuple[dict[str, dict[str, torch.Tensor]], tuple[str, ...]]:
    """The dicts of tensors in a checkpoint by their path, and the paths of all other entries.

    Raises:
        CheckpointError: two dicts of tensors have the same path.
    """
    groups: dict[str, dict[str, torch.Tensor]] = {}

    def walk(path: str, entries: dict[Any, Any], depth: int) -> list[str] | None:
        """The paths of entries that are not in a group; None if there is no group in ``entries``."""
        if entries.keys() >= OPTIMISER_KEYS or not all(isinstance(key, str) for key in entries):
            return None
        tensors = {key: value for key, value in entries.items() if isinstance(value, torch.Tensor)}
        is_group = any(tensor.is_floating_point() for tensor in tensors.values())
        if is_group and path in groups:
            refuse(name, f"two groups of tensors called {quote(path)}", "one")
        if is_group:
            groups[path] = tensors
        count = len(groups)
        beside = [] if is_group else [f"{path}.{key}".lstrip(".") for key in tensors]
        for key, value in entries.items():
            if key in tensors:
                continue
            value_path = f"{path}.{key}" if path else key
            inside = walk(value_path, value, depth + 1) if isinstance(value, dict) and depth < MAX_DEPTH else None
            beside += [value_path] if inside is None else inside
        return beside if is_group or len(groups) > count else None

    beside = walk("", entries, 0)
    return groups, tuple([str(key) for key in entries] if beside is None else beside)
