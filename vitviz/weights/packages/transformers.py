"""Hugging Face transformers (Wolf et al. 2020): folders with a ``config.json`` that has a ``model_type``."""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from einops import rearrange
from PIL import Image

from vitviz.errors.kinds import CheckpointError
from vitviz.errors.messages import listed, shown
from vitviz.weights.metadata.sidecars import Sidecars
from vitviz.weights.packages.reference import Answer, Package, Size, as_mode


def _names(sidecars: Sidecars) -> str | None:
    return "model_type in config.json" if "model_type" in sidecars.config else None


@dataclass(frozen=True, eq=False)
class TransformersModel:
    """A Vision Transformer of transformers, alone or as the tower of a model of images and text.

    Args:
        model: a ``PreTrainedModel``, with eager attention.
        folder: with the file of its image processor; None for a model that has none.
    """

    model: Any
    folder: Path | None = None

    @property
    def title(self) -> str:
        import transformers

        return f"{type(self.model).__name__} of transformers {transformers.__version__}"

    @property
    def size(self) -> Size | None:
        size = getattr(self._vision, "image_size", None)
        return None if size is None else _sides(size)

    def prepare(self, image: Image.Image) -> torch.Tensor:
        from transformers import AutoImageProcessor

        # The class that transformers takes by itself: with torchvision, wherever that is installed.
        with _quiet():
            processor = AutoImageProcessor.from_pretrained(self.folder, local_files_only=True, trust_remote_code=False)
        channels = getattr(self._vision, "num_channels", 3)
        found = processor(as_mode(image, channels), return_tensors="pt")
        if "spatial_shapes" in found:
            return _pixels(found, self._vision.patch_size)
        return torch.as_tensor(found["pixel_values"])

    def answer(self, pixels: torch.Tensor) -> Answer:
        tower = self._tower
        inputs = self._inputs(pixels)
        takes = inspect.signature(tower.forward).parameters
        if "interpolate_pos_encoding" in takes and self.size != tuple(pixels.shape[-2:]):
            inputs["interpolate_pos_encoding"] = True
        found = tower(**inputs, output_attentions=True)
        output = next((found[name] for name in OUTPUTS if found.get(name) is not None), None)
        projection = next((part.visual_projection for part in self.model.modules() if _projects(part)), None)
        if output is not None and tower is not self.model and projection is not None:
            output = projection(output)
        tokens = found.get("last_hidden_state")
        weights = tuple(found.attentions) if found.get("attentions") and found.attentions[0] is not None else ()
        return Answer(output, weights, tokens if output is None else None)

    @property
    def _vision(self) -> Any:
        """What the configuration says of the part that sees."""
        configs = (getattr(self.model.config, name, None) for name in ("vision_config", "image_config"))
        return next((config for config in configs if config is not None), self.model.config)

    @property
    def _tower(self) -> Any:
        """The part that sees, without what is for pretraining or for texts."""
        from transformers import PreTrainedModel

        if type(self.model).__name__.endswith(("ForImageClassification", "WithTeacher")):
            return self.model
        vision = self._vision
        if vision is self.model.config:
            # A model for pretraining has heads that reconstruct; what it shows is what its encoder gives.
            return self.model.base_model if "For" in type(self.model).__name__ else self.model
        parts = (part for part in self.model.modules() if isinstance(part, PreTrainedModel))
        tower = next((part for part in parts if type(part.config) is type(vision)), None)
        if tower is None:
            raise CheckpointError(
                f"{type(self.model).__name__} of transformers has no part for {type(vision).__name__}"
            )
        return tower

    def _inputs(self, pixels: torch.Tensor) -> dict[str, Any]:
        config = self._vision
        if config.model_type.startswith("siglip2"):
            rows, columns = (side // config.patch_size for side in pixels.shape[-2:])
            order = "batch channel (row height) (column width) -> batch (row column) (height width channel)"
            return {
                "pixel_values": rearrange(pixels, order, row=rows, column=columns),
                "pixel_attention_mask": torch.ones(len(pixels), rows * columns, dtype=torch.long),
                "spatial_shapes": torch.tensor([[rows, columns]] * len(pixels)),
            }
        if config.model_type == "vit_mae":
            # It shuffles patches by this noise to leave some out.
            height, width = _sides(config.patch_size)
            patches = (pixels.shape[-2] // height) * (pixels.shape[-1] // width)
            return {"pixel_values": pixels, "noise": torch.arange(patches).float().expand(len(pixels), -1)}
        return {"pixel_values": pixels}


OUTPUTS = ("logits", "image_embeds", "pooler_output")


def _projects(part: Any) -> bool:
    """Whether a part of a model brings images where its texts are."""
    return isinstance(getattr(part, "visual_projection", None), torch.nn.Linear)


def tensors_as_saved(model: Any) -> dict[str, torch.Tensor]:
    """A model's tensors by the names that transformers writes, which in memory may be others."""
    from transformers.core_model_loading import revert_weight_conversion

    return dict(revert_weight_conversion(model, dict(model.state_dict())))


def _sides(value: Any) -> Size:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def _pixels(found: Any, patch: int) -> torch.Tensor:
    """NaFlex's patches as the picture that they make."""
    rows, columns = found["spatial_shapes"][0].tolist()
    order = "1 (row column) (height width channel) -> 1 channel (row height) (column width)"
    patches = found["pixel_values"][:, : rows * columns]
    return rearrange(patches, order, row=rows, column=columns, height=patch, width=patch)


def _open(folder: Path, size: Size | None) -> TransformersModel:
    with _quiet():
        return TransformersModel(_load(folder), folder)


def _load(folder: Path) -> Any:
    cls = _class(folder)
    # The class is transformers' own: a folder's `auto_map`, which would name code of its own, is not read.
    options = {"local_files_only": True, "weights_only": True, "attn_implementation": "eager", "dtype": torch.float32}
    model, report = cls.from_pretrained(folder, **options, output_loading_info=True)
    missing = sorted(report["missing_keys"])
    if missing and all("pooler." in key for key in missing):
        # Without weights in the file it would be random.
        model, report = cls.from_pretrained(folder, **options, output_loading_info=True, add_pooling_layer=False)
        missing = sorted(report["missing_keys"])
    if missing:
        raise CheckpointError(f"{folder.name}: transformers finds no {listed(missing)} for its {cls.__name__}")
    if getattr(model.config, "mask_ratio", None):
        model.config.mask_ratio = 0.0
    return model.eval().requires_grad_(False)


def _class(folder: Path) -> Any:
    import transformers

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    names = config.get("architectures") or []
    if not names:
        parsed = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        return transformers.AutoModel._model_mapping[type(parsed)]
    kind = config.get("model_type")
    found: Any = _find_class(names[0], kind) if isinstance(names[0], str) else None
    known = isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)
    if not known or getattr(found.config_class, "model_type", None) != kind:
        raise CheckpointError(
            f"{folder.name}: architectures = {shown(names)} in its config.json: transformers "
            f"{transformers.__version__} has no such model of type {shown(kind)}"
        )
    return found


def _find_class(name: str, kind: Any) -> Any:
    """A class of transformers by its name, also one that it does not export; None where it has none."""
    import transformers

    config = transformers.CONFIG_MAPPING.get(kind)
    if hasattr(transformers, name) or config is None:
        return getattr(transformers, name, None)
    # The module is the one that transformers has for this type: nothing that a folder names is imported.
    module = config.__module__.replace(".configuration_", ".modeling_")
    return getattr(importlib.import_module(module), name, None)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without its bar and its report of what was loaded."""
    from transformers.utils import logging

    shown_bar, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shown_bar:
            logging.enable_progress_bar()


PACKAGE = Package("transformers", "transformers>=5.17,<6", _names, _open)
