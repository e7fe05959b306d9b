"""How a run learns: starting weights, optimisers, learning-rate schedule and averaged weights."""

from __future__ import annotations

import math

import torch
from einops import rearrange
from torch import nn

from vitviz.models.vit import VisionTransformer
from vitviz.training.augment import BRIGHTNESS
from vitviz.training.muon import Muon


def initialise(network: VisionTransformer) -> None:
    """Starting weights that already look like those of a trained ViT, which small data sets need.

    Trockman & Kolter 2023, "Mimetic Initialization of Self-Attention Layers": queries and keys start near agreement,
    values and projection near a negative identity; positions start as sines and cosines (Vaswani et al. 2017).
    """
    config = network.config
    nn.init.trunc_normal_(network.prefix_tokens, std=0.02)
    with torch.no_grad():
        network.positions.copy_(sine_positions(*network.positions.shape))
        for layer in network.encoder:
            qkv = rearrange(
                layer.attention.qkv.weight, "(part head dim) width -> part head dim width", part=3, head=config.heads
            )
            for head in range(config.heads):
                left, strength, right = torch.linalg.svd(_near_identity(config.width, 0.7, 0.7))
                root = strength[: config.head_width].sqrt()[:, None]
                qkv[0, head] = root * left[:, : config.head_width].T
                qkv[1, head] = root * right[: config.head_width]
            inner = config.heads * config.head_width
            left, strength, right = torch.linalg.svd(_near_identity(config.width, 0.4, -0.4))
            root = strength[:inner].sqrt()
            rank = len(root)
            values = torch.zeros(inner, config.width)
            projection = torch.zeros(config.width, inner)
            values[:rank], projection[:, :rank] = root[:, None] * right[:rank], left[:, :rank] * root
            qkv[2] = rearrange(values, "(head dim) width -> head dim width", head=config.heads)
            layer.attention.projection.weight.copy_(projection)
    for module in network.modules():
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    for layer in network.encoder:
        for linear in layer.mlp:
            if isinstance(linear, nn.Linear):
                nn.init.xavier_uniform_(linear.weight)
    if isinstance(network.classifier, nn.Linear):
        nn.init.zeros_(network.classifier.weight)


def sine_positions(grid_height: int, grid_width: int, width: int) -> torch.Tensor:
    """Sines and cosines of row and column at geometric frequencies: ``"row column width"``, values in [-1, 1]."""
    quarter = width // 4
    frequencies = 10000 ** (-torch.arange(quarter) / quarter)
    row = torch.arange(grid_height)[:, None, None] * frequencies
    column = torch.arange(grid_width)[None, :, None] * frequencies
    parts = torch.broadcast_tensors(row.sin(), row.cos(), column.sin(), column.cos())
    return torch.nn.functional.pad(torch.cat(parts, -1), (0, width - 4 * quarter))


def _near_identity(width: int, noise: float, diagonal: float) -> torch.Tensor:
    return noise * torch.randn(width, width) / width**0.5 + diagonal * torch.eye(width)


def colour_limit(patch_size: int, frequencies: int, std: tuple[float, ...]) -> torch.Tensor:
    """What takes the high frequencies of colours out of a patch: ``"pixel pixel"``, a projection.

    Brightness stays whole; of the differences of red, green and blue from it, the lowest frequencies of the cosine
    transform along each side stay. A patch embedding that is multiplied by it is as linear as before, and sees what
    is left.

    Args:
        patch_size: side in pixels; a pixel is one of ``"(channel patch_height patch_width)"``.
        frequencies: that stay, along each side; 1 is the mean colour of the patch.
        std: by which the channels are divided before the network sees them.
    """
    place = (torch.arange(patch_size) + 0.5) * math.pi / patch_size
    waves = torch.cos(torch.arange(frequencies)[:, None] * place)
    waves = torch.nn.functional.normalize(waves, dim=1)
    low = waves.T @ waves
    grey = torch.tensor(BRIGHTNESS).repeat(len(BRIGHTNESS), 1)
    colour = torch.eye(len(BRIGHTNESS)) - grey
    whole = torch.kron(grey, torch.eye(patch_size**2)) + torch.kron(colour, torch.kron(low, low))
    scale = torch.tensor(std).repeat_interleave(patch_size**2)
    return whole * scale / scale[:, None]


def optimisers(
    network: VisionTransformer, muon_rate: float, adam_rate: float, weight_decay: float
) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the encoder layers, AdamW for everything else."""
    matrices = [parameter for parameter in network.layers.parameters() if parameter.ndim == 2]
    chosen = {id(parameter) for parameter in matrices}
    rest = [parameter for parameter in network.parameters() if id(parameter) not in chosen]
    return [
        Muon(matrices, muon_rate, weight_decay),
        torch.optim.AdamW(rest, adam_rate, (0.9, 0.98), weight_decay=weight_decay),
    ]


def schedule(step: int, steps: int, warmup: float, cooldown: float = 1.0) -> float:
    """Factor of the learning rates: a linear warm-up, a constant part, then half a cosine down to zero.

    Without a constant part: Loshchilov & Hutter 2017. With one, a run can be made longer or shorter while it lasts:
    Hägele et al. 2024, "Scaling Laws and Compute-Optimal Training Beyond Fixed Training Durations".

    Args:
        step: from 0.
        steps: of the whole run.
        warmup, cooldown: parts of the steps; where they are more than all together, the cool-down gives way.
    """
    rising = max(1, round(warmup * steps))
    if step < rising:
        return (step + 1) / rising
    falling = max(1, min(round(cooldown * steps), steps - rising))
    return 0.5 * (1 + math.cos(math.pi * max(0, step - (steps - falling)) / falling))


def average_into(averaged: nn.Module, network: nn.Module, step: int, decay: float) -> None:
    """Move the averaged weights a little towards the current ones; faster in the first steps."""
    share = 1 - min(decay, (1 + step) / (10 + step))
    for target, parameter in zip(averaged.parameters(), network.parameters(), strict=True):
        target.lerp_(parameter.detach(), share)
