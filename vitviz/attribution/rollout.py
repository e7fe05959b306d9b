"""Attention rollout: attention followed through all layers down to the image.

Abnar & Zuidema 2020, "Quantifying Attention Flow in Transformers", section 3.1.
"""

from __future__ import annotations

import torch

from vitviz.errors import MethodError, choices
from vitviz.layout import Query, TokenLayout
from vitviz.token_map import TokenMap
from vitviz.trace import AttentionTrace

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
            entries at the limit an arbitrary choice.
        residual_weight: share of the residual connection, in [0, 1]; the paper takes 0.5.
        start_layer: lowest layer that is followed, counted from 0, or from the end as ``-1``.
        query: the token, as in :func:`vitviz.attribution.attention`.
        reference: ``"vit-explain"`` reproduces the numbers of jacobgil/vit-explain, which divides columns by row sums
            and spares the CLS-to-CLS entry when it discards; its residual weight is 0.5 and it starts at layer 0.

    Returns:
        Values in [0, 1] that sum to 1 over patches and prefix tokens; with ``reference="vit-explain"``, values
        relative to the highest patch, as that code returns them.

    Raises:
        QueryError: the model has no such layer or token.
        MethodError: a parameter is out of range or unknown, or the reference has no such parameter.
    """
    _check(trace.layout, discard_ratio, residual_weight, reference, trace.layer_index(start_layer))
    query = trace.layout.reader if query is None else query
    tokens = torch.zeros(trace.layout.token_count, dtype=trace.queries.dtype, device=trace.queries.device)
    chosen = trace.layout.select(query)
    tokens[chosen] = 1 / len(tokens[chosen])
    tokens = _follow(trace, tokens, head_fusion, discard_ratio, residual_weight, start_layer, reference)
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
    start = torch.eye(trace.layout.token_count, dtype=trace.queries.dtype, device=trace.queries.device)
    return _follow(trace, start, head_fusion, discard_ratio, residual_weight, start_layer, None)


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
    head_fusion: str,
    discard_ratio: float,
    residual_weight: float,
    start_layer: int,
    reference: str | None,
) -> torch.Tensor:
    """``"... token"`` of the last layer's output to the same of the start layer's input."""
    for layer in reversed(range(trace.layer_index(start_layer), trace.layers)):
        spared = reference == VIT_EXPLAIN
        fused = _discard(trace.fused(layer, head_fusion), discard_ratio, spared)
        identity = torch.eye(len(fused), dtype=fused.dtype, device=fused.device)
        mixed = (1 - residual_weight) * fused + residual_weight * identity
        sums = mixed.sum(-1)
        if reference == VIT_EXPLAIN:
            tokens = tokens @ (mixed / sums)
        else:
            # A row whose every entry was discarded passes nothing on; its token then stays where it is.
            mixed = torch.where(sums[:, None] > 0, mixed / sums[:, None], identity)
            tokens = tokens @ mixed
    return tokens


def _discard(fused: torch.Tensor, ratio: float, spare_first: bool) -> torch.Tensor:
    """``"query key"`` with its lowest entries set to zero; on request all but the first entry, which is CLS to CLS."""
    count = int(fused.numel() * ratio)
    if not count:
        return fused
    flat = fused.flatten()
    lowest = flat.topk(count, largest=False).indices
    if spare_first:
        lowest = lowest[lowest != 0]
    return flat.index_fill(0, lowest, 0).view_as(fused)
