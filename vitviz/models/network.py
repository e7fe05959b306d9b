"""What the rest of vitviz needs of a network: vitviz's own, or a module that the user has.

:class:`vitviz.VisionTransformer` and :class:`vitviz.models.capture.CapturedNetwork` are the two that there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from vitviz.attention.layout import TokenLayout
from vitviz.attention.trace import AttentionTrace
from vitviz.models.pooling import Output
from vitviz.progress import Progress


@dataclass(frozen=True, eq=False)
class Encoding:
    """What one forward pass gives: ``logits`` ``"batch class"`` and one trace per image."""

    logits: torch.Tensor
    traces: tuple[AttentionTrace, ...]


class NetworkConfig(Protocol):
    """The facts about a network that do not depend on who computes it.

    :class:`vitviz.ViTConfig` documents the fields. ``pooling`` is a name in :data:`vitviz.models.pooling.POOLINGS`, or
    another word where the network keeps to itself how it pools.
    """

    @property
    def image_height(self) -> int: ...
    @property
    def image_width(self) -> int: ...
    @property
    def patch_height(self) -> int: ...
    @property
    def patch_width(self) -> int: ...
    @property
    def channels(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def depth(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def head_width(self) -> int: ...
    @property
    def classes(self) -> int: ...
    @property
    def prefix(self) -> tuple[str, ...]: ...
    @property
    def pooling(self) -> str: ...
    def layout(self, image_height: int, image_width: int) -> TokenLayout:
        """The tokens of an image of this size in pixels."""


class Network(Protocol):
    """A network that encodes images into traces.

    Gradients (:mod:`vitviz.models.gradients`) and switching off (:mod:`vitviz.metrics.ablation`) have one function for
    each kind of network. What needs more than this protocol takes :func:`vitviz.models.own.own_network` of it.
    """

    def __call__(self, pixels: torch.Tensor) -> torch.Tensor:
        """Logits ``"batch class"``, or features ``"batch feature"`` where it does not classify."""

    @property
    def config(self) -> NetworkConfig:
        """The facts about it."""

    @property
    def device(self) -> torch.device:
        """Where its weights are."""

    @property
    def precision(self) -> torch.dtype:
        """The type in which its layers compute."""

    def encode(
        self,
        pixels: torch.Tensor,
        storage: str | None = None,
        keep_bytes: int = 0,
        report: Callable[[Progress], None] | None = None,
    ) -> Encoding:
        """Logits, and the queries and keys of the same forward pass, as :meth:`vitviz.VisionTransformer.encode`."""

    def output(self, pixels: torch.Tensor, output: Output = "logits") -> torch.Tensor:
        """What it gives of images, as :meth:`vitviz.VisionTransformer.output`."""

    def to(self, device: torch.device) -> Network:
        """Itself, on a device.

        Raises:
            ConfigError: it is a module that stays where it is.
        """

    def state_dict(self) -> Mapping[str, torch.Tensor]:
        """Its weights by name."""

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """Its weights."""
