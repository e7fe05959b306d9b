"""The vectors of a layer's tokens: its output, or the keys, queries or values of its attention."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange

from vitviz.attention.layout import TokenLayout
from vitviz.attention.memory import enough_memory, to_device
from vitviz.attention.trace import AttentionTrace
from vitviz.errors.attributes import AttributeAdvice
from vitviz.errors.kinds import MethodError
from vitviz.models.network import Network

Kind = Literal["tokens", "keys", "queries", "values"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, eq=False)
class Features(AttributeAdvice):
    """The vectors of one layer's tokens on one picture, as :meth:`vitviz.Analysis.features` gives them.

    Args:
        tokens: ``"token channel"`` in the order of the layout, prefix tokens first, as the network computed them, in
            single precision at least; in the computer's main memory.
        layout: order of the tokens.
        inliers: tokens of the patches without outliers, by :func:`vitviz.attention.sinks.outlier_patches`, which say
            little of their place; Darcet et al. 2024, "Vision Transformers Need Registers".
        layer: number of the layer, from 0.
        description: what they are, as captions show it.

    >>> features = analysis.features()
    >>> features.values.shape, features.layer
    (torch.Size([14, 14, 384]), 5)
    """

    tokens: torch.Tensor = field(repr=False)
    layout: TokenLayout
    inliers: list[int] = field(repr=False)
    layer: int
    description: str

    @property
    def values(self) -> torch.Tensor:
        """The vectors of the patches, ``"row column channel"``."""
        return self.tokens[self.layout.prefix_count :].unflatten(0, (self.layout.grid_height, self.layout.grid_width))

    @property
    def unit(self) -> torch.Tensor:
        """All vectors at length 1, ``"token channel"``: the product of two is their cosine."""
        return F.normalize(self.tokens, dim=-1)

    def likeness(self, tokens: slice, other: Features) -> torch.Tensor:
        """The cosine of every token of this or another picture with the mean of some of this one: ``"token"``."""
        vector = F.normalize(self.unit[tokens].mean(0), dim=0)
        return (other.unit @ vector).clamp(-1, 1)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.values.numpy(), dtype)


@torch.inference_mode()
def token_stream(network: Network, pixels: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tokens of a single image before the first layer and after each one: ``"token width"``.

    vitviz's own network runs one layer per iteration, so that only the tokens of one layer are in memory.

    Raises:
        LimitError: the machine does not have enough free memory.
        MethodError: the tokens of a watched module cannot be read between its layers.
    """
    with enough_memory(f"the tokens of an input of {pixels.shape[-1]}×{pixels.shape[-2]}"):
        for tokens in network.stream(to_device([pixels], network.device)):
            yield tokens[0]


def layer_vectors(
    network: Network, pixels: torch.Tensor, of: Kind, trace: AttentionTrace | None = None
) -> Iterator[torch.Tensor]:
    """The vectors of a single image in every layer, ``"token channel"`` each.

    Args:
        network: it runs again but for keys and queries of a trace.
        pixels: ``"1 channel height width"``.
        of: whose vectors: the layer's output, or those of its attention, all heads side by side.
        trace: of this image.

    Raises:
        LimitError, MethodError: as :func:`token_stream`; or the trace has attention weights alone.
    """
    if of == "tokens":
        return islice(token_stream(network, pixels), 1, None)
    if trace is not None and trace.stored_weights:
        raise MethodError(f"{of}: the trace has attention weights alone; vitviz.analyze(image, model) has vectors")
    with torch.inference_mode(), enough_memory(f"the {of} of an input of {pixels.shape[-1]}×{pixels.shape[-2]}"):
        inputs = to_device([pixels], network.device)
        layers = network.values(inputs) if of == "values" else getattr(trace or network.encode(inputs).traces[0], of)
    return (rearrange(each, "head token dim -> token (head dim)") for each in layers)
