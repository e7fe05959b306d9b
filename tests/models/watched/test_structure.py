"""How calls of attention follow one another: layers in a row, heads that are modules, or something that is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import vitviz
from tests.support.comparison import closeness
from tests.support.modules import (
    DEPTH,
    HEADS,
    SIZE,
    WIDTH,
    Layer,
    MeanViT,
    OwnViT,
    explicit_weights,
    load_own,
    picture,
    randomised,
)
from vitviz import ConfigError

pytestmark = pytest.mark.slow

close = closeness(tolerance=1e-5, any_type=True)


class Head(nn.Module):
    """A head that is a module of its own; stores its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.maps = nn.ModuleList(nn.Linear(WIDTH, WIDTH // HEADS, bias=False) for _ in range(3))
        self.weights = torch.empty(0)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        queries, keys, values = (each(tokens) for each in self.maps)
        self.weights = (queries @ keys.transpose(-2, -1) * keys.shape[-1] ** -0.5).softmax(-1)
        return self.weights @ values


class HeadLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList(Head() for _ in range(HEADS))
        self.norm, self.projection = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        normed = self.norm(tokens)
        return tokens + self.projection(torch.cat([head(normed) for head in self.heads], -1))


class HeadModules(OwnViT):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(HeadLayer() for _ in range(DEPTH))
        randomised(self)


def test_heads_that_are_modules_are_the_heads_of_one_layer() -> None:
    module = HeadModules()
    analysis = vitviz.analyze(picture(), load_own(module))
    pixels, trace = analysis.prepared.pixels, analysis.trace
    module(pixels)
    assert (trace.layers, trace.heads) == (DEPTH, HEADS)
    for number, layer in enumerate(module.layers):
        close(trace.weights(number), torch.cat([head.weights for head in layer.heads]))  # type: ignore[union-attr]
    # A gradient flows to all heads of a layer, and each can be switched off.
    heads = module.layers[0].heads
    module(pixels)[0, 1].backward()
    gradients = [head.maps[2].weight.grad for head in heads]  # type: ignore[union-attr]
    assert all(bool(gradient.abs().max() > 0) for gradient in gradients)
    assert float(analysis.map("relevance", target=1).values.max()) > 0
    found = analysis.switched_off([(1, 2)])
    with torch.no_grad():
        module.layers[1].projection.weight[:, 16:24] = 0  # type: ignore[union-attr]
        close(found, module(pixels)[0])


@pytest.mark.parametrize("place", range(DEPTH))
def test_a_layer_that_changes_nothing_is_where_it_is(place: int) -> None:
    module = OwnViT()
    layer = module.layers[place]
    assert isinstance(layer, Layer)
    for linear in (layer.projection, layer.mlp[2]):
        nn.init.zeros_(linear.weight)
        nn.init.zeros_(linear.bias)
    model, pixels = load_own(module), torch.randn(1, 3, *SIZE)
    assert not any("not shown" in each for each in model.assumptions)
    trace = model.network.encode(pixels).traces[0]
    for number, expected in enumerate(explicit_weights(module, pixels)):
        close(trace.weights(number), expected)


class Branches(nn.Module):
    """Two attentions side by side, with their sum added to the tokens in one of several ways."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.branches = nn.ModuleList(Layer(name, None, False, HEADS) for name in ("fused", "written out"))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        contexts = [branch.attend(branch.norm(tokens)).transpose(1, 2).flatten(2) for branch in self.branches]
        outputs = [branch.projection(each) for branch, each in zip(self.branches, contexts, strict=True)]
        if self.way == "stack":
            return tokens + torch.stack([each * self.branches[0].norm.weight for each in outputs]).sum(0)
        if self.way == "sum":
            return tokens + sum(outputs)
        if self.way == "in turn":
            return tokens + outputs[0] + outputs[1]
        return tokens + self.branches[0].projection(contexts[0] - 0.5 * contexts[1])


class Branched(OwnViT):
    def __init__(self, way: str) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Branches(way) for _ in range(DEPTH))
        randomised(self)


@pytest.mark.parametrize("way", ["stack", "sum", "in turn"])
def test_branches_whose_projections_are_added_are_heads_of_one_layer(way: str) -> None:
    module, pixels = Branched(way), torch.randn(1, 3, *SIZE)
    trace = load_own(module).network.encode(pixels).traces[0]
    assert (trace.layers, trace.heads) == (DEPTH, 2 * HEADS)
    branch = OwnViT()
    branch.load_state_dict(module.state_dict(), strict=False)
    for number in range(2):
        branch.layers = nn.ModuleList([module.layers[0].branches[number]])  # type: ignore[union-attr, index]
        expected = explicit_weights(branch, pixels)[0]
        close(trace.weights(0)[number * HEADS : (number + 1) * HEADS], expected)


class Twice(OwnViT):
    """Runs on the picture and on its mirror image."""

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return super().forward(pixels) + super().forward(pixels.flip(-1))


class MaskedAgain(OwnViT):
    """Runs again on a picture that is darker where the first pass has small tokens."""

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        norms = self.encode(pixels)[:, 1:].norm(dim=-1).view(-1, 1, 4, 6)
        mask = (norms / norms.max()).repeat_interleave(4, 2).repeat_interleave(4, 3)
        return super().forward(pixels * mask)


class Decoder(OwnViT):
    """Learned queries attend to each other, and then to the tokens after the layers."""

    def __init__(self, count: int = 25) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(1, count, WIDTH))
        self.decoder = nn.ModuleList(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True) for _ in range(2))
        randomised(self)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        tokens, queries = self.encode(pixels), self.queries
        queries = queries + self.decoder[0](queries, queries, queries)[0]
        return self.classifier((queries + self.decoder[1](queries, tokens, tokens)[0]).mean(1))


class Scales(OwnViT):
    """Runs on the picture, and on one that is twice as large."""

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        larger = nn.functional.interpolate(pixels, scale_factor=2.0)
        return super().forward(pixels) + super().forward(larger)


class Moving(OwnViT):
    """Moves tokens to other places behind the first layer."""

    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        tokens = self.move(self.layers[0](self.tokens(pixels)))
        for layer in self.layers[1:]:
            tokens = layer(tokens)
        return tokens

    def move(self, tokens: torch.Tensor) -> torch.Tensor:
        return torch.cat([tokens[:, :1], tokens[:, 1:].flip(1)], 1)


class Sorting(Moving):
    """Sorts tokens by what they are, behind the first layer."""

    def move(self, tokens: torch.Tensor) -> torch.Tensor:
        order = tokens[:, 1:].norm(dim=-1, keepdim=True).argsort(1).expand(-1, -1, WIDTH)
        return torch.cat([tokens[:, :1], tokens[:, 1:].gather(1, order)], 1)


class Unseen(Moving):
    """Attends once more behind the first layer, with one head that is written by hand."""

    def move(self, tokens: torch.Tensor) -> torch.Tensor:
        weights = (tokens @ tokens.mT / WIDTH).exp()
        return tokens + weights / weights.sum(-1, keepdim=True) @ tokens


class Prompted(OwnViT):
    """New prompts in place of the last ones in every layer."""

    def __init__(self) -> None:
        super().__init__(registers=4)
        self.prompts = nn.Parameter(torch.randn(DEPTH, 1, 4, WIDTH))

    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        tokens = self.tokens(pixels)
        for layer, prompts in zip(self.layers, self.prompts, strict=True):
            tokens = layer(torch.cat([tokens[:, :25], prompts], 1))
        return tokens


class OldCls(OwnViT):
    """Puts the CLS token back in its place after the first layer."""

    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        tokens = self.tokens(pixels)
        tokens = torch.cat([tokens[:, :1], self.layers[0](tokens)[:, 1:]], 1)
        for layer in self.layers[1:]:
            tokens = layer(tokens)
        return tokens


BESIDE = "the calls of attention 2 and 3 do not follow one another: .* branches side by side, .*"
MOVED = r"between the calls of attention 0 and 1, tokens change places or mix \(\d+ change with \d+\)"
REPLACED = "between the calls of attention 0 and 1, tokens that are not patches are replaced, as by new prompts .*"
REFUSALS: dict[str, tuple[Any, str]] = {
    "difference": (lambda: Branched("difference"), BESIDE.replace("2 and 3", "0 and 1")),
    "twice": (Twice, BESIDE),
    "masked again": (MaskedAgain, "between the calls of attention 2 and 3, tokens change places or mix .*"),
    "decoder": (Decoder, BESIDE),
    "scales": (Scales, BESIDE.replace("2 and 3", "0 and 3")),
    "moving": (Moving, f"{MOVED}; expected the same tokens in every layer"),
    "sorting": (Sorting, f"{MOVED}; expected the same tokens in every layer"),
    "old CLS": (OldCls, REPLACED),
    "without a head": (Unseen, "4 layers attend .*, with 4 heads of 8 features and 1 heads of 32 features; .*"),
}


@pytest.mark.parametrize(("make", "message"), REFUSALS.values(), ids=REFUSALS)
def test_calls_that_are_no_layers_in_a_row_are_refused_as_what_was_seen(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^[A-Z][A-Za-z]*: {message}$"):
        load_own(make())


def test_prompts_that_are_new_in_every_layer_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=f"^Prompted: {REPLACED}$"):
        load_own(Prompted(), prefix=["cls", *(f"prompt {number}" for number in range(4))])


class Bare(OwnViT):
    """Attention alone, without residual connections."""

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        tokens = self.tokens(pixels)
        for layer in self.layers:
            tokens = layer.attend(layer.norm(tokens)).transpose(1, 2).flatten(2)  # type: ignore[operator, union-attr]
        return self.classifier(tokens[:, 0])


def test_layers_that_keep_no_token_are_layers() -> None:
    assert load_own(Bare()).network.config.depth == DEPTH


@pytest.mark.parametrize("count", [2, 4, 6])
def test_few_tokens_are_told_apart_in_several_passes(count: int) -> None:
    size = (4, 4 * count)
    assert load_own(OwnViT(scales=(None,) * 9), image_size=size).network.config.depth == 9
    with pytest.raises(ConfigError, match="do not follow one another"):
        load_own(Twice(), image_size=size)


class NoPrefix(MeanViT):
    def tokens(self, pixels: torch.Tensor) -> torch.Tensor:
        return super().tokens(pixels)[:, 1:]


def test_one_patch_is_a_grid() -> None:
    network = load_own(NoPrefix(), image_size=(4, 4), prefix=[]).network
    weights = network.encode(torch.randn(1, 3, 4, 4)).traces[0].weights(0)
    assert network.config.depth == DEPTH and weights.flatten().tolist() == [1] * len(weights)


def test_layers_that_are_not_shown_are_named() -> None:
    class Dropping(Moving):
        def move(self, tokens: torch.Tensor) -> torch.Tensor:
            return tokens[:, :15]

    shown = load_own(Dropping())
    assert shown.network.config.depth == 1
    assert shown.assumptions[-1] == "not shown: 2 of 3 calls of attention, counted from 0: 1, 2 among 15 tokens"
    behind = load_own(Decoder(10))
    assert behind.network.config.depth == DEPTH
    names = "3 among 10 tokens; 4 among 10 queries to 25 keys"
    assert behind.assumptions[-1] == f"not shown: 2 of 5 calls of attention, counted from 0: {names}"


class LastForCls(OwnViT):
    """In its last layer, CLS alone asks; written out or not."""

    is_written_out = False

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        tokens = self.tokens(pixels)
        for layer in self.layers[:-1]:
            tokens = layer(tokens)
        heads = tokens.unflatten(2, (HEADS, -1)).transpose(1, 2)
        if self.is_written_out:
            attended = (heads[:, :, :1] @ heads.mT * heads.shape[-1] ** -0.5).softmax(-1) @ heads
        else:
            attended = nn.functional.scaled_dot_product_attention(heads[:, :, :1], heads, heads)
        return self.classifier((tokens[:, :1] + attended.transpose(1, 2).flatten(2))[:, 0])


@pytest.mark.parametrize("is_written_out", [False, True])
def test_a_last_layer_that_asks_for_cls_alone_is_named(is_written_out: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LastForCls, "is_written_out", is_written_out)
    model = load_own(LastForCls())
    assert model.network.config.depth == DEPTH - 1
    assert model.assumptions[-1].startswith(f"call {DEPTH - 1} of attention, counted from 0, has one query")


class Convolutions(OwnViT):
    """Convolutions between the layers mix neighbouring patches, and a mean scales all of them."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.mixing = nn.ModuleList(nn.Conv2d(WIDTH, WIDTH, 5, padding=2, groups=WIDTH) for _ in range(DEPTH))
        torch.manual_seed(seed)
        randomised(self)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        tokens = self.tokens(pixels)[:, 1:]
        for layer, mixing in zip(self.layers, self.mixing, strict=True):
            tokens = layer(tokens)
            tokens = tokens + mixing(tokens.mT.unflatten(2, (4, 6))).flatten(2).mT
            tokens = tokens * tokens.mean(1, keepdim=True).sigmoid()
        return self.classifier(tokens.mean(1))


@pytest.mark.parametrize("seed", range(3))
def test_convolutions_hide_no_layer_whatever_the_weights_are(seed: int) -> None:
    model = load_own(Convolutions(seed), prefix=None)
    assert model.network.config.depth == DEPTH
    assert "not shown: before call 1, other operations mix tokens: convolutions, means" in str(model.assumptions)


class ByHand(nn.Module):
    """A layer of attention in which some other function than a softmax makes the weights."""

    def __init__(self, weigh: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.norm, self.weigh = nn.LayerNorm(WIDTH), weigh
        self.qkv, self.projection = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        queries, keys, values = self.qkv(self.norm(tokens)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        context = self.weigh(queries @ keys.mT / 3) @ values
        return tokens + self.projection(context.transpose(1, 2).flatten(2))


FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "exp": lambda scores: scores.exp() / scores.exp().sum(-1, keepdim=True),
    "sigmoid": lambda scores: scores.sigmoid() / scores.shape[-1],
    "over queries": lambda scores: scores.softmax(-2),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("place", [1, 2])
def test_a_layer_that_is_no_softmax_is_refused_or_said_to_be_missing(name: str, place: int) -> None:
    module = OwnViT()
    module.layers[place] = ByHand(FUNCTIONS[name])
    try:
        model = load_own(randomised(module))
    except ConfigError as error:
        assert f"layer {place}: " in str(error) or "mix" in str(error)
    else:
        # Powers that are divided by their sum are a softmax.
        assert model.network.config.depth == DEPTH - (name != "exp")
        assert ("not shown: " in " ".join(model.assumptions)) == (name != "exp")
