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
from tempfile import TemporaryDirectory
from typing import Any

import torch
from einops import rearrange
from PIL import Image

from vitviz.errors.kinds import CheckpointError
from vitviz.errors.messages import listing, quote
from vitviz.models.capture.outputs import primary_output
from vitviz.weights.formats.limits import default_bytes
from vitviz.weights.metadata.sidecars import Sidecars
from vitviz.weights.packages.allowance import BuildingAllowance, check_numbers
from vitviz.weights.packages.reference import Answer, Package, Size, as_mode, import_package, package_errors


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
    def module(self) -> torch.nn.Module:
        module: torch.nn.Module = self._tower
        return module

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
        if output is None and tokens is None:
            # What a head makes of the tokens, such as a map of depths.
            tokens = primary_output(found)
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


def saved_names(sidecars: Sidecars, name: str, file_bytes: int) -> dict[str, str]:
    """The names that transformers writes, by those that a model's tensors have in memory.

    Args:
        sidecars: with the configuration of the model, which is built without memory.
        name: of the checkpoint, for messages.
        file_bytes: of its weights.

    Returns:
        None of a model that is not transformers'; none of a tensor that is not written as it is.

    Raises:
        CheckpointError: transformers is not installed, or cannot build the model.
        LimitError: the model is too large for its file.
    """
    if _names(sidecars) is None:
        return {}
    import_package(PACKAGE, f"{name}: telling the names of its modules in memory", PACKAGE.extra)
    from transformers.core_model_loading import revert_weight_conversion

    check_numbers(sidecars.config, name, PACKAGE.files[0])
    with TemporaryDirectory(prefix="vitviz-", ignore_cleanup_errors=True) as parent:
        folder = Path(parent)
        (folder / PACKAGE.files[0]).write_text(json.dumps(_checked(sidecars.config, name)), encoding="utf-8")
        with package_errors(PACKAGE.name, f"cannot build {name}"), torch.device("meta"):
            with BuildingAllowance(name, default_bytes(file_bytes)):
                model: Any = _build(folder)
            tensors = dict(model.state_dict())
            places = {id(tensor): key for key, tensor in revert_weight_conversion(model, dict(tensors)).items()}
    return {key: places[id(tensor)] for key, tensor in tensors.items() if id(tensor) in places}


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
        return TransformersModel(_load(folder, "eager"), folder)


def _load(folder: Path, attention: str | None, ignore: Sequence[str] | None = None) -> Any:
    """The model of a folder.

    Args:
        folder: with configuration and weights.
        attention: how it attends; None for the way that is its own.
        ignore: patterns of keys of the file that it may not have; None for any.
    """
    cls = _class(folder)
    # The class is transformers' own: a folder's `auto_map`, which would name code of its own, is not read.
    options = {"local_files_only": True, "weights_only": True, "dtype": torch.float32}
    options |= {} if attention is None else {"attn_implementation": attention}
    options |= {} if ignore is None else {"use_safetensors": True}
    model, report = cls.from_pretrained(folder, **options, output_loading_info=True)
    missing = sorted(report["missing_keys"])
    if missing and all("pooler." in key for key in missing):
        # Without weights in the file it would be random.
        model, report = cls.from_pretrained(folder, **options, output_loading_info=True, add_pooling_layer=False)
        missing = sorted(report["missing_keys"])
    if missing:
        raise CheckpointError(f"{folder.name}: transformers finds no {listing(missing)} for its {cls.__name__}")
    surplus = sorted(report["unexpected_keys"])
    surplus = [key for key in surplus if not any(fnmatchcase(key, pattern) for pattern in ignore or ())]
    if ignore is not None and surplus:
        raise CheckpointError(
            f"{folder.name}: keys that transformers' {cls.__name__} does not have: {listing(surplus)}; ignore=[…] "
            "leaves out what you know not to matter"
        )
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
            f"{folder.name}: architectures = {quote(names)} in its config.json: transformers "
            f"{transformers.__version__} has no such model of type {quote(kind)}"
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


# How the model is run and where it was, which is said when it is loaded; what it returns beside its output.
UNREAD = (
    *("_attn_implementation", "_attn_implementation_internal", "_attn_implementation_autoset", "attn_implementation"),
    *("_name_or_path", "name_or_path", "_commit_hash", "dtype", "torch_dtype", "return_dict", "use_return_dict"),
    *("output_attentions", "output_hidden_states", "transformers_version"),
)
# Entries that make code or weights of elsewhere part of the model, and what they ask for.
ELSEWHERE = {
    "auto_map": "code of its own, which vitviz never runs",
    "quantization_config": "quantised weights, in which attention is not what the module's type says",
    "use_pretrained_backbone": "weights of another checkpoint",
}


def _checked(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A configuration of one of transformers' own classes, with no weights but the file's."""

    def walk(value: Any) -> Any:
        if isinstance(value, Mapping):
            for key, what in ELSEWHERE.items():
                if value.get(key):
                    raise CheckpointError(f"{name}: {key} in its config.json asks for {what}")
            return {key: walk(each) for key, each in value.items() if key not in UNREAD}
        return [walk(each) for each in value] if isinstance(value, list) else value

    return dict(walk(config))


def _build(folder: Path) -> torch.nn.Module:
    cls = _class(folder)
    with _quiet():
        model: torch.nn.Module = cls(cls.config_class.from_pretrained(folder, local_files_only=True))
    return model


def _load_module(folder: Path, ignore: Sequence[str]) -> TransformersModel:
    with _quiet():
        model = _load(folder, None, ignore)
    for parameter in model.parameters():
        # A file that is cut while its numbers are mapped into memory would end the process.
        parameter.data = parameter.data.clone()
    return TransformersModel(model)


PACKAGE = Package(
    "transformers",
    "transformers>=5.17,<6",
    _names,
    _open,
    "transformers",
    ("config.json", "model.safetensors"),
    _checked,
    _build,
    _load_module,
)
