"""Where pictures come from: one record and one function for each kind of source."""

from __future__ import annotations

import glob
import io
import os
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from vitviz.datasets.hub import HUB_PREFIX, SOURCE_FORMAT, hub_cells
from vitviz.errors.arguments import named_arguments
from vitviz.errors.kinds import DataError
from vitviz.errors.messages import choices, utf8
from vitviz.images.kinds import MAX_NAMES, START_BYTES, described, is_hidden, is_picture, picture_files
from vitviz.images.sources import COLUMN
from vitviz.system.paths import missing

# Larger members of an archive are not read.
MAX_PICTURE_BYTES = 2**30
ROWS_AT_A_TIME = 64
TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz")


@dataclass(frozen=True)
class Item:
    """A picture that is still to be opened.

    Args:
        key: of its row: unique, and the same in every run over the same source.
        source: the path of its file, the content of one, or its values, as :func:`vitviz.open_image` takes an array.
    """

    key: str
    source: Path | bytes | np.ndarray


@dataclass(frozen=True)
class Reader:
    """A kind of source.

    Args:
        name: what it is, for a message.
        takes: whether a source is of this kind.
        items: its pictures, always in the same order, and the names of files that are none.
        streams: whether items hold the content of their files, so that they must not all be in memory at once.
    """

    name: str
    takes: Callable[[str], bool]
    items: Callable[[str, str], Iterator[Item | str]]
    streams: bool = False


class Items:
    """The pictures of a source, in an order that is the same every time. It can be pickled for other machines.

    Args:
        source, column: as :func:`read_items` takes them.

    Attributes:
        left_out_count, left_out_names: how many files of the last iteration are no pictures, and the first of them.

    Raises:
        DataError: there is no such source, or it holds no picture. If it is damaged, iterating raises the error.
    """

    def __init__(self, source: str | os.PathLike[str], column: str = COLUMN) -> None:
        self.source, self.column = os.path.expanduser(os.fspath(source)), column
        self.reader = reader_of(self.source)
        if next(iter(self), None) is None:
            raise DataError(f"{source}: no picture in it; expected {self.reader.name}")

    def __iter__(self) -> Iterator[Item]:
        self.left_out_count, self.left_out_names = 0, list[str]()
        for item in self.reader.items(self.source, self.column):
            if isinstance(item, Item):
                # Tables hold UTF-8, and names of files need not be.
                yield replace(item, key=utf8(item.key))
            else:
                self.left_out_count += 1
                self.left_out_names += [item][: MAX_NAMES - len(self.left_out_names)]

    def __reduce__(self) -> tuple[type[Items], tuple[str, str]]:
        return Items, (self.source, self.column)


@named_arguments(DataError)
def read_items(source: str | os.PathLike[str], column: str = COLUMN) -> Items:
    """The pictures of a source, in an order that is the same every time.

    Args:
        source: a folder, which is searched at every depth; a pattern such as ``"photos/*.jpg"``; a text file with a
            path on every line; a tar archive; a Parquet file or folder; or a data set of the Hugging Face hub.
        column: the column with the pictures of a Parquet file or data set: their bytes, or ``bytes`` and ``path``.

    Raises:
        DataError: there is no such source, it holds no picture, or it is damaged.

    >>> [item.key for item in vitviz.read_items("*.jpg")]
    ['cat.jpg', 'flower.jpg']
    """
    return Items(source, column)


def reader_of(source: str) -> Reader:
    """The kind of a source.

    Raises:
        DataError: there is no such source.
    """
    reader = next((each for each in READERS if each.takes(source)), None)
    if reader is None:
        kinds = choices([each.name for each in READERS])
        raise DataError(f"{source}: {missing(source, f', or of an unknown kind; expected {kinds}', 'file or folder')}")
    return reader


def _folder_items(source: str, column: str) -> Iterator[Item | str]:
    root = Path(source)
    pictures, others = picture_files(root.rglob("*"), root)
    yield from (described(path, path.relative_to(root).as_posix()) for path in others)
    yield from (Item(path.relative_to(root).as_posix(), path) for path in pictures)


def _pattern_items(source: str, column: str) -> Iterator[Item | str]:
    for name in sorted(glob.glob(source, recursive=True)):
        path = Path(name)
        pictures, others = picture_files([path], path.parent)
        yield from (described(other, other.as_posix()) for other in others)
        yield from (Item(picture.as_posix(), picture) for picture in pictures)


def _list_items(source: str, column: str) -> Iterator[Item]:
    file = Path(source)
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{source}: cannot be read as a list of paths ({error})") from None
    # A repeated path is one picture.
    for line in dict.fromkeys(line.strip() for line in lines):
        if line:
            yield Item(line, file.parent / line)


def _tar_items(source: str, column: str) -> Iterator[Item | str]:
    # Members are read one after another and never written to disk, so their names can do no harm.
    try:
        with tarfile.open(source, "r|*") as archive:
            for member in archive:
                if not member.isfile() or is_hidden(Path(member.name)):
                    continue
                file = archive.extractfile(member)
                if file is None or member.size > MAX_PICTURE_BYTES:
                    file = io.BytesIO()
                start = file.read(START_BYTES)
                if is_picture(member.name, start):
                    yield Item(member.name, start + file.read())
                else:
                    yield member.name
    except (tarfile.TarError, OSError, EOFError) as error:
        raise DataError(f"{source}: damaged archive ({error})") from None


def _parquet_items(source: str, column: str) -> Iterator[Item]:
    from vitviz.datasets.arrow import arrow

    pa, parquet = arrow()
    path = Path(source)
    files = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
    for file in files:
        name = file.relative_to(path).as_posix() if path.is_dir() else file.name
        try:
            with parquet.ParquetFile(file) as table:
                if column not in table.schema_arrow.names:
                    names = choices(table.schema_arrow.names)
                    raise DataError(f"{file}: no column {column!r}; expected --column with one of {names}")
                row = 0
                for batch in table.iter_batches(ROWS_AT_A_TIME, columns=[column]):
                    for cell in batch.column(0).to_pylist():
                        yield Item(_key(name, row, cell), _content(file, row, cell))
                        row += 1
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{file}: damaged Parquet file ({error})") from None


def _hub_items(source: str, column: str) -> Iterator[Item]:
    for key, cell in hub_cells(source, column):
        # The folder of a file differs from machine to machine.
        name = Path(str(cell.get("path") or "")).name if isinstance(cell, dict) else ""
        yield Item(f"{key} {name}" if name else key, _content(Path(source), int(key.rpartition("#")[2]), cell))


def _key(name: str, row: int, cell: Any) -> str:
    path = cell.get("path") if isinstance(cell, dict) else None
    return f"{name}#{row}" + (f" {path}" if path else "")


def _content(file: Path, row: int, cell: Any) -> Path | bytes:
    content = cell.get("bytes") if isinstance(cell, dict) else cell
    if isinstance(content, bytes):
        return content
    if isinstance(cell, dict) and isinstance(cell.get("path"), str):
        return file.parent / str(cell["path"])
    # An empty cell counts as a picture that cannot be opened and does not end the run.
    if content is None:
        return b""
    raise DataError(f"{file}: row {row} has {type(content).__name__}; expected the bytes of a picture")


def _holds_parquet(source: str) -> bool:
    path = Path(source)
    return path.suffix == ".parquet" if path.is_file() else path.is_dir() and any(path.rglob("*.parquet"))


READERS = (
    Reader(SOURCE_FORMAT, lambda source: source.startswith(HUB_PREFIX), _hub_items, streams=True),
    Reader("a Parquet file, or a folder of them", _holds_parquet, _parquet_items, streams=True),
    Reader("a folder with pictures", lambda source: Path(source).is_dir(), _folder_items),
    Reader(
        "a tar archive",
        lambda source: source.endswith(TAR_SUFFIXES) and Path(source).is_file(),
        _tar_items,
        streams=True,
    ),
    Reader(
        "a text file (.txt) with a path on every line",
        lambda source: source.endswith(".txt") and Path(source).is_file(),
        _list_items,
    ),
    Reader("a pattern such as 'photos/*.jpg'", lambda source: any(sign in source for sign in "*?["), _pattern_items),
)
