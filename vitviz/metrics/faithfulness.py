"""The faithfulness of a map to a score: patches are removed in its order, and the score is measured.

For a class this is the probability; for any other target, such as a text or a number that a regression returns, a share
of the score of the whole image.

Petsiuk et al. 2018, "RISE: Randomized Input Sampling for Explanation of Black-box Models" (deletion, insertion);
Chefer, Gur & Wolf 2021, "Transformer Interpretability Beyond Attention Visualization" (positive and negative
perturbation); Rong et al. 2022, "A Consistent and Efficient Evaluation Strategy for Attribution Methods" (ROAD).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal, get_args

import torch

from vitviz.attention.precision import plain_torch
from vitviz.errors.arguments import integer, words
from vitviz.errors.kinds import ConfigError, ImageError, MethodError
from vitviz.metrics.perturbation import Fill, blurred, imputed, pixel_mask, zeros
from vitviz.models.network import Network
from vitviz.models.targets import EffectScore, Target, effect_score
from vitviz.progress import Progress

RANDOM = "random order"
RANDOM_ORDERS = 5
BATCH_SIZE = 64
# Relative to the larger of the two end scores: shares of a smaller difference are mostly rounding.
MIN_DIFFERENCE = 1e-3
MetricName = Literal["deletion", "insertion", "positive", "negative", "road"]
METRIC_NAMES: tuple[MetricName, ...] = get_args(MetricName)


@dataclass(frozen=True)
class Metric:
    """One way to remove patches.

    Args:
        name, title: for code and for readers.
        steps: removed share of the patches, from the first to the last step.
        strongest_first: whether the patches with the highest values go first, or those with the lowest.
        fill: fills removed patches.
        lower_is_better: whether a good map has a small area under its curve.
        interpretation: one line on the meaning of the area.
    """

    name: MetricName
    title: str
    steps: tuple[float, ...]
    strongest_first: bool
    fill: Fill
    lower_is_better: bool
    interpretation: str


_SIXTEENTHS = tuple(step / 16 for step in range(17))
_TENTHS = tuple(step / 10 for step in range(1, 10))

METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric(
            "deletion",
            "Deletion",
            _SIXTEENTHS,
            True,
            zeros,
            True,
            "How long the score stays high while the strongest patches go; lower is better.",
        ),
        Metric(
            "insertion",
            "Insertion",
            tuple(reversed(_SIXTEENTHS)),
            False,
            blurred,
            False,
            "How soon the score is high while the strongest patches come into a blurred image; higher is better.",
        ),
        Metric(
            "positive",
            "Positive perturbation",
            _TENTHS,
            True,
            zeros,
            True,
            "What is left of the score when 10 to 90 % of the patches are out, the strongest first; lower is better.",
        ),
        Metric(
            "negative",
            "Negative perturbation",
            _TENTHS,
            False,
            zeros,
            False,
            "What is left of the score when 10 to 90 % of the patches are out, the weakest first; higher is better.",
        ),
        Metric(
            "road",
            "ROAD",
            _TENTHS,
            True,
            imputed,
            True,
            "As positive perturbation, but removed patches are imputed from their neighbours; lower is better.",
        ),
    )
}


@dataclass(frozen=True, eq=False)
class Curve:
    """The score of a target, step by step.

    Args:
        steps: removed share of the patches, ``"step"``.
        scores: ``"step"``. Probabilities of a class, in [0, 1]; for a :class:`vitviz.Target` shares, in which 0 is the
            score of the image without any patch and 1 that of the whole image, and which may exceed this range.
    """

    steps: torch.Tensor
    scores: torch.Tensor

    @property
    def area(self) -> float:
        """The mean height of the curve by the trapezoid rule: in [0, 1] for probabilities, unbounded for shares."""
        return float(torch.trapezoid(self.scores, self.steps) / (self.steps[-1] - self.steps[0]))


@plain_torch()
def faithfulness(
    network: Network,
    pixels: torch.Tensor,
    maps: Mapping[str, torch.Tensor],
    target: int | Target,
    metrics: Iterable[MetricName] = METRIC_NAMES,
    seed: int = 0,
    report: Callable[[Progress], None] | None = None,
    random_orders: int = RANDOM_ORDERS,
) -> dict[str, dict[str, Curve]]:
    """The curves of maps of one image, and those of the same metrics for patches in random order.

    Patches of equal value are removed in random order, so that a constant map is as good as chance.

    A target that is not a class has no probability. Its score is measured as a share of the way from that of the image
    without any patch (all in the mean colour) to that of the whole image, as of :func:`ends`.

    Args:
        network: in evaluation mode.
        pixels: ``"1 channel height width"``, normalised as the checkpoint was trained.
        maps: maps ``"grid_height grid_width"`` by name.
        target: index of the class whose probability to measure, or a target whose score to measure.
        metrics: names in :data:`METRICS`.
        seed: seed of the random orders.
        report: receives the number of finished images, of :func:`images_needed`, after each batch; an exception from it
            ends the computation.
        random_orders: number of random orders beside the maps, from 0.

    Returns:
        Curves by metric and map; the map :data:`RANDOM` is the mean of the random orders, if there are any.

    Raises:
        MethodError: a metric is unknown, the model has no such class, or the target's score has no shares.
        ConfigError: a map does not have the model's grid.
        ImageError: there are several images.
    """
    config = network.config
    metrics, seed = words("metric", metrics, METRIC_NAMES), integer("seed", seed, 0, MethodError)
    random_orders = integer("random_orders", random_orders, 0, MethodError)
    score = effect_score(target, config.classes, config.probability)
    if len(pixels) != 1:
        raise ImageError(f"{len(pixels)} images: expected one, '1 channel height width'")
    layout = config.layout(*pixels.shape[-2:])
    grid = (layout.grid_height, layout.grid_width)
    for name, values in maps.items():
        if tuple(values.shape) != grid:
            raise ConfigError(f"map {name!r} of shape {tuple(values.shape)}: expected 'grid_height grid_width', {grid}")
    generator = torch.Generator().manual_seed(seed)
    orders = {name: [_weakest_first(torch.as_tensor(values), generator)] for name, values in maps.items()}
    chance = [torch.randperm(layout.patch_count, generator=generator) for _ in range(random_orders)]
    orders |= {RANDOM: chance} if chance else {}
    records, pixels = [METRICS[name] for name in metrics], pixels.to(network.device)
    blank, full = ends(network, pixels, score) if records and isinstance(score, Target) else (0.0, 1.0)
    perturbed = (
        _without(pixels[0], order, step, metric, grid)
        for metric in records
        for map_orders in orders.values()
        for order in map_orders
        for step in metric.steps
    )
    count = images_needed(metrics, len(maps) + random_orders)
    scores = _batched_scores(network, perturbed, score, count, report)
    curves: dict[str, dict[str, Curve]] = {}
    for metric in records:
        steps, curves[metric.name] = torch.tensor(metric.steps, dtype=torch.float32), {}
        for name, map_orders in orders.items():
            mean = torch.stack([torch.stack([next(scores) for _ in metric.steps]) for _ in map_orders]).mean(0)
            ascending = steps.argsort()
            curves[metric.name][name] = Curve(steps[ascending], (mean[ascending] - blank) / (full - blank))
    return curves


@plain_torch()
def ends(network: Network, pixels: torch.Tensor, target: Target) -> tuple[float, float]:
    """The scores of an image without any patch and of the whole image, which correspond to the shares 0 and 1.

    Args:
        network: in evaluation mode.
        pixels: ``"1 channel height width"``, normalised as the checkpoint was trained.
        target: target of the scores.

    Raises:
        MethodError: the score of the whole image is not clearly higher, so that shares would be reversed or undefined.
    """
    everywhere = torch.ones_like(pixels[0, 0], dtype=torch.bool)
    images = (zeros(pixels[0], everywhere), pixels[0])
    blank, whole = _scores(network, images, target).tolist()
    # The negated comparison refuses a NaN score, too.
    if not whole - blank > MIN_DIFFERENCE * max(abs(whole), abs(blank)):
        raise MethodError(
            f"{target.name}: its score is {whole:.6g} for the whole image and {blank:.6g} for one without any patch; "
            "expected a clearly higher one for the whole image"
        )
    return blank, whole


def images_needed(metrics: Iterable[MetricName], orders: int) -> int:
    """Number of images with removed patches that :func:`faithfulness` scores for maps and random orders together."""
    return sum(len(METRICS[name].steps) for name in metrics) * orders


def _weakest_first(values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """The patches by ascending value; equal values in random order."""
    shuffled = torch.randperm(values.numel(), generator=generator)
    return shuffled[values.flatten().cpu()[shuffled].argsort(stable=True)]


def _without(
    pixels: torch.Tensor, weakest_first: torch.Tensor, share: float, metric: Metric, grid: tuple[int, int]
) -> torch.Tensor:
    """An image ``"channel height width"`` without a share of its patches."""
    order = weakest_first.flip(0) if metric.strongest_first else weakest_first
    removed = torch.zeros(len(order), dtype=torch.bool)
    removed[order[: round(share * len(order))]] = True
    return metric.fill(pixels, pixel_mask(removed.view(grid), pixels).to(pixels.device))


def _batched_scores(
    network: Network,
    images: Iterator[torch.Tensor],
    score: EffectScore,
    count: int,
    report: Callable[[Progress], None] | None,
) -> Iterator[torch.Tensor]:
    """The score of each of ``count`` images, computed in batches."""
    for done in range(0, count, BATCH_SIZE):
        scores = _scores(network, list(islice(images, BATCH_SIZE)), score)
        if report is not None:
            report(Progress(min(done + BATCH_SIZE, count), count))
        yield from scores


def _scores(network: Network, images: Sequence[torch.Tensor], score: EffectScore) -> torch.Tensor:
    with torch.inference_mode():
        pixels = torch.stack(list(images)).to(network.device)
        return score.scores(network.output(pixels, score.reads)).cpu()
