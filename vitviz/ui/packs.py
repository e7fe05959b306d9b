"""Files of tensors for the page, which computes any attention weight from the file of a layer.

Each file is in the safetensors format: eight bytes with the length of the header, the header in JSON, then the tensors
as they lie in memory, wider types first for their alignment.

=============  ===========  ====================  =================================================================
file           tensor       shape                 values
=============  ===========  ====================  =================================================================
layer          `queries`    `"head token dim"`    float16 (float32 if a value exceeds its range), scale included
layer          `keys`       `"head token dim"`    the same, minus each head's mean key
layer          `log_sums`   `"head query"`        float32, the logarithm of the sum of the exponentials of these scores
layer          `bias`       `"head query key"`    float16, added to the scores; only of models that have one, and of
                                                  stored weights, whose logarithms it is
rollout        `rows`       `"query key"`         float16, each token's attention rollout times the number of tokens
opening        `rows`       `"layer head key"`    float16, attention of the square with which a page opens, times the
                                                  number of tokens; it comes with the facts of its picture
features N     `vectors`    `"patch channel"`     float16, the tokens of the patches after layer N, each of length 1
features       `vectors`    `"patch channel"`     the same of the layer that finds places again best; the metadata has
                                                  its number as ``layer``
map NAME       `values`     `"token"`             float32, the map of a method; NaN for tokens without a value
probe          by name      any                   float32, the measurements of a probe; NaN where there is none
=============  ===========  ====================  =================================================================

An attention weight is ``exp(queries · keys + bias - log_sums)``. Subtracting the mean key changes no weight and makes
the keys smaller, since many have a large part in common. Rounding to float16 changes a score by at most 2⁻¹⁰ of the sum
of its products' magnitudes, and a weight by the same share of itself.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from einops import einsum
from safetensors.torch import save

from vitviz.analysis.analysis import Analysis
from vitviz.attention.layout import PATCHES, Query
from vitviz.attention.precision import plain_torch, precise
from vitviz.attention.token_map import TokenMap
from vitviz.attention.trace import AttentionTrace
from vitviz.attribution import Method
from vitviz.attribution.methods import Computer
from vitviz.attribution.rollout import rollout_matrix
from vitviz.errors.kinds import MethodError, QueryError
from vitviz.evaluation.probes import Findings
from vitviz.features import layer_scores
from vitviz.features.vectors import layer_vectors

# The rollout of more tokens takes seconds, and more memory than the page has for it.
MAX_ROLLOUT_TOKENS = 1600
ROLLOUT, FEATURES = "rollout", "features"
_LAYER = re.compile(r"layer (\d{1,4})", re.ASCII)


def has_rollouts(trace: AttentionTrace) -> bool:
    """Whether a trace has a file of rollouts."""
    return trace.layout.token_count <= MAX_ROLLOUT_TOKENS


def computed_by(method: Method, parameters: Mapping[str, Any], trace: AttentionTrace) -> Computer:
    """Who computes a map for the page: the record says it, and that a large picture has no file of rollouts.

    Args:
        method: its record.
        parameters: of the map; those with their defaults may be missing.
        trace: of the picture.
    """
    is_computed = method.computed_by == "page" or (method.computed_by == "rollouts" and has_rollouts(trace))
    is_of_page = parameters.keys() <= set(method.page_parameters) and parameters.get("query") != PATCHES
    if is_computed and is_of_page:
        return "page"
    return "run" if method.computed_by == "run" or not has_rollouts(trace) else "quick"


def file_names(trace: AttentionTrace) -> list[str]:
    """The files of a trace: ``"layer 0"`` and so on, and ``"rollout"``."""
    return [*(f"layer {layer}" for layer in range(trace.layers)), *[ROLLOUT] * has_rollouts(trace)]


def pack(trace: AttentionTrace, name: str) -> bytes:
    """A file by its name.

    Raises:
        QueryError: there is no such file.
    """
    if layer := _LAYER.fullmatch(name):
        return layer_pack(trace, int(layer[1]))
    if name == ROLLOUT and has_rollouts(trace):
        return rollout_pack(trace)
    raise QueryError(f"file {name[:40]!r}: this picture has 'layer 0' to {file_names(trace)[-1]!r}")


@plain_torch()
def layer_pack(trace: AttentionTrace, layer: int) -> bytes:
    """Queries, keys and sums of one layer, counted from 0 or from the end as ``-1``.

    Raises:
        QueryError: there is no such layer.
    """
    layer = trace.layer_index(layer)
    if trace.stored_weights:
        return _weights_pack(trace.weights(layer))
    queries, keys = precise(trace.queries[layer]) * trace.scale, precise(trace.keys[layer])
    mean = keys.mean(1, keepdim=True)
    mean_scores = einsum(queries, mean, "head query dim, head one dim -> head query")
    tensors = {
        "queries": _half(queries),
        "keys": _half(keys - mean),
        "log_sums": (trace.log_sums(layer) - mean_scores).float(),
    }
    if trace.bias is not None:
        tensors["bias"] = _half(trace.bias[layer if len(trace.bias) > 1 else 0].expand(trace.heads, -1, -1))
    return save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})


def _weights_pack(weights: torch.Tensor) -> bytes:
    """The file of a layer of which there are weights alone, ``"head query key"``: their logarithms are the bias."""
    logarithms = weights.log()
    # The largest weights of a row are the most exact.
    highest = logarithms.amax(-1, keepdim=True)
    features = weights.new_zeros(*weights.shape[:2], 1)
    tensors = {
        "queries": _half(features),
        "keys": _half(features.clone()),
        "log_sums": -highest[..., 0].float(),
        # No weight is larger than the exponential of this number, which is 0.
        "bias": _half((logarithms - highest).clamp(min=torch.finfo(torch.float16).min)),
    }
    return save({name: tensor.cpu().contiguous() for name, tensor in tensors.items()})


@plain_torch()
def rollout_pack(trace: AttentionTrace) -> bytes:
    """The attention rollout of every token, with its default parameters."""
    matrix = rollout_matrix(trace)
    # Times the number of tokens, the mean is 1, far from the smallest numbers of float16.
    return save({"rows": _half(matrix * trace.layout.token_count).cpu().contiguous()})


def rows_pack(trace: AttentionTrace, query: Query) -> bytes:
    """The attention of one token in every layer and head, with which a page opens: ``"layer head token"``."""
    return save({"rows": _half(trace.rows(query) * trace.layout.token_count).cpu().contiguous()})


def feature_names(trace: AttentionTrace) -> list[str]:
    """The files of features of a trace by layer."""
    return [f"{FEATURES} {layer}" for layer in range(trace.layers)]


def features_packs(analysis: Analysis, name: str) -> Iterator[tuple[str, bytes]]:
    """The file of this name and, of numbered ones, those of all layers, which the same pass computes.

    Raises:
        QueryError: there is no such layer.
        MethodError: the tokens cannot be read between the layers of a watched module, or not all of them are finite.
        LimitError: the machine does not have enough free memory.
    """
    trace, best = analysis.trace, layer_scores(analysis.model).best if name == FEATURES else None
    if name not in (FEATURES, *(names := feature_names(trace))):
        raise QueryError(f"file {name[:40]!r}: this picture has {names[0]!r} to {names[-1]!r}")
    for layer, tokens in enumerate(layer_vectors(analysis.network, analysis.prepared.pixels, "tokens", trace)):
        if best in (None, layer):
            vectors = F.normalize(precise(tokens[trace.layout.prefix_count :]), dim=1)
            if not vectors.isfinite().all():
                raise MethodError(f"tokens after layer {layer}: expected finite numbers, of which one can compare two")
            content = save({"vectors": vectors.half().cpu().contiguous()}, {"layer": str(layer)})
            yield name if best == layer else names[layer], content


def map_file(analysis: Analysis, method: Method, parameters: Mapping[str, Any], token_map: TokenMap) -> bytes:
    """The file of a method's map.

    Its metadata has the ``description``, the ``quantity``, and ``signed`` = ``"true"`` if values may be below zero. A
    query patch whose value contains an identity term, which says nothing about the picture, is ``self`` there: the page
    excludes it from the colour range.
    """
    layout, query = analysis.trace.layout, parameters.get("query")
    prefix = torch.tensor([token_map.prefix.get(name, math.nan) for name in layout.prefix], dtype=torch.float32)
    values = torch.cat([prefix, token_map.values.detach().cpu().float().flatten()])
    metadata = {"description": token_map.description, "quantity": token_map.quantity}
    if token_map.signed:
        metadata["signed"] = "true"
    if method.begins_with_identity and isinstance(query, tuple):
        metadata["description"] += (
            f"; {layout.name(query)} itself is excluded from the colour range (residual identity)"
        )
        metadata["self"] = str(layout.index(query))
    return save({"values": values}, metadata)


def findings_pack(findings: Findings) -> bytes:
    """The file of a probe's measurements.

    Its metadata describes each measurement by name, as JSON: ``axes``, ``quantity``, ``names`` of places along an
    axis, ``indexes``, the axis that the values are indexes of, and ``is_flag``, whether the values are booleans.
    """
    measurements = findings.measurements
    metadata = {
        name: json.dumps(
            {
                "axes": measurement.axes,
                "quantity": measurement.quantity,
                "names": dict(measurement.names),
                "indexes": measurement.indexes,
                "is_flag": measurement.values.dtype == torch.bool,
            }
        )
        for name, measurement in measurements.items()
    }
    return save({name: each.values.float().contiguous() for name, each in measurements.items()}, metadata)


def _half(tensor: torch.Tensor) -> torch.Tensor:
    """float16, or float32 if a value exceeds the range of float16."""
    fits = tensor.abs().max() <= torch.finfo(torch.float16).max
    return tensor.half() if fits else tensor.float()
