"""open_clip (Ilharco et al. 2021): folders with an ``open_clip_config.json``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import nn

from vitviz.weights.metadata.sidecars import Sidecars
from vitviz.weights.packages.reference import Answer, Package, Size, collected
from vitviz.weights.packages.timm import TimmModel


def _names(sidecars: Sidecars) -> str | None:
    return "open_clip_config.json" if sidecars.open_clip else None


@dataclass(frozen=True, eq=False)
class OpenClipModel:
    """The visual tower of a model of open_clip."""

    visual: Any

    @property
    def title(self) -> str:
        import open_clip

        return f"{type(self.visual).__name__} of open_clip {open_clip.__version__}"

    @property
    def size(self) -> Size | None:
        size = self.visual.image_size
        return (size, size) if isinstance(size, int) else (size[0], size[1])

    def prepare(self, image: Image.Image) -> torch.Tensor:
        from open_clip.transform import PreprocessCfg, image_transform_v2

        config = PreprocessCfg(**self.visual.preprocess_cfg)
        return torch.as_tensor(image_transform_v2(config, is_train=False)(image))[None]

    def answer(self, pixels: torch.Tensor) -> Answer:
        if not hasattr(self.visual, "transformer"):
            found = TimmModel(self.visual.trunk).answer(pixels)
            return Answer(self.visual(pixels), found.attention)
        blocks = list(self.visual.transformer.resblocks)
        plain = [block.attn for block in blocks if isinstance(block.attn, nn.MultiheadAttention)]
        hooks = [attention.register_forward_pre_hook(_ask_for_weights, with_kwargs=True) for attention in plain]
        own = [block.attn.attn_drop for block in blocks if hasattr(block.attn, "attn_drop")]
        try:
            with collected(plain, lambda output: output[1]) as weights, collected(own, _by_head(len(pixels))) as others:
                output = self.visual(pixels)
        finally:
            for hook in hooks:
                hook.remove()
        output = output[0] if isinstance(output, tuple) else output
        every = weights or others
        return Answer(output, tuple(every) if len(every) == len(blocks) else ())


def _ask_for_weights(_: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[Any, Any]:
    return arguments, {**keywords, "need_weights": True, "average_attn_weights": False}


def _by_head(images: int) -> Any:
    """The weights of open_clip's own attention, which folds images and heads into one axis."""

    def pick(output: torch.Tensor) -> torch.Tensor:
        return output if output.ndim == 4 else output.unflatten(0, (images, -1))

    return pick


def _open(folder: Path, size: Size | None) -> OpenClipModel:
    import open_clip

    model = open_clip.create_model(f"local-dir:{folder}", force_image_size=size, precision="fp32", weights_only=True)
    return OpenClipModel(model.visual.eval().requires_grad_(False))


PACKAGE = Package("open_clip", "open_clip_torch>=3.3,<4", _names, _open)
