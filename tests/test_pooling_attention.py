"""What attention pooling reads, in models that have neither a CLS token nor a plain mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import vitviz
from vitviz import METHODS, Model, VisionTransformer
from vitviz.attribution import pooling_attention, rollout, rollout_matrix
from vitviz.errors import MethodError, QueryError

Make = Callable[..., VisionTransformer]
POOLED = {"cls_token": False, "pooling": "attention"}
VARIANTS: list[dict[str, Any]] = [
    POOLED,
    {**POOLED, "register_tokens": 2},
    {"pooling": "attention"},
    {**POOLED, "final_norm": "none"},
    {**POOLED, "heads": 1, "head_width": 32},
]


@pytest.fixture(params=VARIANTS, ids=str)
def network(request: pytest.FixtureRequest, make_network: Make) -> VisionTransformer:
    torch.manual_seed(2)
    return make_network(**request.param)


def test_its_weights_are_those_with_which_the_pooling_mixes(network: VisionTransformer) -> None:
    pixels = torch.randn(2, 3, 16, 24)
    asked: list[torch.Tensor] = []
    network.pooler.register_forward_pre_hook(lambda module, given: asked.append(given[0]))
    encoding = network.encode(pixels)
    layout = network.config.layout(16, 24)
    pooler, heads = network.pooler, network.config.heads
    query = pooler.query(pooler.probe).view(heads, -1)
    keys = pooler.key_value(asked[0]).chunk(2, -1)[0].unflatten(-1, (heads, -1))
    expected = (torch.einsum("hd,bkhd->bhk", query, keys) / query.shape[-1] ** 0.5).softmax(-1)
    for image, trace in enumerate(encoding.traces):
        assert trace.pooled is not None and not trace.pooled[:, : layout.prefix_count].any()
        torch.testing.assert_close(trace.pooled[:, layout.prefix_count :], expected[image])
        for head in range(heads):
            torch.testing.assert_close(pooling_attention(trace, head).values, layout.grid(trace.pooled[head]))
        torch.testing.assert_close(pooling_attention(trace).values, layout.grid(trace.pooled.mean(0)))
        torch.testing.assert_close(pooling_attention(trace, "max").values, layout.grid(trace.pooled.amax(0)))
        assert float(pooling_attention(trace).values.sum()) == pytest.approx(1, abs=1e-5)


def test_rollout_starts_from_what_is_pooled(network: VisionTransformer) -> None:
    trace = network.encode(torch.randn(1, 3, 16, 24)).traces[0]
    for fusion, ratio in (("mean", 0.0), ("max", 0.5)):
        found = rollout(trace, fusion, ratio)
        expected = trace.pooled.mean(0) @ rollout_matrix(trace, fusion, ratio)
        torch.testing.assert_close(found.values, trace.layout.grid(expected), atol=1e-6, rtol=1e-5)
        assert "the pooling query" in found.description
        asked = rollout(trace, fusion, ratio, query="patches")
        assert "the mean patch" in asked.description and not torch.allclose(asked.values, found.values)


def test_other_models_say_that_they_have_none(bundled: Model, make_network: Make) -> None:
    trace = make_network().encode(torch.randn(1, 3, 16, 24)).traces[0]
    assert trace.pooled is None
    with pytest.raises(MethodError, match=r"^pooling_attention: this model does not pool by attention"):
        pooling_attention(trace)
    analysis = vitviz.analyze(torch.zeros(8, 8, 3, dtype=torch.uint8).numpy(), bundled)
    with pytest.raises(MethodError, match=r"^pooling_attention: this model does not pool by attention"):
        analysis.map("pooling_attention")
    assert METHODS["pooling_attention"].refusal(make_network(**POOLED).config) is None


def test_heads_that_there_are_not_are_refused(make_network: Make) -> None:
    trace = make_network(**POOLED).encode(torch.randn(1, 3, 16, 24)).traces[0]
    with pytest.raises(QueryError, match=r"^head 4: this model has heads 0 to 3"):
        pooling_attention(trace, 4)
    with pytest.raises(MethodError, match=r"^head 'sum': expected a number from 0 to 3"):
        pooling_attention(trace, "sum")
