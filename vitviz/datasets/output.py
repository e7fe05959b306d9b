"""The folder that a batch writes: parts that appear whole or not at all, and what is already in them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from vitviz.datasets.arrow import arrow
from vitviz.datasets.folder import PARTS, RUN, RequestFolder
from vitviz.errors.kinds import ConfigError
from vitviz.weights.formats.atomic import atomic_write

ROWS_AT_A_TIME = 64
COMPRESSION = "zstd"


class OutputFolder(RequestFolder):
    """Rows of pictures in parts, and the request that all of them answer.

    Args:
        path, request: as :class:`RequestFolder` takes them; the request as :meth:`BatchRequest.to_json` gives it.

    Raises:
        ConfigError: as that.
    """

    def __init__(self, path: Path, request: dict[str, Any]) -> None:
        super().__init__(path, request, "batch")
        self.next_part = 1 + max((int(part.stem.removeprefix("part-")) for part in self._written()), default=-1)

    def row_errors(self) -> Iterator[tuple[str, str | None]]:
        """The key of every row that is there, and why its picture could not be analysed.

        Raises:
            ConfigError: a part is damaged.
        """
        for row in read_rows(self.path, ["path", "error"]):
            yield str(row["path"]), row["error"]

    def drop_failures(self) -> None:
        """Take away the rows that say why their picture could not be analysed; what else is in a part stays.

        Raises:
            ConfigError: a part is damaged, or cannot be written.
        """
        pa, parquet = arrow()
        for part in self._written():
            try:
                errors = parquet.read_table(part, columns=["error"]).column(0)
                if errors.null_count == 0:
                    part.unlink()
                elif errors.null_count < len(errors):
                    kept = parquet.read_table(part).filter(errors.is_null())
                    with atomic_write(part) as file:
                        parquet.write_table(kept, file, compression=COMPRESSION)
            except (pa.ArrowException, OSError) as error:
                raise ConfigError(f"{part}: damaged ({error}); remove it to have its pictures again") from None

    def write(self, rows: list[dict[str, Any]], schema: Any) -> None:
        """Put a part there.

        Raises:
            ConfigError: it cannot be written.
        """
        pa, parquet = arrow()
        columns = {name: [row.get(name) for row in rows] for name in schema.names}
        part = self.parts / f"part-{self.next_part:06d}.parquet"
        try:
            with atomic_write(part) as file:
                parquet.write_table(pa.table(columns, schema), file, compression=COMPRESSION)
        except OSError as error:
            raise ConfigError(f"{part}: cannot be written ({error.strerror or error})") from None
        self.next_part += 1

    def _written(self) -> list[Path]:
        return sorted(self.parts.glob("part-*.parquet"))


def beside(output: Path, folder: str, key: str, ending: str) -> Path:
    """The path of another file about a picture, such as its overlay; its folder is made."""
    path = path_beside(output, folder, key, ending)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def path_beside(output: Path, folder: str, key: str, ending: str) -> Path:
    """As :func:`beside`; nothing is made."""
    return output / folder / file_name_of(key, ending)


def key_digest(key: str) -> bytes:
    """Of a row's key, 16 bytes."""
    return hashlib.blake2b(key.encode(), digest_size=16).digest()


def file_name_of(key: str, ending: str) -> str:
    """Of a file about the picture of a key, in a folder of its own kind."""
    names = [name for name in key.replace(os.sep, "/").split("/") if name not in ("", ".", "..")]
    plain = "/".join(names)
    # Where the name had to be changed, the file of another picture could have it.
    mark = "" if plain == key else f".{hashlib.sha256(key.encode()).hexdigest()[:8]}"
    return f"{plain}{mark}.{ending}"


def request_of(results: Path) -> dict[str, Any]:
    """What the rows of a folder answer, as :meth:`BatchRequest.to_json` gives it.

    Raises:
        ConfigError: no batch wrote there, or its file is damaged.
    """
    try:
        request = json.loads((results / RUN).read_text(encoding="utf-8"))
        if not isinstance(request, dict) or not {"schema", "model", "maps", "probes"} <= request.keys():
            raise ValueError
    except (OSError, ValueError):
        raise ConfigError(
            f"{results}: no results of a batch there; expected the folder that vitviz batch wrote"
        ) from None
    return request


def read_rows(results: Path, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The rows of all parts in their order, a few at a time; a part lacks the columns that its run was not asked for.

    Raises:
        ConfigError: a part is damaged.
    """
    pa, parquet = arrow()
    for part in sorted((results / PARTS).glob("part-*.parquet")):
        try:
            with parquet.ParquetFile(part) as table:
                known = [name for name in columns if name in table.schema_arrow.names]
                for batch in table.iter_batches(ROWS_AT_A_TIME, columns=known):
                    yield from batch.to_pylist()
        except (pa.ArrowException, OSError) as error:
            raise ConfigError(f"{part}: damaged ({error}); remove it to have its pictures again") from None
