"""Random plain networks, in the words in which people write attention, against the same formula in double precision."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import vitviz
from vitviz.attribution.inputs import AttributionInput
from vitviz.attribution.methods import METHODS
from vitviz.models.targets import class_target

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float, torch.Tensor | None], torch.Tensor]
CLASSES, PATCH, DIM = 3, 4, 8
SEEDS, LONG_SEEDS = 200, 2000


def scores(q: torch.Tensor, k: torch.Tensor, scale: float, bias: torch.Tensor | None) -> torch.Tensor:
    found = q @ k.mT * scale
    return found if bias is None else found + bias


def by_heads(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, s: float, b: torch.Tensor | None) -> torch.Tensor:
    heads = range(q.shape[1])
    biases = [None if b is None else b[head] for head in heads]
    return torch.stack([scores(q[:, h], k[:, h], s, biases[h]).softmax(-1) @ v[:, h] for h in heads], 1)


def in_a_buffer(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, s: float, b: torch.Tensor | None) -> torch.Tensor:
    found = torch.empty_like(v)
    for head in range(q.shape[1]):
        found[:, head] = scores(q[:, head], k[:, head], s, None if b is None else b[head]).softmax(-1) @ v[:, head]
    return found


def by_powers(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, s: float, b: torch.Tensor | None) -> torch.Tensor:
    found = scores(q, k, s, b)
    powers = (found - found.amax(-1, keepdim=True)).exp()
    return powers / powers.sum(-1, keepdim=True) @ v


def by_bmm(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, s: float, b: torch.Tensor | None) -> torch.Tensor:
    first, second, values = (each.flatten(0, 1) for each in (q * s, k, v))
    found = torch.bmm(first, second.mT) if b is None else torch.baddbmm(b.repeat(len(q), 1, 1), first, second.mT)
    return torch.bmm(F.dropout(F.softmax(found, -1), 0.1, False), values).unflatten(0, (len(q), -1))


def slices(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, s: float, b: torch.Tensor | None) -> torch.Tensor:
    size = max(1, q.shape[2] // 2)
    rows = [slice(start, start + size) for start in range(0, q.shape[2], size)]
    parts = [scores(q[:, :, each], k, s, None if b is None else b[:, each]).softmax(-1) @ v for each in rows]
    return torch.cat(parts, 2)


def vmapped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, s: float, b: torch.Tensor | None) -> torch.Tensor:
    return torch.vmap(lambda x, y, z: scores(x, y, s, b).softmax(-1) @ z)(q, k, v)


def einsum(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, s: float, b: torch.Tensor | None) -> torch.Tensor:
    found = torch.einsum("bhid,bhjd->bhij", q, k) * s
    return torch.einsum("bhij,bhjd->bhid", (found if b is None else found + b).softmax(-1), v)


def token_first(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, s: float, b: torch.Tensor | None) -> torch.Tensor:
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    found = torch.einsum("bihd,bjhd->bhij", q, k) * s
    return torch.einsum("bhij,bjhd->bihd", (found if b is None else found + b).softmax(-1), v).transpose(1, 2)


def keys_first(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, s: float, b: torch.Tensor | None) -> torch.Tensor:
    found = k @ q.mT * s
    weights = (found if b is None else found + b.mT).softmax(-2)
    return (v.mT @ weights).mT


ATTENTION: dict[str, Attend] = {
    "fused": lambda q, k, v, s, b: F.scaled_dot_product_attention(q, k, v, attn_mask=b, scale=s),
    "plain": lambda q, k, v, s, b: scores(q, k, s, b).softmax(-1) @ v,
    "scaled queries": lambda q, k, v, s, b: scores(q * s, k, 1, b).softmax(-1) @ v,
    "divided": lambda q, k, v, s, b: ((q @ k.mT) / (1 / s) + (0 if b is None else b)).softmax(-1) @ v,
    "both scaled": lambda q, k, v, s, b: scores(q * s**0.5, k * s**0.5, 1, b).softmax(-1) @ v,
    "float softmax": lambda q, k, v, s, b: F.softmax(scores(q, k, s, b), -1, dtype=torch.float32).type_as(v) @ v,
    "logarithms": lambda q, k, v, s, b: F.log_softmax(scores(q, k, s, b), -1).exp() @ v,
    "powers": by_powers,
    "einsum": einsum,
    "tokens first": token_first,
    "keys first": keys_first,
    "bmm": by_bmm,
    "heads": by_heads,
    "buffer": in_a_buffer,
    "slices": slices,
    "vmap": vmapped,
}


class Norm(nn.Module):
    """A layer norm, or a root mean square by hand."""

    def __init__(self, width: int, is_by_hand: bool) -> None:
        super().__init__()
        self.norm, self.is_by_hand = nn.LayerNorm(width), is_by_hand

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        if not self.is_by_hand:
            return self.norm(tokens)
        return tokens * torch.rsqrt(tokens.pow(2).mean(-1, keepdim=True) + 1e-6) * self.norm.weight


class Block(nn.Module):
    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__()
        heads, groups = options["heads"], options["groups"]
        width = heads * DIM
        self.options, self.weights = options, torch.empty(0)
        self.maps = nn.ModuleList(nn.Linear(width, count * DIM) for count in (heads, groups, groups))
        self.projection, self.up, self.down = nn.Linear(width, width), nn.Linear(width, 24), nn.Linear(12, width)
        self.norms = nn.ModuleList(Norm(width, options["norms by hand"]) for _ in range(2))
        self.query_norm = Norm(DIM, True) if options["query norms"] else nn.Identity()
        count = options["count"]
        self.bias = nn.Parameter(torch.zeros(heads, count, count)) if options["bias"] else None

    def attend(self, tokens: torch.Tensor) -> torch.Tensor:
        q, k, v = (each(tokens).unflatten(-1, (-1, DIM)).transpose(1, 2) for each in self.maps)
        q, k = self.query_norm(q), self.query_norm(k)
        k, v = (each.repeat_interleave(q.shape[1] // each.shape[1], 1) for each in (k, v))
        if self.options["is reference"]:
            self.weights = scores(q, k, DIM**-0.5, self.bias).softmax(-1)
            if self.weights.requires_grad:
                self.weights.retain_grad()
            context = self.weights @ v
        else:
            context = ATTENTION[self.options["attention"]](q, k, v, DIM**-0.5, self.bias)
        return self.projection(context.transpose(1, 2).flatten(2))

    def mlp(self, tokens: torch.Tensor) -> torch.Tensor:
        gate, hidden = self.up(tokens).chunk(2, -1)
        return self.down(F.silu(gate) * hidden if self.options["gated"] else F.gelu(hidden))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        first, second = self.norms
        if self.options["block"] == "norm behind":
            tokens = first(tokens + self.attend(tokens))
            return second(tokens + self.mlp(tokens))
        if self.options["block"] == "side by side":
            return tokens + self.attend(first(tokens)) + self.mlp(second(tokens))
        tokens = self.attend(first(tokens)) + tokens
        if self.options["block"] == "in place" and not self.options["is reference"]:
            tokens += self.mlp(second(tokens))
            return tokens
        return tokens + self.mlp(second(tokens))


class Network(nn.Module):
    """A Vision Transformer of random options."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__()
        self.options, width = options, options["heads"] * DIM
        self.embedding = nn.Conv2d(3, width, PATCH, PATCH)
        self.extra = nn.Parameter(torch.zeros(1, options["extra"], width))
        self.positions = nn.Parameter(torch.zeros(1, options["count"], width))
        self.blocks = nn.ModuleList(Block(options) for _ in range(options["depth"]))
        self.norm, self.head = Norm(width, options["norms by hand"]), nn.Linear(width, CLASSES)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        if self.options["embedding"] == "convolution":
            tokens = self.embedding(pixels).flatten(2).mT
        else:
            patches = F.unfold(pixels, PATCH, stride=PATCH).mT
            tokens = patches @ self.embedding.weight.flatten(1).mT + self.embedding.bias
        extra = self.extra.expand(len(pixels), -1, -1)
        tokens = torch.cat([tokens, extra] if self.options["extra behind"] else [extra, tokens], 1) + self.positions
        for block in self.blocks:
            tokens = block(tokens)
        tokens = self.norm(tokens)
        cls = tokens[:, -self.options["extra"]] if self.options["extra behind"] else tokens[:, 0]
        return self.head(cls if self.options["extra"] and not self.options["mean"] else tokens.mean(1))


def options_of(seed: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)

    def draw(*choices: Any) -> Any:
        return choices[int(torch.randint(len(choices), (), generator=generator))]

    heads, rows, columns, extra = draw(1, 2, 3, 4), draw(2, 3, 4), draw(2, 3, 5), draw(0, 1, 1, 2, 3)
    return {
        **{"heads": heads, "groups": draw(heads, heads, 1), "rows": rows, "columns": columns, "extra": extra},
        **{"count": rows * columns + extra, "depth": draw(1, 2, 3), "attention": draw(*ATTENTION)},
        **{"block": draw("norm first", "norm first", "norm behind", "side by side", "in place")},
        **{"norms by hand": draw(True, False), "query norms": draw(False, False, True), "bias": draw(False, True)},
        **{"gated": draw(False, True), "embedding": draw("convolution", "linear")},
        **{"extra behind": draw(False, False, extra > 0), "mean": draw(False, False, True), "is reference": False},
    }


def network_of(options: dict[str, Any], seed: int) -> Network:
    torch.manual_seed(seed)
    module = Network(options).requires_grad_(False).eval()
    for parameter in module.parameters():
        nn.init.normal_(parameter, 0, 0.4)
    return module


def opened(seed: int) -> tuple[vitviz.Model, Network, dict[str, Any]]:
    options = options_of(seed)
    module, size = network_of(options, seed), (options["rows"] * PATCH, options["columns"] * PATCH)
    prefix = ["cls", *(f"register {number}" for number in range(1, options["extra"]))][: options["extra"]]
    facts: dict[str, Any] = {"image_size": size, "patch_size": PATCH, "prefix": prefix, "normalisation": "imagenet"}
    return vitviz.load(module, labels=list("abc"), **facts), module, options


def check(seed: int) -> None:
    """Weights, logits and relevance of a random network, beyond what single precision itself loses on a processor."""
    model, module, options = opened(seed)
    pixels = torch.randn(1, 3, options["rows"] * PATCH, options["columns"] * PATCH)
    encoding = model.network.encode(pixels)
    together = model.network.encode(torch.cat([torch.randn(3, *pixels.shape[1:]), pixels]))
    torch.testing.assert_close(together.logits[-1:], encoding.logits, atol=1e-3, rtol=1e-3)
    reference = network_of(options | {"is reference": True}, seed).double().requires_grad_(True)
    logits = reference(pixels.double())
    single = network_of(options | {"is reference": True}, seed)
    single(pixels)
    trace, extra = encoding.traces[0], options["extra"]
    order = torch.arange(options["count"]).roll(extra * options["extra behind"])
    torch.testing.assert_close(encoding.logits.double(), logits.detach(), atol=1e-3, rtol=1e-3)
    assert torch.equal(encoding.logits, module(pixels))
    assert (trace.layers, trace.heads) == (options["depth"], options["heads"])
    # The last layer's tokens are in place before the output is read, so that gradients are of its weights alone.
    logits[0, 1].backward()
    relevance = torch.eye(options["count"], dtype=torch.float64)
    for layer, (block, rounded) in enumerate(zip(reference.blocks, single.blocks, strict=True)):
        lost = float((rounded.weights - block.weights.detach()).abs().max())
        weights = block.weights[0].detach()[:, order][:, :, order]
        for each in (trace, together.traces[-1]):
            difference = float((each.weights(layer).double() - weights).abs().max())
            assert difference <= 1e-5 + lost, f"layer {layer}: weights differ by {difference:.2g}: {options}"
        gradient = block.weights.grad[0][:, order][:, :, order]
        relevance = relevance + (weights * gradient).clamp(min=0).mean(0) @ relevance
    if options["block"] == "in place":
        return
    inputs = AttributionInput(model.network, pixels, class_target(1, CLASSES))
    found = METHODS["relevance"].compute(inputs.gradients, query=(1, 1)).values.flatten().double()
    expected = relevance[extra + options["columns"] + 1, extra:]
    assert float((found - expected).abs().max()) <= 1e-3 * max(float(expected.max()), 1e-12), f"relevance: {options}"


@pytest.mark.slow
@pytest.mark.parametrize("block", range(8))
def test_plain_networks_have_the_weights_of_the_formula(block: int) -> None:
    for seed in range(block, SEEDS, 8):
        check(seed)


@pytest.mark.long
def test_two_thousand_plain_networks_have_the_weights_of_the_formula() -> None:
    for seed in range(SEEDS, LONG_SEEDS):
        check(seed)


def test_every_way_to_write_attention_is_drawn() -> None:
    drawn = [options_of(seed) for seed in range(SEEDS)]
    assert {each["attention"] for each in drawn} == set(ATTENTION)
    assert math.prod(len({str(each[name]) for each in drawn}) for name in ("block", "depth", "extra")) == 4 * 3 * 4
