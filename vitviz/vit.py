"""One Vision Transformer for every family, with an explicit layout of its tokens.

Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale".
Registers: Darcet et al. 2024, "Vision Transformers Need Registers". Distillation token: Touvron et al. 2021, "Training
data-efficient image transformers & distillation through attention".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, overload

import torch
import torch.nn.functional as F
from einops import rearrange, reduce, repeat
from torch import nn

from vitviz.errors import ConfigError, ImageError, choices
from vitviz.layout import TokenLayout
from vitviz.trace import AttentionTrace, attention_weights

POOLINGS = ("cls", "mean")
SIZES = (
    *("image_height", "image_width", "patch_height", "patch_width", "channels"),
    *("width", "depth", "heads", "head_width", "mlp_width"),
)


@dataclass(frozen=True)
class ViTConfig:
    """Everything that determines the mathematics of a Vision Transformer.

    Args:
        image_height, image_width: trained size in pixels; a multiple of the patch size.
        patch_height, patch_width: size of a patch in pixels.
        width: features of a token.
        depth: number of encoder layers.
        heads: attention heads of a layer.
        head_width: features of a head; free of ``width / heads``.
        mlp_width: hidden features of a layer's MLP.
        classes: outputs of the classifier; 0 for a model without one, which then returns its pooled token.
        channels: colour channels of the image.
        cls_token, distillation_token: whether there is one.
        register_tokens: how many.
        pooling: ``"cls"`` classifies the CLS token, ``"mean"`` the mean of the patches, both after the final norm.
        qkv_bias: whether queries, keys and values have a bias.
        norm_epsilon: added to the variance in every layer norm.

    Raises:
        ConfigError: a value is out of range or contradicts another.
    """

    image_height: int
    image_width: int
    patch_height: int
    patch_width: int
    width: int
    depth: int
    heads: int
    head_width: int
    mlp_width: int
    classes: int
    channels: int = 3
    cls_token: bool = True
    distillation_token: bool = False
    register_tokens: int = 0
    pooling: str = "cls"
    qkv_bias: bool = True
    norm_epsilon: float = 1e-6

    def __post_init__(self) -> None:
        # A checkpoint's header comes here too: its values may be of any type.
        least = {**dict.fromkeys(SIZES, 1), "classes": 0, "register_tokens": 0}
        for name, minimum in least.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
                raise ConfigError(f"{name} = {value!r}: expected a whole number of at least {minimum}")
        for name in ("cls_token", "distillation_token", "qkv_bias"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} = {getattr(self, name)!r}: expected True or False")
        epsilon = self.norm_epsilon
        if not isinstance(epsilon, int | float) or isinstance(epsilon, bool) or not 0 < epsilon < math.inf:
            raise ConfigError(f"norm_epsilon = {epsilon!r}: expected a finite number above 0")
        if self.pooling not in POOLINGS:
            raise ConfigError(f"pooling = {self.pooling!r}: expected {choices(POOLINGS)}")
        if self.pooling == "cls" and not self.cls_token:
            raise ConfigError("pooling = 'cls' needs cls_token = True; without a CLS token, pool by 'mean'")
        self.layout(self.image_height, self.image_width)

    @property
    def prefix(self) -> tuple[str, ...]:
        """Names of the prefix tokens, in their order in the sequence."""
        cls = ("cls",) if self.cls_token else ()
        distillation = ("distillation",) if self.distillation_token else ()
        return cls + distillation + tuple(f"register {number + 1}" for number in range(self.register_tokens))

    def layout(self, image_height: int, image_width: int) -> TokenLayout:
        """The tokens of an image of this size in pixels.

        Raises:
            ConfigError: the size is no multiple of the patch size.
        """
        if image_height % self.patch_height or image_width % self.patch_width or not image_height or not image_width:
            raise ConfigError(
                f"image of {image_height}×{image_width} pixels (height × width): both sides must be a multiple "
                f"of the patch, {self.patch_height}×{self.patch_width}"
            )
        return TokenLayout(self.prefix, image_height // self.patch_height, image_width // self.patch_width)


@dataclass(frozen=True, eq=False)
class Encoding:
    """What one forward pass gives: ``logits`` ``"batch class"`` and one trace per image."""

    logits: torch.Tensor
    traces: tuple[AttentionTrace, ...]


class Attention(nn.Module):
    """Multi-head self-attention that hands out its queries and keys.

    ``fused`` chooses torch's fused kernel, the default, or the same sum with its weights materialised.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        inner = config.heads * config.head_width
        self.heads = config.heads
        self.fused = True
        self.scale = config.head_width**-0.5
        self.qkv = nn.Linear(config.width, 3 * inner, bias=config.qkv_bias)
        self.projection = nn.Linear(inner, config.width)

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """``"batch token width"`` to the same, with queries and keys, both ``"batch head token dim"``."""
        parts = rearrange(
            self.qkv(tokens), "batch token (part head dim) -> part batch head token dim", part=3, head=self.heads
        )
        queries, keys, values = parts
        if self.fused:
            mixed = F.scaled_dot_product_attention(queries, keys, values, scale=self.scale)
        else:
            mixed = attention_weights(queries, keys, self.scale).to(values.dtype) @ values
        return self.projection(rearrange(mixed, "batch head token dim -> batch token (head dim)")), queries, keys


class EncoderLayer(nn.Module):
    """Pre-norm layer: attention, then an MLP with exact GELU, each added to the stream."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width, eps=config.norm_epsilon)
        self.attention = Attention(config)
        self.mlp_norm = nn.LayerNorm(config.width, eps=config.norm_epsilon)
        self.mlp = nn.Sequential(
            nn.Linear(config.width, config.mlp_width), nn.GELU(), nn.Linear(config.mlp_width, config.width)
        )

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """``"batch token width"`` to the same, with queries and keys, both ``"batch head token dim"``."""
        mixed, queries, keys = self.attention(self.attention_norm(tokens))
        tokens = tokens + mixed
        return tokens + self.mlp(self.mlp_norm(tokens)), queries, keys


class VisionTransformer(nn.Module):
    """A Vision Transformer that can say what it attends to.

    Parameters are kept in one form for every family:

    - ``patch_embedding.weight`` ``"width (channel patch_height patch_width)"``: a convolution's kernel is the same
      numbers, unflattened (:func:`linear_from_convolution`);
    - ``prefix_tokens`` ``"prefix width"``, their positions already added;
    - ``positions`` ``"grid_height grid_width width"`` of the trained grid.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        trained = config.layout(config.image_height, config.image_width)
        self.patch_embedding = nn.Linear(config.channels * config.patch_height * config.patch_width, config.width)
        self.prefix_tokens = nn.Parameter(torch.empty(trained.prefix_count, config.width))
        self.positions = nn.Parameter(torch.empty(trained.grid_height, trained.grid_width, config.width))
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.depth))
        self.norm = nn.LayerNorm(config.width, eps=config.norm_epsilon)
        self.classifier = nn.Linear(config.width, config.classes) if config.classes else nn.Identity()
        for parameter in (self.prefix_tokens, self.positions):
            nn.init.trunc_normal_(parameter, std=0.02)

    @property
    def encoder(self) -> list[EncoderLayer]:
        """The encoder layers, nearest to the image first."""
        return [layer for layer in self.layers if isinstance(layer, EncoderLayer)]

    @overload
    def forward(self, pixels: torch.Tensor, need_weights: Literal[False] = False) -> torch.Tensor: ...

    @overload
    def forward(self, pixels: torch.Tensor, need_weights: Literal[True]) -> tuple[torch.Tensor, list[torch.Tensor]]: ...

    def forward(
        self, pixels: torch.Tensor, need_weights: bool = False
    ) -> torch.Tensor | tuple[torch.Tensor, list[torch.Tensor]]:
        """Classify images, on request with the attention weights of every layer.

        Args:
            pixels: ``"batch channel height width"``, normalised as the checkpoint was trained.
            need_weights: also return the attention weights.

        Returns:
            Logits ``"batch class"`` (the pooled token ``"batch width"`` where there is no classifier); with
            ``need_weights`` a pair of these and one tensor per encoder layer, ``"batch head query key"``, whose rows
            sum to 1. The logits are the same either way.

        Raises:
            ImageError: the pixels have another number of dimensions or channels, or a size that the patch does not
                divide.
        """
        tokens, layout = self.embed(pixels)
        weights = []
        for layer in self.encoder:
            tokens, queries, keys = layer(tokens)
            if need_weights:
                weights.append(attention_weights(queries, keys, layer.attention.scale))
        logits = self.classify(tokens, layout)
        return (logits, weights) if need_weights else logits

    def encode(self, pixels: torch.Tensor) -> Encoding:
        """Classify images and keep the queries and keys of the same forward pass, one trace per image.

        Args:
            pixels: ``"batch channel height width"``, normalised as the checkpoint was trained.

        Raises:
            ImageError: as :meth:`forward`.
        """
        tokens, layout = self.embed(pixels)
        kept = []
        for layer in self.encoder:
            tokens, queries, keys = layer(tokens)
            kept.append((queries, keys))
        traces = tuple(
            AttentionTrace(
                _precise(torch.stack([queries[image] for queries, _ in kept])),
                _precise(torch.stack([keys[image] for _, keys in kept])),
                self.encoder[0].attention.scale,
                layout,
            )
            for image in range(len(pixels))
        )
        return Encoding(self.classify(tokens, layout), traces)

    def embed(self, pixels: torch.Tensor) -> tuple[torch.Tensor, TokenLayout]:
        """Prefix tokens and position-coded patches, ``"batch token width"``, and which token is what."""
        config = self.config
        if pixels.ndim != 4 or pixels.shape[1] != config.channels:
            raise ImageError(
                f"pixels of shape {tuple(pixels.shape)}: expected 'batch channel height width' "
                f"with {config.channels} channels"
            )
        try:
            layout = config.layout(*pixels.shape[-2:])
        except ConfigError as error:
            raise ImageError(str(error)) from None
        patches = self.patch_embedding(
            rearrange(
                pixels,
                "batch channel (row height) (column width) -> batch row column (channel height width)",
                height=config.patch_height,
                width=config.patch_width,
            )
        )
        patches = patches + resize_positions(self.positions, layout.grid_height, layout.grid_width)
        patches = rearrange(patches, "batch row column width -> batch (row column) width")
        prefix = repeat(self.prefix_tokens, "prefix width -> batch prefix width", batch=len(pixels))
        return torch.cat([prefix, patches], 1), layout

    def classify(self, tokens: torch.Tensor, layout: TokenLayout) -> torch.Tensor:
        """The output of the last layer, ``"batch token width"``, as logits ``"batch class"``."""
        if self.config.pooling == "cls":
            return self.classifier(self.norm(tokens[:, layout.index("cls")]))
        patches = self.norm(tokens[:, layout.prefix_count :])
        return self.classifier(reduce(patches, "batch patch width -> batch width", "mean"))


def resize_positions(positions: torch.Tensor, grid_height: int, grid_width: int) -> torch.Tensor:
    """Position embeddings for another grid, by antialiased bicubic interpolation; unchanged at their own.

    Args:
        positions: ``"row column width"`` of the trained grid.
        grid_height, grid_width: the grid wanted.

    Returns:
        ``"grid_height grid_width width"``.
    """
    if positions.shape[:2] == (grid_height, grid_width):
        return positions
    planes = rearrange(_precise(positions), "row column width -> 1 width row column")
    resized = F.interpolate(planes, (grid_height, grid_width), mode="bicubic", align_corners=False, antialias=True)
    return rearrange(resized, "1 width row column -> row column width").to(positions.dtype)


def linear_from_convolution(kernel: torch.Tensor) -> torch.Tensor:
    """A patch convolution's kernel as the weight of the patch embedding, which is the same map.

    ``"width channel patch_height patch_width"`` to ``"width (channel patch_height patch_width)"``.
    """
    return rearrange(kernel, "width channel height column -> width (channel height column)")


def _precise(tensor: torch.Tensor) -> torch.Tensor:
    """In single precision at least."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
