"""The attention of attention pooling, in models with neither a CLS token nor a plain mean."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import vitviz
from tests.support.makers import MakeNetwork
from tests.support.plain import plain
from tests.support.refusals import check_refusals
from vitviz import METHODS, Model, VisionTransformer
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
    encoding, expected = network.encode(pixels), plain(network, pixels).pooling
    layout, heads = network.config.layout(16, 24), network.config.heads
    assert expected is not None
    for image, trace in enumerate(encoding.traces):
        assert trace.pooled is not None and not trace.pooled[:, : layout.prefix_count].any()
        torch.testing.assert_close(trace.pooled[:, layout.prefix_count :], expected[image, :, 0])
        for head in range(heads):
            torch.testing.assert_close(pooling_attention(trace, head).values, layout.grid(trace.pooled[head]))
        torch.testing.assert_close(pooling_attention(trace).values, layout.grid(trace.pooled.mean(0)))
        torch.testing.assert_close(pooling_attention(trace, "max").values, layout.grid(trace.pooled.amax(0)))
        assert float(pooling_attention(trace).values.sum()) == pytest.approx(1, abs=1e-5)
        assert f"after layer {network.config.depth - 1} of" in pooling_attention(trace).description


def test_a_pooling_query_without_evidence_for_a_class_is_reported(make_network: MakeNetwork) -> None:
    found = trace_gradients(make_network(**POOLED), torch.randn(1, 3, 16, 24), 0)
    assert found.pooled is not None
    against = replace(found, pooled=-found.pooled.abs())
    for method in (relevance, gradient_rollout):
        assert not method(against).values.any() and method(found).values.any()
        assert "nothing raises this score" in method(against).description
        assert "nothing raises this score" not in method(found).description
    assert gradient_rollout(against, query=(1, 2)).values.any()


def test_other_models_have_none_and_missing_heads_are_refused(bundled: Model, make_network: MakeNetwork) -> None:
    network, pooled = make_network(), make_network(**POOLED)
    none, trace = (each.encode(torch.randn(1, 3, 16, 24)).traces[0] for each in (network, pooled))
    analysis = vitviz.analyze(torch.zeros(8, 8, 3, dtype=torch.uint8).numpy(), bundled)
    assert none.pooled is None and METHODS["pooling_attention"].refusal(pooled.config) is None
    for call in (lambda: pooling_attention(none), lambda: analysis.map("pooling_attention")):
        check_refusals(MethodError, {"pooling_attention: this model does not pool by attention": call})
    check_refusals(QueryError, {"head 4: this model has heads 0 to 3": lambda: pooling_attention(trace, 4)})
    check_refusals(MethodError, {"head 'sum': expected a number from 0 to 3": lambda: pooling_attention(trace, "sum")})
