"""One Vision Transformer for every family, against a plain one written with other tools."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.support.makers import MakeNetwork
from tests.support.vit import pixels_for
from vitviz import VisionTransformer, ViTConfig
from vitviz.models import layers
from vitviz.models.layers import linear_from_convolution
from vitviz.models.pooling import Pooling

VARIANTS: dict[str, dict[str, Any]] = {
    "CLS": {},
    "CLS, pooled by mean": {"pooling": "mean"},
    "no CLS": {"cls_token": False, "pooling": "mean"},
    "registers only": {"cls_token": False, "pooling": "mean", "register_tokens": 2},
    "distillation": {"distillation_token": True},
    "five prefix tokens": {"register_tokens": 4},
    "every kind of prefix token, pooled by mean": {
        "distillation_token": True,
        "register_tokens": 2,
        "pooling": "mean",
    },
    "one head": {"heads": 1, "head_width": 32},
    "heads narrower than width / heads": {"head_width": 5},
    "heads wider than width / heads": {"head_width": 16},
    "no classifier": {"classes": 0},
    "no classifier, pooled by mean": {"classes": 0, "pooling": "mean"},
    "no bias of queries, keys and values": {"qkv_bias": False},
    "one channel": {"channels": 1},
    "portrait image, oblong patch": {"image_height": 18, "image_width": 8, "patch_height": 6, "patch_width": 2},
    "square": {"image_width": 16},
    "one patch": {"image_height": 4, "image_width": 4},
    "one layer": {"depth": 1},
    "large epsilon": {"norm_epsilon": 0.1},
}
every_variant = pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)


# The plain reference.


def plain_norm(tokens: torch.Tensor, norm: torch.nn.LayerNorm) -> torch.Tensor:
    centred = tokens - tokens.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight + norm.bias


def plain_attention(tokens: torch.Tensor, layer: Any, config: ViTConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """torch's own multi-head attention where it can do it, loops over images and heads where it cannot."""
    attention, inner = layer.attention, config.heads * config.head_width
    if inner == config.width:
        sequence = tokens.transpose(0, 1)
        context, weights = F.multi_head_attention_forward(
            *(sequence, sequence, sequence, inner, config.heads, attention.qkv.weight, attention.qkv.bias),
            *(None, None, False, 0.0, attention.projection.weight, attention.projection.bias),
            training=False,
            need_weights=True,
            average_attn_weights=False,
        )
        return context.transpose(0, 1), weights
    weights = torch.empty(len(tokens), config.heads, tokens.shape[1], tokens.shape[1])
    joined = torch.empty(len(tokens), tokens.shape[1], inner)
    for image in range(len(tokens)):
        for head in range(config.heads):
            vectors = []
            for index in range(3):
                first = index * inner + head * config.head_width
                rows = slice(first, first + config.head_width)
                vectors.append(tokens[image] @ attention.qkv.weight[rows].T + attention.qkv.bias[rows])
            scores = (vectors[0] @ vectors[1].T / math.sqrt(config.head_width)).exp()
            weights[image, head] = scores / scores.sum(1, keepdim=True)
            columns = slice(head * config.head_width, (head + 1) * config.head_width)
            joined[image, :, columns] = weights[image, head] @ vectors[2]
    return joined @ attention.projection.weight.T + attention.projection.bias, weights


def plain_forward(network: VisionTransformer, pixels: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    config = network.config
    patch = (config.patch_height, config.patch_width)
    kernel = network.patch_embedding.weight.reshape(config.width, config.channels, *patch)
    planes = F.conv2d(pixels, kernel, network.patch_embedding.bias, stride=patch)
    prefix_count = config.cls_token + config.distillation_token + config.register_tokens
    sequences = []
    for image in range(len(pixels)):
        rows = [network.prefix_tokens[number] for number in range(prefix_count)]
        for row in range(planes.shape[2]):
            for column in range(planes.shape[3]):
                rows.append(planes[image, :, row, column] + network.positions[row, column])
        sequences.append(torch.stack(rows))
    tokens = torch.stack(sequences)
    all_weights = []
    for layer in network.layers:
        context, weights = plain_attention(plain_norm(tokens, layer.attention_norm), layer, config)
        tokens = tokens + context
        hidden = plain_norm(tokens, layer.mlp_norm) @ layer.mlp[0].weight.T + layer.mlp[0].bias
        hidden = hidden * 0.5 * (1 + torch.erf(hidden / math.sqrt(2)))
        tokens = tokens + hidden @ layer.mlp[2].weight.T + layer.mlp[2].bias
        all_weights.append(weights)
    tokens = plain_norm(tokens, network.norm)
    pooled = tokens[:, 0] if config.pooling == "cls" else tokens[:, prefix_count:].mean(1)
    if not config.classes:
        return pooled, all_weights
    return pooled @ network.classifier.weight.T + network.classifier.bias, all_weights


@every_variant
def test_logits_and_attention_equal_the_plain_reference(make_network: MakeNetwork, changes: dict[str, Any]) -> None:
    network = make_network(**changes)
    pixels = pixels_for(network)
    logits, weights = network(pixels, need_weights=True)
    expected_logits, expected_weights = plain_forward(network, pixels)
    assert logits.shape == (2, network.config.classes or network.config.width)
    torch.testing.assert_close(logits, expected_logits, atol=1e-5, rtol=1e-5)
    for found, expected in zip(weights, expected_weights, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("channels", "height", "width"), [(3, 4, 4), (1, 2, 6), (3, 7, 3)])
def test_a_patch_convolution_is_the_linear_patch_embedding(
    make_network: MakeNetwork, channels: int, height: int, width: int
) -> None:
    sizes = {"image_height": 2 * height, "image_width": 3 * width, "patch_height": height, "patch_width": width}
    network = make_network(channels=channels, cls_token=False, pooling="mean", **sizes)
    convolution = torch.nn.Conv2d(channels, network.config.width, (height, width), stride=(height, width))
    network.patch_embedding.weight.copy_(linear_from_convolution(convolution.weight))
    network.patch_embedding.bias.copy_(convolution.bias)
    network.positions.zero_()
    pixels = pixels_for(network)
    tokens, _ = network.embed(pixels)
    torch.testing.assert_close(tokens, convolution(pixels).flatten(2).transpose(1, 2), atol=1e-5, rtol=1e-5)


# need_weights.


@every_variant
@pytest.mark.parametrize("fused", [True, False])
def test_logits_are_the_same_bits_with_and_without_weights_and_traces(
    make_network: MakeNetwork, changes: dict[str, Any], fused: bool
) -> None:
    network = make_network(**changes)
    for layer in network.encoder:
        layer.attention.fused = fused
    pixels = pixels_for(network)
    logits = network(pixels)
    assert torch.equal(logits, network(pixels, need_weights=True)[0])
    assert torch.equal(logits, network.encode(pixels).logits)


# Tokens that are not computed, and computation in chunks.

POOLED: dict[str, dict[str, Any]] = {
    "cls": {"register_tokens": 2},
    "mean": {"pooling": "mean"},
    "mean of all": {"pooling": "mean of all", "register_tokens": 1},
    "cls and mean": {"pooling": "cls and mean"},
    "cls and distillation": {"pooling": "cls and distillation", "distillation_token": True, "register_tokens": 1},
    "attention": {"pooling": "attention", "cls_token": False},
    "norm after pooling": {"pooling": "mean", "final_norm": "after pooling"},
    "CLS, norm after pooling": {"final_norm": "after pooling"},
}
every_pooling = pytest.mark.parametrize("changes", POOLED.values(), ids=POOLED)
CLASSIFIED_TOKENS = {"cls": 1, "cls and distillation": 2}


def heads_off(network: VisionTransformer) -> torch.Tensor:
    """A head mask that is different in every layer, the last one included."""
    return torch.rand(network.config.depth, network.config.heads).round(decimals=1)


@every_pooling
@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("masked", [False, True], ids=["", "head mask"])
def test_only_the_classified_tokens_of_the_last_layer_are_computed(
    make_network: MakeNetwork, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], depth: int, masked: bool
) -> None:
    network = make_network(**changes, depth=depth)
    pixels, mask = pixels_for(network), heads_off(network) if masked else None
    counts: list[int] = []
    for layer in network.encoder:
        layer.mlp.register_forward_hook(lambda module, inputs, output: counts.append(output.shape[1]))
    logits, weights = network(pixels, need_weights=True, head_mask=mask)
    traces = network.encode(pixels).traces
    tokens = traces[0].layout.token_count
    per_pass = [tokens] * (depth - 1) + [CLASSIFIED_TOKENS.get(network.config.pooling, tokens)]
    assert counts == 2 * per_pass
    # The trace has all queries and keys nevertheless.
    assert all(layer.shape == (2, 4, tokens, tokens) for layer in weights)
    assert all(trace.queries.shape == (depth, 4, tokens, 8) for trace in traces)
    monkeypatch.setattr(Pooling, "tokens_read", lambda self, layout: layout.token_count)
    counts.clear()
    all_logits, all_weights = network(pixels, need_weights=True, head_mask=mask)
    assert counts == [tokens] * depth
    torch.testing.assert_close(logits, all_logits, atol=1e-5, rtol=1e-5)
    for found, expected in zip(weights, all_weights, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    for trace, expected_trace in zip(traces, network.encode(pixels).traces, strict=True):
        torch.testing.assert_close(trace.queries, expected_trace.queries, atol=1e-4, rtol=1e-5)
        torch.testing.assert_close(trace.keys, expected_trace.keys, atol=1e-4, rtol=1e-5)


@every_pooling
@pytest.mark.parametrize("size", [1, 7, 16, 1000])
def test_the_mlp_may_run_on_a_few_tokens_at_a_time(
    make_network: MakeNetwork, changes: dict[str, Any], size: int
) -> None:
    network = make_network(**changes)
    pixels, mask = pixels_for(network), heads_off(network)
    with torch.no_grad():
        expected, expected_trace = network(pixels, head_mask=mask), network.encode(pixels).traces[1]
        for layer in network.encoder:
            assert layer.mlp_chunk_tokens > expected_trace.layout.token_count
            layer.mlp_chunk_tokens = size
        counts: list[int] = []
        network.encoder[0].mlp.register_forward_hook(lambda module, inputs, output: counts.append(output.shape[1]))
        logits = network(pixels, head_mask=mask)
        tokens = expected_trace.layout.token_count
        assert sum(counts) == tokens and max(counts) <= size
        torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
        trace = network.encode(pixels).traces[1]
    torch.testing.assert_close(trace.queries, expected_trace.queries, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(trace.keys, expected_trace.keys, atol=1e-4, rtol=1e-5)


@every_pooling
def test_gradients_flow_through_everything_that_inference_skips(
    make_network: MakeNetwork, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    """Fused kernel and short last layer have the gradients of materialised weights and all tokens."""
    monkeypatch.setattr(layers, "mlp_chunk_tokens", lambda config: 4)
    network = make_network(**changes).double()
    pixels = pixels_for(network).double().requires_grad_()
    with torch.no_grad():
        expected = network(pixels)
    network.requires_grad_(True)
    direction = torch.randn_like(expected)

    def gradients_of_logits() -> list[torch.Tensor]:
        logits = network(pixels)
        torch.testing.assert_close(logits.detach(), expected, atol=1e-10, rtol=0)
        inputs = [pixels, *network.parameters()]
        return list(torch.autograd.grad((logits * direction).sum(), inputs))

    gradients = gradients_of_logits()
    monkeypatch.setattr(Pooling, "tokens_read", lambda self, layout: layout.token_count)
    for layer in network.encoder:
        layer.attention.fused = False
    materialised = gradients_of_logits()
    names = ["pixels", *(name for name, _ in network.named_parameters())]
    for name, gradient, expected_gradient in zip(names, gradients, materialised, strict=True):
        assert not gradient.numel() or gradient.abs().max() > 0, name
        torch.testing.assert_close(gradient, expected_gradient, atol=1e-8, rtol=1e-8)
    # A small step changes the logits as the gradients predict.
    step = 1e-6 * torch.randn_like(pixels)
    with torch.no_grad():
        change = float(((network(pixels + step) - network(pixels - step)) * direction).sum())
    assert change == pytest.approx(2 * float((gradients[0] * step).sum()), rel=1e-4)


def test_traces_of_a_network_in_training_hold_no_graph(make_network: MakeNetwork) -> None:
    network = make_network().requires_grad_(True)
    encoding = network.encode(pixels_for(network))
    assert encoding.logits.requires_grad
    trace = encoding.traces[0]
    assert not trace.queries.requires_grad and not trace.keys.requires_grad
    with torch.no_grad():
        expected = network.encode(pixels_for(network)).traces[0]
    assert all(not sums.requires_grad for sums in [*trace.known_log_sums.values(), *expected.known_log_sums.values()])
    assert not trace.fused(0).requires_grad and not trace.row(2, "patches").requires_grad


POOLED = "'cls', 'mean', 'mean of all', 'cls and mean', 'cls and distillation' or 'attention'"
