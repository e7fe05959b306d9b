"""The memory and computation of an analysis, estimated by formula."""

from __future__ import annotations

from dataclasses import dataclass

from vitviz.attention.layout import TokenLayout
from vitviz.attention.precision import Precision, type_of
from vitviz.attribution.rollout import working_bytes
from vitviz.errors.arguments import integer
from vitviz.errors.kinds import MethodError
from vitviz.models.config import ViTConfig
from vitviz.models.given import NO_NETWORK, GivenConfig
from vitviz.models.layers import mlp_chunk_tokens
from vitviz.models.network import NetworkConfig
from vitviz.models.watched import ModuleConfig

# Single precision is the highest that anything is computed in.
NUMBER_BYTES = 4
# glibc keeps freed blocks of up to this size; in practice about two of the largest.
RETAINED_BYTES = 32 * 2**20
# What a layer holds at once: features per token, in widths of the stream, and features of the tokens that go through an
# MLP together.
LAYER_WIDTHS, MLP_WIDTHS = 6, 8
# Of a usual layer of a watched module, also attention matrices per head.
MODULE_WIDTHS, MODULE_MATRICES = 24, 3


@dataclass(frozen=True)
class Cost:
    """The cost of analysing a batch, without the model and the users' images.

    Args:
        tokens: of one image.
        trace_bytes: bytes of the trace: queries, keys, logarithms of sums and norms.
        working_bytes: about the peak of the other bytes, while the model runs or a rollout is computed on a CPU; a
            discard ratio takes twice the bytes of a matrix of tokens more.
        flops: of the forward pass, about: two for a multiplication and its addition.

    >>> cost = vitviz.cost("cat.jpg", model)
    >>> cost.tokens, cost.nbytes
    (201, 13819332)
    """

    tokens: int
    trace_bytes: int
    working_bytes: int
    flops: int

    @property
    def nbytes(self) -> int:
        """About the most bytes that are needed at once."""
        return self.trace_bytes + self.working_bytes


def cost_of(config: NetworkConfig, layout: TokenLayout, batch: int = 1, storage: Precision | None = None) -> Cost:
    """The cost of analysing a batch of images.

    The trace is counted exactly; the forward pass is taken for that of a usual Vision Transformer.

    Args:
        config: of the network.
        layout: of the tokens of one image.
        batch: how many images are encoded together.
        storage: precision of queries and keys in the traces, as in :meth:`vitviz.VisionTransformer.encode`.

    Raises:
        ConfigError: the storage is no precision, or the batch is no positive whole number.
        MethodError: there is no network.
    """
    batch = integer("batch", batch, 1)
    if isinstance(config, GivenConfig):
        raise MethodError(NO_NETWORK)
    tokens, width, inner = layout.token_count, config.width, config.heads * config.head_width
    stored = NUMBER_BYTES if storage is None else type_of(storage, "storage").itemsize
    trace = config.depth * config.heads * tokens * (2 * config.head_width * stored + 2 * NUMBER_BYTES)
    pixels = config.channels * layout.patch_count * config.patch_height * config.patch_width
    if isinstance(config, ViTConfig):
        trace += (config.depth + 1) * tokens * NUMBER_BYTES
        weights = config.depth * width * (4 * inner + config.mlp_width * (3 if config.gated_mlp else 2))
        features = LAYER_WIDTHS * tokens + MLP_WIDTHS * min(tokens, mlp_chunk_tokens(config))
        forward = batch * NUMBER_BYTES * features * max(width, inner)
    else:
        assert isinstance(config, ModuleConfig), "there are three kinds of networks"
        # The biases of all layers are held until they are joined.
        matrices = config.bias_matrices + MODULE_MATRICES * config.heads * config.is_written_out
        trace += config.bias_matrices * NUMBER_BYTES * tokens**2
        weights = config.parameters
        forward = batch * NUMBER_BYTES * (2 * pixels + MODULE_WIDTHS * tokens * width + matrices * tokens**2)
    rollout = working_bytes(tokens, config.heads, NUMBER_BYTES)
    working = batch * NUMBER_BYTES * pixels + max(forward, rollout) + min(forward, 2 * RETAINED_BYTES)
    products = weights * tokens + 2 * config.depth * tokens**2 * inner
    return Cost(tokens, batch * trace, working, 2 * batch * products)
