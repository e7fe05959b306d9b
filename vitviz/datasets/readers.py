"""Where pictures come from: one record and one function for each kind of source."""

from __future__ import annotations

import codecs
import glob
import os
import posixpath
import tarfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from vitviz.datasets.hub import HUB_PREFIX, SOURCE_FORMAT, hub_cells
from vitviz.errors.arguments import named_arguments
from vitviz.errors.kinds import DataError
from vitviz.errors.messages import choices, utf8
from vitviz.images.kinds import MAX_NAMES, START_BYTES, described, is_hidden, is_picture, picture_files
from vitviz.images.sources import COLUMN
from vitviz.system.paths import as_on_disk, files_in, missing

# Larger members of an archive are not read.
MAX_PICTURE_BYTES = 2**30
# Links of an archive to links.
MAX_LINKS = 4
ROWS_AT_A_TIME = 64
PARQUET = ".parquet"
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
        expected = f", or of an unknown kind; expected {choices([each.name for each in READERS])}"
        raise DataError(f"{source}: {missing(source, expected, 'file or folder')}")
    return reader


def _folder_items(source: str, column: str) -> Iterator[Item | str]:
    root = Path(source)
    pictures, others = picture_files(files_in(root), root)
    yield from (described(path, path.relative_to(root).as_posix()) for path in others)
    yield from (Item(path.relative_to(root).as_posix(), path) for path in pictures)


def _pattern_items(source: str, column: str) -> Iterator[Item | str]:
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
    yield from (Item(path.as_posix(), path) if found[path] else described(path, path.as_posix()) for path in found)


def _list_items(source: str, column: str) -> Iterator[Item]:
    file = Path(source)
    try:
        # PowerShell's > writes UTF-16; Notepad begins UTF-8 with a mark.
        is_utf16 = file.read_bytes()[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        lines = file.read_text(encoding="utf-16" if is_utf16 else "utf-8-sig").split("\n")
        if any("\0" in line for line in lines):
            raise UnicodeError("null characters, as UTF-16 has them")
    except (OSError, UnicodeError) as error:
        raise DataError(f"{source}: cannot be read as a list of paths ({error}); save it as UTF-8 text") from None
    pictures = {}
    for line in lines:
        if name := line.strip():
            # A name may end in a space; only Windows separates folders by backslashes.
            spellings = dict.fromkeys((line, name, name.replace("\\", "/")))
            paths = {each: as_on_disk(file.parent / os.path.expanduser(each)) for each in spellings}
            found = next((each for each in spellings if os.path.exists(paths[each])), name)
            # A repeated path is one picture.
            pictures[found] = paths[found]
    yield from map(Item, pictures, pictures.values())


def _tar_items(source: str, column: str) -> Iterator[Item | str]:
    # Members are read one after another and never written to disk, so their names can do no harm.
    try:
        with tarfile.open(source) as archive:
            names = _tar_names(archive)
        yield from (
            f"{name} (a link to nothing in the archive, or back to its own folder)" for name in names.pop(None, ())
        )
        with tarfile.open(source, "r|*") as archive:
            for index, member in enumerate(archive):
                file = archive.extractfile(member) if index in names and member.size <= MAX_PICTURE_BYTES else None
                start = b"" if file is None else file.read(START_BYTES)
                content = start if file is None else start + file.read()
                why = " (a pipe, a device, or larger than 1 GiB)" * (file is None)
                for name in names.get(index, ()):
                    if is_hidden(Path(name)):
                        yield from [f"{name} (hidden)"] * is_picture(name, b"")
                    else:
                        yield Item(name, content) if file is not None and is_picture(name, start) else name + why
    except (tarfile.TarError, OSError, EOFError) as error:
        raise DataError(f"{source}: damaged archive ({error})") from None


def _tar_names(archive: tarfile.TarFile) -> dict[int | None, list[str]]:
    """The names of an archive's files by the position of the member with their content; None for links to nothing."""
    files, links, names = dict[str, int | None](), dict[str, str](), defaultdict[int | None, list[str]](list)
    for index, member in enumerate(archive):
        name, target = posixpath.normpath(member.name), posixpath.normpath(member.linkname)
        content = files.get(target) if member.islnk() else index
        # As where tar unpacks it, the last member of a name counts.
        links.pop(name, None)
        files.pop(name, None)
        if member.issym():
            links[name] = posixpath.normpath(posixpath.join(posixpath.dirname(name), member.linkname))
        elif not member.isdir():
            files[name] = content
    for name, target in [*links.items()] * MAX_LINKS:
        # A link to a folder stands for the files below it, unless it leads to the link itself.
        if not name.startswith(f"{target}/"):
            below = [each for each in files if each == target or each.startswith(f"{target}/")]
            files.update({name + each[len(target) :]: files[each] for each in below})
    folders = {str(folder) for name in files for folder in PurePosixPath(name).parents}
    for name, content in [*files.items(), *((name, None) for name in links if name not in folders | files.keys())]:
        names[content].append(name)
    return names


def _parquet_items(source: str, column: str) -> Iterator[Item | str]:
    from vitviz.datasets.arrow import arrow

    pa, parquet = arrow()
    folder = Path(source) if os.path.isdir(source) else Path(source).parent
    beside = list(_folder_items(source, column)) if os.path.isdir(source) else [Path(source).name]
    names = [each for each in beside if isinstance(each, str) and each.endswith(PARQUET)]
    yield from (each for each in beside if each not in names)
    pictures = {each.source for each in beside if isinstance(each, Item) and isinstance(each.source, Path)}
    for name in names:
        file = folder / name
        try:
            with parquet.ParquetFile(file) as table:
                if pictures and column not in table.schema_arrow.names:
                    yield f"{name} (a table without a column {column!r})"
                    continue
                if column not in table.schema_arrow.names:
                    legal = choices(table.schema_arrow.names)
                    raise DataError(f"{file}: no column {column!r}; expected --column with one of {legal}")
                batches = table.iter_batches(ROWS_AT_A_TIME, columns=[column])
                for row, cell in enumerate(cell for batch in batches for cell in batch.column(0).to_pylist()):
                    path = cell.get("path") if isinstance(cell, dict) else cell if isinstance(cell, str) else None
                    key = f"{name}#{row}" + f" {path}" * bool(path)
                    item = Item(key, picture_in(cell, str(folder / key), file.parent))
                    # A table beside pictures may name them.
                    if not isinstance(item.source, Path) or item.source not in pictures:
                        yield item
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{file}: damaged Parquet file ({error})") from None


def _hub_items(source: str, column: str) -> Iterator[Item]:
    for key, cell in hub_cells(source, column):
        # The folder of a file differs from machine to machine.
        name = Path(str(cell.get("path") or "")).name if isinstance(cell, dict) else ""
        yield Item(f"{key} {name}" if name else key, picture_in(cell, key, Path()))


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
        return as_on_disk(folder / value)
    # An empty cell, which may be NaN, counts as a picture that cannot be opened and does not end the run.
    if value is not None and not isinstance(value, bytes | np.ndarray | float):
        raise DataError(f"{key}: {type(value).__name__} found; expected the bytes or the path of a picture")
    return value if isinstance(value, bytes | np.ndarray) else b""


def _holds_parquet(source: str) -> bool:
    path = Path(source)
    files = files_in(path) if path.is_dir() else [path] if path.is_file() else []
    return any(each.suffix == PARQUET and not is_hidden(each.relative_to(path)) for each in files)


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
