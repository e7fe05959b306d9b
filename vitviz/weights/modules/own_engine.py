"""Copies a module's weights into vitviz's own network, which is faster, and compares it with the module."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from vitviz.attention.precision import precise
from vitviz.attention.trace import AttentionTrace
from vitviz.errors.kinds import ConfigError, ImageError, MethodError, VitvizError
from vitviz.models.network import Network, NetworkConfig
from vitviz.models.vit import VisionTransformer
from vitviz.weights.formats.tensors import tensors_in_memory
from vitviz.weights.metadata.settings import Settings
from vitviz.weights.metadata.sidecars import Sidecars
from vitviz.weights.model import Model
from vitviz.weights.modules.modifications import ChangeGuard, find_modification
from vitviz.weights.modules.unwrap import package_of
from vitviz.weights.overrides import Stated
from vitviz.weights.read import read_tensors

# Allowed difference of both networks, relative to the largest absolute value, or to 1 if that is larger.
TOLERANCE = 1e-5
# Our names of activations by their classes, and of poolings by their names in packages.
ACTIVATIONS = {"GELU": "gelu", "QuickGELU": "quick gelu", "GELUTanh": "gelu tanh", "SiLU": "silu", "ReLU": "relu"}
POOLS = {"token": "cls", "tok": "cls", "avg": "mean", "map": "attention"}


class _Disagreement(ConfigError):
    """vitviz's own network has other layers, heads or tokens than the module seems to have."""


def with_engine(module: nn.Module, watched: Model, engine: str | None, has_forward: bool) -> Model:
    """The model with the requested network; by default with vitviz's own network if that agrees with the module.

    The card states the network and the reason.

    Args:
        module: of any package.
        watched: the model of the watched module.
        engine: one of :data:`vitviz.weights.model.ENGINES`; None for the default.
        has_forward: whether the user passed a function that calls the module.

    Raises:
        ConfigError: ``engine`` is ``"own"``, and vitviz has no network for the module, or the numbers differ; or it is
            None, and that network has other layers, heads or tokens than were watched.
    """
    reason = "as requested"
    if engine != "module":
        modification = "forward=… calls it in a way of its own" if has_forward else find_modification(module)
        try:
            if modification is not None:
                raise ConfigError(modification)
            return _own_model(module, watched)
        except VitvizError as error:
            if engine == "own":
                raise ConfigError(f"engine 'own': {error}; expected engine = 'module'") from None
            if isinstance(error, _Disagreement):
                raise ConfigError(f"{watched.name}: {error}; engine = 'module' shows what was watched") from None
            reason = str(error)
    return replace(watched, card={**watched.card, "engine": f"the module itself: {reason}"})


def _own_model(module: nn.Module, watched: Model) -> Model:
    """The model with a copy of the module's weights in vitviz's own network.

    Both run on noise of two sizes; logits, features and every attention weight must agree within :data:`TOLERANCE`.

    Raises:
        VitvizError: vitviz has no network for the module, or the two differ.
    """
    network = _copy_weights(module, watched)
    network.to(watched.network.device)
    network.config = replace(network.config, probability=watched.network.config.probability)
    card = {**watched.card, "engine": "vitviz's own network, with a copy of the module's weights"}
    model = replace(watched, network=network, card=card)
    ours, theirs = network.config, watched.network.config
    sizes = [
        (each.image_height, each.image_width, each.patch_height, each.patch_width, each.channels, each.prefix)
        for each in (ours, theirs)
    ]
    if sizes[0] != sizes[1]:
        is_as_large = sizes[0][:-1] == sizes[1][:-1] and len(ours.prefix) != len(theirs.prefix)
        raise (_Disagreement if is_as_large else ConfigError)(
            f"its own network is made for other images or tokens, {sizes[0]}, than the module, {sizes[1]}"
        )
    generator = torch.Generator().manual_seed(0)
    for height in (theirs.image_height, theirs.image_height + theirs.patch_height):
        shape = (1, theirs.channels, height, theirs.image_width)
        pixels = torch.randn(shape, generator=generator, dtype=torch.float32).to(network.device)
        try:
            with torch.no_grad():
                _compare(network, watched.network, pixels, bool(watched.labels))
        except ImageError:
            # Some modules accept only images of their own size.
            if height == theirs.image_height:
                raise
    network.guard = ChangeGuard.watch(module, watched.name)
    return model


def _compare(copied: VisionTransformer, watched: Network, pixels: torch.Tensor, has_classes: bool) -> None:
    """Compare logits, features and attention of both networks.

    Raises:
        ConfigError: a number differs.
        ImageError: the module does not accept the image.
    """
    their_encoding, our_encoding = watched.encode(pixels), copied.encode(pixels)
    our_trace, their_trace = our_encoding.traces[0], their_encoding.traces[0]
    ours, theirs = (
        f"{trace.layers} layers of {trace.heads} heads among {trace.layout.token_count} tokens"
        for trace in (our_trace, their_trace)
    )
    if ours != theirs:
        raise _Disagreement(f"vitviz's network of its family has {ours}, and the module was seen to have {theirs}")
    if has_classes:
        _require_close("logits", our_encoding.logits, their_encoding.logits)
    try:
        features = watched.output(pixels, "features")
    except MethodError:
        # The module does not return features.
        pass
    else:
        _require_close("features", copied.output(pixels, "features"), features)
    if (our_trace.pooled is None) != (their_trace.pooled is None):
        raise ConfigError("one of its own network and the module pools by attention")
    if our_trace.pooled is not None and their_trace.pooled is not None:
        _require_close("the pooling's attention", our_trace.pooled, their_trace.pooled)
    for layer in range(our_trace.layers):
        _check_layer(layer, our_trace, their_trace)


def _check_layer(layer: int, our_trace: AttentionTrace, their_trace: AttentionTrace) -> None:
    chunks = zip(our_trace.weights_in_chunks(layer), their_trace.weights_in_chunks(layer), strict=True)
    for (rows, ours), (their_rows, theirs) in chunks:
        assert rows == their_rows, "both traces have the same tokens"
        _require_close(f"attention of layer {layer}", ours, theirs)


def _require_close(quantity: str, ours: torch.Tensor, theirs: torch.Tensor) -> None:
    if ours.shape != theirs.shape:
        raise ConfigError(f"{quantity} of shape {tuple(ours.shape)}, the module's {tuple(theirs.shape)}")
    difference = float((precise(ours) - precise(theirs)).abs().max())
    # With `not <=`, NaN is refused, too.
    if not difference <= TOLERANCE * max(1.0, float(theirs.abs().max())):
        raise ConfigError(f"{quantity} differs from the module's by {difference:.2g}")


def _copy_weights(module: nn.Module, watched: Model) -> VisionTransformer:
    """vitviz's own network with the module's weights.

    Raises:
        VitvizError: vitviz has no network for its family.
    """
    name, tensors = watched.name, module.state_dict()
    if package_of(module) == "transformers":
        return _read_tensors(name, _tensors_as_saved(module), _transformers_config(module), {})
    config = _timm_config(module)
    try:
        return _read_tensors(name, tensors, None, _facts(module, watched.network.config))
    except VitvizError:
        if config is None:
            raise
        # The name of its architecture states more than its submodules.
        return _read_tensors(name, tensors, config, {})


def _read_tensors(
    name: str, tensors: Mapping[str, torch.Tensor], config: Settings | None, facts: dict[str, Any]
) -> VisionTransformer:
    sidecars = Sidecars() if config is None else Sidecars(config=config)
    reading = read_tensors(tensors_in_memory(name, tensors), sidecars, Stated.of(normalisation="half", **facts), name)
    return reading.model.own_network(name)


def _tensors_as_saved(module: nn.Module) -> dict[str, torch.Tensor]:
    """The tensors of a model of transformers by their names in its files, which may differ from those in memory."""
    try:
        from transformers.core_model_loading import revert_weight_conversion
    except ModuleNotFoundError:
        # transformers 4 has no such module: its networks of pictures have the same names in memory.
        return dict(module.state_dict())
    return dict(revert_weight_conversion(module, dict(module.state_dict())))


# What the files beside the weights of each package would state.


def _transformers_config(module: Any) -> Settings:
    config = json.loads(module.config.to_json_string(use_diff=True))
    return Settings({**config, "architectures": [type(module).__name__]}, "its config")


def _facts(module: Any, config: NetworkConfig) -> dict[str, Any]:
    """Facts that the weights of a module do not state: measured by watching it, and from its attributes and parts."""
    parts = list(module.modules())
    activations = (ACTIVATIONS.get(_activation_class(part)) for part in parts)
    is_after_pooling, pool = getattr(module, "final_ln_after_pool", None), getattr(module, "pool_type", None)
    facts = {
        "heads": config.heads,
        "activation": next(filter(None, activations), None),
        "norm_epsilon": next((part.eps for part in parts if isinstance(part, nn.LayerNorm)), None),
        # For a distilled model, the two classifiers determine the pooling.
        "pooling": None if hasattr(module, "dist_token") else POOLS.get(str(getattr(module, "global_pool", pool))),
        "final_norm": None if is_after_pooling is None else "after pooling" if is_after_pooling else "before pooling",
        "image_size": (config.image_height, config.image_width),
    }
    return {fact: value for fact, value in facts.items() if value is not None}


def _activation_class(part: nn.Module) -> str:
    return "GELUTanh" if getattr(part, "approximate", None) == "tanh" else type(part).__name__


def _timm_config(module: Any) -> Settings | None:
    """The name of the architecture, with the actual sizes of the module; None without a name."""
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
    entries = {"architecture": architecture, "num_classes": getattr(module, "num_classes", None)}
    return Settings({**entries, "model_args": arguments}, "what the module says")
