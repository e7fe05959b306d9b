"""One architecture, and how it is held to its package."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

import vitviz
from vitviz.errors.kinds import VitvizError
from vitviz.models.watched.outputs import primary_output
from vitviz.models.watched.watched_network import WatchedNetwork

TOLERANCE = 1e-5
# Of the output, between a package's fused and its written-out attention.
MOST_BETWEEN_WAYS = 1e-3
SOFTMAXES = (F.softmax, torch.softmax, torch.Tensor.softmax)


@dataclass(frozen=True)
class Subject:
    """An architecture that is looked at.

    Args:
        package, group, name: of the package; its module there; and its name.
        build: makes it with random weights, in evaluation mode.
        materialise: makes it compute its attention weights by a softmax, in its package's own way.
        options: what :func:`vitviz.load` is told of it.
        reason: why it cannot be built here; it is then not looked at.
    """

    package: str
    group: str
    name: str
    build: Callable[[], nn.Module]
    materialise: Callable[[nn.Module], None]
    options: dict[str, Any] = field(default_factory=dict)
    reason: str = ""


class Softmaxes(TorchFunctionMode):
    """Keeps what every softmax of a module gives, and the weights of ``torch.nn.MultiheadAttention``."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[torch.Tensor] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if function in SOFTMAXES and result.ndim > 2:
            self.found.append(result.detach())
        elif function is F.multi_head_attention_forward and result[1] is not None:
            self.found.append(result[1].detach())
        return result


def looked_at(subject: Subject) -> dict[str, Any]:
    """How an architecture fared: ``"exact"``, ``"not compared"``, ``"refused"`` or ``"wrong"``, with figures."""
    row: dict[str, Any] = {"package": subject.package, "group": subject.group, "name": subject.name}
    if subject.reason:
        return {**row, "result": "not run", "reason": subject.reason}
    try:
        network = subject.build()
    # A configuration that only this script cannot make small.
    except Exception as error:
        return {**row, "result": "not built", "reason": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
    try:
        model = vitviz.load(network, engine="module", **subject.options)
        size = (model.network.config.image_height * 3 // 4, model.network.config.image_width, 3)
        noise = np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8)
        analysis = vitviz.analyze(noise, model)
        analysis.rollout()
    except VitvizError as error:
        return {**row, "result": "refused", "reason": str(error)}
    watched, pixels, trace = model.network, analysis.prepared.pixels, analysis.trace
    assert isinstance(watched, WatchedNetwork)
    verified = watched.verified(pixels)
    row |= {"layers": trace.layers, "grid": model.card.get("grid", ""), "tokens": trace.layout.token_count}
    row["rows"] = max(float((trace.weights(layer).sum(-1) - 1).abs().max()) for layer in range(trace.layers))
    with torch.no_grad():
        outputs = primary_output(watched.forward(network, pixels))
        subject.materialise(network)
        with Softmaxes() as seen:
            materialised = primary_output(watched.forward(network, pixels))
    # Where a package's two ways to attend give two outputs, its matrices are not those of the other way.
    row["ways"] = float((materialised - outputs).abs().max() / outputs.abs().max())
    if model.labels:
        row["output"] = float((analysis.logits - outputs.flatten()).abs().max() / outputs.abs().max())
    row["compared"] = 0
    own = _matrices(seen.found, verified.replay.shapes, verified.calls[0], trace.layers)
    if own and row["ways"] <= MOST_BETWEEN_WAYS:
        pairs = zip(verified.places, own, strict=True)
        row["weights"] = max(
            _difference(trace.weights(layer), places, theirs) for layer, (places, theirs) in enumerate(pairs)
        )
        row["compared"] = trace.layers
    figures = [row[name] for name in ("output", "rows", "weights") if row.get(name) is not None]
    if max(figures) > TOLERANCE:
        return {**row, "result": "wrong", "reason": f"differs by {max(figures):.1e}"}
    if not row["compared"]:
        reason = "verified call by call, but its package has no matrices to compare with"
        if row["ways"] > MOST_BETWEEN_WAYS:
            reason = f"the package's eager attention gives another output than its fused one, by {row['ways']:.1e}"
        return {**row, "result": "not compared", "reason": reason}
    return {**row, "result": "exact"}


def _matrices(found: list[torch.Tensor], shapes: Any, first: int, layers: int) -> list[torch.Tensor]:
    """Those of a package that are the layers': of all calls, or of the layers' size where these all have one."""
    sizes = [(shape.queries, shape.keys) for shape in shapes]
    own = [each for each in found if tuple(each.shape[-2:]) in sizes]
    if [tuple(each.shape[-2:]) for each in own] == sizes:
        return own[first : first + layers]
    # Another call, such as a pooling's, may be written without a softmax that is seen.
    alike = [at for at, size in enumerate(sizes) if size == sizes[first]]
    own = [each for each in own if tuple(each.shape[-2:]) == sizes[first]]
    start = alike.index(first)
    is_whole = len(own) == len(alike) and alike[start : start + layers] == [*range(first, first + layers)]
    return own[start : start + layers] if is_whole else []


def _difference(ours: torch.Tensor, places: Any, theirs: torch.Tensor) -> float:
    """Of weights ``"head query key"`` on the picture, and those of a package in its own order and windows."""
    # Hiera's heads come before its windows.
    theirs = theirs.transpose(1, 2) if theirs.ndim == 5 and theirs.shape[2] != len(ours) else theirs
    count = theirs.shape[-1]
    theirs = theirs.reshape(-1, ours.shape[0], count, count)
    first = int(places.is_padded)
    # Behind all tokens, zeros: what fills up windows is held to the sum of its weights.
    token = torch.full((len(theirs) * count,), ours.shape[-1], dtype=torch.long)
    token[places.index] = torch.arange(len(places.index)) + first
    whole = torch.zeros(ours.shape[0], ours.shape[1] + 1, ours.shape[2] + 1)
    whole[:, :-1, :-1] = ours
    largest, inside = 0.0, 0.0
    for window, matrix in zip(token.view(len(theirs), -1), theirs, strict=True):
        own, is_patch = whole[:, window][:, :, window], window < ours.shape[-1]
        own, matrix = own[:, is_patch], matrix[:, is_patch]
        largest = max(largest, float((own - matrix)[..., is_patch].abs().max()) if bool(is_patch.any()) else 0.0)
        inside += float(own[..., is_patch].sum())
        if first and bool(is_patch.any()):
            filling = ours[:, window[is_patch], 0]
            inside += float(filling.sum())
            largest = max(largest, float((filling - matrix[..., ~is_patch].sum(-1)).abs().max()))
    return max(largest, abs(inside / (ours[..., 0].numel() - first * ours.shape[0]) - 1))


def forget() -> None:
    """Give memory back before the next architecture."""
    gc.collect()
