"""A head that is switched off is one whose weights are zero, and what it did is missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from vitviz import VisionTransformer
from vitviz.ablation import HeadEffects, head_effects
from vitviz.errors import MethodError
from vitviz.progress import Progress

Make = Callable[..., VisionTransformer]


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
def test_each_head_is_off_as_by_a_head_mask(make_network: Make, changes: dict[str, Any]) -> None:
    network, pixels = make_network(**changes), torch.randn(1, 3, 16, 24)
    config = network.config
    found = head_effects(network, pixels, 3)
    assert found.probability == pytest.approx(float(network(pixels).softmax(-1)[0, 3]), abs=1e-6)
    for layer in range(config.depth):
        for head in range(config.heads):
            mask = torch.ones(config.depth, config.heads)
            mask[layer, head] = 0
            expected = float(network(pixels, head_mask=mask).softmax(-1)[0, 3])
            assert float(found.without[layer, head]) == pytest.approx(expected, abs=1e-5)
    assert found.drop.abs().max() > 1e-3


def test_a_head_whose_values_are_zero_does_nothing(make_network: Make) -> None:
    network, pixels = make_network(), torch.randn(1, 3, 16, 24)
    attention = network.encoder[1].attention
    # Queries, keys, values: of the third part, the third head.
    values = slice(2 * 32 + 2 * 8, 2 * 32 + 3 * 8)
    attention.qkv.weight[values] = 0
    attention.qkv.bias[values] = 0
    drop = head_effects(network, pixels, 0).drop
    assert float(drop[1, 2].abs()) < 1e-6
    assert (drop.abs() > 1e-5).sum() == drop.numel() - 1


def test_the_strongest_are_those_whose_fall_is_largest() -> None:
    effects = HeadEffects(0.75, torch.tensor([[0.5, 0.75], [1.0, 0.25]]))
    assert effects.drop.tolist() == [[0.25, 0.0], [-0.25, 0.5]]
    assert effects.strongest(2) == [(1, 1, 0.5), (0, 0, 0.25)]
    assert len(effects.strongest(9)) == 4


def test_progress_is_told_and_what_is_not_there_refused(make_network: Make) -> None:
    network, pixels = make_network(), torch.randn(1, 3, 16, 24)
    told: list[Progress] = []
    head_effects(network, pixels, 0, told.append)
    assert told == [Progress(4 * layer, 12) for layer in (1, 2, 3)]
    with pytest.raises(MethodError, match="target 5: this model has classes 0 to 4"):
        head_effects(network, pixels, 5)
    with pytest.raises(MethodError, match="target 0: this model has no classifier"):
        head_effects(make_network(classes=0), pixels, 0)
