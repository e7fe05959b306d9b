"""The tokens themselves, which a trace does not keep: one more forward pass gives them, a layer at a time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import torch
import torch.nn.functional as F
from einops import rearrange

from vitviz.analysis.analysis import Analysis
from vitviz.attention.memory import enough_memory
from vitviz.attention.precision import precise
from vitviz.errors.arguments import word
from vitviz.models.capture import CapturedNetwork
from vitviz.models.own import own_network

FEATURES = ("tokens", "keys")


def stream_of(analysis: Analysis) -> Iterator[torch.Tensor]:
    """The tokens of an analysis's image before the first layer and after each one: ``"token width"``.

    The model runs once more, one layer for each that is asked for; only the tokens of one layer are in memory. A
    captured module gives those of all layers at once.

    Raises:
        LimitError: the machine has not the memory for it.
        MethodError: of a captured module, they cannot be read between its layers.
    """
    network = analysis.model.network
    if isinstance(network, CapturedNetwork):
        yield from (tokens[0] for tokens in network.stream(analysis.prepared.pixels))
        return
    own = own_network(network, "tokens of each layer")
    stream = own.stream(analysis.prepared.pixels.to(own.device))
    with enough_memory(f"the tokens of {analysis.trace.layout.token_count:,}"):
        while True:
            # Not around the yield: whoever asks for the tokens has a mode of their own.
            with torch.inference_mode():
                tokens = next(stream, None)
            if tokens is None:
                return
            yield tokens[0]


def token_features(analysis: Analysis, layer: int = -1, features: str = "tokens") -> torch.Tensor:
    """A vector of length 1 for every token, ``"token feature"``: the product of two is their cosine.

    Args:
        analysis: of one image.
        layer: counted from 0, or from the end as ``-1``.
        features: ``"tokens"``, the output of that layer, for which the model runs again; or ``"keys"``, those of all
            heads of its attention side by side, which the trace has.

    Raises:
        QueryError: the model has no such layer.
        MethodError: there are no such features.
    """
    trace = analysis.trace
    layer = trace.layer_index(layer)
    if word("features", features, FEATURES) == "keys":
        vectors = rearrange(trace.keys[layer], "head token dim -> token (head dim)")
    else:
        vectors = next(islice(stream_of(analysis), layer + 1, None))
    return F.normalize(precise(vectors), dim=-1).cpu()
