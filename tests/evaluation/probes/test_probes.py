"""Every probe equals a slow sum from its definition, and refuses models without what it measures in one sentence."""

from __future__ import annotations

import math
import statistics
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.example import ASSETS
from tests.support.makers import MakeModel
from tests.support.networks import NETWORKS, every_network
from tests.support.probes import analysis_of, near, values_of
from tests.support.traces import weights_of
from vitviz import Model, analyze
from vitviz.errors.kinds import MethodError, QueryError
from vitviz.errors.number_text import digits
from vitviz.evaluation.head_table import measure_heads
from vitviz.evaluation.probes import PROBES, probe
from vitviz.evaluation.probes.findings import AXES

every_kind = every_network(*NETWORKS)


@every_kind
def test_every_probe_gives_measurements_that_fit_their_axes_or_is_refused(
    make_model: MakeModel, changes: dict[str, Any]
) -> None:
    analysis = analysis_of(make_model, **changes)
    for name, record in PROBES.items():
        if record.refusal(analysis.model.network.config) is not None:
            with pytest.raises(MethodError, match=f"^{name}: this model has "):
                probe(analysis, name)
            continue
        findings = probe(analysis, name)
        assert findings.probe == name and findings.summary.endswith(".") and findings.heading
        assert findings.rows or name == "outlier_patches"
        assert {len(row) for row in findings.rows} <= {len(findings.heading)}
        assert not any(np.isinf(array).any() for array in findings.arrays().values())
        for each in findings.measurements.values():
            sizes = dict(zip(each.axes, each.values.shape, strict=True))
            assert len(sizes) == each.values.ndim and sizes.keys() <= AXES.keys()
            assert {axis: len(names) for axis, names in each.names.items()}.items() <= sizes.items()
            assert (each.indexes is not None) == (each.values.dtype == torch.int64)
            assert each.indexes in (None, *AXES)


# Probes of attention.


@every_network("CLS", "five prefix tokens", "no CLS", "one head")
def test_received_attention_is_the_mean_of_columns(make_model: MakeModel, changes: dict[str, Any]) -> None:
    analysis = analysis_of(make_model, **changes)
    weights, layout = weights_of(analysis.trace).numpy(), analysis.trace.layout
    received = values_of(probe(analysis, "sink_tokens"), "received")
    for place in np.ndindex(*received.shape):
        layer, head, token = place
        column = [float(weights[layer, head, query, token]) for query in range(layout.token_count)]
        assert float(received[place]) == pytest.approx(statistics.fmean(column) * layout.token_count, abs=1e-4)
    assert probe(analysis, "sink_mass").summary.startswith("No head has a sink: no token receives more than 10")
    patches = weights[:, :, layout.prefix_count :]
    near(measure_heads(analysis.trace)["prefix"], patches[..., : layout.prefix_count].sum(-1).mean(-1), 1e-5)
    if not layout.prefix:
        return
    findings = probe(analysis, "prefix_mass")
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


def slow_divergence(first: np.ndarray, second: np.ndarray) -> float:
    """The Jensen-Shannon divergence of two rows as the mean of two Kullback-Leibler divergences, with base 2."""

    def kullback_leibler(row: np.ndarray, middle: np.ndarray) -> float:
        return sum(float(a) * math.log2(a / b) for a, b in zip(row, middle, strict=True) if a > 0)

    middle = (first + second) / 2
    return (kullback_leibler(first, middle) + kullback_leibler(second, middle)) / 2


def test_the_distance_of_heads_is_their_jensen_shannon_divergence(make_model: MakeModel) -> None:
    analysis = analysis_of(make_model)
    found = values_of(probe(analysis, "head_similarity"), "divergence")
    weights = weights_of(analysis.trace).numpy()
    for layer, head, other in np.ndindex(*found.shape):
        rows = zip(weights[layer, head], weights[layer, other], strict=True)
        assert float(found[layer, head, other]) == pytest.approx(
            statistics.fmean(slow_divergence(*pair) for pair in rows), abs=1e-5
        )


# Probes of weights.


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
    assert rows[2] == ("2", digits(float(np.mean(beside))), digits(float(np.mean(below))))
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


def test_a_probe_that_a_model_cannot_have_is_refused_with_one_sentence(make_model: MakeModel) -> None:
    refusals = {
        "logit_lens": ({"classes": 0}, "this model has no classifier, so tokens have no class"),
        "prefix_mass": (
            {"cls_token": False, "pooling": "mean"},
            "this model has no prefix tokens, so that no attention goes to them",
        ),
        "position_similarity": (
            {"rotary": True},
            "this model has no learned position embeddings: its positions are rotary",
        ),
        "head_similarity": ({"heads": 1}, "this model has one head in a layer, which has no other to be compared with"),
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
        (
            "patch_similarity",
            {"features": "value"},
            MethodError,
            "features 'value': expected .* did you mean 'values'.*",
        ),
    ],
)
def test_wrong_arguments_are_refused(
    make_model: MakeModel, name: str, parameters: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=f"^{message}$"):
        probe(analysis_of(make_model), name, **parameters)


def test_the_bundled_model_has_registers_and_so_neither_outliers_nor_sinks(bundled: Model) -> None:
    analysis = analyze(ASSETS / "chelsea.jpg", bundled)
    assert probe(analysis, "outlier_patches").summary.startswith("No patch is an outlier")
    assert probe(analysis, "sink_tokens").summary.startswith("No patch receives more than 10 even shares")
    assert probe(analysis, "logit_lens").rows[-1][1] == "cat"
