"""Suggestions in messages: names of checkpoints, and patterns of keys to leave out."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from itertools import islice

from vitviz.errors.messages import describe, nearest
from vitviz.weights.formats.names import is_weight_file
from vitviz.weights.model import Model

HUB = "hf:"
# A repository as other packages and browsers write it, or only its name.
HUB_ADDRESS = re.compile(
    r"(?:hf[-_]hub:|huggingface:|hf:|hf://|https?://(?:www\.)?(?:huggingface\.co|hf\.co)/)?([\w-][\w.-]*/[\w.-]+?)/?",
    re.ASCII | re.IGNORECASE,
)
# Limits of proposed patterns: prefixes of a key that are tried, and letters of all patterns.
MAX_STARTS, MAX_PATTERN_CHARS = 4, 300


def no_checkpoint(source: object, names: Iterable[str], bundled: str) -> str:
    """The message for a source that is neither a checkpoint's name nor a path.

    Args:
        source: of any type.
        names: of the named checkpoints.
        bundled: the name of the bundled one.
    """
    if isinstance(source, Mapping):
        return (
            "a dictionary, such as a state dict: it names no architecture; expected its module, vitviz.load(module) "
            "after module.load_state_dict(…), or its file, after torch.save(…, 'model.pth')"
        )
    if isinstance(source, type):
        return f"the class {source.__name__}: expected a module made of it, with weights, in evaluation mode"
    if isinstance(source, Model):
        return f"{source!r}: loaded already; expected it as it is, such as vitviz.analyze(image, model)"
    suggestion, text = "", str(source) if isinstance(source, os.PathLike) else source
    if isinstance(text, str):
        closest, repository = nearest(text, names), HUB_ADDRESS.fullmatch(text)
        suggestion = "" if closest is None else f"did you mean {closest!r}? "
        if repository is not None and not is_weight_file(text):
            suggestion += f"of the hub, write {HUB + repository[1]!r}; "
    return (
        f"{describe(text)}: neither a checkpoint's name nor a file or folder; {suggestion}"
        f"`vitviz models` lists the names, {bundled!r} is bundled"
    )


def ignore_argument(keys: Iterable[str], needed: Collection[str]) -> str:
    """An argument of ``load`` to paste that leaves out these keys, such as ``"ignore=['decoder.*']"``.

    Without patterns for keys that would take too many of them.

    Args:
        keys: to leave out.
        needed: keys that no pattern may match.
    """
    patterns: list[str] = []
    for key in keys:
        if any(fnmatchcase(key, pattern) for pattern in patterns):
            continue
        literal = glob.escape(key)
        starts = [key[: match.end()] for match in islice(re.finditer(r"[./]", key), MAX_STARTS)]
        patterns.append(
            next(
                (f"{glob.escape(each)}*" for each in starts if not any(other.startswith(each) for other in needed)),
                _in_all_layers(literal, needed) or literal,
            )
        )
        if len(str(patterns)) > MAX_PATTERN_CHARS:
            return "ignore=[…]"
    return f"ignore={patterns}"


def _in_all_layers(literal: str, needed: Collection[str]) -> str | None:
    """A pattern that matches a key in every layer; None if it matches another key, too."""
    pattern = re.sub(r"\.[0-9]{1,6}\.", ".*.", literal, count=1)
    return None if any(fnmatchcase(other, pattern) for other in needed) else pattern
