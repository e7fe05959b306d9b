"""A disk that is full."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path
from typing import Any


class FullDisk(io.FileIO):
    """A file on it takes a few bytes, then no more."""

    def __init__(self, path: Path, mode: str, opener: Any) -> None:
        super().__init__(path, mode, opener=opener)

    def write(self, content: Any) -> int:
        super().write(content[:10])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
