"""A batch: every picture of a source once, however often the run is interrupted."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from vitviz.analysis.analysis import Analysis
from vitviz.analysis.batches import BatchQueue, FailedAnalysis
from vitviz.analysis.encoder import MAX_BYTES, Encoder, analyze
from vitviz.attention.machine import free_memory
from vitviz.datasets.output import OutputFolder, key_digest
from vitviz.datasets.readers import Item
from vitviz.datasets.request import BatchRequest
from vitviz.datasets.rows import Found, Source, digest, failed_row, found_of, row, schema
from vitviz.datasets.writers import Writer
from vitviz.errors.arguments import whole
from vitviz.errors.kinds import VitvizError
from vitviz.images.preprocessing import PreparedImage
from vitviz.progress import Progress

# A run that is killed has to compute again what it found in the last half minute, or of so many pictures.
PART_ROWS, PART_SECONDS = 256, 30.0
WORKERS = 2
# More pictures than this at once gain nothing: the products of a layer are large by then.
MOST_AT_ONCE, MOST_ON_CARD = 32, 256
# The rest is for pictures that are opened ahead, for the table, and for others.
MEMORY_SHARE = 0.5
# A larger picture waits for its turn at this longer side, where nobody asks for it at its own size.
WAITING_PIXELS, WAITING_SIDE = 2**20, 1024


@dataclass(frozen=True)
class Summary:
    """How a run ended.

    Args:
        analysed: pictures of which something was found.
        failed: pictures that could not be opened or analysed, whose rows say why.
        kept: pictures whose rows were there before.
        seconds: that the run took.
        waited: seconds of it for which the model waited for pictures to be opened.
        batch_size: most pictures that were encoded together.
    """

    analysed: int
    failed: int
    kept: int
    seconds: float
    waited: float
    batch_size: int


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
    report: Callable[[Progress], None] | None = None,
) -> Summary:
    """Answer a request for every picture, and keep the answers as Parquet files in ``output/parts``.

    A run over the same source with the same request computes only what is missing. Whatever ends it, no part is half
    written and no picture is counted twice.

    Args:
        request: what is asked about every picture.
        items: the pictures, as :func:`vitviz.datasets.read_items` gives them.
        output: the folder; an empty or new one, or that of a run with the same request.
        batch_size: most pictures that are encoded together; :func:`fitting_batch_size` where it is not given.
        max_bytes, workers: as :func:`vitviz.analyze_batch` takes them.
        writers: what is written beside the table, of every picture that is analysed in this run.
        thumbnails: whether rows get small pictures, for the gallery.
        report: receives the pictures that are done, and the total where it is known, else 0; an exception that it
            raises ends the run, with all that was found written.

    Raises:
        ConfigError: the folder holds something else, somebody else writes there, or it cannot be written.
        MethodError, QueryError: the model cannot serve the request: it has no such class, layer, head or token.
    """
    batch_size = fitting_batch_size(request, max_bytes) if batch_size is None else whole("batch_size", batch_size, 1)
    whole("workers", workers, 1)
    columns = schema(request, rehearsed(request), thumbnails)
    folder = OutputFolder(output, request.to_json())
    with folder.locked():
        encoder = encoder_of(request, max_bytes)
        run = _Run(request, encoder, folder, columns, writers, thumbnails, report)
        run.start(items)
        queue = BatchQueue(encoder, run.waiting(), batch_size, workers=workers, prepare=run.prepare)
        batches = queue.batches()
        try:
            for found in batches:
                run.take(found)
        finally:
            batches.close()
            run.flush()
        seconds = time.monotonic() - run.started
        return Summary(run.analysed, run.failed, run.kept, seconds, queue.waited, batch_size)


def encoder_of(request: BatchRequest, max_bytes: int = MAX_BYTES) -> Encoder:
    """What encodes the pictures of a request; maps that can be computed for many pictures at once keep no matrices."""
    return Encoder(request.model, request.fit, request.resolution, keep_bytes=0, max_bytes=max_bytes)


def fitting_batch_size(request: BatchRequest, max_bytes: int = MAX_BYTES) -> int:
    """How many pictures are best encoded together: a power of two, by :func:`vitviz.cost` and the memory there is.

    Args:
        request: with the model and the size of its input.
        max_bytes: most that one batch may need.
    """
    encoder, device = encoder_of(request), request.model.network.device
    own = encoder.preprocessing
    if device.type == "cuda":
        free, size = torch.cuda.mem_get_info(device)[0], MOST_ON_CARD
    else:
        free, size = free_memory(), MOST_AT_ONCE
    most = min(max_bytes, int(free * MEMORY_SHARE))
    while size > 1 and encoder.cost_at(own.height, own.width, size).nbytes > most:
        size //= 2
    return size


def rehearsed(request: BatchRequest) -> Found:
    """The answer for a blank picture: what is wrong with a request itself shows at once, and not in every row."""
    preprocessing = request.model.preprocessing
    blank = np.full((preprocessing.height, preprocessing.width, 3), 127, np.uint8)
    return Found.of(analyze(blank, request.model, request.fit, resolution=request.resolution), request)


class _Run:
    """One run over a source.

    Args:
        request: what is asked.
        encoder: of the pictures.
        folder: where the rows go.
        columns: of the rows.
        writers, thumbnails, report: as :func:`run_batch` takes them.
    """

    def __init__(
        self,
        request: BatchRequest,
        encoder: Encoder,
        folder: OutputFolder,
        columns: Any,
        writers: Sequence[Writer],
        thumbnails: bool,
        report: Callable[[Progress], None] | None,
    ) -> None:
        self.request, self.encoder, self.folder, self.columns = request, encoder, folder, columns
        self.writers, self.thumbnails, self.report = writers, thumbnails, report
        self.keeps_pictures = any(writer.whole_pictures for writer in writers)
        self.rows: list[dict[str, Any]] = []
        self.sent: deque[Item] = deque()
        self.opened: dict[str, Source] = {}
        self.analysed = self.failed = self.kept = self.total = 0
        self.started = self.written = time.monotonic()

    def start(self, items: Iterable[Item]) -> None:
        self.there = self.folder.keys()
        self.items = iter(items)
        self.total = len(items) if isinstance(items, list | tuple) else 0

    def waiting(self) -> Iterator[Item]:
        """What is still to be analysed."""
        for item in self.items:
            key = key_digest(item.key)
            if key in self.there:
                self.kept += 1
                continue
            self.there.add(key)
            self.sent.append(item)
            yield item

    def prepare(self, item: Item, place: int) -> PreparedImage:
        """Open a picture; the workers do."""
        source = self.opened[item.key] = Source(digest(item))
        prepared = self.encoder.prepare(item.source, place)
        width, height = prepared.image.size
        self.opened[item.key] = replace(source, width=width, height=height)
        return prepared if self.keeps_pictures or width * height <= WAITING_PIXELS else _shrunk(prepared)

    def take(self, found: deque[Analysis | FailedAnalysis]) -> None:
        """Keep what was found of the next pictures."""
        computed = iter(found_of([each for each in found if isinstance(each, Analysis)], self.request))
        answers = [each.error if isinstance(each, FailedAnalysis) else next(computed) for each in found]
        found.clear()
        while answers:
            self._keep(self.sent.popleft(), answers.pop(0))
            if len(self.rows) >= PART_ROWS or time.monotonic() - self.written > PART_SECONDS:
                self.flush()
            if self.report is not None:
                self.report(Progress(self.analysed + self.failed + self.kept, self.total))

    def flush(self) -> None:
        if self.rows:
            self.folder.write(self.rows, self.columns)
        self.rows, self.written = [], time.monotonic()

    def _keep(self, item: Item, answer: Found | VitvizError) -> None:
        source = self.opened.pop(item.key)
        try:
            if isinstance(answer, VitvizError):
                raise answer
            for writer in self.writers:
                writer.write(answer, lambda ending, at=writer.folder: self.folder.beside(at, item.key, ending))  # type: ignore[misc]
            self.rows.append(row(item.key, source, answer, self.thumbnails))
            self.analysed += 1
        except VitvizError as error:
            self.rows.append(failed_row(item.key, source, error))
            self.failed += 1


def _shrunk(prepared: PreparedImage) -> PreparedImage:
    """The same input on a smaller picture, which is made in a fraction of the time of decoding."""
    image = prepared.image
    scale = WAITING_SIDE / max(image.size)
    width, height = (max(1, round(side * scale)) for side in image.size)
    small = image.resize((width, height), Image.Resampling.BOX, reducing_gap=1.0)
    return replace(prepared, image=small, geometry=prepared.geometry.resized(width, height))
