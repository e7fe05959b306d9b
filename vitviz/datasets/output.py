"""The folder that a batch writes: Parquet files, called parts, that are written atomically, and how they are read."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vitviz.datasets.arrow import arrow
from vitviz.errors.kinds import ConfigError
from vitviz.errors.messages import listing
from vitviz.system.atomic import atomic_write
from vitviz.system.paths import PARTS_FOLDER, REQUEST_FILE

try:
    import fcntl
# Windows, where two runs of one folder at a time are the user's to avoid.
except ImportError:
    fcntl = None  # type: ignore[assignment]

LOCK_FILE = ".lock"
ROWS_AT_A_TIME = 64
COMPRESSION = "zstd"


class OutputFolder:
    """The request of a batch and, below ``parts``, the rows of pictures so far: an interrupted run resumes there.

    Args:
        path: of the folder, which may be new.
        request: as :meth:`BatchRequest.to_json` gives it.

    Raises:
        ConfigError: the folder holds something else or the results of another request, or cannot be written.
    """

    def __init__(self, path: Path, request: dict[str, Any]) -> None:
        self.path, self.parts_folder = path, path / PARTS_FOLDER
        try:
            self.parts_folder.mkdir(parents=True, exist_ok=True)
            self._check(request)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written ({error.strerror})") from None
        self.next_part = 1 + max((int(part.stem.removeprefix("part-")) for part in part_paths(path)), default=-1)

    def _check(self, request: dict[str, Any]) -> None:
        file = self.path / REQUEST_FILE
        if not file.is_file():
            files = sorted(each.name for each in self.path.iterdir() if each.name not in (PARTS_FOLDER, LOCK_FILE))
            if files or any(self.parts_folder.iterdir()):
                raise ConfigError(
                    f"{self.path}: a folder with other files; expected an empty or new one, or that of a batch"
                )
            with atomic_write(file) as stream:
                stream.write(json.dumps(request, indent=1, ensure_ascii=False).encode(errors="backslashreplace"))
            return
        old, new = read_request(self.path), json.loads(json.dumps(request))
        differences = [name for name in new if old.get(name) != new[name]]
        if differences:
            raise ConfigError(
                f"{self.path}: holds the results of another request, with other {listing(differences)}; "
                "expected the same request, or another folder"
            )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the folder.

        Raises:
            ConfigError: another process holds it.
        """
        with (self.path / LOCK_FILE).open("w") as file:
            try:
                if fcntl is not None:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ConfigError(f"{self.path}: another batch is writing there; expected one at a time") from None
            yield

    def drop_failures(self) -> None:
        """Remove the rows of pictures that could not be analysed; the other rows of a part stay.

        Raises:
            ConfigError: a part is damaged, or cannot be written.
        """
        pa, parquet = arrow()
        for path in part_paths(self.path):
            try:
                rows = parquet.read_table(path)
                whole = rows.filter(rows["error"].is_null())
                if len(whole) < len(rows):
                    with atomic_write(path) as file:
                        parquet.write_table(whole, file, compression=COMPRESSION)
            except (pa.ArrowException, OSError) as error:
                raise ConfigError(f"{path}: damaged ({error}); remove it to have its pictures again") from None

    def write(self, rows: list[dict[str, Any]], schema: Any) -> None:
        """Write a new part.

        Raises:
            ConfigError: it cannot be written.
        """
        pa, parquet = arrow()
        columns = {name: [row.get(name) for row in rows] for name in schema.names}
        path = self.parts_folder / f"part-{self.next_part:06d}.parquet"
        with atomic_write(path) as file:
            parquet.write_table(pa.table(columns, schema), file, compression=COMPRESSION)
        self.next_part += 1


def part_paths(results: Path) -> list[Path]:
    """The files of rows in the folder of a batch, in order."""
    return sorted((results / PARTS_FOLDER).glob("part-*.parquet"))


def make_file_path(output: Path, folder: str, key: str, ending: str) -> Path:
    """The path of another file about a picture, such as its overlay, whose folder is made."""
    path = output / folder / file_name(key, ending)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def key_digest(key: str) -> bytes:
    """The digest of a row's key, 16 bytes."""
    return hashlib.blake2b(key.encode(), digest_size=16).digest()


def file_name(key: str, ending: str) -> str:
    """The name of a picture's file, relative to the folder for files of its kind."""
    segments = [name for name in key.replace(os.sep, "/").split("/") if name not in ("", ".", "..")]
    plain = "/".join(segments)
    # A name that had to be changed could collide with that of another picture.
    suffix = "" if plain == key else f".{hashlib.sha256(key.encode()).hexdigest()[:8]}"
    return f"{plain}{suffix}.{ending}"


def read_request(results: Path) -> dict[str, Any]:
    """The request of a batch's folder, as :meth:`BatchRequest.to_json` gives it.

    Raises:
        ConfigError: the folder is not that of a batch, or its request is damaged.
    """
    try:
        request = json.loads((results / REQUEST_FILE).read_text(encoding="utf-8"))
        if not isinstance(request, dict) or not {"schema", "model", "maps", "probes"} <= request.keys():
            raise ValueError
    except (OSError, ValueError):
        raise ConfigError(
            f"{results}: no results of a batch there; expected the folder that vitviz batch wrote"
        ) from None
    return request


def read_rows(results: Path, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The rows of all parts in order, read a few at a time. A row lacks columns that its part does not have.

    Raises:
        ConfigError: a part is damaged.
    """
    pa, parquet = arrow()
    for path in part_paths(results):
        try:
            with parquet.ParquetFile(path) as table:
                names = [name for name in columns if name in table.schema_arrow.names]
                for batch in table.iter_batches(ROWS_AT_A_TIME, columns=names):
                    yield from batch.to_pylist()
        except (pa.ArrowException, OSError) as error:
            raise ConfigError(f"{path}: damaged ({error}); remove it to have its pictures again") from None
