"""How other packages do it: they keep the attention weights of all layers, and multiply full matrices."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import Any

import torch


def materialised_rollout(layers: Iterable[torch.Tensor]) -> torch.Tensor:
    """Abnar & Zuidema's rollout of the CLS token, ``"patch"``, from attention weights ``"1 head query key"``."""
    # Halves of two matrices whose rows sum to 1.
    matrices = [(weights[0].mean(0) + torch.eye(weights.shape[-1])) / 2 for weights in layers]
    return reduce(lambda product, matrix: matrix @ product, matrices)[0, 1:]


@contextmanager
def record_attention(model: Any) -> Iterator[list[torch.Tensor]]:
    """The attention weights of a timm model, layer after layer, while it runs without its fused kernel."""
    weights: list[torch.Tensor] = []
    attentions = [block.attn for block in model.blocks]
    hooks = [each.attn_drop.register_forward_hook(lambda _, __, output: weights.append(output)) for each in attentions]
    for each in attentions:
        each.fused_attn = False
    try:
        yield weights
    finally:
        for each, hook in zip(attentions, hooks, strict=True):
            each.fused_attn = True
            hook.remove()


def vit_explain(checkout: Path, model: Any) -> Any:
    """jacobgil/vit-explain's rollout, ``pixels`` to its map, on a timm model whose fused kernel is off for good."""
    for block in model.blocks:
        block.attn.fused_attn = False
    # It imports OpenCV and calls none of it here.
    if importlib.util.find_spec("cv2") is None:
        sys.modules["cv2"] = ModuleType("cv2")
    sys.path.insert(0, str(checkout))
    return importlib.import_module("vit_rollout").VITAttentionRollout(model, head_fusion="max", discard_ratio=0.9)
