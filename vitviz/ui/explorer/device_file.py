"""A network as one file for the page, which runs it on the visitor's own device.

It is a safetensors file. Its header's metadata has, in JSON under the name of the format, ``name``, ``config`` (of
:class:`vitviz.ViTConfig`), ``preprocessing`` (with the pixels of the whole patches, ``input_height`` and
``input_width``), ``labels`` and ``input`` (``rows`` and ``columns`` of patches in it, names of the ``prefix`` tokens,
``scale`` of the attention scores). Whatever depends on the size of the input is computed here: positions are resized,
and rotary positions are cosines and sines.

=========================================  ==========================================================================
tensor                                     shape
=========================================  ==========================================================================
`prefix_tokens`, `positions`               `"prefix width"`, `"patch width"`
`rotary.cosines`, `rotary.sines`           `"patch pair"`
norms: `weight`, `bias`                    `"feature"`
linear maps: `weight`                      panels, `"panel input 8"`: input features to eight outputs, the last panel
                                           filled up with zeros
linear maps: `bias`                        `"panel 8"`
queries, keys, values: `weight`, `bias`    panels of each head, `"head panel input 8"` and `"head panel 8"`
`pooler.query`                             `"feature"`, the learned query of an attention pooling, mapped
=========================================  ==========================================================================

Panels are bfloat16 if that is exact, otherwise float32, like all other tensors. Every tensor is flat, and filled up
with zeros to a multiple of eight values, which aligns the next one; the shapes above are those of its values.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict

import torch
import torch.nn.functional as F
from einops import rearrange
from safetensors.torch import save
from torch import nn

from vitviz.errors.kinds import ConfigError
from vitviz.models.layers import AttentionPooling, EncoderLayer, GatedMLP
from vitviz.models.positions import resize_positions
from vitviz.models.vit import VisionTransformer
from vitviz.weights.model import Model

FORMAT = "vitviz device 1"
OUTPUTS = 8
"""Outputs of a panel."""


def device_refusal(model: Model) -> str | None:
    """What a network needs and the page's kernels lack, as "… is a module"; None if the page can run it."""
    network = model.network
    if not isinstance(network, VisionTransformer):
        return "has no network of vitviz's own, and the page runs no other"
    if model.preprocessing.fit == "native":
        return "takes pictures of any shape (fit 'native'), and the page runs one input size only"
    types = {tensor.dtype for tensor in network.state_dict().values()}
    if types != {torch.float32} or network.precision != torch.float32:
        others = ", ".join(sorted(str(each)[6:] for each in types | {network.precision} if each != torch.float32))
        return f"computes in {others}, and the page in float32"
    with torch.device("meta"):
        expected = _shapes(VisionTransformer(network.config))
    changed = expected.items() ^ _shapes(network).items()
    return f"has other weights than its configuration ({min(changed)[0]})" if changed else None


def device_file(model: Model) -> bytes:
    """A model as a device file.

    Raises:
        ConfigError: the page cannot run it, as :func:`device_refusal` says.
    """
    if reason := device_refusal(model):
        raise ConfigError(f"{model.name} {reason}")
    network, layout = model.own_network(model.name), model.layout
    config = network.config
    height, width = model.preprocessing.whole_patches(config.patch_height, config.patch_width)
    facts = {
        "name": model.name,
        "config": asdict(config),
        "preprocessing": model.preprocessing.to_dict() | {"input_height": height, "input_width": width},
        "labels": list(model.labels),
        "input": {
            "rows": layout.grid_height,
            "columns": layout.grid_width,
            "prefix": list(layout.prefix),
            "scale": network.scale,
        },
    }
    with torch.inference_mode():
        tensors = {name: _filled(tensor) for name, tensor in _tensors(model, network)}
    # Under one key: safetensors writes several in any order, and a file of one model is always the same.
    return save(tensors, {FORMAT: json.dumps(facts)})


def _shapes(network: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}


def _tensors(model: Model, network: VisionTransformer) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of the file by name, in any shape."""
    config, layout = network.config, model.layout
    yield "prefix_tokens", network.prefix_tokens
    angles = network.angles(layout)
    if angles is None:
        positions = network.positions
        yield "positions", resize_positions(positions, layout.grid_height, layout.grid_width, config.position_rule)
    else:
        yield "rotary.cosines", angles.cos()
        yield "rotary.sines", angles.sin()
    for name in ("patch_embedding", "representation", "projection", "classifier"):
        for linear in getattr(network, name).modules():
            if isinstance(linear, nn.Linear):
                yield from _linear(name, linear)
    for name, norm in (
        *((f"patch_norms.{index}", norm) for index, norm in enumerate(network.patch_norms.children())),
        ("pre_norm", network.pre_norm),
        ("norm", network.norm),
    ):
        yield from _norm(name, norm)
    for number, layer in enumerate(network.encoder):
        yield from _layer(f"layers.{number}", layer)
    if isinstance(network.pooler, AttentionPooling):
        yield from _pooler("pooler", network.pooler)


def _layer(name: str, layer: EncoderLayer) -> Iterator[tuple[str, torch.Tensor]]:
    attention = layer.attention
    yield from _norm(f"{name}.attention_norm", layer.attention_norm)
    yield from _heads(f"{name}.attention", ("queries", "keys", "values"), attention.qkv, attention.heads)
    yield from _norm(f"{name}.attention.queries_norm", attention.query_norm)
    yield from _norm(f"{name}.attention.keys_norm", attention.key_norm)
    yield from _linear(f"{name}.attention.projection", attention.projection)
    yield from _norm(f"{name}.mlp_norm", layer.mlp_norm)
    yield from _mlp(f"{name}.mlp", layer.mlp)


def _pooler(name: str, pooler: AttentionPooling) -> Iterator[tuple[str, torch.Tensor]]:
    yield f"{name}.query", pooler.query(pooler.probe)
    yield from _heads(name, ("keys", "values"), pooler.key_value, pooler.heads)
    yield from _linear(f"{name}.projection", pooler.projection)
    yield from _norm(f"{name}.mlp_norm", pooler.mlp_norm)
    yield from _mlp(f"{name}.mlp", pooler.mlp)


def _mlp(name: str, mlp: nn.Sequential) -> Iterator[tuple[str, torch.Tensor]]:
    """The two maps of an MLP; the first one of a gated MLP is two, of which the first is activated."""
    first, activation, second = mlp
    assert isinstance(first, nn.Linear)
    if isinstance(activation, GatedMLP):
        parts = zip(first.weight.chunk(2), first.bias.chunk(2), strict=True)
        for part, parameters in zip(("gate", "hidden"), parts, strict=True):
            yield from _panels(f"{name}.{part}", *parameters)
    else:
        yield from _linear(f"{name}.hidden", first)
    yield from _linear(f"{name}.output", second)


def _heads(name: str, parts: tuple[str, ...], linear: nn.Linear, heads: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Queries, keys or values of all heads, "(part head dim)", as panels of each head."""
    weights = rearrange(linear.weight, "(part head dim) input -> part head dim input", part=len(parts), head=heads)
    biases = [None] * len(parts)
    if linear.bias is not None:
        biases = list(rearrange(linear.bias, "(part head dim) -> part head dim", part=len(parts), head=heads))
    for part, weight, bias in zip(parts, weights, biases, strict=True):
        yield from _panels(f"{name}.{part}", weight, bias)


def _linear(name: str, part: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    assert isinstance(part, nn.Linear)
    yield from _panels(name, part.weight, part.bias)


def _panels(name: str, weight: torch.Tensor, bias: torch.Tensor | None) -> Iterator[tuple[str, torch.Tensor]]:
    """Weights "... output input" and a bias "... output" in panels."""
    weight = F.pad(weight, (0, 0, 0, -weight.shape[-2] % OUTPUTS))
    panels = rearrange(weight, "... (panel output) input -> ... panel input output", output=OUTPUTS)
    narrow = panels.bfloat16()
    yield f"{name}.weight", narrow if torch.equal(narrow.float(), panels) else panels
    if bias is not None:
        yield f"{name}.bias", F.pad(bias, (0, -bias.shape[-1] % OUTPUTS))


def _norm(name: str, norm: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(norm, nn.LayerNorm):
        yield f"{name}.weight", norm.weight
        yield f"{name}.bias", norm.bias


def _filled(tensor: torch.Tensor) -> torch.Tensor:
    """The values in one row, filled up with zeros to a multiple of eight."""
    values = tensor.detach().flatten()
    return F.pad(values, (0, -len(values) % OUTPUTS)).contiguous().cpu()
