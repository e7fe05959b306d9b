"""The properties of a watched module: stated by its user or itself, and measured from its calls of attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from vitviz.attention.layout import TokenLayout, patch_grid

Size = tuple[int, int]
WATCHED_MODULE = (
    "this model is a module that vitviz watches, whose weights it does not know by their meaning; expected a "
    "checkpoint in a layout of vitviz's own"
)
NO_STREAM = "the tokens between the module's layers cannot be read, since no residual stream was found"


@dataclass(frozen=True)
class ModuleFacts:
    """The properties of a module that must be known before it runs.

    Args:
        name: name of the module in messages.
        image_size, patch_size: height and width in pixels.
        channels: channels of the image.
        prefix: names of the tokens that are not patches, in the module's order.
        classes: number of classes; 0 if its output is not a classification.
        forward: calls the module with pixels ``"batch channel height width"`` and returns its result.
        probability: what makes probabilities of its output, a name in :data:`vitviz.models.probability.PROBABILITIES`.
    """

    name: str
    image_size: Size
    patch_size: Size
    channels: int
    prefix: tuple[str, ...]
    classes: int
    forward: Callable[[nn.Module, torch.Tensor], Any] = field(repr=False)
    probability: str = "softmax"


@dataclass(frozen=True)
class ModuleConfig:
    """The configuration of a watched module, a :data:`vitviz.models.network.NetworkConfig`.

    Args:
        image_height, image_width, patch_height, patch_width: in pixels.
        channels, classes, probability, prefix: as in :class:`ModuleFacts`.
        depth, heads, head_width, width: sizes of its layers, measured from its calls.
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
    depth: int
    heads: int
    head_width: int
    width: int
    pooling: str
    parameters: int
    bias_matrices: int
    is_written_out: bool
    has_stream: bool
    classifies_tokens = False

    def layout(self, image_height: int, image_width: int) -> TokenLayout:
        """The token layout of an image of this size in pixels.

        Raises:
            ConfigError: the size is not a multiple of the patch size.
        """
        return TokenLayout(self.prefix, *patch_grid((image_height, image_width), (self.patch_height, self.patch_width)))
