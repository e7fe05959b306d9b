"""Attention rollout: the product of the layers' attention, down to the image.

Abnar & Zuidema 2020, "Quantifying Attention Flow in Transformers", section 3.1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vitviz.attention.layout import Query, layer_span
from vitviz.attention.precision import precise
from vitviz.attention.softmax import CHUNK_BYTES, HEAD_FUSIONS, HeadFusion
from vitviz.attention.token_map import TokenMap
from vitviz.attention.trace import AttentionTrace, Chunks
from vitviz.attribution.exclusion import Exclude, exclude_tokens
from vitviz.attribution.propagation import (
    VIT_EXPLAIN,
    Reference,
    RolloutOptions,
    Start,
    Step,
    as_map,
    normalising_step,
    propagate,
    start_of,
)
from vitviz.attribution.threshold import discard
from vitviz.errors.arguments import word
from vitviz.errors.kinds import MethodError
from vitviz.errors.messages import describe


def rollout(
    trace: AttentionTrace,
    head_fusion: HeadFusion = "mean",
    discard_ratio: float = 0.0,
    residual_weight: float = 0.5,
    start_layer: int = 0,
    query: Query | None = None,
    reference: Reference | None = None,
    exclude: Exclude = None,
    end_layer: int = -1,
) -> TokenMap:
    """The share of each patch in a token of the end layer, as attention passes it through the layers.

    In every layer, ``Â = rownorm((1 - residual_weight) · discard(fuse(A)) + residual_weight · I)``; the map is the
    token's row of ``Â_end … Â_start``. It is computed as a chain of row-vector products from the top layer down.

    Args:
        trace: trace of one image.
        head_fusion: ``"mean"`` (the paper), ``"max"`` or ``"min"`` over the heads.
        discard_ratio: share of the entries of a layer's fused matrix to set to zero, lowest first, in [0, 1); among
            equal entries, the first in reading order.
        residual_weight: share of the residual connection, in [0, 1]; the paper takes 0.5.
        start_layer: lowest layer to include, from 0, or from the end as ``-1``.
        query: the token, as in :func:`vitviz.attribution.attention`. In a model that pools by attention, the default is
            the learned query.
        reference: ``"vit-explain"`` reproduces the numbers of jacobgil/vit-explain. It divides columns by row sums,
            never discards the CLS-to-CLS entry, and among equal entries discards those that torch's topk returns. Its
            residual weight is 0.5 and its start layer 0.
        exclude: tokens to which no token may attend, as in :func:`vitviz.attribution.attention`. In every layer and
            head, their weights are set to zero and each row is divided by its sum before the heads are fused. Only a
            query that is itself excluded keeps a share, by its residual connection.
        end_layer: highest layer to include, counted as ``start_layer``: the token is one of this layer's output. The
            learned query of an attention pooling reads the last layer only.

    Returns:
        Values in [0, 1] that sum to 1 over patches and prefix tokens; with ``reference="vit-explain"``, values
        relative to the highest patch, as that code returns them.

    Raises:
        QueryError: the model has no such layer or token, or the end layer is below the start layer.
        MethodError: a parameter is out of range or unknown, the reference has no such parameter, or no patch is left.
    """
    parameters = (head_fusion, discard_ratio, residual_weight, start_layer, query, reference, exclude, end_layer)
    setup = RolloutSetup.of(trace, *parameters)
    return setup.as_map(setup.propagate())


def rollout_matrix(
    trace: AttentionTrace,
    head_fusion: HeadFusion = "mean",
    discard_ratio: float = 0.0,
    residual_weight: float = 0.5,
    start_layer: int = 0,
    exclude: Exclude = None,
    end_layer: int = -1,
) -> torch.Tensor:
    """The rollout of every token at once: ``"query key"``, each row summing to 1.

    Parameters and errors as in :func:`rollout`; memory grows with the square of the number of tokens.
    """
    depth = AttentionTrace.checked(trace).layers
    options = RolloutOptions(discard_ratio, residual_weight, layer_span(start_layer, end_layer, depth), depth)
    trace, _ = exclude_tokens(trace, exclude)
    start = torch.eye(trace.layout.token_count, dtype=trace.dtype, device=trace.keys.device)
    return propagate(start, slice(None), _steps(trace, head_fusion, options), options)


@dataclass(frozen=True, eq=False)
class RolloutSetup:
    """The checked arguments of one image's rollout.

    Args:
        trace: trace of the image, without the excluded tokens.
        head_fusion: as in :func:`rollout`.
        options: options of the steps.
        start: where the propagation starts.
        exclusion: the excluded tokens in the caption.
    """

    trace: AttentionTrace
    head_fusion: HeadFusion
    options: RolloutOptions
    start: Start
    exclusion: str

    @classmethod
    def of(
        cls,
        trace: AttentionTrace,
        head_fusion: HeadFusion,
        discard_ratio: float,
        residual_weight: float,
        start_layer: int,
        query: Query | None,
        reference: Reference | None,
        exclude: Exclude,
        end_layer: int,
    ) -> RolloutSetup:
        """The setup for the arguments of :func:`rollout`, with its errors."""
        layers = layer_span(start_layer, end_layer, AttentionTrace.checked(trace).layers)
        word("head fusion", head_fusion, HEAD_FUSIONS)
        options = RolloutOptions(discard_ratio, residual_weight, layers, trace.layers, reference)
        if reference is not None and exclude is not None:
            raise MethodError(f"exclude = {describe(exclude)}: {reference} leaves no token out; expected None")
        trace, exclusion = exclude_tokens(trace, exclude)
        pooled, like = trace.pooled, precise(trace.keys[:0])
        pooled = None if pooled is None else pooled.mean(0, keepdim=True)
        start = start_of(trace.layout, query, trace.layout.default_query, pooled, layers, trace.layers, like, reference)
        return cls(trace, head_fusion, options, start, exclusion)

    def propagate(self) -> torch.Tensor:
        """The row at the start layer's input, ``"token"``."""
        steps = _steps(self.trace, self.head_fusion, self.options)
        return propagate(self.start.row, self.start.active_rows, steps, self.options)[0]

    def as_map(self, tokens: torch.Tensor) -> TokenMap:
        """The map of a propagated row."""
        trace, fused = self.trace, f"{self.head_fusion} of {self.trace.heads} heads"
        subject = f"Attention rollout for {self.start.name}"
        return as_map(tokens, trace.layout, self.options, subject, fused, self.exclusion)


def working_bytes(tokens: int, heads: int, itemsize: int) -> int:
    """The most bytes that a rollout needs at once in addition to the trace, if it discards nothing: two chunks.

    Args:
        tokens, heads: number of tokens and heads in the trace.
        itemsize: bytes per number.
    """
    chunk = min(heads * tokens**2 * itemsize, max(CHUNK_BYTES, heads * tokens * itemsize))
    return 2 * chunk


def discard_bytes(tokens: int, itemsize: int) -> int:
    """About the bytes that a discard ratio holds in addition: the matrix of a layer, and a copy."""
    return 2 * tokens**2 * itemsize


def _steps(trace: AttentionTrace, head_fusion: HeadFusion, options: RolloutOptions) -> Step:
    keeps_all = not options.discards and options.reference is None
    # The rows of stored weights may be rounded.
    if head_fusion == "mean" and keeps_all and not trace.stored_weights:
        return _mixing_step(trace, options.residual_weight)

    is_vit_explain = options.reference == VIT_EXPLAIN

    def matrix(layer: int, active_rows: slice) -> Chunks:
        if not options.discards:
            return trace.fused_in_chunks(layer, head_fusion, options.rows(active_rows))
        return discard(trace.fused(layer, head_fusion), options.discard_ratio, is_vit_explain, is_vit_explain)

    return normalising_step(matrix, options)


def _mixing_step(trace: AttentionTrace, residual_weight: float) -> Step:
    """A step through matrices whose rows already sum to 1, such as softmax weights and their means."""

    def step(layer: int, tokens: torch.Tensor, active_rows: slice) -> torch.Tensor:
        attended = trace.propagate_layer(layer, tokens, active_rows)
        return torch.add(tokens * residual_weight, attended, alpha=1 - residual_weight)

    return step
