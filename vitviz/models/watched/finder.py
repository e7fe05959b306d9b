"""Finds attention among the operations of a pass: fused kernels, and products of weights that sum to 1 with values.

Attention that is written by hand arrives as a product of queries and keys, a softmax, and a product with values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from operator import mul
from typing import Any

import torch

from vitviz.attention.precision import precise
from vitviz.models.watched.attention_operations import (
    COPIES,
    FUSED,
    LINEAR,
    MIN_WEIGHT,
    PRODUCTS,
    ROUNDING,
    TRANSPOSES,
    Attention,
    Operands,
    is_split,
    operands_of,
    origin,
    queries_and_keys,
    shared_factor,
)
from vitviz.models.watched.program import PICTURE, Constant, Program, Result, Step

SOFTMAXES = ("_softmax", "_safe_softmax")
# Operations of two tensors whose result is still weights if one of them is.
ARITHMETIC = ("add", "add_", "sub", "sub_", "mul", "mul_", "div", "div_")
# Operations that join the outputs of heads, and those that pass them on to what joins them.
JOINS = ("cat", "stack", "add", "add_", "sum", "copy_", "slice_scatter", "select_scatter", "index_put_", "index_put")
PASSES = (*COPIES, *TRANSPOSES, *LINEAR, "bmm", "split", "select", "slice")
# The fewest keys of weights that come from no softmax.
MIN_KEYS = 4
# The most by which a factor of scores may differ from a usual one that it is taken for, relative to it.
SAME_SCALE = 1e-3
# The most operations that are searched for the product from which weights come.
MAX_STEPS = 60


@dataclass
class AttentionFinder:
    """Finds the attention of a pass while it is recorded: an observer of :func:`vitviz.models.watched.recorder.record`.

    Args:
        has_picture: whether only what depends on a picture makes scores.
        found: attention, in order.
        softmaxes: number of elements of each softmax, by number of the step.
        taken: number of elements of the weights that were taken from each.
        reused: numbers of products of weights that make another one, too.
    """

    has_picture: bool = True
    found: list[Attention] = field(default_factory=list)
    softmaxes: dict[int, int] = field(default_factory=dict)
    taken: dict[int, int] = field(default_factory=dict)
    reused: list[int] = field(default_factory=list)
    steps: list[Step] = field(default_factory=lambda: [Step(None)])
    _live: set[int] = field(default_factory=lambda: {PICTURE})
    _weights: dict[int, int] = field(default_factory=dict)
    """The softmax from whose result a step took elements, by number of the step."""
    operands: Operands = field(default_factory=dict)
    """Of products since the last attention that may be scores."""
    _rows: int = 0
    """The number of tokens of the last linear map."""

    def __call__(self, number: int, step: Step, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        self.steps.append(step)
        if not self._live.isdisjoint(step.reads):
            self._live.add(number)
        name = step.name
        if name in FUSED:
            self._add(Attention(number, True, leading=tuple(args[0].shape[:-2])))
            return
        if name in LINEAR:
            self._note_linear(step, result)
        if name in SOFTMAXES:
            self._weights[number] = number
            self.softmaxes[number] = result.numel()
        elif name in PRODUCTS:
            self._product(number, step, args, result)
        else:
            self._follow(number, step)

    def _note_linear(self, step: Step, result: Any) -> None:
        first, second = (step.args[place] for place in PRODUCTS.get(step.name, (0, 1)))
        # Positions may be linear maps of a table, which tell nothing of the tokens.
        is_live = isinstance(first, Result) and (not self.has_picture or first.step in self._live)
        if is_live and self._is_constant(second) and isinstance(result, torch.Tensor):
            self._rows = math.prod(result.shape[:-1])

    def _is_constant(self, reference: Any) -> bool:
        return isinstance(origin(self.steps, reference), Constant)

    def _follow(self, number: int, step: Step) -> None:
        """What is taken from weights is weights; the operation may change them, or only look at them."""
        operands = step.args if step.name in ARITHMETIC else step.args[:1]
        read = [each.step for each in operands if isinstance(each, Result) and each.step in self._weights]
        if read:
            self._weights[number] = self._weights[read[0]]

    def _product(self, number: int, step: Step, args: Sequence[Any], result: torch.Tensor) -> None:
        references, (first, second) = operands_of(step, step.args), operands_of(step, args)
        if any(map(self._is_constant, references)):
            self._follow(number, step)
            return
        sources = [self._weights.get(each.step) for each in references]
        is_live = [not self.has_picture or each.step in self._live for each in references]
        sums = [
            # One token that asks may be the only one that answers.
            _sums_to_one(operand, MIN_KEYS if source is None else 1 + self.has_picture) and (source is not None or live)
            for source, live, operand in zip(sources, is_live, (first, second.mT), strict=True)
        ]
        if step.name not in ("bmm", "mm") or not any(sums):
            self.reused += [number for source in sources if source in self.taken]
            if all(is_live):
                self.operands[number] = args
            return
        is_flipped = not sums[0] or (sources[0] is None and sums[1] and sources[1] is not None)
        weights, source = (second.mT, sources[1]) if is_flipped else (first, sources[0])
        if source is not None:
            taken = self.taken.get(source, 0) + weights.numel()
            if source in self.taken and taken > self.softmaxes[source]:
                self.reused.append(number)
            self.taken[source] = taken
        found = self._explained(Attention(number, False, is_flipped), weights)
        shape = () if source is None else self.steps[source].shape or ()
        is_same = math.prod(shape) == weights.numel() and shape[-1] == weights.shape[-1]
        # Of einsum: "batch head query dim" and "batch key dim" are multiplied as "batch (head query) dim".
        shared = max(1, math.prod(shape[:-2]) // weights.shape[:-2].numel()) if is_same else 1
        leading, is_swapped = self._leading(shape[:-2], weights.shape[:-2].numel() * shared, weights.shape[-1])
        self._add(replace(found, leading=leading, is_swapped=is_swapped, shared=shared))

    def _leading(self, leading: tuple[int, ...], lead: int, keys: int) -> tuple[tuple[int, ...], bool]:
        """The leading dimensions of weights as their softmax has them, and whether the heads come before windows."""
        windows, rest = divmod(self._rows, keys)
        fits = windows > 0 and not rest and lead % windows == 0
        # Heads may be in groups, of which each has keys of its own.
        if math.prod(leading) != lead or len(leading) < 2 or windows in accumulate(leading[:-2], mul):
            return (windows, lead // windows) if fits and lead > 1 else (1, lead), False
        return leading, len(leading) == 3 and leading[0] * leading[1] != windows == leading[0] * leading[2]

    def _explained(self, plain: Attention, weights: torch.Tensor) -> Attention:
        """The attention with the product of queries and keys from which its weights come, if there is one."""
        step = self.steps[plain.step]
        product = self._scores_of(step.args[PRODUCTS[step.name][plain.is_flipped]], weights, plain.is_flipped)
        if product is None:
            return plain
        factor = shared_factor(self.steps, self.steps[product])
        queries, keys = (
            each / factor for each in queries_and_keys(self.steps[product], self.operands[product], plain.is_flipped)
        )
        slope = _slope((queries.double() @ keys.double().mT).view(weights.shape), weights.double())
        usual = (1.0, queries.shape[-1] ** -0.5)
        scale = next((each for each in usual if abs(slope / each - 1) < SAME_SCALE), slope)
        return replace(plain, scores=product, scale=scale, factor=factor)

    def _scores_of(self, reference: Any, weights: torch.Tensor, is_flipped: bool) -> int | None:
        """The last product of queries and keys on which weights depend, if it has their size."""
        rest, visited = {reference.step}, set[int]()
        for _ in range(MAX_STEPS):
            number = max(rest, default=PICTURE)
            if number in self.operands:
                queries, keys = queries_and_keys(self.steps[number], self.operands[number], is_flipped)
                sizes = (queries.shape[:-2].numel(), queries.shape[-2], keys.shape[-2])
                return number if sizes == (weights.shape[:-2].numel(), *weights.shape[-2:]) else None
            visited.add(number)
            reads = self.steps[number].reads
            # Tables of relative positions are made by many.
            rest = (rest | (reads & self._live if self.has_picture else reads)) - visited
        return None

    def _add(self, attention: Attention) -> None:
        self.found.append(attention)
        self.operands = {}


def joined(program: Program, found: Sequence[Attention]) -> list[list[Attention]]:
    """The attention of each layer: one, or several side by side whose outputs are joined, as of heads in a loop."""
    numbers = {each.step for each in found}
    after = {number: program.dependent(number) & numbers - {number} for number in numbers}
    kin = {number: (after[number], {each for each in numbers if number in after[each]}) for number in numbers}
    groups: list[list[Attention]] = []
    for attention in found:
        last = groups[-1] if groups else []
        alike = bool(last) and kin[last[0].step] == kin[attention.step]
        has_queries = not is_split(program.steps, [*last, attention])
        same = alike and _sizes(program.steps, last[0], has_queries) == _sizes(program.steps, attention, has_queries)
        if same and _are_joined(program, [*(each.step for each in last), attention.step]):
            last.append(attention)
        else:
            groups.append([attention])
    return groups


def _sizes(steps: Sequence[Step], attention: Attention, has_queries: bool) -> tuple[Any, ...]:
    """What parts of one call have in common; heads have the number of queries, too."""
    shape = steps[attention.step].shape or ()
    values = steps[attention.values_of(steps).step].shape or ()
    queries = shape[-1 if attention.is_flipped else -2] if has_queries else 0
    return attention.leading[:-1], queries, *(values[:-3:-1] if attention.is_flipped else values[-2:])


def _are_joined(program: Program, parts: Sequence[int]) -> bool:
    """Whether outputs of attention reach what joins them by views and linear maps alone."""
    sources: dict[int, frozenset[int]] = {part: frozenset([part]) for part in parts}
    for number in range(min(parts) + 1, len(program.steps)):
        step = program.steps[number]
        found = frozenset[int]().union(*(sources[read] for read in step.reads if read in sources))
        if not found or number in sources:
            continue
        if step.name in JOINS and len(found) == len(parts):
            return True
        # A number for each feature, as of a layer scale, leaves a projection linear.
        is_scale = step.name in ("mul", "mul_") and type(step.args[1]) is Constant
        if step.name not in (*JOINS, *PASSES) and not is_scale:
            return False
        sources[number] = found
    return False


def _sums_to_one(weights: torch.Tensor, fewest: int) -> bool:
    """Whether no number of a matrix is negative, and its rows, of this many at least, sum to 1."""
    if not weights.is_floating_point() or weights.shape[-1] < fewest or bool(weights[..., :1, :].min() < 0):
        return False
    tolerance = 10 * ROUNDING.get(weights.dtype, 1e-5)
    return bool(weights.min() >= 0) and bool(((precise(weights).sum(-1) - 1).abs() <= tolerance).all())


def _slope(products: torch.Tensor, weights: torch.Tensor) -> float:
    """The factor of products that explains the most of the logarithms of weights; 1 if there is none."""
    is_known = weights > MIN_WEIGHT
    count = is_known.sum(-1, keepdim=True).clamp(min=1)
    both = (products, weights.where(is_known, 1).log())
    x, y = ((each - (each * is_known).sum(-1, keepdim=True) / count) * is_known for each in both)
    slope = float((x * y).sum() / x.square().sum())
    return slope if math.isfinite(slope) and slope else 1.0
