"""Checks of paths, which callers may pass with any type and content."""

from __future__ import annotations

import os
from pathlib import Path

from vitviz.errors.kinds import CheckpointError
from vitviz.errors.messages import describe, legible
from vitviz.system.paths import missing, user_path


def path_exists(path: object) -> bool:
    """Whether a file or folder exists; False for impossible names."""
    return isinstance(path, str | os.PathLike) and bool(os.fspath(path)) and os.path.exists(user_path(path))


def existing_path(path: object, expected: str) -> Path:
    """The path of a file or folder.

    Args:
        path: of any type.
        expected: what the path should lead to, for the message.

    Raises:
        CheckpointError: there is no such file or folder, or it is no path.
    """
    if not isinstance(path, str | os.PathLike):
        raise CheckpointError(f"{describe(path)}: expected the path of {expected}")
    if not path_exists(path):
        raise CheckpointError(f"{path_name(path)}: {missing(path, f'; expected {expected}', 'file or folder')}")
    return user_path(path)


def path_name(path: str | os.PathLike[str]) -> str:
    """The last part of a path, as messages show it."""
    return legible(os.path.basename(os.path.normpath(path)) if os.fspath(path) else "''")
