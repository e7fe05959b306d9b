"""Removing patches in a map's order: which are removed, what replaces them, and the curves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.support.makers import MakeNetwork
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


def test_the_first_and_the_last_step_are_the_image_and_none_of_it(make_network: MakeNetwork) -> None:
    network, pixels = make_network(), torch.randn(1, 3, 16, 24)
    found = faithfulness(network, pixels, {"map": torch.rand(4, 6)}, 2, ("deletion", "insertion"))
    score = float(network(pixels).softmax(-1)[0, 2])
    empty = float(network(torch.zeros_like(pixels)).softmax(-1)[0, 2])
    soft = float(network(blur(pixels[0])[None]).softmax(-1)[0, 2])
    for name in ("map", RANDOM):
        for metric, last in (("deletion", empty), ("insertion", soft)):
            curve = found[metric][name]
            assert curve.steps.tolist() == pytest.approx([step / 16 for step in range(17)])
            assert curve.scores[0] == pytest.approx(score, abs=1e-5)
            assert curve.scores[-1] == pytest.approx(last, abs=1e-5)


# Targets that are no class.


def test_shares_are_those_of_the_way_from_the_blank_to_the_whole_image(make_network: MakeNetwork) -> None:
    network, pixels = make_network(), torch.randn(1, 3, 16, 24)
    logits = [network(image)[0] for image in (torch.zeros_like(pixels), pixels, blur(pixels[0])[None])]
    index = int((logits[1] - logits[0]).argmax())
    target = class_target(index, 5)
    blank, full, soft = (float(each[index]) for each in logits)
    assert ends(network, pixels, target) == pytest.approx((blank, full), abs=1e-5)
    reports: list[Progress] = []
    maps = {"map": torch.rand(4, 6)}
    found = faithfulness(network, pixels, maps, target, ("deletion", "insertion"), report=reports.append)
    assert reports[-1] == Progress(2 * 17 * (1 + RANDOM_ORDERS), 2 * 17 * (1 + RANDOM_ORDERS))
    for name in ("map", RANDOM):
        for metric, last in (("deletion", 0.0), ("insertion", (soft - blank) / (full - blank))):
            assert found[metric][name].scores[0] == pytest.approx(1, abs=1e-4)
            assert found[metric][name].scores[-1] == pytest.approx(last, abs=1e-4)


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


def test_progress_is_reported_and_an_exception_ends_it(make_network: MakeNetwork) -> None:
    network, pixels = make_network(), torch.randn(1, 3, 16, 24)
    reports: list[Progress] = []
    faithfulness(network, pixels, {"map": torch.rand(4, 6)}, 0, ("deletion",), report=reports.append)
    total = 17 * (1 + RANDOM_ORDERS)
    # The whole image and the one without any patch are those of all orders.
    images = total - 2 * RANDOM_ORDERS
    assert [each.done for each in reports] == [total * done // images for done in (BATCH_SIZE, images)]
    assert {each.total for each in reports} == {total}

    def stop(progress: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        faithfulness(network, pixels, {}, 0, report=stop)


def test_impossible_requests_are_refused(make_network: MakeNetwork) -> None:
    network, pixels = make_network(), torch.randn(1, 3, 16, 24)
    with pytest.raises(MethodError, match="metric 'erasure': expected 'deletion', 'insertion'"):
        faithfulness(network, pixels, {}, 0, ("erasure",))
    with pytest.raises(MethodError, match="target 5: this model has classes 0 to 4"):
        faithfulness(network, pixels, {}, 5)
    with pytest.raises(MethodError, match="target 0: this model has no classifier"):
        faithfulness(make_network(classes=0), pixels, {}, 0)
    with pytest.raises(ConfigError, match=r"map 'map' of shape \(6, 4\): expected 'grid_height grid_width', \(4, 6\)"):
        faithfulness(network, pixels, {"map": torch.rand(6, 4)}, 0)
