"""The tokens of each layer, which a trace does not store, from one more forward pass."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import torch
import torch.nn.functional as F
from einops import rearrange

from vitviz.analysis.analysis import Analysis
from vitviz.attention.memory import enough_memory, to_device
from vitviz.attention.precision import precise
from vitviz.errors.arguments import word

FEATURES = ("tokens", "keys")


def token_stream(analysis: Analysis) -> Iterator[torch.Tensor]:
    """The tokens of an analysis's image before the first layer and after each one: ``"token width"``.

    vitviz's own network runs one layer per iteration, so that only the tokens of one layer are in memory.

    Raises:
        LimitError: the machine does not have enough free memory.
        MethodError: the tokens of a watched module cannot be read between its layers.
    """
    network = analysis.network
    stream = network.stream(to_device([analysis.prepared.pixels], network.device))
    with enough_memory(f"the tokens of {analysis.trace.layout.token_count:,}"):
        while True:
            # Not around the yield, which would put the caller's code into inference mode.
            with torch.inference_mode():
                tokens = next(stream, None)
            if tokens is None:
                return
            yield tokens[0]


def token_features(analysis: Analysis, layer: int = -1, features: str = "tokens") -> torch.Tensor:
    """A vector of length 1 for every token, ``"token feature"``: the product of two is their cosine.

    Args:
        analysis: analysis of one image.
        layer: number of the layer from 0, or from the end as ``-1``.
        features: ``"tokens"`` for the output of the layer, for which the model runs again; or ``"keys"`` for the keys
            of all its heads side by side, from the trace.

    Raises:
        QueryError: the model has no such layer.
        MethodError: there are no such features.
    """
    trace = analysis.trace
    layer = trace.layer_index(layer)
    if word("features", features, FEATURES) == "keys":
        vectors = rearrange(trace.keys[layer], "head token dim -> token (head dim)")
    else:
        vectors = next(islice(token_stream(analysis), layer + 1, None))
    return F.normalize(precise(vectors), dim=-1).cpu()
