"""Build vitviz's own network from tensors by canonical key: every shape is checked first, every tensor used."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

import torch
from einops import EinopsError, rearrange

from vitviz.attention.memory import is_out_of_memory
from vitviz.errors.kinds import CheckpointError, ConfigError
from vitviz.errors.messages import listing, quote
from vitviz.models.config import ViTConfig
from vitviz.models.layers import linear_from_convolution
from vitviz.models.pooling import POOLINGS
from vitviz.models.positions import rotary_periods
from vitviz.models.vit import VisionTransformer
from vitviz.weights.conversion.canonical import TOKENS, MatchedCheckpoint
from vitviz.weights.conversion.converter import Converter
from vitviz.weights.formats.limits import MAX_DEPTH, check_bytes, memory_for, needed_bytes

CONFIG = tuple(field.name for field in fields(ViTConfig))


def infer_config(checkpoint: MatchedCheckpoint, facts: dict[str, Any]) -> ViTConfig:
    """The configuration that the shapes of a checkpoint and the facts of its family imply.

    Raises:
        CheckpointError: they contradict each other, or leave something open.
    """
    parts = Converter(checkpoint, facts, real=False)
    patch_height, patch_width, channels = _patch(parts, facts)
    width, depth = parts.width, checkpoint.depth
    if not depth:
        raise CheckpointError(
            f"{checkpoint.name}: no encoder layers; expected {quote(checkpoint.spell('out.weight', 0))}"
        )
    if depth > MAX_DEPTH:
        raise CheckpointError(f"{checkpoint.name}: {depth:,} encoder layers; expected at most {MAX_DEPTH:,}")
    parts.latest.clear()
    bare = not checkpoint.has("out.weight") and bool(facts.get("bare_attention"))
    inner = width if bare else parts.take("out.weight", 0).shape[1]
    heads = facts["heads"]
    if inner % heads:
        raise CheckpointError(
            f"{checkpoint.name}: {parts.sources()}: {inner} features are no multiple of {heads} heads"
        )
    parts.latest.clear()
    mlp_width, hidden = parts.take("mlp_out.weight", 0).shape[1], parts.take("mlp_in.weight", 0).shape[0]
    if hidden != mlp_width and (hidden != 2 * mlp_width or checkpoint.has("gate.weight")):
        raise CheckpointError(f"{checkpoint.name}: {parts.sources()} do not fit together")
    gated = checkpoint.has("gate.weight") or hidden == 2 * mlp_width
    classes = len(parts.take("classifier.weight")) if checkpoint.has("classifier.weight") else 0
    rotary = bool(facts.get("rotary"))
    registers = len(parts.tokens("registers"))
    has = {token: bool(len(parts.tokens(token))) for token in ("cls", "distillation")}
    grid, positioned = _grid(parts, facts, (patch_height, patch_width), (*has.values(), registers), rotary)
    facts["positioned"] = positioned
    values = {
        "image_height": grid[0] * patch_height,
        "image_width": grid[1] * patch_width,
        "patch_height": patch_height,
        "patch_width": patch_width,
        "width": width,
        "depth": depth,
        "heads": heads,
        "head_width": inner // heads,
        "mlp_width": mlp_width,
        "gated_mlp": gated,
        "classes": classes,
        "channels": channels,
        "cls_token": has["cls"],
        "distillation_token": has["distillation"],
        "register_tokens": registers,
        "qkv_bias": any(checkpoint.has(f"{canonical_key}.bias") for canonical_key in ("qkv", "query", "key", "value")),
        "query_key_norm": checkpoint.has("query_norm.weight"),
        "patch_norms": checkpoint.has("patch_norm_before.weight"),
        "pre_norm": checkpoint.has("pre_norm.weight"),
        "representation_width": _outputs(parts, "representation"),
        "projection_width": _outputs(parts, "projection"),
        "pooling": "attention" if checkpoint.has("pool.probe") else "cls" if has["cls"] else "mean",
    }
    values |= {name: value for name, value in facts.items() if name in CONFIG}
    for token in POOLINGS[values["pooling"]].required_prefix if "pooling" not in checkpoint.overrides else ():
        if not has[token]:
            raise checkpoint.missing_key(token)
    _compare(checkpoint, values, facts.get("stated", {}), facts.get("stated_by", "config.json"))
    try:
        return ViTConfig(**values)
    except ConfigError as error:
        raise CheckpointError(f"{checkpoint.name}: {error}") from None


def assemble(
    checkpoint: MatchedCheckpoint, facts: dict[str, Any], config: ViTConfig, max_bytes: int | None = None
) -> VisionTransformer:
    """The network with the checkpoint's weights. Every shape is compared before a tensor is read.

    Args:
        checkpoint: as its keys were matched.
        facts: what its family knows of it.
        config: of the network.
        max_bytes: memory that it may take; where it is not given, what a file of its size may take.

    Raises:
        CheckpointError: a tensor is missing, has the wrong shape, is not finite, or has no place in the network.
        LimitError: the network takes more memory than is allowed or free.
    """
    with torch.device("meta"):
        network = VisionTransformer(config).eval()
    expected = network.state_dict()
    outline = Converter(checkpoint, facts, real=False)
    for target, tensor in _checked(outline, config):
        if target not in expected or tensor.shape != expected[target].shape:
            shape = tuple(expected[target].shape) if target in expected else "none"
            sources = outline.sources(target.rpartition(".")[2])
            raise CheckpointError(
                f"{checkpoint.name}: {sources} would make {target} {tuple(tensor.shape)}; expected {shape}"
            )
        outline.before, outline.latest = outline.latest or outline.before, []
    unused = [key for canonical_key, key in checkpoint.keys.items() if canonical_key not in outline.used]
    if unused:
        raise CheckpointError(f"{checkpoint.name}: surplus {listing(unused)}: they have no place in this model")
    needed = needed_bytes(network)
    check_bytes(checkpoint.name, needed, checkpoint.file.file_bytes, max_bytes)
    with memory_for(checkpoint.name, needed) as tensors:
        made = _checked(Converter(checkpoint, facts, real=True), config)
        tensors.update((target, tensor.contiguous()) for target, tensor in made)
        network.load_state_dict(tensors, assign=True)
    return network.requires_grad_(False)


def _checked(parts: Converter, config: ViTConfig) -> Iterator[tuple[str, torch.Tensor]]:
    """What :func:`_tensors` gives; tensors that do not fit together are named."""
    try:
        yield from _tensors(parts, config)
    except (RuntimeError, EinopsError, ValueError, IndexError) as error:
        if is_out_of_memory(error):
            raise
        raise CheckpointError(f"{parts.checkpoint.name}: {parts.sources()} do not fit together") from None


def _tensors(parts: Converter, config: ViTConfig) -> Iterator[tuple[str, torch.Tensor]]:
    """The network's tensors by name, made from those of the checkpoint."""
    yield from _embedding(parts, config)
    for layer in range(config.depth):
        yield from _layer(parts, config, layer)
    if config.final_norm != "none":
        yield from _affine(parts, "norm", "norm")
    if config.pooling == "attention":
        yield from _pooler(parts, config)
    if config.representation_width:
        yield from _linear(parts, "representation", "representation.0")
    if config.projection_width:
        yield "projection.weight", parts.take("projection.weight")
    if config.classes:
        weight, bias = parts.take("classifier.weight"), parts.bias("classifier", config.classes)
        if parts.checkpoint.has("distillation_classifier.weight"):
            # The mean of two classifiers is one classifier of both tokens.
            weight = torch.cat([weight, parts.take("distillation_classifier.weight")], 1) / 2
            bias = (bias + parts.bias("distillation_classifier", config.classes)) / 2
        yield "classifier.weight", weight
        yield "classifier.bias", bias


def _embedding(parts: Converter, config: ViTConfig) -> Iterator[tuple[str, torch.Tensor]]:
    yield "patch_embedding.weight", _pixel_order(parts, config, parts.take("patch.weight"))
    yield "patch_embedding.bias", parts.bias("patch", config.width)
    if config.patch_norms:
        for part in ("weight", "bias"):
            yield f"patch_norms.0.{part}", _pixel_order(parts, config, parts.take(f"patch_norm_before.{part}")[None])[0]
            yield f"patch_norms.1.{part}", parts.take(f"patch_norm_after.{part}")
    prefix = torch.cat([parts.tokens(canonical_key) for canonical_key in TOKENS[:3]])
    if config.rotary:
        periods = parts.maybe("rotary_periods")
        base = parts.facts.get("rotary_base", 100.0)
        yield "periods", rotary_periods(config.head_width, base) if periods is None else periods
    else:
        positions, count = parts.tokens("positions"), parts.facts["positioned"]
        prefix = torch.cat([prefix[:count] + positions[:count], prefix[count:]])
        trained = config.layout(config.image_height, config.image_width)
        yield "positions", positions[count:].unflatten(0, (trained.grid_height, trained.grid_width))
    yield "prefix_tokens", prefix
    if config.pre_norm:
        yield from _affine(parts, "pre_norm", "pre_norm")


def _layer(parts: Converter, config: ViTConfig, layer: int) -> Iterator[tuple[str, torch.Tensor]]:
    name = f"layers.{layer}"
    yield from _affine(parts, "attention_norm", f"{name}.attention_norm", layer)
    weight, bias = _qkv(parts, config, layer)
    yield f"{name}.attention.qkv.weight", weight
    if bias is not None:
        yield f"{name}.attention.qkv.bias", bias
    if config.query_key_norm:
        yield from _affine(parts, "query_norm", f"{name}.attention.query_norm", layer)
        yield from _affine(parts, "key_norm", f"{name}.attention.key_norm", layer)
    yield from _scaled(parts, config, "out", "attention_scale", f"{name}.attention.projection", layer)
    yield from _affine(parts, "mlp_norm", f"{name}.mlp_norm", layer)
    weight, hidden = parts.take("mlp_in.weight", layer), config.mlp_width * (2 if config.gated_mlp else 1)
    if parts.checkpoint.has("gate.weight"):
        weight = torch.cat([parts.take("gate.weight", layer), weight])
        gate, value = (parts.bias(canonical_key, config.mlp_width, layer) for canonical_key in ("gate", "mlp_in"))
        bias = torch.cat([gate, value])
    else:
        bias = parts.bias("mlp_in", hidden, layer)
    yield f"{name}.mlp.0.weight", weight
    yield f"{name}.mlp.0.bias", bias
    yield from _scaled(parts, config, "mlp_out", "mlp_scale", f"{name}.mlp.2", layer)


def _qkv(parts: Converter, config: ViTConfig, layer: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    separate, inner = ("query", "key", "value"), config.heads * config.head_width
    if parts.checkpoint.has("qkv.weight"):
        weight = parts.take("qkv.weight", layer)
    else:
        weight = torch.cat([parts.take(f"{canonical_key}.weight", layer) for canonical_key in separate])
    if not config.qkv_bias:
        return weight, None
    if not parts.checkpoint.has("qkv.bias"):
        return weight, torch.cat([parts.bias(canonical_key, inner, layer) for canonical_key in separate])
    bias, mask = parts.take("qkv.bias", layer), parts.maybe("qkv.bias_mask", layer)
    return weight, bias if mask is None else bias * mask


def _scaled(
    parts: Converter, config: ViTConfig, canonical_key: str, scale: str, target: str, layer: int
) -> Iterator[tuple[str, torch.Tensor]]:
    """A linear map with its LayerScale folded in: scaling what it gives is scaling its rows."""
    if canonical_key == "out" and not parts.checkpoint.has("out.weight"):
        weight = torch.eye(config.width, device=None if parts.real else "meta")
    else:
        weight = parts.take(f"{canonical_key}.weight", layer)
    bias, factor = parts.bias(canonical_key, config.width, layer), parts.maybe(scale, layer)
    if factor is not None:
        weight, bias = weight * rearrange(factor, "width -> width 1"), bias * factor
    yield f"{target}.weight", weight
    yield f"{target}.bias", bias


def _pooler(parts: Converter, config: ViTConfig) -> Iterator[tuple[str, torch.Tensor]]:
    width = config.width
    yield "pooler.probe", parts.take("pool.probe").reshape(-1)
    for part in ("weight", "bias"):
        if parts.checkpoint.has("pool.qkv.weight"):
            whole = parts.take(f"pool.qkv.{part}")
            query, key_value = whole[:width], whole[width:]
        else:
            query, key_value = parts.take(f"pool.query.{part}"), parts.take(f"pool.key_value.{part}")
        yield f"pooler.query.{part}", query
        yield f"pooler.key_value.{part}", key_value
    yield from _linear(parts, "pool.out", "pooler.projection")
    yield from _affine(parts, "pool.norm", "pooler.mlp_norm")
    yield from _linear(parts, "pool.mlp_in", "pooler.mlp.0")
    yield from _linear(parts, "pool.mlp_out", "pooler.mlp.2")


def _affine(
    parts: Converter, canonical_key: str, target: str, layer: int | None = None
) -> Iterator[tuple[str, torch.Tensor]]:
    for part in ("weight", "bias"):
        yield f"{target}.{part}", parts.take(f"{canonical_key}.{part}", layer)


def _linear(parts: Converter, canonical_key: str, target: str) -> Iterator[tuple[str, torch.Tensor]]:
    weight = parts.take(f"{canonical_key}.weight")
    yield f"{target}.weight", weight
    yield f"{target}.bias", parts.bias(canonical_key, len(weight))


def _pixel_order(parts: Converter, config: ViTConfig, weight: torch.Tensor) -> torch.Tensor:
    """A patch embedding as ``"width (channel height width)"``, whether it is a convolution or keeps channels last."""
    if weight.ndim == 4:
        return linear_from_convolution(weight)
    if parts.facts.get("channels_last"):
        order = "out (height width channel) -> out (channel height width)"
        return rearrange(weight, order, height=config.patch_height, width=config.patch_width)
    return weight


def _patch(parts: Converter, facts: Mapping[str, Any]) -> tuple[int, int, int]:
    """Height and width of a patch, and channels."""
    weight = parts.take("patch.weight")
    if weight.ndim == 4:
        return weight.shape[2], weight.shape[3], weight.shape[1]
    if weight.ndim == 2:
        pixels, overrides = weight.shape[1], facts.get("patch_size")
        # No number is both a square and three times one.
        sides = [overrides] if overrides else [(math.isqrt(pixels // count),) * 2 for count in (3, 1)]
        for height, width in sides:
            if height * width and pixels % (height * width) == 0 and pixels // (height * width) in (1, 3):
                return height, width, pixels // (height * width)
    raise CheckpointError(
        f"{parts.checkpoint.name}: {parts.sources()}; expected a convolution "
        "'width channel height width', or a matrix for square patches of 1 or 3 channels (else say patch_size=(…, …))"
    )


def _grid(
    parts: Converter, facts: Mapping[str, Any], patch: tuple[int, int], counts: tuple[int, ...], rotary: bool
) -> tuple[tuple[int, int], int]:
    """Trained grid, and how many prefix tokens have a position of their own."""
    checkpoint, size = parts.checkpoint, facts.get("image_size")
    if rotary:
        height, width = size or (224, 224)
        return (max(1, height // patch[0]), max(1, width // patch[1])), 0
    positions = len(parts.tokens("positions"))
    if not checkpoint.has("positions"):
        raise checkpoint.missing_key("positions")
    candidates = list(dict.fromkeys(facts.get("positioned") or (sum(counts), 0)))
    if size:
        grid = size[0] // patch[0], size[1] // patch[1]
        for count in candidates:
            if positions - count == math.prod(grid):
                return grid, count
    squares = [count for count in candidates if positions > count and _is_square(positions - count)]
    if len(squares) == 1 and "image_size" not in checkpoint.overrides:
        side = math.isqrt(positions - squares[0])
        if size:
            stated = f"{size[0]}×{size[1]}"
            unfit = f"the positions; the configuration's {stated} pixels do not fit them"
            checkpoint.assume("grid", f"{side}×{side}", unfit)
        return (side, side), squares[0]
    can_have = set(checkpoint.family.spellings("cls")).difference(checkpoint.family.without)
    if not checkpoint.has("cls") and can_have and "image_size" not in checkpoint.overrides:
        # One position more than a square has is the CLS token's.
        patches = positions - sum(counts) - 1
        if patches == math.prod(grid) if size else patches > 0 and _is_square(patches):
            raise checkpoint.missing_key("cls")
    image = f"an image of {size[0]}×{size[1]} in patches of {patch[0]}×{patch[1]}" if size else "a square image"
    raise CheckpointError(
        f"{checkpoint.name}: {positions} positions in {quote(checkpoint.keys[None, 'positions'])} and {sum(counts)} "
        f"prefix tokens do not fit {image}; say image_size=(height, width)"
    )


def _is_square(number: int) -> bool:
    return math.isqrt(number) ** 2 == number


def _outputs(parts: Converter, canonical_key: str) -> int:
    return len(parts.take(f"{canonical_key}.weight")) if parts.checkpoint.has(f"{canonical_key}.weight") else 0


def _compare(checkpoint: MatchedCheckpoint, values: Mapping[str, Any], stated: Mapping[str, Any], file: str) -> None:
    """What the configuration in a file says against what the weights are."""
    for name, value in stated.items():
        if value is not None and value != values[name]:
            raise CheckpointError(
                f"{checkpoint.name}: its {file} says {name} = {value}, its weights have {values[name]}"
            )
