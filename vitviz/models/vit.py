"""One Vision Transformer for all layouts of weights, with an explicit order of its tokens.

Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale".
Registers: Darcet et al. 2024, "Vision Transformers Need Registers". Distillation token: Touvron et al. 2021, "Training
data-efficient image transformers & distillation through attention".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from einops import rearrange, repeat
from torch import nn

from vitviz.attention.layout import TokenLayout
from vitviz.attention.memory import trim_heap
from vitviz.attention.precision import Precision, precise, type_of
from vitviz.attention.softmax import attention_weights
from vitviz.errors.kinds import ConfigError, ImageError, MethodError
from vitviz.models.attention_gradients import attention_gradients
from vitviz.models.config import ViTConfig
from vitviz.models.encoding import encode
from vitviz.models.gradients import layer_features, layer_gradients, with_gradients
from vitviz.models.layers import AttentionOutput, AttentionPooling, EncoderLayer, module_if
from vitviz.models.own_ablation import head_scores, without
from vitviz.models.own_copy import copy_in_parts
from vitviz.models.pooling import POOLINGS, Output
from vitviz.models.positions import resize_positions, rotary_angles, rotary_periods


class VisionTransformer(nn.Module):
    """A Vision Transformer that returns what it attends to.

    Its parameters have the same form for every layout:

    - ``patch_embedding`` is one linear map of the pixels ``"(channel patch_height patch_width)"``: a convolution's
      kernel is the same numbers, unflattened;
    - ``prefix_tokens`` ``"prefix width"``, their positions already added;
    - ``positions`` ``"grid_height grid_width width"`` of the trained grid, or ``periods`` for rotary positions.

    If ``config.patch_norms`` is set, ``patch_norms`` holds the norms before and after the patch embedding. The other
    optional modules are ``pre_norm``, ``pooler`` (attention pooling), ``representation`` and ``projection``.

    >>> logits, weights = model.network(analysis.prepared.pixels, need_weights=True)
    >>> len(weights), weights[0].shape
    (8, torch.Size([1, 6, 201, 201]))
    """

    encode = encode
    with_gradients = with_gradients
    layer_gradients = layer_gradients
    layer_features = layer_features
    attention_gradients = attention_gradients
    without = without
    head_scores = head_scores
    copy_in_parts = copy_in_parts
    why_no_hiding: str | None = None

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        self.precision = torch.float32
        trained = config.layout(config.image_height, config.image_width)
        make_norm = partial(nn.LayerNorm, eps=config.norm_epsilon)
        pixels, width = config.channels * config.patch_height * config.patch_width, config.width
        pooled = width * POOLINGS[config.pooling].width_factor
        representation = config.representation_width or pooled

        self.patch_embedding = nn.Linear(pixels, width)
        self.patch_norms = module_if(config.patch_norms, lambda: nn.ModuleList([make_norm(pixels), make_norm(width)]))
        self.prefix_tokens = nn.Parameter(torch.empty(trained.prefix_count, width))
        if config.rotary:
            self.periods = nn.Parameter(rotary_periods(config.head_width), requires_grad=False)
        else:
            self.positions = nn.Parameter(torch.empty(trained.grid_height, trained.grid_width, width))
        self.pre_norm = module_if(config.pre_norm, lambda: make_norm(width))
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.depth))
        self.norm = module_if(
            config.final_norm != "none",
            lambda: make_norm(pooled if config.final_norm == "after pooling" else width),
        )
        self.pooler = module_if(config.pooling == "attention", lambda: AttentionPooling(config))
        self.representation = module_if(
            bool(config.representation_width), lambda: nn.Sequential(nn.Linear(pooled, representation), nn.Tanh())
        )
        self.projection = module_if(
            bool(config.projection_width), lambda: nn.Linear(representation, config.projection_width, bias=False)
        )
        self.classifier = module_if(bool(config.classes), lambda: nn.Linear(config.features, config.classes))
        for parameter in (self.prefix_tokens, *([] if config.rotary else [self.positions])):
            nn.init.trunc_normal_(parameter, std=0.02)
        # Whatever torch's default type is.
        self.float()

    @property
    def encoder(self) -> list[EncoderLayer]:
        """The encoder layers, nearest to the image first."""
        return [layer for layer in self.layers if isinstance(layer, EncoderLayer)]

    @property
    def device(self) -> torch.device:
        """The device of the network's weights."""
        return self.prefix_tokens.device

    @property
    def scale(self) -> float:
        """The factor of the attention scores before the softmax, the same in every layer."""
        return self.encoder[0].attention.scale

    def set_precision(self, precision: Precision) -> VisionTransformer:
        """Compute the encoder layers in this precision, by name in :data:`vitviz.attention.precision.PRECISIONS`;
        returns self.

        The layers store and multiply their linear maps in it; norms, sums, patch embedding and classifier stay in
        single precision. Lost precision cannot be restored.

        Raises:
            ConfigError: the precision is none of these.
        """
        self.precision = type_of(precision)
        for module in self.layers.modules():
            if isinstance(module, nn.Linear):
                module.to(self.precision)
        return self

    def forward(
        self, pixels: torch.Tensor, need_weights: bool = False, head_mask: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, list[torch.Tensor]]:
        """Classify images, and return the attention weights of every layer on request.

        Args:
            pixels: ``"batch channel height width"``, normalised as the checkpoint was trained.
            need_weights: also return the attention weights.
            head_mask: ``"layer head"``, factor of each head's attention weights after the softmax; 0 switches a head
                off.

        Returns:
            Logits ``"batch class"`` (the pooled features ``"batch feature"`` without a classifier); with
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
        weights: list[torch.Tensor] = []

        def record(layer: int, attention: AttentionOutput) -> None:
            if need_weights:
                with torch.autocast(self.device.type, enabled=False):
                    matrix = attention_weights(precise(attention.queries), precise(attention.keys), self.scale)
                weights.append(
                    matrix if head_mask is None else matrix * rearrange(head_mask[layer], "head -> head 1 1")
                )

        logits = self.read(*self.run(pixels, record, head_mask))
        return (logits, weights) if need_weights else logits

    def embed(self, pixels: torch.Tensor) -> tuple[torch.Tensor, TokenLayout]:
        """Prefix tokens and position-coded patches, ``"batch token width"``, and their layout."""
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

    def read(
        self,
        tokens: torch.Tensor,
        layout: TokenLayout,
        output: Output = "logits",
        record: Callable[[AttentionOutput], None] | None = None,
    ) -> torch.Tensor:
        """Logits, features or patches from the last layer's output, ``"batch token width"``.

        Args:
            tokens: the first tokens that this output needs by :meth:`steps`, or all of them.
            layout: order of the tokens.
            output: ``"logits"`` for the logits ``"batch class"``, or the pooled features without a classifier;
                ``"features"`` for the pooled features ``"batch feature"``, which the classifier reads; ``"patches"``
                for the patches ``"batch patch width"``, after the final norm if it applies to single tokens.
            record: receives the attention of the learned query to the patches, if the model pools by attention.
        """
        config = self.config
        if config.final_norm == "before pooling":
            tokens = self.norm(tokens)
        if output == "patches":
            patches = tokens[:, layout.prefix_count :]
            is_token_norm = config.final_norm == "after pooling" and POOLINGS[config.pooling].width_factor == 1
            return self.norm(patches) if is_token_norm else patches
        pool = POOLINGS[config.pooling].pool
        pooled = pool(tokens, layout) if pool else self.pooler(tokens[:, layout.prefix_count :], record)
        features = self._features(pooled)
        return features if output == "features" else self.classifier(features)

    def _features(self, pooled: torch.Tensor) -> torch.Tensor:
        """What the classifier reads, from what is pooled."""
        pooled = self.norm(pooled) if self.config.final_norm == "after pooling" else pooled
        return self.projection(self.representation(pooled))

    def classify_each(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits ``"token class"`` of each token ``"token width"``, as if pooling had returned it.

        Raises:
            MethodError: the model classifies several tokens side by side, so a single one is no input.
        """
        config = self.config
        if not config.classifies_tokens:
            raise MethodError(f"this model classifies {config.pooling} side by side: no token alone can be classified")
        if config.final_norm == "before pooling":
            tokens = self.norm(tokens)
        pooled = self.pooler(tokens[:, None]) if config.pooling == "attention" else tokens
        return self.classifier(self._features(pooled))

    def stream(self, pixels: torch.Tensor) -> Iterator[torch.Tensor]:
        """The tokens before the first layer and after each one, ``"batch token width"``, with all of the last layer.

        Raises:
            ImageError: as :meth:`forward`.
        """
        tokens, layout = self.embed(pixels)
        angles = self.angles(layout)
        yield tokens
        for layer in self.encoder:
            tokens = layer(tokens, angles, layout.token_count)
            yield tokens

    def values(self, pixels: torch.Tensor) -> Iterator[torch.Tensor]:
        """The values of each layer's attention for a single image, ``"head token dim"``.

        Raises:
            ImageError: as :meth:`forward`.
        """
        values: list[torch.Tensor] = []
        self.run(pixels, lambda _, attention: values.append(attention.values[0]))
        return iter(values)

    def tokens_read(self, layout: TokenLayout, output: Output = "logits") -> int:
        """How many of the last layer's first tokens an output depends on."""
        return layout.token_count if output == "patches" else POOLINGS[self.config.pooling].tokens_read(layout)

    def steps(self, layout: TokenLayout, output: Output = "logits") -> list[tuple[EncoderLayer, int]]:
        """The encoder layers in order, each with the number of its first tokens to compute.

        These are all tokens, except in the last layer, where the output may depend on the first ones only.
        """
        counts = [layout.token_count] * (self.config.depth - 1) + [self.tokens_read(layout, output)]
        return list(zip(self.encoder, counts, strict=True))

    def output(self, pixels: torch.Tensor, output: Output = "logits") -> torch.Tensor:
        """The result of :meth:`read` for images.

        Args:
            pixels: ``"batch channel height width"``, normalised as the checkpoint was trained.
            output: as in :meth:`read`.

        Raises:
            ImageError: as :meth:`forward`.
        """
        if output == "logits":
            # By the call itself, so that the user's hooks run.
            logits: torch.Tensor = self(pixels)
            return logits
        return self.read(*self.run(pixels, lambda *_: None, output=output), output)

    def angles(self, layout: TokenLayout) -> torch.Tensor | None:
        """Angles of rotary positions, ``"patch pair"``; None for other kinds of positions."""
        if not self.config.rotary:
            return None
        return rotary_angles(layout.grid_height, layout.grid_width, self.periods)

    def run(
        self,
        pixels: torch.Tensor,
        record: Callable[[int, AttentionOutput], None],
        head_mask: torch.Tensor | None = None,
        on_chunk: Callable[[int], None] | None = None,
        on_tokens: Callable[[torch.Tensor], None] | None = None,
        output: Output = "logits",
    ) -> tuple[torch.Tensor, TokenLayout]:
        """The tokens of the last layer on which ``output`` depends, and the layout.

        ``record`` receives each layer's attention, and ``on_tokens`` the tokens before the first layer and after each
        one. ``on_chunk`` is called now and then during a slow layer.
        """
        tokens, layout = self.embed(pixels)
        if on_tokens is not None:
            on_tokens(tokens)
        angles = self.angles(layout)
        for number, (layer, count) in enumerate(self.steps(layout, output)):
            mask = None if head_mask is None else head_mask[number]
            report_chunk = None if on_chunk is None else partial(on_chunk, number)
            tokens = layer(tokens, angles, count, mask, partial(record, number), report_chunk)
            if on_tokens is not None:
                on_tokens(tokens)
            trim_heap(tokens[:1], number, self.config.depth)
        return tokens, layout
