"""The protocol through which the rest of vitviz uses a network: vitviz's own, or the user's module.

:class:`vitviz.VisionTransformer` and :class:`vitviz.models.capture.network.CapturedNetwork` implement it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, overload

import torch

from vitviz.attention.layout import TokenLayout
from vitviz.attention.precision import Precision
from vitviz.attention.trace import AttentionTrace
from vitviz.models.pooling import Output
from vitviz.progress import Progress


@dataclass(frozen=True, eq=False)
class Encoding:
    """The result of one forward pass: ``logits`` ``"batch class"`` and one trace per image."""

    logits: torch.Tensor
    traces: tuple[AttentionTrace, ...]


class NetworkConfig(Protocol):
    """The properties that networks of both kinds have.

    :class:`vitviz.ViTConfig` documents the fields. ``pooling`` is a name in :data:`vitviz.models.pooling.POOLINGS`, or
    another word for a network whose pooling is unknown.
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
    def probability(self) -> str: ...
    @property
    def prefix(self) -> tuple[str, ...]: ...
    @property
    def pooling(self) -> str: ...
    def layout(self, image_height: int, image_width: int) -> TokenLayout:
        """The token layout of an image of this size in pixels."""


class Network(Protocol):
    """A network that encodes images into traces.

    Gradients (:mod:`vitviz.models.gradients`) and ablation (:mod:`vitviz.metrics.ablation`) have one function for each
    kind of network. Code that needs more than this protocol calls :func:`vitviz.models.require.require_vit`.
    """

    @overload
    def __call__(self, pixels: torch.Tensor, need_weights: Literal[False] = False) -> torch.Tensor: ...

    @overload
    def __call__(
        self, pixels: torch.Tensor, need_weights: Literal[True]
    ) -> tuple[torch.Tensor, list[torch.Tensor]]: ...

    def __call__(
        self, pixels: torch.Tensor, need_weights: bool = False
    ) -> torch.Tensor | tuple[torch.Tensor, list[torch.Tensor]]:
        """Logits ``"batch class"``, or features ``"batch feature"`` if it does not classify.

        With ``need_weights``, also the attention weights of every layer, each ``"batch head query key"``.
        """
        ...

    @property
    def config(self) -> NetworkConfig:
        """The network's properties."""

    @property
    def device(self) -> torch.device:
        """The device of its weights."""

    @property
    def precision(self) -> torch.dtype:
        """The type in which its layers compute."""

    def encode(
        self,
        pixels: torch.Tensor,
        storage: Precision | None = None,
        keep_bytes: int = 0,
        report: Callable[[Progress], None] | None = None,
    ) -> Encoding:
        """Logits, and the queries and keys of the same forward pass, as :meth:`vitviz.VisionTransformer.encode`."""

    def output(self, pixels: torch.Tensor, output: Output = "logits") -> torch.Tensor:
        """Its output for images, as :meth:`vitviz.VisionTransformer.output`."""

    def to(self, device: torch.device) -> Network:
        """The network itself, moved to a device.

        Raises:
            ConfigError: it is the user's module, which vitviz does not move.
        """

    def state_dict(self) -> Mapping[str, torch.Tensor]:
        """Its weights by name."""

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """Its weights."""
