"""timm (Wightman 2019): folders with a ``config.json`` that names an ``architecture``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import nn

from vitviz.weights.metadata.sidecars import Sidecars
from vitviz.weights.packages.reference import Answer, Package, Size, as_mode, collected


def _names(sidecars: Sidecars) -> str | None:
    if "architecture" in sidecars.config and "model_type" not in sidecars.config:
        return "architecture in config.json"
    return None


@dataclass(frozen=True, eq=False)
class TimmModel:
    """A Vision Transformer of timm."""

    model: Any

    @property
    def title(self) -> str:
        import timm

        return f"{type(self.model).__name__} of timm {timm.__version__}"

    @property
    def size(self) -> Size | None:
        return tuple(self.model.patch_embed.img_size)

    def prepare(self, image: Image.Image) -> torch.Tensor:
        from timm.data.config import resolve_model_data_config
        from timm.data.transforms_factory import create_transform

        config = resolve_model_data_config(self.model)
        channels = config["input_size"][0]
        if self.size is not None and not getattr(self.model, "dynamic_img_size", False):
            # A folder may still state the size of the model that it was made from, which this one does not take.
            config["input_size"] = (channels, *self.size)
        transform = create_transform(**config, is_training=False)
        return torch.as_tensor(transform(as_mode(image, channels)))[None]

    def answer(self, pixels: torch.Tensor) -> Answer:
        attentions = [block.attn for block in self.model.blocks if hasattr(getattr(block, "attn", None), "attn_drop")]
        fused = [getattr(attention, "fused_attn", None) for attention in attentions]
        for attention in attentions:
            attention.fused_attn = False
        try:
            with collected([attention.attn_drop for attention in attentions], _weights) as weights:
                output = self.model(pixels)
        finally:
            for attention, before in zip(attentions, fused, strict=True):
                attention.fused_attn = before
        whole = len(weights) == len(self.model.blocks)
        # DeiT's distilled models return both heads when they are trained.
        return Answer(output, tuple(weights) if whole else ())


def _weights(output: torch.Tensor) -> torch.Tensor | None:
    return output if output.ndim == 4 and output.shape[-1] == output.shape[-2] else None


def _open(folder: Path, size: Size | None) -> TimmModel:
    import timm

    # Weights are unpickled by torch's own safe loader, and names of layers are looked up in timm's tables.
    model: nn.Module = timm.create_model(f"local-dir:{folder}", pretrained=True)
    model = model.eval().float().requires_grad_(False)
    if size is not None:
        # The trained size stays that of the preprocessing.
        model.set_input_size(img_size=size)  # type: ignore[operator]
    return TimmModel(model)


PACKAGE = Package("timm", "timm>=1.0.31,<1.1", _names, _open)
