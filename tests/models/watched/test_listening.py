"""Attention of a network that writes: a cache that grows, few queries to many keys, grouped heads, cross attention."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.support.comparison import closeness
from vitviz.errors.kinds import ConfigError
from vitviz.models.watched.calls import AttentionCall
from vitviz.models.watched.listening import attention_calls

close = closeness(tolerance=1e-6, any_type=True)
HEADS, GROUPS, DIM = 4, 2, 8


class Writer(nn.Module):
    """Reads a prompt, then one token at a time, with the keys and values of all before; and a picture's features."""

    def __init__(self, is_fused: bool) -> None:
        super().__init__()
        self.is_fused = is_fused
        self.maps = nn.ModuleList(nn.Linear(16, count * DIM) for count in (HEADS, GROUPS, GROUPS))
        self.out, self.cross = nn.Linear(HEADS * DIM, 16), nn.MultiheadAttention(16, 2, batch_first=True)
        self.cache: list[torch.Tensor] = []
        self.weights: list[torch.Tensor] = []

    def forward(self, tokens: torch.Tensor, picture: torch.Tensor) -> torch.Tensor:
        queries, *pair = (each(tokens).unflatten(-1, (-1, DIM)).transpose(1, 2) for each in self.maps)
        self.cache = [torch.cat(each, 2) for each in zip(self.cache, pair, strict=True)] if self.cache else pair
        keys, values = (each.repeat_interleave(HEADS // GROUPS, 1) for each in self.cache)
        count, total = queries.shape[2], keys.shape[2]
        mask = torch.zeros(count, total).masked_fill(torch.ones(count, total).triu(total - count + 1) > 0, -torch.inf)
        weights = (queries @ keys.mT * DIM**-0.5 + mask).softmax(-1)
        self.weights.append(weights[0].detach())
        if self.is_fused:
            context = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
        else:
            context = weights @ values
        tokens = tokens + self.out(context.transpose(1, 2).flatten(2))
        crossed, weights = self.cross(tokens, picture, picture, average_attn_weights=False)
        self.weights.append(weights[0].detach())
        return tokens + crossed


def weights_of(call: AttentionCall) -> torch.Tensor:
    scores = call.queries[0] @ call.keys[0].mT * call.scale
    return (scores if call.bias is None else scores + call.bias).softmax(-1).squeeze(0)


@pytest.mark.parametrize("is_fused", [True, False])
def test_calls_of_a_growing_cache_are_those_that_the_network_made(is_fused: bool) -> None:
    module, found, numbers = Writer(is_fused).eval(), list[torch.Tensor](), list[int]()
    picture, tokens = torch.randn(1, 9, 16), torch.randn(1, 6, 16)

    def note(call: AttentionCall) -> None:
        # One that the network makes only to compare is another.
        found.append(weights_of(call))
        numbers.append(call.number)

    with torch.no_grad(), attention_calls(note):
        for _ in range(4):
            tokens = module(tokens, picture)[:, -1:]
    assert numbers == list(range(8))
    for weights, expected in zip(found, module.weights, strict=True):
        close(weights, expected)


@pytest.mark.parametrize("is_fused", [True, False])
def test_the_last_queries_alone_have_their_attention(is_fused: bool) -> None:
    module, found = Writer(is_fused).eval(), list[torch.Tensor]()
    with torch.no_grad(), attention_calls(lambda call: found.append(weights_of(call)), slice(-2, None)):
        module(torch.randn(1, 6, 16), torch.randn(1, 9, 16))
    queries, keys = torch.randn(2, 1, 2, 6, 8)
    with attention_calls(lambda call: found.append(weights_of(call)), slice(-2, None)):
        F.scaled_dot_product_attention(queries, keys, keys, is_causal=True)
    causal = (queries @ keys.mT * 8**-0.5).masked_fill(torch.ones(6, 6).triu(1) > 0, -torch.inf).softmax(-1)
    for weights, expected in zip(found, [*module.weights, causal[0]], strict=True):
        close(weights, expected[:, -2:])


def test_a_kernel_that_is_not_read_is_refused() -> None:
    @torch.library.custom_op("vitviz_test::flash_attn", mutates_args=())
    def kernel(queries: torch.Tensor) -> torch.Tensor:
        return queries.clone()

    with pytest.raises(ConfigError, match="the kernel flash_attn, which is not read"), attention_calls(print):
        kernel(torch.zeros(1))


def test_what_was_made_long_ago_is_read_again() -> None:
    queries, features = torch.randn(1, 6, 16), torch.randn(1, 9, 16)
    with torch.no_grad(), attention_calls(lambda call: None):
        rows = features.transpose(1, 2).transpose(1, 2)
        for _ in range(700):
            queries.neg_()
        Writer(False)(queries, rows)


def test_nothing_is_held_after_a_call() -> None:
    references: list[weakref.ref[torch.Tensor]] = []

    def note(call: AttentionCall) -> None:
        references.extend([weakref.ref(call.queries), weakref.ref(call.output)])

    with torch.no_grad(), attention_calls(note):
        Writer(False)(torch.randn(1, 6, 16), torch.randn(1, 9, 16))
        gc.collect()
        assert references and all(reference() is None for reference in references)
