"""The output of the command: the width of its lines, and files that are written atomically."""

from __future__ import annotations

import codecs
import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from vitviz.errors.kinds import ConfigError
from vitviz.images.kinds import FILE_SUFFIXES
from vitviz.system.atomic import atomic_write

LINE_CHARS = 100
# For terminals that cannot show them; what is not here becomes a question mark.
ASCII = {
    "×": "x",
    "–": "-",
    "—": "-",
    "…": "...",
    "·": "-",
    "→": "->",
    "≤": "<=",
    "≥": ">=",
    "’": "'",
    "◄": "<",
    "►": ">",
}


def print_in_any_encoding() -> None:
    """Let what the terminal's encoding lacks be printed as ASCII."""
    codecs.register_error("ascii", _as_ascii)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="ascii")


def _as_ascii(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(ASCII.get(letter, "?") for letter in error.object[error.start : error.end]), error.end


def in_working_folder(image: str, suffix: str) -> Path:
    """The default output path: a file of the image's name in the working folder.

    The image's own folder may be read-only, or somebody else's. The name is whole if the image has no ending of a
    picture, or a picture beside it differs in its ending alone.
    """
    path = Path(image)
    endings = [each for name in FILE_SUFFIXES for each in (name, name.upper()) if each != path.suffix]
    is_alone = path.suffix.lower() in FILE_SUFFIXES and not any(map(Path.exists, map(path.with_suffix, endings)))
    return Path((path.stem if is_alone or not path.suffix else path.name) + suffix)


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
