"""What the rest of vitviz calls a network: vitviz's own, the user's module, or attention alone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import torch
from torch import nn

from vitviz.attention.layout import TokenLayout
from vitviz.attention.precision import Precision
from vitviz.attention.trace import AttentionTrace
from vitviz.models.pooling import Output
from vitviz.progress import Progress

if TYPE_CHECKING:
    from vitviz.models.config import ViTConfig
    from vitviz.models.given import GivenConfig
    from vitviz.models.gradient_trace import GradientTrace
    from vitviz.models.targets import EffectScore, Target
    from vitviz.models.watched.module_config import ModuleConfig


@dataclass(frozen=True, eq=False)
class Encoding:
    """The result of one forward pass: ``logits`` ``"batch class"`` and one trace per image."""

    logits: torch.Tensor
    traces: tuple[AttentionTrace, ...]


NetworkConfig: TypeAlias = "ViTConfig | ModuleConfig | GivenConfig"
"""The properties of a network. :class:`vitviz.ViTConfig` documents them; ``pooling`` is a name in
:data:`vitviz.models.pooling.POOLINGS`, or another word where it is unknown."""


class Network(Protocol):
    """A network that encodes images into traces and answers the questions of methods, probes and pages.

    Pixels are ``"batch channel height width"``, normalised as the network was trained; of a single image, the batch is
    1. Tokens are ``"batch token width"`` in the order of the layout.

    Raises:
        MethodError: from whatever a network cannot do.
    """

    @property
    def config(self) -> NetworkConfig: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def precision(self) -> torch.dtype: ...

    def __call__(self, pixels: torch.Tensor, need_weights: bool = False) -> Any:
        """Its output; with ``need_weights`` also the attention of each layer, ``"batch head query key"``."""

    def encode(
        self,
        pixels: torch.Tensor,
        storage: Precision | None = None,
        keep_bytes: int = 0,
        report: Callable[[Progress], None] | None = None,
    ) -> Encoding:
        """Logits and traces of one forward pass."""

    def output(self, pixels: torch.Tensor, output: Output = "logits") -> torch.Tensor:
        """Logits, features or patches of images, which gradients pass."""

    def stream(self, pixels: torch.Tensor) -> Iterator[torch.Tensor]:
        """The tokens of a single image before the first layer and after each one."""

    def values(self, pixels: torch.Tensor) -> Iterator[torch.Tensor]:
        """The values of each layer's attention for a single image, ``"head token dim"`` in the order of the layout."""

    def read(self, tokens: torch.Tensor, layout: TokenLayout) -> torch.Tensor:
        """The logits ``"batch class"`` of tokens in place of those after the last layer."""

    def classify_each(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits ``"token class"`` of each token ``"token width"``, as if pooling had returned it."""

    def with_gradients(self, pixels: torch.Tensor, target: Target, start_layer: int) -> GradientTrace:
        """A score's gradient with respect to the attention of a single image, from one layer on."""

    def layer_gradients(
        self, pixels: torch.Tensor, target: Target, start_layer: int
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The gradient of each layer's own score with respect to its attention, and its values: ``"head token dim"``.

        A layer's tokens are scored as if it were the last.
        """

    def layer_features(
        self, pixels: torch.Tensor, target: Target, layer: int
    ) -> tuple[torch.Tensor, torch.Tensor, TokenLayout]:
        """The input of a layer's attention, after its norm, the score's gradient with respect to it, and the layout.

        Both are ``"token width"`` in at least single precision.
        """

    def attention_gradients(
        self, pixels: torch.Tensor, covered: Collection[int], score: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        """A score's gradient, ``"patch"``, as the attention to each patch of a single image weakens in every layer."""

    def without(
        self,
        pixels: torch.Tensor,
        head_mask: torch.Tensor | None = None,
        patches: Sequence[Collection[int]] = ((),),
        output: Output = "logits",
    ) -> torch.Tensor:
        """The output of a single image without heads, whose factors are ``"layer head"``, and each set of patches.

        Patches are numbered row by row, as many in each set; no token attends to them. The result has a row for each.
        """

    @property
    def why_no_hiding(self) -> str | None:
        """Why :meth:`without` cannot leave patches out; None if it can."""

    def head_scores(
        self, pixels: torch.Tensor, score: EffectScore, report: Callable[[Progress], None] | None = None
    ) -> tuple[float, torch.Tensor]:
        """The score of a single image with all heads, and without each in turn, ``"layer head"``."""

    def copy_in_parts(self) -> tuple[Network, list[list[nn.Parameter]]]:
        """A frozen copy, and its parameters from the top down: above the layers, of each layer, below them.

        All are one part if no parameter is known to be of one layer.
        """

    def to(self, device: torch.device) -> Any:
        """The network on a device."""

    def state_dict(self) -> Mapping[str, torch.Tensor]: ...

    def parameters(self) -> Iterator[nn.Parameter]: ...
