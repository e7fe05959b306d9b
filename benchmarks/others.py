"""How other packages do it: they keep the attention weights of all layers, and multiply full matrices."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from benchmarks.benchmark import Models


def materialised_rollout(layers: Iterable[torch.Tensor]) -> torch.Tensor:
    """Abnar & Zuidema's rollout of the CLS token, ``"patch"``, from attention weights ``"1 head query key"``."""
    # Halves of two matrices whose rows sum to 1.
    matrices = [(weights[0].mean(0) + torch.eye(weights.shape[-1])) / 2 for weights in layers]
    return reduce(lambda product, matrix: matrix @ product, matrices)[0, 1:]


def unfused_timm(models: Models) -> Any:
    """Another timm model with the same weights, whose fused kernel is off, so that hooks see attention weights."""
    model = Models(models.case, models.settings).timm
    for block in model.blocks:
        block.attn.fused_attn = False
    return model


def vit_explain(checkout: Path, model: Any) -> Any:
    """jacobgil/vit-explain's rollout, ``pixels`` to its map, on a timm model whose fused kernel is off."""
    # It imports OpenCV and calls none of it here.
    if importlib.util.find_spec("cv2") is None:
        sys.modules["cv2"] = ModuleType("cv2")
    sys.path.insert(0, str(checkout))
    return importlib.import_module("vit_rollout").VITAttentionRollout(model, head_fusion="max", discard_ratio=0.9)
