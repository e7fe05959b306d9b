"""The nonlinearities of an MLP."""

import pytest
import torch

from vitviz.models.activations import ACTIVATIONS, IN_PLACE, activate


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_in_place_are_the_same(name: str) -> None:
    values = torch.linspace(-6, 6, 1001)
    expected = ACTIVATIONS[name](values)
    leaf = values.clone().requires_grad_()
    assert torch.equal(activate(name, leaf), expected) and torch.equal(leaf, values)
    with torch.no_grad():
        spare = values.clone()
        assert torch.equal(activate(name, spare), expected)
        assert torch.equal(spare, expected) == (name in IN_PLACE)
