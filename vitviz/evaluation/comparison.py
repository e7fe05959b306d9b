"""All methods on one image, side by side: their maps on one scale, and the faithfulness of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from vitviz.analysis.analysis import Analysis
from vitviz.attribution import METHODS
from vitviz.attribution.methods import MethodName
from vitviz.errors.arguments import instance, named_arguments, word, words
from vitviz.errors.kinds import MethodError
from vitviz.evaluation.randomization import method_names, randomized_analysis, rank_correlation
from vitviz.metrics.faithfulness import METRIC_NAMES, METRICS, RANDOM, RANDOM_ORDERS, MetricName, ends, images_needed
from vitviz.models.targets import Target, TargetChoice, as_target, effect_score, resolve_target
from vitviz.progress import Progress
from vitviz.visualization.heatmaps import Heatmap

SHARE = "share of the map"
# What a map that reports its progress takes, about: as many passes of the model as it has squares, or steps.
SLOW_MAP_PASSES = 100
Found = TypeVar("Found")


@dataclass(frozen=True, eq=False)
class MethodResult:
    """One method's map and its measures.

    Args:
        method: its name in :data:`vitviz.METHODS`.
        heatmap: each patch's share of the map, in [0, 1], which makes methods comparable; of a signed one, of its
            values above zero.
        areas: area under the curve by metric in :data:`vitviz.metrics.faithfulness.METRICS`: in [0, 1] for a class,
            unbounded for another target.
        randomization_correlation: rank correlation with the same map of the model with all its weights shuffled, in
            [-1, 1]; NaN if one of the two is constant.
    """

    method: MethodName
    heatmap: Heatmap
    areas: dict[str, float]
    randomization_correlation: float


@dataclass(frozen=True, eq=False)
class Comparison:
    """The maps of several methods for one image and one target.

    Args:
        target: index of the class, or another target.
        target_name: name in captions, such as ``"class dog"``.
        maps: results in the order of :data:`vitviz.METHODS`.
        chance: area under the curve for random orders of the patches, by metric.
    """

    target: int | Target
    target_name: str
    maps: tuple[MethodResult, ...]
    chance: dict[str, float]

    @property
    def highest(self) -> float:
        """The largest share of a patch in any of the maps: the upper end of their common scale."""
        return max(result.heatmap.token_map.range[1] for result in self.maps)

    def by(self, metric: str | None) -> list[MethodResult]:
        """The maps sorted by a metric, best first; unsorted for None.

        Raises:
            MethodError: this metric was not computed.
        """
        if metric is None:
            return list(self.maps)
        word("metric", metric, self.chance)
        return sorted(self.maps, key=lambda result: result.areas[metric], reverse=not METRICS[metric].lower_is_better)

    def beats_chance(self, result: MethodResult, metric: str) -> bool:
        """Whether a map's area is better than that of random orders."""
        advantage = self.chance[metric] - result.areas[metric]
        return (advantage if METRICS[metric].lower_is_better else -advantage) > 0


@named_arguments(MethodError)
def compare(
    analysis: Analysis,
    parameters: dict[str, dict[str, Any]] | None = None,
    target: TargetChoice = None,
    metrics: Iterable[MetricName] = METRIC_NAMES,
    seed: int = 0,
    report: Callable[[Progress], None] | None = None,
    maps: MutableMapping[str, Heatmap] | None = None,
    report_scores: Callable[[Comparison], None] = lambda comparison: None,
) -> Comparison:
    """The maps of all methods that support the model, their faithfulness, and their dependence on the weights.

    Args:
        analysis: analysis of one image; without a classifier, the target is required.
        parameters: parameters of the methods by name, except the target; the defaults if missing.
        target: target of class-specific maps and of the measures, as in :meth:`vitviz.Analysis.map`.
        metrics: names in :data:`vitviz.metrics.faithfulness.METRICS`.
        seed: seed of the random orders and of the shuffled weights.
        report: receives how much is done, about in passes of the model; an exception from it ends the computation.
        maps: those of this analysis, by method, that exist already with these parameters and target; they are not
            computed again, and the others are put there.
        report_scores: receives the comparison of the methods that are measured so far, those that take long last: after
            the first metric of each, without its correlation (NaN), and after its last; without `chance` until this is
            measured.

    Raises:
        MethodError: the model has no such class, there is no such metric or method, a parameter is out of range, or the
            target's score is not higher for the whole image than for one without any patch.
        QueryError: the model has no such layer, head or token.
    """
    instance("analysis", analysis, Analysis, "vitviz.analyze(image, model)")
    instance("parameters", parameters or {}, dict, "{'rollout': {'discard_ratio': 0.9}}")
    model, pixels = analysis.model, analysis.prepared.pixels
    config = model.network.config
    class_or_target = resolve_target(target, analysis.logits, model.labels)
    score = as_target(class_or_target, config.classes, model.labels)
    metrics = words("metric", metrics, METRIC_NAMES)
    words("method", parameters or {}, METHODS)
    names = method_names(model, None, isinstance(class_or_target, Target))
    measured = effect_score(class_or_target, config.classes, config.probability)
    if metrics and isinstance(measured, Target):
        # Raises before the maps are computed instead of after.
        ends(analysis.network, pixels, measured)
    maps = {} if maps is None else maps
    passes = {name: SLOW_MAP_PASSES if METHODS[name].reports else 1 for name in names}
    total = sum(passes[name] * (2 - (name in maps)) for name in names)
    total += images_needed(metrics, len(names) + RANDOM_ORDERS)
    results, chance, done = dict[str, MethodResult](), dict[str, float](), 0
    report = report or (lambda _: None)

    def step(passes: int, compute: Callable[..., Found], *given: Any, **named: Any) -> Found:
        """What a computation returns that takes about so many passes, and reports its share of them."""
        nonlocal done
        before, done = done, done + passes
        found = compute(
            *given, report=lambda each: report(Progress(before + passes * each.done // each.total, total)), **named
        )
        report(Progress(done, total))
        return found

    def compute_map(name: MethodName, source: Analysis) -> Heatmap:
        target = {"target": class_or_target} if METHODS[name].class_specific else {}
        return step(passes[name], source.map, name, **{**(parameters or {}).get(name, {}), **target})

    def areas(name: str, heatmaps: Mapping[str, Heatmap], metrics: Sequence[MetricName]) -> dict[str, float]:
        """Those of one map, or of random orders beside none."""
        orders = 0 if heatmaps else RANDOM_ORDERS
        needed, options = images_needed(metrics, orders or 1), {"metrics": metrics, "random_orders": orders}
        curves = step(needed, analysis.faithfulness, heatmaps, class_or_target, seed=seed, **options)
        return {metric: curves[metric][name].area for metric in metrics}

    randomized: Analysis | None = None
    for name in sorted(names, key=lambda name: passes[name]):
        if passes[name] > 1:
            chance = chance or areas(RANDOM, {}, metrics)
        if name not in maps:
            maps[name] = compute_map(name, analysis)
        shares, found, correlation = _shares(maps[name]), dict[str, float](), math.nan
        # The first score is soon there.
        for part in (metrics[:1], metrics[1:]):
            if math.isnan(correlation) and (found or not metrics):
                randomized = randomized or randomized_analysis(analysis, seed)
                correlation = rank_correlation(shares.values, compute_map(name, randomized).values)
            found = found | areas(name, {name: shares}, part)
            results[name] = MethodResult(name, shares, found, correlation)
            so_far = tuple(results[each] for each in names if each in results)
            comparison = Comparison(class_or_target, score.name, so_far, chance)
            report_scores(comparison)
            # Whoever shows both hears of them now, and not when the next computation gets on.
            report(Progress(done, total))
    return replace(comparison, chance=chance or areas(RANDOM, {}, metrics))


def _shares(heatmap: Heatmap) -> Heatmap:
    """A map, divided by the sum of its values above zero; one without such values stays the same."""
    token_map = heatmap.token_map
    total = float(token_map.values.relu().sum())
    shares = token_map.values / total if total > 0 else token_map.values
    domain = (-math.inf if token_map.signed else 0.0, 1.0)
    return replace(heatmap, token_map=replace(token_map, values=shares, prefix={}, quantity=SHARE, domain=domain))
