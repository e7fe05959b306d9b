"""What stands in for a network where there is only attention that somebody else computed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from vitviz.attention.layout import TokenLayout
from vitviz.errors.kinds import MethodError

NO_NETWORK = (
    "this analysis has attention alone, without a network, so there are no gradients, tokens or values; "
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
    has_stream = classifies_tokens = False
    probability, pooling = "none", "unknown"

    def layout(self, image_height: int, image_width: int) -> TokenLayout:
        """The token layout of an image of this size in pixels."""
        return TokenLayout(self.prefix, image_height, image_width)


def _refuse(*arguments: Any, **options: Any) -> NoReturn:
    """Refused, as all that would run the network."""
    raise MethodError(NO_NETWORK)


@dataclass(frozen=True, eq=False)
class GivenNetwork:
    """A network that is known by one trace only: whatever would run it is refused."""

    config: GivenConfig
    precision = torch.float32
    device = torch.device("cpu")
    why_no_hiding = NO_NETWORK
    __call__ = encode = output = stream = values = read = with_gradients = layer_gradients = layer_features = _refuse
    classify_each = attention_gradients = copy_in_parts = without = head_scores = _refuse

    def to(self, device: torch.device) -> GivenNetwork:
        """The network itself."""
        return self

    def state_dict(self) -> Mapping[str, torch.Tensor]:
        """No weights."""
        return {}

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """No weights."""
        return iter(())
