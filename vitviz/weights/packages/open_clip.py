"""open_clip (Ilharco et al. 2021): folders with an ``open_clip_config.json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import nn

from vitviz.errors.kinds import CheckpointError
from vitviz.errors.messages import listing, quote
from vitviz.weights.metadata.sidecars import Sidecars
from vitviz.weights.packages.reference import Answer, Package, Size, collect_outputs
from vitviz.weights.packages.timm import TimmModel


def _find_mention(sidecars: Sidecars) -> str | None:
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
    def module(self) -> nn.Module:
        module: nn.Module = self.visual
        return module

    @property
    def size(self) -> Size | None:
        size = self.visual.image_size
        return (size, size) if isinstance(size, int) else (size[0], size[1])

    def preprocess(self, image: Image.Image) -> torch.Tensor:
        from open_clip.transform import PreprocessCfg, image_transform_v2

        config = PreprocessCfg(**self.visual.preprocess_cfg)
        return torch.as_tensor(image_transform_v2(config, is_train=False)(image))[None]

    def answer(self, pixels: torch.Tensor) -> Answer:
        if not hasattr(self.visual, "transformer"):
            trunk_answer = TimmModel(self.visual.trunk).answer(pixels)
            return Answer(self.visual(pixels), trunk_answer.attention)
        blocks = list(self.visual.transformer.resblocks)
        torch_attention = [block.attn for block in blocks if isinstance(block.attn, nn.MultiheadAttention)]
        hooks = [
            attention.register_forward_pre_hook(_ask_for_weights, with_kwargs=True) for attention in torch_attention
        ]
        own_dropouts = [block.attn.attn_drop for block in blocks if hasattr(block.attn, "attn_drop")]
        try:
            with (
                collect_outputs(torch_attention, lambda output: output[1]) as weights,
                collect_outputs(own_dropouts, _by_head(len(pixels))) as own_weights,
            ):
                output = self.visual(pixels)
        finally:
            for hook in hooks:
                hook.remove()
        output = output[0] if isinstance(output, tuple) else output
        matrices = weights or own_weights
        return Answer(output, tuple(matrices) if len(matrices) == len(blocks) else ())


def _ask_for_weights(_: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[Any, Any]:
    return arguments, {**keywords, "need_weights": True, "average_attn_weights": False}


def _by_head(images: int) -> Any:
    """A function that separates images and heads in weights of open_clip's own attention."""

    def pick(output: torch.Tensor) -> torch.Tensor:
        return output if output.ndim == 4 else output.unflatten(0, (images, -1))

    return pick


def _open(folder: Path, size: Size | None) -> OpenClipModel:
    import open_clip

    model = open_clip.create_model(f"local-dir:{folder}", force_image_size=size, precision="fp32", weights_only=True)
    return OpenClipModel(model.visual.eval().requires_grad_(False))


def _check_config(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The configuration, with towers named only by their packages and without pretrained weights of their own."""
    model = config.get("model_cfg")
    towers = [model.get(section) for section in ("vision_cfg", "text_cfg")] if isinstance(model, Mapping) else [None]
    if not all(isinstance(tower, Mapping) for tower in towers):
        raise CheckpointError(f"{name}: expected model_cfg with vision_cfg and text_cfg in its open_clip_config.json")
    checked = deepcopy(dict(config))
    for section in ("vision_cfg", "text_cfg"):
        tower = checked["model_cfg"][section]
        for key, value in tower.items():
            if key.endswith("_model_pretrained"):
                tower[key] = False
            # A name may also refer to a repository ("hf-hub:owner/name") or to a folder.
            elif key == "timm_model_name" and not (isinstance(value, str) and value.replace(".", "_").isidentifier()):
                raise CheckpointError(f"{name}: {section}.{key} = {quote(value)}: expected timm's name of a model")
    return checked


def _build(folder: Path) -> nn.Module:
    import open_clip
    import torch

    device = torch.get_default_device()
    model: nn.Module = open_clip.create_model(
        f"local-dir:{folder}", load_weights=False, pretrained_text=False, device=device
    )
    return model


def _load(folder: Path, ignore: Sequence[str]) -> OpenClipModel:
    if ignore:
        raise CheckpointError(f"ignore = {listing(ignore)}: open_clip reads every key of a file; expected none")
    return _open(folder, None)


PACKAGE = Package(
    "open_clip",
    "open_clip_torch>=3.3",
    _find_mention,
    _open,
    "open_clip",
    ("open_clip_config.json", "open_clip_model.safetensors"),
    _check_config,
    _build,
    _load,
)
