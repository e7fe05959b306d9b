"""Everything that determines the mathematics of a Vision Transformer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from vitviz.attention.layout import TokenLayout, patch_grid
from vitviz.errors.arguments import named_fields
from vitviz.errors.kinds import ConfigError
from vitviz.errors.messages import choices, describe, did_you_mean
from vitviz.models.activations import ACTIVATIONS
from vitviz.models.pooling import POOLINGS
from vitviz.models.positions import POSITION_RULES
from vitviz.models.probability import PROBABILITIES

SIZES = (
    *("image_height", "image_width", "patch_height", "patch_width", "channels"),
    *("width", "depth", "heads", "head_width", "mlp_width"),
)
SWITCHES = (
    *("cls_token", "distillation_token", "qkv_bias", "query_key_norm"),
    *("patch_norms", "pre_norm", "gated_mlp", "rotary"),
)
FinalNorm = Literal["before pooling", "after pooling", "none"]
FINAL_NORMS: tuple[FinalNorm, ...] = get_args(FinalNorm)


@named_fields(ConfigError)
@dataclass(frozen=True)
class ViTConfig:
    """Everything that determines the mathematics of a Vision Transformer.

    Args:
        image_height, image_width: trained size in pixels; a multiple of the patch size.
        patch_height, patch_width: size of a patch in pixels.
        width: features of a token.
        depth: number of encoder layers.
        heads: attention heads of a layer.
        head_width: features of a head; independent of ``width / heads``.
        mlp_width: hidden features of a layer's MLP.
        classes: outputs of the classifier; 0 for a model without one, which returns its pooled features.
        channels: colour channels of the image.
        cls_token, distillation_token: whether the model has one.
        register_tokens: number of register tokens.
        pooling: name in :data:`vitviz.models.pooling.POOLINGS` of what the classifier reads.
        qkv_bias: whether queries, keys and values have a bias.
        norm_epsilon: added to the variance in every layer norm.
        final_norm: ``"before pooling"``, ``"after pooling"`` or ``"none"``.
        activation: name in :data:`vitviz.models.activations.ACTIVATIONS` of the MLP's activation; ``"gelu"`` is exact.
        gated_mlp: whether a second linear map gates the hidden features, as in SwiGLU.
        attention_scale: factor of the attention scores; None for ``head_width ** -0.5``.
        query_key_norm: whether a head's queries and keys are normalised.
        patch_norms: whether patches are normalised before and after their embedding.
        pre_norm: whether tokens are normalised before the first layer.
        position_rule: name in :data:`vitviz.models.positions.POSITION_RULES` of how positions are resized to another
            grid.
        rotary: whether every layer rotates queries and keys by their positions, instead of adding learned positions.
        representation_width: features of a tanh layer between pooling and classifier; 0 for none.
        projection_width: features of a linear projection after pooling, without bias; 0 for none.
        probability: name in :data:`vitviz.models.probability.PROBABILITIES` of what makes probabilities of the logits.

    Raises:
        ConfigError: a value is out of range or contradicts another.

    >>> model.network.config.depth, model.network.config.heads
    (8, 6)
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
    final_norm: str = "before pooling"
    activation: str = "gelu"
    gated_mlp: bool = False
    attention_scale: float | None = None
    query_key_norm: bool = False
    patch_norms: bool = False
    pre_norm: bool = False
    position_rule: str = "bicubic antialiased"
    rotary: bool = False
    representation_width: int = 0
    projection_width: int = 0
    probability: str = "softmax"

    has_stream = True

    def __post_init__(self) -> None:
        # Values of a checkpoint's header may have any type.
        unsized = ("classes", "register_tokens", "representation_width", "projection_width")
        for name, minimum in {**dict.fromkeys(SIZES, 1), **dict.fromkeys(unsized, 0)}.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
                raise ConfigError(f"{name} = {describe(value)}: expected a whole number of at least {minimum}")
        for name in SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} = {describe(getattr(self, name))}: expected True or False")
        for name in ("norm_epsilon", "attention_scale"):
            number, optional = getattr(self, name), name != "norm_epsilon"
            if not (optional and number is None) and not is_positive(number):
                raise ConfigError(
                    f"{name} = {describe(number)}: expected a finite number above 0{' or None' * optional}"
                )
        for name, legal in (
            ("pooling", tuple(POOLINGS)),
            ("final_norm", FINAL_NORMS),
            ("activation", tuple(ACTIVATIONS)),
            ("position_rule", tuple(POSITION_RULES)),
            ("probability", tuple(PROBABILITIES)),
        ):
            choice = getattr(self, name)
            if choice not in legal:
                raise ConfigError(
                    f"{name} = {describe(choice)}: expected {choices(legal)}{did_you_mean(choice, legal)}"
                )
        for token in POOLINGS[self.pooling].required_prefix:
            if token not in self.prefix:
                raise ConfigError(
                    f"pooling = {self.pooling!r} needs {token}_token = True; "
                    f"without a {token.upper() if token == 'cls' else token} token, pool by 'mean'"
                )
        if self.rotary and self.head_width % 4:
            raise ConfigError(f"head_width = {self.head_width}: rotary positions need a multiple of 4")
        if self.pooling == "attention" and self.width % self.heads:
            raise ConfigError(f"width = {self.width}: attention pooling needs a multiple of heads = {self.heads}")
        self.layout(self.image_height, self.image_width)

    @property
    def prefix(self) -> tuple[str, ...]:
        """Names of the prefix tokens, in their order in the sequence."""
        cls = ("cls",) if self.cls_token else ()
        distillation = ("distillation",) if self.distillation_token else ()
        return cls + distillation + tuple(f"register {number + 1}" for number in range(self.register_tokens))

    @property
    def features(self) -> int:
        """Number of features that the network returns for an image if it has no classifier."""
        pooled = self.width * POOLINGS[self.pooling].width_factor
        return self.projection_width or self.representation_width or pooled

    @property
    def classifies_tokens(self) -> bool:
        """Whether a single token can be classified, which it cannot if several are side by side."""
        return POOLINGS[self.pooling].width_factor == 1

    def layout(self, image_height: int, image_width: int) -> TokenLayout:
        """The token layout of an image of this size in pixels.

        Raises:
            ConfigError: the size is not a multiple of the patch size.
        """
        return TokenLayout(self.prefix, *patch_grid((image_height, image_width), (self.patch_height, self.patch_width)))


def is_positive(value: object) -> bool:
    """Whether the value is a finite number above 0."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
