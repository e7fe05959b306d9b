"""torchvision, even where its operators were built for another torch: its transforms need only their names."""

from __future__ import annotations

import sys
import warnings

import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    try:
        import torchvision
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        OPERATORS = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            OPERATORS.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import torchvision

__all__ = ["torchvision"]
