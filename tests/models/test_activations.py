"""The nonlinearities of an MLP."""

import pytest
import torch

from vitviz.models.activations import ACTIVATIONS, IN_PLACE, activate


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_in_place_are_the_same(name: str) -> None:
    values = torch.linspace(-6, 6, 1001)
    expected = ACTIVATIONS[name](values)
    wanted = values.clone().requires_grad_()
    assert torch.equal(activate(name, wanted), expected) and torch.equal(wanted, values)
    with torch.no_grad():
        spare = values.clone()
        assert torch.equal(activate(name, spare), expected)
        assert torch.equal(spare, expected) == (name in IN_PLACE)
