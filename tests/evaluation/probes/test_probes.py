"""Every probe equals a slow sum over its definition, and says in a sentence what a model cannot have."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.networks import NETWORKS, every_network
from tests.support.traces import trace_of, weights_of
from vitviz import Analysis, Model, TokenLayout, analyze
from vitviz.errors.kinds import ConfigError, MethodError, QueryError
from vitviz.evaluation.probes import AXES, PROBES, Findings, Measurement, probe, token_features
from vitviz.evaluation.probes.attention import head_similarity

MakeModel = Callable[..., Model]
ASSETS = Path(__file__).parents[3] / "assets"
every_kind = every_network(*NETWORKS)


def analysis_of(make_model: MakeModel, **changes: Any) -> Analysis:
    pixels = np.random.default_rng(0).integers(0, 256, (48, 60, 3), np.uint8)
    return analyze(Image.fromarray(pixels), make_model(**changes))


def layers_of(analysis: Analysis) -> list[torch.Tensor]:
    """``"token width"`` before the first layer and after each one, by a layer's definition."""
    network, pixels = analysis.model.network, analysis.prepared.pixels
    with torch.no_grad():
        tokens, layout = network.embed(pixels)
        found = [tokens[0]]
        for layer in network.encoder:
            attended = layer.attend(tokens, network.angles(layout), layout.token_count)
            scores = attended.queries @ attended.keys.mT * network.scale
            context = (scores.softmax(-1) @ attended.values).transpose(1, 2).flatten(2)
            stream = tokens + layer.attention.projection(context)
            tokens = stream + layer.mlp(layer.mlp_norm(stream))
            found.append(tokens[0])
    return found


def values_of(findings: Findings, name: str) -> torch.Tensor:
    return findings.measurements[name].values


def near(found: torch.Tensor, expected: Any, tolerance: float = 1e-4) -> None:
    expected = torch.as_tensor(np.array(expected, dtype=np.float64))
    torch.testing.assert_close(found.double(), expected, atol=tolerance, rtol=tolerance)


# Of tokens.


@every_kind
def test_token_norms_are_lengths_of_tokens(make_model: MakeModel, changes: dict[str, Any]) -> None:
    analysis = analysis_of(make_model, **changes)
    found = values_of(probe(analysis, "token_norms"), "norms")
    for step, tokens in enumerate(layers_of(analysis)):
        expected = [math.sqrt(sum(value * value for value in token)) for token in tokens.tolist()]
        known = ~found[step].isnan()
        near(found[step][known], np.array(expected)[known.numpy()])
        # Only after the last layer are there tokens that nobody computes.
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
        # One feature of one layer's output, far above all others.
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
    """One pooled vector through the rest of the network, part by part."""
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
        with pytest.raises(
            MethodError, match=r"classifies cls and mean side by side: no token alone can be classified"
        ):
            analysis.model.network.classify_each(torch.ones(1, 32))


@pytest.mark.parametrize("final_norm", ["before pooling", "after pooling", "none"])
def test_a_token_is_classified_as_if_it_were_all_that_is_pooled(make_model: MakeModel, final_norm: str) -> None:
    tokens = torch.randn(6, 32)
    for changes in ({"pooling": "mean"}, {"pooling": "cls"}, {"pooling": "attention"}):
        network = make_model(**changes, final_norm=final_norm).network
        layout = TokenLayout(() if changes["pooling"] != "cls" else ("cls",), 1, 1)
        for token, found in zip(tokens, network.classify_each(tokens), strict=True):
            # Of a mean and an attention over one patch, that patch; of the CLS token, the token itself.
            whole = token[None, None].expand(1, layout.token_count, 32)
            near(found.detach(), network.read(whole, layout)[0].detach().numpy(), 1e-5)


@pytest.mark.parametrize("layer", [0, -1])
def test_components_are_those_of_the_singular_values(make_model: MakeModel, layer: int) -> None:
    analysis = analysis_of(make_model, register_tokens=2)
    findings = probe(analysis, "patch_components", layer=layer)
    tokens = layers_of(analysis)[analysis.trace.layer_index(layer) + 1][3:].double().numpy()
    _, sizes, directions = np.linalg.svd(tokens - tokens.mean(0), full_matrices=False)
    colours = values_of(findings, "colours").reshape(24, 3)
    for component in range(3):
        direction = directions[component] * np.sign(directions[component][np.abs(directions[component]).argmax()])
        projected = (tokens - tokens.mean(0)) @ direction
        near(colours[:, component], (projected - projected.min()) / np.ptp(projected), 1e-3)
    near(values_of(findings, "variance"), sizes[:3] ** 2 / (sizes**2).sum())


def test_patches_that_are_all_alike_have_no_colour(make_model: MakeModel) -> None:
    model = make_model()
    with torch.no_grad():
        model.network.patch_embedding.weight.zero_()
        model.network.positions.zero_()
    findings = probe(analyze(Image.new("RGB", (48, 32)), model), "patch_components")
    assert (
        torch.isfinite(values_of(findings, "colours")).all() and torch.isfinite(values_of(findings, "variance")).all()
    )


@pytest.mark.parametrize("query", [None, (0, 5), "cls", 3])
@pytest.mark.parametrize("layer", [1, -1])
@pytest.mark.parametrize("features", ["tokens", "keys"])
def test_similarity_is_the_cosine(make_model: MakeModel, query: Any, layer: int, features: str) -> None:
    analysis = analysis_of(make_model)
    findings = probe(analysis, "patch_similarity", query=query, layer=layer, features=features)
    index = analysis.trace.layer_index(layer)
    if features == "tokens":
        vectors = layers_of(analysis)[index + 1].tolist()
    else:
        keys = analysis.trace.keys[index]
        vectors = [[float(value) for head in keys for value in head[token]] for token in range(25)]
    chosen = vectors[analysis.trace.layout.index((2, 3) if query is None else query)]

    def length(vector: list[float]) -> float:
        return math.sqrt(sum(value * value for value in vector))

    expected = [
        sum(one * other for one, other in zip(chosen, vector, strict=True)) / (length(chosen) * length(vector))
        for vector in vectors
    ]
    near(values_of(findings, "similarity"), expected)
    # Of any two tokens, the measured vectors say the same.
    own = analysis.trace.layout.index((2, 3) if query is None else query)
    near(values_of(findings, "vectors") @ values_of(findings, "vectors")[own], expected)
    found = token_features(analysis, layer, features)
    near(found @ found[analysis.trace.layout.index((2, 3) if query is None else query)], expected)


def test_all_patches_are_compared_with_their_mean(make_model: MakeModel) -> None:
    analysis = analysis_of(make_model)
    vectors = torch.nn.functional.normalize(layers_of(analysis)[-1], dim=-1)
    expected = torch.nn.functional.cosine_similarity(vectors, vectors[1:].mean(0, keepdim=True))
    findings = probe(analysis, "patch_similarity", query="patches")
    near(values_of(findings, "similarity"), expected.numpy())
    assert findings.summary.startswith("Cosine of the mean patch with every token after layer 2 of 0–2: patch ")


# Of attention.


@every_network("CLS", "five prefix tokens", "no CLS", "one head")
def test_received_attention_and_prefix_mass_are_means_of_columns(
    make_model: MakeModel, changes: dict[str, Any]
) -> None:
    analysis = analysis_of(make_model, **changes)
    weights, layout = weights_of(analysis.trace).numpy(), analysis.trace.layout
    received = values_of(probe(analysis, "sink_tokens"), "received")
    for place in np.ndindex(*received.shape):
        layer, head, token = place
        column = [float(weights[layer, head, query, token]) for query in range(layout.token_count)]
        assert float(received[place]) == pytest.approx(statistics.fmean(column) * layout.token_count, abs=1e-4)
    if not layout.prefix:
        return
    findings = probe(analysis, "prefix_mass")
    patches = weights[:, :, layout.prefix_count :]
    near(values_of(findings, "mass"), patches.mean(2)[..., : layout.prefix_count], 1e-5)
    assert findings.measurements["mass"].names == {"prefix": layout.prefix}


@every_network("CLS", "no CLS", "five prefix tokens")
def test_distance_and_entropy_are_means_over_patches(make_model: MakeModel, changes: dict[str, Any]) -> None:
    analysis = analysis_of(make_model, **changes)
    weights, layout = weights_of(analysis.trace).numpy(), analysis.trace.layout
    distance = values_of(probe(analysis, "attention_distance"), "distance")
    entropy = values_of(probe(analysis, "attention_entropy"), "entropy")
    patches = range(layout.prefix_count, layout.token_count)
    for layer, head in np.ndindex(*distance.shape):
        distances, entropies = [], []
        for query in patches:
            row = weights[layer, head, query]
            far = [math.dist(layout.cell(query), layout.cell(key)) for key in patches]
            share = sum(row[key] for key in patches)
            distances.append(sum(row[key] * far[place] for place, key in enumerate(patches)) / share)
            entropies.append(-sum(float(weight) * math.log(weight) for weight in row if weight > 0))
        assert float(distance[layer, head]) == pytest.approx(statistics.fmean(distances), abs=1e-4)
        assert float(entropy[layer, head]) == pytest.approx(statistics.fmean(entropies), abs=1e-4)


def slow_divergence(one: np.ndarray, other: np.ndarray) -> float:
    """The Jensen-Shannon divergence of two rows as the mean of two Kullback-Leibler divergences, with base 2."""

    def kullback_leibler(row: np.ndarray, middle: np.ndarray) -> float:
        return sum(float(a) * math.log2(a / b) for a, b in zip(row, middle, strict=True) if a > 0)

    middle = (one + other) / 2
    return (kullback_leibler(one, middle) + kullback_leibler(other, middle)) / 2


def test_heads_are_apart_by_their_jensen_shannon_divergence(make_model: MakeModel) -> None:
    analysis = analysis_of(make_model)
    found = values_of(probe(analysis, "head_similarity"), "divergence")
    weights = weights_of(analysis.trace).numpy()
    for layer, head, other in np.ndindex(*found.shape):
        rows = zip(weights[layer, head], weights[layer, other], strict=True)
        assert float(found[layer, head, other]) == pytest.approx(
            statistics.fmean(slow_divergence(*pair) for pair in rows), abs=1e-5
        )


def test_heads_that_see_the_same_are_0_apart_and_those_with_nothing_in_common_1() -> None:
    weights = torch.zeros(1, 3, 4, 4, dtype=torch.float64)
    weights[0, :2, :, 0] = 1
    weights[0, 2, :, 3] = 1
    findings = head_similarity(trace_of(weights, TokenLayout((), 2, 2)))
    expected = [[0, 0, 1], [0, 0, 1], [1, 1, 0]]
    near(values_of(findings, "divergence")[0], expected, 1e-9)
    assert findings.rows == (("0", "0 and 1", "0.00", "0.67", "0 and 2", "1.00"),)


# Of weights.


def test_positions_are_alike_by_their_cosine(make_model: MakeModel) -> None:
    analysis = analysis_of(make_model)
    found = values_of(probe(analysis, "position_similarity"), "similarity")
    positions = analysis.model.network.positions.numpy()
    assert found.shape == (4, 6, 4, 6)
    for row, column, other_row, other_column in np.ndindex(*found.shape):
        one, other = positions[row, column], positions[other_row, other_column]
        expected = float(one @ other) / float(np.linalg.norm(one) * np.linalg.norm(other))
        assert float(found[row, column, other_row, other_column]) == pytest.approx(expected, abs=1e-5)
    rows = probe(analysis, "position_similarity").rows
    beside = [found[row, column, row, column + 2] for row in range(4) for column in range(4)]
    below = [found[row, column, row + 2, column] for row in range(2) for column in range(6)]
    assert rows[2] == ("2", f"{float(np.mean(beside)):.2f}", f"{float(np.mean(below)):.2f}")
    assert rows[5][2] == "–"


@every_network("CLS", "oblong patch")
def test_filters_are_eigenvectors_of_the_embeddings_covariance(make_model: MakeModel, changes: dict[str, Any]) -> None:
    analysis = analysis_of(make_model, **changes)
    findings, config = probe(analysis, "patch_filters"), analysis.model.network.config
    filters = values_of(findings, "filters")
    assert filters.shape == (28, 3, config.patch_height, config.patch_width)
    weight = analysis.model.network.patch_embedding.weight.double().numpy()
    covariance = np.cov(weight, rowvar=False)
    shares = values_of(findings, "variance").double().numpy()
    for component, share in zip(filters.double().numpy(), shares, strict=True):
        vector = component.reshape(-1)
        assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-5)
        assert vector[np.abs(vector).argmax()] > 0
        near(torch.from_numpy(covariance @ vector), share * np.trace(covariance) * vector, 1e-4)
    assert (np.diff(shares) <= 0).all()


# The table.


@every_kind
def test_every_probe_that_a_model_can_have_gives_findings(make_model: MakeModel, changes: dict[str, Any]) -> None:
    analysis = analysis_of(make_model, **changes)
    config = analysis.model.network.config
    for name, record in PROBES.items():
        if record.refusal(config) is not None:
            with pytest.raises(MethodError, match=f"^{name}: this model has "):
                probe(analysis, name)
            continue
        findings = probe(analysis, name)
        assert findings.probe == name and findings.summary.endswith(".") and findings.heading
        assert findings.rows or name == "outlier_patches"
        for array in findings.arrays().values():
            assert not np.isinf(array).any()


def test_what_a_model_cannot_have_is_one_sentence(make_model: MakeModel) -> None:
    refusals = {
        "logit_lens": ({"classes": 0}, "this model has no classifier, so that no token speaks for a class"),
        "prefix_mass": (
            {"cls_token": False, "pooling": "mean"},
            "this model has no prefix tokens, so that no attention goes to them",
        ),
        "position_similarity": (
            {"rotary": True},
            "this model has no learned position embeddings: its positions are rotary",
        ),
        "head_similarity": (
            {"heads": 1},
            "this model has one head in a layer, which has no other to be compared with",
        ),
    }
    for name, (changes, sentence) in refusals.items():
        with pytest.raises(MethodError, match=f"^{name}: {sentence}$"):
            probe(analysis_of(make_model, **changes), name)


@pytest.mark.parametrize(
    ("name", "parameters", "error", "message"),
    [
        ("token_norm", {}, MethodError, r"probe 'token_norm': expected .*; did you mean 'token_norms'\?"),
        ("token_norms", {"layer": 1}, MethodError, "token_norms has no parameter 'layer': it has none"),
        ("patch_components", {"layr": 1}, MethodError, r".* no parameter 'layr': expected 'layer'; did you mean .*"),
        ("patch_components", {"layer": 3}, QueryError, r"layer 3: this model has layers 0 to 2 .*"),
        ("patch_similarity", {"query": (9, 9)}, QueryError, r"patch \(9, 9\): this model has .*"),
        ("patch_similarity", {"features": "values"}, MethodError, "features 'values': expected 'tokens' or 'keys'.*"),
    ],
)
def test_wrong_arguments_are_refused(
    make_model: MakeModel, name: str, parameters: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=f"^{message}$"):
        probe(analysis_of(make_model), name, **parameters)


def test_a_measurement_names_each_of_its_axes() -> None:
    with pytest.raises(ConfigError, match=r"values of shape \(2, 3\) with axes \('layer',\): expected one of each"):
        Measurement(torch.ones(2, 3), ("layer",), "share")
    with pytest.raises(ConfigError, match=r"with axes \('layer', 'colour'\)"):
        Measurement(torch.ones(2, 3), ("layer", "colour"), "share")
    with pytest.raises(ConfigError, match="2 names along 'prefix': expected one for each of its places"):
        Measurement(torch.ones(3), ("prefix",), "share", {"prefix": ("cls", "register 1")})
    for values, indexes in ((torch.ones(3), "class"), (torch.arange(3), None), (torch.arange(3), "colour")):
        with pytest.raises(ConfigError, match="expected int64 and the name of an axis"):
            Measurement(values, ("token",), "index", indexes=indexes)
    with pytest.raises(ConfigError, match="expected 2 cells"):
        Findings("token_norms", "Nothing.", {}, ("after", "norm"), (("input",),))


def test_every_axis_that_has_a_meaning_is_that_of_some_probe(make_model: MakeModel) -> None:
    analysis = analysis_of(make_model)
    used = {axis for name in PROBES for each in probe(analysis, name).measurements.values() for axis in each.axes}
    assert used == set(AXES)


def test_the_bundled_model_has_registers_and_so_neither_outliers_nor_sinks(bundled: Model) -> None:
    analysis = analyze(ASSETS / "chelsea.jpg", bundled)
    assert probe(analysis, "outlier_patches").summary.startswith("No patch is an outlier")
    assert probe(analysis, "sink_tokens").summary.startswith("No patch receives more than 10 even shares")
    assert probe(analysis, "logit_lens").rows[-1][1] == "cat"
