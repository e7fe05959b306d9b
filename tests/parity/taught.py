"""Vision Transformers of tutorials and of code that is no package, in our own words: what their state dicts mean."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from einops import rearrange

from tests.parity.package_answers import Answer

HEADS, DEPTH, WIDTH, HIDDEN, CLASSES, PATCH, SIDE = 4, 3, 64, 96, 7, 8, 4


@dataclass(frozen=True)
class Layout:
    """The names of a state dict's tensors, and what they mean.

    Names end where ``weight`` and ``bias`` begin; ``{}`` is the number of a layer.

    Args:
        cls, positions, patches, final_norm, head: of the whole network.
        norms: before the attention and before the MLP.
        attention: the maps to queries, keys and values, or the one map to all of them.
        out: the map after the attention; empty if there is none.
        mlp: its two maps.
        outputs: how the outputs of the maps to queries, keys and values are ordered.
        pixels: how the inputs of the patch embedding are ordered; ``"c p q"`` is that of a convolution.
        has_bias: whether the maps to queries, keys and values have one.
        is_apart: whether maps keep the axes of the heads, ``(in, heads, width)``, as flax has them.
        constant: of the scores; ``is_after`` says that it multiplies the attention weights instead.
        pooling: what is normalised and classified.
        is_flat: whether the positions have no axis for the batch.
    """

    cls: str
    positions: str
    patches: str
    norms: tuple[str, str]
    attention: tuple[str, ...]
    out: str
    mlp: tuple[str, str]
    final_norm: str
    head: str
    outputs: str = "qkv h d"
    pixels: str = "c p q"
    heads: int = HEADS
    head_width: int = WIDTH // HEADS
    constant: float = (WIDTH // HEADS) ** -0.5
    pooling: str = "cls"
    has_bias: bool = True
    is_apart: bool = False
    is_after: bool = False
    is_flat: bool = False

    def state(self) -> dict[str, torch.Tensor]:
        """Random weights, with every map as torch applies it."""
        inner = self.heads * self.head_width
        state = {self.cls: torch.randn(1, 1, WIDTH), self.positions: torch.randn(1, 1 + SIDE**2, WIDTH)}
        maps = {self.patches: (WIDTH, 3 * PATCH**2), self.head: (CLASSES, WIDTH)}
        norms = [self.final_norm]
        for layer in range(DEPTH):
            norms += [name.format(layer) for name in self.norms]
            each = (3 * inner // len(self.attention), WIDTH)
            maps |= {name.format(layer): each for name in self.attention}
            maps |= {self.out.format(layer): (WIDTH, inner)} if self.out else {}
            maps |= {self.mlp[0].format(layer): (HIDDEN, WIDTH), self.mlp[1].format(layer): (WIDTH, HIDDEN)}
        for name, (outputs, inputs) in maps.items():
            state[f"{name}weight"] = torch.randn(outputs, inputs) * min(0.15, 1.2 * inputs**-0.5)
            state[f"{name}bias"] = torch.randn(outputs) * 0.15
        for name in norms:
            state |= {f"{name}weight": 1 + 0.2 * torch.randn(WIDTH), f"{name}bias": 0.15 * torch.randn(WIDTH)}
        if not self.has_bias:
            for layer in range(DEPTH):
                del state[f"{self.attention[0].format(layer)}bias"]
        return state

    def written(self, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The weights in the shapes in which they are kept."""
        kept = {name: tensor.contiguous() for name, tensor in state.items()}
        if self.pixels == "c p q":
            kept[f"{self.patches}weight"] = state[f"{self.patches}weight"].view(WIDTH, 3, PATCH, PATCH)
        if self.is_flat:
            kept[self.positions] = state[self.positions][0]
        apart = (self.heads, self.head_width)
        for layer in range(DEPTH if self.is_apart else 0):
            for name in self.attention:
                weight, bias = f"{name.format(layer)}weight", f"{name.format(layer)}bias"
                kept |= {weight: state[weight].T.reshape(WIDTH, *apart), bias: state[bias].view(apart)}
            out = f"{self.out.format(layer)}weight"
            kept[out] = state[out].T.reshape(*apart, WIDTH)
        return kept

    def answer(self, state: dict[str, torch.Tensor], pixels: torch.Tensor) -> Answer:
        """Logits, and the attention weights of every layer."""

        def linear(name: str, tokens: torch.Tensor) -> torch.Tensor:
            return F.linear(tokens, state[f"{name}weight"], state.get(f"{name}bias"))

        def norm(name: str, tokens: torch.Tensor) -> torch.Tensor:
            return F.layer_norm(tokens, (WIDTH,), state[f"{name}weight"], state[f"{name}bias"])

        squares = rearrange(pixels, f"b c (h p) (w q) -> b h w ({self.pixels})", p=PATCH, q=PATCH)
        cls, positions = state[self.cls], state[self.positions]
        rows, columns = squares.shape[1:3]
        own, grid = positions[:, :1], positions[:, 1 : 1 + rows * columns]
        patches = linear(self.patches, squares).flatten(1, 2) + grid
        tokens = torch.cat([(cls + own).expand(len(pixels), -1, -1), patches], 1)
        weights: list[torch.Tensor] = []
        before, after = (1.0, self.constant) if self.is_after else (self.constant, 1.0)
        for layer in range(DEPTH):
            normal = norm(self.norms[0].format(layer), tokens)
            maps = torch.cat([linear(name.format(layer), normal) for name in self.attention], -1)
            queries, keys, values = rearrange(maps, f"b n ({self.outputs}) -> qkv b h n d", qkv=3, h=self.heads)
            weights.append((queries @ keys.mT * before).softmax(-1))
            mixed = rearrange(weights[-1] * after @ values, "b h n d -> b n (h d)")
            tokens = tokens + (linear(self.out.format(layer), mixed) if self.out else mixed)
            hidden = F.gelu(linear(self.mlp[0].format(layer), norm(self.norms[1].format(layer), tokens)))
            tokens = tokens + linear(self.mlp[1].format(layer), hidden)
        parts = {"cls": tokens[:, :1], "mean of all": tokens}
        return Answer(linear(self.head, norm(self.final_norm, parts[self.pooling].mean(1))), tuple(weights))


def layers(prefix: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{prefix}.{{}}.{name}" for name in names)


# A linear patch embedding with channels last; heads as wide as one likes; for one head, no map after the attention.
LINEAR_PATCHES = Layout(
    *("cls_token", "pos_embedding", "to_patch_embedding.1."),
    layers("transformer.layers", "0.norm.", "1.norm."),
    layers("transformer.layers", "0.attention_or_mlp.to_qkv."),
    *layers("transformer.layers", "0.attention_or_mlp.to_out.0."),
    layers("transformer.layers", "1.attention_or_mlp.net.0.", "1.attention_or_mlp.net.3."),
    *("mlp_head.0.", "mlp_head.1."),
    pixels="p q c",
    head_width=24,
    constant=24**-0.5,
    has_bias=False,
)
ONE_HEAD = replace(LINEAR_PATCHES, out="", heads=1, head_width=WIDTH, constant=WIDTH**-0.5)
# Torch's own attention, a linear or convolutional feature extractor, a norm after the encoder.
MULTIHEAD = Layout(
    *("image_to_embeddings.1.token", "image_to_embeddings.2.position_embeddings", "image_to_embeddings.0.projector."),
    layers("transformer.layers", "normalization.", "feed_forward.0."),
    layers("transformer.layers", "attention.in_proj_"),
    *layers("transformer.layers", "attention.out_proj."),
    layers("transformer.layers", "feed_forward.1.", "feed_forward.4."),
    *("transformer.norm.", "head.linear."),
)
MULTIHEAD_LINEAR = replace(MULTIHEAD, patches="image_to_embeddings.0.projector.1.", pixels="p q c")
# A port of the JAX ViT.
TENSORDOT = Layout(
    *("cls_token", "transformer.pos_embedding.pos_embedding", "embedding."),
    layers("transformer.encoder_layers", "norm1.", "norm2."),
    layers("transformer.encoder_layers", "attn.query.", "attn.key.", "attn.value."),
    *layers("transformer.encoder_layers", "attn.out."),
    layers("transformer.encoder_layers", "mlp.fc_1.", "mlp.fc_2."),
    *("transformer.norm.", "classifier."),
    is_apart=True,
)
# Everything an ``nn.Sequential``; scores unscaled into the softmax, its weights scaled after it.
SEQUENTIAL = Layout(
    *("0.cls_token", "0.positions", "0.projection.0."),
    layers("1", "0.fn.0.", "1.fn.0."),
    layers("1", "0.fn.1.qkv."),
    *layers("1", "0.fn.1.projection."),
    layers("1", "1.fn.1.0.", "1.fn.1.3."),
    *("2.1.", "2.2."),
    outputs="h d qkv",
    constant=WIDTH**-0.5,
    pooling="mean of all",
    is_after=True,
    is_flat=True,
)
SEQUENTIAL_APART = replace(
    SEQUENTIAL,
    attention=layers("1", "0.fn.1.queries.", "0.fn.1.keys.", "0.fn.1.values."),
    outputs="qkv h d",
    constant=(WIDTH // HEADS) ** -0.5,
)
