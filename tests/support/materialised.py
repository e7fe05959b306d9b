"""Materialised attention of every layer in one autograd graph: the slow way to gradients of attention."""

from __future__ import annotations

from typing import Any

import torch

from tests.support.makers import MakeNetwork
from vitviz import TokenLayout
from vitviz.attribution import AttributionInput
from vitviz.models.targets import class_target


def sharp(make_network: MakeNetwork, changes: dict[str, Any], target: int = 1) -> AttributionInput:
    """A network whose attention and gradients are far from uniform, and an image, in double precision."""
    network = make_network(**changes).double().requires_grad_(False)
    for layer in network.encoder:
        layer.attention.qkv.weight.mul_(4)
    config = network.config
    pixels = torch.randn(1, 3, config.image_height, config.image_width, dtype=torch.float64)
    return AttributionInput(network, pixels, class_target(target, config.classes))


def layer_by_layer(
    subject: AttributionInput,
) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor], TokenLayout]:
    """Every layer's normed input, attention weights and output, materialised in one autograd graph."""
    network = subject.network
    tokens, layout = network.embed(subject.pixels)
    tokens = tokens.detach().requires_grad_()
    normed, weights, outputs = [], [], []
    for layer in network.encoder:
        normed.append(layer.attention_norm(tokens))
        attended = layer.attention(normed[-1], network.angles(layout), layout.token_count)
        weights.append((attended.queries @ attended.keys.mT * network.scale).softmax(-1))
        tokens = layer.residual_mlp(tokens, weights[-1] @ attended.values)
        outputs.append(tokens)
    return normed, weights, outputs, layout
