"""Attention × values is the weight times the length of what is read, in both kinds of networks."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.support.makers import MakeModel
from tests.support.modules import HEADS, WAYS, OwnViT, explicit_weights, load_own, maps_of, picture
from tests.support.networks import NETWORKS, every_network
from tests.support.plain import plain, queries_keys_values
from tests.support.probes import analysis_of, near
from vitviz import Analysis, AttentionTrace, MethodError, TokenMap, analyze
from vitviz.attribution import METHODS, value_attention


def reference(weights: torch.Tensor, values: torch.Tensor, query: int, head: int | str) -> list[float]:
    """``‖A[i, j] · v_j‖`` of weights ``"head query key"`` and values ``"head token dim"``, number by number."""
    lengths = [
        [
            math.sqrt(sum((float(weight) * float(part)) ** 2 for part in vector))
            for weight, vector in zip(row, vectors, strict=True)
        ]
        for row, vectors in zip(weights[:, query], values, strict=True)
    ]
    if isinstance(head, int):
        return lengths[head]
    fuse = {"mean": lambda column: sum(column) / len(column), "max": max, "min": min}[head]
    return [fuse(column) for column in zip(*lengths, strict=True)]


def tokens_of(token_map: TokenMap) -> torch.Tensor:
    return torch.cat([torch.tensor(list(token_map.prefix.values())), token_map.values.flatten()])


@every_network(*NETWORKS)
def test_it_is_the_length_of_the_weighted_value(make_model: MakeModel, changes: dict[str, Any]) -> None:
    analysis = analysis_of(make_model, **changes)
    network, layout = analysis.model.network, analysis.trace.layout
    found = plain(network, analysis.prepared.pixels)
    for layer in range(analysis.trace.layers):
        values = queries_keys_values(network, layer, found.normed[layer], layout)[2][0].detach()
        for head in (0, "mean", "max", "min"):
            expected = reference(found.weights[layer][0].detach(), values, layout.index((1, 1)), head)
            near(tokens_of(value_attention(analysis.trace, layer, head, (1, 1))), expected)


@pytest.mark.parametrize("way", WAYS)
def test_a_watched_module_has_the_same(way: str) -> None:
    module = OwnViT(way, registers=1)
    analysis = analyze(picture(), load_own(module, prefix=["cls", "register 1"]))
    pixels = analysis.prepared.pixels
    tokens, weights = module.tokens(pixels), explicit_weights(module, pixels)
    order = [0, -1, *range(1, tokens.shape[1] - 1)]
    for layer, block in enumerate(module.layers):
        weight, bias = maps_of(block)[0][2]
        values = (block.norm(tokens) @ weight.mT + bias)[0].unflatten(-1, (HEADS, -1)).transpose(0, 1)
        expected = reference(weights[layer].detach(), values.detach(), 0, "mean")
        near(tokens_of(analysis.value_attention(layer).token_map), [expected[token] for token in order])
        tokens = block(tokens)


def test_without_tokens_the_rest_is_weighted_anew(make_model: MakeModel) -> None:
    analysis = analysis_of(make_model)
    trace, excluded = analysis.trace, [(0, 2), "cls"]
    found = analysis.value_attention(1, "max", (2, 2), excluded)
    weights = trace.weights(1).clone()
    weights[..., [0, 3]] = 0
    assert trace.value_norms is not None
    expected = (weights / weights.sum(-1, keepdim=True))[:, trace.layout.index((2, 2))] * trace.value_norms[1]
    near(tokens_of(found.token_map), expected.amax(0).numpy())
    assert "without " in found.description and found.token_map.quantity == "attention × norm of the value"


def test_all_patches_are_the_mean_over_them(make_model: MakeModel) -> None:
    trace = analysis_of(make_model).trace
    rows = torch.stack([tokens_of(value_attention(trace, 0, 1, token)) for token in range(1, 25)])
    near(tokens_of(value_attention(trace, 0, 1, "patches")), rows.mean(0).numpy())


def test_a_trace_without_values_is_refused(make_model: MakeModel) -> None:
    trace = analysis_of(make_model).trace
    with pytest.raises(MethodError, match=r"this trace has no norms of values; vitviz.analyze measures them"):
        value_attention(replace(trace, value_norms=None))
    given = Analysis.of(AttentionTrace.from_weights(trace.weights(0)[None], grid=(4, 6)), picture())
    with pytest.raises(MethodError, match="value_attention: this analysis has attention alone"):
        given.value_attention()
    assert METHODS["value_attention"].refusal(given.model.network.config) is not None
