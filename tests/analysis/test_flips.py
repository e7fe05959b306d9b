"""A few squares without which the answer is another one: each is needed, and hiding them by hand gives the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support.makers import MakeModel
from tests.support.pictures import photo
from tests.support.refusals import check_refusals
from vitviz import Analysis, MethodError, analyze
from vitviz.metrics.ablation import switched_off, without_patches

MARGIN = 0.1
EXAMPLES = ("chelsea", "coffee", "flower", "rocket", "astronaut", "perch")
KINDS: list[dict[str, Any]] = [
    {},
    {"register_tokens": 4},
    {"cls_token": False, "pooling": "mean"},
    {"rotary": True, "register_tokens": 1},
    {"probability": "sigmoid"},
]


def wavering(make_model: MakeModel, lead: float = 0.2, **changes: object) -> Analysis:
    """An analysis by a random network whose answer is by default hardly ahead of the next two."""
    model = make_model(**changes)
    state = model.network.state_dict()
    # A few squares change little in a random network.
    state["classifier.weight"].mul_(30)
    bias = state["classifier.bias"]
    best = analyze(photo(), model).logits.topk(3)
    bias[best.indices] -= best.values - best.values[2] - torch.tensor([lead, 0.1, 0.0])
    return analyze(photo(), model)


def probabilities(analysis: Analysis, patches: list[tuple[int, int]]) -> torch.Tensor:
    logits = analysis.switched_off(patches=patches)
    return logits.sigmoid() if analysis.model.network.config.probability == "sigmoid" else logits.softmax(0)


def lead(analysis: Analysis, patches: list[tuple[int, int]], first: int) -> float:
    """How far another class is ahead of the first without these patches."""
    found = probabilities(analysis, patches)
    rest = torch.cat([found[:first], found[first + 1 :]])
    return float(rest.max() - found[first])


@pytest.mark.parametrize("changes", KINDS, ids=str)
def test_each_square_is_needed_and_hiding_them_by_hand_gives_the_same(
    make_model: MakeModel, changes: dict[str, Any]
) -> None:
    # Of several networks some change their answer.
    found = []
    for _ in range(4):
        analysis = wavering(make_model, **changes)
        flip, first = analysis.flip(margin=MARGIN, random_orders=0), analysis.predictions(1)[0].index
        assert flip.before == analysis.predictions(1)[0]
        if not flip:
            assert str(flip).endswith("No such squares were found within half of the 24.")
            assert flip.heatmap.description.startswith("No squares were found") and not flip.patches
            continue
        found.append(flip)
        patches = list(flip.patches)
        assert 0 < len(patches) <= 12
        assert lead(analysis, patches, first) >= MARGIN - 1e-5
        assert flip.after.index != first
        assert flip.after.probability == pytest.approx(float(probabilities(analysis, patches).max()), abs=1e-6)
        for patch in patches:
            rest = [each for each in patches if each != patch]
            assert not rest or lead(analysis, rest, first) < MARGIN + 1e-5
        covered = {(row, column) for row, column in flip.heatmap.values.nonzero().tolist()}
        assert covered == set(patches)
        squares = "this square" if len(patches) == 1 else f"these {len(patches)} squares"
        assert f"Cover {squares} and it says {flip.after.label}, {flip.after.probability:.0%}." in str(flip)
    assert found


def test_the_answer_can_be_asked_for(make_model: MakeModel) -> None:
    reached = 0
    for _ in range(4):
        analysis = wavering(make_model)
        wanted = analysis.predictions(3)[2]
        flip = analysis.flip(wanted.label, 0, random_orders=0)
        assert flip.after.index == wanted.index
        if flip:
            reached += 1
            assert int(probabilities(analysis, list(flip.patches)).argmax()) == wanted.index
    assert reached


def test_the_cup_becomes_a_padlock_where_random_orders_fail(bundled: Any) -> None:
    reports = []
    flip = analyze("assets/coffee.jpg", bundled).flip(report=reports.append)
    assert (flip.before.label, flip.after.label, flip.random_count) == ("soup", "padlock", None)
    assert reports[0].done and reports[-1].done > flip.passes


@pytest.mark.slow
def test_a_small_set_is_found_in_few_passes(bundled: Any) -> None:
    flips = [analyze(f"assets/{name}.jpg", bundled).flip(random_orders=0) for name in EXAMPLES]
    passes, sizes = [flip.passes for flip in flips], [len(flip.patches) for flip in flips]
    assert all(sizes) and sum(sizes) <= 75
    assert max(passes) <= 80 and sum(passes) <= 300


def test_random_orders_are_searched_in_the_same_way(make_model: MakeModel) -> None:
    for _ in range(8):
        analysis = wavering(make_model)
        flip = analysis.flip(margin=0.0)
        if flip.random_count is not None:
            assert 0 < flip.random_count <= 12
            return
    pytest.fail("no random order changed any answer")


def test_a_map_can_be_the_order(make_model: MakeModel) -> None:
    analysis = analyze(photo(), make_model())
    assert analysis.flip(order=analysis.rollout(), random_orders=0).before == analysis.predictions(1)[0]


@pytest.mark.parametrize("changes", [*KINDS[:4], {"cls_token": False, "pooling": "attention"}], ids=str)
def test_several_sets_at_once_are_each_by_itself(make_model: MakeModel, changes: dict[str, Any]) -> None:
    model = make_model(**changes)
    analysis = analyze(photo(), model)
    sets = [[0, 5, 23], [7, 8, 9], [23, 1, 2]]
    together = without_patches(model.network, analysis.prepared.pixels, sets)
    alone = [switched_off(model.network, analysis.prepared.pixels, patches=[divmod(p, 6) for p in s]) for s in sets]
    torch.testing.assert_close(together, torch.stack(alone), atol=1e-5, rtol=1e-5)


def test_of_a_single_patch_nothing_can_be_covered(make_model: MakeModel) -> None:
    flip = analyze(photo(), make_model(image_height=4, image_width=4)).flip()
    assert not flip and flip.heatmap.values.numel() == 1


def test_what_has_no_other_answer_is_refused_by_name(make_model: MakeModel) -> None:
    analysis = analyze(photo(), make_model())
    best = analysis.predictions(1)[0].label
    other, finer = analyze(photo(1), make_model()).rollout(), analyze(photo(), make_model(), resolution=32).rollout()
    check_refusals(
        MethodError,
        {
            "flip: small has no classifier": lambda: analyze(photo(), make_model(classes=0)).flip(),
            "flip: small has a single class": lambda: analyze(photo(), make_model(classes=1)).flip(),
            f"to = {best!r}: this is the answer already": lambda: analysis.flip(best),
            "target 99: this model has classes 0 to 4": lambda: analysis.flip(99, order=analysis.rollout()),
            "margin = 1: expected a number from 0": lambda: analysis.flip(margin=1),
            "maps: 'order' is on": lambda: analysis.flip(order=other),
            "order: Tensor .* found; expected a Heatmap": lambda: analysis.flip(order=other.values),  # type: ignore[arg-type]
            r"order: a map of \(.* patches; expected": lambda: analysis.flip(order=finer),
            "random_orders = -1": lambda: analysis.flip(random_orders=-1),
        },
    )
