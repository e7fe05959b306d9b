"""Hugging Face transformers (Wolf et al. 2020): folders with a ``config.json`` that has a ``model_type``."""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from einops import rearrange
from PIL import Image

from vitviz.errors.kinds import CheckpointError
from vitviz.errors.messages import listing, quote
from vitviz.models.capture.outputs import primary_output
from vitviz.weights.metadata.sidecars import Sidecars
from vitviz.weights.packages.reference import (
    Answer,
    Package,
    ReferenceModel,
    Size,
    as_mode,
)
from vitviz.weights.packages.timm import CLASS_ENTRIES, TimmModel
from vitviz.weights.suggestions import ignore_argument


def _find_mention(sidecars: Sidecars) -> str | None:
    return "model_type in config.json" if "model_type" in sidecars.config else None


@dataclass(frozen=True, eq=False)
class TransformersModel:
    """A Vision Transformer of transformers, alone or as the tower of a model of images and text.

    Args:
        model: a ``PreTrainedModel``, with eager attention.
        folder: with the file of its image processor; None for a model without one.
    """

    model: Any
    folder: Path | None = None

    @property
    def title(self) -> str:
        import transformers

        return f"{type(self.model).__name__} of transformers {transformers.__version__}"

    @property
    def module(self) -> torch.nn.Module:
        module: torch.nn.Module = self._tower
        return module

    @property
    def size(self) -> Size | None:
        size = getattr(self._vision, "image_size", None)
        return None if size is None else _sides(size)

    def preprocess(self, image: Image.Image) -> torch.Tensor:
        from transformers import AutoImageProcessor

        # transformers selects the class: one with torchvision, if that is installed.
        with _silence():
            processor = AutoImageProcessor.from_pretrained(self.folder, local_files_only=True, trust_remote_code=False)
        channels = getattr(self._vision, "num_channels", 3)
        inputs = processor(as_mode(image, channels), return_tensors="pt")
        if "spatial_shapes" in inputs:
            return _pixels_of_patches(inputs, self._vision.patch_size)
        return torch.as_tensor(inputs["pixel_values"])

    def answer(self, pixels: torch.Tensor) -> Answer:
        tower = self._tower
        inputs = self._inputs(pixels)
        parameters = inspect.signature(tower.forward).parameters
        if "interpolate_pos_encoding" in parameters and self.size != tuple(pixels.shape[-2:]):
            inputs["interpolate_pos_encoding"] = True
        result = tower(**inputs, output_attentions=True)
        output = next((result[name] for name in OUTPUTS if result.get(name) is not None), None)
        projection = next(
            (module.visual_projection for module in self.model.modules() if _has_projection(module)), None
        )
        if output is not None and tower is not self.model and projection is not None:
            output = projection(output)
        tokens = result.get("last_hidden_state")
        if output is None and tokens is None:
            # The output of another head, such as a depth map.
            tokens = primary_output(result)
        weights = tuple(result.attentions) if result.get("attentions") and result.attentions[0] is not None else ()
        return Answer(output, weights, tokens if output is None else None)

    @property
    def _vision(self) -> Any:
        """The configuration of the vision tower."""
        names = ("encoder",) if self.model.config.model_type == CAPTIONER else ("vision_config", "image_config")
        configs = (getattr(self.model.config, name, None) for name in names)
        return next((config for config in configs if config is not None), self.model.config)

    @property
    def _tower(self) -> Any:
        """The vision tower, without heads for pretraining and without text towers."""
        from transformers import PreTrainedModel

        if type(self.model).__name__.endswith(("ForImageClassification", "WithTeacher")):
            return self.model
        vision = self._vision
        if vision is self.model.config:
            # Models for pretraining have heads that reconstruct pixels; their encoder is the tower.
            return self.model.base_model if "For" in type(self.model).__name__ else self.model
        submodules = (submodule for submodule in self.model.modules() if isinstance(submodule, PreTrainedModel))
        tower = next((submodule for submodule in submodules if type(submodule.config) is type(vision)), None)
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
            # MAE orders patches by this noise; ascending noise keeps their order.
            height, width = _sides(config.patch_size)
            patches = (pixels.shape[-2] // height) * (pixels.shape[-1] // width)
            return {"pixel_values": pixels, "noise": torch.arange(patches).float().expand(len(pixels), -1)}
        return {"pixel_values": pixels}


# The model_type of an encoder of pictures with a decoder of texts.
CAPTIONER = "vision-encoder-decoder"
OUTPUTS = ("logits", "image_embeds", "pooler_output")


def _has_projection(module: Any) -> bool:
    """Whether a module has a projection of images into the space of texts."""
    return isinstance(getattr(module, "visual_projection", None), torch.nn.Linear)


def tensors_as_saved(model: Any) -> dict[str, torch.Tensor]:
    """A model's tensors by the names in files of transformers, which may differ from those in memory."""
    return _by_saved_names(model, dict(model.state_dict()))


def _by_saved_names(model: Any, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    try:
        from transformers.core_model_loading import revert_weight_conversion
    except ModuleNotFoundError:
        # transformers 4 has no such module: its networks of pictures have the same names in memory.
        return tensors
    return dict(revert_weight_conversion(model, dict(tensors)))


def _sides(value: Any) -> Size:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def _pixels_of_patches(inputs: Any, patch: int) -> torch.Tensor:
    """The image that NaFlex's patches form."""
    rows, columns = inputs["spatial_shapes"][0].tolist()
    order = "1 (row column) (height width channel) -> 1 channel (row height) (column width)"
    patches = inputs["pixel_values"][:, : rows * columns]
    return rearrange(patches, order, row=rows, column=columns, height=patch, width=patch)


def _open(folder: Path, size: Size | None) -> ReferenceModel:
    with _silence():
        model = _load(folder, "eager")
    return _wrapped_timm(model) or TransformersModel(model, folder)


def _wrapped_timm(model: Any) -> TimmModel | None:
    """The model of timm in transformers' wrapper, with the entries of timm's configuration; None for another model."""
    inner, config = getattr(model, "timm_model", None), model.config
    if inner is None:
        return None
    stated = {name: value for name in CLASS_ENTRIES if (value := getattr(config, name, None))}
    # As its image processor does, leave entries that the configuration omits to timm's defaults for all models.
    inner.pretrained_cfg = {**(getattr(config, "pretrained_cfg", None) or inner.pretrained_cfg), **stated}
    return TimmModel(inner)


def _load(folder: Path, attention: str | None, ignore: Sequence[str] | None = None) -> Any:
    """The model of a folder.

    Args:
        folder: with configuration and weights.
        attention: implementation of attention; None for the default.
        ignore: patterns of surplus keys in the file that are allowed; None allows all.
    """
    cls = _model_class(folder)
    # A folder's `auto_map`, which names code of its own, is never read: the class is one of transformers.
    options = {"local_files_only": True, "weights_only": True, _dtype_argument(): torch.float32}
    options |= {} if attention is None else {"attn_implementation": attention}
    options |= {} if ignore is None else {"use_safetensors": True}
    model, report = cls.from_pretrained(folder, **options, output_loading_info=True)
    missing = sorted(report["missing_keys"])
    if missing and all("pooler." in key for key in missing):
        # A pooler without weights in the file would be random.
        model, report = cls.from_pretrained(folder, **options, output_loading_info=True, add_pooling_layer=False)
        missing = sorted(report["missing_keys"])
    if missing:
        raise CheckpointError(f"{folder.name}: transformers finds no {listing(missing)} for its {cls.__name__}")
    surplus = sorted(report["unexpected_keys"])
    surplus = [key for key in surplus if not any(fnmatchcase(key, pattern) for pattern in ignore or ())]
    if ignore is not None and surplus:
        raise CheckpointError(
            f"{folder.name}: keys that transformers' {cls.__name__} does not have: {listing(surplus)}; "
            f"{ignore_argument(surplus, model.state_dict())} leaves them out, where you know that they do not matter"
        )
    if getattr(model.config, "mask_ratio", None):
        model.config.mask_ratio = 0.0
    return model.eval().requires_grad_(False)


def _dtype_argument() -> str:
    """The name of the argument of ``from_pretrained``, which the releases of transformers 4 do not all have."""
    import transformers

    return "torch_dtype" if transformers.__version__.startswith("4.") else "dtype"


def _model_class(folder: Path) -> Any:
    import transformers

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    names = config.get("architectures") or []
    if not names:
        parsed = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        return transformers.AutoModel._model_mapping[type(parsed)]
    model_type = config.get("model_type")
    cls: Any = _find_model_class(names[0], model_type) if isinstance(names[0], str) else None
    is_model_class = isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel)
    if not is_model_class or getattr(cls.config_class, "model_type", None) != model_type:
        raise CheckpointError(
            f"{folder.name}: architectures = {quote(names)} in its config.json: transformers "
            f"{transformers.__version__} has no such model of type {quote(model_type)}"
        )
    return cls


def _find_model_class(name: str, model_type: Any) -> Any:
    """A class of transformers by its name, exported or not; None if it does not exist."""
    import transformers

    if hasattr(transformers, name) or model_type not in transformers.CONFIG_MAPPING:
        return getattr(transformers, name, None)
    # This module belongs to transformers; nothing that a folder names is imported.
    module = transformers.CONFIG_MAPPING[model_type].__module__.replace(".configuration_", ".modeling_")
    return getattr(importlib.import_module(module), name, None)


@contextmanager
def _silence() -> Iterator[None]:
    """Silence the progress bar and the report of loading."""
    from transformers.utils import logging

    had_bar, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if had_bar:
            logging.enable_progress_bar()


# Entries about how and from where a model is loaded, and what it returns besides its output; not needed here.
UNUSED_ENTRIES = (
    *("_attn_implementation", "_attn_implementation_internal", "_attn_implementation_autoset", "attn_implementation"),
    *("_name_or_path", "name_or_path", "_commit_hash", "dtype", "torch_dtype", "return_dict", "use_return_dict"),
    *("output_attentions", "output_hidden_states", "transformers_version"),
)
# Entries that bring in other code or weights, with what they ask for.
FORBIDDEN_ENTRIES = {
    "auto_map": "code of its own, which vitviz never runs",
    "quantization_config": "quantised weights, in which attention is not what the module's type says",
    "use_pretrained_backbone": "weights of another checkpoint",
}


def _check_config(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The configuration, if it needs only transformers' own classes and the weights in the file."""

    def walk(value: Any) -> Any:
        if isinstance(value, Mapping):
            for key, problem in FORBIDDEN_ENTRIES.items():
                if value.get(key):
                    raise CheckpointError(f"{name}: {key} in its config.json asks for {problem}")
            return {key: walk(each) for key, each in value.items() if key not in UNUSED_ENTRIES}
        return [walk(each) for each in value] if isinstance(value, list) else value

    return dict(walk(config))


def _build(folder: Path) -> torch.nn.Module:
    cls = _model_class(folder)
    with _silence():
        model: torch.nn.Module = cls(cls.config_class.from_pretrained(folder, local_files_only=True))
    return model


def _load_module(folder: Path, ignore: Sequence[str]) -> ReferenceModel:
    with _silence():
        model = _load(folder, None, ignore)
    for parameter in model.parameters():
        # Copy memory-mapped weights: truncating the file would otherwise end the process.
        parameter.data = parameter.data.clone()
    return _wrapped_timm(model) or TransformersModel(model)


PACKAGE = Package(
    "transformers",
    "transformers>=5.17",
    _find_mention,
    _open,
    "transformers",
    ("config.json", "model.safetensors"),
    _check_config,
    _build,
    _load_module,
)
