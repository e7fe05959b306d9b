"""Published models of timm on the meta device: their shapes, without the memory of their weights."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn

from tests.reference_packages import timm
from vitviz import ViTConfig
from vitviz.weights.conversion.assemble import assemble, infer_config
from vitviz.weights.formats.tensors import WeightFile
from vitviz.weights.metadata.beside import Beside
from vitviz.weights.overrides import Stated
from vitviz.weights.recognize import recognize


class Outline(WeightFile):
    """A checkpoint that has shapes and no values."""

    def read(self, group: str, key: str) -> torch.Tensor:
        return torch.empty(self.groups[group][key].shape, device="meta")


def inferred_config(file: WeightFile, **stated: Any) -> ViTConfig:
    """The configuration that vitviz infers of a bare file, all of whose tensors have a place in its network."""
    with torch.device("meta"):
        match = recognize(file, Beside(), Stated.of(**stated))
        match.settle(match.family.facts(match))
        config = infer_config(match)
        assemble(match, config)
    return config


@dataclass(frozen=True, eq=False)
class TimmModel:
    """A published model of timm: its checkpoint, and the expected configuration of vitviz."""

    file: Outline
    expected: dict[str, Any]


@cache
def timm_model(name: str) -> TimmModel:
    # Weights on the meta device need no values, so initialisation is skipped.
    with (
        torch.device("meta"),
        mock.patch.object(nn.Linear, "reset_parameters", lambda module: None),
        mock.patch.object(nn.Conv2d, "reset_parameters", lambda module: None),
    ):
        model = timm.create_model(name, weight_init="skip")
    tensors = {key: torch.empty(tensor.shape, device="meta") for key, tensor in model.state_dict().items()}
    return TimmModel(Outline("outline", {"": tensors}, Path("/nowhere")), expected_of(model))


ACTIVATIONS = {"GELU": "gelu", "GELUTanh": "gelu tanh", "QuickGELU": "quick gelu", "SiLU": "silu"}
POOLINGS = {"token": "cls", "avg": "mean", "map": "attention"}


def expected_of(model: Any) -> dict[str, Any]:
    """What a model of timm computes, read from its modules, in the terms of :func:`summary`."""
    block, heads = model.blocks[0], model.blocks[0].attn.num_heads
    before = not isinstance(model.norm, nn.Identity)
    after = not isinstance(getattr(model, "fc_norm", nn.Identity()), nn.Identity)
    classifies = isinstance(model.head, nn.Linear) and model.head.bias is not None
    return {
        "depth": len(model.blocks),
        "heads": heads,
        "head_width": len(block.attn.qkv.weight) // 3 // heads,
        "width": model.embed_dim,
        "patch": tuple(model.patch_embed.patch_size),
        "grid": tuple(model.patch_embed.grid_size),
        "prefix": model.num_prefix_tokens,
        "pooling": "cls and distillation" if hasattr(model, "head_dist") else POOLINGS[model.global_pool],
        "final_norm": "after pooling" if after else "before pooling" if before else "none",
        "norm_epsilon": block.norm1.eps,
        "activation": ACTIVATIONS[type(block.mlp.act).__name__],
        "classes": model.num_classes if classifies else 0,
    }


def summary(config: ViTConfig) -> dict[str, Any]:
    """The same values of a configuration of vitviz."""
    layout = config.layout(config.image_height, config.image_width)
    return {
        "depth": config.depth,
        "heads": config.heads,
        "head_width": config.head_width,
        "width": config.width,
        "patch": (config.patch_height, config.patch_width),
        "grid": (layout.grid_height, layout.grid_width),
        "prefix": len(config.prefix),
        "pooling": config.pooling,
        "final_norm": config.final_norm,
        "norm_epsilon": config.norm_epsilon,
        "activation": config.activation,
        "classes": config.classes,
    }
