"""The properties of a watched module: stated by its user or itself, and measured from its calls of attention."""

from __future__ import annotations

from dataclasses import dataclass

from vitviz.attention.layout import TokenLayout, patch_grid

Size = tuple[int, int]
WATCHED_MODULE = (
    "this model is a module that vitviz watches, whose weights it does not know by their meaning; expected a "
    "checkpoint in a layout of vitviz's own"
)
NO_STREAM = "the tokens between the module's layers cannot be read, since no residual stream was found"


@dataclass(frozen=True)
class ModuleConfig:
    """The configuration of a watched module, a :data:`vitviz.models.network.NetworkConfig`.

    Args:
        image_height, image_width, patch_height, patch_width: in pixels.
        channels: channels of the image.
        classes: number of classes; 0 if its output is not a classification.
        probability: what makes probabilities of its output, a name in :data:`vitviz.models.probability.PROBABILITIES`.
        prefix: names of the tokens that are not patches, in the module's order.
        depth, heads, head_width, width: sizes of its layers. These and all that follow are measured from its calls.
        pooling: ``"attention"`` if one learned query reads the tokens after the layers.
        parameters: number of its weights.
        bias_matrices: number of bias matrices in a trace, each with a number for every pair of tokens.
        is_written_out: whether the module itself computes whole matrices of attention weights.
        has_stream: whether its tokens can be read between its layers.
    """

    image_height: int
    image_width: int
    patch_height: int
    patch_width: int
    channels: int
    classes: int
    probability: str
    prefix: tuple[str, ...]
    depth: int = 0
    heads: int = 0
    head_width: int = 0
    width: int = 0
    pooling: str = ""
    parameters: int = 0
    bias_matrices: int = 0
    is_written_out: bool = False
    has_stream: bool = False
    classifies_tokens = False

    def layout(self, image_height: int, image_width: int) -> TokenLayout:
        """The token layout of an image of this size in pixels.

        Raises:
            ConfigError: the size is not a multiple of the patch size.
        """
        return TokenLayout(self.prefix, *patch_grid((image_height, image_width), (self.patch_height, self.patch_width)))
