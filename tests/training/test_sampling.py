"""Which images an epoch sees."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from vitviz.training.sampling import balanced_order, class_counts

SIZES = np.array([400, 90, 7, 1])
TARGETS = torch.from_numpy(np.repeat(np.arange(4), SIZES))


@pytest.mark.parametrize("balance", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("count", [3, 100, 498, 1000])
def test_classes_get_their_shares_over_the_epochs(balance: float, count: int) -> None:
    shares = SIZES ** (1 - balance)
    epochs = [class_counts(SIZES, count, balance, epoch) for epoch in range(50)]
    assert {int(each.sum()) for each in epochs} == {count}
    expected = shares / shares.sum() * count
    assert np.abs(np.array(epochs) - expected).max() <= 1
    assert np.abs(np.mean(epochs, 0) - expected).max() < 0.1


def test_every_image_is_seen_before_any_is_repeated() -> None:
    image_counts: Counter[int] = Counter()
    for epoch in range(30):
        image_counts.update(balanced_order(TARGETS, 100, 0.5, seed=0, epoch=epoch).tolist())
        for index in range(4):
            often = [image_counts[int(image)] for image in (index == TARGETS).nonzero()]
            assert max(often) - min(often) <= 1
    assert image_counts[497] > 80 and image_counts[0] < 10


def test_an_epoch_follows_from_seed_and_number_and_is_in_random_order() -> None:
    order, repeated = (balanced_order(TARGETS, 100, 0.5, 0, 3) for _ in range(2))
    assert torch.equal(order, repeated)
    for other_order in (balanced_order(TARGETS, 100, 0.5, 1, 3), balanced_order(TARGETS, 100, 0.5, 0, 4)):
        assert not torch.equal(order, other_order)
    classes = TARGETS[order]
    assert len(classes) == 100 and not torch.equal(classes, classes.sort().values)


def test_without_balance_a_whole_set_is_seen_once() -> None:
    assert sorted(balanced_order(TARGETS, len(TARGETS), 0.0, 0, 5).tolist()) == list(range(len(TARGETS)))
