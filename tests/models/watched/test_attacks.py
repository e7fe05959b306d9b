"""Modules that were made to deceive: each is refused, or shown with the weights that it uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.support.modules import DEPTH, HEADS, SIZE, WIDTH, Layer, OwnViT, load_own
from vitviz import ConfigError, VitvizError

pytestmark = pytest.mark.slow

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
SCALE = (WIDTH // HEADS) ** -0.5
LAST = DEPTH - 1


def weights(queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    return (queries @ keys.mT * SCALE).softmax(-1)


def plain(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return weights(queries, keys) @ values


class Deceiver(OwnViT):
    """Attends by a function of its own in one layer, or in all."""

    def __init__(self, attend: Attend, place: int | None = None, way: str = "fused") -> None:
        super().__init__(way)
        self.pairs: list[torch.Tensor] = []
        for number, layer in enumerate(self.layers):
            if place in (None, number):
                layer.attend = lambda normed, layer=layer: attend(*maps(layer, normed))  # type: ignore[union-attr]


def maps(layer: Layer, normed: torch.Tensor) -> list[torch.Tensor]:
    linear = (layer.query, layer.key, layer.value)
    return [each(normed).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for each in linear]


@torch.library.custom_op("vitviz_tests::private", mutates_args=())
def private(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """A kernel whose name says nothing."""
    return F.scaled_dot_product_attention(queries, keys, values).contiguous()


@torch.library.custom_op("vitviz_tests::flash_attn", mutates_args=())
def flash(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """A kernel with the name of one."""
    return F.scaled_dot_product_attention(queries, keys, values).contiguous()


S = F.scaled_dot_product_attention
MOVED = r"tokens change places or mix|do not follow one another|in no layer do they match"
NOT_SHARES = r"do not sum to 1|its attention weights make another product|no attention was seen"
REFUSED: dict[str, tuple[Attend, int | None, str]] = {
    "a difference of two": (lambda q, k, v: S(q, k, v) - 0.5 * S(k, q, v), None, "do not follow one another"),
    "a difference with copied values": (lambda q, k, v: S(q, k, v) - S(k, q, v.clone()), None, "do not follow"),
    "rows in another order": (lambda q, k, v: S(q.flip(2), k, v), None, MOVED),
    "rows of the last layer": (lambda q, k, v: S(q.flip(2), k, v).flip(2), LAST, MOVED),
    "rows of the last layer by hand": (lambda q, k, v: plain(q.flip(2), k, v).flip(2), LAST, MOVED),
    "columns in the middle": (lambda q, k, v: S(q, k.flip(2), v), 1, MOVED),
    "values read twice": (lambda q, k, v: (w := weights(q, k)) @ v + w @ k, None, NOT_SHARES),
    "weights of weights": (lambda q, k, v: weights(q, k) @ (weights(k, q) @ v), None, "do not|differ|mix|match"),
    "a product by elements": (lambda q, k, v: (weights(q, k)[..., None] * v[:, :, None]).sum(-2), 1, NOT_SHARES),
    "a mean of two": (lambda q, k, v: (weights(q, k) + weights(k, q)) / 2 @ v, None, NOT_SHARES),
    "a gate": (lambda q, k, v: (weights(q, k) * 0.9) @ v, None, NOT_SHARES),
    "heads that are mixed": (lambda q, k, v: weights(q, k).flip(1).cumsum(1) @ v, None, NOT_SHARES),
    "a kernel of a package": (flash, None, "computed by the kernel flash_attn"),
    "a private kernel": (private, None, "no attention was seen"),
    "a sink": (lambda q, k, v: F.softmax(F.pad(q @ k.mT * SCALE, (0, 1)), -1)[..., :-1] @ v, None, NOT_SHARES),
}


@pytest.mark.parametrize(("attend", "place", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_shown_exactly_is_refused(attend: Attend, place: int | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_own(Deceiver(attend, place))


def hidden_sum(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return S(queries, keys, values) + 1e-3 * values.flip(2).cumsum(2)


@pytest.mark.parametrize("attend", [hidden_sum, private])
@pytest.mark.parametrize("place", range(DEPTH))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_mixes_tokens_beside_attention_is_refused_or_said(attend: Attend, place: int, dtype: torch.dtype) -> None:
    try:
        said = load_own(Deceiver(attend, place).to(dtype)).assumptions
    except ConfigError as error:
        assert any(word in str(error) for word in ("mix", "follow", "match"))
    else:
        assert any("operations mix tokens" in each or "reads several tokens" in each for each in said)


def shown(attend: Callable[..., Any]) -> tuple[Attend, list[torch.Tensor]]:
    """A function that keeps the weights that it uses."""
    found: list[torch.Tensor] = []

    def function(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        used = attend(queries, keys)
        found.append(used.detach())
        return used @ values

    return function, found


RIGHT: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "heads that change places": lambda q, k: weights(q, k).flip(1),
    "sharpened": lambda q, k: (w := weights(q, k) ** 2) / w.sum(-1, keepdim=True),
    "the most similar": lambda q, k: (
        (s := q @ k.mT).masked_fill(s < s.topk(9, -1).values[..., -1:], -torch.inf).softmax(-1)
    ),
    "divided by their sum": lambda q, k: (w := (q @ k.mT).relu() + 0.1) / w.sum(-1, keepdim=True),
    "changed in place behind": lambda q, k: (q @ k.mT * SCALE).softmax(-1).clamp_(0, 1),
}


@pytest.mark.parametrize("attend", RIGHT.values(), ids=RIGHT)
def test_weights_that_sum_to_one_are_those_that_the_module_uses(attend: Callable[..., Any]) -> None:
    function, found = shown(attend)
    model = load_own(Deceiver(function))
    found.clear()
    trace = model.network.encode(torch.randn(1, 3, *SIZE)).traces[0]
    for layer, expected in enumerate(found):
        torch.testing.assert_close(trace.weights(layer), expected[0], atol=1e-5, rtol=1e-5)


def test_layers_alike_are_two_layers() -> None:
    module = OwnViT()
    module.layers[1] = module.layers[2] = module.layers[0]
    model = load_own(module)
    trace = model.network.encode(torch.randn(1, 3, *SIZE)).traces[0]
    assert trace.layers == DEPTH
    assert float((trace.weights(0) - trace.weights(1)).abs().max()) > 1e-3


class MixesBehind(OwnViT):
    """Mixes tokens behind its last layer, by a kernel that is not read."""

    def read(self, tokens: torch.Tensor) -> torch.Tensor:
        heads = tokens.unflatten(2, (HEADS, -1)).transpose(1, 2)
        return super().read(tokens + private(heads, heads, heads).transpose(1, 2).flatten(2))


def test_mixing_behind_the_last_layer_is_said() -> None:
    assert any(f"behind layer {LAST}, the output reads several" in each for each in load_own(MixesBehind()).assumptions)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["a difference of two", "rows of the last layer", "values read twice"])
def test_half_precision_hides_nothing(name: str, dtype: torch.dtype) -> None:
    attend, place, message = REFUSED[name]
    with pytest.raises(VitvizError, match=message):
        load_own(Deceiver(attend, place).to(dtype))


class Switching(OwnViT):
    """Takes another way through its code for a bright picture: other weights, or another number of layers."""

    def __init__(self, drops: bool) -> None:
        super().__init__()
        self.drops, self.other = drops, Layer("fused", None, False, HEADS)
        nn.init.normal_(self.other.query.weight)
        self.eval()

    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        tokens, is_bright = self.tokens(pixels), bool(pixels.mean() > 1)
        for number, layer in enumerate(self.layers):
            if is_bright and number == LAST:
                layer = self.other
                if self.drops:
                    continue
            tokens = layer(tokens)
        return tokens


def test_a_picture_that_takes_another_way_is_verified_anew_or_refused() -> None:
    module, bright = Switching(False), torch.randn(1, 3, *SIZE) + 3
    network = load_own(module).network
    for pixels in (bright, torch.randn(1, 3, *SIZE), bright):
        encoding = network.encode(pixels)
        assert torch.equal(encoding.logits, module(pixels))
    tokens = module.layers[1](module.layers[0](module.tokens(bright)))
    queries, keys, _ = maps(module.other, module.other.norm(tokens))
    torch.testing.assert_close(encoding.traces[0].weights(LAST), weights(queries, keys)[0], check_dtype=False)
    others = torch.randn(2, 3, *SIZE) + 3
    for other in others.split(1):
        network.encode(other)
    for pixels in (bright, *others.split(1)):
        torch.testing.assert_close(network.without(pixels), module(pixels))
    # Also one that was never encoded, after and before others.
    for known in (network, load_own(module).network):
        for pixels in (torch.randn(1, 3, *SIZE) + 3, torch.randn(1, 3, *SIZE), bright):
            torch.testing.assert_close(known.without(pixels), module(pixels))
    with pytest.raises(ConfigError, match="2 layers of 4 heads; when it was verified, this module had 3 of 4"):
        load_own(Switching(True)).network.encode(bright)
