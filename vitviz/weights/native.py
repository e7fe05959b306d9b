"""vitviz's own format: one safetensors file with the configuration, preprocessing and labels in its header."""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from safetensors.torch import save

from vitviz.attention.memory import enough_memory
from vitviz.errors.arguments import instance, named_arguments
from vitviz.errors.kinds import CheckpointError, ConfigError
from vitviz.errors.messages import quote
from vitviz.images.preprocessing import Preprocessing
from vitviz.models.config import ViTConfig
from vitviz.models.vit import VisionTransformer
from vitviz.system.atomic import atomic_write
from vitviz.weights.formats.tensors import WeightFile
from vitviz.weights.model import Model

FORMAT = "vitviz 1"
HEADER = ("format", "config", "preprocessing", "labels", "card")
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
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.network.state_dict().items()}
    content = save(tensors, metadata_of(model))
    with atomic_write(path) as stream:
        stream.write(content)


def metadata_of(model: Model) -> dict[str, str]:
    """What the header of a model's checkpoint says beside its tensors."""
    network = model.own_network(f"{model.name} as a checkpoint")
    return {
        "format": FORMAT,
        "config": json.dumps(asdict(network.config)),
        "preprocessing": json.dumps(model.preprocessing.to_dict()),
        "labels": json.dumps(model.labels),
        "card": json.dumps(model.card),
        "assumptions": json.dumps(model.assumptions),
    }


def read_native(file: WeightFile, name: str | None = None) -> Model:
    """The model in a file that :func:`save_checkpoint` wrote.

    Args:
        file: with its tensors.
        name: of the model; by default, the name of the file.

    Raises:
        CheckpointError: the file is not a checkpoint in vitviz's format or is damaged, or its tensors are not exactly
            those of its configuration.
        LimitError: the network takes more memory than is free.
    """
    if file.metadata.get("format") != FORMAT:
        stated = quote(file.metadata["format"]) if "format" in file.metadata else "none"
        raise CheckpointError(f"{file.name}: format {stated} in its header; expected {FORMAT!r}")
    model = _read_header(file.metadata, name or file.path.stem, file.name)
    network = model.own_network(file.name)
    try:
        with enough_memory(file.name, "model"):
            stored = {key: file.read("", key) for key in file.groups[""] if not key.startswith(DETECTOR)}
            network.load_state_dict(stored, assign=True)
    except RuntimeError as error:
        found = textwrap.shorten(str(error), 400, placeholder=" …")
        raise CheckpointError(f"{file.name}: the tensors are not those of its configuration ({found})") from None
    network.requires_grad_(False)
    return model


def _read_header(header: Mapping[str, str], name: str, file: str) -> Model:
    """The model that a header describes, with tensors on the meta device."""
    try:
        entries: dict[str, Any] = {entry: json.loads(header[entry]) for entry in HEADER if entry != "format"}
        with torch.device("meta"):
            network = VisionTransformer(ViTConfig(**entries["config"])).eval()
        return Model(
            name,
            network,
            Preprocessing.from_dict(entries["preprocessing"]),
            tuple(entries["labels"]),
            entries["card"],
            # Files of earlier versions have none.
            assumptions=tuple(map(str, json.loads(header.get("assumptions", "[]")))),
        )
    except KeyError as error:
        raise CheckpointError(f"{file}: no {error} in its header; expected {', '.join(HEADER)}") from None
    # The last two: JSON that is nested too deeply, and sizes that no tensor can have.
    except (TypeError, ValueError, AttributeError, ConfigError, RuntimeError, OverflowError) as error:
        reason = textwrap.shorten(str(error), 400, placeholder=" …")
        raise CheckpointError(f"{file}: its header does not describe a model ({reason})") from None
