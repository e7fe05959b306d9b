"""Build vitviz's network from tensors by canonical key. Every shape is checked first, and every tensor is used."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

import torch
from einops import EinopsError, rearrange

from vitviz.attention.memory import enough_memory, is_out_of_memory
from vitviz.errors.kinds import CheckpointError, ConfigError
from vitviz.errors.messages import listing, quote
from vitviz.models.config import ViTConfig
from vitviz.models.layers import linear_from_convolution
from vitviz.models.pooling import POOLINGS
from vitviz.models.positions import rotary_periods
from vitviz.models.vit import VisionTransformer
from vitviz.weights.conversion.canonical import TOKENS, MatchedCheckpoint
from vitviz.weights.conversion.converter import Converter
from vitviz.weights.overrides import check_bytes

CONFIG = tuple(field.name for field in fields(ViTConfig))


def infer_config(checkpoint: MatchedCheckpoint, facts: Mapping[str, Any]) -> ViTConfig:
    """The configuration that the shapes of a checkpoint and the facts of its family imply.

    Raises:
        CheckpointError: they contradict each other, or do not determine everything.
    """
    converter = Converter(checkpoint, facts, with_values=False)
    patch_height, patch_width, channels = _patch_size(converter, facts)
    width, depth = converter.width, checkpoint.depth
    if not depth:
        raise CheckpointError(
            f"{checkpoint.name}: no encoder layers; expected {quote(checkpoint.expected_key('out.weight', 0))}"
        )
    converter.latest_keys.clear()
    is_bare = not checkpoint.has("out.weight") and bool(facts.get("bare_attention"))
    inner_width = width if is_bare else converter.take("out.weight", 0).shape[1]
    heads = facts["heads"]
    if inner_width % heads:
        raise CheckpointError(
            f"{checkpoint.name}: {converter.sources()}: {inner_width} features are no multiple of {heads} heads"
        )
    converter.latest_keys.clear()
    mlp_width, hidden_width = converter.take("mlp_out.weight", 0).shape[1], converter.take("mlp_in.weight", 0).shape[0]
    if hidden_width != mlp_width and (hidden_width != 2 * mlp_width or checkpoint.has("gate.weight")):
        raise CheckpointError(f"{checkpoint.name}: {converter.sources()} do not fit together")
    is_gated = checkpoint.has("gate.weight") or hidden_width == 2 * mlp_width
    classes = len(converter.take("classifier.weight")) if checkpoint.has("classifier.weight") else 0
    is_rotary = bool(facts.get("rotary"))
    registers = len(converter.tokens("registers"))
    has_token = {token: bool(len(converter.tokens(token))) for token in ("cls", "distillation")}
    prefix_count = sum(has_token.values()) + registers
    grid = _trained_grid(converter, facts, (patch_height, patch_width), prefix_count, is_rotary)
    values = {
        "image_height": grid[0] * patch_height,
        "image_width": grid[1] * patch_width,
        "patch_height": patch_height,
        "patch_width": patch_width,
        "width": width,
        "depth": depth,
        "heads": heads,
        "head_width": inner_width // heads,
        "mlp_width": mlp_width,
        "gated_mlp": is_gated,
        "classes": classes,
        "channels": channels,
        "cls_token": has_token["cls"],
        "distillation_token": has_token["distillation"],
        "register_tokens": registers,
        "qkv_bias": any(checkpoint.has(f"{canonical_key}.bias") for canonical_key in ("qkv", "query", "key", "value")),
        "query_key_norm": checkpoint.has("query_norm.weight"),
        "patch_norms": checkpoint.has("patch_norm_before.weight"),
        "pre_norm": checkpoint.has("pre_norm.weight"),
        "representation_width": _output_width(converter, "representation"),
        "projection_width": _output_width(converter, "projection"),
        "pooling": "attention" if checkpoint.has("pool.probe") else "cls" if has_token["cls"] else "mean",
    }
    values |= {name: value for name, value in facts.items() if name in CONFIG}
    for token in POOLINGS[values["pooling"]].required_prefix if "pooling" not in checkpoint.overrides else ():
        if not has_token[token]:
            raise checkpoint.missing_key(token)
    _compare_stated(checkpoint, values, facts.get("stated", {}), facts.get("stated_by", "config.json"))
    try:
        return ViTConfig(**values)
    except ConfigError as error:
        raise CheckpointError(f"{checkpoint.name}: {error}") from None


def assemble(
    checkpoint: MatchedCheckpoint, facts: Mapping[str, Any], config: ViTConfig, max_bytes: int | None = None
) -> VisionTransformer:
    """The network with the checkpoint's weights. Every shape is compared before a tensor is read.

    Args:
        checkpoint: with matched keys.
        facts: of its family.
        config: of the network.
        max_bytes: memory that it may take; None for any.

    Raises:
        CheckpointError: a tensor is missing, has the wrong shape, is not finite, or has no place in the network.
        LimitError: the network takes more memory than is allowed or free.
    """
    with torch.device("meta"):
        network = VisionTransformer(config).eval()
    expected = network.state_dict()
    shapes_only = Converter(checkpoint, facts, with_values=False)
    for target, tensor in _checked_tensors(shapes_only, config):
        if target not in expected or tensor.shape != expected[target].shape:
            shape = tuple(expected[target].shape) if target in expected else "none"
            sources = shapes_only.sources(target.rpartition(".")[2])
            raise CheckpointError(
                f"{checkpoint.name}: {sources} would make {target} {tuple(tensor.shape)}; expected {shape}"
            )
        shapes_only.previous_keys, shapes_only.latest_keys = shapes_only.latest_keys or shapes_only.previous_keys, []
    unused = [key for canonical_key, key in checkpoint.keys.items() if canonical_key not in shapes_only.used]
    if unused:
        raise CheckpointError(f"{checkpoint.name}: surplus {listing(unused)}: they have no place in this model")
    check_bytes(checkpoint.name, expected.values(), max_bytes)
    with enough_memory(checkpoint.name, "model"):
        converted = _checked_tensors(Converter(checkpoint, facts, with_values=True), config)
        network.load_state_dict({target: tensor.contiguous() for target, tensor in converted}, assign=True)
    return network.requires_grad_(False)


def _checked_tensors(converter: Converter, config: ViTConfig) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of :func:`_network_tensors`; an error names tensors that do not fit together."""
    try:
        yield from _network_tensors(converter, config)
    except (RuntimeError, EinopsError, ValueError, IndexError) as error:
        if is_out_of_memory(error):
            raise
        raise CheckpointError(f"{converter.checkpoint.name}: {converter.sources()} do not fit together") from None


def _network_tensors(converter: Converter, config: ViTConfig) -> Iterator[tuple[str, torch.Tensor]]:
    """The network's tensors with their names, made from those of the checkpoint."""
    yield from _embedding(converter, config)
    for layer in range(config.depth):
        yield from _layer(converter, config, layer)
    if config.final_norm != "none":
        yield from _affine(converter, "norm", "norm")
    if config.pooling == "attention":
        yield from _pooler(converter, config)
    if config.representation_width:
        yield from _linear(converter, "representation", "representation.0")
    if config.projection_width:
        yield "projection.weight", converter.take("projection.weight")
    if config.classes:
        weight, bias = converter.take("classifier.weight"), converter.bias("classifier", config.classes)
        if converter.checkpoint.has("distillation_classifier.weight"):
            # The mean of two classifiers is one classifier of both tokens.
            weight = torch.cat([weight, converter.take("distillation_classifier.weight")], 1) / 2
            bias = (bias + converter.bias("distillation_classifier", config.classes)) / 2
        yield "classifier.weight", weight
        yield "classifier.bias", bias


def _embedding(converter: Converter, config: ViTConfig) -> Iterator[tuple[str, torch.Tensor]]:
    yield "patch_embedding.weight", _pixels_in_order(converter, config, converter.take("patch.weight"))
    yield "patch_embedding.bias", converter.bias("patch", config.width)
    if config.patch_norms:
        for suffix in ("weight", "bias"):
            yield (
                f"patch_norms.0.{suffix}",
                _pixels_in_order(converter, config, converter.take(f"patch_norm_before.{suffix}")[None])[0],
            )
            yield f"patch_norms.1.{suffix}", converter.take(f"patch_norm_after.{suffix}")
    prefix = torch.cat([converter.tokens(canonical_key) for canonical_key in TOKENS[:3]])
    if config.rotary:
        periods = converter.take_optional("rotary_periods")
        base = converter.facts.get("rotary_base", 100.0)
        yield "periods", rotary_periods(config.head_width, base) if periods is None else periods
    else:
        trained, positions = config.layout(config.image_height, config.image_width), converter.tokens("positions")
        # Positions that are not of patches belong to the first prefix tokens.
        count = len(positions) - trained.grid_height * trained.grid_width
        prefix = torch.cat([prefix[:count] + positions[:count], prefix[count:]])
        yield "positions", positions[count:].unflatten(0, (trained.grid_height, trained.grid_width))
    yield "prefix_tokens", prefix
    if config.pre_norm:
        yield from _affine(converter, "pre_norm", "pre_norm")


def _layer(converter: Converter, config: ViTConfig, layer: int) -> Iterator[tuple[str, torch.Tensor]]:
    name = f"layers.{layer}"
    yield from _affine(converter, "attention_norm", f"{name}.attention_norm", layer)
    weight, bias = _query_key_value(converter, config, layer)
    yield f"{name}.attention.qkv.weight", weight
    if bias is not None:
        yield f"{name}.attention.qkv.bias", bias
    if config.query_key_norm:
        yield from _affine(converter, "query_norm", f"{name}.attention.query_norm", layer)
        yield from _affine(converter, "key_norm", f"{name}.attention.key_norm", layer)
    yield from _scaled_linear(converter, config, "out", "attention_scale", f"{name}.attention.projection", layer)
    yield from _affine(converter, "mlp_norm", f"{name}.mlp_norm", layer)
    weight, hidden = converter.take("mlp_in.weight", layer), config.mlp_width * (2 if config.gated_mlp else 1)
    if converter.checkpoint.has("gate.weight"):
        weight = torch.cat([converter.take("gate.weight", layer), weight])
        gate, value = (converter.bias(canonical_key, config.mlp_width, layer) for canonical_key in ("gate", "mlp_in"))
        bias = torch.cat([gate, value])
    else:
        bias = converter.bias("mlp_in", hidden, layer)
    yield f"{name}.mlp.0.weight", weight
    yield f"{name}.mlp.0.bias", bias
    yield from _scaled_linear(converter, config, "mlp_out", "mlp_scale", f"{name}.mlp.2", layer)


def _query_key_value(converter: Converter, config: ViTConfig, layer: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    separate, inner_width = ("query", "key", "value"), config.heads * config.head_width
    if converter.checkpoint.has("qkv.weight"):
        weight = converter.take("qkv.weight", layer)
    else:
        weight = torch.cat([converter.take(f"{canonical_key}.weight", layer) for canonical_key in separate])
    if not config.qkv_bias:
        return weight, None
    if not converter.checkpoint.has("qkv.bias"):
        return weight, torch.cat([converter.bias(canonical_key, inner_width, layer) for canonical_key in separate])
    return weight, converter.take("qkv.bias", layer)


def _scaled_linear(
    converter: Converter, config: ViTConfig, canonical_key: str, scale: str, target: str, layer: int
) -> Iterator[tuple[str, torch.Tensor]]:
    """A linear map with its LayerScale folded in: scaling an output feature scales a row of the matrix."""
    if canonical_key == "out" and not converter.checkpoint.has("out.weight"):
        weight = torch.eye(config.width, dtype=torch.float32, device=None if converter.with_values else "meta")
    else:
        weight = converter.take(f"{canonical_key}.weight", layer)
    bias, factor = converter.bias(canonical_key, config.width, layer), converter.take_optional(scale, layer)
    if factor is not None:
        weight, bias = weight * rearrange(factor, "width -> width 1"), bias * factor
    yield f"{target}.weight", weight
    yield f"{target}.bias", bias


def _pooler(converter: Converter, config: ViTConfig) -> Iterator[tuple[str, torch.Tensor]]:
    width = config.width
    yield "pooler.probe", converter.take("pool.probe").reshape(-1)
    for suffix in ("weight", "bias"):
        if converter.checkpoint.has("pool.qkv.weight"):
            packed = converter.take(f"pool.qkv.{suffix}")
            query, key_value = packed[:width], packed[width:]
        else:
            query, key_value = converter.take(f"pool.query.{suffix}"), converter.take(f"pool.key_value.{suffix}")
        yield f"pooler.query.{suffix}", query
        yield f"pooler.key_value.{suffix}", key_value
    yield from _linear(converter, "pool.out", "pooler.projection")
    yield from _affine(converter, "pool.norm", "pooler.mlp_norm")
    yield from _linear(converter, "pool.mlp_in", "pooler.mlp.0")
    yield from _linear(converter, "pool.mlp_out", "pooler.mlp.2")


def _affine(
    converter: Converter, canonical_key: str, target: str, layer: int | None = None
) -> Iterator[tuple[str, torch.Tensor]]:
    for suffix in ("weight", "bias"):
        yield f"{target}.{suffix}", converter.take(f"{canonical_key}.{suffix}", layer)


def _linear(converter: Converter, canonical_key: str, target: str) -> Iterator[tuple[str, torch.Tensor]]:
    weight = converter.take(f"{canonical_key}.weight")
    yield f"{target}.weight", weight
    yield f"{target}.bias", converter.bias(canonical_key, len(weight))


def _pixels_in_order(converter: Converter, config: ViTConfig, weight: torch.Tensor) -> torch.Tensor:
    """A patch embedding as ``"width (channel height width)"``, from a convolution or from a matrix."""
    if weight.ndim == 4:
        return linear_from_convolution(weight)
    order = "out (height width channel) -> out (channel height width)"
    return rearrange(weight, order, height=config.patch_height, width=config.patch_width)


def _patch_size(converter: Converter, facts: Mapping[str, Any]) -> tuple[int, int, int]:
    """Height and width of a patch, and channels."""
    weight = converter.take("patch.weight")
    if weight.ndim == 4:
        return weight.shape[2], weight.shape[3], weight.shape[1]
    # Other families do not tell in which order a matrix reads the numbers of a patch.
    if weight.ndim == 2 and facts.get("channels_last"):
        pixels, override = weight.shape[1], facts.get("patch_size")
        # A number of pixels is never both a square and three times a square.
        sides = [override] if override else [(math.isqrt(pixels // count),) * 2 for count in (3, 1)]
        for height, width in sides:
            if height * width and pixels % (height * width) == 0 and pixels // (height * width) in (1, 3):
                return height, width, pixels // (height * width)
    raise CheckpointError(
        f"{converter.checkpoint.name}: {converter.sources()}; expected a convolution "
        "'width channel height width', or a matrix for square patches of 1 or 3 channels (else pass patch_size=(…, …))"
    )


def _trained_grid(
    converter: Converter, facts: Mapping[str, Any], patch: tuple[int, int], prefix_count: int, rotary: bool
) -> tuple[int, int]:
    """The trained grid: rows and columns of patches."""
    checkpoint, size = converter.checkpoint, facts.get("image_size")
    if rotary:
        height, width = size or (224, 224)
        return max(1, height // patch[0]), max(1, width // patch[1])
    positions = len(converter.tokens("positions"))
    if not checkpoint.has("positions"):
        raise checkpoint.missing_key("positions")
    candidates = list(dict.fromkeys(facts.get("positioned") or (prefix_count, 0)))
    if size:
        grid = size[0] // patch[0], size[1] // patch[1]
        if any(positions - count == math.prod(grid) for count in candidates):
            return grid
    squares = [count for count in candidates if positions > count and _is_square(positions - count)]
    if len(squares) == 1 and "image_size" not in checkpoint.overrides:
        side = math.isqrt(positions - squares[0])
        if size:
            stated = f"{size[0]}×{size[1]}"
            reason = f"the positions; the configuration's {stated} pixels do not fit them"
            checkpoint.record("grid", f"{side}×{side}", reason, assumed=True)
        return side, side
    can_have = set(checkpoint.family.keys_of("cls")).difference(checkpoint.family.excluded_keys)
    if not checkpoint.has("cls") and can_have and "image_size" not in checkpoint.overrides:
        # One position beyond a square belongs to a CLS token.
        patches = positions - prefix_count - 1
        if patches == math.prod(grid) if size else patches > 0 and _is_square(patches):
            raise checkpoint.missing_key("cls")
    expected = f"an image of {size[0]}×{size[1]} in patches of {patch[0]}×{patch[1]}" if size else "a square image"
    raise CheckpointError(
        f"{checkpoint.name}: {positions} positions in {quote(checkpoint.keys[None, 'positions'])} and {prefix_count} "
        f"prefix tokens do not fit {expected}; pass image_size=(height, width)"
    )


def _is_square(number: int) -> bool:
    return math.isqrt(number) ** 2 == number


def _output_width(converter: Converter, canonical_key: str) -> int:
    return len(converter.take(f"{canonical_key}.weight")) if converter.checkpoint.has(f"{canonical_key}.weight") else 0


def _compare_stated(
    checkpoint: MatchedCheckpoint, values: Mapping[str, Any], stated: Mapping[str, Any], source: str
) -> None:
    """Refuse a configuration that contradicts the weights."""
    for name, value in stated.items():
        if value is not None and value != values[name]:
            raise CheckpointError(
                f"{checkpoint.name}: its {source} says {name} = {value}, its weights have {values[name]}"
            )
