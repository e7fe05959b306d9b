"""open_clip (Ilharco et al. 2021): folders with an ``open_clip_config.json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import nn

from vitviz.errors.kinds import CheckpointError
from vitviz.errors.messages import listing, quote
from vitviz.weights.metadata.sidecars import Sidecars
from vitviz.weights.packages.reference import Package, ReferenceModel, Size


def _find_mention(sidecars: Sidecars) -> str | None:
    return "open_clip_config.json" if sidecars.open_clip else None


def reference_of(visual: Any) -> ReferenceModel:
    """The visual tower of a model of open_clip as a reference."""
    import open_clip
    from open_clip.transform import PreprocessCfg, image_transform_v2

    def preprocess(image: Image.Image) -> torch.Tensor:
        transform = image_transform_v2(PreprocessCfg(**visual.preprocess_cfg), is_train=False)
        return torch.as_tensor(transform(image))[None]

    return ReferenceModel(visual, f"{type(visual).__name__} of open_clip {open_clip.__version__}", preprocess)


def _open(folder: Path, size: Size | None) -> ReferenceModel:
    import open_clip

    model = open_clip.create_model(f"local-dir:{folder}", force_image_size=size, precision="fp32", weights_only=True)
    return reference_of(model.visual.eval().requires_grad_(False))


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

    device = torch.get_default_device()
    model: nn.Module = open_clip.create_model(
        f"local-dir:{folder}", load_weights=False, pretrained_text=False, device=device
    )
    return model


def _load(folder: Path, ignore: Sequence[str]) -> ReferenceModel:
    if ignore:
        raise CheckpointError(f"ignore = {listing(ignore)}: open_clip reads every key of a file; expected none")
    return _open(folder, None)


PACKAGE = Package(
    "open_clip",
    _find_mention,
    _open,
    ("open_clip_config.json", "open_clip_model.safetensors"),
    _check_config,
    _build,
    _load,
)
