"""What stands in for a network where there is only attention that somebody else computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from vitviz.attention.layout import TokenLayout
from vitviz.attention.precision import Precision
from vitviz.errors.kinds import MethodError
from vitviz.models.network import Encoding
from vitviz.models.pooling import Output
from vitviz.progress import Progress

NO_NETWORK = (
    "this analysis has attention alone, without a network, so there are no gradients and no tokens; "
    "vitviz.analyze(image, model) has them"
)


@dataclass(frozen=True)
class GivenConfig:
    """The properties of a trace, a :data:`vitviz.models.network.NetworkConfig` whose patches are single pixels.

    Args:
        image_height, image_width: rows and columns of its patches.
        prefix: names of its other tokens.
        depth, heads: number of its layers and heads.
    """

    image_height: int
    image_width: int
    prefix: tuple[str, ...]
    depth: int
    heads: int
    patch_height = patch_width = 1
    channels = 3
    width = head_width = classes = 0
    probability, pooling = "none", "unknown"

    def layout(self, image_height: int, image_width: int) -> TokenLayout:
        """The token layout of an image of this size in pixels."""
        return TokenLayout(self.prefix, image_height, image_width)


@dataclass(frozen=True, eq=False)
class GivenNetwork:
    """A network that is known by one trace only: whatever would run it is refused."""

    config: GivenConfig
    precision = torch.float32
    device = torch.device("cpu")

    def __call__(self, pixels: torch.Tensor, need_weights: bool = False) -> Any:
        raise MethodError(NO_NETWORK)

    def encode(
        self,
        pixels: torch.Tensor,
        storage: Precision | None = None,
        keep_bytes: int = 0,
        report: Callable[[Progress], None] | None = None,
    ) -> Encoding:
        """Refused, as all that would run the network."""
        raise MethodError(NO_NETWORK)

    def output(self, pixels: torch.Tensor, output: Output = "logits") -> torch.Tensor:
        """Refused, as all that would run the network."""
        raise MethodError(NO_NETWORK)

    def to(self, device: torch.device) -> GivenNetwork:
        """The network itself."""
        return self

    def state_dict(self) -> Mapping[str, torch.Tensor]:
        """No weights."""
        return {}

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """No weights."""
        return iter(())
