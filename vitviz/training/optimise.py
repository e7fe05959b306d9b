"""Initial weights, optimisers, learning-rate schedule and averaged weights."""

from __future__ import annotations

import math

import torch
from einops import rearrange
from torch import nn

from vitviz.models.vit import VisionTransformer
from vitviz.training.augment import BRIGHTNESS
from vitviz.training.muon import Muon


def initialise(network: VisionTransformer) -> None:
    """Set initial weights that resemble those of a trained ViT, which small data sets need.

    Trockman & Kolter 2023, "Mimetic Initialization of Self-Attention Layers": queries and keys start near agreement,
    values and projection near a negative identity; positions start as sines and cosines (Vaswani et al. 2017).
    """
    config = network.config
    nn.init.trunc_normal_(network.prefix_tokens, std=0.02)
    with torch.no_grad():
        network.positions.copy_(sine_positions(*network.positions.shape))
        for layer in network.encoder:
            qkv = rearrange(
                layer.attention.qkv.weight, "(qkv head dim) width -> qkv head dim width", qkv=3, head=config.heads
            )
            for head in range(config.heads):
                u, singular_values, vh = torch.linalg.svd(_noisy_diagonal(config.width, 0.7, 0.7))
                root = singular_values[: config.head_width].sqrt()[:, None]
                qkv[0, head] = root * u[:, : config.head_width].T
                qkv[1, head] = root * vh[: config.head_width]
            head_features = config.heads * config.head_width
            u, singular_values, vh = torch.linalg.svd(_noisy_diagonal(config.width, 0.4, -0.4))
            root = singular_values[:head_features].sqrt()
            rank = len(root)
            values = torch.zeros(head_features, config.width)
            projection = torch.zeros(config.width, head_features)
            values[:rank], projection[:, :rank] = root[:, None] * vh[:rank], u[:, :rank] * root
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
    frequency_count = width // 4
    frequencies = 10000 ** (-torch.arange(frequency_count) / frequency_count)
    row = torch.arange(grid_height)[:, None, None] * frequencies
    column = torch.arange(grid_width)[None, :, None] * frequencies
    waves = torch.broadcast_tensors(row.sin(), row.cos(), column.sin(), column.cos())
    return torch.nn.functional.pad(torch.cat(waves, -1), (0, width - 4 * frequency_count))


def _noisy_diagonal(width: int, noise: float, diagonal: float) -> torch.Tensor:
    return noise * torch.randn(width, width) / width**0.5 + diagonal * torch.eye(width)


def colour_limit(patch_size: int, frequencies: int, std: tuple[float, ...]) -> torch.Tensor:
    """The projection that removes high frequencies of the colours of a patch: ``"pixel pixel"``.

    Brightness stays unchanged. The differences of red, green and blue from it keep the lowest frequencies of the
    cosine transform along each side. A patch embedding multiplied by the projection stays linear and sees only what
    the projection keeps.

    Args:
        patch_size: side in pixels; the axis ``pixel`` is ``"(channel patch_height patch_width)"``.
        frequencies: number of frequencies to keep along each side; 1 keeps the mean colour of the patch.
        std: standard deviation that each channel is divided by before the network sees it.
    """
    angles = (torch.arange(patch_size) + 0.5) * math.pi / patch_size
    waves = torch.cos(torch.arange(frequencies)[:, None] * angles)
    waves = torch.nn.functional.normalize(waves, dim=1)
    low_pass = waves.T @ waves
    to_grey = torch.tensor(BRIGHTNESS).repeat(len(BRIGHTNESS), 1)
    to_colour = torch.eye(len(BRIGHTNESS)) - to_grey
    projection = torch.kron(to_grey, torch.eye(patch_size**2)) + torch.kron(to_colour, torch.kron(low_pass, low_pass))
    scale = torch.tensor(std).repeat_interleave(patch_size**2)
    return projection * scale / scale[:, None]


def optimisers(
    network: VisionTransformer, muon_rate: float, adam_rate: float, weight_decay: float
) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the encoder layers, and AdamW for all other parameters."""
    matrices = [parameter for parameter in network.layers.parameters() if parameter.ndim == 2]
    matrix_ids = {id(parameter) for parameter in matrices}
    rest = [parameter for parameter in network.parameters() if id(parameter) not in matrix_ids]
    return [
        Muon(matrices, muon_rate, weight_decay),
        torch.optim.AdamW(rest, adam_rate, (0.9, 0.98), weight_decay=weight_decay),
    ]


def schedule(step: int, steps: int, warmup: float, cooldown: float = 1.0) -> float:
    """The factor of the learning rates: a linear warm-up, a constant phase, then half a cosine down to zero.

    Without a constant phase: Loshchilov & Hutter 2017. With one, a run in progress can be made longer or shorter:
    Hägele et al. 2024, "Scaling Laws and Compute-Optimal Training Beyond Fixed Training Durations".

    Args:
        step: index of the step, from 0.
        steps: number of steps of the run.
        warmup, cooldown: fractions of the steps. If they add up to more than 1, the cool-down is shortened.
    """
    warmup_steps = max(1, round(warmup * steps))
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    cooldown_steps = max(1, min(round(cooldown * steps), steps - warmup_steps))
    return 0.5 * (1 + math.cos(math.pi * max(0, step - (steps - cooldown_steps)) / cooldown_steps))


def average_into(averaged: nn.Module, network: nn.Module, step: int, decay: float) -> None:
    """Update the exponential moving average of the weights; it decays faster in the first steps."""
    weight = 1 - min(decay, (1 + step) / (10 + step))
    with torch.no_grad():
        torch._foreach_lerp_(list(averaged.parameters()), list(network.parameters()), weight)
