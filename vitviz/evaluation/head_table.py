"""Measures of heads: the distance of their attention, its entropy, and its share for prefix tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from vitviz.analysis.encoder import analyze
from vitviz.attention.trace import AttentionTrace
from vitviz.evaluation.counting import count_images
from vitviz.weights import Model


@dataclass(frozen=True)
class HeadMeasure:
    """A measure of a head.

    Args:
        title: heading.
        unit: unit of its values.
        interpretation: its meaning in one sentence.
    """

    title: str
    unit: str
    interpretation: str


MEASURES: Mapping[str, HeadMeasure] = {
    "distance": HeadMeasure(
        "Mean attention distance",
        "patches",
        "From a patch to the patches that it attends to, weighted by its attention to them (Dosovitskiy et al. 2021, "
        "figure 7).",
    ),
    "entropy": HeadMeasure(
        "Entropy", "nats", "Of a patch's attention weights over all tokens: 0 where it attends to one token alone."
    ),
    "prefix": HeadMeasure(
        "Attention to prefix tokens", "share", "Of a patch's attention, what goes to the CLS token and the registers."
    ),
}


def measure_heads(trace: AttentionTrace) -> dict[str, torch.Tensor]:
    """All measures of all heads for one image, averaged over the patches as queries: ``"layer head"``.

    Distances are between the centres of patches, in patches, from 0 to the diagonal of the grid; entropies from 0 to
    the logarithm of the number of tokens; shares in [0, 1]. A patch that attends to prefix tokens only has no distance.
    A head without any such distance has NaN.
    """
    layout = trace.layout
    first, count = len(layout.prefix), layout.patch_count
    device, dtype = trace.keys.device, trace.dtype
    sides = torch.arange(layout.grid_height, device=device), torch.arange(layout.grid_width, device=device)
    cells = torch.cartesian_prod(*sides).to(dtype)
    measures = {name: torch.zeros(trace.layers, trace.heads, dtype=dtype, device=device) for name in MEASURES}
    for layer in range(trace.layers):
        total_distances, patch_counts = (torch.zeros(trace.heads, dtype=dtype, device=device) for _ in range(2))
        for rows, weights in trace.weights_in_chunks(layer, slice(first, None)):
            patches = weights[..., first:]
            share = patches.sum(-1)
            steps = cells[rows.start - first : rows.stop - first, None] - cells
            mean_distances = torch.einsum("hqk,qk->hq", patches, steps.square().sum(-1).sqrt()) / share
            total_distances += mean_distances.nan_to_num(0).sum(-1)
            patch_counts += (share > 0).sum(-1)
            measures["entropy"][layer] += torch.special.entr(weights).sum((-1, -2)) / count
            measures["prefix"][layer] += weights[..., :first].sum((-1, -2)) / count
        measures["distance"][layer] = total_distances / patch_counts
    return {name: values.cpu() for name, values in measures.items()}


def measure_heads_over(
    model: Model,
    images: Iterable[Path],
    report: Callable[[int], None] | None = None,
    resolution: int | None = None,
) -> dict[str, torch.Tensor]:
    """As :func:`measure_heads`, for many images: ``"image layer head"``.

    Args:
        model, images: the model, and image files.
        report: receives the number of finished images after each.
        resolution: as in :func:`vitviz.analyze`.

    Raises:
        ImageError: an image cannot be opened.
        ConfigError: there is no such resolution.
    """
    rows = [measure_heads(analyze(path, model, resolution=resolution).trace) for path in count_images(images, report)]
    return {name: torch.stack([row[name] for row in rows]) for name in MEASURES}


def head_tables(measures: Mapping[str, torch.Tensor]) -> str:
    """Means of ``"image layer head"`` over images in Markdown, a table for each measure."""
    return "\n\n".join(_table(MEASURES[name], values.nanmean(0)) for name, values in measures.items())


def _table(measure: HeadMeasure, values: torch.Tensor) -> str:
    """A measure ``"layer head"`` as a Markdown table."""
    number_format = "{:.1%}" if measure.unit == "share" else "{:.2f}"
    unit = "" if measure.unit == "share" else f", in {measure.unit}"
    lines = [
        f"**{measure.title}**{unit}. {measure.interpretation}",
        "",
        f"| layer | {' | '.join(f'head {head}' for head in range(values.shape[1]))} |",
        f"| --- |{' --- |' * values.shape[1]}",
    ]
    rows = [
        f"| {layer} | {' | '.join(number_format.format(value) for value in row)} |" for layer, row in enumerate(values)
    ]
    return "\n".join([*lines, *rows])
