"""What the rest of vitviz calls a network: vitviz's own, the user's module, or attention alone.

Gradients (:mod:`vitviz.models.gradients`) and ablation (:mod:`vitviz.metrics.ablation`) have one function for each
kind. Code that needs more than all kinds have calls :func:`vitviz.models.require.require_vit`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import torch

from vitviz.attention.trace import AttentionTrace

if TYPE_CHECKING:
    from vitviz.models.capture.facts import ModuleConfig
    from vitviz.models.capture.network import CapturedNetwork
    from vitviz.models.config import ViTConfig
    from vitviz.models.given import GivenConfig, GivenNetwork
    from vitviz.models.vit import VisionTransformer


@dataclass(frozen=True, eq=False)
class Encoding:
    """The result of one forward pass: ``logits`` ``"batch class"`` and one trace per image."""

    logits: torch.Tensor
    traces: tuple[AttentionTrace, ...]


Network: TypeAlias = "VisionTransformer | CapturedNetwork | GivenNetwork"
"""A network that encodes images into traces. :class:`vitviz.VisionTransformer` documents the methods."""
NetworkConfig: TypeAlias = "ViTConfig | ModuleConfig | GivenConfig"
"""The properties of a network. :class:`vitviz.ViTConfig` documents them; ``pooling`` is a name in
:data:`vitviz.models.pooling.POOLINGS`, or another word where it is unknown."""
