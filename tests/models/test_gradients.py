"""The gradient through the fused kernel is that of materialised attention, and relevance follows from it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.support.comparison import closeness
from tests.support.makers import MakeNetwork
from tests.support.networks import every_network
from vitviz import TokenLayout, VisionTransformer
from vitviz.attention import softmax as softmax_module
from vitviz.attention.layout import Query
from vitviz.attribution import relevance
from vitviz.errors.kinds import ConfigError, ImageError, MethodError, QueryError
from vitviz.models.gradients import GradientTrace, trace_gradients
from vitviz.models.targets import class_target

close = closeness(tolerance=1e-10)


each_network = every_network(
    "CLS",
    "five prefix tokens",
    "no CLS",
    "CLS and mean",
    "attention pooling",
    "one head",
    "one layer",
    "rotary, QK-norm, gated MLP",
)


def sharp(make_network: MakeNetwork, changes: dict[str, Any]) -> tuple[VisionTransformer, torch.Tensor]:
    """A network whose attention and gradients are far from uniform, in double precision; and an image."""
    network = make_network(**changes).double().requires_grad_(False)
    for layer in network.encoder:
        layer.attention.qkv.weight.mul_(4)
    return network, torch.randn(1, 3, network.config.image_height, network.config.image_width, dtype=torch.float64)


def materialised(
    network: VisionTransformer, pixels: torch.Tensor, target: int
) -> tuple[list[torch.Tensor], list[torch.Tensor], torch.Tensor]:
    """Attention weights and their gradients ``"head query key"`` by plain autograd through every matrix; the score."""
    tokens, layout = network.embed(pixels)
    matrices = []
    for layer in network.encoder:
        attended = layer.attend(tokens, network.angles(layout), layout.token_count)
        weights = (attended.queries @ attended.keys.mT * network.scale).softmax(-1)
        weights = weights.detach().requires_grad_() if not matrices else weights
        weights.retain_grad()
        matrices.append(weights)
        tokens = layer.residual_mlp(tokens, weights @ attended.values)
    score = network.read(tokens, layout)[0, target]
    score.backward()
    gradients = [weights.grad[0] for weights in matrices if weights.grad is not None]
    return [weights[0].detach() for weights in matrices], gradients, score.detach()


def slow_relevance(weights: list[torch.Tensor], gradients: list[torch.Tensor]) -> torch.Tensor:
    """``R ← R + mean_heads(relu(A ⊙ ∂y/∂A)) · R`` from the first layer to the last, starting with the identity."""
    matrix = torch.eye(weights[0].shape[-1], dtype=weights[0].dtype)
    for attention, gradient in zip(weights, gradients, strict=True):
        matrix = matrix + (attention * gradient).clamp(min=0).mean(0) @ matrix
    return matrix


@each_network
@pytest.mark.parametrize("chunk_bytes", [1, 3000, 2**22])
def test_weights_and_gradients_are_those_of_materialised_attention(
    make_network: MakeNetwork, changes: dict[str, Any], chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(softmax_module, "CHUNK_BYTES", chunk_bytes)
    network, pixels = sharp(make_network, changes)
    found = trace_gradients(network, pixels, target=2)
    weights, gradients, score = materialised(network, pixels, 2)
    assert found.score == pytest.approx(float(score), abs=1e-12)
    assert max(gradient.abs().max() for gradient in gradients) > 1e-4
    for layer in range(network.config.depth):
        heads = 0
        for rows, attention, gradient in found.in_chunks(layer):
            close(attention, weights[layer][:, rows])
            close(gradient, gradients[layer][:, rows])
            heads += attention.shape[1]
        assert heads == found.layout.token_count


@each_network
def test_relevance_is_the_row_of_the_matrix_that_transmm_multiplies(
    make_network: MakeNetwork, changes: dict[str, Any]
) -> None:
    network, pixels = sharp(make_network, changes)
    weights, gradients, _ = materialised(network, pixels, 1)
    matrix = slow_relevance(weights, gradients)
    found = trace_gradients(network, pixels, target=1)
    layout = found.layout
    queries: list[Query] = [*layout.prefix, (0, 0), (1, 3), layout.token_count - 1]
    for query in queries:
        token_map = relevance(found, query)
        close(token_map.values.double(), layout.grid(matrix[layout.index(query)]))
        row = matrix[layout.index(query), : layout.prefix_count]
        assert list(token_map.prefix.values()) == pytest.approx(row.tolist(), abs=1e-12)
    mean = matrix[layout.prefix_count :].mean(0)
    close(relevance(found, "patches").values.double(), layout.grid(mean))
    assert (found.pooled is None) == (network.config.pooling != "attention")
    if found.pooled is None:
        explicit = relevance(found, "cls" if "cls" in layout.prefix else "patches")
        assert torch.equal(relevance(found).values, explicit.values)


def test_a_missing_class_or_layer_is_refused(make_network: MakeNetwork) -> None:
    network, pixels = sharp(make_network, {})
    classes = network.config.classes
    for target in (-1, classes):
        with pytest.raises(MethodError, match=rf"^target {target}: this model has classes 0 to {classes - 1}$"):
            trace_gradients(network, pixels, target)
    for start in (3, -4):
        with pytest.raises(QueryError, match=rf"^layer {start}: this model has layers 0 to 2 "):
            trace_gradients(network, pixels, 0, start)
    with pytest.raises(MethodError, match=r"^target 0: this model has no classifier"):
        trace_gradients(make_network(classes=0), pixels.float(), 0)
    with pytest.raises(ImageError, match=r"^2 images: expected one"):
        trace_gradients(network, torch.cat([pixels, pixels]), 0)
    with pytest.raises(QueryError, match="register 9"):
        relevance(trace_gradients(network, pixels, 0), "register 9")


def test_parts_that_contradict_each_other_are_refused() -> None:
    layout, tensors = TokenLayout(("cls",), 1, 2), (torch.zeros(2, 3, 4),)
    trace = GradientTrace(tensors, tensors, tensors, tensors, (None,), 1.0, layout, 0, class_target(0, 1), 0.0)
    with pytest.raises(ConfigError, match=r"gradient trace of \[1, 1, 2, 1, 1\] layers"):
        replace(trace, values=tensors * 2)
    with pytest.raises(ConfigError, match="expected one, 'head token dim' with 3 tokens"):
        replace(trace, keys=(torch.zeros(2, 4, 4),))
    with pytest.raises(ConfigError, match="with 7 tokens"):
        replace(trace, layout=TokenLayout(("cls",), 2, 3))
    for pooled in (torch.zeros(2, 4), torch.zeros(3)):
        with pytest.raises(ConfigError, match=r"^pooled of shape .*: expected 'head token' with 3 tokens$"):
            replace(trace, pooled=pooled)
