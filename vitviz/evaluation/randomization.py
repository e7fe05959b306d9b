"""Tests whether a map depends on the trained weights, by its change as weights are shuffled from the top down.

Adebayo et al. 2018, "Sanity Checks for Saliency Maps", section 3: cascading randomisation of the weights, and the rank
correlation of the maps before and after.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import torch

from vitviz.analysis.analysis import Analysis
from vitviz.analysis.encoder import Encoder
from vitviz.attention.precision import PRECISIONS
from vitviz.attribution import METHODS
from vitviz.attribution.methods import MethodName
from vitviz.errors.arguments import instance, integer_or_none, named_arguments, words
from vitviz.errors.kinds import ConfigError, MethodError, QueryError
from vitviz.errors.messages import describe
from vitviz.models.targets import Target, TargetChoice, as_target, resolve_target
from vitviz.progress import Progress
from vitviz.weights import Model

INTERPRETATION = (
    "The correlation should fall towards 0 as more layers are shuffled; a map that stays similar does not depend on "
    "what the shuffled layers had learnt."
)


@named_arguments(ConfigError)
def randomized_model(model: Model, layers: int | None = None, seed: int = 0) -> Model:
    """A copy of a model with the weights of its upper layers shuffled; the model itself is unchanged.

    The entries of each weight tensor are permuted. Newly drawn weights would need the initial scale of every family.
    Permuted ones keep mean, variance and extremes of the trained weights, so that activations stay in range, and lose
    only their order. A tensor whose entries are all equal, such as the weight of an untrained norm, stays the same.

    Args:
        model: of any family.
        layers: number of encoder layers to shuffle, starting with the last. The modules above them (classifier,
            projection, representation, pooler, final norm) are always shuffled. None shuffles everything, including
            patch embedding, learned positions and prefix tokens; rotary periods are not learned and stay.
        seed: seed of the permutations. The same seed gives the same weights, and the same permutations of the upper
            layers for any number of layers.

    Returns:
        A frozen model in evaluation mode, on the same device and in the same precision.

    Raises:
        QueryError: the model has fewer layers.
    """
    depth = instance("model", model, Model, "vitviz.load()").network.config.depth
    count = None if layers is None else integer_or_none(layers)
    if layers is not None and (count is None or not 0 <= count <= depth):
        expected = f"this model has {depth}; expected 0 to {depth}, or None for everything"
        raise QueryError(f"layers = {describe(layers)}: {expected}")
    by_layer = count is not None
    *_, shuffled = islice(_randomized_models(model, seed, by_layer), None if count is None else count + 1)
    return shuffled


def steps(depth: int) -> list[str]:
    """The names of the steps of :func:`cascade` for a model with ``depth`` layers."""
    return ["as trained", *map(str, range(depth + 1)), "everything"]


@named_arguments(MethodError)
def cascade(
    analysis: Analysis,
    methods: Iterable[MethodName] | None = None,
    target: TargetChoice = None,
    seed: int = 0,
    report: Callable[[Progress], None] | None = None,
) -> dict[str, torch.Tensor]:
    """The similarity of one image's maps while the weights are shuffled, from the top down.

    Args:
        analysis: analysis of one image.
        methods: names in :data:`vitviz.METHODS`, each with its default parameters; by default all that support the
            model.
        target: target of class-specific maps, as in :meth:`vitviz.Analysis.map`; the trained model determines the
            class.
        seed: as in :func:`randomized_model`.
        report: receives the number of finished maps after each; an exception from it ends the computation.

    Returns:
        By method, the :func:`rank_correlation` of the trained model's map with the map at every step, ``"step"``, in
        [-1, 1]. The steps, named by :func:`steps`, are the trained model (always 1), the model with 0 (only classifier,
        pooler and final norm), 1, 2, … and all layers shuffled, and with everything shuffled: depth + 3 values.
        NaN if one of the maps is constant.

    Raises:
        MethodError: there is no such method or class, or a method does not support the model.
    """
    model = instance("analysis", analysis, Analysis, "vitviz.analyze(image, model)").model
    names = method_names(model, methods, isinstance(target, Target))
    class_arguments: dict[str, Any] = {}
    if target is not None or any(METHODS[name].class_specific for name in names):
        class_arguments["target"] = resolve_target(target, analysis.logits, model.labels)
        # Raises for an unknown class even if no map uses it.
        as_target(class_arguments["target"], model.network.config.classes, model.labels)
    total = len(names) * len(steps(model.network.config.depth))
    first: dict[str, torch.Tensor] = {}
    correlations: dict[str, list[float]] = {name: [] for name in names}
    for step, step_analysis in enumerate(_analyses(analysis, seed)):
        for number, name in enumerate(names):
            values = step_analysis.map(name, **(class_arguments if METHODS[name].class_specific else {})).values
            correlations[name].append(rank_correlation(first.setdefault(name, values), values))
            if report is not None:
                report(Progress(step * len(names) + number + 1, total))
    return {name: torch.tensor(values, dtype=torch.float32) for name, values in correlations.items()}


def randomized_analysis(analysis: Analysis, seed: int = 0) -> Analysis:
    """The analysis of the same input by a copy of the model with all weights shuffled."""
    return _encode_with(randomized_model(analysis.model, seed=seed), analysis)


def rank_correlation(first: torch.Tensor, second: torch.Tensor) -> float:
    """Spearman's rank correlation of two maps over their patches, in [-1, 1]; equal values share their mean rank.

    NaN if one of the maps is constant, since it has no order.

    Args:
        first, second: ``"grid_height grid_width"``, or any other common shape.

    Raises:
        ConfigError: the shapes differ.
    """
    if first.shape != second.shape:
        raise ConfigError(f"maps of shapes {tuple(first.shape)} and {tuple(second.shape)}: expected one shape")
    # Imported here, since it takes a second.
    from scipy.stats import spearmanr

    first_values, second_values = (values.detach().double().cpu().flatten().numpy() for values in (first, second))
    if not (np.ptp(first_values) and np.ptp(second_values)):
        return math.nan
    return float(spearmanr(first_values, second_values).statistic)


def method_names(model: Model, methods: Iterable[MethodName] | None, has_target: bool = False) -> list[MethodName]:
    """The names of the given methods, or of all that support a model.

    Args:
        model: the model.
        methods: names in :data:`vitviz.METHODS`.
        has_target: whether there is a target that needs no classifier.

    Raises:
        MethodError: there is no such method, or it does not support the model.
    """
    config = model.network.config
    refusals = {name: method.refusal(config, has_target=has_target) for name, method in METHODS.items()}
    if methods is None:
        return [name for name, refusal in refusals.items() if refusal is None]
    names = list(dict.fromkeys(words("method", methods, METHODS)))
    for name in names:
        if refusals[name] is not None:
            raise MethodError(f"{name}: {refusals[name]}")
    return names


def _analyses(analysis: Analysis, seed: int) -> Iterator[Analysis]:
    """The analysis, then those of the same input while the model's weights are shuffled."""
    yield analysis
    for model in _randomized_models(analysis.model, seed):
        yield _encode_with(model, analysis)


def _encode_with(model: Model, analysis: Analysis) -> Analysis:
    """The analysis of the same input by another model."""
    trace = analysis.trace
    storage = next((name for name, dtype in PRECISIONS.items() if dtype == trace.queries.dtype), None)
    return Encoder(model, storage=storage, keep_bytes=trace.keep_bytes).encode([analysis.prepared])[0]


def _randomized_models(model: Model, seed: int, by_layer: bool = True) -> Iterator[Model]:
    """One copy of a model, shuffled further at each step; use it before advancing the iterator."""
    network, parts = model.network.copy_in_parts()
    if by_layer and len(parts) == 1:
        reason = "its layers share weights, or no weight is known to be of one"
        raise MethodError(f"{model.name}: {reason}; randomized_model(model) shuffles all of them at once")
    # The card's accuracy no longer holds.
    copy = replace(model, name=f"{model.name}, randomised", network=network, card={})
    # On the CPU, so that the same seed gives the same weights on every device.
    generator = torch.Generator().manual_seed(seed)
    for part in parts:
        with torch.no_grad():
            for weights in part:
                order = torch.randperm(weights.numel(), generator=generator)
                weights.copy_(weights.cpu().flatten()[order].view_as(weights))
        yield copy
