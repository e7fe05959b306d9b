"""vitviz's own format: one safetensors file with the configuration, preprocessing and labels in its header."""

from __future__ import annotations

import json
import os
import reprlib
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, BinaryIO

import torch

from vitviz.attention.memory import enough_memory
from vitviz.errors.arguments import instance, named_arguments
from vitviz.errors.kinds import CheckpointError, ConfigError
from vitviz.errors.messages import several
from vitviz.images.preprocessing import Preprocessing
from vitviz.models.config import ViTConfig
from vitviz.models.vit import VisionTransformer
from vitviz.system.atomic import atomic_write
from vitviz.weights.formats.tensors import WeightFile
from vitviz.weights.model import Model
from vitviz.weights.overrides import check_bytes

FORMAT = "vitviz 1"
HEADER = ("format", "config", "preprocessing", "labels", "card")
DTYPE_NAMES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
DTYPES = tuple(str(dtype)[6:] for dtype in DTYPE_NAMES)
# Prefix of tensors that earlier versions wrote and none reads: a detector of pictures unlike the training images.
DETECTOR = "ood_detector."


@named_arguments(ConfigError)
def save_checkpoint(path: str | os.PathLike[str], model: Model) -> None:
    """Write a model as one safetensors file. If this fails, an existing file stays as it was.

    Raises:
        ConfigError: ``model`` is not a :class:`Model`, or the file cannot be written.

    >>> vitviz.save_checkpoint("mine.safetensors", model)
    >>> vitviz.load("mine.safetensors").labels == model.labels
    True
    """
    instance("model", model, Model, "vitviz.load()")
    with atomic_write(path) as stream:
        write_checkpoint(stream, model)


def write_checkpoint(stream: BinaryIO, model: Model) -> None:
    """Write a model to an open file, with extra memory for one tensor only."""
    metadata, tensors = metadata_of(model), tensors_of(model)
    # The safetensors format: https://github.com/huggingface/safetensors, "Format".
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.nbytes
        header[name] = {
            "dtype": DTYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    header_bytes = json.dumps(header).encode()
    # Padding aligns memory-mapped tensors like those that torch allocates.
    header_bytes += b" " * (-(len(header_bytes) + 8) % 64)
    stream.write(len(header_bytes).to_bytes(8, "little") + header_bytes)
    for tensor in tensors.values():
        stream.write(bytes_of(tensor))


def metadata_of(model: Model) -> dict[str, str]:
    """What the header of a model's checkpoint says beside its tensors."""
    network = model.own_network(f"{model.name} as a checkpoint")
    return {
        "format": FORMAT,
        "config": json.dumps(asdict(network.config)),
        "preprocessing": json.dumps(model.preprocessing.to_dict()),
        "labels": json.dumps(model.labels),
        "card": json.dumps(model.card),
    }


def tensors_of(model: Model) -> dict[str, torch.Tensor]:
    """The tensors of a model's checkpoint, by name."""
    return dict(model.network.state_dict())


def bytes_of(tensor: torch.Tensor) -> Any:
    """The bytes of a tensor, without a copy where it is contiguous."""
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()


def read_native(file: WeightFile, name: str | None = None, max_bytes: int | None = None) -> Model:
    """The model in a file that :func:`save_checkpoint` wrote.

    Args:
        file: with its tensors.
        name: of the model; by default, the name of the file.
        max_bytes: memory that its network may take; None for any.

    Raises:
        CheckpointError: the file is not a checkpoint in vitviz's format or is damaged, or its tensors are not exactly
            those of its configuration.
        LimitError: the network takes more memory than is allowed or free.
    """
    if file.metadata.get("format") != FORMAT:
        stated = reprlib.repr(file.metadata["format"]) if "format" in file.metadata else "none"
        raise CheckpointError(f"{file.name}: format {stated} in its header; expected {FORMAT!r}")
    model = _read_header(file.metadata, name or file.path.stem, file.name)
    # Compare shapes before allocating anything of the size that the header claims.
    stored = {key: tensor for key, tensor in file.groups[""].items() if not key.startswith(DETECTOR)}
    _check_tensors(stored, model, file.name)
    check_bytes(file.name, stored.values(), max_bytes)
    with enough_memory(file.name, "model"):
        tensors = {key: file.read("", key) for key in stored}
    return _with_tensors(model, tensors, file.name)


def _with_tensors(model: Model, tensors: dict[str, torch.Tensor], file: str) -> Model:
    """A model with tensors in place of those on the meta device."""
    network = model.own_network(file)
    network.load_state_dict(tensors, assign=True)
    network.requires_grad_(False)
    return model


def _read_header(header: Mapping[str, str], name: str, file: str) -> Model:
    """The model that a header describes, with tensors on the meta device."""
    try:
        entries: dict[str, Any] = {entry: json.loads(header[entry]) for entry in HEADER if entry != "format"}
        config, labels, card = _read_config(entries["config"]), entries["labels"], entries["card"]
        if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
            raise ConfigError(f"labels = {reprlib.repr(labels)}: expected a list of names")
        if not isinstance(card, dict) or not all(isinstance(text, str) for text in card.values()):
            raise ConfigError(f"card = {reprlib.repr(card)}: expected texts by name")
        preprocessing = Preprocessing.from_dict(entries["preprocessing"])
        with torch.device("meta"):
            network = VisionTransformer(config).eval()
        return Model(name, network, preprocessing, tuple(labels), card)
    except KeyError as error:
        raise CheckpointError(f"{file}: no {error} in its header; expected {', '.join(HEADER)}") from None
    # The last two: JSON that is nested too deeply, and sizes that no tensor can have.
    except (TypeError, ValueError, AttributeError, ConfigError, RuntimeError, OverflowError) as error:
        reason = textwrap.shorten(str(error), 400, placeholder=" …")
        raise CheckpointError(f"{file}: its header does not describe a model ({reason})") from None


def _read_config(values: Any) -> ViTConfig:
    if not isinstance(values, dict):
        raise ConfigError(f"config = {reprlib.repr(values)}: expected its fields by name")
    names = [field.name for field in fields(ViTConfig)]
    unknown = [key for key in values if key not in names]
    if unknown:
        raise ConfigError(f"config: unknown field {reprlib.repr(unknown[0])}; expected {', '.join(names)}")
    return ViTConfig(**values)


def _check_tensors(tensors: Mapping[str, torch.Tensor], model: Model, name: str) -> None:
    """Refuse shapes and types that are not those of a model."""
    network = model.own_network(name)
    expected = {key: tuple(tensor.shape) for key, tensor in network.state_dict().items()}
    wrong = []
    for key in sorted(expected.keys() & tensors.keys()):
        shape, dtype = tuple(tensors[key].shape), str(tensors[key].dtype)[6:]
        if shape != expected[key] or dtype not in DTYPES:
            wrong.append(f"{key} is {dtype} {shape}, expected {expected[key]} in {' or '.join(DTYPES)}")
    missing, surplus = sorted(expected.keys() - tensors.keys()), sorted(tensors.keys() - expected.keys())
    problems = (("missing: ", missing), ("surplus: ", surplus), ("", wrong))
    found = "; ".join(kind + several(keys) for kind, keys in problems if keys)
    if found:
        raise CheckpointError(f"{name}: the tensors are not those of its configuration ({found})")
