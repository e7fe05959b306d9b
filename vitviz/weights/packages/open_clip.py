"""open_clip (Ilharco et al. 2021): folders with an ``open_clip_config.json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from vitviz.errors.kinds import CheckpointError
from vitviz.errors.messages import listing
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


def _check_config(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The configuration without pretrained weights of its towers' own."""
    checked = deepcopy(dict(config))
    for tower in checked["model_cfg"].values():
        if isinstance(tower, dict):
            tower |= {key: False for key in tower if key.endswith("_model_pretrained")}
    return checked


def _load(folder: Path, size: Size | None, ignore: Sequence[str] | None) -> ReferenceModel:
    import open_clip

    if ignore:
        raise CheckpointError(f"ignore = {listing(ignore)}: open_clip reads every key of a file; expected none")
    model = open_clip.create_model(f"local-dir:{folder}", force_image_size=size, precision="fp32", weights_only=True)
    return reference_of(model.visual.eval().requires_grad_(False))


FILES = ("open_clip_config.json", "open_clip_model.safetensors")
PACKAGE = Package("open_clip", _find_mention, FILES, _check_config, _load)
