"""Probes of tokens have the numbers of their formulas."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.makers import MakeModel
from tests.support.networks import NETWORKS, every_network
from tests.support.plain import plain
from tests.support.probes import analysis_of, near, values_of
from vitviz import Analysis, analyze, components
from vitviz.errors.kinds import MethodError
from vitviz.evaluation.probes import probe, token_features

every_kind = every_network(*NETWORKS)


def layers_of(analysis: Analysis) -> list[torch.Tensor]:
    """The tokens, ``"token width"``, before the first layer and after each one, by the formulas."""
    return [tokens[0].detach() for tokens in plain(analysis.model.network, analysis.prepared.pixels).steps]


@every_kind
def test_token_norms_are_lengths_of_tokens(make_model: MakeModel, changes: dict[str, Any]) -> None:
    analysis = analysis_of(make_model, **changes)
    found = values_of(probe(analysis, "token_norms"), "norms")
    for step, tokens in enumerate(layers_of(analysis)):
        expected = [math.sqrt(sum(value * value for value in token)) for token in tokens.tolist()]
        known = ~found[step].isnan()
        near(found[step][known], np.array(expected)[known.numpy()])
        # Only the last layer skips tokens.
        assert known.all() or step == len(found) - 1


def test_outliers_stand_with_their_norms(make_model: MakeModel) -> None:
    analysis = analysis_of(make_model)
    norms = analysis.trace.norms
    assert norms is not None
    norms = norms.clone()
    norms[-2, [4, 9]] = norms[-2, 1:].median() * torch.tensor([50, 90])
    findings = probe(replace(analysis, trace=replace(analysis.trace, norms=norms)), "outlier_patches")
    assert [row[0] for row in findings.rows] == ["patch (1, 2)", "patch (0, 3)"]
    median = norms[-2, 1:].median()
    assert [row[2] for row in findings.rows] == [f"{float(norms[-2, token] / median):.1f}" for token in (9, 4)]
    assert values_of(findings, "outlier").nonzero().flatten().tolist() == [4, 9]
    assert values_of(findings, "norm")[0].isnan() and torch.equal(values_of(findings, "norm")[1:], norms[-2, 1:])
    assert findings.summary.startswith("2 of 24 patches are outliers where the tokens enter the last layer: threshold ")
    assert "No patch is an outlier" in probe(analysis, "outlier_patches").summary


def test_a_trace_without_norms_is_refused(make_model: MakeModel) -> None:
    analysis = analysis_of(make_model)
    bare = replace(analysis, trace=replace(analysis.trace, norms=None))
    for name in ("token_norms", "outlier_patches"):
        with pytest.raises(MethodError, match=r"this trace has no token norms; vitviz.analyze measures them"):
            probe(bare, name)


def test_massive_activations_are_the_largest_magnitudes(make_model: MakeModel) -> None:
    model = make_model()
    with torch.no_grad():
        # One feature of one layer's output is far above all others.
        model.network.encoder[1].mlp[2].bias[7] = -30_000
    pixels = np.random.default_rng(0).integers(0, 256, (48, 60, 3), np.uint8)
    analysis = analyze(Image.fromarray(pixels), model)
    findings = probe(analysis, "massive_activations")
    for step, tokens in enumerate(layers_of(analysis)):
        sizes = [[abs(value) for value in token] for token in tokens.tolist()]
        near(values_of(findings, "largest")[step], [max(column) for column in zip(*sizes, strict=True)])
        owners = [max(range(len(sizes)), key=lambda token: sizes[token][feature]) for feature in range(32)]
        assert values_of(findings, "token")[step].tolist() == owners
        everything = [value for token in sizes for value in token]
        assert float(values_of(findings, "median")[step]) == pytest.approx(statistics.median_low(everything), rel=1e-4)
    assert [row[-1] for row in findings.rows] == ["0", "0", "1", "1"]
    assert findings.rows[2][:2] == ("layer 1", "7")
    assert findings.summary == "Massive in some layer: feature 7."
    assert probe(analysis_of(make_model), "massive_activations").summary == "No feature of any token is massive."


def slow_logits(analysis: Analysis, vector: torch.Tensor) -> torch.Tensor:
    """The logits of one pooled vector, through the remaining modules one by one."""
    network = analysis.model.network
    return network.classifier(network.projection(network.representation(vector)))


@every_network("CLS", "five prefix tokens", "no CLS", "mean of all", "one layer")
def test_the_lens_reads_every_token_through_norm_and_classifier(make_model: MakeModel, changes: dict[str, Any]) -> None:
    analysis = analysis_of(make_model, **changes)
    findings, network, layout = probe(analysis, "logit_lens"), analysis.model.network, analysis.trace.layout
    with torch.no_grad():
        for step, tokens in enumerate(layers_of(analysis)):
            normed = network.norm(tokens)
            pooling = network.config.pooling
            first = {"cls": slice(0, 1), "mean": slice(layout.prefix_count, None), "mean of all": slice(None)}[pooling]
            whole = slow_logits(analysis, normed[first].mean(0)).softmax(-1)
            near(values_of(findings, "probability")[step], whole.numpy())
            for token, vector in enumerate(normed):
                chances = slow_logits(analysis, vector).softmax(-1)
                assert int(values_of(findings, "token_class")[step, token]) == int(chances.argmax())
                highest = float(values_of(findings, "token_probability")[step, token])
                assert highest == pytest.approx(float(chances.max()), abs=1e-4)
    near(values_of(findings, "probability")[-1], analysis.logits.softmax(-1).numpy())
    assert findings.measurements["probability"].names == {"class": analysis.model.labels}


@every_kind
def test_the_last_step_of_the_lens_is_the_prediction(make_model: MakeModel, changes: dict[str, Any]) -> None:
    analysis = analysis_of(make_model, **changes)
    findings = probe(analysis, "logit_lens")
    near(values_of(findings, "probability")[-1], analysis.logits.softmax(-1).numpy())
    is_pair = analysis.model.network.config.pooling == "cls and mean"
    assert ("token_class" in findings.measurements) != is_pair
    assert all((row[-1] == "–") == is_pair for row in findings.rows)
    if is_pair:
        with pytest.raises(MethodError, match=r"classifies cls and mean side by side: no token alone can be"):
            analysis.model.network.classify_each(torch.ones(1, 32))


@pytest.mark.parametrize("layer", [0, -1])
def test_components_are_those_of_the_singular_values(make_model: MakeModel, layer: int) -> None:
    analysis = analysis_of(make_model, register_tokens=2)
    findings, maps = probe(analysis, "patch_components", layer=layer), components(analysis, layer)
    near(values_of(findings, "colours"), maps[0].colours.numpy())
    near(values_of(findings, "variance"), maps.basis.shares.numpy())
    tokens = layers_of(analysis)[analysis.trace.layer_index(layer) + 1][3:].double()
    tokens = torch.nn.functional.normalize(tokens, dim=-1).numpy()
    sizes = np.linalg.svd(tokens - tokens.mean(0), compute_uv=False)
    near(values_of(findings, "variance"), sizes[:3] ** 2 / (sizes**2).sum())


@pytest.mark.parametrize("query", [None, (0, 5), "cls", 3])
@pytest.mark.parametrize("layer", [1, -1])
@pytest.mark.parametrize("features", ["tokens", "keys", "queries"])
def test_similarity_is_the_cosine(make_model: MakeModel, query: Any, layer: int, features: str) -> None:
    analysis = analysis_of(make_model)
    findings = probe(analysis, "patch_similarity", query=query, layer=layer, features=features)
    index = analysis.trace.layer_index(layer)
    if features == "tokens":
        vectors = layers_of(analysis)[index + 1].tolist()
    else:
        keys = getattr(analysis.trace, features)[index]
        vectors = [[float(value) for head in keys for value in head[token]] for token in range(25)]
    chosen = vectors[analysis.trace.layout.index((2, 3) if query is None else query)]

    def length(vector: list[float]) -> float:
        return math.sqrt(sum(value * value for value in vector))

    expected = [
        sum(one * other for one, other in zip(chosen, vector, strict=True)) / (length(chosen) * length(vector))
        for vector in vectors
    ]
    near(values_of(findings, "similarity"), expected)
    found = token_features(analysis, layer, features)
    near(found @ found[analysis.trace.layout.index((2, 3) if query is None else query)], expected)


def test_all_patches_are_compared_with_their_mean(make_model: MakeModel) -> None:
    analysis = analysis_of(make_model)
    vectors = torch.nn.functional.normalize(layers_of(analysis)[-1], dim=-1)
    expected = torch.nn.functional.cosine_similarity(vectors, vectors[1:].mean(0, keepdim=True))
    findings = probe(analysis, "patch_similarity", query="patches")
    near(values_of(findings, "similarity"), expected.numpy())
    assert findings.summary.startswith("Cosine of the mean patch with every token after layer 2 of 0–2: patch ")
