"""A module's weights in vitviz's own network, which is faster; held to the module itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from vitviz.attention.precision import precise
from vitviz.errors.kinds import ConfigError, VitvizError
from vitviz.models.own import own_network
from vitviz.weights.model import Model
from vitviz.weights.modules.unwrap import package_of
from vitviz.weights.read import read_checkpoint

ENGINES = ("module", "own")
# What both networks may differ by, as a part of the largest number or of 1.
TOLERANCE = 1e-5


def own_model(module: nn.Module, captured: Model) -> Model:
    """The same model with a copy of the module's weights in vitviz's own network.

    An image of noise goes through both: logits (or features) and every attention weight have to agree within 1e-5.

    Args:
        module: of timm or transformers, of a family that vitviz opens.
        captured: the module as it is captured.

    Raises:
        ConfigError: vitviz has no network of its own for it, or the two differ.
    """
    name = captured.name
    with TemporaryDirectory() as folder:
        try:
            _write(module, Path(folder))
            network = own_network(read_checkpoint(Path(folder), name, normalisation="half").model.network, name)
        except VitvizError as error:
            raise ConfigError(f"engine 'own': {error}; expected engine = 'module'") from None
    network.to(captured.network.device)
    pixels = torch.randn(
        1,
        captured.network.config.channels,
        captured.network.config.image_height,
        captured.network.config.image_width,
        generator=torch.Generator().manual_seed(0),
    ).to(captured.network.device)
    try:
        model = replace(captured, network=network, card={**captured.card, "engine": "vitviz's own network"})
    except ConfigError as error:
        raise ConfigError(f"engine 'own': {error}; expected engine = 'module'") from None
    ours, theirs = model.network.encode(pixels), captured.network.encode(pixels)
    one, other = ours.traces[0], theirs.traces[0]
    if one.layout != other.layout or one.layers != other.layers or one.heads != other.heads:
        raise ConfigError(f"engine 'own': {one} differs from the module's {other}; expected engine = 'module'")
    pairs = [(ours.logits, theirs.logits)] if captured.labels else []
    pairs += [(one.weights(layer), other.weights(layer)) for layer in range(one.layers)]
    for found, expected in pairs:
        difference = float((precise(found) - precise(expected)).abs().max())
        if not difference <= TOLERANCE * max(1.0, float(expected.abs().max())):
            raise ConfigError(
                f"engine 'own': its numbers differ from the module's by {difference:.2g}; expected engine = 'module'"
            )
    return model


def _write(module: nn.Module, folder: Path) -> None:
    """The module as a checkpoint of its package.

    Raises:
        ConfigError: its package writes none that vitviz reads.
    """
    package = package_of(module)
    save: Any = getattr(module, "save_pretrained", None)
    if package == "transformers" and callable(save):
        save(folder)
        return
    pretrained = getattr(module, "pretrained_cfg", None)
    if package != "timm" or not isinstance(pretrained, Mapping) or not pretrained.get("architecture"):
        raise ConfigError(f"a module of {package} is no checkpoint of timm or transformers")
    tensors = {key: tensor.detach().cpu().contiguous().clone() for key, tensor in module.state_dict().items()}
    save_file(tensors, folder / "model.safetensors")
    config = {"architecture": pretrained["architecture"], "num_classes": getattr(module, "num_classes", None)}
    (folder / "config.json").write_text(json.dumps({**config, "model_args": _timm_arguments(module)}))


def _timm_arguments(module: nn.Module) -> dict[str, Any]:
    """Sizes that a module of timm may have been made with, other than its architecture's."""
    blocks: Any = getattr(module, "blocks", ())
    attention = getattr(blocks[0], "attn", None) if len(blocks) else None
    found = {
        "depth": len(blocks) or None,
        "embed_dim": getattr(module, "embed_dim", None),
        "num_heads": getattr(attention, "num_heads", None),
        "img_size": getattr(getattr(module, "patch_embed", None), "img_size", None),
    }
    return {name: value for name, value in found.items() if value is not None}
