"""A checkpoint's tensors by canonical key, in torch's layout."""

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
    """A checkpoint's tensors by canonical key, in torch's layout, read from the file or on the meta device.

    Args:
        checkpoint: with matched keys.
        facts: of its family.
        with_values: whether tensors are read from the file; otherwise they are on the meta device.
    """

    def __init__(self, checkpoint: MatchedCheckpoint, facts: Mapping[str, Any], with_values: bool) -> None:
        self.checkpoint, self.facts, self.with_values = checkpoint, facts, with_values
        self.used: dict[Key, None] = {}
        # Keys taken for the current tensor and for the previous one, which may share a bias, for error messages.
        self.latest_keys: list[str] = []
        self.previous_keys: list[str] = []

    def take(self, canonical_key: str, layer: int | None = None) -> torch.Tensor:
        """A required tensor."""
        checkpoint = self.checkpoint
        if (layer, canonical_key) not in checkpoint.keys:
            raise checkpoint.missing_key(canonical_key, layer)
        key = checkpoint.keys[layer, canonical_key]
        self.used[layer, canonical_key] = None
        self.latest_keys.append(key)
        if self.with_values:
            tensor = checkpoint.file.read(checkpoint.group, key)
        else:
            tensor = torch.empty(checkpoint.file.groups[checkpoint.group][key].shape, device="meta")
        try:
            return checkpoint.family.convert(canonical_key, tensor, self.facts)
        except (RuntimeError, EinopsError, ValueError, IndexError) as error:
            if is_out_of_memory(error):
                raise
            raise CheckpointError(
                f"{checkpoint.name}: {quote(key)} has the shape {tuple(tensor.shape)}, which no checkpoint of "
                f"this kind ({checkpoint.family.title}) has"
            ) from None

    def take_optional(self, canonical_key: str, layer: int | None = None) -> torch.Tensor | None:
        """A tensor; None if the checkpoint does not have it."""
        return self.take(canonical_key, layer) if self.checkpoint.has(canonical_key) else None

    def bias(self, canonical_key: str, width: int, layer: int | None = None) -> torch.Tensor:
        """A bias; zeros if the checkpoint has none."""
        bias = self.take_optional(f"{canonical_key}.bias", layer)
        return (
            torch.zeros(width, dtype=torch.float32, device=None if self.with_values else "meta")
            if bias is None
            else bias
        )

    def tokens(self, canonical_key: str) -> torch.Tensor:
        """Tokens or positions as ``"token width"``; of length 0 if the checkpoint has none."""
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

    def sources(self, suffix: str = "") -> str:
        """The keys taken last with their shapes in the file, those that end in ``suffix`` first."""
        keys = dict.fromkeys(
            self.previous_keys + self.latest_keys if suffix == "bias" else self.latest_keys or self.previous_keys
        )
        ordered = sorted(keys, key=lambda key: not key.endswith(suffix))
        tensors = self.checkpoint.file.groups[self.checkpoint.group]
        more = f" and {len(keys) - 6:,} more" * (len(keys) > 6)
        return ", ".join(f"{quote(key)} of shape {tensors[key].shape}" for key in ordered[:6]) + more

    @property
    def width(self) -> int:
        return len(self.take("patch.weight"))
