"""Many images, one model: encoded in batches while the next ones are opened."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from PIL import Image

from vitviz.analysis import KEEP_BYTES, MAX_BYTES, Analysis, Encoder
from vitviz.errors import ConfigError
from vitviz.images import ImageSource
from vitviz.preprocessing import PreparedImage
from vitviz.weights import Model

# Batches that are opened and prepared before their turn comes.
AHEAD = 2


def analyze_batch(
    images: Iterable[ImageSource],
    model: Model,
    fit: str | None = None,
    *,
    batch_size: int = 8,
    resolution: int | None = None,
    storage: str | None = None,
    keep_bytes: int = KEEP_BYTES,
    max_bytes: int = MAX_BYTES,
    workers: int = 2,
) -> Generator[Analysis, None, None]:
    """Run a model on many images, each once: what :func:`vitviz.analyze` gives for every one, in their order.

    Images that follow one another and have inputs of one size are encoded together. The others of the iterable are
    opened meanwhile, at most two batches ahead, so that it may be endless. With the first error the analyses end;
    closing them early waits for the images that are being opened, and leaves nothing running.

    Args:
        images: each as :func:`vitviz.analyze` takes it. They are taken from the iterable by whoever asks for the next
            analysis, never by another thread.
        model, fit, resolution, storage, keep_bytes: as :func:`vitviz.analyze` takes them.
        batch_size: most images that are encoded together.
        max_bytes: most that one batch may need, as :func:`vitviz.cost` counts; larger ones are made smaller.
        workers: threads that open images.

    Yields:
        One analysis for each image.

    Raises:
        ImageError: an image cannot be opened; after the analyses of those before it.
        ConfigError: as :func:`vitviz.analyze`, or ``batch_size`` or ``workers`` is no positive whole number, or
            ``images`` is a single one; at once.
        LimitError: one image alone needs more than ``max_bytes``; after the analyses of those before it.
    """
    for name, count in (("batch_size", batch_size), ("workers", workers)):
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise ConfigError(f"{name} = {count!r}: expected a whole number of at least 1")
    # A text has letters to go through, an array rows: none of them an image that was meant.
    single = isinstance(images, str | bytes | os.PathLike | Image.Image)
    if single or not isinstance(images, Iterable) or (isinstance(images, np.ndarray) and images.ndim < 4):
        raise ConfigError(f"images: one {type(images).__name__} found; expected several, such as a list of paths")
    return _analyses(Encoder(model, fit, resolution, storage, keep_bytes, max_bytes), iter(images), batch_size, workers)


def _analyses(
    encoder: Encoder, images: Iterator[ImageSource], batch_size: int, workers: int
) -> Generator[Analysis, None, None]:
    coming: deque[Future[PreparedImage]] = deque()
    pool = ThreadPoolExecutor(workers, "vitviz-batch")
    try:
        while _refill(coming, encoder, images, pool, AHEAD * batch_size):
            batch = _next_batch(coming, encoder, batch_size)
            # The workers go on while the model runs.
            _refill(coming, encoder, images, pool, AHEAD * batch_size)
            analyses = deque(encoder.encode(batch))
            del batch
            while analyses:
                yield analyses.popleft()
    finally:
        pool.shutdown(cancel_futures=True)


def _refill(
    coming: deque[Future[PreparedImage]],
    encoder: Encoder,
    images: Iterator[ImageSource],
    pool: ThreadPoolExecutor,
    count: int,
) -> bool:
    """Have so many images prepared, if there are; whether any is coming."""
    while len(coming) < count:
        try:
            coming.append(pool.submit(encoder.prepare, next(images)))
        except StopIteration:
            break
        # What goes wrong in the iterable is told at its place too.
        except Exception as error:
            failed: Future[PreparedImage] = Future()
            failed.set_exception(error)
            coming.append(failed)
            break
    return bool(coming)


def _next_batch(coming: deque[Future[PreparedImage]], encoder: Encoder, batch_size: int) -> list[PreparedImage]:
    """The images from the first on that are encoded together; its error where the first one has one."""
    batch = [coming.popleft().result()]
    size = _input_size(batch[0])
    while coming and len(batch) < batch_size and coming[0].exception() is None:
        larger = encoder.cost_at(*size, len(batch) + 1)
        if _input_size(coming[0].result()) != size or larger.nbytes > encoder.max_bytes:
            break
        batch.append(coming.popleft().result())
    return batch


def _input_size(prepared: PreparedImage) -> tuple[int, int]:
    return prepared.geometry.input_height, prepared.geometry.input_width
