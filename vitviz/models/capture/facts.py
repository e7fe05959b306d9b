"""What is known of a captured module: what its user or the module says, and what its calls of attention show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from vitviz.attention.layout import TokenLayout
from vitviz.errors.kinds import ConfigError

Size = tuple[int, int]


@dataclass(frozen=True)
class ModuleFacts:
    """What has to be known of a module before it is run.

    Args:
        name: what messages call it.
        image_size, patch_size: height and width in pixels.
        channels: of the image.
        prefix: names of the tokens that are no patches, in the module's order.
        classes: how many it classifies; 0 where its output is no classification.
        forward: the module and pixels ``"batch channel height width"`` to what it returns.
        depth: how many layers the module says that it has; None where it does not.

    Raises:
        ConfigError: the patch does not divide the image.
    """

    name: str
    image_size: Size
    patch_size: Size
    channels: int
    prefix: tuple[str, ...]
    classes: int
    forward: Callable[[nn.Module, torch.Tensor], Any] = field(repr=False)
    depth: int | None = None

    def __post_init__(self) -> None:
        self.grid(*self.image_size)

    def grid(self, image_height: int, image_width: int) -> Size:
        """Rows and columns of patches.

        Raises:
            ConfigError: the patch does not divide the image.
        """
        rows, rest = divmod(image_height, self.patch_size[0])
        columns, other_rest = divmod(image_width, self.patch_size[1])
        if rest or other_rest or not rows or not columns:
            sizes = f"image of {image_height}×{image_width} pixels (height × width)"
            patch = f"{self.patch_size[0]}×{self.patch_size[1]}"
            raise ConfigError(f"{sizes}: both sides must be a multiple of the patch, {patch}")
        return rows, columns


@dataclass(frozen=True)
class ModuleConfig:
    """The facts about a captured module, as :class:`vitviz.models.network.NetworkConfig` has them.

    Args:
        facts: what was known before.
        depth, heads, head_width, width: of its layers, as its calls show them.
        pooling: ``"attention"`` where one learned query reads the tokens behind the layers.
        parameters: number of its weights.
        bias_matrices: how many matrices of bias a trace keeps, each of a number for every pair of tokens.
        is_written_out: whether the module itself makes whole matrices of attention weights.
        has_stream: whether its tokens can be read between its layers.
    """

    facts: ModuleFacts
    depth: int
    heads: int
    head_width: int
    width: int
    pooling: str
    parameters: int
    bias_matrices: int
    is_written_out: bool
    has_stream: bool

    @property
    def image_height(self) -> int:
        return self.facts.image_size[0]

    @property
    def image_width(self) -> int:
        return self.facts.image_size[1]

    @property
    def patch_height(self) -> int:
        return self.facts.patch_size[0]

    @property
    def patch_width(self) -> int:
        return self.facts.patch_size[1]

    @property
    def channels(self) -> int:
        return self.facts.channels

    @property
    def classes(self) -> int:
        return self.facts.classes

    @property
    def prefix(self) -> tuple[str, ...]:
        return self.facts.prefix

    def layout(self, image_height: int, image_width: int) -> TokenLayout:
        """The tokens of an image of this size in pixels.

        Raises:
            ConfigError: the size is no multiple of the patch size.
        """
        return TokenLayout(self.prefix, *self.facts.grid(image_height, image_width))
