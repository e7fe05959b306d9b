"""Watched models in vitviz's own network, for what needs its weights: the page that runs them on a visitor's device.

One table says which module of timm or transformers has which of our weights. What comes out is compared with the
watched module, so that a network which the table does not describe is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitviz.errors.kinds import ConfigError, UnknownFamilyError, VitvizError
from vitviz.models.vit import VisionTransformer
from vitviz.models.watched.watched_network import WatchedNetwork
from vitviz.weights.conversion.assemble import assemble, infer_config
from vitviz.weights.conversion.canonical import QUERY_KEY_VALUE, Family, MatchedCheckpoint
from vitviz.weights.families import timm, transformers
from vitviz.weights.formats.tensors import WeightFile
from vitviz.weights.metadata.beside import Beside
from vitviz.weights.metadata.sides import both_sides
from vitviz.weights.model import Model
from vitviz.weights.overrides import NOTHING
from vitviz.weights.recognize import recognize
from vitviz.weights.verify import TOLERANCE, compare

REFUSED = "is a network that vitviz's own is not, so that no page can run it"
NEEDLESS = dict.fromkeys(("embeddings.mask_token", "embeddings.position_ids"), "not used for a picture")
ACTIVATIONS = {
    **{"GELU": "gelu", "GELUActivation": "gelu", "GELUTanh": "gelu tanh", "GELUTanhActivation": "gelu tanh"},
    **{"PytorchGELUTanh": "gelu tanh", "QuickGELU": "quick gelu", "QuickGELUActivation": "quick gelu"},
    **{"SiLU": "silu", "SiLUActivation": "silu", "ReLU": "relu"},
}
"""Our names of activations, by their classes."""
SCALED = {
    **{f"attention.{part[0]}_proj": f"attention.qkv.{part}" for part in QUERY_KEY_VALUE},
    **{"attention.o_proj": "attention.projection", "layer_scale1.lambda1": "attention.projection.scale"},
    **{"norm1": "attention_norm", "norm2": "mlp_norm", "mlp.fc1": "mlp.0", "mlp.fc2": "mlp.2"},
    **{"mlp.gate_proj": "mlp.0.gate", "mlp.up_proj": "mlp.0", "mlp.down_proj": "mlp.2"},
    **{"layer_scale2.lambda1": "mlp.2.scale"},
}
CLIP_LAYER = {
    **{f"self_attn.{part[0]}_proj": f"attention.qkv.{part}" for part in QUERY_KEY_VALUE},
    **{"self_attn.out_proj": "attention.projection"},
    **{"layer_norm1": "attention_norm", "layer_norm2": "mlp_norm", "mlp.fc1": "mlp.0", "mlp.fc2": "mlp.2"},
}


def of_layers(start: str, names: Mapping[str, str]) -> dict[str, str]:
    """The canonical keys of the tensors in every layer, by the keys that follow the number of a layer."""
    return {f"{start}.*.{name}": f"layers.*.{canonical_key}" for name, canonical_key in names.items()}


@dataclass(frozen=True)
class Row:
    """The weights of one kind of module.

    Args:
        signature: keys that tell it.
        names: canonical keys by its keys, as those of a :class:`Family`.
        facts: of a module, that its weights do not tell.
    """

    signature: tuple[str, ...]
    names: Mapping[str, str]
    facts: Callable[[Any, MatchedCheckpoint], dict[str, Any]]

    def family(self, module: nn.Module) -> Family:
        """Its record, with the facts of a module."""
        name, rule = type(module).__name__, timm.TIMM.default_transform
        facts = partial(self.facts, module)
        return Family(name, name, self.names, (self.signature,), facts, rule, ignored=NEEDLESS)


def as_own(model: Model) -> Model:
    """The same model in vitviz's own network; the model itself if it is one.

    Raises:
        ConfigError: the table does not describe its network, or not to 1e-5.
    """
    network = model.network
    if not isinstance(network, WatchedNetwork):
        return model
    module: Any = network.module
    if hasattr(module, "get_image_features"):
        parts = ("vision_model", "visual_projection")
        module = nn.ModuleDict({part: getattr(module, part) for part in parts if hasattr(module, part)})
    tensors = {key: tensor.detach().cpu() for key, tensor in module.state_dict().items()}
    file = WeightFile(model.name, {"": tensors}, Path(model.name))
    try:
        checkpoint = recognize(file, Beside(), NOTHING, tuple(row.family(network.module) for row in TABLE))
        if not network.config.classes and checkpoint.has("classifier.weight"):
            checkpoint.take_head_for_projection()
        checkpoint.settle(checkpoint.family.facts(checkpoint))
        config = replace(infer_config(checkpoint), probability=network.config.probability)
        own = assemble(checkpoint, config)
        _compare(own, network, model.preprocessing.whole_patches(config.patch_height, config.patch_width))
    except UnknownFamilyError:
        raise ConfigError(f"{model.name} {REFUSED}: its weights are of another kind") from None
    except KeyError as error:
        raise ConfigError(f"{model.name} {REFUSED}: it has {error}, which vitviz's own has not") from None
    except (VitvizError, AttributeError) as error:
        raise ConfigError(f"{model.name} {REFUSED}: {str(error).removeprefix(f'{model.name}: ')}") from None
    return replace(
        model, network=own, card={**model.card, "engine": "vitviz's own, with the weights of the watched one"}
    )


def _compare(own: VisionTransformer, watched: WatchedNetwork, size: tuple[int, int]) -> None:
    """Hold outputs and attention of every layer, for noise of the size of pictures, to those of the watched module."""
    noise = torch.randn(1, watched.config.channels, *size, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode(), watched.running(noise) as inputs:
        ours, theirs = own.encode(noise), watched.encode(noise)
        outputs = [own(noise), watched.run(inputs).cpu()]
    traces = (*ours.traces, *theirs.traces)
    attention = [torch.stack([trace.weights(layer).cpu() for layer in range(trace.layers)]) for trace in traces]
    for quantity, (found, expected) in {"output": outputs, "attention": attention}.items():
        comparison = compare(quantity, found, expected, TOLERANCE * expected.abs().max().clamp(min=1))
        if not comparison.exact:
            raise ConfigError(f"its {comparison.text}")


def facts_of_timm(module: Any, found: MatchedCheckpoint | None = None) -> dict[str, Any]:
    """Facts of timm's ``VisionTransformer``, ``VisionTransformerDistilled`` and ``Eva``."""
    block, rope = module.blocks[0], getattr(module, "rope", None)
    has_norm, after = (not isinstance(each, nn.Identity) for each in (module.norm, module.fc_norm))
    pooled = {"token": "cls", "avg": "mean", "map": "attention"}[module.global_pool]
    inner = " of all" * (pooled == "mean" and bool(getattr(module, "pool_include_prefix", False)))
    return {
        "heads": block.attn.num_heads,
        "norm_epsilon": block.norm1.eps,
        "activation": ACTIVATIONS[type(block.mlp.act).__name__],
        "pooling": "cls and distillation" if hasattr(module, "head_dist") else pooled + inner,
        "final_norm": "after pooling" if after else "before pooling" if has_norm else "none",
        "positioned": (0 if getattr(module, "no_embed_class", False) else module.num_prefix_tokens,),
        "image_size": both_sides(module.patch_embed.img_size),
        **({} if rope is None else {"rotary": True, "rotary_base": rope.temperature}),
    }


def _of_transformers(module: Any, found: MatchedCheckpoint) -> dict[str, Any]:
    """Facts of transformers' DINOv2, DINOv3, CLIP and SigLIP, by the configuration of their part for pictures."""
    config = getattr(module.config, "vision_config", module.config)
    # A tower of texts may have another activation.
    kinds = [type(part).__name__ for part in getattr(module, "vision_model", module).modules()]
    theta = getattr(config, "rope_theta", None) or (getattr(config, "rope_parameters", None) or {}).get("rope_theta")
    is_wide = found.shape("classifier.weight")[1:] == (2 * config.hidden_size,)
    pooled = {
        "siglip_vision_model": "attention" if found.has("pooler.probe") else "mean",
        "deit": "cls and distillation" if found.has("classifier.distilled.weight") else "cls",
    }
    return {
        "heads": config.num_attention_heads,
        "norm_epsilon": config.layer_norm_eps,
        # DINOv2's gated MLP has no module for it.
        "activation": next((ACTIVATIONS[name] for name in kinds if name in ACTIVATIONS), "silu"),
        # Registers have no positions.
        "positioned": (sum(found.has(f"prefix_tokens.{token}") for token in ("cls", "distillation")),),
        "pooling": "cls and mean" if is_wide else pooled.get(config.model_type, "cls"),
        "image_size": both_sides(config.image_size),
        "position_rule": "bicubic antialiased" if found.has("prefix_tokens.registers") else "bicubic",
        **({"rotary": True, "rotary_base": theta} if theta else {}),
    }


PATCH = "embeddings.patch_embeddings.projection.weight"
DINO = {
    "embeddings.cls_token": "prefix_tokens.cls",
    "embeddings.register_tokens": "prefix_tokens.registers",
    "embeddings.position_embeddings": "positions",
    "classifier": "classifier",
}
TABLE = (
    Row(timm.SIGNATURE, timm.NAMES, facts_of_timm),
    Row(
        ("patch_embed.proj.weight", "blocks.0.attn.qkv.weight"),
        {
            **{name: key for name, key in timm.NAMES.items() if name != "pos_embed"},
            "blocks.*.attn.q_bias": "layers.*.attention.qkv.query.bias",
            "blocks.*.attn.v_bias": "layers.*.attention.qkv.value.bias",
            **{"blocks.*.mlp.fc1_g": "layers.*.mlp.0.gate", "blocks.*.mlp.fc1_x": "layers.*.mlp.0"},
        },
        facts_of_timm,
    ),
    Row(
        (PATCH, "encoder.layer.0.norm1.weight"),
        {
            **DINO,
            **{"embeddings.patch_embeddings.projection": "patch_embedding", "layernorm": "norm"},
            **of_layers("encoder.layer", SCALED),
        },
        _of_transformers,
    ),
    Row(
        ("embeddings.patch_embeddings.weight", "model.layer.0.norm1.weight"),
        {
            **DINO,
            **{"embeddings.patch_embeddings": "patch_embedding", "norm": "norm"},
            **of_layers("model.layer", SCALED),
        },
        _of_transformers,
    ),
    Row(
        ("embeddings.patch_embedding.weight", "encoder.layers.0.layer_norm1.weight"),
        {
            **{"embeddings.patch_embedding": "patch_embedding", "embeddings.class_embedding": "prefix_tokens.cls"},
            **{"embeddings.position_embedding.weight": "positions", "pre_layrnorm": "pre_norm"},
            **of_layers("encoder.layers", CLIP_LAYER),
            **{"post_layernorm": "norm", "visual_projection": "projection", "head.probe": "pooler.probe"},
            **{"head.attention.in_proj_weight": "pooler.qkv.weight", "head.attention.in_proj_bias": "pooler.qkv.bias"},
            **{"head.attention.out_proj": "pooler.projection", "head.layernorm": "pooler.mlp_norm"},
            **{"head.mlp.fc1": "pooler.mlp.0", "head.mlp.fc2": "pooler.mlp.2"},
        },
        _of_transformers,
    ),
    Row(
        (PATCH, "layers.0.layernorm_before.weight"),
        {
            **transformers.NAMES,
            **{"embeddings.distillation_token": "prefix_tokens.distillation", "cls_classifier": "classifier"},
            "distillation_classifier": "classifier.distilled",
        },
        _of_transformers,
    ),
)
