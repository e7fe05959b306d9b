"""Small models of every kind that vitviz's own network can be."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch

from tests.support.long_runs import SEED, share_of
from vitviz import Model, Preprocessing, VisionTransformer, ViTConfig
from vitviz.models.activations import ACTIVATIONS
from vitviz.models.config import FINAL_NORMS
from vitviz.models.pooling import POOLINGS
from vitviz.models.positions import POSITION_RULES


def check_many(count: int, check: Callable[[int], None]) -> None:
    """Check the share of so many models by their seeds, and name the one that fails."""
    for seed in range(1000 * (SEED + 1), 1000 * (SEED + 1) + share_of(count)):
        try:
            check(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {random_model(seed).network.config}: {error}") from error


def random_model(seed: int) -> Model:
    """A small model with random weights, of any kind that vitviz's own network can be."""
    draw, torch_draw = random.Random(seed), torch.Generator().manual_seed(seed)
    is_rotary, pooling, heads = draw.random() < 0.3, draw.choice(list(POOLINGS)), draw.randint(1, 4)
    patch_height, patch_width = draw.choice([(4, 4), (3, 5), (8, 4), (7, 7)])
    trained, used = [(draw.randint(1, 5) * patch_height, draw.randint(1, 5) * patch_width) for _ in range(2)]
    rule = draw.choice(list(POSITION_RULES))
    if rule == "fixed":
        used = trained
    elif rule == "reading order":
        used = (min(used[0], trained[0]), min(used[1], trained[1]))
    config = ViTConfig(
        *trained,
        patch_height,
        patch_width,
        # A norm of very few features has no gradient but rounding.
        width=heads * draw.randint(max(2, 6 // heads), 11),
        depth=draw.randint(1, 3),
        heads=heads,
        head_width=draw.choice([4, 8, 20]) if is_rotary else draw.choice([3, 8, 10, 16]),
        mlp_width=draw.randint(5, 70),
        classes=draw.choice([0, 1, 5, 17]),
        channels=draw.choice([3, 3, 1]),
        cls_token="cls" in pooling or draw.random() < 0.5,
        distillation_token="distillation" in pooling or draw.random() < 0.2,
        register_tokens=draw.choice([0, 0, 1, 4]),
        pooling=pooling,
        qkv_bias=draw.random() < 0.7,
        norm_epsilon=draw.choice([1e-6, 1e-5]),
        final_norm=draw.choice(FINAL_NORMS),
        activation=draw.choice(list(ACTIVATIONS)),
        gated_mlp=draw.random() < 0.3,
        attention_scale=draw.choice([None, 0.2]),
        query_key_norm=draw.random() < 0.3,
        patch_norms=draw.random() < 0.2,
        pre_norm=draw.random() < 0.3,
        position_rule=rule,
        rotary=is_rotary,
        representation_width=draw.choice([0, 0, 9]),
        projection_width=draw.choice([0, 0, 12]),
    )
    network = VisionTransformer(config).eval().requires_grad_(False)
    is_narrow = draw.random() < 0.5
    for name, parameter in network.named_parameters():
        if name != "periods":
            parameter.normal_(0, 0.3, generator=torch_draw)
            if is_narrow:
                parameter.copy_(parameter.bfloat16())
    statistics = ((0.5,) * config.channels, (0.2,) * config.channels)
    labels = tuple(map(str, range(config.classes)))
    return Model("drawn", network, Preprocessing(*used, *statistics, "squash"), labels)
