"""Vision Transformers of tutorials and of code that is no package, in our own words: what their state dicts mean."""

from __future__ import annotations

from collections.abc import Callable

import torch
from einops import rearrange, repeat
from einops.layers.torch import Rearrange, Reduce
from torch import nn

HEADS, DEPTH, WIDTH, HIDDEN, CLASSES, PATCH = 4, 3, 64, 96, 7, 8


class PreNorm(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention_or_mlp = inner

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.attention_or_mlp(self.norm(tokens))


class FreeAttention(nn.Module):
    """Queries, keys and values in one map without bias; heads as wide as one likes; for one head, no map after."""

    def __init__(self, heads: int, head_width: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, head_width**-0.5
        self.attend = nn.Softmax(-1)
        self.to_qkv = nn.Linear(WIDTH, 3 * heads * head_width, bias=False)
        mapped = not (heads == 1 and head_width == WIDTH)
        self.to_out = nn.Sequential(nn.Linear(heads * head_width, WIDTH)) if mapped else nn.Identity()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        queries, keys, values = (
            rearrange(part, "b n (h d) -> b h n d", h=self.heads) for part in self.to_qkv(tokens).chunk(3, -1)
        )
        weights = self.attend(queries @ keys.mT * self.scale)
        return self.to_out(rearrange(weights @ values, "b h n d -> b n (h d)"))


class FreeMLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Dropout(0), nn.Linear(HIDDEN, WIDTH), nn.Dropout(0)
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.net(tokens)


class FreeTransformer(nn.Module):
    def __init__(self, heads: int, head_width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleList([PreNorm(FreeAttention(heads, head_width)), PreNorm(FreeMLP())]) for _ in range(DEPTH)
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        for attention, mlp in self.layers:
            tokens = attention(tokens) + tokens
            tokens = mlp(tokens) + tokens
        return tokens


class LinearPatchViT(nn.Module):
    """A linear patch embedding with channels last, CLS or mean of all tokens, then norm and classifier."""

    def __init__(self, pool: str = "cls", heads: int = HEADS, head_width: int = 24) -> None:
        super().__init__()
        self.pool = pool
        order = "b c (h p1) (w p2) -> b (h w) (p1 p2 c)"
        self.to_patch_embedding = nn.Sequential(Rearrange(order, p1=PATCH, p2=PATCH), nn.Linear(3 * PATCH**2, WIDTH))
        self.pos_embedding = nn.Parameter(torch.empty(1, 17, WIDTH))
        self.cls_token = nn.Parameter(torch.empty(1, 1, WIDTH))
        self.transformer = FreeTransformer(heads, head_width)
        self.mlp_head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        tokens = self.to_patch_embedding(pixels)
        tokens = torch.cat([repeat(self.cls_token, "1 1 d -> b 1 d", b=len(pixels)), tokens], 1)
        tokens = self.transformer(tokens + self.pos_embedding[:, : tokens.shape[1]])
        return self.mlp_head(tokens.mean(1) if self.pool == "mean" else tokens[:, 0])


class LinearExtractor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        order = "b c (h ph) (w pw) -> b (h w) (ph pw c)"
        self.projector = nn.Sequential(Rearrange(order, ph=PATCH, pw=PATCH), nn.Linear(3 * PATCH**2, WIDTH))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.projector(pixels)


class ConvolutionalExtractor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.projector = nn.Conv2d(3, WIDTH, PATCH, PATCH)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.projector(pixels).flatten(2).mT


class Token(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.empty(1, 1, WIDTH))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.token.expand(len(tokens), -1, -1), tokens], 1)


class Positions(nn.Module):
    """Positions up to a largest sequence; shorter ones take the first."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.position_embeddings = nn.Parameter(torch.empty(1, limit + 1, WIDTH))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return tokens + self.position_embeddings[:, : tokens.shape[1]]


class MultiheadLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.normalization = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.feed_forward = nn.Sequential(
            *(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Dropout(0)),
            *(nn.Linear(HIDDEN, WIDTH), nn.Dropout(0)),
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        normal = self.normalization(tokens)
        tokens = self.attention(normal, normal, normal)[0] + tokens
        return self.feed_forward(tokens) + tokens


class MultiheadTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.layers = nn.ModuleList(MultiheadLayer() for _ in range(DEPTH))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            tokens = layer(tokens)
        return self.norm(tokens)


class ClassificationHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.linear(tokens[:, 0])


class MultiheadViT(nn.Module):
    """Torch's own attention, a linear or convolutional feature extractor, a norm after the encoder."""

    def __init__(self, extractor: Callable[[], nn.Module] = ConvolutionalExtractor) -> None:
        super().__init__()
        self.image_to_embeddings = nn.Sequential(extractor(), Token(), Positions(16), nn.Dropout(0))
        self.transformer = MultiheadTransformer()
        self.head = ClassificationHead()

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.head(self.transformer(self.image_to_embeddings(pixels)))


class HeadsApart(nn.Module):
    """A linear map whose weight keeps the axes of the heads, as flax has it."""

    def __init__(self, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(*inputs, *outputs))
        self.bias = nn.Parameter(torch.empty(*outputs))
        self.axes = len(inputs)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return torch.tensordot(tokens, self.weight, self.axes) + self.bias


class TensordotAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        apart = (HEADS, WIDTH // HEADS)
        self.query, self.key, self.value = (HeadsApart((WIDTH,), apart) for _ in range(3))
        self.out = HeadsApart(apart, (WIDTH,))
        self.attend = nn.Softmax(-1)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        queries, keys, values = (part(tokens).transpose(1, 2) for part in (self.query, self.key, self.value))
        weights = self.attend(queries @ keys.mT / (WIDTH // HEADS) ** 0.5)
        return self.out((weights @ values).transpose(1, 2))


class TensordotMLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc_1, self.fc_2 = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.fc_2(nn.functional.gelu(self.fc_1(tokens)))


class TensordotLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn, self.mlp = TensordotAttention(), TensordotMLP()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        tokens = tokens + self.attn(self.norm1(tokens))
        return tokens + self.mlp(self.norm2(tokens))


class PositionEmbs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pos_embedding = nn.Parameter(torch.empty(1, 17, WIDTH))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return tokens + self.pos_embedding


class TensordotEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pos_embedding = PositionEmbs()
        self.encoder_layers = nn.ModuleList(TensordotLayer() for _ in range(DEPTH))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        tokens = self.pos_embedding(tokens)
        for layer in self.encoder_layers:
            tokens = layer(tokens)
        return self.norm(tokens)


class TensordotViT(nn.Module):
    """A port of the JAX ViT, its linear layers stored as (in, heads, dim) and applied by tensordot."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.cls_token = nn.Parameter(torch.empty(1, 1, WIDTH))
        self.transformer = TensordotEncoder()
        self.classifier = nn.Linear(WIDTH, CLASSES)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        tokens = self.embedding(pixels).flatten(2).mT
        tokens = torch.cat([self.cls_token.expand(len(tokens), -1, -1), tokens], 1)
        return self.classifier(self.transformer(tokens)[:, 0])


class ScaledAfter(nn.Module):
    """Scores unscaled into the softmax, its weights scaled after it."""

    def __init__(self, one_map: bool) -> None:
        super().__init__()
        self.one_map = one_map
        if one_map:
            self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        else:
            self.queries, self.keys, self.values = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.projection = nn.Linear(WIDTH, WIDTH)
        self.attend = nn.Softmax(-1)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        if self.one_map:
            queries, keys, values = rearrange(self.qkv(tokens), "b n (h d qkv) -> qkv b h n d", h=HEADS, qkv=3)
            constant = WIDTH**-0.5
        else:
            apart = (part(tokens) for part in (self.queries, self.keys, self.values))
            queries, keys, values = (rearrange(part, "b n (h d) -> b h n d", h=HEADS) for part in apart)
            constant = (WIDTH // HEADS) ** -0.5
        weights = self.attend(queries @ keys.mT)
        return self.projection(rearrange(weights * constant @ values, "b h n d -> b n (h d)"))


class ResidualAdd(nn.Module):
    def __init__(self, fn: nn.Module) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.fn(tokens) + tokens


class PatchesAndPositions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.projection = nn.Sequential(nn.Conv2d(3, WIDTH, PATCH, PATCH), Rearrange("b e h w -> b (h w) e"))
        self.cls_token = nn.Parameter(torch.empty(1, 1, WIDTH))
        self.positions = nn.Parameter(torch.empty(17, WIDTH))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        tokens = self.projection(pixels)
        return torch.cat([self.cls_token.expand(len(tokens), -1, -1), tokens], 1) + self.positions


def sequential_vit(one_map: bool = True) -> nn.Sequential:
    """Everything an ``nn.Sequential``; the mean of all tokens is normalised and classified."""

    def layer() -> nn.Sequential:
        mlp = (nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Dropout(0), nn.Linear(HIDDEN, WIDTH))
        return nn.Sequential(
            ResidualAdd(nn.Sequential(nn.LayerNorm(WIDTH), ScaledAfter(one_map), nn.Dropout(0))),
            ResidualAdd(nn.Sequential(nn.LayerNorm(WIDTH), nn.Sequential(*mlp), nn.Dropout(0))),
        )

    head = nn.Sequential(Reduce("b n e -> b e", "mean"), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES))
    return nn.Sequential(PatchesAndPositions(), nn.Sequential(*(layer() for _ in range(DEPTH))), head)


class NamedAttention(nn.Module):
    """Attention by linear maps of any names, with a map after it or without."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        self.names = names
        for name in names:
            setattr(self, name, nn.Linear(WIDTH, WIDTH))
        self.attend = nn.Softmax(-1)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        queries, keys, values = (
            rearrange(getattr(self, name)(tokens), "b n (h d) -> b h n d", h=HEADS) for name in self.names[:3]
        )
        weights = self.attend(queries @ keys.mT / (WIDTH // HEADS) ** 0.5)
        mixed = rearrange(weights @ values, "b h n d -> b n (h d)")
        return getattr(self, self.names[3])(mixed) if len(self.names) > 3 else mixed


class NamedMLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.fc2(nn.functional.gelu(self.fc1(tokens)))


class PretrainedLayer(nn.Module):
    """A layer of PyTorch-Pretrained-ViT (Luke Melas-Kyriazi)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH, 1e-6), nn.LayerNorm(WIDTH, 1e-6)
        self.attn, self.proj = NamedAttention(("proj_q", "proj_k", "proj_v")), nn.Linear(WIDTH, WIDTH)
        self.pwff = NamedMLP()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        tokens = tokens + self.proj(self.attn(self.norm1(tokens)))
        return tokens + self.pwff(self.norm2(tokens))


class PretrainedViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.class_token = nn.Parameter(torch.empty(1, 1, WIDTH))
        self.patch_embedding = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.positional_embedding = PositionEmbs()
        self.transformer = nn.Module()
        self.transformer.blocks = nn.ModuleList(PretrainedLayer() for _ in range(DEPTH))
        self.norm, self.fc = nn.LayerNorm(WIDTH, 1e-6), nn.Linear(WIDTH, CLASSES)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        tokens = self.patch_embedding(pixels).flatten(2).mT
        tokens = torch.cat([self.class_token.expand(len(tokens), -1, -1), tokens], 1)
        tokens = self.positional_embedding(tokens)
        for layer in self.transformer.blocks:
            tokens = layer(tokens)
        return self.fc(self.norm(tokens)[:, 0])


class JeonsworldEmbeddings(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch_embeddings = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.position_embeddings = nn.Parameter(torch.empty(1, 17, WIDTH))
        self.cls_token = nn.Parameter(torch.empty(1, 1, WIDTH))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        tokens = self.patch_embeddings(pixels).flatten(2).mT
        return torch.cat([self.cls_token.expand(len(tokens), -1, -1), tokens], 1) + self.position_embeddings


class JeonsworldLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.ffn_norm = nn.LayerNorm(WIDTH, 1e-6), nn.LayerNorm(WIDTH, 1e-6)
        self.ffn, self.attn = NamedMLP(), NamedAttention(("query", "key", "value", "out"))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        tokens = tokens + self.attn(self.attention_norm(tokens))
        return tokens + self.ffn(self.ffn_norm(tokens))


class JeonsworldViT(nn.Module):
    """jeonsworld/ViT-pytorch."""

    def __init__(self) -> None:
        super().__init__()
        self.transformer = nn.Module()
        self.transformer.embeddings, self.transformer.encoder = JeonsworldEmbeddings(), nn.Module()
        self.transformer.encoder.layer = nn.ModuleList(JeonsworldLayer() for _ in range(DEPTH))
        self.transformer.encoder.encoder_norm = nn.LayerNorm(WIDTH, 1e-6)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        tokens = self.transformer.embeddings(pixels)
        for layer in self.transformer.encoder.layer:
            tokens = layer(tokens)
        return self.head(self.transformer.encoder.encoder_norm(tokens)[:, 0])


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(WIDTH))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return tokens * self.weight


class MMAttention(nn.Module):
    def __init__(self, is_scaled: bool) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.gamma1 = Scale() if is_scaled else nn.Identity()
        self.attend = nn.Softmax(-1)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        queries, keys, values = rearrange(self.qkv(tokens), "b n (qkv h d) -> qkv b h n d", h=HEADS, qkv=3)
        weights = self.attend(queries @ keys.mT / (WIDTH // HEADS) ** 0.5)
        return self.gamma1(self.proj(rearrange(weights @ values, "b h n d -> b n (h d)")))


class MMFeedForward(nn.Module):
    def __init__(self, is_scaled: bool) -> None:
        super().__init__()
        first = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Dropout(0))
        self.layers = nn.Sequential(first, nn.Linear(HIDDEN, WIDTH), nn.Dropout(0))
        self.gamma2 = Scale() if is_scaled else nn.Identity()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.gamma2(self.layers(tokens))


class MMLayer(nn.Module):
    def __init__(self, is_scaled: bool) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH, 1e-6), nn.LayerNorm(WIDTH, 1e-6)
        self.attn, self.ffn = MMAttention(is_scaled), MMFeedForward(is_scaled)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        tokens = tokens + self.attn(self.ln1(tokens))
        return tokens + self.ffn(self.ln2(tokens))


class MMViT(nn.Module):
    """MMPretrain's classifier with a Vision Transformer, which reads CLS or the mean of the patches."""

    def __init__(self, is_mean: bool = False, is_scaled: bool = False) -> None:
        super().__init__()
        self.backbone, self.head = nn.Module(), nn.Module()
        self.backbone.cls_token = nn.Parameter(torch.empty(1, 1, WIDTH))
        self.backbone.pos_embed = nn.Parameter(torch.empty(1, 17, WIDTH))
        self.backbone.patch_embed = nn.Module()
        self.backbone.patch_embed.projection = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.backbone.layers = nn.ModuleList(MMLayer(is_scaled) for _ in range(DEPTH))
        self.is_mean = is_mean
        setattr(self.backbone, "ln2" if is_mean else "ln1", nn.LayerNorm(WIDTH, 1e-6))
        if is_mean:
            self.head.fc = nn.Linear(WIDTH, CLASSES)
        else:
            self.head.layers = nn.ModuleDict({"head": nn.Linear(WIDTH, CLASSES)})

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        backbone = self.backbone
        tokens = backbone.patch_embed.projection(pixels)
        grid = tokens.shape[-2:]
        tokens = torch.cat([backbone.cls_token.expand(len(tokens), -1, -1), tokens.flatten(2).mT], 1)
        planes = rearrange(backbone.pos_embed[:, 1:], "1 (h w) d -> 1 d h w", h=4)
        patches = nn.functional.interpolate(planes, grid, mode="bicubic") if grid != (4, 4) else planes
        tokens = tokens + torch.cat([backbone.pos_embed[:, :1], patches.flatten(2).mT], 1)
        for layer in backbone.layers:
            tokens = layer(tokens)
        if self.is_mean:
            return self.head.fc(backbone.ln2(tokens[:, 1:].mean(1)))
        return self.head.layers["head"](backbone.ln1(tokens)[:, 0])
