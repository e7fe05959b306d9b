"""The memory and computation of an analysis, by formula."""

from __future__ import annotations

from dataclasses import dataclass

from vitviz.attention.layout import TokenLayout
from vitviz.attention.precision import Precision, type_of
from vitviz.attribution.rollout import working_bytes
from vitviz.errors.arguments import integer
from vitviz.errors.kinds import MethodError
from vitviz.models.capture import ModuleConfig
from vitviz.models.config import ViTConfig
from vitviz.models.given import NO_NETWORK, GivenConfig
from vitviz.models.layers import mlp_chunk_tokens
from vitviz.models.network import NetworkConfig
from vitviz.models.pooling import POOLINGS

# Single precision is the highest that anything is computed in.
NUMBER_BYTES = 4
# glibc keeps freed blocks of up to this size; in practice about two of the largest.
RETAINED_BYTES = 32 * 2**20
# What a usual layer of a captured module holds at once: features per token, in widths of the stream, and attention
# matrices per head.
MODULE_WIDTHS = 24
MODULE_MATRICES = 3


@dataclass(frozen=True)
class Cost:
    """The cost of analysing a batch, without the model and the users' images.

    Args:
        tokens: of one image.
        trace_bytes: bytes of the trace: queries, keys, logarithms of sums and norms.
        working_bytes: peak of the other bytes, while the model runs or a rollout is computed on a CPU.
        flops: of the forward pass, two for a multiplication and its addition.

    >>> cost = vitviz.cost("cat.jpg", model)
    >>> cost.tokens, cost.nbytes
    (201, 8016060)
    """

    tokens: int
    trace_bytes: int
    working_bytes: int
    flops: int

    @property
    def nbytes(self) -> int:
        """The most bytes that are needed at once."""
        return self.trace_bytes + self.working_bytes


def cost_of(config: NetworkConfig, layout: TokenLayout, batch: int = 1, storage: Precision | None = None) -> Cost:
    """The cost of analysing a batch of images; an estimate for a captured module, whose layers are not known.

    Args:
        config: of the network.
        layout: of the tokens of one image.
        batch: how many images are encoded together.
        storage: precision of queries and keys in the traces, as in :meth:`vitviz.VisionTransformer.encode`.

    Raises:
        ConfigError: the storage is no precision, or the batch is no positive whole number.
    """
    batch = integer("batch", batch, 1)
    if not isinstance(config, ViTConfig):
        return _cost_of_module(config, layout, batch, storage)
    rows = config.depth * config.heads * layout.token_count
    stored = NUMBER_BYTES if storage is None else type_of(storage, "storage").itemsize
    norms = (config.depth + 1) * layout.token_count * NUMBER_BYTES
    trace = rows * (2 * config.head_width * stored + NUMBER_BYTES) + norms
    pixels = config.channels * layout.grid_height * config.patch_height * layout.grid_width * config.patch_width
    forward = max(_embedding(config, layout, pixels), _layer(config, layout))
    # Each image keeps its own pixels beside the tensor of the batch.
    pixel_copies = batch * pixels * (1 if batch == 1 else 2)
    rollout = working_bytes(layout.token_count, config.heads, NUMBER_BYTES)
    working = NUMBER_BYTES * pixel_copies + max(NUMBER_BYTES * batch * forward, rollout)
    working += _retained(config, batch, layout.token_count)
    return Cost(layout.token_count, batch * trace, working, batch * _image_flops(config, layout))


def _cost_of_module(config: NetworkConfig, layout: TokenLayout, batch: int, storage: Precision | None) -> Cost:
    """The cost for a captured module, which encodes one image after the other.

    The trace is counted exactly; the forward pass is taken for that of a usual Vision Transformer.
    """
    if isinstance(config, GivenConfig):
        raise MethodError(NO_NETWORK)
    assert isinstance(config, ModuleConfig), "there are three kinds of networks"
    tokens, matrix = layout.token_count, NUMBER_BYTES * layout.token_count**2
    rows = config.depth * config.heads * tokens
    stored = NUMBER_BYTES if storage is None else type_of(storage, "storage").itemsize
    trace = rows * (2 * config.head_width * stored + NUMBER_BYTES) + config.bias_matrices * matrix
    pixels = config.channels * layout.patch_count * config.patch_height * config.patch_width
    forward = NUMBER_BYTES * (2 * pixels + MODULE_WIDTHS * tokens * config.width)
    if config.is_written_out:
        forward += MODULE_MATRICES * config.heads * matrix
    if config.bias_matrices:
        # The biases of all layers are held until they are joined.
        forward += config.bias_matrices * matrix
    rollout = working_bytes(tokens, config.heads, NUMBER_BYTES)
    working = batch * NUMBER_BYTES * pixels + max(forward, rollout) + 2 * RETAINED_BYTES
    products = config.parameters * tokens + 2 * config.depth * tokens**2 * config.heads * config.head_width
    return Cost(tokens, batch * trace, working, 2 * batch * products)


def _embedding(config: ViTConfig, layout: TokenLayout, pixels: int) -> int:
    """Peak of numbers held while an image becomes tokens: patches, their norm, tokens without and with prefix."""
    return pixels * (2 if config.patch_norms else 1) + layout.token_count * config.width * (3 if config.pre_norm else 2)


def _layer(config: ViTConfig, layout: TokenLayout) -> int:
    """Peak of numbers held in an encoder layer."""
    tokens, width, inner = layout.token_count, config.width, config.heads * config.head_width
    # Queries, keys and values; normalised queries and keys; rotated queries and keys, with temporaries.
    projections = 3 + 2 * config.query_key_norm + 4 * config.rotary
    attention = tokens * (2 * width + (projections + 1) * inner)
    # Hidden features before and after the activation; a gated MLP also holds the activated half and the product.
    hidden = config.mlp_width * (4 if config.gated_mlp else 2)
    mlp = tokens * (2 * width + inner) + min(tokens, mlp_chunk_tokens(config)) * (2 * width + hidden)
    return max(attention, mlp)


def _retained(config: ViTConfig, batch: int, tokens: int) -> int:
    """Bytes that stay allocated after a layer's tensors are freed: stream, queries, keys or values, hidden."""
    hidden = min(tokens, mlp_chunk_tokens(config)) * config.mlp_width * (2 if config.gated_mlp else 1)
    sizes = (tokens * config.width, tokens * config.heads * config.head_width, hidden)
    small = [NUMBER_BYTES * batch * size for size in sizes if NUMBER_BYTES * batch * size <= RETAINED_BYTES]
    return 2 * max(small, default=RETAINED_BYTES)


def _image_flops(config: ViTConfig, layout: TokenLayout) -> int:
    tokens, width, inner = layout.token_count, config.width, config.heads * config.head_width
    pooling = POOLINGS[config.pooling]
    pooled = width * pooling.width_factor
    mlp = width * config.mlp_width * (3 if config.gated_mlp else 2)

    def layer(count: int) -> int:
        """Multiplications of a layer that computes this many output tokens."""
        return tokens * width * 3 * inner + count * (2 * tokens * inner + inner * width + mlp)

    patch = config.channels * config.patch_height * config.patch_width
    products = layout.patch_count * patch * width
    products += (config.depth - 1) * layer(tokens) + layer(pooling.tokens_read(layout))
    if config.pooling == "attention":
        products += 2 * width * width + layout.patch_count * (2 * width * width + 2 * width) + mlp
    for features in (config.representation_width, config.projection_width, config.classes):
        products += pooled * features
        pooled = features or pooled
    return 2 * products
