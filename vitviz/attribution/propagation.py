"""The propagation of rows down through the layers, shared by attention rollout and gradient rollout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch

from vitviz.attention.layout import Query, TokenLayout, layer_range
from vitviz.attention.token_map import TokenMap
from vitviz.attention.trace import Chunks
from vitviz.attribution.pooling_attention import POOLING_QUERY
from vitviz.errors.arguments import number, word
from vitviz.errors.kinds import MethodError

VIT_EXPLAIN: Literal["vit-explain"] = "vit-explain"
Reference = Literal["vit-explain"]
REFERENCES: tuple[Reference, ...] = get_args(Reference)
ALL_ROWS = slice(None)

Matrices = Callable[[int, slice], Chunks]
"""Returns the fused matrix of a layer in chunks ``"query key"``, or only the given rows if these suffice.

For several images at once, chunks are ``"image query key"``, and steps take ``"image start token"``.
"""
Step = Callable[[int, torch.Tensor, slice], torch.Tensor]
"""Maps a layer's number, ``"start token"`` of its output and their non-zero slice to ``"start token"`` of its input."""


@dataclass(frozen=True)
class RolloutOptions:
    """Options that turn the layers' fused matrices into steps.

    Args:
        discard_ratio: share of entries to set to zero, lowest first, in [0, 1).
        residual_weight: share of the residual connection, in [0, 1].
        layers: the layers, from 0.
        depth: number of layers of the model.
        reference: implementation whose numbers to reproduce; None for rows that sum to 1.

    Raises:
        MethodError: a value is out of range or unknown, or the reference has no such value.
    """

    discard_ratio: float
    residual_weight: float
    layers: range
    depth: int
    reference: Reference | None = None

    def __post_init__(self) -> None:
        ratio = number("discard_ratio", self.discard_ratio, lambda ratio: 0 <= ratio < 1, "a number in [0, 1)")
        weight = number("residual_weight", self.residual_weight, lambda weight: 0 <= weight <= 1, "a number in [0, 1]")
        object.__setattr__(self, "discard_ratio", ratio)
        object.__setattr__(self, "residual_weight", weight)
        if self.reference is None:
            return
        word("reference", self.reference, REFERENCES, also=", or None for the paper's rollout")
        if self.residual_weight != 0.5 or self.layers.start != 0:
            values = f"residual_weight = {self.residual_weight} and start_layer = {self.layers.start}"
            raise MethodError(f"{values}: {self.reference} knows only 0.5 and 0")
        if self.layers.stop != self.depth:
            raise MethodError(f"end_layer = {self.layers[-1]}: {self.reference} knows only the last layer, -1")

    @property
    def discards(self) -> bool:
        return self.discard_ratio > 0

    def rows(self, active: slice) -> slice:
        """The rows of a layer's matrix that its step needs: all for the lowest entries, and for a reference's sums."""
        return ALL_ROWS if self.discards or self.reference is not None else active


def propagate(tokens: torch.Tensor, active_rows: slice, step: Step, options: RolloutOptions) -> torch.Tensor:
    """Propagate ``"start token"`` from the end layer's output down to the start layer's input.

    Args:
        tokens: rows to start from.
        active_rows: slice of the non-zero tokens, the only rows of the end layer's matrix that matter.
        step: propagates through one layer.
        options: include the layers.
    """
    if options.residual_weight == 1:
        # Every matrix is the identity.
        return tokens
    for layer in reversed(options.layers):
        tokens = step(layer, tokens, active_rows)
        active_rows = ALL_ROWS
    return tokens


class Start(NamedTuple):
    """Where a propagation starts.

    Args:
        row: ``"1 token"``, the ``tokens`` of :func:`propagate`.
        active_rows: the tokens that are not zero in it.
        name: of the token in captions.
    """

    row: torch.Tensor
    active_rows: slice
    name: str


def start_of(
    layout: TokenLayout,
    query: Query | None,
    default_query: Query,
    pooled: torch.Tensor | None,
    layers: range,
    depth: int,
    like: torch.Tensor,
    reference: Reference | None = None,
) -> Start:
    """Equal shares of the tokens of a query; without one, what a pooling by attention reads, or the default query.

    Args:
        layout: order of the tokens.
        query: the token.
        default_query: the token if none is named, and no pooling reads.
        pooled: ``"1 token"``, what the learned query of an attention pooling reads; None if the model pools otherwise.
        layers: of the propagation.
        depth: number of layers of the model.
        like: of the type and on the device of the row.
        reference: implementation whose numbers to reproduce.

    Raises:
        QueryError: the model has no such token.
        MethodError: the reference cannot be reproduced for this model, or the pooling's query does not read the last
            of these layers.
    """
    if reference is not None and layout.default_query != "cls":
        reason = f"this model has no CLS token, which {reference} takes for granted"
        raise MethodError(f"reference {reference!r}: {reason}")
    if pooled is not None and query is None:
        if layers.stop < depth:
            reads = f"{POOLING_QUERY}, with which this map begins, reads the last layer, {depth - 1}"
            raise MethodError(f"end_layer = {layers[-1]}: {reads}; expected query= a token, such as 'patches'")
        return Start(pooled.to(like), ALL_ROWS, POOLING_QUERY)
    query = default_query if query is None else query
    tokens, row = layout.select(query), like.new_zeros(1, layout.token_count)
    row[:, tokens] = 1 / (tokens.stop - tokens.start)
    return Start(row, tokens, layout.query_name(query))


def has_left(tokens: torch.Tensor, start: slice) -> bool:
    """Whether a propagated row, ``"token"``, holds more than what it started with: equal values at these tokens."""
    tokens = tokens.cpu()
    stayed = tokens[start]
    return bool((stayed != stayed[0]).any()) or bool(tokens.count_nonzero() > stayed.count_nonzero())


def as_map(
    tokens: torch.Tensor,
    layout: TokenLayout,
    options: RolloutOptions,
    subject: str,
    settings: str,
    exclusion: str = "",
    raised: bool = True,
) -> TokenMap:
    """The row of a token, ``"token"``, as a map whose caption names subject, settings and exclusion.

    ``raised`` as in :class:`vitviz.attention.token_map.TokenMap`.

    Raises:
        MethodError: every patch was discarded.
    """
    tokens = tokens.cpu()
    details = [settings, f"residual {options.residual_weight:g}"]
    details += [f"lowest {100 * options.discard_ratio:g}% discarded"] * options.discards
    details += [layer_range(options.layers.start, options.layers.stop), *([exclusion] if exclusion else [])]
    quantity = "share of the rollout"
    if options.reference is not None:
        subject, quantity = f"{subject}, as {options.reference} computes it", "share relative to the highest patch"
        highest = layout.grid(tokens).max()
        if highest <= 0 and raised:
            raise MethodError(
                f"{subject}: no patch is left after discarding {100 * options.discard_ratio:g}% of every layer"
            )
        tokens = tokens / highest.where(highest > 0, 1.0)
    return TokenMap.of_tokens(tokens, layout, quantity, f"{subject}: {', '.join(details)}", (0.0, 1.0), raised)


def normalising_step(matrices: Matrices, options: RolloutOptions) -> Step:
    """A step through matrices that are mixed with the identity and divided by their row sums."""

    def step(layer: int, tokens: torch.Tensor, active_rows: slice) -> torch.Tensor:
        chunks = matrices(layer, active_rows)
        if options.reference is not None:
            return _multiply_by_columns(tokens, chunks, options.residual_weight)
        return _multiply_by_rows(tokens, chunks, options.residual_weight)

    return step


def _multiply_by_rows(tokens: torch.Tensor, chunks: Chunks, residual_weight: float) -> torch.Tensor:
    """``"... start query"`` times the matrix, mixed with the identity, with each row divided by its sum."""
    product, residual = torch.zeros_like(tokens), residual_weight / (1 - residual_weight)
    for rows, chunk in chunks:
        sums, weights = chunk.sum(-1).add_(residual)[..., None, :], tokens[..., rows]
        if residual:
            weights = weights / sums
            product[..., rows].add_(weights, alpha=residual)
        else:
            # The row of a token whose weights are all discarded becomes that of the identity.
            product[..., rows] += weights * (sums == 0)
            weights = weights / sums.where(sums > 0, 1.0)
        product += weights @ chunk
    return product


def _multiply_by_columns(tokens: torch.Tensor, chunks: Chunks, residual_weight: float) -> torch.Tensor:
    """As :func:`_multiply_by_rows`, but with column i divided by the sum of row i. Needs all rows."""
    product, sums = torch.zeros_like(tokens), torch.ones_like(tokens[..., :1, :])
    for rows, chunk in chunks:
        sums[..., 0, rows] = (1 - residual_weight) * chunk.sum(-1) + residual_weight
        product += (1 - residual_weight) * tokens[..., rows] @ chunk
    return product.add_(tokens, alpha=residual_weight).div_(sums)
