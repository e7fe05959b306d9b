"""Switching a head off equals zeroing its weights, and its effect is the fall of the score."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from tests.support.makers import MakeNetwork
from tests.support.plain import plain
from vitviz.errors.kinds import QueryError
from vitviz.metrics.ablation import HeadEffects, head_effects, switched_off
from vitviz.models.targets import Target, class_target
from vitviz.progress import Progress

# A target that is no class, with a score that is not linear in the output.
TEXT = Target("a direction", lambda output: 10 * torch.cosine_similarity(output, torch.ones_like(output), dim=0))


@pytest.mark.parametrize("target", [3, class_target(3, 5), TEXT], ids=["class", "logit", "no class"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"register_tokens": 4},
        {"cls_token": False, "pooling": "mean"},
        {"cls_token": False, "pooling": "attention"},
        {"heads": 1, "head_width": 32},
        {"depth": 1},
    ],
    ids=str,
)
def test_each_head_effect_equals_that_of_a_head_mask(
    make_network: MakeNetwork, changes: dict[str, Any], target: int | Target
) -> None:
    # For a target without a class, the network returns features.
    classes = {"classes": 0} if target is TEXT else {}
    network, pixels = make_network(**changes, **classes), torch.randn(1, 3, 16, 24)
    config = network.config

    def score(output: torch.Tensor) -> float:
        return float(target.score(output[0]) if isinstance(target, Target) else output.softmax(-1)[0, target])

    reports: list[Progress] = []
    found = head_effects(network, pixels, target, reports.append)
    assert reports == [
        Progress(config.heads * layer, config.heads * config.depth) for layer in range(1, config.depth + 1)
    ]
    assert found.whole == pytest.approx(score(network(pixels)), abs=1e-6, rel=1e-5)
    for layer in range(config.depth):
        for head in range(config.heads):
            mask = torch.ones(config.depth, config.heads)
            mask[layer, head] = 0
            expected = score(network(pixels, head_mask=mask))
            assert float(found.without[layer, head]) == pytest.approx(expected, abs=1e-5, rel=1e-5)
    assert found.drop.abs().max() > 1e-3


def test_the_strongest_heads_have_the_largest_effects() -> None:
    effects = HeadEffects(0.75, torch.tensor([[0.5, 0.75], [1.0, 0.25]]))
    assert effects.drop.tolist() == [[0.25, 0.0], [-0.25, 0.5]]
    assert effects.strongest(2) == [(1, 1, 0.5), (0, 0, 0.25)]
    assert len(effects.strongest(9)) == 4


# Any heads and patches at once.


HEADS_OFF = {(0, 0), (1, 2), (1, 3)}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"register_tokens": 4},
        {"cls_token": False, "pooling": "mean"},
        {"pooling": "cls and mean"},
        {"cls_token": False, "pooling": "attention"},
        {"rotary": True, "register_tokens": 1},
        {"heads": 1, "head_width": 32},
        {"classes": 0},
    ],
    ids=str,
)
def test_switching_off_equals_masking(make_network: MakeNetwork, changes: dict[str, Any]) -> None:
    network, pixels = make_network(**changes), torch.randn(1, 3, 16, 24)
    config, layout = network.config, network.config.layout(16, 24)
    every = {(layer, head) for layer in range(config.depth) for head in range(config.heads)}
    grid = [(row, column) for row in range(layout.grid_height) for column in range(layout.grid_width)]
    for heads, patches in [
        (set(), set()),
        (HEADS_OFF & every, set()),
        (set(), {grid[0], grid[-1], grid[3]}),
        (every, {grid[1]}),
        (HEADS_OFF & every, set(grid[1:])),
    ]:
        found = switched_off(network, pixels, heads, patches)
        mask = torch.ones(config.depth, config.heads)
        for layer, head in heads:
            mask[layer, head] = 0
        expected = plain(network, pixels, mask, tuple(map(layout.index, patches))).output[0]
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("heads", "patches", "message"),
    [
        ([(9, 0)], [], "layer 9, head 0: this model has layers 0 to 2 and heads 0 to 3"),
        ([(0, -1)], [], "layer 0, head -1: this model has layers 0 to 2 and heads 0 to 3"),
        ([], [(0, 99)], "patch (0, 99): this model has"),
        ([], [(row, column) for row in range(4) for column in range(6)], "all 24 patches are off"),
    ],
)
def test_missing_heads_and_patches_cannot_be_switched_off(
    make_network: MakeNetwork, heads: list[tuple[int, int]], patches: list[tuple[int, int]], message: str
) -> None:
    with pytest.raises(QueryError, match=f"^{re.escape(message)}"):
        switched_off(make_network(), torch.randn(1, 3, 16, 24), heads, patches)
