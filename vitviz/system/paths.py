"""Paths as users write them, and what to say where nothing is."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path

from vitviz.errors.messages import did_you_mean, legible

# Files of a folder that are compared with the name of one that is missing.
MAX_COMPARED = 10_000
# How similar the name of another file must be to be suggested, in [0, 1].
SIMILARITY = 0.8


def user_path(path: str | os.PathLike[str]) -> Path:
    """A path, with ``~`` for the home folder."""
    return Path(os.path.expanduser(path))


def missing(path: str | os.PathLike[str], expected: str = "", kind: str = "file") -> str:
    """What to say of a path that does not exist: ``no such file in /home/me; did you mean 'Cat.JPG'?``.

    Args:
        path: of a file or folder that does not exist.
        expected: the end of the sentence where no name is similar.
        kind: what should be there.
    """
    part, what = Path(os.path.abspath(user_path(path))), f"no such {kind}"
    while not part.parent.exists():
        part, what = part.parent, f"no folder {part.parent.name!r}"
    # A link to nowhere is there itself.
    names = sorted({each.name for each in islice(part.parent.glob("*"), MAX_COMPARED)} - {part.name})
    what = what if os.access(part.parent, os.X_OK) else f"{part.name!r} cannot be reached"
    return f"{what} in {legible(str(part.parent))}{did_you_mean(part.name, names, SIMILARITY) or expected}"
