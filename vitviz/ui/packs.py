"""What the page gets of a trace: one file of tensors for each layer, from which it computes any attention weight.

Every file is in the safetensors format: eight bytes with the length of a header, the header in JSON, the tensors as
they lie in memory, the wider types first, so that each is aligned.

=============  ===========  ====================  =================================================================
file           tensor       shape                 what it is
=============  ===========  ====================  =================================================================
layer          `queries`    `"head token dim"`    float16 (float32 where a value is beyond it), the scale within
layer          `keys`       `"head token dim"`    the same, each head's mean key subtracted
layer          `log_sums`   `"head query"`        float32, the logarithm of the sum of the exponentials of these scores
layer          `bias`       `"head query key"`    float16, added to the scores; only of models that have one
rollout        `rows`       `"query key"`         float16, every token's attention rollout times the tokens' number
map NAME       `values`     `"token"`             float32, the map of a method; NaN of tokens that it says nothing of
probe          its own      its own               float32, the measurements of a probe by name; NaN where there is none
=============  ===========  ====================  =================================================================

An attention weight is ``exp(queries · keys + bias - log_sums)``. To subtract one vector from all keys changes no
weight, and makes the keys smaller, many of which have a large part in common. Rounding to float16 changes a score by at
most 2⁻¹⁰ of the sum of its products' magnitudes, and a weight by that part of itself.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import torch
from einops import einsum
from safetensors.torch import save

from vitviz.analysis.analysis import Analysis
from vitviz.attention.layout import TokenLayout
from vitviz.attention.precision import precise
from vitviz.attention.token_map import TokenMap
from vitviz.attention.trace import AttentionTrace
from vitviz.attribution import Method
from vitviz.attribution.rollout import rollout_matrix
from vitviz.errors.kinds import QueryError
from vitviz.evaluation.probes import Findings

# Beyond it, the rollout of all tokens takes seconds, and more memory than the page has for it.
MOST_ROLLED = 1600
_LAYER = re.compile(r"layer (\d{1,4})", re.ASCII)


def rolls(trace: AttentionTrace) -> bool:
    """Whether there is a file of rollouts."""
    return trace.layout.token_count <= MOST_ROLLED


def file_names(trace: AttentionTrace) -> list[str]:
    """The files of a trace: ``"layer 0"`` and so on, and ``"rollout"``."""
    return [*(f"layer {layer}" for layer in range(trace.layers)), *(["rollout"] if rolls(trace) else [])]


def pack(trace: AttentionTrace, name: str) -> bytes:
    """A file by its name.

    Raises:
        QueryError: there is no such file.
    """
    layer = _LAYER.fullmatch(name)
    if layer is not None:
        return layer_pack(trace, int(layer[1]))
    if name == "rollout" and rolls(trace):
        return rollout_pack(trace)
    raise QueryError(f"file {name[:40]!r}: this picture has 'layer 0' to {file_names(trace)[-1]!r}")


def layer_pack(trace: AttentionTrace, layer: int) -> bytes:
    """Queries, keys and sums of one layer, counted from 0 or from the end as ``-1``.

    Raises:
        QueryError: there is no such layer.
    """
    layer = trace.layer_index(layer)
    queries, keys = precise(trace.queries[layer]) * trace.scale, precise(trace.keys[layer])
    mean = keys.mean(1, keepdim=True)
    less = einsum(queries, mean, "head query dim, head one dim -> head query")
    tensors = {
        "queries": _half(queries),
        "keys": _half(keys - mean),
        "log_sums": (trace.log_sums(layer) - less).float(),
    }
    if trace.bias is not None:
        tensors["bias"] = _half(trace.bias[layer if len(trace.bias) > 1 else 0].expand(trace.heads, -1, -1))
    return save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})


def rollout_pack(trace: AttentionTrace) -> bytes:
    """The attention rollout of every token, with its default parameters."""
    matrix = rollout_matrix(trace)
    # Its mean is then 1, far from the smallest numbers of float16.
    return save({"rows": _half(matrix * trace.layout.token_count).cpu().contiguous()})


def map_file(analysis: Analysis, method: Method, parameters: Mapping[str, Any], token_map: TokenMap) -> bytes:
    """The file of a method's map; a patch where it begins with an identity term is left out of the page's colours."""
    layout, query = analysis.trace.layout, parameters.get("query")
    own = layout.index(query) if method.begins_with_identity and isinstance(query, tuple) else None
    return map_pack(token_map, layout, own)


def map_pack(token_map: TokenMap, layout: TokenLayout, own: int | None = None) -> bytes:
    """Any map, with what it says of itself in the file's metadata.

    That is its ``description``, its ``quantity``, and ``signed``, ``"true"``, where values below zero mean something.

    Args:
        token_map: the map.
        layout: of its tokens.
        own: index of a token whose value holds an identity term of its own, which says nothing about the picture. It is
            in the metadata as ``self``, and the page leaves it out of its colours.
    """
    prefix = torch.tensor([token_map.prefix.get(name, math.nan) for name in layout.prefix])
    values = torch.cat([prefix, token_map.values.detach().cpu().float().flatten()])
    about = {"description": token_map.description, "quantity": token_map.quantity}
    if token_map.signed:
        about["signed"] = "true"
    if own is not None:
        name = layout.name(layout.cell(own))
        about["description"] += f"; {name} itself, where this map begins, is left out of the colours"
        about["self"] = str(own)
    return save({"values": values}, about)


def findings_pack(findings: Findings) -> bytes:
    """The measurements of a probe.

    What each is stands as JSON in the file's metadata, under its name: ``axes``, ``quantity``, ``names`` of places
    along an axis, ``indexes``, the axis whose places the values are, and whether each ``is_flag``, true or false.
    """
    measurements = findings.measurements
    about = {
        name: json.dumps(
            {
                "axes": each.axes,
                "quantity": each.quantity,
                "names": dict(each.names),
                "indexes": each.indexes,
                "is_flag": each.values.dtype == torch.bool,
            }
        )
        for name, each in measurements.items()
    }
    return save({name: each.values.float().contiguous() for name, each in measurements.items()}, about)


def _half(tensor: torch.Tensor) -> torch.Tensor:
    """As float16 where that holds every value; as float32 otherwise."""
    fits = tensor.abs().max() <= torch.finfo(torch.float16).max
    return tensor.half() if fits else tensor.float()
