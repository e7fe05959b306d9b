"""Queries, keys and values of ``torch.nn.MultiheadAttention``, from the arguments of its function."""

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
# Arguments that vitviz does not support.
UNSUPPORTED = ("bias_k", "bias_v", "static_k", "static_v")


def multi_head_call(args: tuple[Any, ...], kwargs: dict[str, Any], output: torch.Tensor) -> AttentionCall:
    """A call of ``torch.nn.functional.multi_head_attention_forward``.

    Raises:
        ConfigError: it has an unsupported argument.
    """
    bound = _SIGNATURE.bind(*args, **kwargs)
    bound.apply_defaults()
    arguments = bound.arguments
    unsupported = [name for name in UNSUPPORTED if arguments[name] is not None]
    if arguments["add_zero_attn"]:
        unsupported.append("add_zero_attn")
    if unsupported:
        raise ConfigError(f"torch.nn.MultiheadAttention with {', '.join(unsupported)}: vitviz does not follow that")
    inputs = [arguments[name] for name in ("query", "key", "value")]
    heads, is_batched = arguments["num_heads"], inputs[0].ndim == 3
    if arguments["use_separate_proj_weight"]:
        weights = [arguments[f"{name}_proj_weight"] for name in "qkv"]
    else:
        weights = list(arguments["in_proj_weight"].chunk(3))
    biases = [None] * 3 if arguments["in_proj_bias"] is None else list(arguments["in_proj_bias"].chunk(3))
    queries, keys, values = (
        rearrange(
            F.linear(tokens if is_batched else tokens[:, None], weight, bias),
            "token batch (head dim) -> batch head token dim",
            head=heads,
        )
        for tokens, weight, bias in zip(inputs, weights, biases, strict=True)
    )

    def to_output(context: torch.Tensor) -> torch.Tensor:
        features = rearrange(context, "batch head token dim -> token batch (head dim)")
        projected = F.linear(features, arguments["out_proj_weight"], arguments["out_proj_bias"])
        return projected if is_batched else projected[:, 0]

    is_self_attention = inputs[0] is inputs[1] is inputs[2]
    bias = _bias(arguments["attn_mask"], arguments["key_padding_mask"], queries)
    scale = queries.shape[-1] ** -0.5
    tokens = inputs[0] if is_self_attention else None
    return AttentionCall(queries, keys, values, scale, bias, output, to_output, tokens)


def _bias(mask: torch.Tensor | None, padding: torch.Tensor | None, queries: torch.Tensor) -> torch.Tensor | None:
    """Both masks as one bias ``"batch head query key"``; True hides a key."""
    total = None
    for bias, kind in ((mask, "mask"), (padding, "padding")):
        if bias is None:
            continue
        if bias.dtype == torch.bool:
            bias = torch.zeros(bias.shape, dtype=queries.dtype, device=queries.device).masked_fill_(bias, -math.inf)
        if kind == "padding":
            bias = rearrange(bias, "batch key -> batch 1 1 key") if bias.ndim == 2 else bias[None, None, None]
        elif bias.ndim == 3:
            bias = rearrange(bias, "(batch head) query key -> batch head query key", batch=len(queries))
        total = bias if total is None else total + bias
    return total
