"""The packages that vitviz is compared with, imported without a word and without the network."""

from __future__ import annotations

import os
import sys
import warnings

import torch

# Read when huggingface_hub is imported.
os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    try:
        import torchvision
    except RuntimeError:
        # Its compiled operators belong to another build of torch. What transforms pictures needs only their names.
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        OPERATORS = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            OPERATORS.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import torchvision
    import open_clip
    import timm
    import transformers
    import vit_pytorch

__all__ = ["open_clip", "timm", "torchvision", "transformers", "vit_pytorch"]
