"""The output of the command: the width of its lines, and files that are written atomically."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from vitviz.errors.kinds import ConfigError
from vitviz.system.atomic import atomic_write

LINE_CHARS = 100


def check_output(output: Path, source: str) -> None:
    """Check that an output is not the source file.

    Raises:
        ConfigError: both are the same file.
    """
    if output.exists() and Path(source).exists() and output.samefile(source):
        raise ConfigError(f"{output}: the input itself; expected another file to write")


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file atomically.

    Raises:
        ConfigError: it cannot be written; an existing file stays unchanged.
    """
    try:
        with atomic_write(path) as file:
            write(file)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror})") from None
