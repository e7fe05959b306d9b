"""Published models of timm on the meta device: their shapes and configurations, without the memory of their weights."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn

from tests.reference_packages import timm
from tests.support.sidecars import files_beside
from vitviz import ViTConfig
from vitviz.weights.conversion.assemble import assemble, infer_config
from vitviz.weights.formats.tensors import WeightFile
from vitviz.weights.overrides import Stated
from vitviz.weights.recognize import recognize


class Outline(WeightFile):
    """A checkpoint that has shapes and no values."""

    def read(self, group: str, key: str) -> torch.Tensor:
        return torch.empty(self.groups[group][key].shape, device="meta")


def outline(state: Mapping[str, torch.Tensor]) -> Outline:
    return outline_of({key: tensor.shape for key, tensor in state.items()})


def outline_of(shapes: Mapping[str, Sequence[int]]) -> Outline:
    tensors = {key: torch.empty(tuple(shape), device="meta") for key, shape in shapes.items()}
    return Outline("outline", "safetensors", {"": tensors}, Path("/nowhere"))


def inferred_config(file: WeightFile, config: Mapping[str, Any], complete: bool = False, **overrides: Any) -> ViTConfig:
    """The configuration that vitviz infers; with ``complete``, it also places every tensor in the network."""
    with torch.device("meta"):
        match = recognize(file, files_beside(config=config), Stated.of(**overrides))
        facts = match.settle(match.family.facts(match))
        inferred = infer_config(match, facts)
        if complete:
            assemble(match, facts, inferred)
    return inferred


@dataclass(frozen=True, eq=False)
class TimmModel:
    """A published model of timm: its checkpoint, its configuration, and the expected configuration of vitviz."""

    file: Outline
    config: dict[str, Any]
    parameters: int
    expected: dict[str, Any]


@cache
def timm_model(name: str) -> TimmModel:
    # Weights on the meta device need no values, so initialisation is skipped; for the class Eva it is replaced.
    skip = {} if name.partition(".")[0] in timm.list_models(module="eva") else {"weight_init": "skip"}
    with (
        torch.device("meta"),
        mock.patch.object(timm.models.eva, "trunc_normal_"),
        mock.patch.object(nn.Linear, "reset_parameters", lambda module: None),
        mock.patch.object(nn.Conv2d, "reset_parameters", lambda module: None),
    ):
        model = timm.create_model(name, **skip)
    count = sum(parameter.numel() for parameter in model.parameters())
    return TimmModel(outline(model.state_dict()), config_of(model), count, expected_of(model))


def config_of(model: nn.Module, with_arguments: bool = False) -> dict[str, Any]:
    """The ``config.json`` that timm writes; older releases wrote it without the arguments of the model."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "config.json")
        timm.models._hub.save_config_for_hf(model, path)
        config: dict[str, Any] = json.loads(path.read_text())
    if not with_arguments:
        config.pop("model_args", None)
    return config


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
