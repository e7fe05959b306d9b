"""Checks of paths, which callers may pass with any type and content."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from vitviz.errors.kinds import CheckpointError
from vitviz.errors.messages import describe, legible


def path_exists(path: object) -> bool:
    """Whether a file or folder exists; False for impossible names.

    Raises:
        CheckpointError: the system cannot tell.
    """
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        return False
    try:
        os.stat(path)
    # NUL or a lone surrogate in the name.
    except ValueError:
        return False
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP):
            return False
        raise CheckpointError(f"{path_name(path)}: cannot be read ({error.strerror})") from None
    return True


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
        raise CheckpointError(f"{path_name(path)}: no such file or folder; expected {expected}")
    return Path(path)


def path_name(path: str | os.PathLike[str]) -> str:
    """The last part of a path, as messages show it."""
    return legible(os.path.basename(os.path.normpath(path)) if os.fspath(path) else "''")
