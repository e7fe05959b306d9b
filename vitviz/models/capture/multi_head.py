"""Queries, keys and values of ``torch.nn.MultiheadAttention``, by the arguments of the function that computes it."""

from __future__ import annotations

import math
from inspect import signature
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange

from vitviz.errors.kinds import ConfigError
from vitviz.models.capture.calls import AttentionCall

_SIGNATURE = signature(F.multi_head_attention_forward)
# What the rest would change is not followed.
UNKNOWN = ("bias_k", "bias_v", "static_k", "static_v")


def multi_head_call(args: tuple[Any, ...], kwargs: dict[str, Any], output: torch.Tensor) -> AttentionCall:
    """A call of ``torch.nn.functional.multi_head_attention_forward``.

    Raises:
        ConfigError: it has an argument that is not followed.
    """
    bound = _SIGNATURE.bind(*args, **kwargs)
    bound.apply_defaults()
    given = bound.arguments
    surplus = [name for name in UNKNOWN if given[name] is not None] + ["add_zero_attn"] * bool(given["add_zero_attn"])
    if surplus:
        raise ConfigError(f"torch.nn.MultiheadAttention with {', '.join(surplus)}: vitviz does not follow that")
    inputs = [given[name] for name in ("query", "key", "value")]
    heads, batched = given["num_heads"], inputs[0].ndim == 3
    if given["use_separate_proj_weight"]:
        weights = [given[f"{name}_proj_weight"] for name in "qkv"]
    else:
        weights = list(given["in_proj_weight"].chunk(3))
    biases = [None] * 3 if given["in_proj_bias"] is None else list(given["in_proj_bias"].chunk(3))
    queries, keys, values = (
        rearrange(
            F.linear(tokens if batched else tokens[:, None], weight, bias),
            "token batch (head dim) -> batch head token dim",
            head=heads,
        )
        for tokens, weight, bias in zip(inputs, weights, biases, strict=True)
    )

    def to_output(context: torch.Tensor) -> torch.Tensor:
        side_by_side = rearrange(context, "batch head token dim -> token batch (head dim)")
        projected = F.linear(side_by_side, given["out_proj_weight"], given["out_proj_bias"])
        return projected if batched else projected[:, 0]

    own = inputs[0] is inputs[1] is inputs[2]
    bias = _bias(given["attn_mask"], given["key_padding_mask"], queries)
    scale = queries.shape[-1] ** -0.5
    return AttentionCall(queries, keys, values, scale, bias, output, to_output, inputs[0] if own else None)


def _bias(mask: torch.Tensor | None, padding: torch.Tensor | None, queries: torch.Tensor) -> torch.Tensor | None:
    """Both masks as ``"batch head query key"``; where they are True nobody looks."""
    found = None
    for part, order in ((mask, "mask"), (padding, "padding")):
        if part is None:
            continue
        if part.dtype == torch.bool:
            part = torch.zeros(part.shape, dtype=queries.dtype, device=queries.device).masked_fill_(part, -math.inf)
        if order == "padding":
            part = rearrange(part, "batch key -> batch 1 1 key") if part.ndim == 2 else part[None, None, None]
        elif part.ndim == 3:
            part = rearrange(part, "(batch head) query key -> batch head query key", batch=len(queries))
        found = part if found is None else found + part
    return found
