"""What was probably meant by a checkpoint that is not there."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from vitviz.errors.messages import describe, nearest

HUB = "hf:"
SUFFIXES = (".safetensors", ".pth", ".pt", ".bin", ".npz")
# A repository as other packages and browsers write it, or by its name alone.
HUB_ADDRESS = re.compile(
    r"(?:hf[-_]hub:|huggingface:|hf:|hf://|https?://(?:www\.)?(?:huggingface\.co|hf\.co)/)?([\w-][\w.-]*/[\w.-]+?)/?",
    re.ASCII | re.IGNORECASE,
)


def no_checkpoint(source: object, names: Iterable[str], bundled: str) -> str:
    """The sentence about a source that is neither a checkpoint's name nor a path.

    Args:
        source: of any type.
        names: of the checkpoints that have one.
        bundled: the name of the one that is always there.
    """
    meant, found = "", str(source) if isinstance(source, os.PathLike) else source
    if isinstance(found, str):
        near, repository = nearest(found, names), HUB_ADDRESS.fullmatch(found)
        meant = "" if near is None else f"did you mean {near!r}? "
        if repository is not None and Path(found).suffix not in SUFFIXES:
            meant += f"of the hub, write {HUB + repository[1]!r}; "
    return (
        f"{describe(found)}: neither a checkpoint's name nor a file or folder; {meant}"
        f"`vitviz models` lists the names, {bundled!r} is bundled"
    )
