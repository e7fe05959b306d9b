"""The gradient as attention weakens is that of a slow network whose scores have a bias of each key."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from einops import rearrange

from tests.support.makers import MakeModel
from tests.support.pictures import photo
from vitviz import VisionTransformer, analyze
from vitviz.attention.softmax import attention_weights
from vitviz.models.attention_gradients import attention_gradients
from vitviz.models.positions import rotate


def slow_logits(network: VisionTransformer, pixels: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """The logits with a number added to the scores of each patch; minus infinity for one that is covered."""
    tokens, layout = network.embed(pixels)
    angles = network.angles(layout)
    columns = torch.cat([torch.zeros(layout.prefix_count), bias])
    for layer, _ in network.steps(layout):
        qkv = layer.attention.qkv(layer.attention_norm(tokens))
        queries, keys, values = rearrange(
            qkv, "1 token (part head dim) -> part 1 head token dim", part=3, head=network.config.heads
        )
        if angles is not None:
            queries, keys = rotate(queries, angles), rotate(keys, angles)
        weights = attention_weights(queries, keys, layer.attention.scale, columns.expand(len(columns), -1))
        tokens = layer.residual_mlp(tokens, weights @ values)
    return network.read(tokens[:, : network.tokens_read(layout)], layout)


@pytest.mark.parametrize("changes", [{}, {"register_tokens": 2}, {"rotary": True}], ids=str)
@pytest.mark.parametrize("covered", [(), (0, 5, 23)], ids=["whole", "covered"])
def test_the_gradient_is_that_of_a_bias_of_the_scores(
    make_model: MakeModel, changes: dict[str, Any], covered: tuple[int, ...]
) -> None:
    analysis = analyze(photo(), make_model(**changes))
    network, pixels = analysis.network, analysis.prepared.pixels
    assert isinstance(network, VisionTransformer)
    found = attention_gradients(network, pixels, covered, lambda logits: logits[0, 1])
    assert found.shape == (24,)
    bias = torch.zeros(24).index_fill(0, torch.tensor(covered, dtype=torch.long), -torch.inf).requires_grad_()
    [expected] = torch.autograd.grad(slow_logits(network, pixels, bias)[0, 1], bias)
    torch.testing.assert_close(found, expected)
    assert found.count_nonzero() == 24 - len(covered)
