"""Gradients of what a network does not have, and parts of a trace that contradict each other, are refused."""

from dataclasses import replace

import torch

from tests.support.makers import MakeNetwork
from tests.support.refusals import check_refusals
from vitviz import TokenLayout
from vitviz.attribution import relevance
from vitviz.errors.kinds import ConfigError, ImageError, QueryError
from vitviz.models.gradients import GradientTrace, trace_gradients
from vitviz.models.targets import class_target


def test_a_missing_layer_or_token_is_refused(make_network: MakeNetwork) -> None:
    network, pixels = make_network(), torch.randn(1, 3, 16, 24)
    layers = {
        "layer 3: this model has layers 0 to 2 ": lambda: trace_gradients(network, pixels, 0, 3),
        "token 'register 9'": lambda: relevance(trace_gradients(network, pixels, 0), "register 9"),
    }
    check_refusals(QueryError, layers)
    check_refusals(ImageError, {"2 images: expected one": lambda: trace_gradients(network, torch.cat([pixels] * 2), 0)})


def test_parts_that_contradict_each_other_are_refused() -> None:
    layout, tensors = TokenLayout(("cls",), 1, 2), (torch.zeros(2, 3, 4),)
    trace = GradientTrace(tensors, tensors, tensors, tensors, (None,), 1.0, layout, 0, class_target(0, 1), 0.0)
    parts = {
        r"gradient trace of \[1, 1, 2, 1, 1\] layers": {"values": tensors * 2},
        ".*expected one, 'head token dim' with 3 tokens": {"keys": (torch.zeros(2, 4, 4),)},
        ".*with 7 tokens": {"layout": TokenLayout(("cls",), 2, 3)},
        r"pooled of shape \(2, 4\): expected 'head token' with 3 tokens$": {"pooled": torch.zeros(2, 4)},
        r"pooled of shape \(3,\): expected 'head token' with 3 tokens$": {"pooled": torch.zeros(3)},
    }
    check_refusals(ConfigError, {text: lambda part=part: replace(trace, **part) for text, part in parts.items()})
