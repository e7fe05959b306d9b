"""What is done with the pictures of a batch, on whatever machine: opened, analysed, and made rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from vitviz.analysis.analysis import Analysis
from vitviz.analysis.batches import BatchQueue, FailedAnalysis
from vitviz.analysis.encoder import MAX_BYTES, Encoder
from vitviz.attention.machine import free_memory
from vitviz.datasets.output import beside, key_digest, path_beside
from vitviz.datasets.readers import Item
from vitviz.datasets.request import BatchRequest
from vitviz.datasets.rows import Found, Source, digest, failed_row, found_of, row
from vitviz.datasets.writers import Writer
from vitviz.errors.arguments import integer
from vitviz.errors.kinds import VitvizError
from vitviz.images.preprocessing import PreparedImage

WORKERS = 2
# More pictures than this at once gain nothing: the products of a layer are large by then.
MOST_AT_ONCE, MOST_ON_CARD = 32, 256
# The rest is for pictures that are opened ahead, for the table, and for others.
MEMORY_SHARE = 0.5
# A larger picture waits for its turn at this longer side, where nobody asks for it at its own size.
WAITING_PIXELS, WAITING_SIDE = 2**20, 1024


@dataclass(frozen=True)
class Work:
    """What is done with every picture. It can be sent to other machines.

    Args:
        request: what is asked about every picture.
        output: the folder below which ``writers`` write.
        batch_size: most pictures that are encoded together; :func:`fitting_batch_size` where it is not given.
        max_bytes, workers: as :func:`vitviz.analyze_batch` takes them.
        writers: what is written beside the table.
        thumbnails: whether rows get small pictures, for the gallery.

    Raises:
        ConfigError: a number is not whole, or below 1.
    """

    request: BatchRequest
    output: Path
    batch_size: int | None = None
    max_bytes: int = MAX_BYTES
    workers: int = WORKERS
    writers: tuple[Writer, ...] = ()
    thumbnails: bool = False

    def __post_init__(self) -> None:
        if self.batch_size is not None:
            integer("batch_size", self.batch_size, 1)
        integer("workers", self.workers, 1)

    def has_files(self, key: str) -> bool:
        """Whether all that is written beside the table is there, of the picture of a row."""
        maps = [each.name for each in self.request.maps]
        return all(
            path_beside(self.output, writer.folder, key, ending).is_file()
            for writer in self.writers
            for ending in writer.endings(maps)
        )


class Pending:
    """The pictures of a source that have no row yet, each once.

    Args:
        items: all of them.
        there: digests of the keys that have one, by :func:`vitviz.datasets.output.key_digest`; grows.

    Attributes:
        kept: how many of them had a row.
    """

    def __init__(self, items: Iterable[Item], there: set[bytes]) -> None:
        self.items, self.there, self.kept = items, there, 0

    def __iter__(self) -> Iterator[Item]:
        for item in self.items:
            key = key_digest(item.key)
            if key in self.there:
                self.kept += 1
                continue
            self.there.add(key)
            yield item


def encoder_of(request: BatchRequest, max_bytes: int = MAX_BYTES) -> Encoder:
    """What encodes the pictures of a request; maps that can be computed for many pictures at once keep no matrices."""
    return Encoder(request.model, request.fit, request.resolution, keep_bytes=0, max_bytes=max_bytes)


def fitting_batch_size(request: BatchRequest, max_bytes: int = MAX_BYTES, share: float = 1.0) -> int:
    """How many pictures are best encoded together: a power of two, by :func:`vitviz.cost` and the memory there is.

    Args:
        request: with the model and the size of its input.
        max_bytes: most that one batch may need.
        share: of the machine's free memory that is for this model, in (0, 1]; a graphics card is for it alone.
    """
    encoder, device = encoder_of(request), request.model.network.device
    own = encoder.preprocessing
    if device.type == "cuda":
        free, size = float(torch.cuda.mem_get_info(device)[0]), MOST_ON_CARD
    else:
        free, size = free_memory() * share, MOST_AT_ONCE
    most = min(max_bytes, int(free * MEMORY_SHARE))
    while size > 1 and encoder.cost_at(own.height, own.width, size).nbytes > most:
        size //= 2
    return size


class RowMaker:
    """Pictures in, rows out, in the same order.

    Args:
        work: what is done with them.
        share: of the machine's free memory that is for this one.

    Attributes:
        batch_size: most pictures that are encoded together.
        waited: seconds for which the model had nothing to do, since pictures were still being opened.
    """

    def __init__(self, work: Work, share: float = 1.0) -> None:
        self.work, self.waited = work, 0.0
        size = work.batch_size
        self.batch_size = fitting_batch_size(work.request, work.max_bytes, share) if size is None else size
        self.encoder = encoder_of(work.request, work.max_bytes)
        self.keeps_pictures = any(writer.whole_pictures for writer in work.writers)

    def rows(self, items: Iterable[Item]) -> Generator[dict[str, Any], None, None]:
        """The row of each picture; closing it leaves no thread running."""
        sent, opened = deque[Item](), dict[str, Source]()

        def sending() -> Iterator[Item]:
            for item in items:
                sent.append(item)
                yield item

        def prepare(item: Item, place: int) -> PreparedImage:
            source = opened[item.key] = Source(digest(item))
            prepared = self.encoder.prepare(item.source, place)
            width, height = prepared.image.size
            opened[item.key] = replace(source, width=width, height=height)
            return prepared if self.keeps_pictures or width * height <= WAITING_PIXELS else _shrunk(prepared)

        queue = BatchQueue(self.encoder, sending(), self.batch_size, workers=self.work.workers, prepare=prepare)
        before, batches = self.waited, queue.batches()
        try:
            for found in batches:
                self.waited = before + queue.waited
                answers = self._answers(found)
                while answers:
                    item = sent.popleft()
                    yield self._row(item, opened.pop(item.key), answers.popleft())
        finally:
            batches.close()

    def _answers(self, found: deque[Analysis | FailedAnalysis]) -> deque[Found | VitvizError]:
        """What was found of the pictures that were encoded together; empties ``found``."""
        computed = iter(found_of([each for each in found if isinstance(each, Analysis)], self.work.request))
        answers = deque(each.error if isinstance(each, FailedAnalysis) else next(computed) for each in found)
        found.clear()
        return answers

    def _row(self, item: Item, source: Source, answer: Found | VitvizError) -> dict[str, Any]:
        try:
            if isinstance(answer, VitvizError):
                raise answer
            for writer in self.work.writers:
                writer.write(answer, lambda ending, at=writer.folder: beside(self.work.output, at, item.key, ending))  # type: ignore[misc]
            return row(item.key, source, answer, self.work.thumbnails)
        except VitvizError as error:
            return failed_row(item.key, source, error)


def _shrunk(prepared: PreparedImage) -> PreparedImage:
    """The same input on a smaller picture, which is made in a fraction of the time of decoding."""
    image = prepared.image
    scale = WAITING_SIDE / max(image.size)
    width, height = (max(1, round(side * scale)) for side in image.size)
    small = image.resize((width, height), Image.Resampling.BOX, reducing_gap=1.0)
    return replace(prepared, image=small, geometry=prepared.geometry.resized(width, height))
