"""Write files atomically."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from vitviz.system.paths import user_path


@contextmanager
def atomic_write(path: str | os.PathLike[str], *, shared: bool = False, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Write a hidden partial file, which replaces ``path`` when the block ends; after an exception the old file stays.

    A killed writer leaves the partial file. It is hidden, so that code which reads all files of a folder skips it.

    Args:
        path: of the file. Its folder must exist.
        shared: whether several processes or threads may write the path at once. If so, each has its own partial file;
            otherwise the next writer overwrites the partial file of a killed one.
        mode: permissions of the file, before the umask.

    Raises:
        OSError: the file cannot be written.
    """
    path = user_path(path)
    partial = path.with_name(f".{secrets.token_hex(8) if shared else path.name}.partial")
    stream = open(partial, "wb", opener=lambda name, flags: os.open(name, flags, mode))  # noqa: SIM115
    try:
        with stream:
            yield stream
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
