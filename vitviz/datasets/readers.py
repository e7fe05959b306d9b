"""Where pictures come from: one record and one function for each kind of source."""

from __future__ import annotations

import codecs
import glob
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from vitviz.datasets.archives import TAR_SUFFIXES, ZIP_SUFFIX, archive_files
from vitviz.datasets.hub_data import HUB_PREFIX, SOURCE_FORMAT, hub_cells
from vitviz.datasets.true_classes import class_in
from vitviz.errors.arguments import named_arguments
from vitviz.errors.kinds import DataError
from vitviz.errors.messages import choices, describe, utf8
from vitviz.images.file_kinds import (
    FILE_SUFFIXES,
    HIDDEN,
    NO_PICTURE,
    START_BYTES,
    is_hidden,
    is_picture,
    left_out,
    picture_files,
    why_left_out,
)
from vitviz.images.sources import COLUMN
from vitviz.system.paths import as_on_disk, files_in, missing

ROWS_AT_A_TIME = 64
PARQUET, LIST_SUFFIX = ".parquet", ".txt"
# The column of a table with the class of each picture, where there is one.
LABEL = "label"

LeftOut = tuple[str, str]
"""The name of what is left out, and why."""


@dataclass(frozen=True)
class Item:
    """A picture that is still to be opened.

    Args:
        key: of its row: unique, and the same in every run over the same source.
        source: the path of its file, the content of one, or its values, as :func:`vitviz.open_image` takes an array.
        label: its class, where a table states one.
    """

    key: str
    source: Path | bytes | np.ndarray
    label: str | None = None


@dataclass(frozen=True)
class Reader:
    """A kind of source.

    Args:
        name: what it is, for a message.
        takes: whether a source is of this kind.
        items: its pictures, always in the same order, and what is left out.
        streams: whether items hold the content of their files, so that they must not all be in memory at once.
    """

    name: str
    takes: Callable[[str], bool]
    items: Callable[[str, str], Iterator[Item | LeftOut]]
    streams: bool = False


class Items:
    """The pictures of a source, in an order that is the same every time. It can be pickled for other machines.

    Args:
        source, column: as :func:`read_items` takes them.

    Attributes:
        left_out: what the last iteration left out, and why.

    Raises:
        DataError: there is no such source, or it holds no picture. If it is damaged, iterating raises the error.
    """

    def __init__(self, source: str | os.PathLike[str], column: str = COLUMN) -> None:
        if not isinstance(source, str | os.PathLike):
            raise DataError(
                f"source: {describe(source)} found; expected a folder, a file or a pattern by its name; "
                "vitviz.run_batch takes a list of paths itself"
            )
        self.source, self.column = os.path.expanduser(os.fspath(source)), column
        self.reader = reader_of(self.source)
        if next(iter(self), None) is None:
            found = f": {left_out(self.left_out)}" * bool(self.left_out)
            raise DataError(f"{source}: no picture in it{found}; expected {self.reader.name}")

    def __iter__(self) -> Iterator[Item]:
        self.left_out = list[LeftOut]()
        for item in self.reader.items(self.source, self.column):
            if isinstance(item, Item):
                # Tables hold UTF-8, and names of files need not be.
                yield replace(item, key=utf8(item.key))
            else:
                self.left_out.append(item)

    def __reduce__(self) -> tuple[type[Items], tuple[str, str]]:
        return Items, (self.source, self.column)


@named_arguments(DataError)
def read_items(source: str | os.PathLike[str], column: str = COLUMN) -> Items:
    """The pictures of a source, in an order that is the same every time.

    Args:
        source: a folder, which is searched at every depth, but for results of a batch; a picture; a pattern such as
            ``"photos/*.jpg"``; a text file with a path on every line; a tar or ZIP archive; a Parquet file or folder;
            or a data set of the Hugging Face hub.
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
        found = "a file of no such kind" if os.path.exists(source) else missing(source, "", "file or folder")
        raise DataError(f"{source}: {found}; expected {choices([each.name for each in READERS])}")
    return reader


def _folder_items(source: str, column: str) -> Iterator[Item | LeftOut]:
    root = Path(source)
    pictures, others = picture_files(files_in(root), root)
    yield from ((path.relative_to(root).as_posix(), why_left_out(path)) for path in others)
    yield from (Item(path.relative_to(root).as_posix(), path) for path in pictures)


def _pattern_items(source: str, column: str) -> Iterator[Item | LeftOut]:
    # The signs of a pattern in the name of a folder or file that exists are letters.
    there = str(next(each for each in (Path(source), *Path(source).parents) if os.path.exists(each)))
    source = source.replace(there, glob.escape(there), 1) if source.startswith(there) else source
    head, stars, tail = (f"{source}/*" if source.endswith("**") else source).partition("**/")
    if stars and "**" not in tail:
        # Not glob, which follows links that lead to each other for ages.
        roots = [Path(each) for each in sorted(glob.glob(head))] if head else [Path()]
        groups = [(root, [each for each in files_in(root) if each.relative_to(root).match(tail)]) for root in roots]
    else:
        # As where a shell expands the pattern, a folder stands for its pictures.
        paths = map(Path, sorted(glob.glob(source, recursive=True)))
        groups = [(path, list(files_in(path))) if os.path.isdir(path) else (path.parent, [path]) for path in paths]
    found = dict[Path, bool]()
    for pictures, others in (picture_files(paths, root) for root, paths in groups):
        found |= dict.fromkeys(pictures, True) | dict.fromkeys(others, False)
    for path, is_picture_file in found.items():
        yield Item(path.as_posix(), path) if is_picture_file else (path.as_posix(), why_left_out(path))


def _list_items(source: str, column: str) -> Iterator[Item | LeftOut]:
    file = Path(source)
    try:
        # PowerShell's > writes UTF-16; Notepad begins UTF-8 with a mark.
        is_utf16 = file.read_bytes()[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        lines = file.read_text(encoding="utf-16" if is_utf16 else "utf-8-sig").split("\n")
        if any("\0" in line for line in lines):
            raise UnicodeError("null characters, as UTF-16 has them")
    except (OSError, UnicodeError) as error:
        raise DataError(f"{source}: cannot be read as a list of paths ({error}); save it as UTF-8 text") from None
    pictures = dict[str, Path]()
    for line in lines:
        name, path = _named_file(line, file.parent)
        if name in pictures:
            yield name, "named before"
        elif name.startswith("#") and not os.path.exists(path):
            yield name, "a comment"
        elif name:
            pictures[name] = path
    yield from map(Item, pictures, pictures.values())


def _named_file(text: str, folder: Path) -> tuple[str, Path]:
    """The name and the path of a file that a list or table in a folder names."""
    name = text.strip()
    bare = name.strip("\"'")
    # A name may end in a space, or have quotes; only Windows separates folders by backslashes.
    spellings = dict.fromkeys((text, name, bare, bare.replace("\\", "/"))) if name else [name]
    paths = {each: as_on_disk(folder / os.path.expanduser(each)) for each in spellings}
    found = next((each for each in spellings if os.path.exists(paths[each])), bare)
    return found, paths[found]


def _archive_items(source: str, column: str) -> Iterator[Item | LeftOut]:
    for name, content, why in archive_files(source):
        is_picture_file = is_picture(name, content[:START_BYTES])
        if is_hidden(Path(name)):
            yield from [(name, HIDDEN)] * is_picture_file
        else:
            yield Item(name, content) if is_picture_file and not why else (name, why or NO_PICTURE)


def _parquet_items(source: str, column: str) -> Iterator[Item | LeftOut]:
    from vitviz.datasets.arrow import arrow

    pa, parquet = arrow()
    folder = Path(source) if os.path.isdir(source) else Path(source).parent
    beside = list(_folder_items(source, column)) if os.path.isdir(source) else [(Path(source).name, NO_PICTURE)]
    names = [each[0] for each in beside if isinstance(each, tuple) and each[0].lower().endswith(PARQUET)]
    yield from (each for each in beside if isinstance(each, Item) or each[0] not in names)
    pictures = {each.source for each in beside if isinstance(each, Item) and isinstance(each.source, Path)}
    for name in names:
        file = folder / name
        try:
            with parquet.ParquetFile(file) as table:
                legal = table.schema_arrow.names
                if pictures and column not in legal:
                    yield name, f"a table without a column {column!r}"
                    continue
                if column not in legal:
                    raise DataError(f"{file}: no column {column!r}; expected --column with one of {choices(legal)}")
                classes = _class_names(table.schema_arrow.metadata or {})
                batches = table.iter_batches(ROWS_AT_A_TIME, columns=[column, *{LABEL} & set(legal) - {column}])
                for row, cells in enumerate(cells for batch in batches for cells in batch.to_pylist()):
                    cell = cells[column]
                    path = cell.get("path") if isinstance(cell, dict) else cell if isinstance(cell, str) else None
                    key = f"{name}#{row}" + f" {path}" * bool(path)
                    item = Item(
                        key, picture_in(cell, str(folder / key), file.parent), class_in(cells.get(LABEL), classes)
                    )
                    # A table beside pictures may name them.
                    if not isinstance(item.source, Path) or item.source not in pictures:
                        yield item
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{file}: damaged Parquet file ({error})") from None


def _class_names(metadata: Mapping[bytes, bytes]) -> Sequence[str]:
    """The names of the classes in a Parquet file that the package datasets has written; empty for others."""
    with suppress(KeyError, TypeError, ValueError):
        return list(json.loads(metadata[b"huggingface"])["info"]["features"][LABEL]["names"])
    return ()


def _hub_items(source: str, column: str) -> Iterator[Item]:
    for key, cell, label in hub_cells(source, column, LABEL):
        # The folder of a file differs from machine to machine.
        name = Path(str(cell.get("path") or "")).name if isinstance(cell, dict) else ""
        yield Item(f"{key} {name}" if name else key, picture_in(cell, key, Path()), label)


def picture_in(cell: Any, key: str, folder: Path) -> Path | bytes | np.ndarray:
    """The picture in a cell: a path in a folder, the content of a file, or an array; no bytes if there is none.

    Args:
        cell: of a table.
        key: of its row, for a message.
        folder: of the table.

    Raises:
        DataError: the cell holds something else.
    """
    # The package datasets represents an image that is not decoded as such a mapping.
    value = (cell.get("bytes") or cell.get("path")) if isinstance(cell, Mapping) else cell
    if isinstance(value, str):
        return _named_file(value, folder)[1]
    # An empty cell, which may be NaN, counts as a picture that cannot be opened and does not end the run.
    if value is not None and not isinstance(value, bytes | np.ndarray | float):
        raise DataError(f"{key}: {type(value).__name__} found; expected the bytes or the path of a picture")
    return value if isinstance(value, bytes | np.ndarray) else b""


def _holds_parquet(source: str) -> bool:
    path = Path(source)
    files = files_in(path) if path.is_dir() else [path] if path.is_file() else []
    return any(each.suffix.lower() == PARQUET and not is_hidden(each.relative_to(path)) for each in files)


def _is_file(*endings: str) -> Callable[[str], bool]:
    return lambda source: source.lower().endswith(endings) and Path(source).is_file()


READERS = (
    Reader(SOURCE_FORMAT, lambda source: source.startswith(HUB_PREFIX), _hub_items, streams=True),
    Reader("a Parquet file, or a folder of them", _holds_parquet, _parquet_items, streams=True),
    Reader("a folder with pictures", lambda source: Path(source).is_dir(), _folder_items),
    Reader("a tar or ZIP archive", _is_file(*TAR_SUFFIXES, ZIP_SUFFIX), _archive_items, streams=True),
    Reader("a text file (.txt) with a path on every line", _is_file(LIST_SUFFIX), _list_items),
    Reader(
        "a pattern such as 'photos/*.jpg', or a picture",
        lambda source: glob.escape(source) != source or _is_file(*FILE_SUFFIXES)(source),
        _pattern_items,
    ),
)
