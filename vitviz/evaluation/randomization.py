"""Whether a map depends on what a model has learnt: how far it changes as weights are shuffled, from the top down.

Adebayo et al. 2018, "Sanity Checks for Saliency Maps", section 3: cascading randomisation of the weights, and the rank
correlation of the maps before and after.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import nn

from vitviz.analysis.analysis import Analysis
from vitviz.analysis.encoder import Encoder
from vitviz.attention.precision import PRECISIONS
from vitviz.attribution import METHODS
from vitviz.errors.arguments import instance, integer_or_none, named_arguments, words
from vitviz.errors.kinds import ConfigError, MethodError, QueryError
from vitviz.errors.messages import describe
from vitviz.models.own import own_network
from vitviz.models.targets import Target, TargetChoice, as_target, resolve_target
from vitviz.models.vit import VisionTransformer
from vitviz.progress import Progress
from vitviz.weights import Model

READING = (
    "The correlation should fall towards 0 as more layers are shuffled; a map that stays similar does not depend on "
    "what the shuffled layers had learnt."
)


@named_arguments(ConfigError)
def randomised(model: Model, layers: int | None = None, seed: int = 0) -> Model:
    """A copy of a model that has forgotten what its top knew; the model itself stays as it is.

    The entries of every weight tensor are shuffled among themselves. Weights drawn anew would need the scale that every
    family starts from; shuffled ones keep mean, variance and extremes of what was learnt, so that activations stay in
    range in every family, and lose only which weight stands where. A tensor whose entries are all equal, such as the
    weight of a norm that was never trained, stays as it is.

    Args:
        model: of any family.
        layers: how many encoder layers are shuffled, the one nearest to the classifier first; what stands above them
            (classifier, projection, representation, pooler, final norm) always is. None shuffles everything, also
            patch embedding, learned positions and prefix tokens; rotary periods are not learnt and stay.
        seed: of the shuffling. With the same one the same weights come out, and what is shuffled for fewer layers is
            shuffled alike for more.

    Returns:
        On the same device and in the same precision, in evaluation mode and frozen.

    Raises:
        QueryError: the model has not so many layers.
    """
    depth = instance("model", model, Model, "vitviz.load()").network.config.depth
    count = None if layers is None else integer_or_none(layers)
    if layers is not None and (count is None or not 0 <= count <= depth):
        expected = f"this model has {depth}; expected 0 to {depth}, or None for everything"
        raise QueryError(f"layers = {describe(layers)}: {expected}")
    *_, shuffled = islice(_randomized_models(model, seed), None if count is None else count + 1)
    return shuffled


def steps(depth: int) -> list[str]:
    """What the steps of :func:`cascade` are called for a model of so many layers."""
    return ["as trained", *map(str, range(depth + 1)), "everything"]


@named_arguments(MethodError)
def cascade(
    analysis: Analysis,
    methods: Iterable[str] | None = None,
    target: TargetChoice = None,
    seed: int = 0,
    report: Callable[[Progress], None] | None = None,
) -> dict[str, torch.Tensor]:
    """How far the maps of one image stay the same while the weights are shuffled, from the top down.

    Args:
        analysis: of one image.
        methods: by name in :data:`vitviz.METHODS`, each with its default parameters; all that can serve the model where
            they are not given.
        target: of the maps that are about a class, as :meth:`vitviz.Analysis.map` takes it; classes are chosen by the
            model as it is.
        seed: of :func:`randomised`.
        report: receives how many maps are done, after each; an exception that it raises ends the computation.

    Returns:
        By method the :func:`rank_correlation` of the map as it is with the map at every step, ``"step"``, in [-1, 1]:
        with the model as it is (1 by nature), with 0 (classifier, pooler and final norm alone), 1, 2, … and all layers
        shuffled, and with everything shuffled; depth + 3 values, called as :func:`steps` says.
        NaN where one of the maps is constant.

    Raises:
        MethodError: there is no such method or class, or a method cannot serve the model.
    """
    model = instance("analysis", analysis, Analysis, "vitviz.analyze(image, model)").model
    names = method_names(model, methods, isinstance(target, Target))
    chosen: dict[str, Any] = {}
    if target is not None or any(METHODS[name].class_specific for name in names):
        chosen["target"] = resolve_target(target, analysis.logits, model.labels)
        # Said also where no map is about it.
        as_target(chosen["target"], model.network.config.classes, model.labels)
    total = len(names) * len(steps(model.network.config.depth))
    first: dict[str, torch.Tensor] = {}
    correlations: dict[str, list[float]] = {name: [] for name in names}
    for done, each in enumerate(_analyses(analysis, seed)):
        for number, name in enumerate(names):
            values = each.map(name, **(chosen if METHODS[name].class_specific else {})).values
            correlations[name].append(rank_correlation(first.setdefault(name, values), values))
            if report is not None:
                report(Progress(done * len(names) + number + 1, total))
    return {name: torch.tensor(values) for name, values in correlations.items()}


def randomized_analysis(analysis: Analysis, seed: int = 0) -> Analysis:
    """The same input, encoded by a copy of the model with all weights shuffled."""
    return _encode_with(randomised(analysis.model, seed=seed), analysis)


def rank_correlation(first: torch.Tensor, second: torch.Tensor) -> float:
    """Spearman's rank correlation of two maps over their patches, in [-1, 1]; equal values share their mean rank.

    NaN where one of the maps is constant: it has no order that could be like or unlike another.

    Args:
        first, second: ``"grid_height grid_width"``, or any other shape that both have.

    Raises:
        ConfigError: the shapes differ.
    """
    if first.shape != second.shape:
        raise ConfigError(f"maps of shapes {tuple(first.shape)} and {tuple(second.shape)}: expected one shape")
    # The import takes a second.
    from scipy.stats import spearmanr

    one, other = (values.detach().double().cpu().flatten().numpy() for values in (first, second))
    if not (np.ptp(one) and np.ptp(other)):
        return math.nan
    return float(spearmanr(one, other).statistic)


def method_names(model: Model, methods: Iterable[str] | None, has_target: bool = False) -> list[str]:
    """The chosen methods, or all that a model supports.

    Args:
        model: that they are to serve.
        methods: by name in :data:`vitviz.METHODS`.
        has_target: whether class maps have a target of their own and need no classes.

    Raises:
        MethodError: there is no such method, or it cannot serve the model.
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
    """The analysis, and those of the same input by the model as its weights are shuffled."""
    yield analysis
    for model in _randomized_models(analysis.model, seed):
        yield _encode_with(model, analysis)


def _encode_with(model: Model, analysis: Analysis) -> Analysis:
    """The same input, encoded by another model."""
    trace = analysis.trace
    storage = next((name for name, dtype in PRECISIONS.items() if dtype == trace.queries.dtype), None)
    return Encoder(model, storage=storage, keep_bytes=trace.keep_bytes).encode([analysis.prepared])[0]


def _randomized_models(model: Model, seed: int) -> Iterator[Model]:
    """The same copy of a model after each part is shuffled; use it before advancing the iterator."""
    network = deepcopy(own_network(model.network, "randomisation")).eval().requires_grad_(False)
    # The card's accuracy no longer holds.
    copied = replace(model, name=f"{model.name}, randomised", network=network, card={})
    # On the processor, so that the same seed gives the same weights on every device.
    generator = torch.Generator().manual_seed(seed)
    for part in _parts(network):
        with torch.no_grad():
            for weights in part:
                order = torch.randperm(weights.numel(), generator=generator)
                weights.copy_(weights.cpu().flatten()[order].view_as(weights))
        yield copied


def _parts(network: VisionTransformer) -> Iterator[list[nn.Parameter]]:
    """The learnt parameters from the top down: above the layers, each layer, below the layers."""
    above = [network.classifier, network.projection, network.representation, network.pooler, network.norm]
    parts = [[weights for module in above for weights in module.parameters()]]
    parts += [list(layer.parameters()) for layer in reversed(network.encoder)]
    part_ids = {id(weights) for part in parts for weights in part}
    parameters = (weights for name, weights in network.named_parameters() if name != "periods")
    yield from (*parts, [weights for weights in parameters if id(weights) not in part_ids])
