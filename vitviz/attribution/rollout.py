"""Attention rollout: attention followed through all layers down to the image.

Abnar & Zuidema 2020, "Quantifying Attention Flow in Transformers", section 3.1.
"""

from __future__ import annotations

import torch

from vitviz.attribution.discard import kept_in_chunks
from vitviz.errors import MethodError, choices
from vitviz.layout import Query, TokenLayout
from vitviz.token_map import TokenMap
from vitviz.trace import AttentionTrace, Chunks

VIT_EXPLAIN = "vit-explain"
REFERENCES = (VIT_EXPLAIN,)


def rollout(
    trace: AttentionTrace,
    head_fusion: str = "mean",
    discard_ratio: float = 0.0,
    residual_weight: float = 0.5,
    start_layer: int = 0,
    query: Query | None = None,
    reference: str | None = None,
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
        query: the token, as in :func:`vitviz.attribution.attention`.
        reference: ``"vit-explain"`` reproduces the numbers of jacobgil/vit-explain, which divides columns by row sums
            and spares the CLS-to-CLS entry when it discards, of equal entries those that torch's topk takes; its
            residual weight is 0.5 and it starts at layer 0.

    Returns:
        Values in [0, 1] that sum to 1 over patches and prefix tokens; with ``reference="vit-explain"``, values
        relative to the highest patch, as that code returns them.

    Raises:
        QueryError: the model has no such layer or token.
        MethodError: a parameter is out of range or unknown, or the reference has no such parameter.
    """
    _check(trace.layout, discard_ratio, residual_weight, reference, trace.layer_index(start_layer))
    query = trace.layout.reader if query is None else query
    start = torch.zeros(1, trace.layout.token_count, dtype=trace.dtype, device=trace.keys.device)
    chosen = trace.layout.select(query)
    start[:, chosen] = 1 / (chosen.stop - chosen.start)
    tokens = _follow(trace, start, chosen, head_fusion, discard_ratio, residual_weight, start_layer, reference)[0]
    settings = [f"{head_fusion} of {trace.heads} heads", f"residual {residual_weight:g}"]
    settings += [f"lowest {100 * discard_ratio:g}% discarded"] * (discard_ratio > 0)
    settings += [f"layers {trace.layer_index(start_layer) + 1} to {trace.layers}"]
    what = f"Attention rollout for {trace.layout.name(query)}"
    if reference is None:
        quantity = "share of the rollout"
    else:
        what, quantity = f"{what}, as {reference} computes it", "share relative to the highest patch"
        highest = trace.layout.grid(tokens).max()
        if highest <= 0:
            raise MethodError(f"{what}: no patch is left after discarding {100 * discard_ratio:g}% of every layer")
        tokens = tokens / highest
    return TokenMap.of_tokens(tokens, trace.layout, quantity, f"{what}: {', '.join(settings)}", (0.0, 1.0))


def rollout_matrix(
    trace: AttentionTrace,
    head_fusion: str = "mean",
    discard_ratio: float = 0.0,
    residual_weight: float = 0.5,
    start_layer: int = 0,
) -> torch.Tensor:
    """The rollout of every token at once: ``"query key"``, each row summing to 1.

    Parameters and errors as in :func:`rollout`; memory grows with the square of the number of tokens.
    """
    _check(trace.layout, discard_ratio, residual_weight, None, trace.layer_index(start_layer))
    start = torch.eye(trace.layout.token_count, dtype=trace.dtype, device=trace.keys.device)
    return _follow(trace, start, slice(None), head_fusion, discard_ratio, residual_weight, start_layer, None)


def _check(
    layout: TokenLayout, discard_ratio: float, residual_weight: float, reference: str | None, start_layer: int
) -> None:
    if not 0 <= discard_ratio < 1:
        raise MethodError(f"discard_ratio = {discard_ratio}: expected a number in [0, 1)")
    if not 0 <= residual_weight <= 1:
        raise MethodError(f"residual_weight = {residual_weight}: expected a number in [0, 1]")
    if reference is None:
        return
    if reference not in REFERENCES:
        raise MethodError(f"reference {reference!r}: expected {choices(REFERENCES)}, or None for the paper's rollout")
    if residual_weight != 0.5 or start_layer != 0:
        found = f"residual_weight = {residual_weight} and start_layer = {start_layer}"
        raise MethodError(f"{found}: {reference} knows only 0.5 and 0")
    if layout.reader != "cls":
        raise MethodError(f"reference {reference!r}: this model has no CLS token, which {reference} takes for granted")


def _follow(
    trace: AttentionTrace,
    tokens: torch.Tensor,
    present: slice,
    head_fusion: str,
    discard_ratio: float,
    residual_weight: float,
    start_layer: int,
    reference: str | None,
) -> torch.Tensor:
    """``"start token"`` of the last layer's output to the same of the start layer's input.

    ``present`` are the tokens of the last layer that are not zero. No more rows of its attention are computed, unless
    the lowest entries of all have to be found or every row's sum is needed.
    """
    for layer in reversed(range(trace.layer_index(start_layer), trace.layers)):
        if discard_ratio == 0 and reference is None:
            chunks = trace.fused_in_chunks(layer, head_fusion, present)
        else:
            chunks = kept_in_chunks(trace, layer, head_fusion, discard_ratio, reference == VIT_EXPLAIN)
        if discard_ratio == 0 and head_fusion == "mean":
            tokens = _mixed_product(tokens, chunks, residual_weight)
        else:
            tokens = _normalised_product(tokens, chunks, residual_weight, reference)
        present = slice(None)
    return tokens


def _mixed_product(tokens: torch.Tensor, chunks: Chunks, residual_weight: float) -> torch.Tensor:
    """``"start query"`` times a matrix mixed with the identity, whose rows sum to 1 already; as those of a softmax."""
    product = None
    for rows, chunk in chunks:
        if product is None:
            product = torch.addmm(tokens, tokens[:, rows], chunk, beta=residual_weight, alpha=1 - residual_weight)
        else:
            product.addmm_(tokens[:, rows], chunk, alpha=1 - residual_weight)
    assert product is not None
    return product


def _normalised_product(
    tokens: torch.Tensor, chunks: Chunks, residual_weight: float, reference: str | None
) -> torch.Tensor:
    """``"start query"`` times the matrix mixed with the identity and divided by its row sums."""
    share, sums = 1 - residual_weight, tokens.new_ones(tokens.shape[-1])
    passed = torch.zeros_like(tokens)
    for rows, chunk in chunks:
        sums[rows] = share * chunk.sum(-1) + residual_weight
        given = tokens[:, rows]
        if reference is None:
            given = given / (sums[rows] if residual_weight else sums[rows].where(sums[rows] > 0, 1.0))
        passed.addmm_(given, chunk, alpha=share)
    if reference is not None:
        return (passed + residual_weight * tokens) / sums
    if residual_weight:
        return passed + tokens * (residual_weight / sums)
    # A row whose every entry was discarded passes nothing on: its token stays where it is.
    return passed + tokens * (sums == 0)
