"""The work of a batch on one machine: it opens pictures, analyses them and returns their rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from vitviz.analysis.analysis import Analysis
from vitviz.analysis.batches import BatchQueue, FailedAnalysis
from vitviz.analysis.encoder import MAX_BYTES
from vitviz.datasets.output import file_name, key_digest, make_file_path
from vitviz.datasets.readers import LABEL, Item
from vitviz.datasets.request import BatchRequest
from vitviz.datasets.rows import FileInfo, PictureResult, compute_results, file_digest, row_of
from vitviz.datasets.writers import Writer
from vitviz.errors.arguments import integer
from vitviz.errors.kinds import ConfigError, VitvizError
from vitviz.images.image_facts import ImageFacts
from vitviz.images.preprocessing import PreparedImage
from vitviz.system.machine import free_memory

WORKERS = 2
# Larger batches are no faster: by then the matrix products of a layer are large enough.
MAX_BATCH_CPU, MAX_BATCH_GPU = 32, 256
# The rest of the free memory is for pictures opened ahead, for the table, and for other programs.
MEMORY_SHARE = 0.5
# So many of the digest of a file tell it from another one.
FILE_DIGEST_BYTES = 8
# A picture with more pixels is reduced to this longer side while it is queued, unless a writer needs its full size.
MAX_QUEUED_PIXELS, QUEUED_SIDE_PX = 2**20, 1024


@dataclass(frozen=True)
class BatchSettings:
    """The settings of a batch. It can be pickled for other machines.

    Args:
        request: what is computed for every picture.
        output: the folder below which ``writers`` write.
        batch_size: most pictures that are encoded together; :func:`fitting_batch_size` by default.
        max_bytes, workers: as :func:`vitviz.analyze_batch` takes them.
        writers: the kinds of files that are written beside the table.
        thumbnails: whether rows get thumbnails, for the gallery.

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
        """Whether all files beside the table exist for the picture with this key."""
        return all(
            (self.output / writer.folder / file_name(key, ending)).is_file()
            for writer in self.writers
            for ending in writer.endings([each.name for each in self.request.maps])
        )


class UnprocessedPictures:
    """The pictures of a source that have no row yet, each once.

    Args:
        items: all pictures of the source.
        done_keys: digests of the keys that have a row, by :func:`vitviz.datasets.output.key_digest`; iterating adds to
            it.
        files: the first :data:`FILE_DIGEST_BYTES` of the digest of a row's file, by the digest of its key; iterating
            removes from it, since a later picture with the same key has no row.

    Attributes:
        skipped: how many pictures had a row.

    Raises:
        ConfigError: while iterating, for a picture whose file is no longer that of its row.
    """

    def __init__(self, items: Iterable[Item], done_keys: set[bytes], files: dict[bytes, bytes]) -> None:
        self.items, self.done_keys, self.files, self.skipped = items, done_keys, files, 0

    def __iter__(self) -> Iterator[Item]:
        for item in self.items:
            key = key_digest(item.key)
            before = self.files.pop(key, None)
            now = None if before is None else file_digest(item)
            if now is not None and bytes.fromhex(now)[:FILE_DIGEST_BYTES] != before:
                expected = "expected the same picture, or another folder for the results"
                raise ConfigError(f"{item.key}: its file has changed since its row was written; {expected}")
            if key in self.done_keys:
                self.skipped += 1
                continue
            self.done_keys.add(key)
            yield item


def fitting_batch_size(request: BatchRequest, max_bytes: int = MAX_BYTES, share: float = 1.0) -> int:
    """The best batch size: a power of two, by :func:`vitviz.cost` and the free memory.

    Args:
        request: has the model and the size of its input.
        max_bytes: most that one batch may need.
        share: the share of the machine's free memory for this model, in (0, 1]; it has a GPU to itself.
    """
    encoder, device = request.encoder(), request.model.network.device
    preprocessing = encoder.preprocessing
    if device.type == "cuda":
        free_bytes, size = float(torch.cuda.mem_get_info(device)[0]), MAX_BATCH_GPU
    else:
        free_bytes, size = free_memory() * share, MAX_BATCH_CPU
    budget_bytes = min(max_bytes, int(free_bytes * MEMORY_SHARE))
    while size > 1 and encoder.cost_at(preprocessing.height, preprocessing.width, size).nbytes > budget_bytes:
        size //= 2
    return size


class RowComputer:
    """Turns pictures into rows, in the same order.

    Args:
        settings: of the batch.
        share: as :func:`fitting_batch_size` takes it.

    Attributes:
        batch_size: most pictures that are encoded together.
        wait_seconds: seconds for which the model waited for pictures that were still being opened, in the last call.
    """

    def __init__(self, settings: BatchSettings, share: float = 1.0) -> None:
        self.settings, self.wait_seconds = settings, 0.0
        size = settings.batch_size
        self.batch_size = fitting_batch_size(settings.request, settings.max_bytes, share) if size is None else size
        self.encoder = settings.request.encoder(settings.max_bytes)
        self.keeps_pictures = any(writer.whole_pictures for writer in settings.writers)

    def rows(self, items: Iterable[Item]) -> Generator[dict[str, Any], None, None]:
        """The row of each picture; closing the generator leaves no thread running."""
        file_infos = dict[str, FileInfo]()

        def prepare(item: Item, position: int) -> PreparedImage:
            info = file_infos[item.key] = FileInfo(file_digest(item), label=item.label)
            prepared = self.encoder.prepare(item.source, position)
            width, height = ImageFacts.of(prepared.image).size
            file_infos[item.key] = replace(info, width=width, height=height)
            return prepared if self.keeps_pictures or width * height <= MAX_QUEUED_PIXELS else _shrink(prepared)

        queue = BatchQueue(self.encoder, iter(items), self.batch_size, workers=self.settings.workers, prepare=prepare)
        batches = queue.batches()
        try:
            for batch in batches:
                self.wait_seconds = queue.wait_seconds
                results = self._results(batch)
                while results:
                    item, result = results.popleft()
                    yield self._write_row(item, file_infos.pop(item.key), result)
        finally:
            batches.close()

    def _results(
        self, batch: deque[tuple[Item, Analysis | FailedAnalysis]]
    ) -> deque[tuple[Item, PictureResult | VitvizError]]:
        """The results of pictures that were encoded together; empties ``batch`` to free their memory."""
        analyses = [each for _, each in batch if isinstance(each, Analysis)]
        computed = iter(compute_results(analyses, self.settings.request))
        results = deque(
            (item, each.error if isinstance(each, FailedAnalysis) else next(computed)) for item, each in batch
        )
        batch.clear()
        return results

    def _write_row(self, item: Item, info: FileInfo, result: PictureResult | VitvizError) -> dict[str, Any]:
        """The row of a picture, once its other files are written; with an error in its row, it has none."""
        row = row_of(item.key, info, result, self.settings.request, self.settings.thumbnails)
        try:
            if isinstance(result, PictureResult) and row["error"] is None:
                for writer in self.settings.writers:
                    writer.write(result, partial(make_file_path, self.settings.output, writer.folder, item.key))
        except VitvizError as error:
            row = row_of(item.key, info, error, self.settings.request, self.settings.thumbnails)
        # The label is of no column: the summary names those that are no class of the model.
        return {LABEL: item.label} | row


def _shrink(prepared: PreparedImage) -> PreparedImage:
    """The same input with a smaller picture; reducing it takes a fraction of the time of decoding."""
    image = prepared.image
    scale = QUEUED_SIDE_PX / max(image.size)
    width, height = (max(1, round(side * scale)) for side in image.size)
    small = image.resize((width, height), Image.Resampling.BOX, reducing_gap=1.0)
    # A box is in pixels of the file.
    replace(ImageFacts.of(image), reduced=small.size).keep(small)
    return replace(prepared, image=small, geometry=prepared.geometry.resized(width, height))
