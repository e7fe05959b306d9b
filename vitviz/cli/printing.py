"""The output of the command: its lines and bars, JSON, and files that are written atomically."""

from __future__ import annotations

import codecs
import io
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from vitviz.errors.kinds import ConfigError
from vitviz.errors.messages import choices
from vitviz.system.atomic import atomic_write
from vitviz.system.jsonable import jsonable

LINE_CHARS = 100
# The file that stands for the standard input or output, and other names of the latter.
STANDARD = "-"
OUTPUT_NAMES = ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")


def open_streams() -> None:
    """Let everything be printed: a question mark for what an encoding lacks, and nothing on a stream that is closed.

    The descriptor of a closed stream would be the next file's, into which libraries in C would write their warnings.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def flush_output(content: bytes = b"") -> None:
    """Write what was printed, and then a file.

    Raises:
        BrokenPipeError: whoever reads it has ended.
        ConfigError: it cannot be written, such as on a full disk.
    """
    try:
        sys.stdout.flush()
        if content:
            sys.stdout.buffer.write(content)
        sys.stdout.flush()
    except OSError as error:
        # Python would complain when it flushes the rest at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise
        raise ConfigError(f"the standard output cannot be written ({error.strerror})") from None


@dataclass
class _Streams:
    """What goes where: set for every run of the command.

    Attributes:
        quiet: whether only results and errors are printed.
        is_data: whether the standard output is data for another program, so that nothing else may stand there.
        options: option of each parameter of the running command, and what stands between the two numbers of a pair.
    """

    quiet: bool = False
    is_data: bool = False
    options: Mapping[str, tuple[str, str]] = field(default_factory=dict)


STREAMS = _Streams()
# A call of vitviz with its arguments, in which there may be further ones.
CALL = r"(vitviz\.[\w.]+\((?:[^()]|\([^()]*\))*\))"


def spelled(message: str) -> str:
    """A message of the library with its parameters spelled as options of the running command.

    ``heads=12`` is ``--heads 12``, and ``value_range = (0, 1)`` is ``--value-range 0 1``. A name of several words is a
    parameter wherever it stands. Names in quotes, paths and calls stay.
    """
    parts = re.split(CALL, message)
    return "".join(part if number % 2 else _spelled(part) for number, part in enumerate(parts))


def _spelled(message: str) -> str:
    for name, (flag, separator) in STREAMS.options.items():
        outside = rf"(?<![\w'\"(./-]){name}"
        value = r"(?: = |=)(?:\[([^\]]*)\]|\(([^()]*)\)|'([\w-]*)'|(?=\S))"
        message = re.sub(outside + value, partial(_option, flag, separator), message)
        if "_" in name:
            message = re.sub(rf"{outside}(?![\w'\"(./=-])", flag, message)
    return message


def _option(flag: str, separator: str, match: re.Match[str]) -> str:
    items, pair, word = match.groups()
    # A list is of an option that is repeated, or takes two numbers.
    between = f" {flag} " if items and separator != " " else separator
    return f"{flag} {word or between.join((items or pair or '').split(', '))}"


def print_error(text: str) -> None:
    """Print an error, as one line."""
    # Nobody may be there to read it.
    with suppress(OSError):
        print(f"vitviz: {text}".replace("\n", " "), file=sys.stderr)


def show(text: str) -> None:
    """Print a result that a person reads."""
    print(text, file=sys.stderr if STREAMS.is_data else sys.stdout)


def note(text: str) -> None:
    """Print what a person reads beside the results."""
    if not STREAMS.quiet:
        show(text)


def bar(**options: Any) -> Any:
    """A progress bar, which only a terminal shows."""
    from tqdm import tqdm

    terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    return tqdm(**options | {"disable": STREAMS.quiet or not terminal or options.get("disable", False)})


@contextmanager
def reporting(**options: Any) -> Iterator[Callable[[Any], None]]:
    """A context with a function that shows a :class:`vitviz.progress.Progress` on a bar, from the first report on."""
    # The delay hides the bar until then, and to the end if there is none.
    with bar(**options, delay=math.inf) as line:

        def report(state: Any) -> None:
            line.delay, line.total = 0, state.total or None
            line.update(state.done - line.n)

        yield report


def print_json(value: Any) -> None:
    """Print a value as one line of JSON; numbers that JSON lacks are null.

    What the stream's encoding lacks, and bytes of file names that are no text, are JSON's own escapes.
    """
    is_utf8 = codecs.lookup(sys.stdout.encoding or "utf-8").name == "utf-8"
    text = json.dumps(jsonable(value), ensure_ascii=not is_utf8, allow_nan=False)
    print(text.encode(errors="backslashreplace").decode())


def is_stream(path: Path) -> bool:
    """Whether a path is the standard output, or a device or a pipe whose name ends in no format."""
    return str(path) == STANDARD or (not path.suffix and path.exists() and not path.is_file())


def check_output(output: Path | None, source: str | os.PathLike[str] = "", *endings: str) -> None:
    """Check that an output, if there is one, is not the source file, that its folder exists, and that its name ends so.

    A name without an ending, which a pipe may have, has no wrong one.

    Raises:
        ConfigError: both are the same file, there is no such folder, or the ending is that of another format.
    """
    if output is None:
        return
    if str(output) == STANDARD:
        if sys.stdout.isatty():
            raise ConfigError("-: a terminal cannot show a file; expected a pipe or a file, such as -o - > map.png")
    elif output.exists() and Path(source).exists() and output.samefile(Path(source)):
        raise ConfigError(f"{output}: the input itself; expected another file to write")
    elif not output.parent.is_dir():
        raise ConfigError(f"{output}: cannot be written (no folder {output.parent})")
    elif endings and output.suffix.lower() not in ("", *endings):
        raise ConfigError(f"{output}: cannot be written: expected a name that ends with {choices(endings)}")


def make_folder(folder: Path) -> None:
    """Make a folder, which may exist.

    Raises:
        ConfigError: it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written ({error.strerror})") from None


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file atomically, or the standard output for ``-``.

    Raises:
        ConfigError: it cannot be written; an existing file stays unchanged.
    """
    if str(path) != STANDARD:
        with atomic_write(path) as file:
            write(file)
        return
    content = io.BytesIO()
    write(content)
    flush_output(content.getvalue())
