"""A Vision Transformer by its formulas, for any configuration: every matrix of attention, in one graph."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tests.support.makers import MakeNetwork
from vitviz import TokenLayout, VisionTransformer
from vitviz.attribution import AttributionInput
from vitviz.models.targets import class_target

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": lambda x: x * (1 + torch.erf(x / math.sqrt(2))) / 2,
    "gelu tanh": lambda x: x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "quick gelu": lambda x: x / (1 + torch.exp(-1.702 * x)),
    "silu": lambda x: x / (1 + torch.exp(-x)),
    "relu": lambda x: x.clamp(min=0),
}


@dataclass(frozen=True)
class Plain:
    """What the formulas give.

    Args:
        layout: order of the tokens.
        steps: tokens before the first layer and after each one, ``"batch token width"``.
        normed: what each layer's attention reads, ``"batch token width"``.
        weights: attention weights of each layer, ``"batch head query key"``.
        pooling: attention weights of the pooling query, ``"batch head 1 patch"``; None for other poolings.
        output: logits, or features without a classifier.
    """

    layout: TokenLayout
    steps: list[torch.Tensor]
    normed: list[torch.Tensor]
    weights: list[torch.Tensor]
    pooling: torch.Tensor | None
    output: torch.Tensor


def plain(
    network: VisionTransformer,
    pixels: torch.Tensor,
    head_mask: torch.Tensor | None = None,
    hidden: tuple[int, ...] = (),
) -> Plain:
    """Every value of a forward pass.

    Args:
        network: gives the weights and the configuration.
        pixels: ``"batch channel height width"`` of the trained size.
        head_mask: ``"layer head"``, factors of the attention weights.
        hidden: tokens that nothing attends to and nothing reads.
    """
    config = network.config
    layout = config.layout(*pixels.shape[-2:])
    tokens = embedded(network, pixels)
    # The weights have gradients where the parameters have none.
    steps, normed, weights = [tokens if tokens.requires_grad else tokens.detach().requires_grad_()], [], []
    bias = torch.zeros(layout.token_count).index_fill(0, torch.tensor(hidden, dtype=torch.long), -torch.inf)
    for number, layer in enumerate(network.encoder):
        normed.append(normalised(steps[-1], layer.attention_norm, config.norm_epsilon))
        queries, keys, values = queries_keys_values(network, number, normed[-1], layout)
        scale = config.head_width**-0.5 if config.attention_scale is None else config.attention_scale
        matrix = (queries @ keys.mT * scale + bias).softmax(-1)
        weights.append(matrix if head_mask is None else matrix * head_mask[number, :, None, None])
        context = (weights[-1] @ values).transpose(1, 2).flatten(2)
        stream = steps[-1] + mapped(context, layer.attention.projection)
        steps.append(stream + perceptron(normalised(stream, layer.mlp_norm, config.norm_epsilon), layer.mlp, network))
    kept = [token for token in range(layout.token_count) if token not in hidden]
    output, pooling = read_plainly(network, steps[-1][:, kept], layout.prefix_count)
    return Plain(layout, steps, normed, weights, pooling, output)


def normalised(values: torch.Tensor, norm: nn.Module, epsilon: float) -> torch.Tensor:
    if isinstance(norm, nn.Identity):
        return values
    centred = values - values.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + epsilon).sqrt() * norm.weight + norm.bias


def mapped(values: torch.Tensor, linear: nn.Module) -> torch.Tensor:
    if isinstance(linear, nn.Identity):
        return values
    product = values @ linear.weight.T
    return product if linear.bias is None else product + linear.bias


def perceptron(values: torch.Tensor, mlp: nn.Sequential, network: VisionTransformer) -> torch.Tensor:
    config, hidden = network.config, mapped(values, mlp[0])
    activated = ACTIVATIONS[config.activation](hidden[..., : config.mlp_width])
    return mapped(activated * hidden[..., config.mlp_width :] if config.gated_mlp else activated, mlp[2])


def embedded(network: VisionTransformer, pixels: torch.Tensor) -> torch.Tensor:
    """The tokens before the first layer: patches cut out one by one, prefix tokens before them."""
    config, patch, rows = network.config, (network.config.patch_height, network.config.patch_width), []
    before, after = network.patch_norms if config.patch_norms else (nn.Identity(), nn.Identity())
    for top in range(0, pixels.shape[2], patch[0]):
        for left in range(0, pixels.shape[3], patch[1]):
            cut = pixels[:, :, top : top + patch[0], left : left + patch[1]].flatten(1)
            mapped_cut = mapped(normalised(cut, before, config.norm_epsilon), network.patch_embedding)
            token = normalised(mapped_cut, after, config.norm_epsilon)
            rows.append(token if config.rotary else token + network.positions[top // patch[0], left // patch[1]])
    prefix = network.prefix_tokens.expand(len(pixels), -1, -1)
    return normalised(torch.cat([prefix, torch.stack(rows, 1)], 1), network.pre_norm, config.norm_epsilon)


def queries_keys_values(
    network: VisionTransformer, layer: int, normed: torch.Tensor, layout: TokenLayout
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``"batch head token dim"``, normed and turned where the configuration says so."""
    config, attention = network.config, network.encoder[layer].attention
    parts = mapped(normed, attention.qkv).unflatten(-1, (3, config.heads, config.head_width)).permute(2, 0, 3, 1, 4)
    queries = normalised(parts[0], attention.query_norm, config.norm_epsilon)
    keys = normalised(parts[1], attention.key_norm, config.norm_epsilon)
    return turned(network, queries, layout), turned(network, keys, layout), parts[2]


def turned(network: VisionTransformer, vectors: torch.Tensor, layout: TokenLayout) -> torch.Tensor:
    """Rotary positions: a pair of features as a complex number times e^(i angle), the patch's centre in [-1, 1]."""
    if not network.config.rotary:
        return vectors
    angles = torch.zeros(layout.token_count, network.config.head_width // 2, dtype=vectors.dtype)
    for token in range(layout.prefix_count, layout.token_count):
        row, column = layout.cell(token)
        places = (2 * row + 1) / layout.grid_height - 1, (2 * column + 1) / layout.grid_width - 1
        angles[token] = torch.cat([2 * math.pi * place / network.periods for place in places])
    pairs = torch.complex(*vectors.chunk(2, -1)) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([pairs.real, pairs.imag], -1)


def read_plainly(network: VisionTransformer, tokens: torch.Tensor, prefix: int) -> tuple[torch.Tensor, Any]:
    """The output for the last layer's tokens, and the attention of the pooling query to the patches."""
    config, weights = network.config, None
    if config.final_norm == "before pooling":
        tokens = normalised(tokens, network.norm, config.norm_epsilon)
    patches = tokens[:, prefix:]
    if config.pooling == "attention":
        pooled, weights = pooled_by_attention(network, patches)
    else:
        pooled = {
            "cls": lambda: tokens[:, 0],
            "mean": lambda: patches.mean(1),
            "mean of all": lambda: tokens.mean(1),
            "cls and mean": lambda: torch.cat([tokens[:, 0], patches.mean(1)], 1),
            "cls and distillation": lambda: torch.cat([tokens[:, 0], tokens[:, 1]], 1),
        }[config.pooling]()
    if config.final_norm == "after pooling":
        pooled = normalised(pooled, network.norm, config.norm_epsilon)
    if config.representation_width:
        pooled = torch.tanh(mapped(pooled, network.representation[0]))
    if config.projection_width:
        pooled = pooled @ network.projection.weight.T
    return mapped(pooled, network.classifier), weights


def pooled_by_attention(network: VisionTransformer, patches: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """SigLIP: one learned query attends to the patches, and an MLP follows."""
    pooler, heads = network.pooler, network.config.heads
    query = mapped(pooler.probe, pooler.query).view(heads, 1, -1)
    keys, values = mapped(patches, pooler.key_value).unflatten(-1, (2, heads, -1)).permute(2, 0, 3, 1, 4)
    weights = (query @ keys.mT / math.sqrt(keys.shape[-1])).softmax(-1)
    pooled = mapped((weights @ values).flatten(1), pooler.projection)
    normed = normalised(pooled, pooler.mlp_norm, network.config.norm_epsilon)
    return pooled + perceptron(normed, pooler.mlp, network), weights


def sharp(make_network: MakeNetwork, changes: dict[str, Any], target: int = 1) -> AttributionInput:
    """A network whose attention and gradients are far from uniform, and an image, in double precision."""
    network = make_network(**changes).double().requires_grad_(False)
    for layer in network.encoder:
        layer.attention.qkv.weight.mul_(4)
    if network.config.pooling == "attention":
        network.pooler.key_value.weight.mul_(4)
    config = network.config
    pixels = torch.randn(1, 3, config.image_height, config.image_width, dtype=torch.float64)
    return AttributionInput(network, pixels, class_target(target, config.classes))
