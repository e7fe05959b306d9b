"""Random configurations of timm, saved by ``timm.models.save_for_hf``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from tests.parity.case import randomised
from tests.parity.random_draws import Case, Draw, Drawn, at_times, few, optional, together
from tests.parity.reference_models import of_timm
from tests.reference_packages import timm

SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4, "num_classes": 5}
EVA = {**SMALL, "embed_dim": 64}

KNOWN = (
    *("vit_tiny_patch16_224", "vit_small_patch16_224", "vit_base_patch16_224", "vit_base_patch16_224_miil"),
    *("vit_base_patch16_gap_224", "vit_medium_patch16_gap_240", "vit_wee_patch16_reg1_gap_256"),
    *("vit_base_patch16_clip_224", "vit_base_patch16_clip_quickgelu_224", "vit_base_patch16_siglip_224"),
    *("vit_base_patch16_siglip_gap_224", "vit_base_patch32_siglip_256", "vit_so400m_patch14_siglip_224"),
    *("vit_small_patch14_dinov2", "vit_small_patch14_reg4_dinov2", "vit_giant_patch14_dinov2"),
    *("deit_tiny_patch16_224", "deit3_small_patch16_224", "vit_small_patch16_36x1_224", "flexivit_small"),
)
DISTILLED = ("deit_tiny_distilled_patch16_224", "deit_base_distilled_patch16_384")
DINOV3 = ("vit_small_patch16_dinov3", "vit_small_patch16_dinov3_qkvb", "vit_small_plus_patch16_dinov3")
# With keys like these, or other mathematics: refused, or exact where vitviz learns them.
MODULES = ("vision_transformer", "deit", "eva", "beit", "vision_transformer_relpos", "vision_transformer_hybrid")
OTHERS = sorted(
    {
        *(name for module in MODULES for name in timm.list_models(module=module)),
        *timm.list_models("naflexvit*"),
        *timm.list_models("qwen3_vit*"),
        *("cait_xxs24_224", "xcit_nano_12_p16_224", "swin_tiny_patch4_window7_224", "tnt_s_patch16_224"),
        *("mixer_s32_224", "convnext_atto", "resnet18", "pit_ti_224", "crossvit_tiny_240", "samvit_base_patch16"),
    }
)

HEADS = st.integers(1, 6)
HEAD_WIDTHS = st.sampled_from([4, 6, 8, 10, 12, 16, 20, 32, 64])
SIZES = st.sampled_from([32, 24, 16, 40, (24, 40), (40, 16), (33, 28)])
PATCHES = st.sampled_from([8, 4, (8, 4), 8, 7])
RATIOS = st.sampled_from([4.0, 1.0, 2.0, 1.5, 0.75, 2.6667, 3.3, 4.3637])
ACTIVATIONS = st.sampled_from(["gelu", "relu", "silu", "quick_gelu", "gelu_tanh"])
WIDTHS = st.tuples(HEADS, HEAD_WIDTHS).map(lambda pair: {"num_heads": pair[0], "embed_dim": pair[0] * pair[1]})

PLAIN = {
    "depth": st.integers(1, 3),
    "mlp_ratio": RATIOS,
    "act_layer": ACTIVATIONS,
    "patch_size": PATCHES,
    "img_size": SIZES,
    "in_chans": st.sampled_from([1, 3, 3, 3, 3]),
    "num_classes": st.sampled_from([0, 1, 3, 7]),
    "qkv_bias": st.booleans(),
    "proj_bias": st.booleans(),
    "qk_norm": st.booleans(),
    "init_values": st.sampled_from([1e-5, 0.1, 1.0]),
    "reg_tokens": st.integers(0, 4),
    "no_embed_class": st.booleans(),
    "pre_norm": st.booleans(),
    "dynamic_img_size": st.booleans(),
    "drop_rate": st.sampled_from([0.0, 0.1]),
}
POOLED = st.sampled_from(
    [
        {"global_pool": "token"},
        {"global_pool": "avg"},
        {"global_pool": "avg", "fc_norm": False},
        {"global_pool": "token", "fc_norm": True},
        {"global_pool": "avg", "pool_include_prefix": True},
        {"global_pool": "map"},
        {"global_pool": "map", "class_token": False},
        {"global_pool": "avg", "class_token": False},
        {"global_pool": "avg", "final_norm": False},
        {"global_pool": "token", "final_norm": False, "fc_norm": False},
    ]
)
STRANGE = {
    "global_pool": st.sampled_from(["max", "avgmax", "", "prr"]),
    "norm_layer": st.sampled_from(["layernorm", "rmsnorm", "simplenorm", "layernormfp32"]),
    "act_layer": st.sampled_from(["mish", "hard_swish", "leaky_relu", "tanh", "sigmoid", "elu", "relu6"]),
    "scale_attn_norm": st.just(True),
    "scale_mlp_norm": st.just(True),
    "pos_embed": st.sampled_from(["none", "learn"]),
    "in_chans": st.sampled_from([2, 4, 5]),
    "attn_layer": st.sampled_from(["diff", "attn"]),
    "pool_include_prefix": st.just(True),
    "weight_init": st.sampled_from(["jax", "moco"]),
}
DINOV3_PLAIN = {
    **{name: PLAIN[name] for name in ("depth", "mlp_ratio", "num_classes", "qkv_bias", "init_values", "qk_norm")},
    "img_size": SIZES,
    "patch_size": PATCHES,
    "num_reg_tokens": st.integers(0, 4),
    "global_pool": st.sampled_from(["avg", "token"]),
}
DINOV3_STRANGE = {
    "use_abs_pos_emb": st.just(True),
    "use_rot_pos_emb": st.just(False),
    "rope_temperature": st.sampled_from([10.0, 1000.0]),
    "rope_rotate_half": st.just(False),
    "rope_type": st.sampled_from(["cat", "mixed"]),
    "swiglu_mlp": st.booleans(),
    "scale_mlp": st.just(True),
    "use_post_norm": st.just(True),
    "use_fc_norm": st.booleans(),
    "class_token": st.just(False),
    "global_pool": st.sampled_from(["max", "map", "avgmax"]),
    "attn_type": st.sampled_from(["eva", "rope"]),
    "qkv_fused": st.just(False),
    "rope_grid_offset": st.just(0.5),
}
PREPARED = optional(
    mean=st.sampled_from([(0.5, 0.5, 0.5), (0.1, 0.2, 0.3)]),
    std=st.sampled_from([(0.5, 0.5, 0.5), (0.3, 0.2, 0.4)]),
    interpolation=st.sampled_from(["bicubic", "bilinear", "nearest", "lanczos"]),
    crop_pct=st.sampled_from([1.0, 0.9, 0.875, 0.95]),
    crop_mode=st.sampled_from(["center", "squash", "border"]),
    safe=st.just(True),
    stale=st.just(True),
)


def draws(kinds: tuple[str, ...], options: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[Draw]:
    return st.builds(Draw, st.sampled_from(kinds), options, PREPARED)


KNOWN_DRAWS = draws(
    KNOWN, together(at_times(WIDTHS, 2), optional(**PLAIN), at_times(POOLED, 2), at_times(few(STRANGE), 4))
)
DISTILLED_DRAWS = draws(DISTILLED, together(WIDTHS, optional(**PLAIN)))
DINOV3_DRAWS = draws(DINOV3, together(optional(**DINOV3_PLAIN), at_times(few(DINOV3_STRANGE), 4)))
OTHER_DRAWS = draws(tuple(OTHERS), st.just({}))

# Of 20 draws.
PARTS = {12: KNOWN_DRAWS, 13: DISTILLED_DRAWS, 16: DINOV3_DRAWS, 20: OTHER_DRAWS}


@st.composite
def every(draw: st.DrawFn) -> Draw:
    number = draw(st.integers(1, 20))
    return draw(next(strategy for most, strategy in PARTS.items() if number <= most))


def make(draw: Draw, folder: Path) -> Case:
    small = EVA if draw.kind in DINOV3 else SMALL
    model = create(draw.kind, {**small, **draw.options})
    files = dict(draw.files)
    safe = files.pop("safe", False)
    channels = draw.options.get("in_chans", 3)
    for name in ("mean", "std"):
        if name in files:
            files[name] = (files[name] * 2)[:channels]
    # What takes any size need not be as large as its package's own.
    sizes = [min(side, 224) for side in model.pretrained_cfg["input_size"][1:]]
    sides = getattr(getattr(model, "patch_embed", None), "img_size", None) or sizes
    if not files.pop("stale", False):
        # Else the file states the size of the architecture, whatever the model's is.
        files["input_size"] = (channels, *sides)
    timm.models.save_for_hf(model, folder, safe_serialization=safe, data_config=files)
    # What was written is what timm reads back.
    model.pretrained_cfg |= json.loads((folder / "config.json").read_text())["pretrained_cfg"]
    return Case(of_timm(model), tuple(sides), channels)


def create(kind: str, options: dict[str, Any]) -> Any:
    """The architecture as small as it can be made."""
    for left_out in ((), ("patch_size",), tuple(SMALL)):
        try:
            model = timm.create_model(kind, **{name: value for name, value in options.items() if name not in left_out})
        except TypeError:
            if not left_out and kind not in OTHERS:
                raise
        else:
            if sum(parameter.numel() for parameter in model.parameters()) > 4e6:
                raise ValueError("cannot be made small")
            return randomised(model)
    raise ValueError("cannot be made small")


TIMM = Drawn(every(), make, least_exact=0.65)
