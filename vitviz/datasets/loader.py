"""The batches of torch's DataLoader, analysed: what a training or evaluation loop has at hand."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import torch
from einops import rearrange
from PIL import Image

from vitviz.analysis.analysis import Analysis
from vitviz.analysis.batches import BatchQueue
from vitviz.analysis.encoder import KEEP_BYTES, MAX_BYTES, Encoder, check_order
from vitviz.datasets.request import BatchRequest
from vitviz.datasets.rows import Source, failed_row, found_of, row
from vitviz.errors.arguments import instance
from vitviz.errors.kinds import ConfigError, ImageError, LimitError, VitvizError
from vitviz.errors.messages import choices, describe
from vitviz.images.geometry import Geometry
from vitviz.images.preprocessing import PreparedImage
from vitviz.images.sources import COLUMN
from vitviz.weights import Model

# Cubic interpolation of numbers that are not rounded goes beyond black and white by less than this.
OVERSHOOT = 0.15


def analyze_loader(
    loader: Iterable[Any],
    model: Model,
    fit: str | None = None,
    *,
    images: Callable[[Any], Any] | None = None,
    resolution: int | None = None,
    column: str = COLUMN,
    storage: str | None = None,
    keep_bytes: int = KEEP_BYTES,
    max_bytes: int = MAX_BYTES,
) -> Generator[tuple[Any, list[Analysis]], None, None]:
    """Analyse what a :class:`torch.utils.data.DataLoader` gives, batch by batch; its workers open the pictures.

    Args:
        loader: whose batches hold either the model's input or pictures.

            - A tensor ``"batch channel height width"`` is the input itself, standardised by the mean and deviation of
              ``model.preprocessing``, each side a multiple of the patch. The picture of an analysis is then what the
              model saw. Values that no picture has once the standardisation is undone are refused; another
              standardisation within the same range cannot be told.
            - A list of pictures, each as :func:`vitviz.analyze` takes it or a :class:`vitviz.PreparedImage`, is
              prepared as :func:`vitviz.analyze` does it. ``collate_fn=list`` gives such batches.
        model, fit, resolution, storage, keep_bytes: as :func:`vitviz.analyze` takes them; the fit and the resolution
            are of pictures, and have no say where the input is given.
        images: takes tensor or list out of a batch; by default the batch itself, its first part where that is a tensor,
            as of ``(pixels, labels)``, or of a dictionary the one called ``column``.
        max_bytes: most that is encoded at once, as :func:`vitviz.cost` counts; larger batches are divided.

    Yields:
        Each batch as the loader gave it, labels and all, and the analyses of its pictures in their order.

    Raises:
        ConfigError: as :func:`vitviz.analyze`, or there are no pictures in a batch.
        ImageError: an input or a picture cannot be used.
        LimitError: one picture alone needs more than ``max_bytes``.
    """
    check_order("analyze_loader", loader, model)
    encoder = Encoder(model, fit, resolution, storage, keep_bytes, max_bytes, column=column)
    return _analyses(loader, encoder, images or (lambda batch: _pictures(batch, column)))


def rows_of(
    analyses: Sequence[Analysis], request: BatchRequest, keys: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """What a request asks for of some pictures, as the rows of ``vitviz batch``, by column.

    Args:
        analyses: of the pictures, by the model of the request.
        request: what is asked; its fit and resolution have no say.
        keys: names of the pictures; their file or their place where they are not given.

    Returns:
        One row a picture. ``sha256`` is None: files are not read again.

    Raises:
        ConfigError: an analysis is by another model, or there are not as many keys.
    """
    instance("request", request, BatchRequest, "vitviz.datasets.BatchRequest(…)")
    if keys is None:
        keys = [str(analysis.source) for analysis in analyses]
    if len(keys) != len(analyses):
        raise ConfigError(f"keys: {len(keys)} for {len(analyses)} analyses; expected one for each")
    other = next((each.model for each in analyses if each.model is not request.model), None)
    if other is not None:
        raise ConfigError(f"analyses: by {other!r}; expected those by the model of the request, {request.model!r}")
    found = []
    for key, analysis, answer in zip(keys, analyses, found_of(analyses, request), strict=True):
        source = Source(None, *analysis.prepared.image.size)
        found.append(failed_row(key, source, answer) if isinstance(answer, VitvizError) else row(key, source, answer))
    return found


def _analyses(
    loader: Iterable[Any], encoder: Encoder, images: Callable[[Any], Any]
) -> Generator[tuple[Any, list[Analysis]], None, None]:
    places = count()
    for batch in loader:
        found = images(batch)
        prepare = _prepared_pixels if isinstance(found, torch.Tensor) else _prepared
        pictures = list(_inputs(found, encoder) if isinstance(found, torch.Tensor) else found)
        # The loader's workers did the opening; what is left is done while the one before is encoded.
        queue = BatchQueue(
            encoder,
            iter(pictures),
            max(1, len(pictures)),
            workers=1,
            raises=True,
            prepare=lambda source, _, prepare=prepare: prepare(source, next(places), encoder),  # type: ignore[misc]
        )
        yield batch, [each for some in queue.batches() for each in some if isinstance(each, Analysis)]


def _pictures(batch: Any, column: str) -> Any:
    """The tensor or the list of a batch."""
    if isinstance(batch, Mapping):
        if column not in batch:
            raise ConfigError(f"a batch with {choices(batch)}: expected column= with the one that holds the pictures")
        return batch[column]
    if isinstance(batch, list | tuple):
        if batch and isinstance(batch[0], torch.Tensor) and batch[0].ndim == 4:
            return batch[0]
        if all(isinstance(each, PreparedImage | Image.Image | np.ndarray | str | bytes | Mapping) for each in batch):
            return batch
    if isinstance(batch, torch.Tensor):
        return batch
    expected = "a tensor 'batch channel height width' or a list of pictures, or images=, which takes them out of it"
    raise ConfigError(f"a batch of {describe(batch)} found; expected {expected}")


def _inputs(pixels: torch.Tensor, encoder: Encoder) -> torch.Tensor:
    """Inputs of the model, checked.

    Raises:
        ImageError: they cannot be inputs of this model.
        LimitError: one alone needs too much.
    """
    config = encoder.model.network.config
    shape = f"pixels {tuple(pixels.shape)} of {str(pixels.dtype).removeprefix('torch.')}"
    sides = f"sides that are multiples of the patch's {config.patch_height}×{config.patch_width}"
    legal = pixels.ndim == 4 and pixels.shape[1] == config.channels and pixels.is_floating_point()
    if not legal or pixels.shape[2] % config.patch_height or pixels.shape[3] % config.patch_width:
        raise ImageError(
            f"{shape}: expected floating point, 'batch channel height width', {config.channels} channels, {sides}"
        )
    height, width = (int(side) for side in pixels.shape[2:])
    config.layout(height, width)
    needed = encoder.cost_at(height, width)
    if needed.nbytes > encoder.max_bytes:
        raise LimitError(
            f"{shape}: one needs {needed.nbytes:,} bytes, max_bytes = {encoder.max_bytes:,}; expected smaller ones"
        )
    return pixels


def _prepared_pixels(pixels: torch.Tensor, place: int, encoder: Encoder) -> PreparedImage:
    """An input ``"channel height width"`` with the picture that it is of."""
    values = pixels.detach().float().cpu()
    mean, std = (values.new_tensor(part) for part in (encoder.preprocessing.mean, encoder.preprocessing.std))
    seen = values * rearrange(std, "channel -> channel 1 1") + rearrange(mean, "channel -> channel 1 1")
    low, high = float(seen.min()), float(seen.max())
    # Written so that NaN fails, too.
    if not (low >= -OVERSHOOT and high <= 1 + OVERSHOOT):
        raise ImageError(
            f"pixels of picture {place}: from {low:.3g} to {high:.3g} once the standardisation is undone; expected "
            f"0 to 1: standardise by mean {encoder.preprocessing.mean} and deviation {encoder.preprocessing.std}"
        )
    levels = (seen.clamp(0, 1) * 255).round().to(torch.uint8)
    picture = rearrange(levels.expand(3, -1, -1), "channel height width -> height width channel")
    height, width = levels.shape[1:]
    geometry = Geometry(width, height, (0.0, 0.0, float(width), float(height)), height, width)
    return PreparedImage(Image.fromarray(picture.contiguous().numpy()), values[None], geometry, place)


def _prepared(source: Any, place: int, encoder: Encoder) -> PreparedImage:
    if not isinstance(source, PreparedImage):
        return encoder.prepare(source, place)
    return source if source.source is not None else replace(source, source=place)
