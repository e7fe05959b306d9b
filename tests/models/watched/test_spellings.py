"""The same attention in other words is watched, or refused with the layer."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import vitviz
from tests.support.comparison import closeness
from tests.support.modules import HEADS, SIZE, WIDTH, Layer, OwnViT, explicit_weights, load_own, picture
from vitviz import ConfigError, MethodError

pytestmark = pytest.mark.slow

close = closeness(tolerance=1e-5, any_type=True)
SCALE = (WIDTH // HEADS) ** -0.5
Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Spelled(OwnViT):
    """Attention of queries, keys and values ``"batch head token dim"`` by a function."""

    def __init__(self, attend: Attend) -> None:
        super().__init__("written out")
        for layer in self.layers:
            layer.attend = lambda normed, layer=layer: attend(*projections(layer, normed))  # type: ignore[union-attr]


def projections(layer: Layer, normed: torch.Tensor) -> list[torch.Tensor]:
    maps = (layer.query, layer.key, layer.value)
    return [each(normed).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for each in maps]


def scores(queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    return queries @ keys.mT * SCALE


def with_item(found: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    found[:, :, mask] = -math.inf
    return found


def loop(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Heads one after the other, in each image."""
    images = []
    for image in zip(queries, keys, values, strict=True):
        heads = zip(*image, strict=True)
        images.append(torch.stack([torch.mm(scores(q, k).softmax(-1), v) for q, k, v in heads]))
    return torch.stack(images)


def by_hand(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    powers = scores(queries, keys).exp()
    return powers / powers.sum(-1, keepdim=True) @ values


def buffer(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Heads are written into a tensor one after the other."""
    found = torch.empty_like(values)
    for head in range(HEADS):
        found[:, head] = scores(queries[:, head], keys[:, head]).softmax(-1) @ values[:, head]
    return found


NEVER = torch.zeros(25, 25, dtype=torch.bool)
SPELLINGS: dict[str, Attend] = {
    "ellipsis": lambda q, k, v: torch.einsum(
        "...ij,...jd->...id", (torch.einsum("...id,...jd->...ij", q, k) * SCALE).softmax(-1), v
    ),
    "finite mask": lambda q, k, v: scores(q, k).masked_fill(NEVER, -1e9).softmax(-1) @ v,
    "tensor mask": lambda q, k, v: scores(q, k).masked_fill(NEVER, torch.tensor(-math.inf)).softmax(-1) @ v,
    "where": lambda q, k, v: torch.where(NEVER, torch.tensor(-1e4), scores(q, k)).softmax(-1) @ v,
    "item": lambda q, k, v: with_item(scores(q, k), NEVER).softmax(-1) @ v,
    "for a look": lambda q, k, v: (scores(q, k).softmax(-1), F.scaled_dot_product_attention(q, k, v))[1],
    "their mean, for a look": lambda q, k, v: (
        scores(q, k).softmax(-1).mean(1).sqrt(),
        F.scaled_dot_product_attention(q, k, v),
    )[1],
    "maximum": lambda q, k, v: ((s := scores(q, k)) - s.amax(-1, keepdim=True)).softmax(-1) @ v,
    "constant": lambda q, k, v: (scores(q, k) - 3).softmax(-1) @ v,
    "clamp": lambda q, k, v: scores(q, k).clamp(-1e4, 1e4).softmax(-1) @ v,
    "clamp in place": lambda q, k, v: scores(q, k).clamp_(-1e4, 1e4).softmax(-1) @ v,
    "loop": loop,
    "by hand": by_hand,
    "log": lambda q, k, v: F.log_softmax(scores(q, k), -1).exp() @ v,
    "one over the other": lambda q, k, v: (v.mT @ scores(q, k).softmax(-1).mT).mT,
    "slices of queries": lambda q, k, v: torch.cat([scores(each, k).softmax(-1) @ v for each in q.split(10, 2)], 2),
    "fused slices": lambda q, k, v: torch.cat(
        [F.scaled_dot_product_attention(each, k, v, scale=SCALE) for each in q.split(10, 2)], 2
    ),
    "vmap": lambda q, k, v: torch.vmap(lambda a, b, c: scores(a, b).softmax(-1) @ c)(q, k, v),
    "a buffer": buffer,
    "groups of heads": lambda q, k, v: F.scaled_dot_product_attention(
        *(each.unflatten(1, (2, -1)) for each in (q, k, v)), scale=SCALE
    ).flatten(1, 2),
}


@pytest.mark.parametrize("attend", SPELLINGS.values(), ids=SPELLINGS)
def test_another_spelling_has_the_same_weights(attend: Attend) -> None:
    module, pixels = Spelled(attend), torch.randn(1, 3, *SIZE)
    model = load_own(module)
    trace = model.network.encode(pixels).traces[0]
    assert trace.heads == HEADS and "layer" not in " ".join(model.assumptions)
    for layer, expected in enumerate(explicit_weights(module, pixels)):
        close(trace.weights(layer), expected)


DIAGONAL = torch.eye(25, dtype=torch.bool)
CHANGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "mask": lambda s: s.masked_fill(DIAGONAL, -1e9),
    "mask in place": lambda s: s.masked_fill_(DIAGONAL, -1e9),
    "small mask": lambda s: s.masked_fill(DIAGONAL, 0.5),
    "where": lambda s: torch.where(~DIAGONAL, s, -1e4),
    "item": lambda s: with_item(s, DIAGONAL),
    "subtraction": lambda s: s - 4 * DIAGONAL,
    "clamp": lambda s: s.clamp(-0.1, 0.1),
    "soft cap": lambda s: 0.5 * torch.tanh(s / 0.5),
    "sine": lambda s: s.sin(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_changes_scores_one_by_one_is_a_bias(change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    weights: list[torch.Tensor] = []

    def attend(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        weights.append(change(scores(queries, keys)).softmax(-1))
        return weights[-1] @ values

    module = Spelled(attend)
    model = load_own(module)
    weights.clear()
    trace = model.network.encode(torch.randn(1, 3, *SIZE)).traces[0]
    for layer, expected in enumerate(weights):
        close(trace.weights(layer), expected[0])
        assert bool((scores(*[trace.queries[layer], trace.keys[layer]]).softmax(-1) - expected[0]).abs().max() > 1e-3)


REFUSED: dict[str, tuple[Attend, str]] = {
    "gate": (
        lambda q, k, v: (scores(q, k).softmax(-1) * 0.9) @ v,
        "layer 0: the weights of a softmax among 25 tokens .*",
    ),
    "mixed heads": (
        lambda q, k, v: torch.einsum("bhij,gh->bgij", scores(q, k).softmax(-1), torch.ones(HEADS, HEADS)) @ v,
        "layer 0: the weights of a softmax among 25 tokens do not sum to 1 for each query where they meet values, .*",
    ),
    "values twice": (
        lambda q, k, v: scores(q, k).softmax(-1) @ v - 0.5 * (scores(k, q).softmax(-1) @ v),
        "the calls of attention 0 and 1 do not follow one another: .*",
    ),
    "distances": (
        lambda q, k, v: (q[:, :, :, None] - k[:, :, None]).abs().sum(-1).neg().softmax(-1) @ v,
        "attention among 25 tokens: .* one to one; some scores are no product of queries and keys .*",
    ),
}


@pytest.mark.parametrize(("attend", "message"), REFUSED.values(), ids=REFUSED)
def test_a_refusal_names_the_layer(attend: Attend, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^Spelled: {message}$"):
        load_own(Spelled(attend))


def test_where_weights_are_rounded_to_zero_the_scores_tell_what_hidden_patches_leave_or_nothing_does() -> None:
    first, hidden = torch.arange(25) == 1, list[bool]()

    def attend(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return scores(300 * queries, keys).masked_fill(first & bool(hidden), -math.inf).softmax(-1) @ values

    module = Spelled(attend)
    analysis = vitviz.analyze(picture(), load_own(module))
    found = analysis.switched_off(patches=[(0, 0)])
    hidden.append(True)
    close(found, module(analysis.prepared.pixels)[0])
    analysis = vitviz.analyze(
        picture(), load_own(Spelled(lambda q, k, v: (scores(q, k) + 200 * first).softmax(-1) @ v))
    )
    with pytest.raises(MethodError, match=r"^call 0 of attention: the hidden patches have all of a token's attention"):
        analysis.switched_off(patches=[(0, 0)])


MASKS: dict[str, dict[str, torch.Tensor]] = {
    "pairs": {"attn_mask": torch.arange(25)[:, None] < torch.arange(25) - 3},
    "numbers of each head": {"attn_mask": torch.linspace(-2, 2, HEADS * 625).view(HEADS, 25, 25)},
    "padding": {"key_padding_mask": torch.arange(25)[None] > 20},
    "both": {"attn_mask": torch.linspace(-2, 2, 625).view(25, 25), "key_padding_mask": torch.zeros(1, 25) - 1},
}


class MaskedLayer(nn.Module):
    """``torch.nn.MultiheadAttention`` with masks; stores its weights."""

    def __init__(self, kind: str, **options: bool) -> None:
        super().__init__()
        self.kind, self.weights = kind, torch.empty(0)
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, **options)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        normed, masks = self.norm(tokens), MASKS.get(self.kind, {})
        output, self.weights = self.attention(normed, normed, normed, average_attn_weights=False, **masks)
        return tokens + output


@pytest.mark.parametrize("kind", MASKS)
def test_masks_of_torch_s_own_attention_are_read(kind: str) -> None:
    module, pixels = OwnViT(), torch.randn(1, 3, *SIZE)
    module.layers = nn.ModuleList(MaskedLayer(kind) for _ in range(2)).eval()
    trace = load_own(module).network.encode(pixels).traces[0]
    with torch.no_grad():
        module(pixels)
    for number, layer in enumerate(module.layers):
        close(trace.weights(number), layer.weights[0])


def test_a_key_of_zeros_in_torch_s_own_attention_is_refused() -> None:
    module = OwnViT()
    module.layers = nn.ModuleList(MaskedLayer("", add_zero_attn=True) for _ in range(2)).eval()
    with pytest.raises(ConfigError, match=r"25 queries to 26 keys: .*; there are 1 more keys than tokens, which"):
        load_own(module)
