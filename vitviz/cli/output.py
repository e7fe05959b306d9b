"""What the command writes: lines of one width, and files that are there whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from vitviz.errors.kinds import ConfigError
from vitviz.weights.formats.atomic import atomic_write

LINE_CHARS = 100


def check_output(output: Path, source: str) -> None:
    """A file that is read is never written to.

    Raises:
        ConfigError: both are the same file.
    """
    if output.exists() and Path(source).exists() and output.samefile(source):
        raise ConfigError(f"{output}: what is read; expected another file to write")


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file, whole or not at all.

    Raises:
        ConfigError: it cannot be written; what was there before stays.
    """
    try:
        with atomic_write(path) as file:
            write(file)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror})") from None
