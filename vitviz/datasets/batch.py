"""A batch: it computes every picture of a source once, even if the run is interrupted and resumed."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from vitviz.analysis.encoder import MAX_BYTES
from vitviz.datasets.cluster import Cluster, RayRows
from vitviz.datasets.output import OutputFolder, key_digest, read_rows
from vitviz.datasets.readers import LABEL, Item, Items, read_items
from vitviz.datasets.request import BatchRequest
from vitviz.datasets.rows import INSIDE_AREA, blank_result, schema
from vitviz.datasets.true_classes import folder_of
from vitviz.datasets.work import FILE_DIGEST_BYTES, WORKERS, BatchSettings, RowComputer, UnprocessedPictures
from vitviz.datasets.writers import Writer
from vitviz.errors.arguments import instance, named_arguments, word
from vitviz.errors.kinds import ConfigError
from vitviz.images.file_kinds import left_out
from vitviz.progress import Progress
from vitviz.system.paths import user_path

LOCAL, RAY = "local", "ray"
ENGINES = {LOCAL: "in this process", RAY: "Ray Data, on this machine or on a cluster"}
"""Where a batch runs, by name."""
# A part is written after this many rows or seconds, so a killed run loses no more than that.
PART_ROWS, PART_SECONDS = 256, 30.0
UNKNOWN = "what the source leaves out is not known here, since workers of Ray read it: read_items(…).left_out names it"
# How many errors a summary names; the table has all of them.
MAX_ERRORS = 10


@dataclass
class Summary:
    """The counts and times of a run.

    Attributes:
        analysed: pictures that were analysed.
        failed: pictures that could not be opened or analysed; their rows have an error.
        skipped: pictures that had a row from an earlier run.
        failed_before: rows with an error from an earlier run.
        completed: pictures that had a row from an earlier run and whose other files this run wrote.
        errors: the first errors of this run and of earlier ones, by picture.
        seconds: duration of the run.
        wait_seconds: seconds for which the model waited for pictures to be opened; None if several models ran.
        batch_size: most pictures that were encoded together; None if every worker chose its own.
        labelled: pictures of this run whose table or folder names a class of the model.
        other_folders: the number of this run's pictures by the names of folders, or classes of a table, that are none
            of the model's.
        unmasked: pictures of this run without a mask, where the request names a folder of masks.
        left_out: a sentence on what the source leaves out, and why; empty if it is nothing.
    """

    analysed: int = 0
    failed: int = 0
    skipped: int = 0
    failed_before: int = 0
    completed: int = 0
    errors: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    wait_seconds: float | None = None
    batch_size: int | None = None
    labelled: int = 0
    other_folders: Counter[str] = field(default_factory=Counter)
    unmasked: int = 0
    left_out: str = ""


@named_arguments(ConfigError)
def run_batch(
    request: BatchRequest,
    items: str | os.PathLike[str] | Iterable[Item | str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    batch_size: int | None = None,
    max_bytes: int = MAX_BYTES,
    workers: int = WORKERS,
    writers: Sequence[Writer] = (),
    thumbnails: bool = False,
    retry_failed: bool = False,
    engine: str = LOCAL,
    cluster: Cluster | None = None,
    report: Callable[[Progress], None] | None = None,
) -> Summary:
    """Compute a request for every picture, and write the rows as Parquet files in ``output/parts``.

    Another run over the same source with the same request computes only missing rows, with any engine. However a run
    ends, every part is complete and no picture has two rows.

    Args:
        request: what is computed for every picture.
        items: the pictures: a source as :func:`vitviz.read_items` takes it, what that gives, or paths, in a list or any
            other iterable. The engine ``"ray"`` turns them into a list first, unless their source streams.
        output: an empty or new folder, or that of a run with the same request.
        batch_size: most pictures that are encoded together; by default chosen from :func:`vitviz.cost` and the free
            memory.
        max_bytes, workers: as :func:`vitviz.analyze_batch` takes them, for every worker of a cluster.
        writers: kinds of files that are written beside the table. Missing files of pictures with a row are written,
            too.
        thumbnails: whether rows get thumbnails, for the gallery.
        retry_failed: whether pictures whose rows have an error are analysed again.
        engine: a name in :data:`vitviz.datasets.ENGINES`: ``"local"``, in this process, or ``"ray"``.
        cluster: where Ray runs; by default on this machine.
        report: receives how many pictures are done, and the total, or 0 if it is not known; an exception that it
            raises ends the run after all rows so far are written.

    Raises:
        ConfigError: the folder holds something else, is in use by another run, or cannot be written; a picture is no
            longer that of its row; or the engine is unknown, not installed, or cannot reach its cluster.
        DataError: the cluster failed.
        MethodError, QueryError: the model does not support the request: it has no such class, layer, head or token.

    >>> request = vitviz.BatchRequest(model, maps=(vitviz.MapRequest("rollout"),))
    >>> summary = vitviz.run_batch(request, ["cat.jpg", "flower.jpg"], "rows")
    >>> summary.analysed
    2
    """
    instance("request", request, BatchRequest, "vitviz.BatchRequest(model, (vitviz.MapRequest('rollout'),))")
    found = items if isinstance(items, Iterable) and not isinstance(items, str) else read_items(items)
    if isinstance(found, Items):
        pictures: Iterable[Item] = found if found.reader.streams else list(found)
    else:
        # An iterator may read the content of each picture as it comes.
        pictures = map(_item, found) if isinstance(found, Iterator) and engine == LOCAL else [*map(_item, found)]
    word("engine", engine, ENGINES, ConfigError)
    if engine == LOCAL and cluster not in (None, Cluster()):
        raise ConfigError("engine='local' has no cluster; expected engine='ray'")
    settings = BatchSettings(request, user_path(output), batch_size, max_bytes, workers, tuple(writers), thumbnails)
    example, request_json = blank_result(request), request.to_json()
    columns = schema(request, example, request_json, thumbnails)
    source = RowComputer(settings) if engine == LOCAL else RayRows(settings, columns, cluster or Cluster())
    folder = OutputFolder(settings.output, request_json)
    with folder.locked():
        if retry_failed:
            folder.drop_failures()
        table = _Table(folder, columns)
        started, unprocessed = time.monotonic(), UnprocessedPictures(pictures, *table.begin(settings))
        total = len(pictures) if isinstance(pictures, list) else 0
        rows = source.rows(unprocessed)
        try:
            for row in rows:
                table.add(row)
                if report is not None:
                    done = table.summary.analysed + table.summary.failed + table.summary.completed
                    report(Progress(done + unprocessed.skipped, total))
        finally:
            rows.close()
            table.flush()
        summary = table.summary
        summary.skipped += unprocessed.skipped
        summary.seconds = time.monotonic() - started
        summary.wait_seconds, summary.batch_size = source.wait_seconds, source.batch_size
        is_unknown = engine == RAY and isinstance(pictures, Items)
        summary.left_out = UNKNOWN if is_unknown else left_out(getattr(found, "left_out", ()))
        return summary


def _item(picture: Any) -> Item:
    """A picture by its path, or as it is given."""
    if isinstance(picture, str | os.PathLike):
        return Item(str(picture), user_path(picture))
    return instance("items", picture, Item, "vitviz.datasets.Item('name', numpy.asarray(image))")


class _Table:
    """Collects rows and writes them to the folder in parts.

    Args:
        folder: of the batch.
        columns: of the rows, a ``pyarrow.Schema``.
    """

    def __init__(self, folder: OutputFolder, columns: Any) -> None:
        self.folder, self.columns = folder, columns
        self.rows, self.incomplete = list[dict[str, Any]](), set[bytes]()
        self.summary, self.written = Summary(), time.monotonic()

    def begin(self, settings: BatchSettings) -> tuple[set[bytes], dict[bytes, bytes]]:
        """What :class:`UnprocessedPictures` takes: a million pictures take some 200 MB.

        Raises:
            ConfigError: a part is damaged.
        """
        complete, files = set[bytes](), dict[bytes, bytes]()
        for row in read_rows(self.folder.path, ["path", "error", "sha256"]):
            key, error, sha256 = row["path"], row["error"], row["sha256"]
            digest = key_digest(key)
            if error is not None:
                self.summary.failed_before += 1
                self._note(key, error)
            else:
                if sha256 is not None:
                    files[digest] = bytes.fromhex(sha256)[:FILE_DIGEST_BYTES]
                if not settings.has_files(key):
                    self.incomplete.add(digest)
                    continue
            complete.add(digest)
        return complete, files

    def add(self, row: dict[str, Any]) -> None:
        error, counts, folder = row.get("error"), self.summary, row.get(LABEL) or folder_of(row["path"])
        if error is not None:
            counts.failed += 1
            self._note(row["path"], error)
        if key_digest(row["path"]) in self.incomplete:
            counts.skipped += 1
            counts.completed += error is None
            return
        counts.analysed += error is None
        counts.labelled += row.get("true_class") is not None
        if folder and row.get("true_class", folder) is None:
            counts.other_folders[folder] += 1
        counts.unmasked += error is None and row.get(INSIDE_AREA, 0.0) is None
        self.rows.append(row)
        if len(self.rows) >= PART_ROWS or time.monotonic() - self.written > PART_SECONDS:
            self.flush()

    def _note(self, key: str, error: str) -> None:
        if len(self.summary.errors) < MAX_ERRORS:
            self.summary.errors[key] = error

    def flush(self) -> None:
        if self.rows:
            self.folder.write(self.rows, self.columns)
        self.rows, self.written = [], time.monotonic()
