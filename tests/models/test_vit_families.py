"""The effect of each setting of a family on the network's output, against a plain formula."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from tests.support.comparison import closeness
from tests.support.makers import MakeNetwork
from vitviz import VisionTransformer
from vitviz.errors.kinds import ConfigError, ImageError
from vitviz.models.activations import ACTIVATIONS
from vitviz.models.config import FINAL_NORMS
from vitviz.models.layers import AttentionPooling
from vitviz.models.pooling import POOLINGS

close = closeness(tolerance=1e-5, relative=1e-5)


TOKENS = {"distillation_token": True, "register_tokens": 2}
PREFIX, EPSILON = 4, 1e-6


def pixels(height: int = 16, width: int = 24, channels: int = 3) -> torch.Tensor:
    return torch.randn(2, channels, height, width)


def plain_norm(values: torch.Tensor, norm: Any, epsilon: float = EPSILON) -> torch.Tensor:
    centred = values - values.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + epsilon).sqrt() * norm.weight + norm.bias


def plain_linear(values: torch.Tensor, linear: Any) -> torch.Tensor:
    mapped = values @ linear.weight.T
    return mapped if linear.bias is None else mapped + linear.bias


@contextmanager
def record_calls(module: torch.nn.Module) -> Iterator[list[tuple[Any, Any]]]:
    """Record the first input and the output of every call of a module."""
    calls: list[tuple[Any, Any]] = []
    hook = module.register_forward_hook(lambda _, inputs, output: calls.append((inputs[0], output)))
    yield calls
    hook.remove()


def last_tokens(network: VisionTransformer, images: torch.Tensor) -> torch.Tensor:
    """The output of the last layer for every token; the network computes only the classified ones."""
    last = network.encoder[-1]
    with record_calls(last) as calls:
        network(images)
    layer_input, output = calls[0]
    tokens: torch.Tensor = last(layer_input, None, layer_input.shape[1])
    close(output, tokens[:, : output.shape[1]])
    return tokens


# Pooling, and the norm before or after it.


def pooled_plainly(tokens: torch.Tensor, pooling: str) -> torch.Tensor:
    patches = sum(tokens[:, index] for index in range(PREFIX, tokens.shape[1])) / (tokens.shape[1] - PREFIX)
    every = sum(tokens[:, index] for index in range(tokens.shape[1])) / tokens.shape[1]
    return {
        "cls": tokens[:, 0],
        "mean": patches,
        "mean of all": every,
        "cls and mean": torch.cat([tokens[:, 0], patches], 1),
        "cls and distillation": torch.cat([tokens[:, 0], tokens[:, 1]], 1),
    }[pooling]


@pytest.mark.parametrize("final_norm", FINAL_NORMS)
@pytest.mark.parametrize("pooling", [pooling for pooling in POOLINGS if pooling != "attention"])
def test_pooling_and_final_norm(make_network: MakeNetwork, pooling: str, final_norm: str) -> None:
    network = make_network(**TOKENS, pooling=pooling, final_norm=final_norm)
    images = pixels()
    tokens = last_tokens(network, images)
    if final_norm == "before pooling":
        tokens = plain_norm(tokens, network.norm)
    pooled = pooled_plainly(tokens, pooling)
    if final_norm == "after pooling":
        pooled = plain_norm(pooled, network.norm)
    close(network(images), plain_linear(pooled, network.classifier))
    assert network.config.features == pooled.shape[1]
    assert ("norm.weight" in network.state_dict()) == (final_norm != "none")


@pytest.mark.parametrize("final_norm", FINAL_NORMS)
def test_attention_pooling_is_what_one_learned_query_attends_to(make_network: MakeNetwork, final_norm: str) -> None:
    network = make_network(**TOKENS, pooling="attention", final_norm=final_norm)
    images = pixels()
    tokens = last_tokens(network, images)
    if final_norm == "before pooling":
        tokens = plain_norm(tokens, network.norm)
    # Only patches: SigLIP has no other tokens, and timm ignores the others.
    patches, pooler = tokens[:, PREFIX:], network.pooler
    assert isinstance(pooler, AttentionPooling)
    query = plain_linear(pooler.probe, pooler.query)
    keys, values = plain_linear(patches, pooler.key_value).split(32, -1)
    context = torch.empty(2, 32)
    for image in range(2):
        for head in range(4):
            columns = slice(head * 8, head * 8 + 8)
            scores = (keys[image, :, columns] @ query[columns] / math.sqrt(8)).exp()
            context[image, columns] = (scores / scores.sum()) @ values[image, :, columns]
    pooled = plain_linear(context, pooler.projection)
    hidden = plain_linear(plain_norm(pooled, pooler.mlp_norm), pooler.mlp[0])
    pooled = pooled + plain_linear(ACTIVATIONS["gelu"](hidden), pooler.mlp[2])
    if final_norm == "after pooling":
        pooled = plain_norm(pooled, network.norm)
    close(network(images), plain_linear(pooled, network.classifier))


# MLPs.

FORMULAS: dict[str, Callable[[float], float]] = {
    "gelu": lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2,
    "gelu tanh": lambda x: x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "quick gelu": lambda x: x / (1 + math.exp(-1.702 * x)),
    "silu": lambda x: x / (1 + math.exp(-x)),
    "relu": lambda x: max(x, 0.0),
}


def by_formula(values: torch.Tensor, activation: str) -> torch.Tensor:
    formula = FORMULAS[activation]
    return torch.tensor([formula(value) for value in values.flatten().tolist()]).reshape(values.shape)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_an_activation_is_its_formula(activation: str) -> None:
    values = torch.linspace(-6, 6, 101)
    torch.testing.assert_close(ACTIVATIONS[activation](values), by_formula(values, activation), rtol=0, atol=2e-6)
    others = [name for name in ACTIVATIONS if name != activation]
    assert all((ACTIVATIONS[name](values) - ACTIVATIONS[activation](values)).abs().max() > 1e-4 for name in others)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_an_mlp_follows_its_formula_with_and_without_a_gate(
    make_network: MakeNetwork, activation: str, gated: bool
) -> None:
    network = make_network(activation=activation, gated_mlp=gated, depth=1)
    mlp = network.encoder[0].mlp
    with record_calls(mlp) as calls:
        network(pixels())
    inputs, output = calls[0]
    hidden = plain_linear(inputs, mlp[0])
    if gated:
        gate, values = hidden[..., :64], hidden[..., 64:]
        hidden = by_formula(gate, activation) * values
    else:
        hidden = by_formula(hidden, activation)
    assert hidden.shape[-1] == network.config.mlp_width == 64
    close(output, plain_linear(hidden, mlp[2]))


# Attention.


def plain_weights(network: VisionTransformer, inputs: torch.Tensor, scale: float) -> torch.Tensor:
    """Attention weights of the first layer, head by head."""
    config, attention = network.config, network.encoder[0].attention
    inner = config.heads * config.head_width
    projected = plain_linear(inputs, attention.qkv)
    weights = []
    for head in range(config.heads):
        first = head * config.head_width
        queries, keys = (projected[..., start + first :][..., : config.head_width] for start in (0, inner))
        if config.query_key_norm:
            queries, keys = plain_norm(queries, attention.query_norm), plain_norm(keys, attention.key_norm)
        scores = (queries @ keys.mT * scale).double().exp()
        weights.append(scores / scores.sum(-1, keepdim=True))
    return torch.stack(weights, 1).float()


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("scale", [None, 1.0, 0.07])
def test_scale_and_norms_of_queries_and_keys(make_network: MakeNetwork, scale: float | None, norm: bool) -> None:
    network = make_network(attention_scale=scale, query_key_norm=norm, depth=1)
    images = pixels()
    attention = network.encoder[0].attention
    with record_calls(attention) as calls, record_calls(attention.projection) as projected:
        logits, weights = network(images, need_weights=True)
    inputs, attended = calls[0]
    expected = plain_weights(network, inputs, 8**-0.5 if scale is None else scale)
    close(weights[0], expected)
    values = plain_linear(inputs, attention.qkv)[..., 64:].unflatten(-1, (4, 8)).transpose(1, 2)
    context = expected @ values
    close(attended.context, context[:, :, :1])
    close(attended.values, values)
    close(projected[0][1], plain_linear(context.transpose(1, 2).flatten(2)[:, :1], attention.projection))
    encoding = network.encode(images)
    close(encoding.traces[1].weights(0), expected[1])
    attention.fused = False
    close(network(images), logits)


def test_rotary_positions_turn_queries_and_keys_by_the_place_of_their_patch(make_network: MakeNetwork) -> None:
    network = make_network(rotary=True, depth=1)
    assert "positions" not in network.state_dict() and network.periods.shape == (2,)
    network.periods.copy_(torch.tensor([1.0, 3.0]))
    images = pixels()
    _, weights = network(images, need_weights=True)
    inputs = plain_norm(network.embed(images)[0], network.encoder[0].attention_norm)
    projected = plain_linear(inputs, network.encoder[0].attention.qkv)
    queries, keys = (projected[..., start : start + 32].unflatten(-1, (4, 8)).transpose(1, 2) for start in (0, 32))
    rotated = []
    for vectors in (queries, keys):
        vectors = vectors.clone()
        for patch in range(24):
            row, column = divmod(patch, 6)
            places = ((2 * row + 1) / 4 - 1, (2 * column + 1) / 6 - 1)
            angles = torch.tensor([2 * math.pi * place / period for place in places for period in (1.0, 3.0)])
            first, second = vectors[:, :, 1 + patch, :4].clone(), vectors[:, :, 1 + patch, 4:].clone()
            vectors[:, :, 1 + patch, :4] = first * angles.cos() - second * angles.sin()
            vectors[:, :, 1 + patch, 4:] = second * angles.cos() + first * angles.sin()
        rotated.append(vectors)
    close(weights[0], (rotated[0] @ rotated[1].mT / math.sqrt(8)).softmax(-1))


# Before the first layer.


@pytest.mark.parametrize("pre_norm", [False, True])
@pytest.mark.parametrize("patch_norms", [False, True])
def test_norms_of_patches_and_of_tokens(make_network: MakeNetwork, patch_norms: bool, pre_norm: bool) -> None:
    network = make_network(patch_norms=patch_norms, pre_norm=pre_norm, register_tokens=1)
    images = pixels()
    rows = []
    for row in range(4):
        for column in range(6):
            patch = images[:, :, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4].flatten(1)
            if patch_norms:
                patch = plain_norm(patch, network.patch_norms[0])
            patch = plain_linear(patch, network.patch_embedding)
            if patch_norms:
                patch = plain_norm(patch, network.patch_norms[1])
            rows.append(patch + network.positions[row, column])
    tokens = torch.cat([network.prefix_tokens.expand(2, 2, 32), torch.stack(rows, 1)], 1)
    if pre_norm:
        tokens = plain_norm(tokens, network.pre_norm)
    close(network.embed(images)[0], tokens)


@pytest.mark.parametrize("rule", ["reading order", "fixed", "bilinear corners"])
def test_the_rule_of_positions_is_the_configuration_s(make_network: MakeNetwork, rule: str) -> None:
    network = make_network(position_rule=rule)
    if rule == "fixed":
        with pytest.raises(ImageError, match="no rule for others"):
            network(pixels(8, 24))
        return
    for parameter in (network.patch_embedding.weight, network.patch_embedding.bias):
        parameter.zero_()
    positions = network.embed(pixels(8, 12))[0][0, 1:].unflatten(0, (2, 3))
    if rule == "reading order":
        close(positions, network.positions.flatten(0, 1)[:6].unflatten(0, (2, 3)))
    else:
        # Corners stay corners.
        close(positions[:, ::2], network.positions[::3, ::5])


# After pooling.


@pytest.mark.parametrize("classes", [0, 5])
@pytest.mark.parametrize("projection", [0, 6])
@pytest.mark.parametrize("representation", [0, 10])
def test_representation_projection_and_classifier(
    make_network: MakeNetwork, representation: int, projection: int, classes: int
) -> None:
    network = make_network(representation_width=representation, projection_width=projection, classes=classes)
    images = pixels()
    features = plain_norm(last_tokens(network, images), network.norm)[:, 0]
    if representation:
        features = torch.tanh(plain_linear(features, network.representation[0]))
    if projection:
        assert network.projection.bias is None
        features = features @ network.projection.weight.T
    assert network.config.features == features.shape[1] == (projection or representation or 32)
    close(network(images), plain_linear(features, network.classifier) if classes else features)


# Switching heads off.


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(("layer", "head"), [(0, 0), (1, 3), (2, 1)])
def test_a_mask_of_zero_switches_a_head_off(make_network: MakeNetwork, layer: int, head: int, fused: bool) -> None:
    network, images = make_network(), pixels()
    for each in network.encoder:
        each.attention.fused = fused
    mask = torch.ones(3, 4)
    mask[layer, head] = 0
    masked, weights = network(images, need_weights=True, head_mask=mask)
    logits, every = network(images, need_weights=True)
    assert torch.equal(network(images, head_mask=mask), masked)
    # The head adds nothing to the output projection.
    network.encoder[layer].attention.projection.weight[:, 8 * head : 8 * head + 8] = 0
    close(masked, network(images))
    assert (masked - logits).abs().max() > 1e-3
    assert weights[layer][:, head].abs().max() == 0
    other_heads = [index for index in range(4) if index != head]
    for before in range(layer + 1):
        close(weights[before][:, other_heads], every[before][:, other_heads])
    # Later layers see other tokens, and their rows still sum to 1.
    for after in weights[layer + 1 :]:
        close(after.sum(-1), torch.ones(after.shape[:-1]))


@pytest.mark.parametrize("shape", [(4,), (4, 3), (3, 4, 1), (1, 4), (3, 1), ()])
def test_a_mask_of_another_shape_is_refused(make_network: MakeNetwork, shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=r"head mask of shape .*: expected 'layer head', \(3, 4\)"):
        make_network()(pixels(), head_mask=torch.ones(shape))


# Impossible settings.

BAD: list[tuple[dict[str, Any], str]] = [
    ({"pooling": "max"}, "pooling = 'max': expected 'cls', 'mean'"),
    ({"pooling": "cls and distillation"}, "needs distillation_token = True"),
    ({"pooling": "cls and mean", "cls_token": False}, "needs cls_token = True"),
    ({"final_norm": "first"}, "final_norm = 'first': expected 'before pooling'"),
    ({"activation": "tanh"}, "activation = 'tanh': expected 'gelu'"),
    ({"position_rule": "cubic"}, "position_rule = 'cubic': expected"),
    ({"attention_scale": 0.0}, "attention_scale = 0.0: expected a finite number above 0 or None"),
    ({"attention_scale": math.nan}, "attention_scale = nan"),
    ({"attention_scale": True}, "attention_scale = True"),
    ({"rotary": True, "head_width": 6}, "head_width = 6: rotary positions need a multiple of 4"),
    ({"pooling": "attention", "heads": 5}, "width = 32: attention pooling needs a multiple of heads = 5"),
    ({"representation_width": -1}, "representation_width = -1: expected a whole number of at least 0"),
    ({"projection_width": 1.5}, "projection_width = 1.5"),
    *[
        ({name: 1}, f"{name} = 1: expected True or False")
        for name in ("gated_mlp", "rotary", "pre_norm", "patch_norms")
    ],
    ({"query_key_norm": None}, "query_key_norm = None: expected True or False"),
]


@pytest.mark.parametrize(("changes", "sentence"), BAD)
def test_an_impossible_setting_is_refused(make_network: MakeNetwork, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_network(**changes)
    assert sentence in str(caught.value)
