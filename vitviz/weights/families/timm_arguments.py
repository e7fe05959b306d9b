"""The arguments of timm's Vision Transformer classes as facts; every argument is used, harmless or refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vitviz.errors.kinds import CheckpointError, UnknownFamilyError
from vitviz.errors.messages import choices
from vitviz.images.preprocessing import why_not_channels
from vitviz.weights.families.timm_architectures import TimmArchitecture
from vitviz.weights.metadata.settings import Settings

# Arguments of timm's factory, of training and of the initialisation of weights.
HARMLESS = (
    *("pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "pretrained_model_args", "checkpoint_path"),
    *("cache_dir", "scriptable", "exportable", "no_jit", "device", "dtype", "weight_init", "fix_init", "init_values"),
    *("drop_rate", "pos_drop_rate", "patch_drop_rate", "proj_drop_rate", "attn_drop_rate", "drop_path_rate"),
    *("head_init_scale", "rope_shift_coords", "rope_jitter_coords", "rope_rescale_coords", "pretrained_strict"),
)
ACTIVATIONS = {
    **{"gelu": "gelu", "torch.GELU": "gelu", "timm.GELU": "gelu"},
    **{"gelu_tanh": "gelu tanh", "timm.GELUTanh": "gelu tanh"},
    **{"quick_gelu": "quick gelu", "timm.QuickGELU": "quick gelu"},
    **{"silu": "silu", "swish": "silu", "torch.SiLU": "silu", "relu": "relu", "torch.ReLU": "relu"},
}
# Default epsilon of layer norms by name.
NORMS = {"layernorm": 1e-6, "LayerNorm": 1e-6, "timm.LayerNorm": 1e-6, "torch.LayerNorm": 1e-5}
GATED = ("timm.GluMlp(act_layer=torch.SiLU, gate_last=False)",)


class Arguments(Settings):
    """The arguments of a model of timm: those of its architecture, overridden by those in a ``config.json``.

    Args:
        architecture: its row of the table.
        saved: ``model_args`` of its ``config.json``; every entry must be used or skipped.
        name: of the checkpoint, for messages.
        tag: of timm's published weights, if it is named.
    """

    def __init__(self, architecture: TimmArchitecture, saved: Settings, name: str, tag: str = "") -> None:
        place = f"{name}: timm's {architecture.name}" + f" with {saved.place}" * bool(saved)
        super().__init__({}, place)
        self.share(saved, architecture.arguments)
        self.architecture, self.name, self.transform = architecture, name, architecture.transform(tag)
        self.skip(HARMLESS)

    def refuse(self, name: str, expected: str) -> CheckpointError:
        return UnknownFamilyError(f"{super().refuse(name, expected)}; vitviz does not read another")

    def activation(self, default: str = "gelu") -> str:
        name = self.get("act_layer", default)
        key = name.lower() if isinstance(name, str) and "." not in name else name
        if not isinstance(key, str) or key not in ACTIVATIONS:
            raise self.refuse("act_layer", choices(name for name in ACTIVATIONS if "." not in name))
        return ACTIVATIONS[key]

    def epsilon(self) -> float:
        name = self.get("norm_layer", "timm.LayerNorm")
        matched = re.fullmatch(r"([\w.]+)(?:\(eps=([\d.e+-]+)\))?", name) if isinstance(name, str) else None
        if matched is None or matched[1] not in NORMS:
            raise self.refuse("norm_layer", "'layernorm'")
        return float(matched[2]) if matched[2] else NORMS[matched[1]]


def facts_of(arguments: Arguments) -> dict[str, Any]:
    """Facts from a model's arguments: fields of :class:`vitviz.ViTConfig`, and what is compared with its weights.

    Raises:
        CheckpointError: an argument makes a model that vitviz does not have.
    """
    for name in ("use_naflex", "features_only", "pruned"):
        arguments.only(name, False)
    cls = arguments.architecture.cls
    if cls not in CLASSES:
        raise UnknownFamilyError(
            f"{arguments.name}: timm's {arguments.architecture.name} is a {cls}; expected a {choices(CLASSES)}"
        )
    return CLASSES[cls](arguments)


def _common(arguments: Arguments) -> dict[str, Any]:
    width, patch = arguments.count("embed_dim", 768, 0), (arguments.size("patch_size") or (16, 16))
    arguments.only("dynamic_img_pad", False)
    channels = arguments.count("in_chans", 3, 0)
    if reason := why_not_channels(channels):
        raise CheckpointError(f"{arguments.name}: {reason}")
    arguments.count("num_classes", 1000, 0)
    arguments.flag("qkv_bias", True)
    has_norms = arguments.flag("qk_norm", False)
    return {
        "heads": arguments.count("num_heads", 12, 0),
        "norm_epsilon": arguments.epsilon(),
        "image_size": (arguments.size("img_size") or (224, 224)),
        # With this argument, timm prepares pictures at the size in the file, even if it is not the trained one.
        "any_size": arguments.flag("dynamic_img_size", False),
        "stated": {
            "width": width,
            "depth": arguments.count("depth", 12, 0),
            "channels": channels,
            "patch_height": patch[0],
            "patch_width": patch[1],
            "query_key_norm": has_norms,
        },
    }


def _vision_transformer(arguments: Arguments) -> dict[str, Any]:
    facts = _common(arguments)
    for name in ("scale_attn_norm", "scale_mlp_norm"):
        arguments.only(name, False)
    for name, legal in {
        "block_fn": ("timm.Block",),
        "attn_layer": ("timm.Attention", "attn"),
        "embed_layer": ("timm.PatchEmbed",),
        "embed_norm_layer": ("",),
        "pos_embed": ("learn",),
    }.items():
        arguments.only(name, *legal)
    arguments.flag("proj_bias", True)
    mlp, gated = arguments.get("mlp_layer", "timm.Mlp"), False
    if mlp != "timm.Mlp":
        if mlp not in GATED:
            raise arguments.refuse("mlp_layer", "timm's Mlp or SwiGLUPacked")
        gated = True
    has_cls, registers = arguments.flag("class_token", True), arguments.count("reg_tokens", 0, 0)
    pool = arguments.only("global_pool", "token", "avg", "map")
    pools_prefix = arguments.flag("pool_include_prefix", False)
    if pool == "map" and pools_prefix and (has_cls or registers):
        raise arguments.refuse("pool_include_prefix", "False, where global_pool is 'map'")
    fc_norm = arguments.get("fc_norm")
    fc_norm = pool == "avg" if fc_norm is None else arguments.flag("fc_norm", False)
    pooling = {"token": "cls", "avg": "mean of all" if pools_prefix else "mean", "map": "attention"}[pool]
    width = facts["stated"]["width"]
    hidden = int(width * arguments.positive("mlp_ratio", 4.0))
    positioned = (0,) if arguments.flag("no_embed_class", False) else (has_cls + registers,)
    has_pre_norm = arguments.flag("pre_norm", False)
    return {
        **facts,
        "activation": arguments.activation(),
        "pooling": pooling,
        "final_norm": _final_norm(arguments.flag("final_norm", True), fc_norm),
        "positioned": positioned,
        "stated": {
            **facts["stated"],
            "mlp_width": hidden // 2 if gated else hidden,
            "pre_norm": has_pre_norm,
            "gated_mlp": gated,
            "cls_token": has_cls,
            "register_tokens": registers,
        },
    }


def _distilled(arguments: Arguments) -> dict[str, Any]:
    facts = _vision_transformer(arguments)
    arguments.only("global_pool", "token")
    # timm creates registers for this class, but its forward pass does not use them.
    arguments.only("reg_tokens", 0)
    if not arguments.count("num_classes", 1000, 0):
        raise arguments.refuse("num_classes", "at least 1: without classifiers timm gives the mean of its two tokens")
    return {**facts, "pooling": "cls and distillation", "positioned": (2,)}


def _eva(arguments: Arguments) -> dict[str, Any]:
    """Facts of timm's class ``Eva``, if it makes a plain Vision Transformer or DINOv3."""
    facts = _common(arguments)
    for name in ("scale_mlp", "scale_attn_inner", "use_post_norm", "use_pre_transformer_norm", "attn_only_layer_scale"):
        arguments.only(name, False)
    arguments.only("qkv_fused", True)
    arguments.only("attn_type", "eva", "rope")
    for name in ("num_kv_heads", "rope_mrope_section", "attn_pool_num_heads", "attn_pool_mlp_ratio"):
        if arguments.get(name) is not None:
            raise arguments.refuse(name, "none")
    is_rotary, has_learned = arguments.flag("use_rot_pos_emb", False), arguments.flag("use_abs_pos_emb", True)
    if is_rotary:
        if has_learned:
            raise arguments.refuse("use_rot_pos_emb", "False, beside learned positions")
        for name, default, legal in (("rope_type", "cat", "dinov3"), ("rope_rotate_half", False, True)):
            if arguments.get(name, default) != legal:
                raise arguments.refuse(name, repr(legal))
        arguments.only("rope_grid_indexing", "ij")
        arguments.only("rope_grid_offset", 0.0, 0)
    elif not has_learned:
        raise arguments.refuse("use_abs_pos_emb", "True, without rotary positions")
    # Mark these as used: without rotary positions, or with those of DINOv3, they have no further effect.
    for name in ("rope_type", "rope_grid_offset", "rope_grid_indexing", "ref_feat_shape", "rope_rotate_half"):
        arguments.get(name)
    swiglu = arguments.flag("swiglu_mlp", False)
    arguments.count("swiglu_align_to", 0, 0)
    arguments.positive("mlp_ratio", 4.0)
    has_cls, registers = arguments.flag("class_token", True), arguments.count("num_reg_tokens", 0, 0)
    pool = arguments.only("global_pool", "avg", "token")
    fc_norm = arguments.get("use_fc_norm")
    fc_norm = pool == "avg" if fc_norm is None else arguments.flag("use_fc_norm", False)
    post_norm = arguments.get("use_post_transformer_norm")
    post_norm = not fc_norm if post_norm is None else arguments.flag("use_post_transformer_norm", False)
    if post_norm and fc_norm:
        raise arguments.refuse("use_fc_norm", "False, where there is a norm after the last layer")
    positions: Mapping[str, Any] = {
        "positioned": (0,) if arguments.flag("no_embed_class", False) else (has_cls + registers,)
    }
    if is_rotary:
        base = arguments.positive("rope_temperature", 10000.0)
        positions = {"rotary": True, "rotary_base": base, "any_size": True}
    else:
        arguments.get("rope_temperature")
    return {
        **facts,
        **positions,
        "activation": "silu" if swiglu else "gelu",
        "pooling": "cls" if pool == "token" else "mean",
        "final_norm": _final_norm(post_norm or fc_norm, fc_norm),
        "stated": {**facts["stated"], "gated_mlp": swiglu, "cls_token": has_cls, "register_tokens": registers},
    }


def _final_norm(has_norm: bool, after_pooling: bool) -> str:
    return "none" if not has_norm else "after pooling" if after_pooling else "before pooling"


CLASSES = {"VisionTransformer": _vision_transformer, "VisionTransformerDistilled": _distilled, "Eva": _eva}
