"""A checkpoint's tensors by canonical key, in torch's own form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from einops import EinopsError

from vitviz.attention.memory import is_out_of_memory
from vitviz.errors.kinds import CheckpointError
from vitviz.errors.messages import quote
from vitviz.weights.conversion.canonical import Key, MatchedCheckpoint


class Converter:
    """A checkpoint's tensors by canonical key, in torch's own form, either without memory or read from the file.

    Args:
        checkpoint: as its keys were matched.
        facts: what its family knows of it.
        real: whether tensors are read; otherwise they have a shape and no values.
    """

    def __init__(self, checkpoint: MatchedCheckpoint, facts: Mapping[str, Any], real: bool) -> None:
        self.checkpoint, self.facts, self.real = checkpoint, facts, real
        self.used: dict[Key, None] = {}
        # Keys taken for the tensor in the making, and for the one before it, of which a bias may have been one.
        self.latest: list[str] = []
        self.before: list[str] = []

    def take(self, canonical_key: str, layer: int | None = None) -> torch.Tensor:
        """A tensor that has to be there."""
        checkpoint = self.checkpoint
        if (layer, canonical_key) not in checkpoint.keys:
            raise checkpoint.missing_key(canonical_key, layer)
        key = checkpoint.keys[layer, canonical_key]
        self.used[layer, canonical_key] = None
        self.latest.append(key)
        if self.real:
            tensor = checkpoint.file.read(checkpoint.group, key)
        else:
            tensor = torch.empty(checkpoint.file.groups[checkpoint.group][key].shape, device="meta")
        try:
            return checkpoint.family.form(canonical_key, tensor, self.facts)
        except (RuntimeError, EinopsError, ValueError, IndexError) as error:
            if is_out_of_memory(error):
                raise
            raise CheckpointError(
                f"{checkpoint.name}: {quote(key)} has the shape {tuple(tensor.shape)}, which no checkpoint of "
                f"this kind ({checkpoint.family.title}) has"
            ) from None

    def maybe(self, canonical_key: str, layer: int | None = None) -> torch.Tensor | None:
        """A tensor that every layer has, or none."""
        return self.take(canonical_key, layer) if self.checkpoint.has(canonical_key) else None

    def bias(self, canonical_key: str, width: int, layer: int | None = None) -> torch.Tensor:
        """A bias; zeros where the checkpoint keeps none."""
        bias = self.maybe(f"{canonical_key}.bias", layer)
        return torch.zeros(width, device=None if self.real else "meta") if bias is None else bias

    def tokens(self, canonical_key: str) -> torch.Tensor:
        """Tokens or positions as ``"token width"``; none where the tensor is not there."""
        if not self.checkpoint.has(canonical_key):
            return self.take("patch.weight").new_empty(0, self.width)
        tensor, width = self.take(canonical_key), self.width
        if tensor.shape[-1] != width:
            key = self.checkpoint.keys[None, canonical_key]
            patch = quote(self.checkpoint.keys[None, "patch.weight"])
            raise CheckpointError(
                f"{self.checkpoint.name}: {quote(key)} has the shape {tuple(tensor.shape)}; expected {width} features, "
                f"as {patch} gives"
            )
        return tensor.reshape(-1, width)

    def sources(self, part: str = "") -> str:
        """What was taken last, with the shapes in the file; of weights and biases, the ones of this name first."""
        keys = dict.fromkeys(self.before + self.latest if part == "bias" else self.latest or self.before)
        first = sorted(keys, key=lambda key: not key.endswith(part))
        tensors = self.checkpoint.file.groups[self.checkpoint.group]
        rest = f" and {len(keys) - 6:,} more" * (len(keys) > 6)
        return ", ".join(f"{quote(key)} of shape {tensors[key].shape}" for key in first[:6]) + rest

    @property
    def width(self) -> int:
        return len(self.take("patch.weight"))
