"""The vectors of a layer are those of the network's formulas, for vitviz's own network and for watched modules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.support.makers import MakeModel
from tests.support.modules import HEADS, WAYS, OwnViT, load_own, maps_of, picture
from tests.support.networks import NETWORKS, every_network
from tests.support.plain import plain, queries_keys_values
from tests.support.probes import analysis_of, near, with_outliers
from vitviz import Analysis, AttentionTrace, MethodError, QueryError, analyze
from vitviz.features import KINDS


def by_formula(analysis: Analysis, layer: int, of: str) -> torch.Tensor:
    """``"token channel"``, of vitviz's own network."""
    network = analysis.model.network
    found = plain(network, analysis.prepared.pixels)
    if of == "tokens":
        return found.steps[layer + 1][0].detach()
    parts = queries_keys_values(network, layer, found.normed[layer], found.layout)
    return parts[("queries", "keys", "values").index(of)][0].transpose(0, 1).flatten(1).detach()


def of_module(module: OwnViT, pixels: torch.Tensor, layer: int, of: str) -> torch.Tensor:
    """``"token channel"``, in the order of the module."""
    tokens = module.tokens(pixels)
    for each in module.layers[: layer + (of == "tokens")]:
        tokens = each(tokens)
    if of == "tokens":
        return tokens[0].detach()
    block = module.layers[layer]
    weight, bias = maps_of(block)[0][("queries", "keys", "values").index(of)]
    heads = (block.norm(tokens) @ weight.mT + bias)[0].unflatten(-1, (-1, 32 // HEADS))
    return heads.repeat_interleave(HEADS // heads.shape[1], 1).flatten(1).detach()


@pytest.mark.parametrize("of", KINDS)
@every_network(*NETWORKS)
def test_vectors_are_those_of_the_formulas(make_model: MakeModel, changes: dict[str, Any], of: Any) -> None:
    analysis = analysis_of(make_model, **changes)
    layout = analysis.trace.layout
    for layer in range(analysis.trace.layers):
        found, expected = analysis.features(layer, of), by_formula(analysis, layer, of)
        near(found.tokens, expected.numpy())
        assert found.values.shape == (layout.grid_height, layout.grid_width, expected.shape[1])
        near(found.values[-1, 0], expected[layout.index((layout.grid_height - 1, 0))].numpy())
        near(found.values, np.asarray(found))
    assert found.layer == layer and f"layer {layer}" in found.description and found.description.startswith(of)


@pytest.mark.parametrize("of", KINDS)
@pytest.mark.parametrize("way", WAYS)
def test_vectors_of_a_watched_module_are_its_own(way: str, of: Any) -> None:
    module = OwnViT(way)
    analysis = analyze(picture(), load_own(module))
    for layer in (0, -1):
        expected = of_module(module, analysis.prepared.pixels, layer % 3, of)
        # This one scales its queries itself, before their product with the keys.
        expected = expected * module.layers[0].scale if (way, of) == ("bmm", "queries") else expected
        near(analysis.features(layer, of).tokens, expected.numpy())


@pytest.mark.parametrize("kernels", [[SDPBackend.FLASH_ATTENTION, SDPBackend.MATH], [SDPBackend.MATH]])
@pytest.mark.parametrize("of", KINDS)
def test_vectors_of_a_watched_module_are_in_the_order_of_the_layout(of: Any, kernels: list[SDPBackend]) -> None:
    module = OwnViT(registers=2, groups=2)
    # torch's plain products scale queries and keys by one number each.
    with sdpa_kernel(kernels):
        analysis = analyze(picture(), load_own(module, prefix=["cls", "register 1", "register 2"]))
        expected = of_module(module, analysis.prepared.pixels, 1, of)
        near(analysis.features(1, of).tokens, expected[[0, -2, -1, *range(1, len(expected) - 2)]].numpy())


def test_patches_of_outlying_norm_are_left_out_of_what_is_kept(make_model: MakeModel) -> None:
    analysis = analysis_of(make_model, register_tokens=1)
    outlying = with_outliers(analysis)
    assert outlying.features(0).inliers == [token for token in range(2, 26) if token not in (4, 9)]
    unmeasured = replace(analysis, trace=replace(analysis.trace, norms=None))
    assert unmeasured.features(0).inliers == list(range(2, 26))


def test_a_trace_of_weights_has_no_vectors(make_model: MakeModel) -> None:
    trace = AttentionTrace.from_weights(analysis_of(make_model).trace.weights(0)[None], grid=(4, 6))
    given = Analysis.of(trace, picture())
    for of, reason in (("keys", "attention weights alone"), ("tokens", "attention alone, without a netw")):
        with pytest.raises(MethodError, match=reason):
            given.features(0, of)


def test_numbers_that_are_not_finite_are_refused(make_model: MakeModel) -> None:
    model = make_model()
    with torch.no_grad():
        model.network.encoder[1].mlp[2].bias[3] = torch.nan
    analysis = analyze(picture(), model)
    assert analysis.features(0).values.isfinite().all()
    with pytest.raises(MethodError, match=r"^tokens after layer 1 of 0–2: not all numbers are finite"):
        analysis.features(1)


def test_what_there_is_not_is_refused(make_model: MakeModel) -> None:
    analysis = analysis_of(make_model)
    with pytest.raises(MethodError, match=r"of 'token': expected 'tokens', 'keys', .*did you mean 'tokens'"):
        analysis.features(0, "token")
    with pytest.raises(QueryError, match="layer 3: this model has layers 0 to 2"):
        analysis.features(3)
