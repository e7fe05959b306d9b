"""Many images, one model: encoded in batches while the next ones are opened."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
import torch
from PIL import Image

from vitviz.analysis.analysis import Analysis
from vitviz.analysis.encoder import KEEP_BYTES, MAX_BYTES, Encoder, check_order
from vitviz.errors.arguments import integer, named_arguments, word
from vitviz.errors.kinds import ConfigError, LimitError, VitvizError
from vitviz.images.preprocessing import PreparedImage
from vitviz.images.sources import COLUMN, ImageSource, Row, ValueRange, origin
from vitviz.weights import Model

# Batches that are opened and prepared before their turn comes.
AHEAD = 2
ON_ERROR = ("raise", "skip", "keep")


@dataclass(frozen=True)
class FailedAnalysis:
    """The placeholder of an image that could not be analysed, with ``on_error="keep"``.

    Args:
        source: the file that the image is from, or its place among the images, counted from 0.
        error: why there is no analysis.
    """

    source: Path | int | None
    error: VitvizError


@overload
def analyze_batch(
    images: Iterable[ImageSource | Row],
    model: Model,
    fit: str | None = None,
    *,
    batch_size: int = 8,
    on_error: Literal["raise", "skip"] = "raise",
    resolution: int | None = None,
    value_range: ValueRange | None = None,
    column: str = COLUMN,
    storage: str | None = None,
    keep_bytes: int = KEEP_BYTES,
    max_bytes: int = MAX_BYTES,
    workers: int = 2,
) -> Generator[Analysis, None, None]: ...


@overload
def analyze_batch(
    images: Iterable[ImageSource | Row],
    model: Model,
    fit: str | None = None,
    *,
    batch_size: int = 8,
    on_error: Literal["keep"],
    resolution: int | None = None,
    value_range: ValueRange | None = None,
    column: str = COLUMN,
    storage: str | None = None,
    keep_bytes: int = KEEP_BYTES,
    max_bytes: int = MAX_BYTES,
    workers: int = 2,
) -> Generator[Analysis | FailedAnalysis, None, None]: ...


@named_arguments(ConfigError)
def analyze_batch(
    images: Iterable[ImageSource | Row],
    model: Model,
    fit: str | None = None,
    *,
    batch_size: int = 8,
    on_error: str = "raise",
    resolution: int | None = None,
    value_range: ValueRange | None = None,
    column: str = COLUMN,
    storage: str | None = None,
    keep_bytes: int = KEEP_BYTES,
    max_bytes: int = MAX_BYTES,
    workers: int = 2,
) -> Generator[Analysis | FailedAnalysis, None, None]:
    """Run a model on many images, each once: what :func:`vitviz.analyze` gives for every one, in their order.

    Images that follow one another and have inputs of one size are encoded together. The others of the iterable are
    opened meanwhile, at most two batches ahead, so that it may be endless. Closing the analyses early waits for the
    images that are being opened, and leaves nothing running. Every analysis knows by :attr:`vitviz.Analysis.source`
    which file it is of, or else its place among the images, counted from 0.

    Args:
        images: each as :func:`vitviz.analyze` takes it. Only the thread that asks for the next analysis advances the
            iterable.
        model, fit, resolution, value_range, column, storage, keep_bytes: as :func:`vitviz.analyze` takes them.
        batch_size: most images that are encoded together.
        on_error: what becomes of an image that cannot be analysed. ``"raise"`` ends with its error, after the analyses
            of the images before it; ``"skip"`` goes on with the next; ``"keep"`` gives a :class:`FailedAnalysis` in its
            place. An error of the iterable itself always ends the analyses.
        max_bytes: most that one batch may need, as :func:`vitviz.cost` counts; larger ones are made smaller.
        workers: threads that open images.

    Yields:
        One analysis for each image.

    Raises:
        ImageError: an image cannot be opened, and ``on_error`` is ``"raise"``.
        ConfigError: as :func:`vitviz.analyze`, or ``batch_size``, ``on_error`` or ``workers`` is invalid, or ``images``
            is a single image; raised at once.
        LimitError: one image alone needs more than ``max_bytes``, and ``on_error`` is ``"raise"``.
    """
    check_order("analyze_batch", images, model)
    batch_size, workers = integer("batch_size", batch_size, 1), integer("workers", workers, 1)
    word("on_error", on_error, ON_ERROR, ConfigError)
    # Iterating over a string, a table row or an array would not give images.
    single = isinstance(images, str | bytes | os.PathLike | Image.Image | Mapping)
    single = single or (isinstance(images, np.ndarray | torch.Tensor) and images.ndim < 4)
    if single or not isinstance(images, Iterable):
        raise ConfigError(f"images: one {type(images).__name__} found; expected several, such as a list of paths")
    encoder = Encoder(model, fit, resolution, storage, keep_bytes, max_bytes, value_range=value_range, column=column)
    queue = BatchQueue(encoder, iter(images), batch_size, workers=workers, raises=on_error == "raise")
    return _analyses(queue, on_error == "keep")


class BatchQueue:
    """Images on their way: opened by other threads, taken in order, encoded several at a time.

    Args:
        encoder: that prepares and encodes them.
        images: that are still to come.
        batch_size: most images that are encoded together.
        workers: threads that open images.
        raises: whether the error of an image ends the run.
        prepare: opens an image, with its place among the images, as :meth:`Encoder.prepare` does; that where it is not
            given. It is called by the workers.

    Attributes:
        waited: seconds for which the model had nothing to do, since images were still being opened.
    """

    def __init__(
        self,
        encoder: Encoder,
        images: Iterator[Any],
        batch_size: int,
        *,
        workers: int,
        raises: bool = False,
        prepare: Callable[[Any, int], PreparedImage] | None = None,
    ) -> None:
        self.encoder, self.images, self.batch_size = encoder, images, batch_size
        self.workers, self.raises = workers, raises
        self.prepare = encoder.prepare if prepare is None else prepare
        self.places = count()
        self.coming: deque[Future[PreparedImage | FailedAnalysis]] = deque()
        self.waited = 0.0

    def batches(self) -> Generator[deque[Analysis | FailedAnalysis], None, None]:
        """What was encoded together, or one image that failed; closing it leaves no thread running."""
        pool = ThreadPoolExecutor(self.workers, "vitviz-batch")
        try:
            while self.refill(pool):
                started = time.perf_counter()
                batch = self.next_batch()
                self.waited += time.perf_counter() - started
                # The workers go on while the model runs.
                self.refill(pool)
                found = deque([batch] if isinstance(batch, FailedAnalysis) else self.encode(batch))
                del batch
                yield found
                del found
        finally:
            pool.shutdown(cancel_futures=True)

    def refill(self, pool: ThreadPoolExecutor) -> bool:
        """Submit images until enough are prepared ahead; returns whether any is pending."""
        while len(self.coming) < AHEAD * self.batch_size:
            try:
                self.coming.append(pool.submit(self._prepare, next(self.images), next(self.places)))
            except StopIteration:
                break
            # An error of the iterable is also reported at its position.
            except Exception as error:
                failed: Future[PreparedImage | FailedAnalysis] = Future()
                failed.set_exception(error)
                self.coming.append(failed)
                break
        return bool(self.coming)

    def next_batch(self) -> list[PreparedImage] | FailedAnalysis:
        """The next images to encode together, or the error of the first one where it failed."""
        first = self.coming.popleft().result()
        if isinstance(first, FailedAnalysis):
            return first
        batch, size = [first], _input_size(first)
        while self.coming and len(batch) < self.batch_size and self.coming[0].exception() is None:
            following = self.coming[0].result()
            larger = self.encoder.cost_at(*size, len(batch) + 1)
            if isinstance(following, FailedAnalysis) or _input_size(following) != size:
                break
            if larger.nbytes > self.encoder.max_bytes:
                break
            batch.append(following)
            self.coming.popleft()
        return batch

    def encode(self, batch: list[PreparedImage]) -> list[Analysis | FailedAnalysis]:
        """Their analyses; one by one if memory does not suffice for the batch and errors do not end the run."""
        try:
            return [*self.encoder.encode(batch)]
        except LimitError as error:
            if self.raises:
                raise
            if len(batch) == 1:
                return [FailedAnalysis(batch[0].source, error)]
        return [each for prepared in batch for each in self.encode([prepared])]

    def _prepare(self, source: Any, place: int) -> PreparedImage | FailedAnalysis:
        try:
            return self.prepare(source, place)
        except VitvizError as error:
            if self.raises:
                raise
            return FailedAnalysis(origin(source, self.encoder.column, place), error)


def _analyses(queue: BatchQueue, keeps: bool) -> Generator[Analysis | FailedAnalysis, None, None]:
    batches = queue.batches()
    try:
        for found in batches:
            while found:
                if keeps or isinstance(found[0], Analysis):
                    # Keep no reference while the caller uses the analysis.
                    yield found.popleft()
                else:
                    found.popleft()
    finally:
        batches.close()


def _input_size(prepared: PreparedImage) -> tuple[int, int]:
    return prepared.geometry.input_height, prepared.geometry.input_width
