"""A module's weights in vitviz's own network, which is faster; held to the module itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from vitviz.attention.precision import precise
from vitviz.attention.trace import AttentionTrace
from vitviz.errors.kinds import CheckpointError, ConfigError, ImageError, MethodError, VitvizError
from vitviz.models.network import Network
from vitviz.models.require import require_vit
from vitviz.models.vit import VisionTransformer
from vitviz.weights.formats.files import tensors_in_memory
from vitviz.weights.metadata.settings import Settings
from vitviz.weights.metadata.sidecars import Sidecars
from vitviz.weights.model import Model
from vitviz.weights.modules.plainness import Unchanged, foreign_part
from vitviz.weights.modules.unwrap import package_of
from vitviz.weights.overrides import check_overrides
from vitviz.weights.packages.transformers import tensors_as_saved
from vitviz.weights.read import read_weights

ENGINES = ("own", "module")
# What both networks may differ by, as a part of the largest number or of 1.
TOLERANCE = 1e-5
# How the packages call what their modules have.
ACTIVATIONS = {"GELU": "gelu", "QuickGELU": "quick gelu", "GELUTanh": "gelu tanh", "SiLU": "silu", "ReLU": "relu"}
POOLS = {"token": "cls", "tok": "cls", "avg": "mean", "map": "attention"}


def with_engine(module: nn.Module, captured: Model, engine: str | None, has_forward: bool) -> Model:
    """The model with the network that is asked for; else with vitviz's own where that is the same.

    The card says which, and why.

    Args:
        module: of any package.
        captured: the same, as it is captured.
        engine: one of :data:`ENGINES`; None for the choice.
        has_forward: whether the user says how the module is called.

    Raises:
        ConfigError: ``"own"`` is asked for, and there is no such network, or its numbers are others.
    """
    reason = "as asked for"
    if engine != "module":
        foreign = "forward=… calls it in a way of its own" if has_forward else foreign_part(module)
        try:
            if foreign is not None:
                raise ConfigError(foreign)
            return _own_model(module, captured)
        except VitvizError as error:
            if engine == "own":
                raise ConfigError(f"engine 'own': {error}; expected engine = 'module'") from None
            reason = str(error)
    return replace(captured, card={**captured.card, "engine": f"the module itself: {reason}"})


def _own_model(module: nn.Module, captured: Model) -> Model:
    """The model with a copy of the module's weights in vitviz's own network.

    Images of noise of two sizes go through both: logits, features and every attention weight have to agree within
    :data:`TOLERANCE`.

    Raises:
        VitvizError: vitviz has no network of its own for it, or the two differ.
    """
    network = _copied(module, captured.name)
    network.to(captured.network.device)
    card = {**captured.card, "engine": "vitviz's own network, with a copy of the module's weights"}
    model = replace(captured, network=network, card=card)
    ours, theirs = network.config, captured.network.config
    sizes = [
        (each.image_height, each.image_width, each.patch_height, each.patch_width, each.channels, each.prefix)
        for each in (ours, theirs)
    ]
    if sizes[0] != sizes[1]:
        raise ConfigError(
            f"its own network is made for other images or tokens, {sizes[0]}, than the module, {sizes[1]}"
        )
    generator = torch.Generator().manual_seed(0)
    for height in (theirs.image_height, theirs.image_height + theirs.patch_height):
        pixels = torch.randn(1, theirs.channels, height, theirs.image_width, generator=generator).to(network.device)
        try:
            with torch.no_grad():
                _compare(network, captured.network, pixels, bool(captured.labels))
        except ImageError:
            # The module takes no other size than its own.
            if height == theirs.image_height:
                raise
    network.guard = Unchanged.since_now(module, captured.name)
    return model


def _compare(own: VisionTransformer, captured: Network, pixels: torch.Tensor, has_classes: bool) -> None:
    """Hold both networks to each other.

    Raises:
        ConfigError: a number differs.
        ImageError: the module does not take the image.
    """
    theirs, ours = captured.encode(pixels), own.encode(pixels)
    one, other = ours.traces[0], theirs.traces[0]
    if (one.layout, one.layers, one.heads) != (other.layout, other.layers, other.heads):
        raise ConfigError(f"its own network's trace is {one}, the module's {other}")
    if has_classes:
        _check("logits", ours.logits, theirs.logits)
    try:
        features = captured.output(pixels, "features")
    except MethodError:
        # The module does not say them.
        pass
    else:
        _check("features", own.output(pixels, "features"), features)
    if (one.pooled is None) != (other.pooled is None):
        raise ConfigError("one of its own network and the module pools by attention")
    if one.pooled is not None and other.pooled is not None:
        _check("the pooling's attention", one.pooled, other.pooled)
    for layer in range(one.layers):
        _check_layer(layer, one, other)


def _check_layer(layer: int, one: AttentionTrace, other: AttentionTrace) -> None:
    chunks = zip(one.weights_in_chunks(layer), other.weights_in_chunks(layer), strict=True)
    for (rows, ours), (other_rows, theirs) in chunks:
        assert rows == other_rows, "both traces have the same tokens"
        _check(f"attention of layer {layer}", ours, theirs)


def _check(what: str, ours: torch.Tensor, theirs: torch.Tensor) -> None:
    if ours.shape != theirs.shape:
        raise ConfigError(f"{what} of shape {tuple(ours.shape)}, the module's {tuple(theirs.shape)}")
    difference = float((precise(ours) - precise(theirs)).abs().max())
    # Written so that a NaN is refused, too.
    if not difference <= TOLERANCE * max(1.0, float(theirs.abs().max())):
        raise ConfigError(f"{what} differs from the module's by {difference:.2g}")


def _copied(module: nn.Module, name: str) -> VisionTransformer:
    """vitviz's own network with the module's weights.

    Raises:
        VitvizError: its family is none that vitviz has a network for.
    """
    package = package_of(module)
    tensors: Mapping[str, torch.Tensor] = module.state_dict()
    if package == "transformers":
        return _read(name, tensors_as_saved(module), _transformers_config(module), {})
    if package == "torchvision":
        return _read(name, tensors, None, {"heads": _heads(module)})
    if package == "open_clip":
        return _read(name, tensors, None, _open_clip_facts(module))
    config = _timm_config(module)
    try:
        return _read(name, tensors, None, _timm_facts(module))
    except VitvizError:
        if config is None:
            raise
        # Its architecture's name says more than its parts do.
        return _read(name, tensors, config, {})


def _read(
    name: str, tensors: Mapping[str, torch.Tensor], config: Settings | None, facts: dict[str, Any]
) -> VisionTransformer:
    options: dict[str, Any] = check_overrides({"normalisation": "half", **facts})
    sidecars = Sidecars() if config is None else Sidecars(config=config)
    return require_vit(read_weights(tensors_in_memory(name, tensors), sidecars, name, **options).model.network, name)


# What a folder of each package would say beside the weights.


def _transformers_config(module: Any) -> Settings:
    written = json.loads(module.config.to_json_string(use_diff=True))
    return Settings({**written, "architectures": [type(module).__name__]}, "its config")


def _timm_facts(module: Any) -> dict[str, Any]:
    """What the weights of a module of timm leave open, as its parts have it."""
    block = next(iter(getattr(module, "blocks", ())), None)
    # Its two classifiers say how it pools.
    is_distilled = hasattr(module, "dist_token")
    facts = {
        "heads": getattr(getattr(block, "attn", None), "num_heads", None),
        "activation": ACTIVATIONS.get(_activation(block)),
        "norm_epsilon": getattr(getattr(block, "norm1", None), "eps", None),
        "pooling": None if is_distilled else POOLS.get(str(getattr(module, "global_pool", None))),
        "image_size": getattr(getattr(module, "patch_embed", None), "img_size", None),
    }
    return {fact: value for fact, value in facts.items() if value is not None}


def _activation(block: Any) -> str:
    """The class of what the MLP of a block of timm's applies; empty where there is none."""
    found = getattr(getattr(block, "mlp", None), "act", None)
    if isinstance(found, nn.GELU) and found.approximate == "tanh":
        return "GELUTanh"
    return "" if found is None else type(found).__name__


def _timm_config(module: Any) -> Settings | None:
    """The architecture, with the sizes that the module may have been made with instead; None where it has no name."""
    pretrained = getattr(module, "pretrained_cfg", None)
    architecture = pretrained.get("architecture") if isinstance(pretrained, Mapping) else None
    if not architecture:
        return None
    blocks: Any = getattr(module, "blocks", ())
    attention = getattr(blocks[0], "attn", None) if len(blocks) else None
    stated = {
        "depth": len(blocks) or None,
        "embed_dim": getattr(module, "embed_dim", None),
        "num_heads": getattr(attention, "num_heads", None),
        "img_size": getattr(getattr(module, "patch_embed", None), "img_size", None),
        "patch_size": getattr(getattr(module, "patch_embed", None), "patch_size", None),
        "global_pool": getattr(module, "global_pool", None),
    }
    arguments = {key: list(value) if isinstance(value, tuple) else value for key, value in stated.items()}
    arguments = {key: value for key, value in arguments.items() if value is not None}
    about = {"architecture": architecture, "num_classes": getattr(module, "num_classes", None)}
    return Settings({**about, "model_args": arguments}, "what the module says")


def _open_clip_facts(tower: Any) -> dict[str, Any]:
    """What a tower's weights leave open."""
    activation = type(next((part for name, part in tower.named_modules() if name.endswith("mlp.gelu")), None)).__name__
    if activation not in ACTIVATIONS or getattr(tower, "pool_type", None) not in POOLS:
        raise CheckpointError(f"a {type(tower).__name__} of open_clip with {activation}")
    return {
        "heads": _heads(tower),
        "activation": ACTIVATIONS[activation],
        "norm_epsilon": tower.ln_post.eps,
        "pooling": POOLS[tower.pool_type],
        "final_norm": "after pooling" if tower.final_ln_after_pool else "before pooling",
    }


def _heads(module: nn.Module) -> int:
    heads = next((part.num_heads for part in module.modules() if isinstance(part, nn.MultiheadAttention)), None)
    if heads is None:
        raise CheckpointError("it has no torch.nn.MultiheadAttention")
    return heads
