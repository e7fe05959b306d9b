"""Build vitviz's network from tensors by canonical key. Every shape is checked first, and every tensor is used."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields

import torch
from einops import rearrange

from vitviz.attention.memory import enough_memory
from vitviz.errors.kinds import CheckpointError, ConfigError
from vitviz.errors.messages import listing, quote, several
from vitviz.models.config import ViTConfig
from vitviz.models.pooling import POOLINGS
from vitviz.models.positions import rotary_periods
from vitviz.models.vit import VisionTransformer
from vitviz.weights.conversion.canonical import QUERY_KEY_VALUE, MatchedCheckpoint, in_any_layer

CONFIG = tuple(field.name for field in fields(ViTConfig))
PREFIX_TOKENS = ("prefix_tokens.cls", "prefix_tokens.distillation", "prefix_tokens.registers")


def infer_config(checkpoint: MatchedCheckpoint) -> ViTConfig:
    """The configuration that the shapes of a checkpoint and its facts imply.

    Raises:
        CheckpointError: they contradict each other, or do not determine everything.
    """
    facts = checkpoint.facts
    patch_height, patch_width, channels = _patch_size(checkpoint)
    width = len(checkpoint.tensor("patch_embedding.weight"))
    heads, inner_width = facts["heads"], width
    if checkpoint.has("layers.*.attention.projection.weight") or not facts.get("bare_attention"):
        inner_width = checkpoint.tensor("layers.0.attention.projection.weight").shape[1]
    if inner_width % heads:
        raise CheckpointError(
            f"{checkpoint.name}: {_sources(checkpoint, 'layers.0.attention.projection.weight')}: {inner_width} "
            f"features are no multiple of {heads} heads"
        )
    mlp_width = checkpoint.tensor("layers.0.mlp.2.weight").shape[1]
    hidden_width = len(checkpoint.tensor("layers.0.mlp.0.weight"))
    has_gate = checkpoint.has("layers.*.mlp.0.gate.weight")
    if hidden_width != mlp_width and (hidden_width != 2 * mlp_width or has_gate):
        first, second = (_sources(checkpoint, f"layers.0.mlp.{part}.weight") for part in (0, 2))
        raise CheckpointError(f"{checkpoint.name}: {first}, {second} do not fit together")
    cls, distillation, registers, positions = (
        _token_count(checkpoint, name, width) for name in (*PREFIX_TOKENS, "positions")
    )
    prefix_count = bool(cls) + bool(distillation) + registers
    grid = _trained_grid(checkpoint, (patch_height, patch_width), positions, prefix_count)
    values = {
        "image_height": grid[0] * patch_height,
        "image_width": grid[1] * patch_width,
        "patch_height": patch_height,
        "patch_width": patch_width,
        "width": width,
        "depth": checkpoint.depth,
        "heads": heads,
        "head_width": inner_width // heads,
        "mlp_width": mlp_width,
        "gated_mlp": has_gate or hidden_width != mlp_width,
        "classes": _output_width(checkpoint, "classifier"),
        "channels": channels,
        "cls_token": bool(cls),
        "distillation_token": bool(distillation),
        "register_tokens": registers,
        "qkv_bias": any(
            checkpoint.has(f"layers.*.attention.qkv{part}.bias") for part in ("", ".query", ".key", ".value")
        ),
        "query_key_norm": checkpoint.has("layers.*.attention.query_norm.weight"),
        "patch_norms": checkpoint.has("patch_norms.0.weight"),
        "pre_norm": checkpoint.has("pre_norm.weight"),
        "representation_width": _output_width(checkpoint, "representation.0"),
        "projection_width": _output_width(checkpoint, "projection"),
        "pooling": "attention" if checkpoint.has("pooler.probe") else "cls" if cls else "mean",
    }
    values |= {name: value for name, value in facts.items() if name in CONFIG}
    for token in POOLINGS[values["pooling"]].required_prefix if "pooling" not in checkpoint.overrides else ():
        if not values[f"{token}_token"]:
            raise checkpoint.missing_key(f"prefix_tokens.{token}")
    for name, value in facts.get("stated", {}).items():
        if value is not None and value != values[name]:
            raise CheckpointError(
                f"{checkpoint.name}: its {facts.get('stated_by', 'config.json')} says {name} = {quote(value)}, its "
                f"weights have {values[name]}"
            )
    try:
        return ViTConfig(**values)
    except ConfigError as error:
        raise CheckpointError(f"{checkpoint.name}: {error}") from None


def assemble(checkpoint: MatchedCheckpoint, config: ViTConfig) -> VisionTransformer:
    """The network with the checkpoint's weights. Every shape is compared before a tensor is read.

    Args:
        checkpoint: with settled facts.
        config: of the network.

    Raises:
        CheckpointError: a tensor is missing, has the wrong shape, is not finite, or has no place in the network.
        LimitError: the network takes more memory than is free.
    """
    with torch.device("meta"):
        network = VisionTransformer(config).eval()
        shapes = {target: tensor.shape for target, tensor in network.state_dict().items()}
        outline = NetworkTensors(checkpoint, config, shapes, with_values=False)
        for target in shapes:
            outline.check(target)
    unused = [key for canonical_key, key in checkpoint.keys.items() if canonical_key not in outline.used]
    if unused:
        raise CheckpointError(f"{checkpoint.name}: surplus {listing(unused)}: they have no place in this model")
    values = NetworkTensors(checkpoint, config, shapes, with_values=True)
    with enough_memory(checkpoint.name, "model"):
        network.load_state_dict({target: values.make(target).contiguous() for target in shapes}, assign=True)
    return network.requires_grad_(False)


class NetworkTensors:
    """The tensors of a network, made of those of a checkpoint.

    Args:
        checkpoint: with settled facts.
        config: of the network.
        shapes: of its tensors, by their names.
        with_values: whether tensors are read; otherwise they are on the meta device.
    """

    def __init__(
        self, checkpoint: MatchedCheckpoint, config: ViTConfig, shapes: Mapping[str, torch.Size], with_values: bool
    ) -> None:
        self.checkpoint, self.config, self.shapes, self.with_values = checkpoint, config, shapes, with_values
        self.kinds = set(map(in_any_layer, checkpoint.keys))
        self.used: set[str] = set()

    def check(self, target: str) -> None:
        """Refuse tensors of which no tensor of the right shape can be made."""
        sources = f"{self.checkpoint.name}: {_sources(self.checkpoint, target)}"
        try:
            shape = self.make(target).shape
        # Of torch and of einops.
        except (RuntimeError, ValueError, IndexError):
            raise CheckpointError(f"{sources} do not fit together") from None
        if shape != self.shapes[target]:
            raise CheckpointError(
                f"{sources} would make {target} {tuple(shape)}; expected {tuple(self.shapes[target])}"
            )

    def make(self, target: str) -> torch.Tensor:
        """A tensor by its name in the network: the one of this canonical key, or what its parts make."""
        config, (stem, _, suffix) = self.config, target.rpartition(".")
        if target == "prefix_tokens":
            return self._prefix_tokens()
        if target == "positions":
            return self._positions()[1]
        if target == "periods":
            return rotary_periods(config.head_width, self.checkpoint.facts["rotary_base"])
        if target == "pooler.probe":
            return self._take(target).reshape(-1)
        if target == "patch_embedding.weight" or stem == "patch_norms.0":
            return _pixels_in_order(self._take(target), config)
        if stem in ("pooler.query", "pooler.key_value") and self._has("pooler.qkv.weight"):
            query, key_value = self._take(f"pooler.qkv.{suffix}").tensor_split([config.width])
            return query if stem == "pooler.query" else key_value
        if stem == "classifier" and self._has("classifier.distilled.weight"):
            # The mean of two classifiers is one classifier of both tokens.
            one, other = (self._linear(name, suffix, config.classes) for name in (stem, "classifier.distilled"))
            return (torch.cat([one, other], 1) if suffix == "weight" else one + other) / 2
        if stem.endswith(".qkv") and not self._has(target):
            width = config.heads * config.head_width
            return torch.cat([self._linear(f"{stem}.{part}", suffix, width) for part in QUERY_KEY_VALUE])
        if self._has(f"{stem}.gate.weight"):
            return torch.cat([self._linear(name, suffix, config.mlp_width) for name in (f"{stem}.gate", stem)])
        if target.endswith("attention.projection.weight") and not self._has(target):
            return torch.eye(config.width, dtype=torch.float32)
        tensor = self._linear(stem, suffix, self.shapes[target][0])
        if self._has(f"{stem}.scale"):
            # Scaling an output feature scales a row of the matrix.
            factor = self._take(f"{stem}.scale")
            tensor = tensor * (rearrange(factor, "width -> width 1") if suffix == "weight" else factor)
        return tensor

    def _has(self, canonical_key: str) -> bool:
        """Whether the checkpoint has a tensor, in this layer or in another one."""
        return in_any_layer(canonical_key) in self.kinds

    def _take(self, canonical_key: str) -> torch.Tensor:
        self.used.add(canonical_key)
        return self.checkpoint.tensor(canonical_key, self.with_values)

    def _linear(self, name: str, suffix: str, width: int) -> torch.Tensor:
        """The weight or the bias of a norm or a linear map, whose bias is zeros if the checkpoint has none."""
        if suffix == "bias" and "norm" not in name and not self._has(f"{name}.bias"):
            return torch.zeros(width, dtype=torch.float32)
        return self._take(f"{name}.{suffix}")

    def _tokens(self, canonical_key: str) -> torch.Tensor:
        """Tokens or positions as ``"token width"``; of length 0 if the checkpoint has none."""
        if not self._has(canonical_key):
            return torch.zeros(0, self.config.width, dtype=torch.float32)
        return self._take(canonical_key).reshape(-1, self.config.width)

    def _prefix_tokens(self) -> torch.Tensor:
        """The prefix tokens, to the first of which positions that are not of patches belong."""
        prefix = torch.cat([self._tokens(canonical_key) for canonical_key in PREFIX_TOKENS])
        if self.config.rotary:
            return prefix
        positions, _ = self._positions()
        return torch.cat([prefix[: len(positions)] + positions, prefix[len(positions) :]])

    def _positions(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The positions of the first prefix tokens, and those of the trained grid."""
        trained = self.config.layout(self.config.image_height, self.config.image_width)
        positions = self._tokens("positions")
        count = len(positions) - trained.patch_count
        return positions[:count], positions[count:].unflatten(0, (trained.grid_height, trained.grid_width))


def _sources(checkpoint: MatchedCheckpoint, target: str) -> str:
    """The keys of which a tensor of the network is made, with their shapes in the file; those of its suffix first."""
    stem, _, suffix = target.rpartition(".")
    stems = (f"{stem or target}.", target, *["positions"] * (target == "prefix_tokens"))
    keys = [key for canonical_key, key in checkpoint.keys.items() if canonical_key.startswith(stems)]
    ordered = sorted(keys, key=lambda key: not key.endswith(suffix))
    return several([f"{quote(key)} of shape {tuple(checkpoint.tensors[key].shape)}" for key in ordered], 6)


def _pixels_in_order(weight: torch.Tensor, config: ViTConfig) -> torch.Tensor:
    """The numbers of a patch as ``"... (channel height width)"``, from a convolution, a matrix or a norm."""
    if weight.ndim == 4:
        # The kernel of a patch convolution is a linear map of the patch's numbers in the order channel, row, column.
        return weight.flatten(1)
    order = "... (height width channel) -> ... (channel height width)"
    return rearrange(weight, order, height=config.patch_height, width=config.patch_width)


def _patch_size(checkpoint: MatchedCheckpoint) -> tuple[int, int, int]:
    """Height and width of a patch, and channels."""
    weight, facts = checkpoint.tensor("patch_embedding.weight"), checkpoint.facts
    if weight.ndim == 4:
        channels, height, width = weight.shape[1:]
        if facts.get("patch_size", (height, width)) != (height, width):
            raise CheckpointError(f"{checkpoint.name}: its patches have {height}×{width} pixels; leave out patch_size")
        return height, width, channels
    # Other families do not tell in which order a matrix reads the numbers of a patch.
    if weight.ndim == 2 and facts.get("channels_last"):
        pixels, override = weight.shape[1], facts.get("patch_size")
        # A number of pixels is never both a square and three times a square.
        sides = [override] if override else [(math.isqrt(pixels // count),) * 2 for count in (3, 1)]
        for height, width in sides:
            if height * width and pixels % (height * width) == 0 and pixels // (height * width) in (1, 3):
                return height, width, pixels // (height * width)
    raise CheckpointError(
        f"{checkpoint.name}: {_sources(checkpoint, 'patch_embedding.weight')}; expected a convolution "
        "'width channel height width', or a matrix for square patches of 1 or 3 channels (else pass patch_size=(…, …))"
    )


def _token_count(checkpoint: MatchedCheckpoint, canonical_key: str, width: int) -> int:
    """How many tokens or positions the checkpoint has under a key."""
    shape = checkpoint.shape(canonical_key)
    if shape and shape[-1] != width:
        raise CheckpointError(
            f"{checkpoint.name}: {_sources(checkpoint, canonical_key)}; expected {width} features, as "
            f"{quote(checkpoint.keys['patch_embedding.weight'])} gives"
        )
    return math.prod(shape[:-1]) if shape else 0


def _trained_grid(
    checkpoint: MatchedCheckpoint, patch: tuple[int, int], positions: int, prefix_count: int
) -> tuple[int, int]:
    """The trained grid: rows and columns of patches.

    Args:
        checkpoint: with settled facts.
        patch: height and width of a patch.
        positions: their number.
        prefix_count: number of prefix tokens.
    """
    facts = checkpoint.facts
    size = facts.get("image_size")
    grid = (size[0] // patch[0], size[1] // patch[1]) if size else None
    if grid and facts.get("rotary"):
        return grid
    if not checkpoint.has("positions"):
        raise checkpoint.missing_key("positions")
    candidates = list(dict.fromkeys(facts.get("positioned") or (prefix_count, 0)))
    if grid and any(positions - count == math.prod(grid) for count in candidates):
        return grid
    sides = {count: math.isqrt(positions - count) for count in candidates if positions > count}
    squares = [side for count, side in sides.items() if side**2 == positions - count]
    if len(squares) == 1 and "image_size" not in checkpoint.overrides:
        side = squares[0]
        if size:
            reason = f"the positions; the configuration's {size[0]}×{size[1]} pixels do not fit them"
            checkpoint.record("grid", f"{side}×{side}", reason, assumed=True)
        return side, side
    expected = f"an image of {size[0]}×{size[1]} in patches of {patch[0]}×{patch[1]}" if size else "a square image"
    has_cls, cls = checkpoint.has("prefix_tokens.cls"), checkpoint.expected_key("prefix_tokens.cls")
    raise CheckpointError(
        f"{checkpoint.name}: {positions} positions in {quote(checkpoint.keys['positions'])} and {prefix_count} prefix "
        f"tokens{'' if has_cls else f' (no {quote(cls)})'} do not fit {expected}; pass image_size=(height, width)"
    )


def _output_width(checkpoint: MatchedCheckpoint, canonical_key: str) -> int:
    """The outputs of a linear map; 0 without it."""
    name = f"{canonical_key}.weight"
    return len(checkpoint.tensor(name)) if checkpoint.has(name) else 0
