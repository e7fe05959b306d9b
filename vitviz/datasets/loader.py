"""Analyses of the batches of a torch DataLoader, for training and evaluation loops."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import torch
from einops import rearrange
from PIL import Image

from vitviz.analysis.analysis import Analysis
from vitviz.analysis.batches import BatchQueue
from vitviz.analysis.encoder import KEEP_BYTES, MAX_BYTES, Encoder, check_order
from vitviz.attention.precision import Precision
from vitviz.datasets.request import BatchRequest
from vitviz.datasets.rows import FileInfo, compute_results, row_of
from vitviz.errors.arguments import instance, named_arguments
from vitviz.errors.kinds import ConfigError, ImageError, LimitError
from vitviz.errors.messages import choices, describe
from vitviz.images.colours import ColorProfile
from vitviz.images.geometry import Geometry
from vitviz.images.image_facts import ImageFacts
from vitviz.images.preprocessing import Fit, PreparedImage
from vitviz.images.sources import COLUMN, ValueRange
from vitviz.weights import Model

# Cubic interpolation without rounding exceeds black and white by less than this.
MAX_OVERSHOOT = 0.15


@named_arguments(ConfigError)
def analyze_loader(
    loader: Iterable[Any],
    model: Model,
    fit: Fit | None = None,
    *,
    images: Callable[[Any], Any] | None = None,
    resolution: int | None = None,
    value_range: ValueRange | None = None,
    color_profile: ColorProfile | None = None,
    column: str = COLUMN,
    storage: Precision | None = None,
    keep_bytes: int = KEEP_BYTES,
    max_bytes: int = MAX_BYTES,
) -> Generator[tuple[Any, list[Analysis]], None, None]:
    """Analyse a :class:`torch.utils.data.DataLoader` batch by batch; its workers open the pictures.

    Args:
        loader: yields batches of the model's input or of pictures.

            - A tensor ``"batch channel height width"`` is the input itself, standardised by the mean and deviation of
              ``model.preprocessing``, each side a multiple of the patch. The picture of an analysis is then the model's
              input. Values are refused if no picture has them after the standardisation is undone; a different
              standardisation that stays within this range cannot be detected.
            - A list of pictures, each as :func:`vitviz.analyze` takes it or a :class:`vitviz.images.PreparedImage`, is
              prepared as :func:`vitviz.analyze` does it. ``collate_fn=list`` gives such batches.
        model, fit, resolution, value_range, color_profile, storage, keep_bytes: as :func:`vitviz.analyze` takes them;
            the fit, the resolution, the range and the choice of the profile apply to pictures, not to tensors of the
            model's input.
        images: returns the tensor or list of a batch. By default it is the batch itself, its first element if that is
            a tensor, as in ``(pixels, labels)``, or the value of a dictionary under ``column``.
        max_bytes: most that is encoded at once, by :func:`vitviz.cost`; larger batches are split.

    Yields:
        Each batch as the loader yields it, labels included, and the analyses of its pictures in their order.

    Raises:
        ConfigError: as :func:`vitviz.analyze`, or there are no pictures in a batch.
        ImageError: an input or a picture cannot be used.
        LimitError: one picture alone needs more than ``max_bytes``.

    >>> [(batch, [each])] = vitviz.analyze_loader([["cat.jpg"]], model)
    >>> each.predictions(1)[0].label
    'cat'
    """
    check_order("analyze_loader", loader, model)
    opening: dict[str, Any] = {"value_range": value_range, "column": column, "color_profile": color_profile}
    encoder = Encoder(model, fit, resolution, storage, keep_bytes, max_bytes, **opening)
    return _analyses(loader, encoder, images or (lambda batch: _pictures(batch, column)))


def rows_of(
    analyses: Sequence[Analysis], request: BatchRequest, keys: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """The rows of ``vitviz batch`` for analyses, each by column.

    Args:
        analyses: of the pictures, by the model of the request.
        request: the maps and probes to compute; its fit and resolution are ignored.
        keys: names of the pictures; by default their files or positions.

    Returns:
        One row a picture. ``sha256`` is None: files are not read again.

    Raises:
        ConfigError: an analysis is by another model.
    """
    instance("request", request, BatchRequest, "vitviz.datasets.BatchRequest(…)")
    keys = keys or [str(analysis.source) for analysis in analyses]
    stray = next((each.model for each in analyses if each.model is not request.model), None)
    if stray is not None:
        raise ConfigError(f"analyses: by {stray!r}; expected those by the model of the request, {request.model!r}")
    sizes = [ImageFacts.of(analysis.prepared.image).size for analysis in analyses]
    results = zip(keys, sizes, compute_results(analyses, request), strict=True)
    return [row_of(key, FileInfo(None, *size), result, request) for key, size, result in results]


def _analyses(
    loader: Iterable[Any], encoder: Encoder, images: Callable[[Any], Any]
) -> Generator[tuple[Any, list[Analysis]], None, None]:
    positions = count()
    for batch in loader:
        inputs = images(batch)
        prepare = _prepare_input if isinstance(inputs, torch.Tensor) else _prepare_picture
        pictures = list(_check_inputs(inputs, encoder) if isinstance(inputs, torch.Tensor) else inputs)
        # The loader's workers open the files; one worker prepares the next picture while the last one is encoded.
        queue = BatchQueue(
            encoder,
            iter(pictures),
            max(1, len(pictures)),
            workers=1,
            raises=True,
            prepare=lambda source, _, prepare=prepare: prepare(source, next(positions), encoder),  # type: ignore[misc]
        )
        yield batch, [each for pairs in queue.batches() for _, each in pairs if isinstance(each, Analysis)]


def _pictures(batch: Any, column: str) -> Any:
    """The tensor or the list of a batch."""
    if isinstance(batch, Mapping):
        if column not in batch:
            raise ConfigError(f"a batch with {choices(batch)}: expected column= with the one that holds the pictures")
        return batch[column]
    if isinstance(batch, list | tuple) and batch and isinstance(batch[0], torch.Tensor) and batch[0].ndim == 4:
        return batch[0]
    if isinstance(batch, list | tuple | torch.Tensor):
        return batch
    expected = "a tensor 'batch channel height width' or a list of pictures, or images=, which takes them out of it"
    raise ConfigError(f"a batch of {describe(batch)} found; expected {expected}")


def _check_inputs(pixels: torch.Tensor, encoder: Encoder) -> torch.Tensor:
    """Check inputs of the model and return them.

    Raises:
        ImageError: they cannot be inputs of this model.
        LimitError: one alone needs more than ``max_bytes``.
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
    needed = encoder.cost_at(height, width)
    if needed.nbytes > encoder.max_bytes:
        raise LimitError(
            f"{shape}: one needs about {needed.nbytes:,} bytes, max_bytes = {encoder.max_bytes:,}; "
            "expected smaller ones"
        )
    return pixels


def _prepare_input(pixels: torch.Tensor, position: int, encoder: Encoder) -> PreparedImage:
    """An input ``"channel height width"``, with the picture that it shows."""
    values = pixels.detach().float().cpu()
    mean, std = (values.new_tensor(channel) for channel in (encoder.preprocessing.mean, encoder.preprocessing.std))
    intensities = values * rearrange(std, "channel -> channel 1 1") + rearrange(mean, "channel -> channel 1 1")
    low, high = float(intensities.min()), float(intensities.max())
    # Written so that NaN fails, too.
    if not (low >= -MAX_OVERSHOOT and high <= 1 + MAX_OVERSHOOT):
        raise ImageError(
            f"pixels of picture {position}: from {low:.3g} to {high:.3g} once the standardisation is undone; expected "
            f"0 to 1: standardise by mean {encoder.preprocessing.mean} and deviation {encoder.preprocessing.std}"
        )
    levels = (intensities.clamp(0, 1) * 255).round().to(torch.uint8)
    picture = rearrange(levels.expand(3, -1, -1), "channel height width -> height width channel")
    height, width = levels.shape[1:]
    geometry = Geometry(width, height, (0.0, 0.0, float(width), float(height)), height, width)
    return PreparedImage(Image.fromarray(picture.contiguous().numpy()), values[None], geometry, position)


def _prepare_picture(source: Any, position: int, encoder: Encoder) -> PreparedImage:
    if not isinstance(source, PreparedImage):
        return encoder.prepare(source, position)
    return source if source.source is not None else replace(source, source=position)
