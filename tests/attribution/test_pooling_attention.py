"""The attention of attention pooling, in models with neither a CLS token nor a plain mean."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import vitviz
from tests.support.makers import MakeNetwork
from vitviz import METHODS, Model, VisionTransformer
from vitviz.attention import softmax
from vitviz.attribution import gradient_rollout, pooling_attention, relevance
from vitviz.errors.kinds import MethodError, QueryError
from vitviz.models.gradients import trace_gradients

POOLED = {"cls_token": False, "pooling": "attention"}
VARIANTS: list[dict[str, Any]] = [
    POOLED,
    {**POOLED, "register_tokens": 2},
    {"pooling": "attention"},
    {**POOLED, "final_norm": "none"},
    {**POOLED, "final_norm": "after pooling"},
    {**POOLED, "heads": 1, "head_width": 32},
]


@pytest.fixture(params=VARIANTS, ids=str)
def network(request: pytest.FixtureRequest, make_network: MakeNetwork) -> VisionTransformer:
    torch.manual_seed(2)
    return make_network(**request.param)


def test_pooling_attention_is_the_weights_of_the_pooler(network: VisionTransformer) -> None:
    pixels = torch.randn(2, 3, 16, 24)
    pooled: list[torch.Tensor] = []
    network.pooler.register_forward_pre_hook(lambda module, inputs: pooled.append(inputs[0]))
    encoding = network.encode(pixels)
    layout = network.config.layout(16, 24)
    pooler, heads = network.pooler, network.config.heads
    query = pooler.query(pooler.probe).view(heads, -1)
    keys = pooler.key_value(pooled[0]).chunk(2, -1)[0].unflatten(-1, (heads, -1))
    expected = (torch.einsum("hd,bkhd->bhk", query, keys) / query.shape[-1] ** 0.5).softmax(-1)
    for image, trace in enumerate(encoding.traces):
        assert trace.pooled is not None and not trace.pooled[:, : layout.prefix_count].any()
        torch.testing.assert_close(trace.pooled[:, layout.prefix_count :], expected[image])
        for head in range(heads):
            torch.testing.assert_close(pooling_attention(trace, head).values, layout.grid(trace.pooled[head]))
        torch.testing.assert_close(pooling_attention(trace).values, layout.grid(trace.pooled.mean(0)))
        torch.testing.assert_close(pooling_attention(trace, "max").values, layout.grid(trace.pooled.amax(0)))
        assert float(pooling_attention(trace).values.sum()) == pytest.approx(1, abs=1e-5)
        assert f"after layer {network.config.depth - 1} of" in pooling_attention(trace).description


def materialised(
    network: VisionTransformer, pixels: torch.Tensor, target: int
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """``A ⊙ ∂y/∂A`` by plain autograd through every matrix: of the layers, ``"head query key"``, and of the pooling.

    The pooling's is ``"head token"`` of all tokens.
    """
    tokens, layout = network.embed(pixels)
    config, pooler, matrices = network.config, network.pooler, []
    for layer in network.encoder:
        attended = layer.attend(tokens, network.angles(layout), layout.token_count)
        matrices.append((attended.queries @ attended.keys.mT * network.scale).softmax(-1).requires_grad_())
        tokens = layer.residual_mlp(tokens, matrices[-1] @ attended.values)
    normed = network.norm(tokens) if config.final_norm == "before pooling" else tokens
    key_value = pooler.key_value(normed[0, layout.prefix_count :]).chunk(2, -1)
    keys, values = (tensor.unflatten(-1, (config.heads, -1)).transpose(0, 1) for tensor in key_value)
    query = pooler.query(pooler.probe).view(config.heads, 1, -1)
    pooling = (query @ keys.mT / query.shape[-1] ** 0.5).softmax(-1)
    pooled = pooler.projection((pooling @ values).flatten())
    pooled = pooled + pooler.mlp(pooler.mlp_norm(pooled))
    score = network.classifier(network.norm(pooled) if config.final_norm == "after pooling" else pooled)[target]
    *layers, pooling_relevance = [
        (each * gradient).detach()
        for each, gradient in zip((*matrices, pooling), torch.autograd.grad(score, [*matrices, pooling]), strict=True)
    ]
    return [layer[0] for layer in layers], torch.nn.functional.pad(pooling_relevance[:, 0], (layout.prefix_count, 0))


@pytest.mark.parametrize("chunk_bytes", [1, 2**22])
def test_relevance_and_gradient_rollout_start_from_the_pooling_query(
    network: VisionTransformer, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are products of materialised matrices, with the row of the pooling's query last."""
    monkeypatch.setattr(softmax, "CHUNK_BYTES", chunk_bytes)
    network = network.double()
    for layer in network.encoder:
        layer.attention.qkv.weight.mul_(4)
    network.pooler.key_value.weight.mul_(4)
    pixels = torch.randn(1, 3, 16, 24, dtype=torch.float64)
    # The first class with positive relevance in the mean of the heads.
    asked_about = ((target, *materialised(network, pixels, target)) for target in range(network.config.classes))
    target, layers, pooling = next(each for each in asked_about if each[2].mean(0).amax() > 1e-4)
    trace = trace_gradients(network, pixels, target)
    assert trace.pooled is not None and pooling.amin() < -1e-4 and pooling.amax() > 1e-4
    torch.testing.assert_close(trace.pooled, pooling, atol=1e-10, rtol=0)
    layout, identity = trace.layout, torch.eye(trace.layout.token_count, dtype=torch.float64)
    for start, residual in ((0, 0.5), (1, 0.2)):
        relevances, shares = pooling.clamp(min=0).mean(0), pooling.mean(0).clamp(min=0)
        shares = shares / shares.sum()
        for layer in reversed(layers[start:]):
            relevances = relevances @ (identity + layer.clamp(min=0).mean(0))
            step = (1 - residual) * layer.mean(0).clamp(min=0) + residual * identity
            shares = shares @ (step / step.sum(-1, keepdim=True))
        maps = (relevance(trace, None, start), gradient_rollout(trace, 0.0, residual, start))
        for token_map, expected in zip(maps, (relevances, shares), strict=True):
            torch.testing.assert_close(token_map.values, layout.grid(expected), atol=1e-10, rtol=0)
            assert list(token_map.prefix.values()) == pytest.approx(expected[: layout.prefix_count].tolist(), abs=1e-10)
            assert "the pooling query" in token_map.description
    above = trace_gradients(network, pixels, target, -1)
    assert torch.equal(relevance(above).values, relevance(trace, None, -1).values)
    for method in (relevance, gradient_rollout):
        from_patches = method(trace, query="patches")
        assert "the mean patch" in from_patches.description and not torch.allclose(
            from_patches.values, method(trace).values
        )


def test_a_pooling_query_without_evidence_for_a_class_is_reported(make_network: MakeNetwork) -> None:
    found = trace_gradients(make_network(**POOLED), torch.randn(1, 3, 16, 24), 0)
    assert found.pooled is not None
    against = replace(found, pooled=-found.pooled.abs())
    for method in (relevance, gradient_rollout):
        assert not method(against).values.any() and method(found).values.any()
        assert "nothing raises this score" in method(against).description
        assert "nothing raises this score" not in method(found).description
    assert gradient_rollout(against, query=(1, 2)).values.any()


def test_other_models_say_that_they_have_none(bundled: Model, make_network: MakeNetwork) -> None:
    trace = make_network().encode(torch.randn(1, 3, 16, 24)).traces[0]
    assert trace.pooled is None
    with pytest.raises(MethodError, match=r"^pooling_attention: this model does not pool by attention"):
        pooling_attention(trace)
    analysis = vitviz.analyze(torch.zeros(8, 8, 3, dtype=torch.uint8).numpy(), bundled)
    with pytest.raises(MethodError, match=r"^pooling_attention: this model does not pool by attention"):
        analysis.map("pooling_attention")
    assert METHODS["pooling_attention"].refusal(make_network(**POOLED).config) is None


def test_missing_heads_are_refused(make_network: MakeNetwork) -> None:
    trace = make_network(**POOLED).encode(torch.randn(1, 3, 16, 24)).traces[0]
    with pytest.raises(QueryError, match=r"^head 4: this model has heads 0 to 3"):
        pooling_attention(trace, 4)
    with pytest.raises(MethodError, match=r"^head 'sum': expected a number from 0 to 3"):
        pooling_attention(trace, "sum")
