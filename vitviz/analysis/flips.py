"""What an analysis answers to: which squares have to be covered for another answer?"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

import torch

from vitviz.analysis.predictions import Prediction
from vitviz.analysis.same_picture import check_place
from vitviz.attention.precision import plain_torch
from vitviz.attention.token_map import TokenMap
from vitviz.errors.arguments import instance, integer, number
from vitviz.errors.attributes import AttributeAdvice
from vitviz.errors.kinds import MethodError
from vitviz.metrics.flip import FlipSearch
from vitviz.models.probability import why_no_probability
from vitviz.models.targets import class_index, class_target
from vitviz.progress import Progress
from vitviz.visualization.heatmaps import Heatmap

if TYPE_CHECKING:
    from vitviz.analysis.analysis import Analysis


@dataclass(frozen=True)
class Flip(AttributeAdvice):
    """A few patches without which the answer is another one; falsy if none were found.

    The set is small, not the smallest: each of its patches is needed by itself, and another set may be smaller. Of a
    large set, the search ends before all are tried.

    Args:
        before: what the model says of the whole picture.
        after: what it says without the patches; without half of all if none were found.
        patches: row and column of each, from the top; empty if the answer stays without half of all patches.
        class_count: number of classes that the model knows.
        heatmap: where they are: 1 for a covered patch, and 0 for any other.
        random_count: how many patches a random order needs, made fewer in the same way, the median of several; None if
            most of them do not change the answer within half of all patches, or if none was tried.
        passes: pictures that went through the network; one that also went back counts as three.
        all_needed: whether each patch is needed by itself; False if the search ended before it had tried them all.

    >>> flip = analysis.flip()
    >>> print(flip)
    Of the 108 things it knows, it says cat, 73%. ...
    """

    before: Prediction
    after: Prediction
    patches: tuple[tuple[int, int], ...]
    class_count: int
    heatmap: Heatmap = field(repr=False, compare=False)
    random_count: int | None = None
    passes: int = field(default=0, compare=False)
    all_needed: bool = True

    def __bool__(self) -> bool:
        return bool(self.patches)

    def __str__(self) -> str:
        says = f"Of the {self.class_count} things it knows, it says {self.before.label}, {self.before.probability:.0%}."
        if not self:
            return f"{says} No such squares were found within half of the {self.heatmap.values.numel()}."
        count = "this square" if len(self.patches) == 1 else f"these {len(self.patches)} squares"
        says = f"{says} Cover {count} and it says {self.after.label}, {self.after.probability:.0%}."
        return says if self.all_needed else f"{says} Some of them may not be needed."


@plain_torch()
def flip(
    analysis: Analysis,
    to: int | str | None,
    margin: float,
    order: Heatmap | None,
    random_orders: int,
    report: Callable[[Progress], None] | None,
) -> Flip:
    """As :meth:`vitviz.Analysis.flip`."""
    config, labels = analysis.model.network.config, analysis.model.labels
    if reason := why_no_probability(config) or ("has a single class" if len(labels) < 2 else None):
        raise MethodError(f"flip: {analysis.model.name} {reason}: it has no other answer")
    [before] = analysis.predictions(1)
    first, random_orders = before.index, integer("random_orders", random_orders, 0, MethodError)
    other = None if to is None else class_index(to, analysis.logits, labels)
    if other is not None:
        # Raises for a number that no class has.
        class_target(other, config.classes, labels)
    if other == first:
        raise MethodError(f"to = {to!r}: this is the answer already; expected another class, or None for any other")
    margin = number("margin", margin, lambda value: 0 <= value < 1, "a number from 0 up to, but not including, 1")
    search, ranking = FlipSearch(analysis.network, analysis.prepared.pixels, first, other, margin, report), None
    layout = analysis.trace.layout
    if order is not None:
        check_place(analysis.prepared, "order", instance("order", order, Heatmap, "analysis.rollout()", MethodError))
        if order.shape != (grid := (layout.grid_height, layout.grid_width)):
            raise MethodError(f"order: a map of {order.shape} patches; expected {grid}, those of this analysis")
        ranking = order.values.flatten().argsort(descending=True, stable=True).tolist()
    covered, is_found = search.patches(ranking)
    # The search goes on with random orders.
    without, all_needed, passes, counts = search.probabilities(covered), search.all_needed, search.passes, list[float]()
    for seed in range(random_orders):
        shuffled = torch.randperm(search.patch_count, generator=torch.Generator().manual_seed(seed)).tolist()
        needed, is_changed = search.patches(shuffled)
        counts.append(len(needed) if is_changed else math.inf)
        # More cannot change the median.
        if 2 * counts.count(math.inf) > random_orders:
            break
    typical = median(counts) if counts else math.inf
    answer = int(without.argmax()) if other is None else other
    after = Prediction(labels[answer], float(without[answer]), answer)
    patches = tuple(divmod(patch, layout.grid_width) for patch in sorted(covered)) if is_found else ()
    cover = torch.tensor(
        [[float((row, column) in patches) for column in range(layout.grid_width)] for row in range(layout.grid_height)]
    )
    change = f"the answer is {after.label!r} in place of {before.label!r}"
    description = f"Squares without which {change}" if patches else f"No squares were found without which {change}"
    heatmap = analysis.heatmap_of(TokenMap(cover, {}, "covered or not", description, (0.0, 1.0)))
    return Flip(
        *(before, after, patches, len(labels), heatmap),
        *(None if math.isinf(typical) else int(typical), passes, all_needed),
    )
