"""Attention that exists already becomes an analysis: maps, sheets, probes and the explorer, and no network."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load

import vitviz
from tests.support.attention import LAYOUTS, random_attention
from tests.support.comparison import closeness
from tests.support.heatmaps import noise
from vitviz import METHODS, Analysis, AttentionTrace, VitvizError
from vitviz.attribution import rollout
from vitviz.evaluation.probes import PROBES, probe
from vitviz.ui.packs import layer_pack

close = closeness(tolerance=1e-12)
PICTURE = noise(60, 40)
NO_NETWORK = "attention alone, without a network"


def given() -> Analysis:
    return Analysis.of(AttentionTrace.from_weights(random_attention(LAYOUTS["CLS"])), PICTURE)


def test_maps_of_a_trace_cover_the_picture() -> None:
    analysis = given()
    found = analysis.rollout(head_fusion="max", discard_ratio=0.5, end_layer=2)
    close(found.values, rollout(analysis.trace, "max", 0.5, end_layer=2).values)
    assert found.geometry.box == (0, 0, 60, 40) and not found.values.requires_grad
    assert [len(row) for row in analysis.attention_sheet()] == [3] * 4
    assert "4 layers × 3 heads, 3×3 patches" in analysis._repr_html_() and "attention weights" in repr(analysis)
    close(pickle.loads(pickle.dumps(analysis)).rollout().values, analysis.rollout().values)


def test_the_loss_of_a_gradient_is_said() -> None:
    trace = AttentionTrace.from_weights(random_attention(LAYOUTS["CLS"]).requires_grad_())
    with pytest.warns(UserWarning, match=r"without a gradient; vitviz\.attribution\.rollout\(trace\)") as warned:
        found = Analysis.of(trace, PICTURE).rollout()
    assert [each.filename for each in warned] == [__file__] and not found.values.requires_grad
    assert rollout(trace).values.requires_grad


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda trace: vitviz.explore(trace, PICTURE), r"vitviz\.explore\(vitviz\.Analysis\.of\(trace, image\)\)"),
        (lambda trace: vitviz.explore(trace.stored_weights, PICTURE), r"explore\(.*Analysis\.of\(.*from_weights\("),
        (lambda trace: vitviz.explore(torch.stack(trace.stored_weights)[:, None]), r"Analysis\.of\(.*from_weights\("),
        (lambda trace: vitviz.analyze(trace, PICTURE), r"expected vitviz\.Analysis\.of\(trace, image\)$"),
        (lambda trace: Analysis.of(trace), r"^Analysis\.of: .*expected Analysis\.of\(trace, image\)$"),
    ],
)
def test_attention_in_place_of_a_picture_is_told_its_place(call: Callable[[AttentionTrace], Any], message: str) -> None:
    with pytest.raises(VitvizError, match=message):
        call(AttentionTrace.from_weights(random_attention(LAYOUTS["CLS"])))


def test_the_picture_is_any_source(tmp_path: Path) -> None:
    PICTURE.save(tmp_path / "picture.png")
    analysis = Analysis.of(given().trace, tmp_path / "picture.png")
    assert analysis.source == tmp_path / "picture.png" and analysis.prepared.image == PICTURE


@pytest.mark.parametrize("name", METHODS)
def test_a_method_needs_attention_alone_or_says_what_is_missing(name: str) -> None:
    method, analysis = METHODS[name], given()  # type: ignore[index]
    if method.requires == "trace" and method.pooling is None and not method.reads_values:
        assert analysis.map(name).shape == (3, 3)  # type: ignore[arg-type]
    else:
        with pytest.raises(VitvizError, match="does not pool by attention" if method.pooling else NO_NETWORK):
            analysis.map(name)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", PROBES)
def test_a_probe_needs_attention_alone_or_says_what_is_missing(name: str) -> None:
    record = PROBES[name]
    if record.requires == "trace" and not record.reads_norms:
        assert probe(given(), name).measurements
    else:
        with pytest.raises(VitvizError, match=f"{name}: .*{NO_NETWORK}"):
            probe(given(), name)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda analysis: analysis.predictions(), "no classifier"),
        (lambda analysis: analysis.switched_off([(0, 0)]), NO_NETWORK),
        (lambda analysis: vitviz.likeness(analysis), NO_NETWORK),
        (lambda analysis: vitviz.analyze(PICTURE, analysis.model), NO_NETWORK),
        (lambda analysis: vitviz.save_checkpoint("x.safetensors", analysis.model), NO_NETWORK),
        (lambda analysis: analysis.model.network(analysis.prepared.pixels), NO_NETWORK),
        (lambda analysis: Analysis.of(tuple(random_attention(LAYOUTS["CLS"])), PICTURE), "AttentionTrace.from_weights"),
    ],
)
def test_what_needs_a_network_is_refused(call: Callable[[Analysis], Any], message: str) -> None:
    with pytest.raises(VitvizError, match=message):
        call(given())


def test_the_page_computes_the_same_weights_from_its_files() -> None:
    weights = random_attention(LAYOUTS["CLS"]).float()
    weights[1, 0, 0] = torch.eye(10)[3]
    file = load(layer_pack(AttentionTrace.from_weights(weights), 1))
    scores = file["queries"].float() @ file["keys"].float().mT + file["bias"].float()
    found = (scores - file["log_sums"][..., None]).exp()
    # The logarithms of small weights are rounded more.
    assert file["bias"].dtype == torch.float16
    np.testing.assert_allclose(found, weights[1], rtol=2e-3, atol=1e-7)


@pytest.mark.slow
def test_the_explorer_opens_it() -> None:
    page = vitviz.explore(given()).page
    assert "layer 3" in page and "attention weights: 4 layers" in page
