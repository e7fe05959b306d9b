"""A batch: every picture of a source once, however often the run is interrupted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitviz.analysis.encoder import MAX_BYTES
from vitviz.datasets.cluster import Cluster
from vitviz.datasets.engines import ENGINES, LOCAL
from vitviz.datasets.output import OutputFolder, key_digest
from vitviz.datasets.readers import Item
from vitviz.datasets.request import BatchRequest
from vitviz.datasets.rows import rehearsed, schema
from vitviz.datasets.work import WORKERS, Pending, Work
from vitviz.datasets.writers import Writer
from vitviz.errors.arguments import word
from vitviz.errors.kinds import ConfigError
from vitviz.progress import Progress

# A run that is killed has to compute again what it found in the last half minute, or of so many pictures.
PART_ROWS, PART_SECONDS = 256, 30.0
# That a summary names; the table has all.
MAX_ERRORS = 10


@dataclass(frozen=True)
class Summary:
    """How a run ended.

    Args:
        analysed: pictures of which something was found.
        failed: pictures that could not be opened or analysed, whose rows say why.
        kept: pictures whose rows were there before.
        failed_before: rows that were there before and say why their picture could not be analysed.
        completed: pictures whose rows were there before, and whose other files were written now.
        errors: the first of the pictures that could not be analysed, then or now, and why.
        seconds: that the run took.
        waited: seconds of it for which the model waited for pictures to be opened; None where several models ran.
        batch_size: most pictures that were encoded together; None where every worker chose its own.
    """

    analysed: int
    failed: int
    kept: int
    failed_before: int
    completed: int
    errors: dict[str, str]
    seconds: float
    waited: float | None
    batch_size: int | None


def run_batch(
    request: BatchRequest,
    items: Iterable[Item],
    output: Path,
    *,
    batch_size: int | None = None,
    max_bytes: int = MAX_BYTES,
    workers: int = WORKERS,
    writers: Sequence[Writer] = (),
    thumbnails: bool = False,
    retry_failed: bool = False,
    engine: str = LOCAL.name,
    cluster: Cluster | None = None,
    report: Callable[[Progress], None] | None = None,
) -> Summary:
    """Answer a request for every picture, and keep the answers as Parquet files in ``output/parts``.

    A run over the same source with the same request computes only what is missing, by whatever engine. Whatever ends
    it, no part is half written and no picture is counted twice.

    Args:
        request: what is asked about every picture.
        items: the pictures, as :func:`vitviz.datasets.read_items` gives them. With the engine ``"ray"`` they are first
            made a list, but for a source that streams.
        output: the folder; an empty or new one, or that of a run with the same request.
        batch_size: most pictures that are encoded together; chosen from :func:`vitviz.cost` and the free memory where
            it is not given.
        max_bytes, workers: as :func:`vitviz.analyze_batch` takes them; every worker of a cluster has so many.
        writers: what is written beside the table; of a picture that has a row and lacks a file, the file is written.
        thumbnails: whether rows get small pictures, for the gallery.
        retry_failed: whether pictures are analysed again whose rows say why they could not be.
        engine: a name in :data:`vitviz.datasets.ENGINES`: ``"local"``, in this process, or ``"ray"``.
        cluster: where Ray runs; on this machine where it is not given.
        report: receives the pictures that are done, and the total where it is known, else 0; an exception that it
            raises ends the run, with all that was found written.

    Raises:
        ConfigError: the folder holds something else, somebody else writes there, or it cannot be written; or the
            engine is unknown, not installed, or cannot reach its cluster.
        DataError: the cluster gave up.
        MethodError, QueryError: the model cannot serve the request: it has no such class, layer, head or token.
    """
    word("engine", engine, ENGINES, ConfigError)
    work = Work(request, output, batch_size, max_bytes, workers, tuple(writers), thumbnails)
    example, about = rehearsed(request), request.to_json()
    columns = schema(request, example, about, thumbnails)
    source = ENGINES[engine].open(work, columns, cluster or Cluster())
    folder = OutputFolder(output, about)
    with folder.locked():
        if retry_failed:
            folder.drop_failures()
        table = _Table(folder, columns)
        pending = Pending(items, table.begin(work))
        total = len(items) if isinstance(items, list | tuple) else 0
        rows = source.rows(pending)
        try:
            for row in rows:
                table.add(row)
                if report is not None:
                    report(Progress(table.done + pending.kept, total))
        finally:
            rows.close()
            table.flush()
        seconds = time.monotonic() - table.started
        counts = table.analysed, table.failed, pending.kept + table.repeated, table.failed_before, table.completed
        return Summary(*counts, table.errors, seconds, source.waited, source.batch_size)


class _Table:
    """Rows on their way to the folder.

    Args:
        folder: where they go.
        columns: of the rows, an ``pyarrow.Schema``.
    """

    def __init__(self, folder: OutputFolder, columns: Any) -> None:
        self.folder, self.columns = folder, columns
        self.rows: list[dict[str, Any]] = []
        self.analysed = self.failed = self.failed_before = self.repeated = self.completed = 0
        self.errors: dict[str, str] = {}
        self.incomplete = set[bytes]()
        self.started = self.written = time.monotonic()

    @property
    def done(self) -> int:
        """Pictures of this run."""
        return self.analysed + self.failed + self.completed

    def begin(self, work: Work) -> set[bytes]:
        """Digests of the keys of all pictures that lack nothing: a million take some 80 MB.

        Raises:
            ConfigError: a part is damaged.
        """
        there = set[bytes]()
        for key, error in self.folder.row_errors():
            if error is not None:
                self.failed_before += 1
                self._note(key, error)
            elif not work.has_files(key):
                self.incomplete.add(key_digest(key))
                continue
            there.add(key_digest(key))
        return there

    def add(self, row: dict[str, Any]) -> None:
        error = row.get("error")
        if error is not None:
            self.failed += 1
            self._note(row["path"], error)
        if key_digest(row["path"]) in self.incomplete:
            self.repeated += 1
            self.completed += error is None
            return
        self.analysed += error is None
        self.rows.append(row)
        if len(self.rows) >= PART_ROWS or time.monotonic() - self.written > PART_SECONDS:
            self.flush()

    def _note(self, key: str, error: str) -> None:
        if len(self.errors) < MAX_ERRORS:
            self.errors[key] = error

    def flush(self) -> None:
        if self.rows:
            self.folder.write(self.rows, self.columns)
        self.rows, self.written = [], time.monotonic()
