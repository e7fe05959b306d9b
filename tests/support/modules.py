"""A user's own Vision Transformer, which computes attention in each of the ways that packages do."""

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
    """A pre-norm layer of attention and MLP, whose attention is computed in one of :data:`WAYS`."""

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

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        normed = self.norm(tokens)
        if self.multi_head is not None:
            tokens = tokens + self.multi_head(normed, normed, normed, need_weights=False)[0]
        else:
            tokens = tokens + self.projection(self.attend(normed).transpose(1, 2).flatten(2))
        return tokens + self.mlp(self.mlp_norm(tokens))

    def attend(self, normed: torch.Tensor) -> torch.Tensor:
        queries, keys, values = (
            linear(normed).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for linear in (self.query, self.key, self.value)
        )
        count = normed.shape[1]
        bias = None
        if self.bias is not None:
            positions = torch.arange(count, device=normed.device)
            bias = self.bias * (positions[:, None] - positions).abs() / count
        if self.way == "fused":
            return F.scaled_dot_product_attention(
                queries, keys, values, attn_mask=bias, scale=self.scale, enable_gqa=self.groups != HEADS
            )
        if self.way == "einsum":
            shared = queries.unflatten(1, (self.groups, -1))
            scores = torch.einsum("bgxid,bgjd->bgxij", shared, keys).flatten(1, 2) * self.scale
            weights = (scores if bias is None else scores + bias).softmax(-1).unflatten(1, (self.groups, -1))
            return torch.einsum("bgxij,bgjd->bgxid", weights, values).flatten(1, 2)
        if self.way == "bmm":
            queries, keys, values = (tensor.flatten(0, 1) for tensor in (queries * self.scale, keys, values))
            scores = torch.bmm(queries, keys.mT)
            weights = F.softmax(scores if bias is None else scores + bias.repeat(len(normed), 1, 1), dim=-1)
            return torch.bmm(F.dropout(weights, 0.1, self.training), values).unflatten(0, (-1, HEADS))
        scores = queries @ keys.transpose(-2, -1) * self.scale
        weights = F.softmax(scores if bias is None else scores + bias, dim=-1, dtype=torch.float32)
        return F.dropout(weights.to(values.dtype), 0.1, self.training) @ values


class OwnViT(nn.Module):
    """A user's own network: CLS token, patches row by row, registers behind them, CLS pooling.

    Args:
        way: how attention is computed, one of :data:`WAYS`.
        scales: attention scale of every layer; None for the usual one.
        has_bias: whether layers add a bias to their scores.
        groups: number of heads of keys and values.
        registers: number of tokens behind the patches.
        classes: number of classes; 0 for a network that returns features.
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
        randomised(self)

    def tokens(self, pixels: torch.Tensor) -> torch.Tensor:
        patches = self.embedding(pixels).flatten(2).transpose(1, 2)
        # Positions make a wrong order of tokens visible.
        patches = patches + torch.linspace(0, 1, patches.shape[1], device=pixels.device)[:, None].to(patches)
        first, last = (tokens.expand(len(pixels), -1, -1) for tokens in (self.cls_token, self.last_tokens))
        return torch.cat([first, patches, last], 1)

    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        """The tokens after the last layer."""
        tokens = self.tokens(pixels)
        for layer in self.layers:
            tokens = layer(tokens)
        return tokens

    def read(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.norm(tokens)[:, 0])

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.read(self.encode(pixels))


class MeanViT(OwnViT):
    """Its output is of the mean of all tokens."""

    def read(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.norm(tokens).mean(1))


def randomised(module: OwnViT, deviation: float = 0.3) -> OwnViT:
    """A module with new weights, in evaluation mode."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, 0, deviation)
    return module.eval()


def maps_of(layer: Layer) -> tuple[list[tuple[torch.Tensor, torch.Tensor]], nn.Module]:
    """Weights and biases of queries, keys and values, and the projection behind them."""
    multi_head = layer.multi_head
    if multi_head is None:
        return [(each.weight, each.bias) for each in (layer.query, layer.key, layer.value)], layer.projection
    weights, biases = multi_head.in_proj_weight.chunk(3), multi_head.in_proj_bias.chunk(3)
    return list(zip(weights, biases, strict=True)), multi_head.out_proj


def windows(grid: tuple[int, int], window: tuple[int, int], shift: int) -> torch.Tensor:
    """``"window token"``: the patches of every window, in a grid that is rolled up and left by ``shift``."""
    numbers = torch.arange(grid[0] * grid[1]).view(grid).roll((-shift, -shift), (0, 1))
    rows, columns = window
    tiles = numbers.view(grid[0] // rows, rows, grid[1] // columns, columns)
    return tiles.transpose(1, 2).reshape(-1, rows * columns)


def explicit_weights(module: OwnViT, pixels: torch.Tensor) -> list[torch.Tensor]:
    """Every layer's attention weights ``"head query key"`` of one image, by the plain formula, in double precision."""
    tokens, matrices = module.tokens(pixels), []
    for layer in module.layers:
        assert isinstance(layer, Layer)
        normed = layer.norm(tokens).double()
        queries, keys = (
            (normed @ weight.double().mT + bias.double()).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)[0]
            for weight, bias in maps_of(layer)[0][:2]
        )
        keys = keys.repeat_interleave(HEADS // len(keys), 0)
        scores = queries @ keys.mT * layer.scale
        if layer.bias is not None:
            positions = torch.arange(len(scores[0]))
            scores = scores + layer.bias.double() * (positions[:, None] - positions).abs() / len(positions)
        matrices.append(torch.exp(scores) / torch.exp(scores).sum(-1, keepdim=True))
        tokens = layer(tokens)
    return matrices


def load_own(module: nn.Module, **arguments: Any) -> Model:
    """Load the module as a model, with the settings that its class does not state."""
    options = {"image_size": SIZE, "normalisation": "half", "labels": LABELS, "prefix": ["cls"]}
    return load(module, **{**options, **arguments})


assert math.prod(SIZE) % PATCH**2 == 0


def state_of(module: nn.Module) -> dict[str, Any]:
    """All attributes of all submodules, to see whether a module was changed."""
    return {
        name: {
            key: (type(value), {inner: id(item) for inner, item in value.items()} if isinstance(value, dict) else value)
            for key, value in vars(submodule).items()
        }
        for name, submodule in module.named_modules()
    }


def picture() -> Any:
    from PIL import Image

    return Image.linear_gradient("L").convert("RGB")
