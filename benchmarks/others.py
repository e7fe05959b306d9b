"""How other packages do it: they keep the attention weights of all layers, and multiply full matrices."""

from __future__ import annotations

import importlib.util
import io
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from PIL import Image


def materialised_rollout(layers: Iterable[torch.Tensor]) -> torch.Tensor:
    """Abnar & Zuidema's rollout of the CLS token, ``"patch"``, from attention weights ``"1 head query key"``."""
    product = None
    for weights in layers:
        fused = weights[0].mean(0)
        identity = torch.eye(len(fused))
        matrix = (fused + identity) / 2
        matrix = matrix / matrix.sum(-1, keepdim=True)
        product = matrix @ (identity if product is None else product)
    assert product is not None, "a network without layers"
    return product[0, 1:]


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


@contextmanager
def differentiable(model: Any) -> Iterator[list[torch.Tensor]]:
    """The output of a timm model's patch embedding, made to require a gradient although all weights are frozen."""
    embeddings: list[torch.Tensor] = []

    def require_gradient(_: Any, __: Any, output: torch.Tensor) -> None:
        embeddings.append(output.requires_grad_())

    hook = model.patch_embed.register_forward_hook(require_gradient)
    try:
        yield embeddings
    finally:
        hook.remove()


def backward(model: Any, pixels: torch.Tensor, target: int) -> torch.Tensor:
    """Gradient of a class's score with respect to the patch embedding: one forward and one backward pass."""
    with differentiable(model) as embedded:
        score = model(pixels)[0, target]
        return torch.autograd.grad(score, embedded)[0]


def transmm(model: Any, pixels: torch.Tensor, target: int) -> torch.Tensor:
    """Chefer et al.'s relevance of a class, ``"patch"``, from all attention weights and all their gradients."""
    with differentiable(model), record_attention(model) as layers:
        score = model(pixels)[0, target]
        gradients = torch.autograd.grad(score, layers)
    relevance = torch.eye(layers[0].shape[-1])
    with torch.no_grad():
        for weights, gradient in zip(layers, gradients, strict=True):
            relevance = relevance + (weights * gradient).clamp(min=0)[0].mean(0) @ relevance
    return relevance[0, 1:]


def vit_explain(checkout: Path, model: Any) -> Any:
    """jacobgil/vit-explain's rollout, ``pixels`` to its map, on a timm model whose fused kernel is off for good."""
    for block in model.blocks:
        block.attn.fused_attn = False
    # It imports OpenCV and calls none of it here.
    if importlib.util.find_spec("cv2") is None:
        sys.modules["cv2"] = ModuleType("cv2")
    sys.path.insert(0, str(checkout))
    return importlib.import_module("vit_rollout").VITAttentionRollout(model, head_fusion="max", discard_ratio=0.9)


def matplotlib_overlay(image: Image.Image, values: np.ndarray, smooth: bool, jpeg: bool) -> bytes:
    """A map ``"row column"`` over an image at the image's own size, as a JPEG or as matplotlib saves it by itself."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(image.width / 100, image.height / 100), dpi=100)
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.axis("off")
    axes.imshow(image)
    extent = (-0.5, image.width - 0.5, image.height - 0.5, -0.5)
    axes.imshow(values, "turbo", alpha=0.6, extent=extent, interpolation="bilinear" if smooth else "nearest")
    stream = io.BytesIO()
    if jpeg:
        canvas.print_jpg(stream, pil_kwargs={"quality": 90})
    else:
        figure.savefig(stream)
    return stream.getvalue()
