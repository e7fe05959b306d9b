"""All methods on one image: one scale, the scores of each map alone, and a named order."""

from __future__ import annotations

import pytest
import torch

import vitviz
from tests.support.example import EXAMPLE
from tests.support.refusals import check_refusals
from vitviz import METHODS, Analysis, Model, Preprocessing, VisionTransformer, ViTConfig
from vitviz.errors.kinds import MethodError
from vitviz.evaluation.comparison import Comparison, compare
from vitviz.evaluation.randomization import randomized_analysis, rank_correlation
from vitviz.metrics.faithfulness import METRICS
from vitviz.models.targets import Target
from vitviz.progress import Progress

pytestmark = pytest.mark.slow

TWO_METRICS = ("deletion", "negative")
# The model has a CLS token and no attention pooling.
SERVING = [name for name in METHODS if name != "pooling_attention"]


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    """A picture with 4×5 patches, and a network with random weights, so that all maps are soon there."""
    torch.manual_seed(0)
    network = VisionTransformer(ViTConfig(16, 20, 4, 4, 32, 3, 4, 8, 64, 5)).eval().requires_grad_(False)
    for parameter in network.parameters():
        parameter.normal_(0, 0.3)
    labels = ("cat", "dog", "horse", "tree", "sea")
    return vitviz.analyze(EXAMPLE, Model("small", network, Preprocessing(16, 20, (0.5,) * 3, (0.5,) * 3), labels))


@pytest.fixture(scope="module")
def comparison(analysis: Analysis) -> Comparison:
    # One map is there already; of the shuffled weights, it is still to be made.
    maps = {"attention": analysis.attention(head="max")}
    return compare(analysis, {"rollout": {"head_fusion": "max"}}, "horse", TWO_METRICS, seed=3, maps=maps)


def test_every_map_is_its_own_as_shares_of_its_sum(analysis: Analysis, comparison: Comparison) -> None:
    horse = analysis.model.labels.index("horse")
    assert [each.method for each in comparison.maps] == SERVING
    assert (comparison.target, comparison.target_name) == (horse, "class horse")
    for each in comparison.maps:
        options = {"target": "horse"} if METHODS[each.method].class_specific else {}
        options |= {"rollout": {"head_fusion": "max"}, "attention": {"head": "max"}}.get(each.method, {})
        values = analysis.map(each.method, **options).values
        torch.testing.assert_close(each.heatmap.values, values / values.sum())
        assert float(each.heatmap.values.max()) <= comparison.highest <= 1
    assert comparison.highest == max(float(each.heatmap.values.max()) for each in comparison.maps)


def test_its_scores_are_those_of_the_measures(analysis: Analysis, comparison: Comparison) -> None:
    maps = {each.method: each.heatmap for each in comparison.maps}
    curves = analysis.faithfulness(maps, "horse", metrics=TWO_METRICS, seed=3)
    for each in comparison.maps:
        assert each.areas == {metric: curves[metric][each.method].area for metric in TWO_METRICS}
    assert comparison.chance == {metric: curves[metric]["random order"].area for metric in TWO_METRICS}
    for metric in TWO_METRICS:
        for each in comparison.maps:
            lower = each.areas[metric] < comparison.chance[metric]
            assert comparison.beats_chance(each, metric) == (lower == METRICS[metric].lower_is_better)


def test_it_says_what_is_left_when_the_weights_are_shuffled(analysis: Analysis, comparison: Comparison) -> None:
    shuffled = randomized_analysis(analysis, seed=3)
    for each in comparison.maps:
        options = {"target": "horse"} if METHODS[each.method].class_specific else {}
        options |= {"head_fusion": "max"} if each.method == "rollout" else {}
        left = rank_correlation(each.heatmap.values, shuffled.map(each.method, **options).values)
        assert each.randomization_correlation == pytest.approx(left, nan_ok=True)


def test_the_best_come_first_by_each_metric(comparison: Comparison) -> None:
    assert comparison.by(None) == list(comparison.maps)
    assert [each.areas["deletion"] for each in comparison.by("deletion")] == sorted(
        each.areas["deletion"] for each in comparison.maps
    )
    best = [each.areas["negative"] for each in comparison.by("negative")]
    assert best == sorted(best, reverse=True)
    with pytest.raises(MethodError, match=r"^metric 'road': expected 'deletion' or 'negative'$"):
        comparison.by("road")


def test_progress_is_reported_to_the_end(analysis: Analysis) -> None:
    reports: list[Progress] = []
    compare(analysis, metrics=("deletion",), report=reports.append)
    # A slow map reports between two numbers.
    assert [state.done for state in reports] == sorted(state.done for state in reports)
    assert {state.total for state in reports} == {reports[-1].done}
    # Every map, for the model and for the shuffled one.
    assert {state.done for state in reports} >= set(range(1, 2 * len(SERVING) + 1))


def test_missing_measures_are_refused_before_anything_is_computed(
    analysis: Analysis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Analysis, "map", None)
    nothing, last = Target("nothing", lambda logits: logits.new_ones(())), len(analysis.model.labels) - 1
    calls = {
        "metric 'speed': expected": lambda: compare(analysis, metrics=("speed",)),
        "target 'zebra': this model has no such class": lambda: compare(analysis, target="zebra"),
        f"target 200: this model has classes 0 to {last}": lambda: compare(analysis, target=200),
        "nothing: its score is 1 for the whole image and 1 for one without": lambda: compare(analysis, target=nothing),
    }
    check_refusals(MethodError, calls)
