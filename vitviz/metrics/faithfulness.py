"""How well a map says what a score depends on: take patches out in its order, and watch the score.

Of a class it is the probability; of any other target, such as a text, a share of the score of the whole image.

Petsiuk et al. 2018, "RISE: Randomized Input Sampling for Explanation of Black-box Models" (deletion, insertion);
Chefer, Gur & Wolf 2021, "Transformer Interpretability Beyond Attention Visualization" (positive and negative
perturbation); Rong et al. 2022, "A Consistent and Efficient Evaluation Strategy for Attribution Methods" (ROAD).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import torch

from vitviz.errors.arguments import integer, words
from vitviz.errors.kinds import ConfigError, MethodError
from vitviz.metrics.perturbation import Fill, blurred, imputed, pixel_mask, zeros
from vitviz.models.network import Network
from vitviz.models.targets import EffectScore, Target, effect_score
from vitviz.progress import Progress

RANDOM = "random order"
RANDOM_ORDERS = 5
BATCH = 64
# As a part of the larger of the two end scores: shares of a smaller difference are mostly rounding.
NEARLY_EQUAL = 1e-3


@dataclass(frozen=True)
class Metric:
    """One way to take patches out.

    Args:
        name, title: for code and for readers.
        steps: parts of the patches that are out, from the first to the last step.
        strongest_first: whether those with the highest values go first, or those with the lowest.
        fill: what stands where they were.
        lower_is_better: whether a good map has a small area under its curve.
        interpretation: one line on what the area says.
    """

    name: str
    title: str
    steps: tuple[float, ...]
    strongest_first: bool
    fill: Fill
    lower_is_better: bool
    interpretation: str


_SIXTEENTHS = tuple(step / 16 for step in range(17))
_TENTHS = tuple(step / 10 for step in range(1, 10))

METRICS = {
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
            "As positive perturbation, but what goes is filled in from around it; lower is better.",
        ),
    )
}


@dataclass(frozen=True, eq=False)
class Curve:
    """The score of a target, step by step.

    Args:
        steps: parts of the patches that are out, ``"step"``.
        scores: ``"step"``. Of a class probabilities, in [0, 1]. Of a :class:`vitviz.Target` shares: 0
            is the score of the image without any patch, 1 that of the whole image; some may be below 0 or above 1.
    """

    steps: torch.Tensor
    scores: torch.Tensor

    @property
    def area(self) -> float:
        """The mean height of the curve by the trapezoid rule: in [0, 1] of probabilities, without a bound of shares."""
        return float(torch.trapezoid(self.scores, self.steps) / (self.steps[-1] - self.steps[0]))


def faithfulness(
    network: Network,
    pixels: torch.Tensor,
    maps: Mapping[str, torch.Tensor],
    target: int | Target,
    metrics: Iterable[str] = tuple(METRICS),
    seed: int = 0,
    report: Callable[[Progress], None] | None = None,
) -> dict[str, dict[str, Curve]]:
    """The curves of some maps of one image, and those of the same metrics for patches in random order.

    Patches of equal value go in random order, so that a constant map is as good as chance.

    A target that is no class has no probability. What is watched is its score as a share of the way from that of the
    image without any patch (the mean colour in place of all) to that of the whole image, as :func:`ends` gives them.

    Args:
        network: in evaluation mode.
        pixels: ``"1 channel height width"``, normalised as the checkpoint was trained.
        maps: by name, ``"grid_height grid_width"`` each.
        target: index of the class whose probability is watched, or a target whose score is.
        metrics: by name in :data:`METRICS`.
        seed: of the random orders.
        report: receives how many of :func:`images_needed` are done, after every batch; an exception that it raises
            ends the computation.

    Returns:
        By metric and map; under :data:`RANDOM` the mean of :data:`RANDOM_ORDERS` random orders.

    Raises:
        MethodError: a metric is unknown, the model has no such class, or there are no shares of a target's score.
        ConfigError: a map is not of the model's grid.
    """
    config = network.config
    metrics, seed = words("metric", metrics, METRICS), integer("seed", seed, 0, MethodError)
    watched = effect_score(target, config.classes)
    layout = config.layout(*pixels.shape[-2:])
    grid = (layout.grid_height, layout.grid_width)
    for name, values in maps.items():
        if tuple(values.shape) != grid:
            raise ConfigError(f"map {name!r} of shape {tuple(values.shape)}: expected 'grid_height grid_width', {grid}")
    generator = torch.Generator().manual_seed(seed)
    orders: dict[str, list[torch.Tensor]] = {name: [_weakest_first(each, generator)] for name, each in maps.items()}
    orders[RANDOM] = [torch.randperm(layout.patch_count, generator=generator) for _ in range(RANDOM_ORDERS)]
    chosen = [METRICS[name] for name in metrics]
    blank, full = ends(network, pixels, target) if chosen and isinstance(target, Target) else (0.0, 1.0)
    total = images_needed(metrics, len(maps))
    perturbed = (
        _without(pixels[0], order, grid, step, metric)
        for metric in chosen
        for each in orders.values()
        for order in each
        for step in metric.steps
    )
    scores = _scores(network, perturbed, watched, total, report)
    found: dict[str, dict[str, Curve]] = {}
    for metric in chosen:
        steps, found[metric.name] = torch.tensor(metric.steps), {}
        for name, each in orders.items():
            part = torch.stack([torch.stack([next(scores) for _ in metric.steps]) for _ in each]).mean(0)
            upwards = steps.argsort()
            found[metric.name][name] = Curve(steps[upwards], (part[upwards] - blank) / (full - blank))
    return found


def ends(network: Network, pixels: torch.Tensor, target: Target) -> tuple[float, float]:
    """The scores of an image without any patch and of the whole image, which are the shares 0 and 1.

    Args:
        network: in evaluation mode.
        pixels: ``"1 channel height width"``, normalised as the checkpoint was trained.
        target: whose scores.

    Raises:
        MethodError: the score of the whole image is not clearly the higher one: the shares would be turned round, or
            of nothing.
    """
    everywhere = torch.ones_like(pixels[0, 0], dtype=torch.bool)
    images = (zeros(pixels[0], everywhere), pixels[0])
    blank, whole = _watched(network, images, effect_score(target, network.config.classes)).tolist()
    # Written so that a NaN score is refused, too.
    if not whole - blank > NEARLY_EQUAL * max(abs(whole), abs(blank)):
        raise MethodError(
            f"{target.name}: its score is {whole:.6g} for the whole image and {blank:.6g} for one without any patch; "
            f"expected a clearly higher one for the whole image, of which the rest could be shares"
        )
    return blank, whole


def images_needed(metrics: Iterable[str], maps: int) -> int:
    """How many images with some of their patches taken out :func:`faithfulness` looks at for so many maps."""
    return sum(len(METRICS[name].steps) for name in metrics) * (maps + RANDOM_ORDERS)


def _weakest_first(values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """The patches by ascending value; equal values in random order."""
    shuffled = torch.randperm(values.numel(), generator=generator)
    return shuffled[values.flatten().cpu()[shuffled].argsort(stable=True)]


def _without(
    pixels: torch.Tensor, weakest_first: torch.Tensor, grid: tuple[int, int], part: float, metric: Metric
) -> torch.Tensor:
    """The image without a part of its patches."""
    order = weakest_first.flip(0) if metric.strongest_first else weakest_first
    deletion = torch.zeros(len(order), dtype=torch.bool)
    deletion[order[: round(part * len(order))]] = True
    return metric.fill(pixels, pixel_mask(deletion.view(grid), pixels).to(pixels.device))


def _scores(
    network: Network,
    images: Iterator[torch.Tensor],
    watched: EffectScore,
    total: int,
    report: Callable[[Progress], None] | None,
) -> Iterator[torch.Tensor]:
    """What is watched in each image, a batch at a time."""
    done = 0
    while done < total:
        batch = list(islice(images, BATCH))
        scores = _watched(network, batch, watched)
        done += len(batch)
        if report is not None:
            report(Progress(done, total))
        yield from scores


def _watched(network: Network, images: Sequence[torch.Tensor], watched: EffectScore) -> torch.Tensor:
    with torch.inference_mode():
        pixels = torch.stack(list(images)).to(network.device)
        return watched.scores(network.output(pixels, watched.reads)).cpu()
