"""Vision Transformers written from scratch in einops notation: vit-pytorch, and layouts that tutorials teach."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from einops import rearrange

from vitviz.weights.conversion.canonical import Family, MatchedCheckpoint, Open
from vitviz.weights.families.conventions import half

VIT_PYTORCH_LAYER = "transformer.layers.*"
VIT_PYTORCH_NAMES = {
    "to_patch_embedding.1": "patch_norm_before",
    "to_patch_embedding.2": "patch",
    "to_patch_embedding.3": "patch_norm_after",
    "cls_token": "cls",
    "pos_embedding": "positions",
    f"{VIT_PYTORCH_LAYER}.0.norm": "attention_norm",
    f"{VIT_PYTORCH_LAYER}.0.to_qkv": "qkv",
    f"{VIT_PYTORCH_LAYER}.0.to_out.0": "out",
    f"{VIT_PYTORCH_LAYER}.1.net.0": "mlp_norm",
    f"{VIT_PYTORCH_LAYER}.1.net.1": "mlp_in",
    f"{VIT_PYTORCH_LAYER}.1.net.4": "mlp_out",
    "transformer.norm": "norm",
    "mlp_head": "classifier",
}


def _first_names(inside: str) -> dict[str, str]:
    """The first layout of vit-pytorch, with what its wrapper of a layer's parts calls them."""
    return {
        f"{VIT_PYTORCH_LAYER}.0.norm": "attention_norm",
        f"{VIT_PYTORCH_LAYER}.0.{inside}.to_qkv": "qkv",
        f"{VIT_PYTORCH_LAYER}.0.{inside}.to_out.0": "out",
        f"{VIT_PYTORCH_LAYER}.1.norm": "mlp_norm",
        f"{VIT_PYTORCH_LAYER}.1.{inside}.net.0": "mlp_in",
        f"{VIT_PYTORCH_LAYER}.1.{inside}.net.3": "mlp_out",
    }


VIT_PYTORCH_FIRST_NAMES = {
    "to_patch_embedding.1": "patch",
    "cls_token": "cls",
    "pos_embedding": "positions",
    **_first_names("fn"),
    **_first_names("attention_or_mlp"),
    "mlp_head.0": "norm",
    "mlp_head.1": "classifier",
}
MULTIHEAD_NAMES = {
    "image_to_embeddings.0.projector": "patch",
    "image_to_embeddings.0.projector.1": "patch",
    "image_to_embeddings.1.token": "cls",
    "image_to_embeddings.2.position_embeddings": "positions",
    "transformer.layers.*.normalization": "attention_norm",
    "transformer.layers.*.attention.in_proj_weight": "qkv.weight",
    "transformer.layers.*.attention.in_proj_bias": "qkv.bias",
    "transformer.layers.*.attention.out_proj": "out",
    "transformer.layers.*.feed_forward.0": "mlp_norm",
    "transformer.layers.*.feed_forward.1": "mlp_in",
    "transformer.layers.*.feed_forward.4": "mlp_out",
    "transformer.norm": "norm",
    "head": "classifier",
    "head.linear": "classifier",
}
SEQUENTIAL_NAMES = {
    "0.projection.0": "patch",
    "0.cls_token": "cls",
    "0.positions": "positions",
    "1.*.0.fn.0": "attention_norm",
    "1.*.0.fn.1.qkv": "qkv",
    "1.*.0.fn.1.queries": "query",
    "1.*.0.fn.1.keys": "key",
    "1.*.0.fn.1.values": "value",
    "1.*.0.fn.1.projection": "out",
    "1.*.1.fn.0": "mlp_norm",
    "1.*.1.fn.1.0": "mlp_in",
    "1.*.1.fn.1.3": "mlp_out",
    "2.1": "norm",
    "2.2": "classifier",
}


def vit_pytorch_facts(checkpoint: MatchedCheckpoint) -> dict[str, Any]:
    if checkpoint.has("out.weight"):
        heads = Open(usual=max(1, (checkpoint.stored("qkv.weight") or (0,))[0] // 3 // 64))
    else:
        heads = checkpoint.record(
            "heads", 1, "no projection after attention, which this layout has beside several heads"
        )
    return {
        "heads": heads,
        "norm_epsilon": 1e-5,
        "position_rule": "reading order",
        "pooling": _pooling(checkpoint),
        "channels_last": True,
        # One head as wide as a token has no map after it.
        "bare_attention": True,
    }


def _pooling(checkpoint: MatchedCheckpoint) -> Any:
    """Releases with one token more or less by what is pooled have two dimensions; before, both had the same tokens."""
    shape = checkpoint.stored("cls")
    if len(shape) > 2:
        # Its "mean" was that of all tokens.
        return Open(usual="cls")
    return "cls" if shape[:1] != (0,) else "mean"


def vit_pytorch_first_facts(checkpoint: MatchedCheckpoint) -> dict[str, Any]:
    # Its "mean" is that of all tokens.
    return {**vit_pytorch_facts(checkpoint), "pooling": Open(usual="cls"), "final_norm": "after pooling"}


def multihead_facts(checkpoint: MatchedCheckpoint) -> dict[str, Any]:
    return {
        "heads": Open(),
        "norm_epsilon": 1e-5,
        "position_rule": "reading order",
        "pooling": "cls",
        "channels_last": True,
    }


def sequential_facts(checkpoint: MatchedCheckpoint) -> dict[str, Any]:
    return {
        "heads": Open(usual=8),
        "norm_epsilon": 1e-5,
        "attention_scale": 1.0,
        "scaled_by_width": checkpoint.has("qkv.weight"),
        "position_rule": "fixed",
        "pooling": "mean of all",
        "final_norm": "after pooling",
    }


def sequential_form(canonical_key: str, tensor: torch.Tensor, facts: Mapping[str, Any]) -> torch.Tensor:
    """Queries, keys and values alternate; the constant after the softmax goes into the output projection."""
    if canonical_key in ("qkv.weight", "qkv.bias"):
        return rearrange(tensor, "(head dim part) ... -> (part head dim) ...", head=facts["heads"], part=3)
    if canonical_key == "out.weight":
        # Scores go unscaled into the softmax; its weights are scaled after it, by the width or by that of a head.
        width = len(tensor)
        return tensor * (width if facts["scaled_by_width"] else max(1, width // facts["heads"])) ** -0.5
    return tensor


VIT_PYTORCH = Family(
    name="vit-pytorch",
    title="vit-pytorch ViT",
    names=VIT_PYTORCH_NAMES,
    signature=("to_patch_embedding.2.weight", "pos_embedding", "transformer.layers.0.0.to_qkv.weight"),
    facts=vit_pytorch_facts,
    standard=half("vitviz: vit-pytorch has no preprocessing of its own", fit="squash"),
)

VIT_PYTORCH_FIRST = Family(
    name="vit-pytorch-first",
    title="vit-pytorch ViT, first layout",
    names=VIT_PYTORCH_FIRST_NAMES,
    signature=("to_patch_embedding.1.weight", "pos_embedding", "transformer.layers.0.0.norm.weight"),
    without=("to_patch_embedding.2.weight", "transformer.norm.weight"),
    facts=vit_pytorch_first_facts,
    standard=half("vitviz: vit-pytorch has no preprocessing of its own", fit="squash"),
)

MULTIHEAD = Family(
    name="multihead",
    title="ViT on torch.nn.MultiheadAttention",
    names=MULTIHEAD_NAMES,
    signature=("image_to_embeddings.1.token", "transformer.layers.0.attention.in_proj_weight"),
    facts=multihead_facts,
    standard=half("vitviz: this layout has no preprocessing of its own", fit="squash"),
)

SEQUENTIAL = Family(
    name="sequential",
    title="einops ViT as nn.Sequential",
    names=SEQUENTIAL_NAMES,
    signature=("0.positions", "1.0.0.fn.1.projection.weight", "2.2.weight"),
    facts=sequential_facts,
    standard=half("vitviz: this layout has no preprocessing of its own", fit="squash"),
    form=sequential_form,
)

FAMILIES = (VIT_PYTORCH, VIT_PYTORCH_FIRST, MULTIHEAD, SEQUENTIAL)
