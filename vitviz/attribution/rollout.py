"""Attention rollout: attention followed through all layers down to the image.

Abnar & Zuidema 2020, "Quantifying Attention Flow in Transformers", section 3.1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vitviz.attention.layout import Query
from vitviz.attention.precision import precise
from vitviz.attention.softmax import CHUNK_BYTES
from vitviz.attention.token_map import TokenMap
from vitviz.attention.trace import AttentionTrace, Chunks
from vitviz.attribution.exclusion import Exclude, excluding
from vitviz.attribution.pooling import POOLED
from vitviz.attribution.propagation import (
    EVERY,
    VIT_EXPLAIN,
    RolloutOptions,
    Step,
    as_map,
    normalising,
    propagate,
    start_row,
)
from vitviz.attribution.threshold import Fused, cuts_of_matrices, discarding_bytes, kept_in_chunks
from vitviz.errors.kinds import MethodError
from vitviz.errors.messages import describe


def rollout(
    trace: AttentionTrace,
    head_fusion: str = "mean",
    discard_ratio: float = 0.0,
    residual_weight: float = 0.5,
    start_layer: int = 0,
    query: Query | None = None,
    reference: str | None = None,
    exclude: Exclude = None,
) -> TokenMap:
    """How much of every patch reaches a token of the last layer, if attention is followed through the layers.

    For every layer, ``Â = rownorm((1 - residual_weight) · discard(fuse(A)) + residual_weight · I)``; the map is the
    token's row of ``Â_last … Â_start``. It is computed as a chain of row-vector products from the top layer down.

    Args:
        trace: of one image.
        head_fusion: ``"mean"`` (the paper), ``"max"`` or ``"min"`` over the heads.
        discard_ratio: part of the lowest entries of a layer's fused matrix that is set to zero, in [0, 1); of equal
            entries at the limit the first in reading order.
        residual_weight: share of the residual connection, in [0, 1]; the paper takes 0.5.
        start_layer: lowest layer that is followed, counted from 0, or from the end as ``-1``.
        query: the token, as in :func:`vitviz.attribution.attention`; where it is not given in a model that pools by
            attention, what its learned query attends to is followed.
        reference: ``"vit-explain"`` reproduces the numbers of jacobgil/vit-explain, which divides columns by row sums
            and spares the CLS-to-CLS entry when it discards, of equal entries those that torch's topk takes; its
            residual weight is 0.5 and it starts at layer 0.
        exclude: tokens that nobody attends to, as in :func:`vitviz.attribution.attention`; in every layer and head
            their weights are set to zero and each row is divided by its sum, before the heads are fused. Only a query
            that is itself left out has a share in them, by its residual connection.

    Returns:
        Values in [0, 1] that sum to 1 over patches and prefix tokens; with ``reference="vit-explain"``, values
        relative to the highest patch, as that code returns them.

    Raises:
        QueryError: the model has no such layer or token.
        MethodError: a parameter is out of range or unknown, the reference has no such parameter, or no patch is left.
    """
    setup = RolloutSetup.of(trace, head_fusion, discard_ratio, residual_weight, start_layer, query, reference, exclude)
    return setup.as_map(setup.propagated())


def rollout_matrix(
    trace: AttentionTrace,
    head_fusion: str = "mean",
    discard_ratio: float = 0.0,
    residual_weight: float = 0.5,
    start_layer: int = 0,
    exclude: Exclude = None,
) -> torch.Tensor:
    """The rollout of every token at once: ``"query key"``, each row summing to 1.

    Parameters and errors as in :func:`rollout`; memory grows with the square of the number of tokens.
    """
    options = RolloutOptions(discard_ratio, residual_weight, trace.layer_index(start_layer))
    trace, _ = excluding(trace, exclude)
    start = torch.eye(trace.layout.token_count, dtype=trace.dtype, device=trace.keys.device)
    return propagate(start, slice(None), trace.layers, _steps(trace, head_fusion, options), options)


@dataclass(frozen=True, eq=False)
class RolloutSetup:
    """The rollout of one image, ready to be followed down.

    Args:
        trace: of the image, without the tokens that are left out.
        head_fusion: as :func:`rollout` takes it.
        options: of the steps.
        row: ``"1 token"``, where it starts.
        active_rows: the tokens of ``row`` that are not zero.
        name: of the token or query, for the caption.
        without: what is left out, for the caption.
    """

    trace: AttentionTrace
    head_fusion: str
    options: RolloutOptions
    row: torch.Tensor
    active_rows: slice
    name: str
    without: str

    @classmethod
    def of(
        cls,
        trace: AttentionTrace,
        head_fusion: str,
        discard_ratio: float,
        residual_weight: float,
        start_layer: int,
        query: Query | None,
        reference: str | None,
        exclude: Exclude,
    ) -> RolloutSetup:
        """Arguments and errors as those of :func:`rollout`."""
        options = RolloutOptions(discard_ratio, residual_weight, trace.layer_index(start_layer), reference)
        if reference is not None and exclude is not None:
            raise MethodError(f"exclude = {describe(exclude)}: {reference} leaves no token out; expected None")
        trace, without = excluding(trace, exclude)
        pooled = trace.pooled if query is None else None
        query = trace.layout.default_query if query is None else query
        row, active_rows = start_row(trace.layout, query, options, precise(trace.keys[:0]))
        if pooled is not None:
            row, active_rows = pooled.mean(0, keepdim=True).to(row), EVERY
        name = trace.layout.name(query) if pooled is None else POOLED
        return cls(trace, head_fusion, options, row, active_rows, name, without)

    @property
    def mixes_only(self) -> bool:
        """Whether the rows of every layer's matrix sum to 1 already, so that steps need not look at them whole."""
        return self.head_fusion == "mean" and not self.options.discards and self.options.reference is None

    def propagated(self) -> torch.Tensor:
        """The row at the start layer's input, ``"token"``."""
        steps = _steps(self.trace, self.head_fusion, self.options)
        return propagate(self.row, self.active_rows, self.trace.layers, steps, self.options)[0]

    def as_map(self, tokens: torch.Tensor) -> TokenMap:
        """The map of a propagated row."""
        trace, fused = self.trace, f"{self.head_fusion} of {self.trace.heads} heads"
        what = f"Attention rollout for {self.name}"
        return as_map(tokens, trace.layout, trace.layers, self.options, what, fused, self.without)


def working_bytes(tokens: int, heads: int, itemsize: int) -> int:
    """The most bytes that a rollout needs at once beside the trace: two chunks, and what discarding holds.

    Args:
        tokens, heads: of the trace.
        itemsize: bytes of a number.
    """
    chunk = min(heads * tokens**2 * itemsize, max(CHUNK_BYTES, heads * tokens * itemsize))
    return 2 * chunk + discarding_bytes(tokens, itemsize)


def _steps(trace: AttentionTrace, head_fusion: str, options: RolloutOptions) -> Step:
    if head_fusion == "mean" and not options.discards and options.reference is None:
        return _mixing(trace, options.residual_weight)

    # Finding the lowest entries, and their sums, needs all rows.
    whole, as_theirs = options.discards or options.reference is not None, options.reference == VIT_EXPLAIN
    matrices = trace.cached_fused(head_fusion)
    cuts = [None] * trace.layers if matrices is None else cuts_of_matrices(matrices, options.discard_ratio)

    def matrix(layer: int, active_rows: slice) -> Chunks:
        if not whole:
            return trace.fused_in_chunks(layer, head_fusion, active_rows)
        fused = Fused.of(trace, layer, head_fusion)
        return kept_in_chunks(fused, options.discard_ratio, as_theirs, as_theirs, cuts[layer])

    return normalising(matrix, options)


def _mixing(trace: AttentionTrace, residual_weight: float) -> Step:
    """Steps through matrices whose rows already sum to 1, such as softmax weights and their means."""
    share, matrices = 1 - residual_weight, trace.cached_fused("mean")

    def step(layer: int, tokens: torch.Tensor, active_rows: slice) -> torch.Tensor:
        if matrices is None:
            return torch.add(tokens * residual_weight, trace.propagate_layer(layer, tokens, active_rows), alpha=share)
        weights, matrix = (
            (tokens, matrices[layer])
            if active_rows == EVERY
            else (tokens[:, active_rows], matrices[layer][active_rows])
        )
        return torch.addmm(tokens, weights, matrix, beta=residual_weight, alpha=share)

    return step
