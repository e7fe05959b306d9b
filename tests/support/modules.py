"""A Vision Transformer of nobody's package, whose attention is computed in the ways that packages have."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from vitviz import Model, load

SIZE, PATCH, WIDTH, HEADS, DEPTH, CLASSES = (16, 24), 4, 32, 4, 3, 5
LABELS = tuple(f"class {index}" for index in range(CLASSES))
WAYS = ("fused", "written out", "einsum", "bmm", "MultiheadAttention")


class Layer(nn.Module):
    """Pre-norm attention and MLP; keeps the attention weights of its last run, computed in a way of its own."""

    def __init__(self, way: str, scale: float | None, has_bias: bool, groups: int) -> None:
        super().__init__()
        self.way, self.scale, self.groups = way, scale or (WIDTH // HEADS) ** -0.5, groups
        self.norm, self.mlp_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        dim = WIDTH // HEADS
        self.query, self.key, self.value = (nn.Linear(WIDTH, dim * count) for count in (HEADS, groups, groups))
        self.multi_head = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True) if way == WAYS[4] else None
        self.bias = nn.Parameter(torch.randn(HEADS, 1, 1)) if has_bias else None
        self.projection = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 48), nn.GELU(), nn.Linear(48, WIDTH))
        self.seen: torch.Tensor | None = None

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        normed = self.norm(tokens)
        if self.multi_head is not None:
            tokens = tokens + self.multi_head(normed, normed, normed, need_weights=False)[0]
        else:
            tokens = tokens + self.projection(self.attend(normed).transpose(1, 2).flatten(2))
        return tokens + self.mlp(self.mlp_norm(tokens))

    def attend(self, normed: torch.Tensor) -> torch.Tensor:
        queries, keys, values = (
            part(normed).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        count = normed.shape[1]
        bias = None
        if self.bias is not None:
            apart = torch.arange(count, device=normed.device)
            bias = self.bias * (apart[:, None] - apart).abs() / count
        if self.way == "fused":
            return F.scaled_dot_product_attention(
                queries, keys, values, attn_mask=bias, scale=self.scale, enable_gqa=self.groups != HEADS
            )
        if self.way == "einsum":
            scores = torch.einsum("b h i d, b h j d -> b h i j", queries, keys) * self.scale
            weights = (scores if bias is None else scores + bias).softmax(-1)
            return torch.einsum("bhij,bhjd->bihd", weights, values).transpose(1, 2)
        if self.way == "bmm":
            queries, keys, values = (part.flatten(0, 1) for part in (queries * self.scale, keys, values))
            scores = torch.bmm(queries, keys.mT)
            weights = F.softmax(scores if bias is None else scores + bias.repeat(len(normed), 1, 1), dim=-1)
            return torch.bmm(F.dropout(weights, 0.1, self.training), values).unflatten(0, (-1, HEADS))
        scores = queries @ keys.transpose(-2, -1) * self.scale
        weights = F.softmax(scores if bias is None else scores + bias, dim=-1, dtype=torch.float32)
        return F.dropout(weights.to(values.dtype), 0.1, self.training) @ values


class OwnViT(nn.Module):
    """A user's own class: CLS token, patches row by row, registers behind them, CLS pooling.

    Args:
        way: how attention is computed, in :data:`WAYS`.
        scales: of every layer; None for the usual one.
        has_bias: whether layers add something to their scores.
        groups: heads of keys and values.
        registers: tokens behind the patches.
        classes: 0 for features.
    """

    def __init__(
        self,
        way: str = "fused",
        scales: tuple[float | None, ...] = (None,) * DEPTH,
        has_bias: bool = False,
        groups: int = HEADS,
        registers: int = 0,
        classes: int = CLASSES,
    ) -> None:
        super().__init__()
        self.embedding = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.last_tokens = nn.Parameter(torch.zeros(1, registers, WIDTH))
        self.layers = nn.ModuleList(Layer(way, scale, has_bias, groups) for scale in scales)
        self.norm = nn.LayerNorm(WIDTH)
        self.classifier = nn.Linear(WIDTH, classes) if classes else nn.Identity()
        for parameter in self.parameters():
            nn.init.normal_(parameter, 0, 0.3)
        self.eval()

    def tokens(self, pixels: torch.Tensor) -> torch.Tensor:
        patches = self.embedding(pixels).flatten(2).transpose(1, 2)
        # Without a position nothing would tell a wrong order of tokens.
        patches = patches + torch.linspace(0, 1, patches.shape[1], device=pixels.device)[:, None].to(patches)
        ends = (part.expand(len(pixels), -1, -1) for part in (self.cls_token, self.last_tokens))
        first, last = ends
        return torch.cat([first, patches, last], 1)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        tokens = self.tokens(pixels)
        for layer in self.layers:
            tokens = layer(tokens)
        return self.classifier(self.norm(tokens)[:, 0])


def explicit_weights(module: OwnViT, pixels: torch.Tensor) -> list[torch.Tensor]:
    """Every layer's attention weights ``"head query key"`` of one image, by the plain formula, in double precision."""
    tokens, found = module.tokens(pixels), []
    for layer in module.layers:
        assert isinstance(layer, Layer)
        normed = layer.norm(tokens).double()
        if layer.multi_head is None:
            pairs = [(part.weight, part.bias) for part in (layer.query, layer.key)]
        else:
            both = layer.multi_head
            pairs = list(zip(both.in_proj_weight.chunk(3)[:2], both.in_proj_bias.chunk(3)[:2], strict=True))
        queries, keys = (
            (normed @ weight.double().mT + bias.double()).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)[0]
            for weight, bias in pairs
        )
        keys = keys.repeat_interleave(HEADS // len(keys), 0)
        scores = queries @ keys.mT * layer.scale
        if layer.bias is not None:
            apart = torch.arange(len(scores[0]))
            scores = scores + layer.bias.double() * (apart[:, None] - apart).abs() / len(apart)
        found.append(torch.exp(scores) / torch.exp(scores).sum(-1, keepdim=True))
        tokens = layer(tokens)
    return found


def load_own(module: nn.Module, **arguments: Any) -> Model:
    """The module as a model, with what its class does not say."""
    options = {"image_size": SIZE, "normalisation": "half", "labels": LABELS, "prefix": ["cls"]}
    return load(module, **{**options, **arguments})


assert math.prod(SIZE) % PATCH**2 == 0


def state_of(module: nn.Module) -> dict[str, Any]:
    """Everything that could be changed about a module."""
    return {
        name: {
            key: (type(value), {inner: id(each) for inner, each in value.items()} if isinstance(value, dict) else value)
            for key, value in vars(part).items()
        }
        for name, part in module.named_modules()
    }


def picture() -> Any:
    from PIL import Image

    return Image.linear_gradient("L").convert("RGB")
