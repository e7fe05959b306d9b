"""Gradients of what a network does not have are refused."""

import torch

from tests.support.makers import MakeNetwork
from tests.support.refusals import check_refusals
from vitviz.attribution import relevance
from vitviz.errors.kinds import ImageError, QueryError
from vitviz.models.gradients import trace_gradients


def test_a_missing_layer_or_token_is_refused(make_network: MakeNetwork) -> None:
    network, pixels = make_network(), torch.randn(1, 3, 16, 24)
    layers = {
        "layer 3: this model has layers 0 to 2 ": lambda: trace_gradients(network, pixels, 0, 3),
        "token 'register 9'": lambda: relevance(trace_gradients(network, pixels, 0), "register 9"),
    }
    check_refusals(QueryError, layers)
    check_refusals(ImageError, {"2 images: expected one": lambda: trace_gradients(network, torch.cat([pixels] * 2), 0)})
