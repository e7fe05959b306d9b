"""Rows followed down through the layers: what attention rollout and gradient rollout share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from vitviz.attention.layout import Query, TokenLayout, layer_range
from vitviz.attention.token_map import TokenMap
from vitviz.attention.trace import Chunks
from vitviz.errors.arguments import number, word
from vitviz.errors.kinds import MethodError

VIT_EXPLAIN = "vit-explain"
REFERENCES = (VIT_EXPLAIN,)
EVERY = slice(None)

Matrices = Callable[[int, slice], Chunks]
"""The fused matrix of a layer in chunks ``"query key"``: all of it, or no more than some rows where they suffice.

Of several images at once, chunks ``"image query key"``, with steps of ``"image start token"``.
"""
Step = Callable[[int, torch.Tensor, slice], torch.Tensor]
"""Layer, ``"start token"`` of its output, and which of these tokens are not zero: ``"start token"`` of its input."""


@dataclass(frozen=True)
class RolloutOptions:
    """How the fused matrices of the layers become steps.

    Args:
        discard_ratio: part of the lowest entries that is set to zero, in [0, 1).
        residual_weight: share of the residual connection, in [0, 1].
        start_layer: lowest layer that is followed, from 0.
        reference: whose numbers are reproduced; None for rows that sum to 1.

    Raises:
        MethodError: a value is out of range or unknown, or the reference has no such value.
    """

    discard_ratio: float
    residual_weight: float
    start_layer: int
    reference: str | None = None

    def __post_init__(self) -> None:
        ratio = number("discard_ratio", self.discard_ratio, lambda part: 0 <= part < 1, "a number in [0, 1)")
        weight = number("residual_weight", self.residual_weight, lambda part: 0 <= part <= 1, "a number in [0, 1]")
        object.__setattr__(self, "discard_ratio", ratio)
        object.__setattr__(self, "residual_weight", weight)
        if self.reference is None:
            return
        word("reference", self.reference, REFERENCES, also=", or None for the paper's rollout")
        if self.residual_weight != 0.5 or self.start_layer != 0:
            found = f"residual_weight = {self.residual_weight} and start_layer = {self.start_layer}"
            raise MethodError(f"{found}: {self.reference} knows only 0.5 and 0")

    @property
    def discards(self) -> bool:
        return self.discard_ratio > 0


def propagate(
    tokens: torch.Tensor, active_rows: slice, layers: int, step: Step, options: RolloutOptions
) -> torch.Tensor:
    """``"start token"`` of the last layer's output to the same of the start layer's input.

    Args:
        tokens: where to start.
        active_rows: the tokens of the last layer that are not zero: no other rows of its matrix count.
        layers: how many the model has.
        step: of a layer.
        options: the lowest layer among them.
    """
    if options.residual_weight == 1:
        # Every token stays where it is.
        return tokens
    for layer in reversed(range(options.start_layer, layers)):
        tokens = step(layer, tokens, active_rows)
        active_rows = EVERY
    return tokens


def start_row(
    layout: TokenLayout, query: Query, options: RolloutOptions, like: torch.Tensor
) -> tuple[torch.Tensor, slice]:
    """One row that is at a token, and which tokens that is: ``tokens`` and ``active_rows`` of :func:`propagate`.

    Raises:
        QueryError: the model has no such token.
        MethodError: the reference cannot be reproduced for this model.
    """
    if options.reference is not None and layout.default_query != "cls":
        reason = f"this model has no CLS token, which {options.reference} takes for granted"
        raise MethodError(f"reference {options.reference!r}: {reason}")
    chosen = layout.select(query)
    row = like.new_zeros(1, layout.token_count)
    row[:, chosen] = 1 / (chosen.stop - chosen.start)
    return row, chosen


def as_map(
    tokens: torch.Tensor,
    layout: TokenLayout,
    layers: int,
    options: RolloutOptions,
    what: str,
    settings: str,
    without: str = "",
) -> TokenMap:
    """The row of a token, ``"token"``, as a map whose caption says ``what`` it is, how it was made, and without what.

    Raises:
        MethodError: nothing is left of the map.
    """
    made = [settings, f"residual {options.residual_weight:g}"]
    made += [f"lowest {100 * options.discard_ratio:g}% discarded"] * options.discards
    made += [layer_range(options.start_layer, layers), *([without] if without else [])]
    quantity = "share of the rollout"
    if options.reference is not None:
        what, quantity = f"{what}, as {options.reference} computes it", "share relative to the highest patch"
        highest = layout.grid(tokens).max()
        if highest <= 0:
            raise MethodError(
                f"{what}: no patch is left after discarding {100 * options.discard_ratio:g}% of every layer"
            )
        tokens = tokens / highest
    return TokenMap.of_tokens(tokens, layout, quantity, f"{what}: {', '.join(made)}", (0.0, 1.0))


def normalising(matrices: Matrices, options: RolloutOptions) -> Step:
    """Steps through matrices mixed with the identity, whose rows are divided by their sums."""

    def step(layer: int, tokens: torch.Tensor, active_rows: slice) -> torch.Tensor:
        chunks = matrices(layer, active_rows)
        if options.reference is not None:
            return _divided_by_column(tokens, chunks, options.residual_weight)
        return _divided_by_row(tokens, chunks, options.residual_weight)

    return step


def add_product(total: torch.Tensor, weights: torch.Tensor, chunk: torch.Tensor, share: float = 1) -> None:
    """Add ``share`` times a product to a sum in place: ``"start query"`` by ``"query key"``, or of several images."""
    (total.addmm_ if total.ndim == 2 else total.baddbmm_)(weights, chunk, alpha=share)


def _divided_by_row(tokens: torch.Tensor, chunks: Chunks, residual_weight: float) -> torch.Tensor:
    """``"... start query"`` times the matrix mixed with the identity, each row divided by its sum."""
    product, residual = torch.zeros_like(tokens), residual_weight / (1 - residual_weight)
    for rows, chunk in chunks:
        sums, weights = chunk.sum(-1).add_(residual)[..., None, :], tokens[..., rows]
        if residual:
            weights = weights / sums
            product[..., rows].add_(weights, alpha=residual)
        else:
            # A fully discarded row passes nothing on: its token stays where it is.
            product[..., rows] += weights * (sums == 0)
            weights = weights / sums.where(sums > 0, 1.0)
        add_product(product, weights, chunk)
    return product


def _divided_by_column(tokens: torch.Tensor, chunks: Chunks, residual_weight: float) -> torch.Tensor:
    """As above, but column i is divided by the sum of row i; needs all rows."""
    product, sums = torch.zeros_like(tokens), torch.ones_like(tokens[..., :1, :])
    for rows, chunk in chunks:
        sums[..., 0, rows] = (1 - residual_weight) * chunk.sum(-1) + residual_weight
        add_product(product, tokens[..., rows], chunk, 1 - residual_weight)
    return product.add_(tokens, alpha=residual_weight).div_(sums)
