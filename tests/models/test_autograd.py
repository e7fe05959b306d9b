"""Gradients that do not arrive are refused, by every method alike: there is no map of zeros in their place."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import vitviz
from tests.support.modules import DEPTH, HEADS, SIZE, Layer, OwnViT, load_own, picture
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


class DetachedContext(OwnViT):
    """The attention of its second layer has no gradient, although the output reads it."""

    def __init__(self) -> None:
        super().__init__()
        layer = self.layers[1]
        attend = layer.attend
        layer.attend = lambda normed: attend(normed).detach()  # type: ignore[operator, union-attr, assignment]


@pytest.mark.parametrize("method", ["relevance", "gradient_rollout", "legrad"])
def test_a_layer_whose_attention_is_detached_is_refused_and_those_above_it_are_not(method: str) -> None:
    analysis = vitviz.analyze(picture(), load_own(DetachedContext()))
    with pytest.raises(MethodError, match="computes without gradients"):
        map_of(analysis, method)
    assert analysis.map(method, start_layer=2).values.any()


class Masked(OwnViT):
    """No token attends to the last one, by hand or in the fused kernel."""

    def __init__(self, way: str) -> None:
        super().__init__(way)
        for layer in self.layers:
            layer.attend = lambda normed, layer=layer: masked(layer, normed, way)  # type: ignore[union-attr, assignment]


def masked(layer: Layer, normed: torch.Tensor, way: str) -> torch.Tensor:
    maps = (layer.query, layer.key, layer.value)
    queries, keys, values = (each(normed).unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in maps)
    is_seen = torch.arange(normed.shape[1]) < normed.shape[1] - 1
    if way == "fused":
        mask = is_seen.expand(normed.shape[1], -1)
        return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=layer.scale)
    return (queries @ keys.mT * layer.scale).masked_fill(~is_seen, -torch.inf).softmax(-1) @ values


def test_attention_that_is_masked_by_hand_has_the_gradients_of_the_kernel() -> None:
    fused, written = Masked("fused"), Masked("written out")
    written.load_state_dict(fused.state_dict())
    pixels, networks = torch.randn(1, 3, *SIZE), [load_own(each).network for each in (fused, written)]
    found, expected = (each.attention_gradients(pixels, {3}, lambda logits: logits[0, 1]) for each in networks)
    assert expected.any() and not found[-1] and not found[3]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-3)


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


class Checkpointed(OwnViT):
    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        return checkpoint(super().encode, pixels, use_reentrant=True)


@pytest.mark.filterwarnings("ignore:None of the inputs")
@pytest.mark.parametrize(("kind", "message"), [(Cut, "without gradients"), (Checkpointed, "use_reentrant=True")])
def test_gradients_that_are_not_the_effect_of_pixels_are_refused(kind: type[OwnViT], message: str) -> None:
    with pytest.raises(MethodError, match=message):
        map_of(vitviz.analyze(picture(), load_own(kind())), "integrated_gradients")


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
