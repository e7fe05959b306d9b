"""All methods on one image, side by side: their maps on one scale, and how faithful each of them is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from vitviz.analysis.analysis import Analysis
from vitviz.attribution import METHODS
from vitviz.errors.arguments import instance, named_arguments, word, words
from vitviz.errors.kinds import MethodError
from vitviz.evaluation.randomization import randomized_analysis, rank_correlation
from vitviz.metrics.faithfulness import METRICS, RANDOM, ends, images_needed
from vitviz.models.targets import Target, TargetChoice, as_target, resolve_target
from vitviz.progress import Progress
from vitviz.visualization.heatmaps import Heatmap

SHARE = "share of the map"


@dataclass(frozen=True, eq=False)
class Compared:
    """One method's map.

    Args:
        method: its name in :data:`vitviz.METHODS`.
        heatmap: the share of the whole map that every patch holds, in [0, 1]: what methods have in common.
        areas: by metric in :data:`vitviz.metrics.faithfulness.METRICS`: of a class in [0, 1], of another target
            without a bound.
        randomization_correlation: the rank correlation with the same map of the model with all of its weights
            shuffled, in [-1, 1]; NaN where one of the two is constant.
    """

    method: str
    heatmap: Heatmap
    areas: dict[str, float]
    randomization_correlation: float


@dataclass(frozen=True, eq=False)
class Comparison:
    """The maps of several methods for one image and one target.

    Args:
        target: index of the class, or the target that is none.
        target_name: fit for a caption, such as ``"class dog"``.
        maps: in the order of :data:`vitviz.METHODS`.
        chance: the area of random orders of the patches, by metric.
    """

    target: int | Target
    target_name: str
    maps: tuple[Compared, ...]
    chance: dict[str, float]

    @property
    def highest(self) -> float:
        """The largest share that a patch has in any of the maps: the end of their common scale."""
        return max(each.heatmap.token_map.range[1] for each in self.maps)

    def by(self, metric: str | None) -> list[Compared]:
        """The maps from the best down by a metric; in their own order by None.

        Raises:
            MethodError: no such metric was computed.
        """
        if metric is None:
            return list(self.maps)
        word("metric", metric, self.chance)
        return sorted(self.maps, key=lambda each: each.areas[metric], reverse=not METRICS[metric].lower_is_better)

    def beats_chance(self, compared: Compared, metric: str) -> bool:
        """Whether a map's area is better than that of random orders."""
        ahead = self.chance[metric] - compared.areas[metric]
        return (ahead if METRICS[metric].lower_is_better else -ahead) > 0


@named_arguments(MethodError)
def compare(
    analysis: Analysis,
    parameters: Mapping[str, Mapping[str, Any]] | None = None,
    target: TargetChoice = None,
    metrics: Iterable[str] = tuple(METRICS),
    seed: int = 0,
    report: Callable[[Progress], None] | None = None,
) -> Comparison:
    """The maps of every method that can serve the model, how faithful each is, and whether it knows the weights.

    Args:
        analysis: of one image; of a model without a classifier, the target has to be given.
        parameters: of the methods, by name, their target aside; their defaults where they are not given.
        target: of the maps that are about a class, and of the measures, as :meth:`vitviz.Analysis.map` takes it.
        metrics: by name in :data:`vitviz.metrics.faithfulness.METRICS`.
        seed: of the random orders, and of the shuffled weights.
        report: receives how many maps and images are done; an exception that it raises ends the computation.

    Raises:
        MethodError: the model has no such class, there is no such metric or method, a parameter is out of range, or the
            target's score is not higher for the whole image than for one without any patch.
        QueryError: the model has no such layer, head or token.
    """
    instance("analysis", analysis, Analysis, "vitviz.analyze(image, model)")
    model, pixels = analysis.model, analysis.prepared.pixels
    config = model.network.config
    chosen = resolve_target(target, analysis.logits, model.labels)
    about = as_target(chosen, config.classes, model.labels)
    metrics = words("metric", metrics, METRICS)
    for name in parameters or {}:
        word("method", name, METHODS)
    has_target = isinstance(chosen, Target)
    names = [name for name, method in METHODS.items() if method.refusal(config, has_target=has_target) is None]
    if metrics and has_target:
        # Said now and not after all the maps.
        ends(model.network, pixels, about)
    total = 2 * len(names) + images_needed(metrics, len(names))

    def tell(done: int) -> None:
        if report is not None:
            report(Progress(done, total))

    def made(name: str, source: Analysis, done: int) -> Heatmap:
        arguments = dict((parameters or {}).get(name, {}))
        if METHODS[name].class_specific:
            arguments["target"] = chosen
        # Told within a map that takes long too, so that it can be ended there.
        heatmap = source.map(name, report=lambda _: tell(done), **arguments)
        tell(done + 1)
        return heatmap

    maps = {name: _shares(made(name, analysis, done)) for done, name in enumerate(names)}
    without = randomized_analysis(analysis, seed)
    randomization_correlation = {
        name: rank_correlation(maps[name].values, made(name, without, len(names) + done).values)
        for done, name in enumerate(names)
    }

    def images_done(state: Progress) -> None:
        tell(2 * len(names) + state.done)

    curves = analysis.faithfulness(maps, chosen, metrics=metrics, seed=seed, report=images_done)
    areas = {name: {metric: curves[metric][name].area for metric in metrics} for name in names}
    chance = {metric: curves[metric][RANDOM].area for metric in metrics}
    compared = tuple(Compared(name, maps[name], areas[name], randomization_correlation[name]) for name in names)
    return Comparison(chosen, about.name, compared, chance)


def _shares(heatmap: Heatmap) -> Heatmap:
    """A map without negative values, divided by its sum; an all-zero map stays zero."""
    token_map = heatmap.token_map
    total = float(token_map.values.sum())
    shares = token_map.values / total if total > 0 else token_map.values
    made = replace(token_map, values=shares, prefix={}, quantity=SHARE, domain=(0.0, 1.0))
    return replace(heatmap, token_map=made)
