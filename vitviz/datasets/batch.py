"""A batch: every picture of a source once, however often the run is interrupted."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitviz.analysis.analysis import Analysis
from vitviz.analysis.batches import FailedAnalysis, analyze_batch
from vitviz.analysis.encoder import MAX_BYTES, analyze
from vitviz.datasets.output import OutputFolder, key_digest
from vitviz.datasets.readers import Item
from vitviz.datasets.request import BatchRequest
from vitviz.datasets.rows import Found, failed_row, row, schema
from vitviz.errors.arguments import whole
from vitviz.errors.kinds import VitvizError
from vitviz.progress import Progress
from vitviz.visualization.heatmaps import Style
from vitviz.weights.formats.atomic import atomic_write

# A run that is killed has to compute again what it found in the last half minute, or of so many pictures.
PART_ROWS, PART_SECONDS = 256, 30.0
BATCH_SIZE, WORKERS = 32, 2


@dataclass(frozen=True)
class Summary:
    """How a run ended.

    Args:
        analysed: pictures of which something was found.
        failed: pictures that could not be opened or analysed, whose rows say why.
        kept: pictures whose rows were there before.
        seconds: that the run took.
    """

    analysed: int
    failed: int
    kept: int
    seconds: float


def run_batch(
    request: BatchRequest,
    items: Iterable[Item],
    output: Path,
    *,
    batch_size: int = BATCH_SIZE,
    max_bytes: int = MAX_BYTES,
    workers: int = WORKERS,
    pictures: Style | None = None,
    numbers: bool = False,
    report: Callable[[Progress], None] | None = None,
) -> Summary:
    """Answer a request for every picture, and keep the answers as Parquet files in ``output/parts``.

    A run over the same source with the same request computes only what is missing. Whatever ends it, no part is half
    written and no picture is counted twice.

    Args:
        request: what is asked about every picture.
        items: the pictures, as :func:`vitviz.datasets.read_items` gives them.
        output: the folder; an empty or new one, or that of a run with the same request.
        batch_size, max_bytes, workers: as :func:`vitviz.analyze_batch` takes them.
        pictures: how overlays of all maps are drawn, as PNG files in ``output/pictures``; None for no overlays.
        numbers: whether every picture's maps are also written as an NPZ file in ``output/numbers``.
        report: receives the pictures that are done, and the total where it is known, else 0; an exception that it
            raises ends the run, with all that was found written.

    Raises:
        ConfigError: the folder holds something else, somebody else writes there, or it cannot be written.
        MethodError, QueryError: the model cannot serve the request: it has no such class, layer, head or token.
    """
    whole("batch_size", batch_size, 1)
    columns = schema(request, rehearsed(request))
    folder = OutputFolder(output, request.to_json())
    with folder.locked():
        run = _Run(request, folder, columns, pictures, numbers, report)
        run.start(items)
        settings: dict[str, Any] = {"batch_size": batch_size, "max_bytes": max_bytes, "workers": workers}
        analyses = analyze_batch(
            run.sources(), request.model, request.fit, resolution=request.resolution, on_error="keep", **settings
        )
        try:
            for found in analyses:
                run.take(found)
        finally:
            analyses.close()
            run.flush()
        return run.summary()


def rehearsed(request: BatchRequest) -> Found:
    """The answer for a blank picture: what is wrong with a request itself shows at once, and not in every row."""
    preprocessing = request.model.preprocessing
    blank = np.full((preprocessing.height, preprocessing.width, 3), 127, np.uint8)
    return Found.of(analyze(blank, request.model, request.fit, resolution=request.resolution), request)


class _Run:
    """One run over a source.

    Args:
        request: what is asked.
        folder: where the rows go.
        columns: of the rows.
        pictures, numbers, report: as :func:`run_batch` takes them.
    """

    def __init__(
        self,
        request: BatchRequest,
        folder: OutputFolder,
        columns: Any,
        pictures: Style | None,
        numbers: bool,
        report: Callable[[Progress], None] | None,
    ) -> None:
        self.request, self.folder, self.columns = request, folder, columns
        self.pictures, self.numbers, self.report = pictures, numbers, report
        self.rows: list[dict[str, Any]] = []
        self.sent: deque[Item] = deque()
        self.analysed = self.failed = self.kept = self.total = 0
        self.started = self.written = time.monotonic()

    def start(self, items: Iterable[Item]) -> None:
        self.there = self.folder.keys()
        self.items = iter(items)
        self.total = len(items) if isinstance(items, list | tuple) else 0

    def sources(self) -> Iterator[Path | bytes]:
        """What is still to be analysed."""
        for item in self.items:
            key = key_digest(item.key)
            if key in self.there:
                self.kept += 1
                continue
            self.there.add(key)
            self.sent.append(item)
            yield item.source

    def take(self, found: Analysis | FailedAnalysis) -> None:
        """Keep what was found of the next picture."""
        item = self.sent.popleft()
        try:
            if isinstance(found, FailedAnalysis):
                raise found.error
            answer = Found.of(found, self.request)
            self._write_beside(item, answer)
            self.rows.append(row(item, answer))
            self.analysed += 1
        except VitvizError as error:
            self.rows.append(failed_row(item, error))
            self.failed += 1
        if len(self.rows) >= PART_ROWS or time.monotonic() - self.written > PART_SECONDS:
            self.flush()
        if self.report is not None:
            self.report(Progress(self.analysed + self.failed + self.kept, self.total))

    def flush(self) -> None:
        if self.rows:
            self.folder.write(self.rows, self.columns)
        self.rows, self.written = [], time.monotonic()

    def summary(self) -> Summary:
        return Summary(self.analysed, self.failed, self.kept, time.monotonic() - self.started)

    def _write_beside(self, item: Item, found: Found) -> None:
        if self.pictures is not None:
            for name, heatmap in found.maps.items():
                heatmap.save(self.folder.beside("pictures", item.key, f"{_file_name(name)}.png"), self.pictures)
        if self.numbers:
            arrays = {name: heatmap.numpy() for name, heatmap in found.maps.items()}
            with atomic_write(self.folder.beside("numbers", item.key, "npz")) as file:
                np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def _file_name(column: str) -> str:
    """Of a column, without the signs that some file systems refuse."""
    return "".join(sign if sign.isalnum() or sign in "._-=," else "_" for sign in column)
