"""Many images, one model: encoded in batches while the next ones are opened."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Literal, get_args, overload

from vitviz.analysis.analysis import Analysis
from vitviz.analysis.encoder import KEEP_BYTES, MAX_BYTES, Encoder, check_order
from vitviz.attention.memory import enough_memory
from vitviz.attention.precision import Precision, plain_torch
from vitviz.attribution.methods import MethodName, record_and_arguments
from vitviz.errors.arguments import integer, named_arguments, word
from vitviz.errors.kinds import ConfigError, LimitError, VitvizError
from vitviz.images.colours import ColorProfile
from vitviz.images.opening import may_change
from vitviz.images.preprocessing import Fit, PreparedImage
from vitviz.images.sources import COLUMN, ImageSource, Row, ValueRange, check_several, origin
from vitviz.visualization.heatmaps import Heatmap
from vitviz.weights import Model

# Batches of images that are opened and prepared before they are encoded.
BATCHES_AHEAD = 2
OnError = Literal["raise", "skip", "keep"]
ON_ERROR: tuple[OnError, ...] = get_args(OnError)


@dataclass(frozen=True)
class FailedAnalysis:
    """The placeholder of an image that could not be analysed, with ``on_error="keep"``.

    Args:
        source: the image's file, or else its position among the images, counted from 0.
        error: why there is no analysis.

    >>> [failed] = vitviz.analyze_batch(["missing.jpg"], model, on_error="keep")
    >>> failed.source.name, type(failed.error).__name__
    ('missing.jpg', 'ImageError')
    """

    source: Path | int | None
    error: VitvizError


@overload
def analyze_batch(
    images: Iterable[ImageSource | Row],
    model: Model,
    fit: Fit | None = None,
    *,
    batch_size: int = 8,
    on_error: Literal["raise", "skip"] = "raise",
    resolution: int | None = None,
    value_range: ValueRange | None = None,
    color_profile: ColorProfile | None = None,
    column: str = COLUMN,
    storage: Precision | None = None,
    keep_bytes: int = KEEP_BYTES,
    max_bytes: int = MAX_BYTES,
    workers: int = 2,
) -> Generator[Analysis, None, None]: ...


@overload
def analyze_batch(
    images: Iterable[ImageSource | Row],
    model: Model,
    fit: Fit | None = None,
    *,
    batch_size: int = 8,
    on_error: Literal["keep"],
    resolution: int | None = None,
    value_range: ValueRange | None = None,
    color_profile: ColorProfile | None = None,
    column: str = COLUMN,
    storage: Precision | None = None,
    keep_bytes: int = KEEP_BYTES,
    max_bytes: int = MAX_BYTES,
    workers: int = 2,
) -> Generator[Analysis | FailedAnalysis, None, None]: ...


@named_arguments(ConfigError)
def analyze_batch(
    images: Iterable[ImageSource | Row],
    model: Model,
    fit: Fit | None = None,
    *,
    batch_size: int = 8,
    on_error: OnError = "raise",
    resolution: int | None = None,
    value_range: ValueRange | None = None,
    color_profile: ColorProfile | None = None,
    column: str = COLUMN,
    storage: Precision | None = None,
    keep_bytes: int = KEEP_BYTES,
    max_bytes: int = MAX_BYTES,
    workers: int = 2,
) -> Generator[Analysis | FailedAnalysis, None, None]:
    """Run a model once on each of many images: the results of :func:`vitviz.analyze`, in the order of the images.

    Consecutive images with inputs of one size are encoded together. Meanwhile the next images are opened, at most two
    batches ahead, so the iterable may be endless. Closing the generator early waits for the images that are being
    opened, and leaves no thread running. :attr:`vitviz.Analysis.source` names the file of each analysis, or else its
    position among the images, counted from 0.

    Args:
        images: each as :func:`vitviz.analyze` takes it. Only the thread that asks for the next analysis advances the
            iterable. A generator may change an image that it gave, such as a buffer, when it is asked for the next one.
        model, fit, resolution, value_range, color_profile, column, storage, keep_bytes: as :func:`vitviz.analyze` takes
            them.
        batch_size: most images that are encoded together.
        on_error: what happens when an image cannot be analysed. ``"raise"`` raises its error, after the analyses of the
            images before it; ``"skip"`` continues with the next image; ``"keep"`` yields a :class:`FailedAnalysis` in
            its place. An error of the iterable itself always ends the analyses.
        max_bytes: most that one batch may need, by :func:`vitviz.cost`; batches that need more are split.
        workers: threads that open images.

    Yields:
        One analysis for each image.

    Raises:
        ImageError: an image cannot be opened, and ``on_error`` is ``"raise"``.
        ConfigError: as :func:`vitviz.analyze`, or ``batch_size``, ``on_error`` or ``workers`` is invalid, or ``images``
            is a single image; raised at once.
        LimitError: one image alone needs more than ``max_bytes``, and ``on_error`` is ``"raise"``.

    >>> [each.predictions(1)[0].label for each in vitviz.analyze_batch(["cat.jpg", "flower.jpg"], model)]
    ['cat', 'flower']
    """
    check_order("analyze_batch", images, model)
    batch_size, workers = integer("batch_size", batch_size, 1), integer("workers", workers, 1)
    word("on_error", on_error, ON_ERROR, ConfigError)
    check_several("images", images)
    encoder = Encoder(
        model,
        fit,
        resolution,
        storage,
        keep_bytes,
        max_bytes,
        column=column,
        value_range=value_range,
        color_profile=color_profile,
    )
    queue = BatchQueue(
        encoder,
        iter(images),
        batch_size,
        workers=workers,
        raises=on_error == "raise",
        is_stream=not isinstance(images, Sequence),
    )
    return _analyses(queue, on_error == "keep")


class BatchQueue:
    """A queue of images: worker threads open them, and they are encoded in order, several at a time.

    Args:
        encoder: prepares and encodes the images.
        images: the images; read as far as the queue is ahead.
        batch_size: most images that are encoded together.
        workers: threads that open images.
        raises: whether the error of an image ends the run.
        is_stream: whether images come one by one, and one that was given may be changed when the next one is asked for.
        prepare: opens an image, given the image and its position; :meth:`Encoder.prepare` by default. The workers call
            it.

    Attributes:
        wait_seconds: seconds for which the model waited for images that were still being opened.
    """

    def __init__(
        self,
        encoder: Encoder,
        images: Iterator[Any],
        batch_size: int,
        *,
        workers: int,
        raises: bool = False,
        is_stream: bool = False,
        prepare: Callable[[Any, int], PreparedImage] | None = None,
    ) -> None:
        self.encoder, self.images, self.batch_size = encoder, images, batch_size
        self.workers, self.raises, self.is_stream = workers, raises, is_stream
        self.prepare = encoder.prepare if prepare is None else prepare
        self._positions = count()
        self._pending: deque[tuple[Any, Future[PreparedImage | FailedAnalysis]]] = deque()
        self.wait_seconds = 0.0

    def batches(self) -> Generator[deque[tuple[Any, Analysis | FailedAnalysis]], None, None]:
        """The images of each batch with their analyses, or one with its failure.

        Closing the generator leaves no thread running.
        """
        pool = ThreadPoolExecutor(self.workers, "vitviz-batch")
        try:
            while self.refill(pool):
                started = time.perf_counter()
                images, batch = self.next_batch()
                self.wait_seconds += time.perf_counter() - started
                # The workers open the next images while the model runs.
                self.refill(pool)
                results = deque(zip(images, self.encode(batch), strict=True))
                del images, batch
                yield results
                del results
        finally:
            pool.shutdown(cancel_futures=True)

    def refill(self, pool: ThreadPoolExecutor) -> bool:
        """Submit images until enough are prepared ahead; returns whether any is pending."""
        while len(self._pending) < BATCHES_AHEAD * self.batch_size:
            try:
                image = next(self.images)
                # Two threads cannot read one open file at once.
                wait([future for each, future in self._pending if each is image])
                is_shared = self.is_stream and may_change(image)
                future = pool.submit(self._prepare, image, next(self._positions))
                self._pending.append((image, future))
                if is_shared:
                    wait([future])
            except StopIteration:
                break
            # An error of the iterable is raised in its turn, after the images before it.
            except Exception as error:
                failed: Future[PreparedImage | FailedAnalysis] = Future()
                failed.set_exception(error)
                self._pending.append((None, failed))
                break
        return bool(self._pending)

    def next_batch(self) -> tuple[list[Any], list[PreparedImage] | FailedAnalysis]:
        """The next images to encode together, also prepared, or the first one and its failure."""
        image, future = self._pending.popleft()
        first, images = future.result(), [image]
        if isinstance(first, FailedAnalysis):
            return images, first
        batch, size = [first], _input_size(first)
        while self._pending and len(batch) < self.batch_size and self._pending[0][1].exception() is None:
            image, future = self._pending[0]
            prepared, larger = future.result(), self.encoder.cost_at(*size, len(batch) + 1)
            if (
                isinstance(prepared, FailedAnalysis)
                or _input_size(prepared) != size
                or larger.nbytes > self.encoder.max_bytes
            ):
                break
            images.append(image)
            batch.append(prepared)
            self._pending.popleft()
        return images, batch

    def encode(self, batch: list[PreparedImage] | FailedAnalysis) -> list[Analysis | FailedAnalysis]:
        """The analyses of a batch; if memory runs out and errors do not end the run, it encodes one by one."""
        if isinstance(batch, FailedAnalysis):
            return [batch]
        try:
            return [*self.encoder.encode(batch)]
        except LimitError as error:
            if self.raises:
                raise
            if len(batch) == 1:
                return [FailedAnalysis(batch[0].source, error)]
        return [each for prepared in batch for each in self.encode([prepared])]

    def _prepare(self, source: Any, position: int) -> PreparedImage | FailedAnalysis:
        try:
            return self.prepare(source, position)
        except VitvizError as error:
            if self.raises:
                raise
            return FailedAnalysis(origin(source, self.encoder.column, position), error)


@plain_torch()
def map_batch(analyses: Sequence[Analysis], method: MethodName, **parameters: Any) -> list[Heatmap]:
    """The same map of several analyses by one model, computed together if the method can do that.

    Args:
        analyses: by one model.
        method, parameters: as :meth:`Analysis.map` takes them.

    Returns:
        The heatmaps, in the order of the analyses.

    Raises:
        VitvizError: as :meth:`Analysis.map`, if it raises for any of them.
    """
    record, arguments = record_and_arguments(method, parameters)
    if record.compute_batch is None or len(analyses) < 2:
        return [analysis.map(method, **parameters) for analysis in analyses]
    with enough_memory(f"{method} of {len(analyses)} images"):
        token_maps = record.compute_batch([analysis.trace for analysis in analyses], **arguments)
    return [analysis.heatmap_of(token_map) for analysis, token_map in zip(analyses, token_maps, strict=True)]


def _analyses(queue: BatchQueue, keep_failures: bool) -> Generator[Analysis | FailedAnalysis, None, None]:
    with closing(queue.batches()) as batches:
        for results in batches:
            while results:
                if keep_failures or isinstance(results[0][1], Analysis):
                    # Keep no reference while the caller uses the analysis.
                    yield results.popleft()[1]
                else:
                    results.popleft()


def _input_size(prepared: PreparedImage) -> tuple[int, int]:
    return prepared.geometry.input_height, prepared.geometry.input_width
