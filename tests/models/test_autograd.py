"""Gradients that do not arrive are refused, by every method alike: there is no map of zeros in their place."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

import vitviz
from tests.support.modules import DEPTH, OwnViT, load_own, picture
from vitviz import Analysis, MethodError

pytestmark = pytest.mark.slow

METHODS = ("relevance", "gradient_rollout", "grad_cam", "legrad", "integrated_gradients")
every_method = pytest.mark.parametrize("method", METHODS)


def map_of(analysis: Analysis, method: str) -> torch.Tensor:
    options: dict[str, Any] = {"steps": 2} if method == "integrated_gradients" else {}
    return analysis.map(method, **options).values


class Frozen(OwnViT):
    """A network whose lower layers, or all of them, run in a mode without gradients; the classifier does not."""

    def __init__(self, mode: Callable[[], Any], layers: int, detaches: bool = False) -> None:
        super().__init__()
        self.mode, self.frozen_layers, self.detaches = mode, layers, detaches

    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        with self.mode():
            tokens = self.tokens(pixels)
            for layer in self.layers[: self.frozen_layers]:
                tokens = layer(tokens)
        tokens = tokens.detach() if self.detaches else tokens
        for layer in self.layers[self.frozen_layers :]:
            tokens = layer(tokens)
        return tokens


@pytest.mark.parametrize("method", METHODS[:-1])
@pytest.mark.parametrize(("mode", "layers"), [(torch.no_grad, DEPTH), (torch.inference_mode, 1)])
def test_maps_are_those_of_the_derivative_also_where_layers_run_without_gradients(
    mode: Callable[[], Any], layers: int, method: str
) -> None:
    module = Frozen(mode, layers)
    found = map_of(vitviz.analyze(picture(), load_own(module)), method)
    module.mode = contextlib.nullcontext
    torch.testing.assert_close(found, map_of(vitviz.analyze(picture(), load_own(module)), method))
    assert found.any()


@every_method
def test_detached_features_are_refused(method: str) -> None:
    module = Frozen(contextlib.nullcontext, DEPTH, detaches=True)
    with pytest.raises(MethodError, match="computes without gradients"):
        map_of(vitviz.analyze(picture(), load_own(module)), method)


@pytest.mark.parametrize(("mode", "layers"), [(torch.no_grad, DEPTH), (torch.inference_mode, 1)])
def test_gradients_of_pixels_are_refused_where_layers_run_without_them(mode: Callable[[], Any], layers: int) -> None:
    analysis = vitviz.analyze(picture(), load_own(Frozen(mode, layers)))
    with pytest.raises(MethodError, match=r"computes without gradients|are from torch\.inference_mode"):
        map_of(analysis, "integrated_gradients")


@pytest.mark.parametrize("method", ["relevance", "gradient_rollout", "legrad"])
def test_maps_that_start_above_the_frozen_layers_are_those_without_frozen_ones(method: str) -> None:
    module = Frozen(torch.no_grad, 2)
    frozen = vitviz.analyze(picture(), load_own(module)).map(method, start_layer=-1).values
    module.mode = contextlib.nullcontext
    analysis = vitviz.analyze(picture(), load_own(module))
    torch.testing.assert_close(frozen, analysis.map(method, start_layer=2).values)
    assert frozen.any()


class Cut(OwnViT):
    """The pixels have a gradient, which is zero, although they decide the output."""

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return super().forward(pixels.detach()) + 0 * pixels.mean()


def test_a_gradient_of_zero_beside_an_effect_of_pixels_is_refused() -> None:
    with pytest.raises(MethodError, match="computes without gradients"):
        map_of(vitviz.analyze(picture(), load_own(Cut())), "integrated_gradients")


@every_method
def test_weights_from_inference_mode_are_refused_and_a_copy_of_them_is_not(method: str) -> None:
    with torch.inference_mode():
        torch.manual_seed(0)
        module = OwnViT()
    with pytest.raises(MethodError, match=r"torch\.inference_mode, .* or load copy\.deepcopy\(module\)"):
        map_of(vitviz.analyze(picture(), load_own(module)), method)
    found = map_of(vitviz.analyze(picture(), load_own(copy.deepcopy(module))), method)
    torch.manual_seed(0)
    assert torch.equal(found, map_of(vitviz.analyze(picture(), load_own(OwnViT())), method)) and found.any()


def test_a_layer_without_effect_has_a_gradient_of_zero() -> None:
    class Early(OwnViT):
        """Classifies the tokens before its last layer, which runs for nothing."""

        def encode(self, pixels: torch.Tensor) -> torch.Tensor:
            tokens = self.layers[1](self.layers[0](self.tokens(pixels)))
            self.layers[2](tokens)
            return tokens

    analysis = vitviz.analyze(picture(), load_own(Early()))
    assert map_of(analysis, "relevance").any() and not map_of(analysis, "grad_cam").any()
