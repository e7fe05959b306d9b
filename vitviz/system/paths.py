"""Paths as users write them, and what to say where nothing is."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from vitviz.errors.kinds import ConfigError
from vitviz.errors.messages import describe, did_you_mean, legible, quote

# Files of a folder that are compared with the name of one that is missing.
MAX_COMPARED = 10_000
# In the folder of a batch's results: its request, whose name has a mark in front so that readers of Parquet pass over
# it and take the folder for one table, and the rows.
REQUEST_FILE, PARTS_FOLDER = "_run.json", "parts"
# How similar the name of another file must be to be suggested, in [0, 1].
SIMILARITY = 0.8


def user_path(path: str | os.PathLike[str]) -> Path:
    """A path, with ``~`` for the home folder.

    Raises:
        ConfigError: it is no path.
    """
    if not isinstance(path, str | os.PathLike):
        raise ConfigError(f"{describe(path)} found; expected the path of a file or folder")
    return Path(os.path.expanduser(path))


def files_in(folder: Path, above: frozenset[str] | None = None) -> Iterator[Path]:
    """Everything below a folder that is no folder, through links to folders, and the folders that are not searched.

    Args:
        folder: its path.
        above: the real paths of the folders that lead to it. A link to one of them would never end, so it is not
            searched, nor is a folder that cannot be read, nor one with the results of a batch.
    """
    real = os.path.realpath(folder)
    above = frozenset(map(str, Path(real).parents)) if above is None else above
    try:
        paths = None if real in above else list(folder.iterdir())
    except OSError:
        paths = None
    if paths is None or {REQUEST_FILE, PARTS_FOLDER} <= {each.name for each in paths}:
        yield folder
        return
    for path in paths:
        yield from files_in(path, above | {real}) if os.path.isdir(path) else [path]


def as_on_disk(path: Path) -> Path:
    """The path of a file, also where the disk composes the letters of a name in it from other characters."""
    if os.path.exists(path) or path.parent == path:
        return path
    names = [path.name, *(unicodedata.normalize(form, path.name) for form in ("NFC", "NFD"))]
    return next((each for each in map(as_on_disk(path.parent).joinpath, names) if os.path.exists(each)), path)


def missing(path: str | os.PathLike[str], expected: str = "", kind: str = "file") -> str:
    """What to say of a path that does not exist: ``no such file in /home/me; did you mean 'Cat.JPG'?``.

    Args:
        path: of a file or folder that does not exist, or of a file where a folder should be.
        expected: the end of the sentence where no name is similar.
        kind: what should be there.
    """
    part, what = Path(os.path.abspath(user_path(path))), f"no such {kind}"
    while not os.path.exists(part.parent):
        part, what = part.parent, f"no folder {quote(part.parent.name)}"
    # A link to nowhere is there itself.
    names = sorted({each.name for each in islice(part.parent.glob("*"), MAX_COMPARED)} - {part.name})
    found = "a file, " * part.is_file() + (
        what if os.access(part.parent, os.X_OK) else f"{part.name!r} cannot be reached"
    )
    return f"{found} in {legible(str(part.parent))}" + (did_you_mean(part.name, names, SIMILARITY) or expected)
