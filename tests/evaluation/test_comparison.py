"""All methods on one image: one scale, the scores of each map alone, and a named order."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import vitviz
from tests.support.example import EXAMPLE
from tests.support.refusals import check_refusals
from vitviz import METHODS, Analysis, Heatmap, Model, Preprocessing, VisionTransformer, ViTConfig
from vitviz.attribution.methods import MethodName
from vitviz.errors.kinds import MethodError
from vitviz.evaluation.comparison import Comparison, compare
from vitviz.evaluation.randomization import randomized_analysis, rank_correlation
from vitviz.metrics.faithfulness import METRICS, RANDOM_ORDERS, MetricName
from vitviz.models.targets import Target
from vitviz.progress import Progress

pytestmark = pytest.mark.slow

TWO_METRICS: tuple[MetricName, ...] = ("deletion", "negative")
# The model has a CLS token and no attention pooling.
SERVING = [name for name in METHODS if name != "pooling_attention"]
PARAMETERS: dict[str, dict[str, Any]] = {"rollout": {"head_fusion": "max"}, "occlusion": {"signed": True}}


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
    return compare(analysis, PARAMETERS, "horse", TWO_METRICS, seed=3, maps=maps)


def test_every_map_is_its_own_as_shares_of_its_sum(analysis: Analysis, comparison: Comparison) -> None:
    assert [each.method for each in comparison.maps] == SERVING
    assert (comparison.target, comparison.target_name) == (analysis.model.labels.index("horse"), "class horse")
    for each in comparison.maps:
        options = {"target": "horse"} if METHODS[each.method].class_specific else {}
        options |= {**PARAMETERS, "attention": {"head": "max"}}.get(each.method, {})
        values = analysis.map(each.method, **options).values
        torch.testing.assert_close(each.heatmap.values, values / values.relu().sum())
        assert float(each.heatmap.values.max()) <= comparison.highest <= 1
    assert comparison.highest == max(float(each.heatmap.values.max()) for each in comparison.maps)


def test_its_scores_are_those_of_the_measures(analysis: Analysis, comparison: Comparison) -> None:
    """Of each map alone: they do not depend on what other methods the model has."""

    def areas(name: str, maps: dict[str, Heatmap], random_orders: int) -> Any:
        options: Any = {"metrics": TWO_METRICS, "seed": 3, "random_orders": random_orders}
        curves = analysis.faithfulness(maps, "horse", **options)
        return pytest.approx({metric: curves[metric][name].area for metric in TWO_METRICS}, abs=1e-6)

    for each in comparison.maps:
        assert each.areas == areas("map", {"map": each.heatmap}, 0)
    assert comparison.chance == areas("random order", {}, RANDOM_ORDERS)
    for metric in TWO_METRICS:
        for each in comparison.maps:
            lower = each.areas[metric] < comparison.chance[metric]
            assert comparison.beats_chance(each, metric) == (lower == METRICS[metric].lower_is_better)


def test_scores_come_method_by_method_and_stay(analysis: Analysis, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str | Comparison] = []
    original, maps = Analysis.map, {"rollout": analysis.rollout()}

    def watched(self: Analysis, method: MethodName, **given: Any) -> Heatmap:
        events.append(method if self is analysis else f"{method}, shuffled")
        return original(self, method, **given)

    monkeypatch.setattr(Analysis, "map", watched)
    found = compare(analysis, None, "horse", TWO_METRICS, 3, maps=maps, report_scores=events.append)
    # Before the second map is computed, the scores of the first are there.
    first, second = (each for each in events[:4] if isinstance(each, Comparison))
    names = [each for each in events[:5] if isinstance(each, str)]
    assert names == ["attention", "attention, shuffled", "attention_mass"] and events[1] is first
    assert [(each.method, [*each.areas]) for each in first.maps] == [("attention", ["deletion"])]
    assert second.maps[0].areas == found.maps[0].areas and second.chance == {}
    # Chance is there before what takes long begins, which comes last.
    reports = [each for each in events if isinstance(each, Comparison)]
    slow = [name for name in SERVING if METHODS[name].reports]
    assert [each for each in events if each in SERVING][-len(slow) :] == slow
    assert [bool(each.chance) for each in reports] == [False] * 2 * (len(SERVING) - len(slow)) + [True] * 2 * len(slow)
    finished = {each.method: each.areas for each in found.maps}
    for each in reports:
        assert all(areas.items() <= finished[result.method].items() for result in each.maps for areas in [result.areas])
    # The map that was there is not computed, and the others are there now.
    assert "rollout" not in events and set(maps) == set(SERVING)
    for name, heatmap in maps.items():
        options = {"target": "horse"} if METHODS[name].class_specific else {}
        assert torch.equal(heatmap.values, original(analysis, name, **options).values)


def test_it_says_what_is_left_when_the_weights_are_shuffled(analysis: Analysis, comparison: Comparison) -> None:
    shuffled = randomized_analysis(analysis, seed=3)
    for each in comparison.maps:
        options = {"target": "horse"} if METHODS[each.method].class_specific else {}
        options |= PARAMETERS.get(each.method, {})
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
    assert [state.done for state in reports] == sorted(state.done for state in reports)
    assert {state.total for state in reports} == {reports[-1].done}
    # Slow maps report on the way, so that each of them can be ended there.
    slow = sum(METHODS[name].reports for name in SERVING)
    assert len({state.done for state in reports}) > 3 * len(SERVING) + 2 * slow


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
