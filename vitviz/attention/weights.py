"""Attention weights that somebody else computed, checked before they become a trace."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
import torch

from vitviz.attention.layout import Prefix, TokenLayout, prefix_names
from vitviz.errors.arguments import pair_or_none
from vitviz.errors.kinds import ConfigError, MethodError
from vitviz.errors.messages import describe

# Rounding to bfloat16 changes a sum of weights by up to 0.004.
SUM_TOLERANCE = 0.01
LAYER = "'head query key'"
EAGER = (
    "; transformers returns them as outputs.attentions, after module.set_attn_implementation('eager') and with "
    "output_attentions=True"
)

Grid = tuple[int, int]
Attentions = torch.Tensor | np.ndarray | Sequence[torch.Tensor | np.ndarray]
"""``"layer (batch) head query key"``, or a sequence of ``"(batch) head query key"``, one for each layer."""


def checked_weights(attentions: Attentions) -> tuple[torch.Tensor, ...]:
    """The attention weights of every layer, ``"head query key"``, of one type and on one device.

    Raises:
        ConfigError: as :meth:`vitviz.AttentionTrace.from_weights`.
    """
    if isinstance(attentions, torch.Tensor | np.ndarray):
        if attentions.ndim not in (4, 5):
            expected = "expected 'layer head query key' or 'layer batch head query key'"
            raise ConfigError(f"attentions of shape {tuple(attentions.shape)}: {expected}")
    elif not isinstance(attentions, Sequence):
        raise ConfigError(f"attentions: {describe(attentions)} found; expected a tensor of each layer, {LAYER}{EAGER}")
    layers = [_layer(f"attentions[{index}]", weights) for index, weights in enumerate(attentions)]
    if not layers:
        raise ConfigError(f"attentions: no layer found; expected at least one{EAGER}")
    first = layers[0]
    for index, weights in enumerate(layers):
        if weights.shape != first.shape:
            shapes = f"attentions[0] of shape {tuple(first.shape)}, attentions[{index}] of {tuple(weights.shape)}"
            raise ConfigError(f"{shapes}: expected one shape in all layers, {LAYER}")
    # The first layer's type may be narrower than that of others.
    dtype = reduce(torch.promote_types, [weights.dtype for weights in layers])
    layers = [weights.to(first.device, dtype) for weights in layers]
    for index, weights in enumerate(layers):
        _check_rows(f"attentions[{index}]", weights.detach())
    return tuple(layers)


def layout_of(tokens: int, prefix: Prefix, grid: Grid | None) -> TokenLayout:
    """The order of so many tokens.

    Args:
        tokens: how many there are.
        prefix, grid: as in :meth:`vitviz.AttentionTrace.from_weights`.

    Raises:
        ConfigError: as there.
    """
    names = prefix_names(prefix)
    patches = tokens - len(names)
    if grid is None:
        side = math.isqrt(max(patches, 0))
        sides = side, side
        problem = f"{tokens} tokens, {len(names)} of them prefix tokens: {patches} patches form no square"
    else:
        pair = pair_or_none(grid)
        if pair is None or min(pair) < 1:
            raise ConfigError(f"grid = {describe(grid)}: expected (rows, columns) of patches")
        sides = pair
        problem = f"grid = {sides}: {tokens} tokens, {len(names)} of them prefix tokens, leave {patches} patches"
    if patches < 1 or math.prod(sides) != patches:
        raise ConfigError(
            f"{problem}; expected prefix= the tokens before the patches, or grid=(rows, columns) of these"
        )
    return TokenLayout(names, *sides)


def without_keys(weights: torch.Tensor, excluded: torch.Tensor, layer: int, layout: TokenLayout) -> torch.Tensor:
    """The weights of a layer, ``"head query key"``, without excluded keys ``"key"``; each row sums to 1 again.

    Raises:
        MethodError: nothing remains of a row.
    """
    remaining = weights.masked_fill(excluded, 0)
    sums = remaining.sum(-1, keepdim=True)
    if not sums.all():
        head, query, _ = (sums == 0).nonzero()[0].tolist()
        reason = "attends to none but the tokens that are left out: nothing remains"
        raise MethodError(f"layer {layer}, head {head}: {layout.name(query)} {reason}")
    return remaining / sums


def _layer(name: str, weights: Any) -> torch.Tensor:
    """The weights of one layer, ``"head query key"``."""
    if isinstance(weights, np.ndarray) and weights.dtype.kind == "f" and weights.itemsize <= 8:
        # Torch takes no negative strides, and no other order of bytes.
        weights = torch.from_numpy(np.ascontiguousarray(weights, weights.dtype.newbyteorder("=")))
    is_dense = isinstance(weights, torch.Tensor) and weights.layout == torch.strided and not weights.is_meta
    if not is_dense or not weights.is_floating_point() or weights.itemsize < 2:
        kind = f"a tensor of {weights.dtype}" if is_dense else describe(weights)
        advice = EAGER if weights is None else ""
        raise ConfigError(f"{name}: {kind} found; expected a dense tensor of floats, {LAYER}{advice}")
    shape = tuple(weights.shape)
    if weights.ndim == 4:
        if len(weights) != 1:
            one = "[layer[index] for layer in attentions]; vitviz.load(module) reads windows of one, such as Swin's"
            raise ConfigError(f"{name} of shape {shape}: {len(weights)} images; expected one, such as {one}")
        weights = weights[0]
    if weights.ndim != 3 or weights.shape[1] != weights.shape[2] or not weights.numel():
        raise ConfigError(f"{name} of shape {shape}: expected {LAYER}, with as many queries as keys")
    return weights


def _check_rows(name: str, weights: torch.Tensor) -> None:
    """Refuse what is no result of a softmax over keys."""
    # In single precision, in which a sum of many half ones is exact enough.
    sums = weights.sum(-1, dtype=torch.promote_types(weights.dtype, torch.float32))
    low, least, most = torch.stack([weights.min().to(sums), sums.min(), sums.max()]).tolist()
    if not all(map(math.isfinite, (low, least, most))):
        raise ConfigError(f"{name}: the values are not all finite; expected attention weights")
    expected = f"expected rows over keys that sum to 1, within {SUM_TOLERANCE}: after the softmax, before any dropout"
    if low < 0:
        raise ConfigError(f"{name}: the lowest value is {low:.4g}; {expected}")
    if abs(least - 1) > SUM_TOLERANCE or abs(most - 1) > SUM_TOLERANCE:
        raise ConfigError(f"{name}: the rows sum to {least:.4g} up to {most:.4g}; {expected}")
