"""One Vision Transformer for every family, with an explicit layout of its tokens.

Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale".
Registers: Darcet et al. 2024, "Vision Transformers Need Registers". Distillation token: Touvron et al. 2021, "Training
data-efficient image transformers & distillation through attention". Gated MLP: Shazeer 2020, "GLU Variants Improve
Transformer". Norm of queries and keys: Dehghani et al. 2023, "Scaling Vision Transformers to 22 Billion Parameters".
Attention pooling: Lee et al. 2019, "Set Transformer", as in Zhai et al. 2023, "Sigmoid Loss for Language Image
Pre-Training".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, overload

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from torch import nn

from vitviz.activations import ACTIVATIONS
from vitviz.config import ViTConfig
from vitviz.errors import ConfigError, ImageError
from vitviz.layout import TokenLayout
from vitviz.pooling import POOLINGS
from vitviz.positions import resize_positions, rotary_angles, rotary_periods, rotate
from vitviz.trace import AttentionTrace, attention_weights


@dataclass(frozen=True, eq=False)
class Encoding:
    """What one forward pass gives: ``logits`` ``"batch class"`` and one trace per image."""

    logits: torch.Tensor
    traces: tuple[AttentionTrace, ...]


class Activation(nn.Module):
    """The nonlinearity of an MLP, by its name in :data:`vitviz.activations.ACTIVATIONS`."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return ACTIVATIONS[self.name](values)


class Gate(nn.Module):
    """``"... (2 width)"`` to ``"... width"``: the activated first half times the second."""

    def __init__(self, activation: str) -> None:
        super().__init__()
        self.activation = Activation(activation)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        gate, passed = values.chunk(2, -1)
        return self.activation(gate) * passed


def make_mlp(config: ViTConfig) -> nn.Sequential:
    """Two linear maps with the activation, or the gate, between them: weights ``0`` and ``2``."""
    between = Gate(config.activation) if config.gated_mlp else Activation(config.activation)
    hidden = config.mlp_width * (2 if config.gated_mlp else 1)
    return nn.Sequential(nn.Linear(config.width, hidden), between, nn.Linear(config.mlp_width, config.width))


class Attention(nn.Module):
    """Multi-head self-attention that hands out its queries and keys.

    ``fused`` chooses torch's fused kernel, the default, or the same sum with its weights materialised.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        inner = config.heads * config.head_width
        self.heads = config.heads
        self.fused = True
        self.scale = config.head_width**-0.5 if config.attention_scale is None else config.attention_scale
        self.qkv = nn.Linear(config.width, 3 * inner, bias=config.qkv_bias)
        make_norm = partial(nn.LayerNorm, config.head_width, eps=config.norm_epsilon)
        self.query_norm, self.key_norm = (make_norm() if config.query_key_norm else nn.Identity() for _ in range(2))
        self.projection = nn.Linear(inner, config.width)

    def forward(
        self, tokens: torch.Tensor, angles: torch.Tensor | None = None, head_mask: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """``"batch token width"`` to the same, with queries and keys, both ``"batch head token dim"``.

        Args:
            tokens: normalised.
            angles: of rotary positions, ``"patch pair"``.
            head_mask: ``"head"``, what the attention weights of a head are multiplied with.
        """
        parts = rearrange(
            self.qkv(tokens), "batch token (part head dim) -> part batch head token dim", part=3, head=self.heads
        )
        queries, keys, values = self.query_norm(parts[0]), self.key_norm(parts[1]), parts[2]
        if angles is not None:
            queries, keys = rotate(queries, angles), rotate(keys, angles)
        if self.fused:
            mixed = F.scaled_dot_product_attention(queries, keys, values, scale=self.scale)
        else:
            mixed = attention_weights(queries, keys, self.scale).to(values.dtype) @ values
        if head_mask is not None:
            mixed = mixed * rearrange(head_mask, "head -> head 1 1")
        return self.projection(rearrange(mixed, "batch head token dim -> batch token (head dim)")), queries, keys


class EncoderLayer(nn.Module):
    """Pre-norm layer: attention, then an MLP, each added to the stream."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width, eps=config.norm_epsilon)
        self.attention = Attention(config)
        self.mlp_norm = nn.LayerNorm(config.width, eps=config.norm_epsilon)
        self.mlp = make_mlp(config)

    def forward(
        self, tokens: torch.Tensor, angles: torch.Tensor | None = None, head_mask: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """``"batch token width"`` to the same, with queries and keys, both ``"batch head token dim"``."""
        mixed, queries, keys = self.attention(self.attention_norm(tokens), angles, head_mask)
        tokens = tokens + mixed
        return tokens + self.mlp(self.mlp_norm(tokens)), queries, keys


class AttentionPooling(nn.Module):
    """What one learned query attends to among the tokens, then an MLP: ``"batch token width"`` to ``"batch width"``."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.probe = nn.Parameter(torch.empty(config.width))
        self.query = nn.Linear(config.width, config.width)
        self.key_value = nn.Linear(config.width, 2 * config.width)
        self.projection = nn.Linear(config.width, config.width)
        self.mlp_norm = nn.LayerNorm(config.width, eps=config.norm_epsilon)
        self.mlp = make_mlp(config)
        nn.init.trunc_normal_(self.probe, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        query = repeat(self.query(self.probe), "(head dim) -> batch head 1 dim", head=self.heads, batch=len(tokens))
        keys, values = rearrange(
            self.key_value(tokens), "batch token (part head dim) -> part batch head token dim", part=2, head=self.heads
        )
        mixed = F.scaled_dot_product_attention(query, keys, values)
        pooled = self.projection(rearrange(mixed, "batch head 1 dim -> batch (head dim)"))
        return pooled + self.mlp(self.mlp_norm(pooled))


class VisionTransformer(nn.Module):
    """A Vision Transformer that can say what it attends to.

    Parameters are kept in one form for every family:

    - ``patch_embedding`` is one linear map of the pixels ``"(channel patch_height patch_width)"``: a convolution's
      kernel is the same numbers, unflattened (:func:`linear_from_convolution`);
    - ``prefix_tokens`` ``"prefix width"``, their positions already added;
    - ``positions`` ``"grid_height grid_width width"`` of the trained grid, or the ``periods`` of rotary ones.

    Where ``config.patch_norms`` is set, ``patch_norms`` holds the norms before and after the patch embedding; its
    other optional parts are ``pre_norm``, ``pooler`` (attention pooling), ``representation`` and ``projection``.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        trained = config.layout(config.image_height, config.image_width)
        make_norm = partial(nn.LayerNorm, eps=config.norm_epsilon)
        pixels, width = config.channels * config.patch_height * config.patch_width, config.width
        pooled = width * POOLINGS[config.pooling].parts
        represented = config.representation_width or pooled

        self.patch_embedding = nn.Linear(pixels, width)
        self.patch_norms = _either(config.patch_norms, lambda: nn.ModuleList([make_norm(pixels), make_norm(width)]))
        self.prefix_tokens = nn.Parameter(torch.empty(trained.prefix_count, width))
        if config.rotary:
            self.periods = nn.Parameter(rotary_periods(config.head_width), requires_grad=False)
        else:
            self.positions = nn.Parameter(torch.empty(trained.grid_height, trained.grid_width, width))
        self.pre_norm = _either(config.pre_norm, lambda: make_norm(width))
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.depth))
        self.norm = _either(
            config.final_norm != "none",
            lambda: make_norm(pooled if config.final_norm == "after pooling" else width),
        )
        self.pooler = _either(config.pooling == "attention", lambda: AttentionPooling(config))
        self.representation = _either(
            bool(config.representation_width), lambda: nn.Sequential(nn.Linear(pooled, represented), nn.Tanh())
        )
        self.projection = _either(
            bool(config.projection_width), lambda: nn.Linear(represented, config.projection_width, bias=False)
        )
        self.classifier = _either(bool(config.classes), lambda: nn.Linear(config.features, config.classes))
        for parameter in (self.prefix_tokens, *([] if config.rotary else [self.positions])):
            nn.init.trunc_normal_(parameter, std=0.02)

    @property
    def encoder(self) -> list[EncoderLayer]:
        """The encoder layers, nearest to the image first."""
        return [layer for layer in self.layers if isinstance(layer, EncoderLayer)]

    @property
    def device(self) -> torch.device:
        """Where the network's weights are."""
        return self.prefix_tokens.device

    @overload
    def forward(
        self, pixels: torch.Tensor, need_weights: Literal[False] = False, head_mask: torch.Tensor | None = None
    ) -> torch.Tensor: ...

    @overload
    def forward(
        self, pixels: torch.Tensor, need_weights: Literal[True], head_mask: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, list[torch.Tensor]]: ...

    def forward(
        self, pixels: torch.Tensor, need_weights: bool = False, head_mask: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, list[torch.Tensor]]:
        """Classify images, on request with the attention weights of every layer.

        Args:
            pixels: ``"batch channel height width"``, normalised as the checkpoint was trained.
            need_weights: also return the attention weights.
            head_mask: ``"layer head"``, what the attention weights of each head are multiplied with after the
                softmax; 0 switches a head off.

        Returns:
            Logits ``"batch class"`` (the pooled features ``"batch feature"`` where there is no classifier); with
            ``need_weights`` a pair of these and one tensor per encoder layer, ``"batch head query key"``, whose rows
            sum to 1, or to the head's mask. The logits are the same either way.

        Raises:
            ImageError: the pixels have another number of dimensions or channels, a size that the patch does not
                divide, or a grid for which the model has no positions.
            ConfigError: the head mask has another shape.
        """
        heads = (self.config.depth, self.config.heads)
        if head_mask is not None and head_mask.shape != heads:
            raise ConfigError(f"head mask of shape {tuple(head_mask.shape)}: expected 'layer head', {heads}")
        tokens, layout = self.embed(pixels)
        angles, weights = self._angles(layout), []
        for number, layer in enumerate(self.encoder):
            mask = None if head_mask is None else head_mask[number]
            tokens, queries, keys = layer(tokens, angles, mask)
            if need_weights:
                found = attention_weights(queries, keys, layer.attention.scale)
                weights.append(found if mask is None else found * rearrange(mask, "head -> head 1 1"))
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
        angles, kept = self._angles(layout), []
        for layer in self.encoder:
            tokens, queries, keys = layer(tokens, angles)
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
        patches = rearrange(
            pixels,
            "batch channel (row height) (column width) -> batch row column (channel height width)",
            height=config.patch_height,
            width=config.patch_width,
        )
        if config.patch_norms:
            patches = self.patch_norms[1](self.patch_embedding(self.patch_norms[0](patches)))
        else:
            patches = self.patch_embedding(patches)
        if not config.rotary:
            patches = patches + resize_positions(
                self.positions, layout.grid_height, layout.grid_width, config.position_rule
            )
        patches = rearrange(patches, "batch row column width -> batch (row column) width")
        prefix = repeat(self.prefix_tokens, "prefix width -> batch prefix width", batch=len(pixels))
        return self.pre_norm(torch.cat([prefix, patches], 1)), layout

    def classify(self, tokens: torch.Tensor, layout: TokenLayout) -> torch.Tensor:
        """The output of the last layer, ``"batch token width"``, as logits ``"batch class"``."""
        config = self.config
        if config.final_norm == "before pooling":
            tokens = self.norm(tokens)
        pool = POOLINGS[config.pooling].pool
        pooled = pool(tokens, layout) if pool else self.pooler(tokens[:, layout.prefix_count :])
        if config.final_norm == "after pooling":
            pooled = self.norm(pooled)
        return self.classifier(self.projection(self.representation(pooled)))

    def _angles(self, layout: TokenLayout) -> torch.Tensor | None:
        if not self.config.rotary:
            return None
        return rotary_angles(layout.grid_height, layout.grid_width, self.periods)


def linear_from_convolution(kernel: torch.Tensor) -> torch.Tensor:
    """A patch convolution's kernel as the weight of the patch embedding, which is the same map.

    ``"width channel patch_height patch_width"`` to ``"width (channel patch_height patch_width)"``.
    """
    return rearrange(kernel, "width channel height column -> width (channel height column)")


def _either(wanted: bool, make: Callable[[], nn.Module]) -> Any:
    return make() if wanted else nn.Identity()


def _precise(tensor: torch.Tensor) -> torch.Tensor:
    """In single precision at least."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
