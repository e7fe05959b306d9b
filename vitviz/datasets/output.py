"""The folder that a batch writes: Parquet files, called parts, that are written atomically, and how they are read."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from vitviz.datasets.arrow import arrow
from vitviz.datasets.folder import PARTS_FOLDER, REQUEST_FILE, RequestFolder
from vitviz.errors.kinds import ConfigError
from vitviz.system.atomic import atomic_write

ROWS_AT_A_TIME = 64
COMPRESSION = "zstd"


class OutputFolder(RequestFolder):
    """The rows of pictures, in parts, and the request that they answer.

    Args:
        path, request: as :class:`RequestFolder` takes them; the request as :meth:`BatchRequest.to_json` gives it.

    Raises:
        ConfigError: as :class:`RequestFolder`.
    """

    def __init__(self, path: Path, request: dict[str, Any]) -> None:
        super().__init__(path, request, "batch")
        self.next_part = 1 + max((int(part.stem.removeprefix("part-")) for part in self._part_paths()), default=-1)

    def row_errors(self) -> Iterator[tuple[str, str | None]]:
        """The key and the error of every row; the error is None if the picture was analysed.

        Raises:
            ConfigError: a part is damaged.
        """
        for row in read_rows(self.path, ["path", "error"]):
            yield str(row["path"]), row["error"]

    def drop_failures(self) -> None:
        """Remove the rows of pictures that could not be analysed; the other rows of a part stay.

        Raises:
            ConfigError: a part is damaged, or cannot be written.
        """
        pa, parquet = arrow()
        for path in self._part_paths():
            try:
                errors = parquet.read_table(path, columns=["error"]).column(0)
                if errors.null_count == 0:
                    path.unlink()
                elif errors.null_count < len(errors):
                    rows = parquet.read_table(path).filter(errors.is_null())
                    with atomic_write(path) as file:
                        parquet.write_table(rows, file, compression=COMPRESSION)
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
        try:
            with atomic_write(path) as file:
                parquet.write_table(pa.table(columns, schema), file, compression=COMPRESSION)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written ({error.strerror or error})") from None
        self.next_part += 1

    def _part_paths(self) -> list[Path]:
        return sorted(self.parts_folder.glob("part-*.parquet"))


def make_file_path(output: Path, folder: str, key: str, ending: str) -> Path:
    """As :func:`file_path`, and make its folder."""
    path = file_path(output, folder, key, ending)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def file_path(output: Path, folder: str, key: str, ending: str) -> Path:
    """The path of another file about a picture, such as its overlay."""
    return output / folder / file_name(key, ending)


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
    for path in sorted((results / PARTS_FOLDER).glob("part-*.parquet")):
        try:
            with parquet.ParquetFile(path) as table:
                names = [name for name in columns if name in table.schema_arrow.names]
                for batch in table.iter_batches(ROWS_AT_A_TIME, columns=names):
                    yield from batch.to_pylist()
        except (pa.ArrowException, OSError) as error:
            raise ConfigError(f"{path}: damaged ({error}); remove it to have its pictures again") from None
