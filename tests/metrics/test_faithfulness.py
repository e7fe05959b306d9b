"""Removing patches in a map's order: which are removed, what replaces them, and the curves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.support.makers import MakeNetwork
from tests.support.refusals import check_refusals
from vitviz import VisionTransformer
from vitviz.errors.kinds import ConfigError, MethodError
from vitviz.metrics.faithfulness import BATCH_SIZE, METRICS, RANDOM, RANDOM_ORDERS, Curve, Metric, ends, faithfulness
from vitviz.metrics.perturbation import blur, blurred, imputed, zeros
from vitviz.models.targets import Target, class_target
from vitviz.progress import Progress


class Judge(VisionTransformer):
    """A network whose first class depends on the mean of some pixels alone."""

    weight: torch.Tensor

    def forward(self, pixels: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        score = (pixels * self.weight).flatten(1).sum(-1)
        return torch.stack([score, torch.zeros_like(score)], 1)


def judge(make_network: MakeNetwork, weight: torch.Tensor) -> Judge:
    network = make_network(classes=2)
    network.__class__ = Judge
    assert isinstance(network, Judge)
    network.weight = weight
    return network


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
def test_a_small_area_is_good_where_the_strongest_patches_go_first(metric: Metric) -> None:
    assert metric.lower_is_better == metric.strongest_first
    assert f"{'lower' if metric.lower_is_better else 'higher'} is better" in metric.interpretation


# Removed patches and their replacement.


@pytest.mark.parametrize("fill", [zeros, blurred, imputed])
def test_filling_changes_only_removed_patches(fill: Callable[..., torch.Tensor]) -> None:
    pixels, outside = torch.randn(3, 16, 24), torch.zeros(16, 24, dtype=torch.bool)
    outside[4:12, 8:20] = True
    found = fill(pixels, outside)
    assert found.shape == pixels.shape and found.dtype == pixels.dtype
    assert torch.equal(found[:, ~outside], pixels[:, ~outside])
    assert (found[:, outside] - pixels[:, outside]).abs().mean() > 0.1
    assert torch.equal(fill(pixels, torch.zeros_like(outside)), pixels)
    assert torch.equal(fill(pixels, outside), found)


def test_imputation_solves_its_equations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitviz.metrics.perturbation.NOISE_SIGMA", 0.0)
    pixels, outside = torch.rand(2, 9, 7, dtype=torch.float64), torch.rand(9, 7) < 0.6
    outside[0, 0] = outside[8, 6] = True
    found = imputed(pixels, outside)
    for row, column in outside.nonzero().tolist():
        total, weights = torch.zeros(2, dtype=torch.float64), 0.0
        for down in (-1, 0, 1):
            for across in (-1, 0, 1):
                place = (row + down, column + across)
                if (down or across) and 0 <= place[0] < 9 and 0 <= place[1] < 7:
                    weight = 1 / 12 if down and across else 1 / 6
                    total, weights = total + weight * found[:, place[0], place[1]], weights + weight
        torch.testing.assert_close(found[:, row, column], total / weights, atol=1e-10, rtol=0)


def test_an_image_without_pixels_is_not_imputed() -> None:
    assert not imputed(torch.randn(3, 4, 4), torch.ones(4, 4, dtype=torch.bool)).any()


# The curves.


@pytest.mark.slow
def test_patches_are_removed_in_the_order_of_the_metric(make_network: MakeNetwork) -> None:
    """The class depends on one patch: a map that knows it loses it at once, and one that hides it keeps it longest."""
    weight = torch.zeros(3, 16, 24)
    weight[:, 4:8, 8:12] = 1.0
    network, pixels = judge(make_network, weight), torch.full((1, 3, 16, 24), 0.2)
    knowing = torch.rand(4, 6)
    knowing[1, 2] = 2.0
    found = faithfulness(network, pixels, {"knowing": knowing, "hiding": -knowing}, 0)
    probability = float(torch.tensor([48 * 0.2, 0.0]).softmax(0)[0])
    for name in ("deletion", "positive"):
        assert found[name]["knowing"].scores[-1] == pytest.approx(0.5, abs=1e-6)
        assert found[name]["hiding"].scores[-2] == pytest.approx(probability, abs=1e-6)
        assert found[name]["knowing"].area < found[name][RANDOM].area < found[name]["hiding"].area
    assert found["negative"]["knowing"].scores.tolist() == pytest.approx([probability] * 9, abs=1e-6)
    assert found["negative"]["knowing"].area > found["negative"][RANDOM].area > found["negative"]["hiding"].area
    assert found["insertion"]["knowing"].area > found["insertion"]["hiding"].area - 1e-6
    assert found["road"]["knowing"].area < found["road"]["hiding"].area + 0.05


@pytest.mark.parametrize("is_class", [True, False], ids=["class", "logit"])
def test_the_first_and_the_last_step_are_the_image_and_none_of_it(make_network: MakeNetwork, is_class: bool) -> None:
    """Of a class its probability, of another target the share of the way from the blank to the whole image."""
    network, pixels = make_network(), torch.randn(1, 3, 16, 24)
    logits = [network(image)[0] for image in (torch.zeros_like(pixels), pixels, blur(pixels[0])[None])]
    index = int((logits[1] - logits[0]).argmax())
    blank, full, soft = (float((each.softmax(-1) if is_class else each)[index]) for each in logits)
    reports: list[Progress] = []
    maps, target = {"map": torch.rand(4, 6)}, index if is_class else class_target(index, 5)
    found = faithfulness(network, pixels, maps, target, ("deletion", "insertion"), report=reports.append)
    assert reports[-1] == Progress(2 * 17 * (1 + RANDOM_ORDERS), 2 * 17 * (1 + RANDOM_ORDERS))
    if not is_class:
        assert ends(network, pixels, class_target(index, 5)) == pytest.approx((blank, full), abs=1e-5)
        blank, full, soft = 0.0, 1.0, (soft - blank) / (full - blank)
    for name in ("map", RANDOM):
        for metric, last in (("deletion", blank), ("insertion", soft)):
            curve = found[metric][name]
            assert curve.steps.tolist() == pytest.approx([step / 16 for step in range(17)])
            assert curve.scores[0] == pytest.approx(full, abs=1e-5 if is_class else 1e-4)
            assert curve.scores[-1] == pytest.approx(last, abs=1e-5 if is_class else 1e-4)


# Targets that are no class.


@pytest.mark.parametrize(
    ("score", "numbers"),
    [
        (lambda logits: 1 - logits[0], "-8.6 for the whole image and 1 for one without any patch"),
        (lambda logits: logits[0] * 0 + 7, "7 for the whole image and 7 for one without any patch"),
        (lambda logits: logits[0] + 1e5, "100010 for the whole image and 100000 for one without any patch"),
        (lambda logits: logits[0] * torch.nan, "nan for the whole image and nan for one without any patch"),
    ],
    ids=["lower", "equal", "nearly equal", "no number"],
)
def test_a_score_that_is_not_higher_for_the_whole_image_has_no_shares(
    make_network: MakeNetwork, score: Callable[[torch.Tensor], torch.Tensor], numbers: str
) -> None:
    weight = torch.zeros(3, 16, 24)
    weight[:, 4:8, 8:12] = 1.0
    network, pixels = judge(make_network, weight), torch.full((1, 3, 16, 24), 0.2)
    with pytest.raises(MethodError, match=f"^a text: its score is {numbers}; expected a clearly higher one"):
        faithfulness(network, pixels, {"map": torch.rand(4, 6)}, Target("a text", score))


def test_the_area_is_the_mean_height() -> None:
    assert Curve(torch.tensor([0.1, 0.5, 0.9]), torch.full((3,), 0.4)).area == pytest.approx(0.4)
    assert Curve(torch.tensor([0.0, 0.5, 1.0]), torch.tensor([1.0, 0.0, 0.0])).area == pytest.approx(0.25)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"register_tokens": 4},
        {"cls_token": False, "pooling": "mean"},
        {"cls_token": False, "pooling": "attention"},
        {"heads": 1, "head_width": 32},
    ],
    ids=str,
)
def test_any_layout_will_do_and_the_same_seed_gives_the_same(
    make_network: MakeNetwork, changes: dict[str, Any]
) -> None:
    network, pixels = make_network(**changes), torch.randn(1, 3, 16, 24)
    first, second = (faithfulness(network, pixels, {"map": torch.arange(24.0).view(4, 6)}, 1) for _ in range(2))
    assert set(first) == set(METRICS)
    for metric, curves in first.items():
        for name, curve in curves.items():
            assert torch.equal(curve.scores, second[metric][name].scores)
            assert 0 <= curve.area <= 1


def test_progress_is_reported(make_network: MakeNetwork) -> None:
    network, pixels = make_network(), torch.randn(1, 3, 16, 24)
    reports: list[Progress] = []
    faithfulness(network, pixels, {"map": torch.rand(4, 6)}, 0, ("deletion",), report=reports.append)
    total = 17 * (1 + RANDOM_ORDERS)

    assert [each.done for each in reports] == [BATCH_SIZE, total]
    assert {each.total for each in reports} == {total}


def test_impossible_requests_are_refused(make_network: MakeNetwork) -> None:
    network, pixels = make_network(), torch.randn(1, 3, 16, 24)
    calls = {
        "metric 'erasure': expected 'deletion', 'inser": lambda: faithfulness(network, pixels, {}, 0, ("erasure",)),
        "random_orders = -1: expected": lambda: faithfulness(network, pixels, {}, 0, random_orders=-1),
    }
    check_refusals(MethodError, calls)
    shape = r"map 'map' of shape \(6, 4\): expected 'grid_height grid_width', \(4, 6\)"
    check_refusals(ConfigError, {shape: lambda: faithfulness(network, pixels, {"map": torch.rand(6, 4)}, 0)})
