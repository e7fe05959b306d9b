"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def atomic_write(path: Path, *, shared: bool = False, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Write a hidden file beside its place, and move it there when the block ends; an exception leaves the old file.

    What a killed writer leaves is hidden, so that whoever reads all files of a folder does not stumble over it.

    Args:
        path: of the file. Its folder must exist.
        shared: whether several processes or threads may write the same path at once. Each then writes a partial file of
            its own; otherwise the next writer overwrites what a killed one left.
        mode: permissions of the file, before the umask.

    Raises:
        OSError: the file cannot be written.
    """
    partial = path.with_name(f".{secrets.token_hex(8) if shared else path.name}.partial")
    stream = open(partial, "wb", opener=lambda name, flags: os.open(name, flags, mode))  # noqa: SIM115
    try:
        with stream:
            yield stream
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
