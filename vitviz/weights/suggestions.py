"""Suggestions for the name of a checkpoint that does not exist."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from vitviz.errors.messages import describe, nearest
from vitviz.weights.formats.names import is_weight_file

HUB = "hf:"
# A repository as other packages and browsers write it, or only its name.
HUB_ADDRESS = re.compile(
    r"(?:hf[-_]hub:|huggingface:|hf:|hf://|https?://(?:www\.)?(?:huggingface\.co|hf\.co)/)?([\w-][\w.-]*/[\w.-]+?)/?",
    re.ASCII | re.IGNORECASE,
)


def no_checkpoint(source: object, names: Iterable[str], bundled: str) -> str:
    """The message for a source that is neither a checkpoint's name nor a path.

    Args:
        source: of any type.
        names: of the named checkpoints.
        bundled: the name of the bundled one.
    """
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
