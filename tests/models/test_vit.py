"""One Vision Transformer for every family, against a plain one written from the formulas."""

from typing import Any

import numpy as np
import pytest
import torch

from tests.support.makers import MakeNetwork
from tests.support.plain import plain
from tests.support.vit import pixels_for
from vitviz.errors.kinds import ImageError
from vitviz.models.activations import ACTIVATIONS
from vitviz.models.config import FINAL_NORMS
from vitviz.models.pooling import POOLINGS

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
SIZES = ((16, 24, 4, 4), (18, 8, 6, 2), (16, 16, 4, 4), (4, 4, 4, 4))


def draw(random: np.random.Generator) -> dict[str, Any]:
    """Settings of a network."""

    def one_of(*choices: Any) -> Any:
        return choices[random.integers(len(choices))]

    pooling, switches = one_of(*POOLINGS), ("qkv_bias", "gated_mlp", "query_key_norm", "patch_norms", "pre_norm")
    prefix = {"cls_token": "cls" in pooling or one_of(True, False)}
    prefix |= {"distillation_token": "distillation" in pooling or one_of(True, False)}
    heads = one_of({"heads": 4, "head_width": 8}, {"heads": 1, "head_width": 32}, {"heads": 2, "head_width": 20})
    representation = one_of({}, {"representation_width": 10}, {"projection_width": 6}, {"classes": 0})
    size = dict(zip(("image_height", "image_width", "patch_height", "patch_width"), one_of(*SIZES), strict=True))
    return {
        **{"pooling": pooling, "final_norm": one_of(*FINAL_NORMS), "activation": one_of(*ACTIVATIONS)},
        **{"register_tokens": one_of(0, 2), "depth": one_of(1, 3), "channels": one_of(1, 3)},
        **{"attention_scale": one_of(None, 1.0, 0.07), "norm_epsilon": one_of(1e-6, 0.1)},
        **{switch: one_of(True, False) for switch in switches},
        "rotary": one_of(True, False, False),
        **{**prefix, **heads, **representation, **size},
    }


@pytest.mark.parametrize("seed", range(60))
def test_outputs_attention_and_gradients_are_those_of_the_formulas(make_network: MakeNetwork, seed: int) -> None:
    """Fused or not, in chunks or not, whether weights, traces or gradients are asked for or not."""
    random = np.random.default_rng(seed)
    network = make_network(**draw(random)).double()
    pixels = pixels_for(network).double().requires_grad_()
    mask = torch.rand(network.config.depth, network.config.heads).round() if seed % 3 == 0 else None
    expected = plain(network, pixels.detach(), mask)
    for layer in network.encoder:
        layer.attention.fused, layer.mlp_chunk_tokens = bool(seed % 2), int(random.choice([1, 4, 1000]))
    with torch.no_grad():
        output, weights = network(pixels, need_weights=True, head_mask=mask)
        assert output.shape == (2, network.config.classes or network.config.features)
        torch.testing.assert_close(output, expected.output, atol=1e-10, rtol=0)
        for found, matrix in zip(weights, expected.weights, strict=True):
            torch.testing.assert_close(found, matrix, atol=1e-10, rtol=0)
        assert torch.equal(network(pixels, head_mask=mask), output)
        if mask is None:
            encoding = network.encode(pixels)
            assert torch.equal(encoding.logits, output)
            for image, trace in enumerate(encoding.traces):
                for layer, matrix in enumerate(expected.weights):
                    torch.testing.assert_close(trace.weights(layer), matrix[image], atol=1e-10, rtol=0)
    network.requires_grad_(True)
    inputs = {"pixels": pixels, **{name: each for name, each in network.named_parameters() if name != "periods"}}
    direction = torch.randn_like(output)
    found, wanted = (
        torch.autograd.grad((each * direction).sum(), list(inputs.values()), allow_unused=True, materialize_grads=True)
        for each in (network(pixels, head_mask=mask), plain(network, pixels, mask).output)
    )
    for name, gradient, plain_gradient in zip(inputs, found, wanted, strict=True):
        torch.testing.assert_close(gradient, plain_gradient, atol=1e-8, rtol=1e-8, msg=name)


@every_pooling
@pytest.mark.parametrize("depth", [1, 3])
def test_only_the_classified_tokens_of_the_last_layer_are_computed_and_few_at_a_time(
    make_network: MakeNetwork, changes: dict[str, Any], depth: int
) -> None:
    network = make_network(**changes, depth=depth)
    pixels, counts = pixels_for(network), list[int]()
    tokens = network.config.layout(16, 24).token_count
    for layer in network.encoder:
        layer.mlp.register_forward_hook(lambda module, inputs, output: counts.append(output.shape[1]))
        assert layer.mlp_chunk_tokens > tokens
    for run in (network, network.encode):
        counts.clear()
        run(pixels)
        assert counts == [tokens] * (depth - 1) + [CLASSIFIED_TOKENS.get(network.config.pooling, tokens)]
    counts.clear()
    for layer in network.encoder:
        layer.mlp_chunk_tokens = 7
    network(pixels)
    assert max(counts) <= 7


def test_traces_of_a_network_in_training_hold_no_graph(make_network: MakeNetwork) -> None:
    network = make_network().requires_grad_(True)
    encoding = network.encode(pixels_for(network))
    assert encoding.logits.requires_grad
    trace = encoding.traces[0]
    parts = [trace.queries, trace.keys, *trace.known_log_sums.values(), trace.fused(0), trace.row(2, "patches")]
    assert not any(part.requires_grad for part in parts)


@pytest.mark.parametrize("rule", ["reading order", "fixed", "bilinear corners"])
def test_the_rule_of_positions_is_the_configuration_s(make_network: MakeNetwork, rule: str) -> None:
    network = make_network(position_rule=rule)
    if rule == "fixed":
        with pytest.raises(ImageError, match="no rule for others"):
            network(torch.randn(2, 3, 8, 24))
        return
    for parameter in (network.patch_embedding.weight, network.patch_embedding.bias):
        parameter.zero_()
    positions = network.embed(torch.randn(2, 3, 8, 12))[0][0, 1:].unflatten(0, (2, 3))
    if rule == "reading order":
        assert torch.equal(positions, network.positions.flatten(0, 1)[:6].unflatten(0, (2, 3)))
    else:
        # Corners stay corners.
        torch.testing.assert_close(positions[:, ::2], network.positions[::3, ::5])
