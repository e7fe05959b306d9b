"""The packages that vitviz is compared with, imported without warnings and without the network."""

from __future__ import annotations

import os
import warnings

from tests.torchvision_names import torchvision

# huggingface_hub reads these when it is imported.
os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import open_clip
    import timm
    import transformers
    import vit_pytorch

__all__ = ["open_clip", "timm", "torchvision", "transformers", "vit_pytorch"]
